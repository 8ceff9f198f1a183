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

torch.library.define(NAME, "(Tensor q, Tensor k, Tensor v, bool is_causal=False, float? scale=None, int window_left=-1, int window_right=-1, "
                     "float? softcap=None, Tensor? alibi_slopes=None, Tensor? sink=None, Tensor? attn_mask=None) -> Tensor")


@torch.library.impl(NAME, ("CPU", "CUDA"))
def _forward(q: Tensor, k: Tensor, v: Tensor, *options: Any, **named: Any) -> Tensor:
    attn_mask = named.pop("attn_mask", None) if len(options) < 8 else options[7]
    return _torch_launch.forward(q, k, v, *options[:7], **named) if attn_mask is None else _masked(q, k, v, attn_mask, *options[:7], **named)


def _masked(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor, *options: Any, **named: Any) -> Tensor:
    from . import _torch_masked  # which is made of this

    is_causal, scale, *others = (*options, *(named.get(name, default) for name, default in _OPTIONS[len(options):]))
    _torch_launch.check(q, k, v, scale, is_causal, *others, attn_mask)
    shape, strides = _torch_launch.output_layout(q, v)
    if 0 in shape or k.shape[2] == 0:  # a row without keys is 0
        return torch.empty_strided(shape, strides, dtype=q.dtype, device=q.device).zero_()
    out = _torch_masked.compute(q, k, v, attn_mask, is_causal, scale, *others)
    if isinstance(out, str):  # a kernel that is slower than this, or none
        computed = _by_formula(q, k, v, is_causal, scale, *others, attn_mask)
        out = torch.empty_strided(shape, strides, dtype=q.dtype, device=q.device).copy_(computed)
    return out


_OPTIONS = (("is_causal", False), ("scale", None), ("window_left", -1), ("window_right", -1), ("softcap", None), ("alibi_slopes", None), ("sink", None))
_operator = torch.ops.flashcore.attention.default


@torch.library.register_fake(NAME)
def _fake(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: Optional[float] = None, window_left: int = -1,
          window_right: int = -1, softcap: Optional[float] = None, alibi_slopes: Optional[Tensor] = None, sink: Optional[Tensor] = None,
          attn_mask: Optional[Tensor] = None) -> Tensor:  # fmt: skip
    _torch_launch.check(q, k, v, scale, is_causal, window_left, window_right, softcap, alibi_slopes, sink, attn_mask)
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


def _both(seen: Optional[Tensor], attn_mask: Optional[Tensor], q: Tensor, k: Tensor, is_causal: bool) -> Optional[Tensor]:
    """A window and an attn_mask as one mask; is_causal is in it then."""
    if attn_mask is None or (seen is None and not is_causal):
        return attn_mask if seen is None else seen
    if seen is None:
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    return seen & attn_mask if attn_mask.dtype is torch.bool else torch.where(seen, attn_mask, -torch.inf)


def _by_formula(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: Optional[float], window_left: int = -1, window_right: int = -1,
                softcap: Optional[float] = None, alibi_slopes: Optional[Tensor] = None, sink: Optional[Tensor] = None,
                attn_mask: Optional[Tensor] = None) -> Tensor:  # fmt: skip
    """The same from matmul and softmax, which every kind of derivative passes through."""
    grouped = bool(q.shape[1] != k.shape[1])
    seen = _window_mask(q, k, is_causal, window_left, window_right)
    if softcap is not None or alibi_slopes is not None or sink is not None or attn_mask is not None:
        seen = _both(seen, attn_mask, q, k, is_causal)
        return by_formula_of_scores(q, k, v, is_causal, scale, seen, softcap, alibi_slopes, sink)
    # This operator adds its mask, whatever its type; in a row without a key it has all of them -inf give 0.
    mask = None if seen is None else torch.zeros_like(seen, dtype=q.dtype).masked_fill(~seen, -torch.inf)
    return torch.ops.aten._scaled_dot_product_attention_math(  # type: ignore[no-any-return]
        q, k, v, mask, 0.0, is_causal and mask is None, None, scale=scale, enable_gqa=grouped)[0]  # fmt: skip


