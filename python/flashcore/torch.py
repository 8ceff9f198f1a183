"""PyTorch: a drop-in for scaled_dot_product_attention, an operator for torch.compile and torch.export, and enable().

    import flashcore.torch
    with flashcore.torch.enable():
        model(x)                      # every scaled_dot_product_attention inside runs on flashcore where it can

What flashcore does not compute (masks, dropout, gradients, ...) goes to PyTorch, with a `flashcore.Note` the first time
that says why. Gradients: a call whose inputs require one runs on PyTorch, forward and backward; the operator itself,
called directly, computes its backward by running PyTorch's on the same inputs.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, NamedTuple, Optional

import torch
from torch import Tensor

from . import _plan
from ._library import GIVEN_STRIDES, Attention, Strides

__all__ = ["enable", "scaled_dot_product_attention", "why_not"]

_pytorch_attention = torch.nn.functional.scaled_dot_product_attention
_DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_TOP_LEFT = 2
_PLAIN = (Tensor, torch.nn.Parameter)
_MAX_GPU_HEAD_DIM, _MAX_CPU_HEAD_DIM = 256, 256


class _Prepared(NamedTuple):
    plan: _plan.Plan
    copies: tuple[bool, bool, bool]  # whose strides no fast kernel reads: copied first
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    aligned: int  # every address must be a multiple


_prepared: dict[Any, _Prepared] = {}


def _needs_copy(x: Tensor) -> bool:
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        return True
    if x.device.type == "cpu":
        return False
    # The fast kernels copy 16 bytes at a time, and their tensor maps repeat no element.
    item = x.element_size()
    return any(extent > 1 and (stride == 0 or stride * item % 16) for extent, stride in zip(x.shape[:3], x.stride()[:3]))


def _strides(x: Tensor, copied: bool) -> Strides:
    _, heads, rows, columns = x.shape
    if copied:
        return Strides(heads * rows * columns, rows * columns, columns)
    return Strides(*x.stride()[:3])


def _prepare(key: Any, q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: Optional[float]) -> _Prepared:
    batch, heads, rows, dim = q.shape
    columns = v.shape[3]
    copies = (_needs_copy(q), _needs_copy(k), _needs_copy(v))
    # Memory in the order batch, row, head: what models turn the output into next, and what PyTorch's own kernels return.
    strides = (rows * heads * columns, columns, heads * columns, 1)
    aligned = q.element_size() if q.device.type == "cpu" else 16
    problem = Attention(
        dtype=_DTYPES[q.dtype], batch=batch, heads_q=heads, heads_kv=k.shape[1], seqlen_q=rows, seqlen_kv=k.shape[2],
        head_dim=dim, head_dim_v=columns, causal=_TOP_LEFT if is_causal else 0, alignment=aligned, scale=scale or 0.0,
        q=_strides(q, copies[0]), k=_strides(k, copies[1]), v=_strides(v, copies[2]), o=Strides(*strides[:3]), given=GIVEN_STRIDES)  # fmt: skip
    device = "cpu" if q.device.type == "cpu" else f"cuda:{q.device.index}"
    made = _Prepared(_plan.Plan(device, problem), copies, (batch, heads, rows, columns), strides, aligned)
    if len(_prepared) >= 4096:  # shapes that never come back
        _prepared.clear()
    _prepared[key] = made
    return made


def _copy(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def _stream(device: torch.device) -> int:
    if device.type == "cpu":
        return 0
    if _raw_stream is not None:
        return int(_raw_stream(device.index))
    return int(torch.cuda.current_stream(device).cuda_stream)


def _key(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: Optional[float]) -> Any:
    return (q.dtype, q.device, q.shape, q.stride(), k.dtype, k.device, k.shape, k.stride(), v.dtype, v.device, v.shape, v.stride(),
            is_causal, scale)  # fmt: skip


def _forward(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: Optional[float] = None) -> Tensor:
    key = _key(q, k, v, is_causal, scale)
    return _run(_prepared.get(key) or _prepare(key, q, k, v, is_causal, scale), q, k, v)


def _run(prepared: _Prepared, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    plan, copies, shape, strides, aligned = prepared
    q_address, k_address, v_address = q.data_ptr(), k.data_ptr(), v.data_ptr()
    if (q_address | k_address | v_address) % aligned or True in copies:
        # A slice that starts in the middle of 16 bytes, or strides that no fast kernel reads.
        q, k, v = (_copy(x) if copied or x.data_ptr() % aligned else x for x, copied in zip((q, k, v), copies))
        q_address, k_address, v_address = q.data_ptr(), k.data_ptr(), v.data_ptr()
    out = torch.empty_strided(shape, strides, dtype=q.dtype, device=q.device)
    plan.launch(q_address, k_address, v_address, out.data_ptr(), 0, _stream(q.device))
    return out


# --- the operator: what torch.compile and torch.export see -----------------------------------------------------------

_NAME = "flashcore::attention"
torch.library.define(_NAME, "(Tensor q, Tensor k, Tensor v, bool is_causal=False, float? scale=None) -> Tensor")
torch.library.impl(_NAME, ("CPU", "CUDA"))(_forward)


@torch.library.register_fake(_NAME)
def _fake(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: Optional[float] = None) -> Tensor:
    batch, heads, rows, _ = q.shape
    columns = v.shape[3]
    return q.new_empty_strided((batch, heads, rows, columns), (rows * heads * columns, columns, heads * columns, 1))


def _setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
    q, k, v, ctx.is_causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v)


def _backward(ctx: Any, grad: Tensor) -> tuple[Optional[Tensor], ...]:
    wanted = ctx.needs_input_grad[:3]
    with torch.enable_grad():
        inputs = [x.detach().requires_grad_(want) for x, want in zip(ctx.saved_tensors, wanted)]
        grouped = bool(inputs[0].shape[1] != inputs[1].shape[1])
        out = _pytorch_attention(*inputs, is_causal=ctx.is_causal, scale=ctx.scale, enable_gqa=grouped)
        grads = iter(torch.autograd.grad(out, [x for x in inputs if x.requires_grad], grad))
    return (*(next(grads) if want else None for want in wanted), None, None)


torch.library.register_autograd(_NAME, _backward, setup_context=_setup_context)

# --- the drop-in -----------------------------------------------------------------------------------------------------


def why_not(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor] = None, dropout_p: float = 0.0,
            is_causal: bool = False, scale: Optional[float] = None, enable_gqa: bool = False) -> Optional[str]:  # fmt: skip
    """Why such a call of `scaled_dot_product_attention` runs on PyTorch, in words; None if flashcore computes it."""
    if attn_mask is not None:
        return "attn_mask is given, and flashcore knows causal masks only"
    if dropout_p > 0:
        return "dropout_p is above 0"
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        return "an input requires a gradient, and flashcore has no backward pass yet"
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        return f"the inputs have {query.dim()}, {key.dim()} and {value.dim()} axes; flashcore takes [batch, heads, length, dim]"
    if query.layout is not torch.strided or key.layout is not torch.strided or value.layout is not torch.strided:
        return "an input is not a dense tensor"
    kind = query.device.type
    if kind != "cpu" and kind != "cuda":
        return f"the inputs are on the device '{kind}'"
    if key.device != query.device or value.device != query.device or key.dtype != query.dtype or value.dtype != query.dtype:
        return "the inputs differ in dtype or device"
    if query.dtype not in _DTYPES:
        return f"the dtype is {query.dtype}"
    if kind == "cuda" and query.dtype == torch.float32:
        return "float32 on a GPU has no tensor-core kernel in flashcore"
    dim, columns = query.shape[3], value.shape[3]
    if kind == "cuda" and (dim % 8 != 0 or columns % 8 != 0 or dim > _MAX_GPU_HEAD_DIM or columns > _MAX_GPU_HEAD_DIM):
        return f"head dims {dim} and {columns}: the fast GPU kernels take multiples of 8 up to {_MAX_GPU_HEAD_DIM}"
    if kind == "cpu" and (dim > _MAX_CPU_HEAD_DIM or columns > _MAX_CPU_HEAD_DIM):
        return f"head dims {dim} and {columns}: the CPU kernel takes up to {_MAX_CPU_HEAD_DIM}"
    if key.shape[3] != dim or key.shape[0] != query.shape[0] or value.shape[0] != query.shape[0] or key.shape[1] != value.shape[1] or key.shape[2] != value.shape[2]:
        return "the shapes need broadcasting, or do not fit together"
    if key.shape[1] != query.shape[1] and (not enable_gqa or query.shape[1] % key.shape[1] != 0):
        return "query and key differ in heads without enable_gqa"
    if 0 in query.shape or 0 in key.shape or columns == 0:
        return "a tensor is empty"
    if scale is not None and not 1e-6 <= scale <= 1e6:
        return f"scale is {scale}"
    return None


@torch.compiler.assume_constant_result
def _say(reason: str) -> None:
    _plan.say_once(f"flashcore.torch: PyTorch computes this attention: {reason}")


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor] = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: Optional[float] = None,
                                 enable_gqa: bool = False) -> Tensor:  # fmt: skip
    """torch.nn.functional.scaled_dot_product_attention, with the same arguments and results, by flashcore where it can.

    Args:
        query: [batch, heads, length, dim], float16, bfloat16 or float32 (CPU), any strides.
        key: [batch, heads_kv, length_kv, dim]; fewer heads than the query's need enable_gqa.
        value: [batch, heads_kv, length_kv, dim_v].
        attn_mask, dropout_p: anything but None and 0 goes to PyTorch, with a note the first time.
        is_causal: row i sees keys 0..i (top-left, as PyTorch defines it).
        scale: default 1/sqrt(dim).
        enable_gqa: as PyTorch's.

    Returns:
        [batch, heads, length, dim_v], in memory [batch, length, heads, dim_v].
    """
    # A call like one before it was found fit then; what its sizes do not tell is asked here. 3 us less for each.
    if attn_mask is None and dropout_p == 0.0 and type(query) in _PLAIN and not torch.compiler.is_compiling():
        prepared = _prepared.get(_key(query, key, value, is_causal, scale))
        if (prepared is not None and type(key) in _PLAIN and type(value) in _PLAIN and not _being_watched()
                and (enable_gqa or query.shape[1] == key.shape[1])
                and not (torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad))):  # fmt: skip
            return _run(prepared, query, key, value)
    reason = why_not(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if reason is None:
        if torch.compiler.is_compiling():
            return torch.ops.flashcore.attention(query, key, value, is_causal, scale)  # type: ignore[no-any-return]
        if type(query) in _PLAIN and type(key) in _PLAIN and type(value) in _PLAIN and not _being_watched():
            return _forward(query, key, value, is_causal, scale)
        if _being_watched() or isinstance(query, torch._subclasses.FakeTensor):
            return torch.ops.flashcore.attention(query, key, value, is_causal, scale)  # type: ignore[no-any-return]
        reason = f"the inputs are of the tensor subclass {type(query).__name__}"
    _say(reason)
    return _pytorch_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def _being_watched() -> bool:
    """A mode looks at every operator (make_fx, FakeTensorMode, FlopCounterMode), or a trace records them."""
    return torch._C._len_torch_dispatch_stack() > 0 or torch._C._get_tracing_state() is not None


@contextlib.contextmanager
def enable() -> Iterator[None]:
    """Within it, torch.nn.functional.scaled_dot_product_attention is flashcore's, for every thread of the process.

    Reaches models that look the function up when they call it (torch.nn.MultiheadAttention, Hugging Face with
    attn_implementation="sdpa", most others); one that imported it by name before keeps PyTorch's.
    """
    before = torch.nn.functional.scaled_dot_product_attention
    torch.nn.functional.scaled_dot_product_attention = scaled_dot_product_attention  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.nn.functional.scaled_dot_product_attention = before
