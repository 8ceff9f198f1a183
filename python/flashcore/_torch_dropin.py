"""One call of scaled_dot_product_attention: computed here where it can be, else passed on to PyTorch."""

from __future__ import annotations

from typing import Callable, Optional

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention.bias import CausalBias

from . import _torch_launch, _torch_masked, _torch_operator
from ._torch_counters import pass_on, passed_on
from ._torch_reasons import AXES, CHOSEN, DROPOUT, FLOAT32, GRADIENT, is_restricted, is_top_left, is_triangle, why_not, why_not_now, why_not_of

_BF16, _FP16, _FP32 = torch.bfloat16, torch.float16, torch.float32
_PLAIN = frozenset((Tensor, torch.nn.Parameter))

def _is_watched() -> bool:
    """A mode looks at every operator (make_fx, FakeTensorMode, FlopCounterMode), or a trace records them."""
    return torch._C._len_torch_dispatch_stack() > 0 or torch._C._is_tracing()


def attend(pytorch: Callable[..., Tensor], obey: bool, query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor],
            dropout_p: float, is_causal: bool, scale: Optional[float], enable_gqa: bool) -> Tensor:  # fmt: skip
    """Here where it can be, else by `pytorch`. The frequent ways out come first, as they must cost next to nothing.

    `obey`: pass on where the user chose among PyTorch's kernels."""
    if attn_mask is not None:
        if type(attn_mask) not in _PLAIN and is_triangle(attn_mask):
            return _attend_triangle(pytorch, obey, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        return _torch_masked.attend(pytorch, obey, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if dropout_p != 0:
        pass_on(DROPOUT)
        return pytorch(query, key, value, None, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if torch.compiler.is_compiling():
        return _attend_traced(pytorch, obey, query, key, value, is_causal, scale, enable_gqa)
    plain = type(query) in _PLAIN and type(key) in _PLAIN and type(value) in _PLAIN and type(is_causal) is bool and (scale is None or type(scale) is float)
    if plain:
        if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
            pass_on(GRADIENT)
            return pytorch(query, key, value, None, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
        dtype = query.dtype
        if (query.dim() != 4 or (dtype is not _BF16 and dtype is not _FP16 and (dtype is not _FP32 or query.is_cuda))) and not torch._C._is_any_autocast_enabled():
            pass_on(AXES if query.dim() != 4 else FLOAT32 if dtype is _FP32 else f"the dtype is {dtype}")
            return pytorch(query, key, value, None, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
    if obey and is_restricted():
        pass_on(CHOSEN)
        return pytorch(query, key, value, None, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
    if plain and not (_is_watched() or torch._C._is_any_autocast_enabled() or forward_ad._current_level >= 0
                      or query.is_neg() or key.is_neg() or value.is_neg()):  # fmt: skip
        return _attend_plain(pytorch, query, key, value, is_causal, scale, enable_gqa)
    return _attend_otherwise(pytorch, query, key, value, is_causal, scale, enable_gqa)


def _attend_plain(pytorch: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: Optional[float],
                  enable_gqa: bool) -> Tensor:  # fmt: skip
    """Of tensors whose memory holds their values. What was decided of a call like one before it still holds."""
    try:
        addresses = (query.data_ptr(), key.data_ptr(), value.data_ptr())
        found_by = _torch_launch.key_of(query, key, value, addresses, is_causal, scale, enable_gqa)
    except RuntimeError:  # tensors in a transform of torch.func and sparse ones have no address or strides
        return _attend_otherwise(pytorch, query, key, value, is_causal, scale, enable_gqa)
    how = _torch_launch.known.get(found_by)
    if how is None:
        if 0 in addresses:  # empty ones, those on "meta", and zeros without memory
            return _attend_otherwise(pytorch, query, key, value, is_causal, scale, enable_gqa)
        how = why_not_of(query, key, value, is_causal, scale, enable_gqa)
        if how is None:
            how = _torch_launch.prepare(found_by, query, key, value, addresses, is_causal, scale)
        else:
            _torch_launch.remember(found_by, how)
    if type(how) is str:
        pass_on(how)
        return pytorch(query, key, value, None, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
    if 0 in addresses:
        return _attend_otherwise(pytorch, query, key, value, is_causal, scale, enable_gqa)
    return _torch_launch.run(how, query, key, value, addresses)


def _attend_traced(pytorch: Callable[..., Tensor], obey: bool, query: Tensor, key: Tensor, value: Tensor, is_causal: bool,
                   scale: Optional[float], enable_gqa: bool) -> Tensor:  # fmt: skip
    """Under torch.compile and torch.export, which see the operator or PyTorch's."""
    reason = CHOSEN if obey and is_restricted() else why_not(query, key, value, None, 0.0, is_causal, scale, enable_gqa)
    if reason is None:
        return torch.ops.flashcore.attention(*_torch_operator.cast(query, key, value), is_causal, scale)  # type: ignore[no-any-return]
    pass_on(reason)
    return pytorch(query, key, value, None, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)


def _attend_otherwise(pytorch: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: Optional[float],
                      enable_gqa: bool) -> Tensor:  # fmt: skip
    """Under transforms, modes, traces and autocast, and of tensors that are not plain ones."""
    reason = why_not(query, key, value, None, 0.0, is_causal, scale, enable_gqa) or why_not_now(query, key, value)
    if reason is None:
        plain = type(query) in _PLAIN and type(key) in _PLAIN and type(value) in _PLAIN
        if plain or _is_watched() or isinstance(query, torch._subclasses.FakeTensor):
            # The dispatcher knows modes, vmap, negated views and autocast.
            return torch.ops.flashcore.attention(query, key, value, is_causal, scale)  # type: ignore[no-any-return]
        reason = f"the inputs are of the tensor subclass {next(type(x).__name__ for x in (query, key, value) if type(x) not in _PLAIN)}"
    pass_on(reason)
    return pytorch(query, key, value, None, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)


def _attend_triangle(pytorch: Callable[..., Tensor], obey: bool, query: Tensor, key: Tensor, value: Tensor, bias: CausalBias, dropout_p: float,
                     is_causal: bool, scale: Optional[float], enable_gqa: bool) -> Tensor:  # fmt: skip
    """With a causal_upper_left or causal_lower_right of torch.nn.attention.bias."""
    if type(bias) is CausalBias and not is_causal and is_top_left(bias):
        return attend(pytorch, obey, query, key, value, None, dropout_p, True, scale, enable_gqa)
    reason = why_not(query, key, value, bias, dropout_p, is_causal, scale, enable_gqa) or (CHOSEN if obey and is_restricted() else None)
    traced = torch.compiler.is_compiling()
    if reason is None and not traced:
        reason = why_not_now(query, key, value) or _torch_masked.subclass((query, key, value))
    if reason is None:  # aligned at the end, which PyTorch's function has no argument for
        tensors = _torch_operator.cast(query, key, value) if traced else (query, key, value)
        return torch.ops.flashcore.attention(*tensors, False, scale, -1, 0)  # type: ignore[no-any-return]
    before = passed_on()
    out = type(bias).__torch_function__(torch.nn.functional.scaled_dot_product_attention, (type(bias),), (query, key, value, bias, dropout_p, is_causal),
                                        {"scale": scale, "enable_gqa": enable_gqa})  # fmt: skip
    if passed_on() == before:  # else the class called the function that stands in PyTorch's place, which has counted
        pass_on(reason)
    return out  # type: ignore[no-any-return]
