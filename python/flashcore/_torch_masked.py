"""scaled_dot_product_attention with an attn_mask: a condition for each pair, or numbers that are added to the scores."""

from __future__ import annotations

from typing import Callable, Optional, Union

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _functions, _torch_launch
from ._functions import Functions
from ._library import Error
from ._torch_counters import pass_on
from ._torch_reasons import CHOSEN, DROPOUT, GRADIENT, is_restricted, why_not_of

# Kinds that masks are taken on. On a CPU PyTorch's own kernel is faster.
DEVICES = ("cuda",)
_PLAIN = frozenset((Tensor, torch.nn.Parameter))
_TRANSFORMED = "attn_mask is given under torch.compile, a transform, a mode or autocast, or one of the tensors is a subclass"
_CAUSAL = "attn_mask and is_causal are both given"
_SHAPE = "attn_mask does not broadcast to [batch, heads, length, length]"
_SLOW = "attn_mask is given, and of flashcore's kernels the slow reference alone takes such a call"


def _is_plain(*tensors: Tensor) -> bool:
    return (all(type(x) in _PLAIN for x in tensors) and not torch.compiler.is_compiling() and torch._C._len_torch_dispatch_stack() == 0
            and not torch._C._is_tracing() and not torch._C._is_any_autocast_enabled() and forward_ad._current_level < 0
            and not torch._C._are_functorch_transforms_active() and not any(x.is_neg() for x in tensors))  # fmt: skip


def _why_not(obey: bool, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, dropout_p: float, is_causal: bool, scale: Optional[float],
             enable_gqa: bool) -> Optional[str]:  # fmt: skip
    if dropout_p != 0:
        return DROPOUT
    if obey and is_restricted():
        return CHOSEN
    if not (isinstance(key, Tensor) and isinstance(value, Tensor) and isinstance(mask, Tensor)) or not _is_plain(query, key, value, mask):
        return _TRANSFORMED
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad or mask.requires_grad):
        return GRADIENT
    if type(is_causal) is not bool or is_causal:
        return _CAUSAL
    if scale is not None and type(scale) is not float:
        return f"scale is a {type(scale).__name__}"
    if mask.device != query.device or mask.layout is not torch.strided or mask.dtype not in (torch.bool, torch.float32, query.dtype):
        return f"attn_mask is {mask.dtype} on {mask.device}"
    return why_not_of(query, key, value, False, scale, enable_gqa)


def _function_of(mask: Tensor, query: Tensor, key: Tensor) -> Union[tuple[Functions, Tensor], str]:
    """What the mask is to the scores, and the tensor that holds it, by the axes that are more than one element wide."""
    full = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    missing = 4 - mask.dim()
    if missing < 0 or any(extent not in (1, wanted) for extent, wanted in zip(mask.shape, full[missing:])):
        return _SHAPE
    kept = [axis for axis in range(mask.dim()) if mask.shape[axis] > 1 and mask.stride(axis) != 0]
    held = mask[tuple(slice(None) if axis in kept else 0 for axis in range(mask.dim()))] if mask.dim() else mask
    held = held.reshape(1) if not kept else held
    if held.dtype is not torch.bool:
        held = held.float()
    indices = ", ".join("bhij"[missing + axis] for axis in kept) or "0"
    is_bool = held.dtype is torch.bool
    name = _functions.MASK if is_bool else _functions.BIAS
    tensor = _functions.Tensor(name, 2 if is_bool else 0, tuple(held.shape), tuple(held.stride()))
    text = f"{name}[{indices}]"
    return (Functions("", text, (tensor,)) if is_bool else Functions(f"s + {text}", "", (tensor,))), held


def _computed(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: Optional[float], enable_gqa: bool) -> Union[Tensor, str]:
    """The output, or why there is none."""
    made = _function_of(mask, query, key)
    if isinstance(made, str):
        return made
    functions, held = made
    addresses = (query.data_ptr(), key.data_ptr(), value.data_ptr())
    found_by = (_torch_launch.key_of(query, key, value, addresses, False, scale, enable_gqa), functions)
    how = _torch_launch.known.get(found_by)
    if how is None:
        try:
            how = _torch_launch.prepare(found_by, query, key, value, addresses, False, scale, functions=functions)
            if how.plan.info["family"] == "ref_fwd":
                how = _SLOW
        except Error as error:
            if error.kind != "bad input":
                raise
            how = f"attn_mask is given, and no kernel takes such a call: {error}"
        _torch_launch.remember(found_by, how)
    return how if isinstance(how, str) else _torch_launch.run(how, query, key, value, addresses, tensors=(held.data_ptr(),))


def attend(pytorch: Callable[..., Tensor], obey: bool, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, dropout_p: float,
           is_causal: bool, scale: Optional[float], enable_gqa: bool) -> Tensor:  # fmt: skip
    """Here where it can be, else by `pytorch`. A row that sees no key is 0."""
    reason = _why_not(obey, query, key, value, mask, dropout_p, is_causal, scale, enable_gqa)
    if reason is None:
        out = _computed(query, key, value, mask, scale, enable_gqa)
        if isinstance(out, Tensor):
            return out
        reason = out
    pass_on(reason)
    return pytorch(query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