def by_formula_of_scores(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: Optional[float], seen: Optional[Tensor],
                          softcap: Optional[float], alibi_slopes: Optional[Tensor], sink: Optional[Tensor]) -> Tensor:  # fmt: skip
    """With a function of scores or a sink. `seen`: True where a row sees a key, or what is added to scores, or None; it comes with
    is_causal in it."""
    group, rows, keys = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    if keys == 0:  # zeros that depend on the inputs
        zero = sum(x.sum() for x in (q, k, v, alibi_slopes, sink) if x is not None) * 0
        return (q.new_zeros(*q.shape[:3], v.shape[3]) + zero).to(q.dtype)
    k, v = (x.repeat_interleave(group, 1) if group > 1 else x for x in (k, v))
    scores = (q.float() @ k.float().transpose(2, 3)) * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    own, key = torch.arange(rows, device=q.device)[:, None], torch.arange(keys, device=q.device)[None, :]
    if alibi_slopes is not None:
        slopes = alibi_slopes.float().unsqueeze(-1).unsqueeze(-1)
        scores = scores - slopes * (own + (keys - rows) - key).abs()
    if is_causal and seen is None:
        seen = key <= own
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf) if seen.dtype == torch.bool else scores + seen
    top = scores.detach().amax(-1, keepdim=True)
    logits = None if sink is None else sink.float()[:, None, None]
    if logits is not None:
        top = torch.maximum(top, logits.detach())
    weights = torch.exp(scores - torch.where(top.isinf(), 0.0, top))
    total = weights.sum(-1, keepdim=True)
    if logits is not None:
        total = total + torch.exp(logits - torch.where(top.isinf(), 0.0, top))
    return ((weights / torch.where(total == 0, 1.0, total)) @ v.float()).to(q.dtype)


# --- derivatives -------------------------------------------------------------------------------------------------------


class _Attention(torch.autograd.Function):
    """Forward here, backward by PyTorch's attention on the same inputs."""

    @staticmethod
    def forward(ctx: Any, keys: Any, q: Tensor, k: Tensor, v: Tensor, alibi_slopes: Optional[Tensor], sink: Optional[Tensor],
                attn_mask: Optional[Tensor], *options: Any) -> Tensor:  # fmt: skip
        ctx.save_for_backward(q, k, v, alibi_slopes, sink, attn_mask)
        ctx.options = options
        return _below(keys, q, k, v, *options, alibi_slopes, sink, attn_mask)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        wanted = ctx.needs_input_grad[1:7]
        again = torch.is_grad_enabled()  # create_graph: the gradient is differentiated too
        with torch.enable_grad():
            # For a second derivative they stay joined to the graph, and the formula is differentiable twice.
            inputs = [x if x is None else x.view_as(x) if again else x.detach().requires_grad_(want) for x, want in zip(ctx.saved_tensors, wanted)]
            if again or ctx.options[-1] is not None or inputs[3] is not None or inputs[4] is not None:
                out = _by_formula(*inputs[:3], *ctx.options, *inputs[3:])
            else:
                grouped = bool(inputs[0].shape[1] != inputs[1].shape[1])
                is_causal, scale, left, right, _ = ctx.options
                mask = _both(_window_mask(inputs[0], inputs[1], is_causal, left, right), inputs[5], *inputs[:2], is_causal)
                out = pytorch_attention(*inputs[:3], attn_mask=mask, is_causal=is_causal and mask is None, scale=scale, enable_gqa=grouped)
            of = [x for x, want in zip(inputs, wanted) if want]
            grads = iter(torch.autograd.grad(out, of, grad, create_graph=again))
        return (None, *(next(grads) if want else None for want in wanted), *(None for _ in ctx.options))


