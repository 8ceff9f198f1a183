"""FlashAttention 3's functions, with their names, arguments and layout: a program that imports them from `flash_attn_interface` can import
them here. `flashcore.flash_attn` has FlashAttention 2's.

    from flashcore.flash_attn_interface import flash_attn_func
    out = flash_attn_func(q, k, v, causal=True, window_size=(1023, 0))

q is [batch, length, heads, dim], k and v are [batch, length_kv, heads_kv, dim]. Any GPU from sm_80 and the CPU; head dims up to 1024
on a GPU and 256 on a CPU. Not here yet: `attention_chunk`, `rotary_seqlens` other than `cache_seqlens`, gradients
of 8-bit inputs.
"""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor

from . import _columns, _library, _plan, _torch_cache, _torch_launch, _varlen, flash_attn

__all__ = ["flash_attn_combine", "flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache", "get_scheduler_metadata"]

_DESCALES = ("q_descale", "k_descale", "v_descale")
Made = Union[Tensor, tuple[Tensor, Tensor]]


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, softmax_scale: Optional[float] = None, causal: bool = False, qv: Optional[Tensor] = None,
                    q_descale: Optional[Tensor] = None, k_descale: Optional[Tensor] = None, v_descale: Optional[Tensor] = None,
                    window_size: Any = (-1, -1), attention_chunk: int = 0, softcap: float = 0.0, num_splits: int = 1,
                    pack_gqa: Optional[bool] = None, deterministic: bool = False, sm_margin: int = 0, return_attn_probs: bool = False) -> Made:  # fmt: skip
    """flash_attn_interface.flash_attn_func.

    Args:
        q: [batch, length, heads, dim], float16, bfloat16, float8_e4m3fn or on the CPU float32.
        k, v: [batch, length_kv, heads_kv, dim]; heads_kv divides heads.
        softmax_scale: default 1/sqrt(dim).
        causal: the last row sees every key.
        q_descale, k_descale, v_descale: of 8-bit tensors, float32 [batch, heads_kv]: what their numbers are multiplied with; all three or none.
            Or of each row (not in FlashAttention): q_descale [batch, heads, length] and k_descale [batch, heads_kv, length_kv], heads first.
        window_size: (left, right): how many keys a row sees to either side of its own one; -1: no bound.
        softcap: 0 for none.
        qv: [batch, length, heads, dim of v]: scores are softmax_scale * (q kᵀ + qv vᵀ), and the default of softmax_scale is 1/sqrt(dim + dim of v);
            not of 8 bits. A key is read from one place: k and v are copied to one tensor, but where they are columns of one, v its first
            ones and k the others.
        attention_chunk: 0 only.
        num_splits, pack_gqa, deterministic, sm_margin: ignored.
        return_attn_probs: also return the log-sum-exp. Such a call has no gradient.

    Returns:
        [batch, length, heads, dim of v], bfloat16 of 8-bit inputs, or (out, softmax_lse) with float32 [batch, heads, length].

    Raises:
        flashcore.Error: for what is not here, and as flashcore.flash_attn.flash_attn_func.
    """
    _refuse(attention_chunk=attention_chunk)
    q, k, softmax_scale = _columns.with_second_query(q, k, v, qv, softmax_scale)
    sides = _sides(window_size)
    if not _has_8_bits(q):
        _refuse_descales(q, q_descale, k_descale, v_descale)
        made = flash_attn.flash_attn_func(q, k, v, 0.0, softmax_scale, causal, sides, softcap, None, deterministic, return_attn_probs)
        return made[:2] if return_attn_probs else made
    with torch.no_grad():
        q, k, v = (_adjacent(x.detach()) for x in (q, k, v))
        made = _plan.attention(q, k, v, layout="bshd", return_lse=return_attn_probs, **_descales(q, q_descale, k_descale, v_descale),
                               **_torch_cache._options(softmax_scale, causal, sides, softcap, None, None))  # fmt: skip
    _torch_launch.computed.add()
    return made  # type: ignore[no-any-return]


