"""PyTorch: a drop-in for scaled_dot_product_attention, an operator for torch.compile and torch.export, and enable().

    import flashcore.torch
    with flashcore.torch.enable():
        model(x)                      # every scaled_dot_product_attention inside runs on flashcore where it can
    print(flashcore.torch.counters())

What flashcore does not compute (dropout, gradients, ...) goes to PyTorch, with a `flashcore.Note` the first time
that says why, at the caller's line. Gradients: a call whose inputs require one runs on PyTorch, forward and backward;
`torch.ops.flashcore.attention`, called directly, computes its backward by running PyTorch's on the same inputs. It
refuses unsuitable arguments with a RuntimeError, also under torch.compile, and supports vmap, forward-mode derivatives
and autocast. It takes head dims up to 256 on a CPU and up to 1024 on a GPU (above 576 by the naive kernel); scaled_dot_product_attention and enable() leave those above 256 to
PyTorch, for nobody has timed them.

Where PyTorch has a registry of flash attention kernels (torch.nn.attention.activate_flash_attention_impl), importing this module offers
"flashcore" to it: activated, it takes the place of the forward kernels that PyTorch's flash attention calls on the CPU and on a GPU. The
backward pass stays PyTorch's, from flashcore's output and log-sum-exp; so do dropout and masks. It is asked where PyTorch chooses its flash
attention, which takes 16 bits on a GPU and no mask. On some GPUs PyTorch prefers another of its kernels (cuDNN's on Hopper and later, in
some releases): sdpa_kernel(SDPBackend.FLASH_ATTENTION) asks for flash attention, and counters() tells whether flashcore computed.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from . import _library, _plan, _torch_operator, _torch_provider, _torch_row_masks
from ._torch_counters import counters, reset_counters
from ._torch_dropin import attend
from ._torch_flex import flex_attention
from ._torch_reasons import why_not
from ._torch_switch import disable, enable

__all__ = ["attention", "counters", "disable", "enable", "flex_attention", "reset_counters", "scaled_dot_product_attention", "why_not"]


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor] = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: Optional[float] = None,
                                 enable_gqa: bool = False) -> Tensor:  # fmt: skip
    """torch.nn.functional.scaled_dot_product_attention, with the same arguments and results, by flashcore where it can.

    Args:
        query: [batch, heads, length, dim], float16, bfloat16 or float32 (CPU), any strides.
        key: [batch, heads_kv, length_kv, dim]; fewer heads than the query's need enable_gqa.
        value: [batch, heads_kv, length_kv, dim_v].
        attn_mask: of bool, or of numbers that are added to the scores: float32 or the query's dtype; of any shape that broadcasts to
            [batch, heads, length, length_kv]. A row that sees no key is 0. On a CPU its values are looked at: padding (each batch entry
            shows one run of keys to all rows) is computed as lengths, a causal mask as causal, one that hides nothing as none. A mask that
            requires a gradient, one together with is_causal, and tensor subclasses go to PyTorch, but causal_upper_left and
            causal_lower_right of torch.nn.attention.bias, which are computed as causal masks without a tensor.
        dropout_p: anything but 0 goes to PyTorch.
        is_causal: row i sees keys 0..i (top-left, as PyTorch defines it).
        scale: default 1/sqrt(dim).
        enable_gqa: as PyTorch's.

    Returns:
        [batch, heads, length, dim_v], in memory [batch, length, heads, dim_v]. Under autocast it has autocast's dtype, as PyTorch's has.

    This function ignores sdpa_kernel(...); the one that enable() puts in PyTorch's place obeys it.
    """
    return attend(_torch_operator.pytorch_attention, False, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def attention(query: Tensor, key: Tensor, value: Tensor, *, window: Any = None, is_causal: bool = False,
              scale: Optional[float] = None, softcap: Optional[float] = None, alibi_slopes: Optional[Tensor] = None,
              sink: Optional[Tensor] = None, intervals: Any = None, documents: Any = None, document_boundaries: Any = None) -> Tensor:  # fmt: skip
    """Attention with what PyTorch's function knows only as a mask, or not at all: a sliding window, a softcap, ALiBi, attention
    sinks, intervals of keys, documents. By torch.ops.flashcore.attention, so under torch.compile, autograd, vmap and autocast too.

    Args:
        query, key, value: as for scaled_dot_product_attention; heads of key divide those of query.
        window: (left, right): how many keys a row sees to the left and right of its own one; None or -1: no bound on that
            side. The last row's own key is the last one, as in FlashAttention's window_size.
        is_causal: top-left, as PyTorch defines it: row i's own key is key i, also for the window's left side. For a causal
            mask that is aligned at the end, as decoding needs it, give window=(left, 0) instead.
        scale: default 1/sqrt(dim).
        softcap: from 1e-6 to 1e6: a score s becomes softcap * tanh(s / softcap) before it is masked (Gemma 2).
        alibi_slopes: [heads] or [batch, heads]: slope * |i + length_kv - length - j| is taken from the score of row i and key j, after
            the softcap, as in FlashAttention. Read as float32.
        sink: [heads], a logit that joins the sum of each row of a query head and has no value (gpt-oss). Read as float32.
        intervals, documents, document_boundaries: masks of int32, as of `flashcore.attention`. Under torch.compile, autograd, vmap and
            autocast they become a boolean mask of all pairs first.

    Gradients, those of alibi_slopes and sink too, are computed by PyTorch, from all scores at once.

    Raises:
        flashcore.Error: for a window that is none, and a scale or softcap that is True or False. RuntimeError: for tensors that do not
            fit together.
    """
    # An operator takes them for 1 and 0.
    for name, number in (("scale", scale), ("softcap", softcap)):
        if isinstance(number, bool):
            raise _library.Error(f"{name} is {number!r}; use a number from 1e-6 to 1e6, or None")
    left, right = _plan.window_sides(window)
    if intervals is not None or documents is not None or document_boundaries is not None:
        return _torch_row_masks.attend(query, key, value, (is_causal, scale, left, right, softcap), alibi_slopes, sink, intervals, documents, document_boundaries)
    return torch.ops.flashcore.attention(query, key, value, is_causal, scale, left, right, softcap, alibi_slopes, sink)  # type: ignore[no-any-return]


_torch_provider.register()
torch.jit._builtins._register_builtin(scaled_dot_product_attention, "aten::scaled_dot_product_attention")