def has_tangent(*tensors: Tensor) -> bool:
    """Forward-mode differentiation runs, and one of them is differentiated."""
    return forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def _below(keys: Any, *arguments: Any) -> Tensor:
    with torch._C._AutoDispatchBelowAutograd():
        return _operator.redispatch(keys & torch._C._after_autograd_keyset, *arguments)  # type: ignore[no-any-return]


def _autograd(keys: Any, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: Optional[float] = None, window_left: int = -1,
              window_right: int = -1, softcap: Optional[float] = None, alibi_slopes: Optional[Tensor] = None, sink: Optional[Tensor] = None,
              attn_mask: Optional[Tensor] = None) -> Tensor:  # fmt: skip
    options = is_causal, scale, window_left, window_right, softcap
    tensors = [x for x in (q, k, v, alibi_slopes, sink, attn_mask) if x is not None]
    if torch._C._are_functorch_transforms_active() or has_tangent(*tensors):
        _torch_launch.check(q, k, v, scale, is_causal, window_left, window_right, softcap, alibi_slopes, sink, attn_mask)
        return _by_formula(q, k, v, *options, alibi_slopes, sink, attn_mask)
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return _Attention.apply(keys, q, k, v, alibi_slopes, sink, attn_mask, *options)  # type: ignore[no-any-return]
    return _below(keys, q, k, v, *options, alibi_slopes, sink, attn_mask)


_library = torch.library.Library("flashcore", "FRAGMENT")
_library.impl("attention", _autograd, "Autograd", with_keyset=True)

# --- autocast ----------------------------------------------------------------------------------------------------------


def cast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """As autocast does before PyTorch's attention: what is floating, on its device and not double becomes of its dtype."""
    kind = tensors[0].device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 and x.device.type == kind else x for x in tensors)


_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)


def _autocast(q: Tensor, k: Tensor, v: Tensor, *options: Any, **named: Any) -> Tensor:
    q, k, v = cast(q, k, v)  # within the guard autocast counts as off
    if len(options) > 7 and options[7] is not None:
        options = *options[:7], *cast(options[7])
    elif named.get("attn_mask") is not None:
        (named["attn_mask"],) = cast(named["attn_mask"])
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
        return _operator(q, k, v, *options, **named)  # type: ignore[no-any-return]


for _key in ("AutocastCPU", "AutocastCUDA"):
    _library.impl("attention", _autocast, _key)

# --- vmap --------------------------------------------------------------------------------------------------------------


def _vmap(info: Any, dims: Any, q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, int]:
    """The mapped axis and the batch are one batch."""
    size = info.batch_size
    if any(dim is not None for dim in dims[3:10]):
        raise RuntimeError("flashcore.attention: vmap over alibi_slopes or sink is not supported; map q, k and v only")
    first = [x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in zip((q, k, v), dims)]
    options = (*(x.repeat(size, 1) if isinstance(x, Tensor) and x.dim() == 2 else x for x in options[:7]), *options[7:])  # slopes of batch entries
    if len(options) > 7 and options[7] is not None:
        options = *options[:7], _mapped_mask(options[7], dims[10], size, first[0].shape[1])
    out = _operator(*(x.flatten(0, 1) for x in first), *options)
    return out.unflatten(0, (size, first[0].shape[1])), 0


def _mapped_mask(mask: Tensor, dim: Optional[int], size: int, batch: int) -> Tensor:
    """An attn_mask of the one batch: [size * batch, 1 or heads, ...], or as it is where it is one for all."""
    if dim is None and (mask.dim() < 4 or mask.shape[0] == 1):
        return mask
    mask = mask.unsqueeze(0).expand(size, *mask.shape) if dim is None else mask.movedim(dim, 0)
    while mask.dim() < 5:
        mask = mask.unsqueeze(1)
    return mask.expand(size, batch, *mask.shape[2:]).flatten(0, 1)


torch.library.register_vmap(NAME, _vmap)