def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
                           seqused_q: Optional[Tensor] = None, seqused_k: Optional[Tensor] = None, softmax_scale: Optional[float] = None,
                           causal: bool = False, qv: Optional[Tensor] = None, q_descale: Optional[Tensor] = None,
                           k_descale: Optional[Tensor] = None, v_descale: Optional[Tensor] = None, window_size: Any = (-1, -1),
                           attention_chunk: int = 0, softcap: float = 0.0, num_splits: int = 1, pack_gqa: Optional[bool] = None,
                           deterministic: bool = False, sm_margin: int = 0, return_attn_probs: bool = False) -> Made:  # fmt: skip
    """flash_attn_interface.flash_attn_varlen_func: sequences of different lengths, one after another.

    Args:
        q: [rows of all sequences, heads, dim].
        k, v: [keys of all sequences, heads_kv, dim]; heads_kv divides heads.
        cu_seqlens_q, cu_seqlens_k: int32 [batch + 1]: sequence s has rows cu_seqlens_q[s] to cu_seqlens_q[s + 1] - 1.
        max_seqlen_q, max_seqlen_k: upper bounds of the lengths. A sequence beyond them gets NaN.
        seqused_q, seqused_k: int32 [batch]: how many rows and keys of each sequence count. Default: all.
        The rest as of flash_attn_func.

    Returns:
        [rows, heads, dim of v], or (out, softmax_lse) with float32 [heads, rows].

    Raises:
        flashcore.Error: for what is not here, and as flashcore.flash_attn.flash_attn_varlen_func.
    """
    _refuse(attention_chunk=attention_chunk)
    q, k, softmax_scale = _columns.with_second_query(q, k, v, qv, softmax_scale)
    sides = _sides(window_size)
    if not _has_8_bits(q):
        _refuse_descales(q, q_descale, k_descale, v_descale)
        made = flash_attn.flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, 0.0, softmax_scale, causal, sides,
                                                 softcap, None, deterministic, return_attn_probs, seqused_q=seqused_q, seqused_k=seqused_k)  # fmt: skip
        return made[:2] if return_attn_probs else made
    with torch.no_grad():
        q, k, v = (_adjacent(x.detach()) for x in (q, k, v))
        made = _varlen.varlen_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=seqused_q, seqused_kv=seqused_k,
                                        return_lse=return_attn_probs, **_descales(q, q_descale, k_descale, v_descale),
                                        **_torch_cache._options(softmax_scale, causal, sides, softcap, None, None))  # fmt: skip
    _torch_launch.computed.add()
    return made  # type: ignore[no-any-return]


def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Optional[Tensor] = None, v: Optional[Tensor] = None,
                            qv: Optional[Tensor] = None, rotary_cos: Optional[Tensor] = None, rotary_sin: Optional[Tensor] = None,
                            cache_seqlens: Optional[Union[int, Tensor]] = None, cache_batch_idx: Optional[Tensor] = None,
                            cache_leftpad: Optional[Tensor] = None, page_table: Optional[Tensor] = None, cu_seqlens_q: Optional[Tensor] = None,
                            cu_seqlens_k_new: Optional[Tensor] = None, max_seqlen_q: Optional[int] = None,
                            rotary_seqlens: Optional[Tensor] = None, q_descale: Optional[Tensor] = None, k_descale: Optional[Tensor] = None,
                            v_descale: Optional[Tensor] = None, softmax_scale: Optional[float] = None, causal: bool = False,
                            window_size: Any = (-1, -1), attention_chunk: int = 0, softcap: float = 0.0, rotary_interleaved: bool = True,
                            scheduler_metadata: Optional[Tensor] = None, num_splits: int = 0, pack_gqa: Optional[bool] = None,
                            sm_margin: int = 0, return_softmax_lse: bool = False) -> Made:  # fmt: skip
    """flash_attn_interface.flash_attn_with_kvcache: flashcore.flash_attn.flash_attn_with_kvcache with FlashAttention 3's order of arguments.

    Args:
        page_table: int32 [entries, max_pages]; with cache_batch_idx sequence s has its row cache_batch_idx[s].
        cu_seqlens_q, cu_seqlens_k_new: int32 [batch + 1]: boundaries of q and of the new k and v, which are [rows of all sequences, heads, dim].
        rotary_seqlens: cache_seqlens itself, or None.
        window_size: as of flash_attn_func.
        qv: as of flashcore.flash_attn.flash_attn_with_kvcache: k_cache and v_cache are columns of one tensor then.
        attention_chunk: 0 only.
        scheduler_metadata, num_splits, pack_gqa, sm_margin: ignored.
        The rest as of flashcore.flash_attn.flash_attn_with_kvcache.

    Returns:
        The output with the axes of q, or (output, softmax_lse) with float32 [batch, heads, rows], or [heads, rows of all sequences].

    Raises:
        flashcore.Error: for what is not here, and as flashcore.flash_attn.flash_attn_with_kvcache.
    """
    _refuse(attention_chunk=attention_chunk)
    if rotary_cos is not None and rotary_seqlens is not None and rotary_seqlens is not cache_seqlens:
        raise _library.Error("rotary_seqlens is given; new keys are turned by their places in the cache: give cache_seqlens itself, or None")
    return _torch_cache.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad, None, softmax_scale, causal,
        _sides(window_size), softcap, rotary_interleaved, None, num_splits, return_softmax_lse, page_table=page_table, cu_seqlens_q=cu_seqlens_q,
        max_seqlen_q=max_seqlen_q, cu_seqlens_k_new=cu_seqlens_k_new, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale,
        qv=qv)  # fmt: skip


