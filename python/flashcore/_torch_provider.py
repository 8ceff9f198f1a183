"""flashcore as a provider of torch.nn.attention: the kernel below PyTorch's own scaled_dot_product_attention.

PyTorch's registry has names, and a function for each that puts kernels into the dispatcher. Here that is the forward kernel of PyTorch's flash
attention on the CPU. What it is given was found suitable by PyTorch; what it does not compute it hands to the kernel that it replaced. The
backward pass stays PyTorch's: it takes the output and the log-sum-exp, which are defined alike.
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
_OPERATOR = "aten::_scaled_dot_product_flash_attention_for_cpu"


class Provider:
    """What activate_flash_attention_impl keeps: the kernel stays until remove()."""

    def __init__(self) -> None:
        self._replaced = torch.library.get_kernel(_OPERATOR, "CPU")
        self._library: Optional[torch.library.Library] = torch.library.Library("aten", "IMPL")
        self._library.impl("_scaled_dot_product_flash_attention_for_cpu", self._attend, "CPU", with_keyset=True)

    def remove(self) -> None:
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _attend(self, keys: Any, query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
                attn_mask: Optional[Tensor] = None, scale: Optional[float] = None) -> tuple[Tensor, Tensor]:  # fmt: skip
        reason = "attn_mask is given to the provider; enable() takes masks" if attn_mask is not None else DROPOUT if dropout_p != 0 else None
        reason = reason or why_not_of(query, key, value, is_causal, scale, False) or (_COLUMNS if value.shape[3] != query.shape[3] else None)
        if reason is not None:
            pass_on(reason)
            return self._replaced.call_boxed(keys, query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)  # type: ignore[no-any-return]
        batch, heads, rows, _ = query.shape
        # In memory as the kernel that this replaces has them, which torch.compile counts on.
        out = torch.empty_like(query)
        lse = torch.empty((batch, rows, heads), dtype=torch.float32).transpose(1, 2)
        q, k, v = (x.detach() if x.stride(3) == 1 else x.detach().contiguous() for x in (query, key, value))
        _, found = _plan.attention(q, k, v, causal="top_left" if is_causal else False, scale=scale, return_lse=True, out=out)
        lse.copy_(found)
        _torch_launch.computed.add()
        return out, lse


def register() -> None:
    """Offers it where PyTorch has the registry. It computes nothing before torch.nn.attention.activate_flash_attention_impl("flashcore")."""
    offer = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if offer is not None and hasattr(torch.library, "get_kernel"):
        offer(NAME, register_fn=Provider)
