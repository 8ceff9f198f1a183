"""torch.ops.flashcore.attention: what torch.compile and torch.export see."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _torch_launch

NAME = "flashcore::attention"
# PyTorch's own, whatever torch.nn.functional holds at the moment.
pytorch_attention = torch._C._nn.scaled_dot_product_attention

torch.library.define(NAME, "(Tensor q, Tensor k, Tensor v, bool is_causal=False, float? scale=None, int window_left=-1, int window_right=-1) -> Tensor")
torch.library.impl(NAME, ("CPU", "CUDA"))(_torch_launch.forward)
_operator = torch.ops.flashcore.attention.default


@torch.library.register_fake(NAME)
def _fake(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: Optional[float] = None, window_left: int = -1,
          window_right: int = -1) -> Tensor:  # fmt: skip
    _torch_launch.check(q, k, v, scale, is_causal, window_left, window_right)
    return q.new_empty_strided(*_torch_launch.output_layout(q, v))


def _window_mask(q: Tensor, k: Tensor, is_causal: bool, left: int, right: int) -> Optional[Tensor]:
    """True where a row sees a key, for PyTorch, which knows no windows. None without one."""
    if left < 0 and right < 0:
        return None
    rows, keys = q.shape[2], k.shape[2]
    own = torch.arange(rows, device=q.device)[:, None] + (0 if is_causal else keys - rows)
    key = torch.arange(keys, device=q.device)[None, :]
    seen = key <= own + (0 if is_causal else right) if is_causal or right >= 0 else torch.ones_like(key <= own)
    return seen & (key >= own - left) if left >= 0 else seen


def _by_formula(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: Optional[float], window_left: int = -1, window_right: int = -1) -> Tensor:
    """The same from matmul and softmax, which every kind of derivative passes through."""
    grouped = bool(q.shape[1] != k.shape[1])
    seen = _window_mask(q, k, is_causal, window_left, window_right)
    # This operator adds its mask, whatever its type; in a row without a key it has all of them -inf give 0.
    mask = None if seen is None else torch.zeros_like(seen, dtype=q.dtype).masked_fill(~seen, -torch.inf)
    return torch.ops.aten._scaled_dot_product_attention_math(  # type: ignore[no-any-return]
        q, k, v, mask, 0.0, is_causal and mask is None, None, scale=scale, enable_gqa=grouped)[0]  # fmt: skip


# --- derivatives -------------------------------------------------------------------------------------------------------


class _Attention(torch.autograd.Function):
    """Forward here, backward by PyTorch's attention on the same inputs."""

    @staticmethod
    def forward(ctx: Any, keys: Any, q: Tensor, k: Tensor, v: Tensor, *options: Any) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.options = options
        return _below(keys, q, k, v, *options)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        wanted = ctx.needs_input_grad[1:4]
        again = torch.is_grad_enabled()  # create_graph: the gradient is differentiated too
        with torch.enable_grad():
            # For a second derivative they stay joined to the graph, and the formula is differentiable twice.
            inputs = [x.view_as(x) if again else x.detach().requires_grad_(want) for x, want in zip(ctx.saved_tensors, wanted)]
            if again:
                out = _by_formula(*inputs, *ctx.options)
            else:
                grouped = bool(inputs[0].shape[1] != inputs[1].shape[1])
                is_causal, scale, left, right = ctx.options
                mask = _window_mask(inputs[0], inputs[1], is_causal, left, right)
                out = pytorch_attention(*inputs, attn_mask=mask, is_causal=is_causal and mask is None, scale=scale, enable_gqa=grouped)
            of = [x for x, want in zip(inputs, wanted) if want]
            grads = iter(torch.autograd.grad(out, of, grad, create_graph=again))
        return (None, *(next(grads) if want else None for want in wanted), None, None, None, None)


def has_tangent(*tensors: Tensor) -> bool:
    """Forward-mode differentiation runs, and one of them is differentiated."""
    return forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def _below(keys: Any, *arguments: Any) -> Tensor:
    with torch._C._AutoDispatchBelowAutograd():
        return _operator.redispatch(keys & torch._C._after_autograd_keyset, *arguments)  # type: ignore[no-any-return]


def _autograd(keys: Any, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: Optional[float] = None, window_left: int = -1,
              window_right: int = -1) -> Tensor:  # fmt: skip
    options = is_causal, scale, window_left, window_right
    if torch._C._are_functorch_transforms_active() or has_tangent(q, k, v):
        _torch_launch.check(q, k, v, scale, is_causal, window_left, window_right)
        return _by_formula(q, k, v, *options)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _Attention.apply(keys, q, k, v, *options)  # type: ignore[no-any-return]
    return _below(keys, q, k, v, *options)


_library = torch.library.Library("flashcore", "FRAGMENT")
_library.impl("attention", _autograd, "Autograd", with_keyset=True)

# --- autocast ----------------------------------------------------------------------------------------------------------


def cast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """As autocast does before PyTorch's attention: what is floating, on its device and not double becomes of its dtype."""
    kind = q.device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return q, k, v
    dtype = torch.get_autocast_dtype(kind)
    return tuple(x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 and x.device.type == kind else x for x in (q, k, v))


_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)


def _autocast(q: Tensor, k: Tensor, v: Tensor, *options: Any, **named: Any) -> Tensor:
    q, k, v = cast(q, k, v)  # within the guard autocast counts as off
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
        return _operator(q, k, v, *options, **named)  # type: ignore[no-any-return]


for _key in ("AutocastCPU", "AutocastCUDA"):
    _library.impl("attention", _autocast, _key)

# --- vmap --------------------------------------------------------------------------------------------------------------


def _vmap(info: Any, dims: Any, q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, int]:
    """The mapped axis and the batch are one batch."""
    size = info.batch_size
    first = [x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in zip((q, k, v), dims)]
    out = _operator(*(x.flatten(0, 1) for x in first), *options)
    return out.unflatten(0, (size, first[0].shape[1])), 0


torch.library.register_vmap(NAME, _vmap)
