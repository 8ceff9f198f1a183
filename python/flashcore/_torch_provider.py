"""flashcore as a provider of torch.nn.attention: the kernel below PyTorch's own scaled_dot_product_attention.

PyTorch's registry has names, and a function for each that puts kernels into the dispatcher. Here these are the forward kernels of PyTorch's
flash attention, on the CPU and on a GPU. What they are given was found suitable by PyTorch; what flashcore does not compute goes to the kernel
that was replaced. The backward pass stays PyTorch's: it takes the output and the log-sum-exp, which are defined alike.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from . import _plan, _torch_launch
from ._torch_counters import pass_on
from ._torch_reasons import DROPOUT, why_not_of

NAME = "flashcore"
_COLUMNS = "key and value differ in head dims, which PyTorch's flash attention does not take"
_MASK = "attn_mask is given to the provider; enable() takes masks"
_ON_CPU, _ON_GPU = "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"


class Provider:
    """What activate_flash_attention_impl keeps: the kernels stay until remove()."""

    def __init__(self) -> None:
        self._library: Optional[torch.library.Library] = torch.library.Library("aten", "IMPL")
        self._replaced = {}
        for name, key, kernel in ((_ON_CPU, "CPU", self._on_cpu), (_ON_GPU, "CUDA", self._on_gpu)):
            if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key):  # a PyTorch without CUDA has none
                self._replaced[name] = torch.library.get_kernel(f"aten::{name}", key)
                self._library.impl(name, kernel, key, with_keyset=True)

    def remove(self) -> None:
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _on_cpu(self, keys: Any, query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
                attn_mask: Optional[Tensor] = None, scale: Optional[float] = None) -> tuple[Tensor, Tensor]:  # fmt: skip
        reason = _MASK if attn_mask is not None else _why_not(query, key, value, dropout_p, is_causal, scale)
        if reason is not None:
            pass_on(reason)
            return self._replaced[_ON_CPU].call_boxed(keys, query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)  # type: ignore[no-any-return]
        batch, heads, rows, _ = query.shape
        out, found = _computed(query, key, value, "top_left" if is_causal else False, scale)
        # In memory as the kernel that this replaces has them, which torch.compile counts on.
        lse = torch.empty((batch, rows, heads), dtype=torch.float32).transpose(1, 2)
        lse.copy_(found)
        return out, lse

    def _on_gpu(self, keys: Any, query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
                return_debug_mask: bool = False, *, scale: Optional[float] = None) -> Any:  # fmt: skip
        reason = "the mask of a dropout is asked for" if return_debug_mask else _why_not(query, key, value, dropout_p, is_causal, scale)
        if reason is not None:
            pass_on(reason)
            return self._replaced[_ON_GPU].call_boxed(keys, query, key, value, dropout_p, is_causal, return_debug_mask, scale=scale)
        # Here a causal mask is aligned at the end; PyTorch's function calls this only where that is the same.
        out, lse = _computed(query, key, value, "bottom_right" if is_causal else False, scale)
        seed, offset = (torch.empty(shape, dtype=torch.uint64, device=query.device) for shape in ((2,), ()))  # read by a dropout alone
        return out, lse, None, None, query.shape[2], key.shape[2], seed, offset, torch.empty(0, dtype=query.dtype, device=query.device)


def _why_not(query: Tensor, key: Tensor, value: Tensor, dropout_p: float, is_causal: bool, scale: Optional[float]) -> Optional[str]:
    if dropout_p != 0:
        return DROPOUT
    return why_not_of(query, key, value, is_causal, scale, query.is_cuda) or (_COLUMNS if value.shape[3] != query.shape[3] else None)


def _computed(query: Tensor, key: Tensor, value: Tensor, causal: Any, scale: Optional[float]) -> tuple[Tensor, Tensor]:
    """The output, in memory as the query, and the log-sum-exp."""
    out = torch.empty_like(query)
    q, k, v = (x.detach() if x.stride(3) == 1 else x.detach().contiguous() for x in (query, key, value))
    _, lse = _plan.attention(q, k, v, causal=causal, scale=scale, return_lse=True, out=out)
    _torch_launch.computed.add()
    return out, lse


def register() -> None:
    """Offers it where PyTorch has the registry. It computes nothing before torch.nn.attention.activate_flash_attention_impl("flashcore")."""
    offer = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if offer is not None and hasattr(torch.library, "get_kernel"):
        offer(NAME, register_fn=Provider)