def flash_attn_combine(out_partial: Tensor, lse_partial: Tensor, out: Optional[Tensor] = None,
                       out_dtype: Optional[torch.dtype] = None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """flash_attn_interface.flash_attn_combine: attention over all keys, of results over parts of them. PyTorch computes it, in float32.

    Args:
        out_partial: float32 [parts, batch, length, heads, dim], or without the batch [parts, rows, heads, dim].
        lse_partial: float32 [parts, batch, length, heads], or [parts, rows, heads]: natural log-sum-exps. Of parts without keys (-inf) nothing
            counts.
        out: where to write. out_dtype: its type; default that of out_partial.

    Returns:
        ([batch, length, heads, dim], float32 [batch, length, heads]), or without the batch.

    Raises:
        flashcore.Error: for tensors that do not fit together.
    """
    if out_partial.dim() not in (4, 5) or out_partial.shape[0] == 0 or lse_partial.shape != out_partial.shape[:-1]:
        raise _library.Error(f"out_partial has shape {tuple(out_partial.shape)} and lse_partial {tuple(lse_partial.shape)}; give "
                             "[parts, batch, length, heads, dim] and the same without dim")  # fmt: skip
    dtype = (out_partial.dtype if out_dtype is None else out_dtype) if out is None else out.dtype
    if out is not None and (out.shape != out_partial.shape[1:] or out_dtype not in (None, out.dtype)):
        raise _library.Error(f"out is {out.dtype} of shape {tuple(out.shape)}; give {out_dtype or dtype} {tuple(out_partial.shape[1:])}")
    lse = torch.logsumexp(lse_partial.float(), 0)
    weights = torch.exp(lse_partial.float() - torch.where(lse.isneginf(), 0.0, lse))
    # A part without keys may hold anything.
    made = torch.where(weights[..., None] == 0, 0.0, out_partial.float() * weights[..., None]).sum(0).to(dtype)
    return (made if out is None else out.copy_(made)), lse


def get_scheduler_metadata(batch_size: int, max_seqlen_q: int, max_seqlen_k: int, num_heads_q: int, num_heads_kv: int, headdim: int,
                           cache_seqlens: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # fmt: skip
    """flash_attn_interface.get_scheduler_metadata: int32 [0] on the device of cache_seqlens. Kernels plan by themselves, at run time."""
    return torch.empty(0, dtype=torch.int32, device=cache_seqlens.device)


def _has_8_bits(q: Any) -> bool:
    return isinstance(q, Tensor) and q.dtype.itemsize == 1


def _adjacent(x: Tensor) -> Tensor:
    return x if x.shape[-1] <= 1 or x.stride(-1) == 1 else x.contiguous()


def _sides(window_size: Any) -> tuple[int, int]:
    """FlashAttention 3 takes a tensor of two numbers too."""
    sides = window_size.tolist() if isinstance(window_size, Tensor) else window_size
    left, right = _plan.window_sides(tuple(sides) if isinstance(sides, list) else sides)
    return left, right


def _refuse(**given: Any) -> None:
    for name, value in given.items():
        if isinstance(value, Tensor) or value:
            raise _library.Error(f"{name} is given; flashcore.flash_attn_interface takes 0 only: chunked attention has no kernel; give window_size")


def _refuse_descales(q: Any, *given: Optional[Tensor]) -> None:
    for name, x in zip(_DESCALES, given):
        if x is not None:
            raise _library.Error(f"{name} is given and q is {q.dtype}; leave it out: only tensors of 8 bits have factors")


def _descales(q: Tensor, *given: Optional[Tensor]) -> dict[str, Any]:
    there = [name for name, x in zip(_DESCALES, given) if x is not None]
    if there and len(there) < 3:
        missing = next(name for name in _DESCALES if name not in there)
        raise _library.Error(f"{there[0]} is given and {missing} is not; give all three, or none")
    return dict(zip(("descale_q", "descale_k", "descale_v"), (x.detach().contiguous() if isinstance(x, Tensor) else x for x in given)))
