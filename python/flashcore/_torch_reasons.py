"""Which calls of scaled_dot_product_attention flashcore computes, and in words why PyTorch computes the others."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention.bias import CausalBias, CausalVariant

from . import _torch_launch, _torch_operator
from ._torch_launch import DTYPES, MAX_HEAD_DIM, MAX_SCALE, MIN_SCALE

CAUSAL = "attn_mask and is_causal are both given"
DROPOUT = "dropout_p is above 0"
GRADIENT = "an input requires a gradient, and flashcore has no backward pass yet"
AXES = "an input has other than four axes; flashcore takes [batch, heads, length, dim]"
FLOAT32 = "float32 on a GPU has no tensor-core kernel in flashcore"
CHOSEN = ("sdpa_kernel(...) or torch.backends.cuda.enable_..._sdp(False) chose among PyTorch's kernels; "
          "flashcore.torch.scaled_dot_product_attention computes here whatever was chosen")  # fmt: skip


def why_not_of(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: Optional[float], enable_gqa: bool) -> Optional[str]:
    """Of what shapes, strides, dtypes and options tell. torch.compile traces through it."""
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        return AXES
    if query.layout is not torch.strided or key.layout is not torch.strided or value.layout is not torch.strided:
        return "an input is not a dense tensor"
    if query.is_nested or key.is_nested or value.is_nested:
        return "an input is a nested tensor"
    kind = query.device.type
    if kind != "cpu" and kind != "cuda":
        return f"the inputs are on the device '{kind}'"
    if key.device != query.device or value.device != query.device or key.dtype != query.dtype or value.dtype != query.dtype:
        return "the inputs differ in dtype or device"
    if query.dtype not in DTYPES:
        return f"the dtype is {query.dtype}"
    if kind == "cuda" and query.dtype == torch.float32:
        return FLOAT32
    dim, columns = query.shape[3], value.shape[3]
    if kind == "cuda" and (dim % 8 != 0 or columns % 8 != 0 or dim > MAX_HEAD_DIM or columns > MAX_HEAD_DIM):
        return f"head dims {dim} and {columns}: the fast GPU kernels take multiples of 8 up to {MAX_HEAD_DIM}"
    if kind == "cpu" and (dim > MAX_HEAD_DIM or columns > MAX_HEAD_DIM):
        return f"head dims {dim} and {columns}: the CPU kernel takes up to {MAX_HEAD_DIM}"
    if key.shape[3] != dim or key.shape[0] != query.shape[0] or value.shape[0] != query.shape[0] or key.shape[1] != value.shape[1] or key.shape[2] != value.shape[2]:
        return "the shapes need broadcasting, or do not fit together"
    if 0 in query.shape or 0 in key.shape or columns == 0:
        return "a tensor is empty"
    if key.shape[1] != query.shape[1] and (not enable_gqa or query.shape[1] % key.shape[1] != 0):
        return "query and key differ in heads without enable_gqa"
    if scale is not None and not MIN_SCALE <= scale <= MAX_SCALE:
        return f"scale is {scale}"
    return None


def why_not_mask(query: Tensor, key: Tensor, mask: Tensor, is_causal: bool) -> Optional[str]:
    """Of an attn_mask to tensors that suit."""
    if not isinstance(mask, Tensor):
        return f"attn_mask is a {type(mask).__name__}"
    if is_causal:
        return CAUSAL
    if mask.layout is not torch.strided or mask.is_nested:
        return "attn_mask is not a dense tensor"
    if mask.device != query.device:
        return f"attn_mask is on {mask.device}, and the inputs are on {query.device}"
    if mask.dtype not in (torch.bool, torch.float32, query.dtype):
        return f"attn_mask is {mask.dtype}"
    if not _torch_launch.broadcasts(mask, query, key):
        return "attn_mask does not broadcast to [batch, heads, length, length]"
    return None


def is_triangle(attn_mask: object) -> bool:
    """A causal_upper_left or causal_lower_right of torch.nn.attention.bias, whose elements mean nothing: the class says what the call is."""
    return isinstance(attn_mask, CausalBias) and torch._C._is_torch_function_enabled()


def is_top_left(bias: CausalBias) -> bool:
    """The call is one with is_causal, as PyTorch defines it."""
    return bias.variant == CausalVariant.UPPER_LEFT or bias.seq_len_q == bias.seq_len_kv


def _why_not_triangle(query: Tensor, key: Tensor, value: Tensor, bias: CausalBias, is_causal: bool, scale: Optional[float], enable_gqa: bool) -> Optional[str]:
    if type(bias) is not CausalBias:
        return f"attn_mask is a {type(bias).__name__}, which says itself what the call is"
    if is_causal:
        return CAUSAL
    top_left = is_top_left(bias)
    reason = why_not_of(*_torch_operator.cast(query, key, value), top_left, scale, enable_gqa)
    if reason is None and not top_left and (query.shape[2], key.shape[2]) != (bias.seq_len_q, bias.seq_len_kv):
        reason = f"attn_mask is for {bias.seq_len_q} rows and {bias.seq_len_kv} keys"
    return reason


def why_not_now(*tensors: Tensor) -> Optional[str]:
    """Of what the moment tells: transforms, and tensors whose memory does not hold their values."""
    if torch._C._are_functorch_transforms_active():
        levels = torch._C._functorch.get_interpreter_stack() or []
        if any(level.key() != torch._C._functorch.TransformType.Vmap for level in levels):
            return "a transform of torch.func other than vmap runs"
    elif forward_ad._current_level >= 0 and _torch_operator.has_tangent(*tensors):
        return "an input has a tangent, and flashcore has no forward-mode derivative"
    return None


def why_not(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor] = None, dropout_p: float = 0.0,
            is_causal: bool = False, scale: Optional[float] = None, enable_gqa: bool = False) -> Optional[str]:  # fmt: skip
    """Why such a call of `scaled_dot_product_attention` runs on PyTorch, in words; None if flashcore computes it."""
    if dropout_p != 0:
        return DROPOUT
    if not (isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor)):
        return "query, key and value are not all tensors"
    if type(is_causal) is not bool:
        return f"is_causal is a {type(is_causal).__name__}"
    if scale is not None and not isinstance(scale, (float, int, torch.SymFloat, torch.SymInt)):
        return f"scale is a {type(scale).__name__}"
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        return GRADIENT
    if attn_mask is None:
        return why_not_of(*_torch_operator.cast(query, key, value), is_causal, scale, enable_gqa)
    if is_triangle(attn_mask):
        return _why_not_triangle(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    if isinstance(attn_mask, Tensor) and torch.is_grad_enabled() and attn_mask.requires_grad:
        return GRADIENT
    tensors = (query, key, value, attn_mask) if isinstance(attn_mask, Tensor) else (query, key, value)
    query, key, value, *cast = _torch_operator.cast(*tensors)
    return why_not_of(query, key, value, is_causal, scale, enable_gqa) or why_not_mask(query, key, cast[0] if cast else attn_mask, is_causal)


_flash, _efficient, _math, _cudnn = (
    getattr(torch._C, f"_get_{name}_sdp_enabled", lambda: True) for name in ("flash", "mem_efficient", "math", "cudnn"))  # fmt: skip


@torch.compiler.assume_constant_result
def is_restricted() -> bool:
    """Whether the user forbade PyTorch one of its kernels, all of which it may use from the start. torch.compile asks when it
    records: it guards none of these flags, so what was recorded keeps the answer."""
    return not (_flash() and _efficient() and _math() and _cudnn())
