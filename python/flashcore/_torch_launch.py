"""Tensors to launches: which plan computes a call, which inputs are copied first, and the checks of torch.ops.flashcore.attention."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple, Optional, Union

import torch
from torch import Tensor

from . import _functions, _plan
from ._library import GIVEN_SCALE, GIVEN_SOFTCAP, GIVEN_STRIDES, GIVEN_TENSOR_STRIDES, GIVEN_WINDOW, Attention, Strides, follow_threads

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
MAX_HEAD_DIM = 256  # of the CPU's kernel, and of a GPU's fast ones
_MAX_HEAD_DIM_GPU = 1024  # up to 576 by sm80_wide_fwd, beyond by ref_fwd
MIN_SCALE, MAX_SCALE = 1e-6, 1e6
_TOP_LEFT = 2
_MAX_KNOWN = 4096  # shapes that never come back: a cache that grows with every token


class Prepared(NamedTuple):
    """How calls with one key run. `strides` are those of the output."""

    plan: _plan.Plan
    copies: Optional[tuple[bool, bool, bool]]  # which of q, k and v are copied first; None: none
    one_head: bool  # k and v repeat one head: the plan reads that one
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Counter:
    """Counts from any thread without a lock: `add` is one call in C, which the interpreter does not divide."""

    def __init__(self) -> None:
        self.add = itertools.count().__next__
        self._reads = 0

    def read(self) -> int:
        """Only under the caller's lock: a reading is a count too, and is taken off again."""
        self._reads += 1
        return self.add() - self._reads + 1


computed = Counter()
known: dict[Any, Union[Prepared, str]] = {}  # how calls with a key run, or, in words, why PyTorch computes them


def reset_computed() -> None:
    global computed
    computed = Counter()


# --- what is copied ----------------------------------------------------------------------------------------------------


def _reads_16_bytes(device: torch.device) -> bool:
    """The fast GPU kernels copy 16 bytes at a time, and their tensor maps repeat no element; the CPU's read any strides."""
    return device.type != "cpu"


def must_copy(shape: Any, strides: Any, address: int, item: int, unit: int) -> bool:
    """Whether no fast kernel reads such a tensor as it lies. `unit`: bytes that every row and the address must be a multiple of."""
    if strides[3] != 1 and shape[3] > 1:
        return True
    if address % unit:
        return True
    return unit > item and any(extent > 1 and (stride == 0 or stride * item % unit) for extent, stride in zip(shape[:3], strides[:3]))


def _unit(q: Tensor, columns: int) -> int:
    item = q.element_size()
    # Rows that are no multiple of 16 bytes stay so in a copy: a slower kernel reads them wherever they lie.
    wide = _reads_16_bytes(q.device) and q.shape[3] * item % 16 == 0 and columns * item % 16 == 0
    return 16 if wide else item


def _strides(x: Tensor, copied: bool) -> Strides:
    """Of what the kernel reads: the copy where there is one."""
    _, heads, rows, columns = x.shape
    if copied:
        return Strides(heads * rows * columns, rows * columns, columns)
    return Strides(*(stride if extent > 1 else columns for extent, stride in zip(x.shape[:3], x.stride()[:3])))


def _name(device: torch.device) -> str:
    return "cpu" if device.type == "cpu" else f"cuda:{device.index}"


def _copy(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


# A name of its own, as _copy: tests give the emulator memory that it knows.
_empty_strided = torch.empty_strided


# --- plans -------------------------------------------------------------------------------------------------------------


def key_of(q: Tensor, k: Tensor, v: Tensor, addresses: tuple[int, int, int], is_causal: bool, scale: Optional[float],
           enable_gqa: bool, window: tuple[int, int] = (-1, -1), scores: tuple[Optional[float], int, int] = (None, 0, 0)) -> Any:  # fmt: skip
    """Calls with one key run alike. `scores`: the softcap, and the axes of the slopes and sinks. It holds how each address lies between 16-byte borders: that decides what is copied."""
    a, b, c = addresses
    off = None
    if (a | b | c) & 15:
        unit = 16 if _reads_16_bytes(q.device) else q.element_size()
        off = (a % unit != 0, b % unit != 0, c % unit != 0)
    return (q.dtype, q.device, q.shape, q.stride(), k.dtype, k.device, k.shape, k.stride(), v.dtype, v.device, v.shape, v.stride(),
            off, is_causal, scale, enable_gqa, window, scores)  # fmt: skip


def remember(key: Any, how: Union[Prepared, str]) -> None:
    if len(known) >= _MAX_KNOWN:
        known.clear()
    known[key] = how


def prepare(key: Any, q: Tensor, k: Tensor, v: Tensor, addresses: tuple[int, int, int], is_causal: bool, scale: Optional[float],
            window: tuple[int, int] = (-1, -1), scores: tuple[Optional[float], int, int] = (None, 0, 0),
            functions: _functions.Functions = _functions.NONE) -> Prepared:  # fmt: skip
    """Makes the plan of the call and keeps it under `key`. The inputs were checked."""
    batch, heads, rows, dim = q.shape
    columns = v.shape[3]
    item, unit = q.element_size(), _unit(q, columns)
    # One key head that was expanded for all query heads is what grouped queries are for.
    one_head = k.shape[1] > 1 and k.stride(1) == 0 and v.stride(1) == 0
    k, v = (k[:, :1], v[:, :1]) if one_head else (k, v)
    copies = tuple(must_copy(x.shape, x.stride(), address, item, unit) for x, address in zip((q, k, v), addresses))
    # Memory in the order batch, row, head: what models turn the output into next, and what PyTorch's own kernels return.
    strides = (rows * heads * columns, columns, heads * columns, 1)
    problem = Attention(
        dtype=DTYPES[q.dtype], batch=batch, heads_q=heads, heads_kv=k.shape[1], seqlen_q=rows, seqlen_kv=k.shape[2],
        head_dim=dim, head_dim_v=columns, causal=_TOP_LEFT if is_causal else 0, alignment=unit, scale=0.0 if scale is None else scale,
        q=_strides(q, copies[0]), k=_strides(k, copies[1]), v=_strides(v, copies[2]), o=Strides(*strides[:3]),
        window_left=window[0], window_right=window[1], softcap=scores[0] or 0.0, alibi=scores[1], sink=scores[2],
        given=GIVEN_STRIDES | GIVEN_WINDOW | GIVEN_TENSOR_STRIDES | (0 if scale is None else GIVEN_SCALE) | (0 if scores[0] is None else GIVEN_SOFTCAP),
        **functions.fields())  # fmt: skip
    made = Prepared(_plan.Plan(_name(q.device), problem), copies if True in copies else None, one_head, (batch, heads, rows, columns), strides)
    remember(key, made)
    return made


_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def _stream(device: torch.device) -> int:
    if device.type == "cpu":
        return 0
    if _raw_stream is not None:
        return int(_raw_stream(device.index))
    return int(torch.cuda.current_stream(device).cuda_stream)


def run(prepared: Prepared, q: Tensor, k: Tensor, v: Tensor, addresses: tuple[int, int, int], alibi: int = 0, sink: int = 0,
        tensors: tuple[int, ...] = ()) -> Tensor:  # fmt: skip
    """The call itself; `addresses` are those of q, k and v, and what `prepared` was found by. `alibi`, `sink`: of slopes and sinks; `tensors`: of
    what its functions read."""
    plan, copies, one_head, shape, strides = prepared
    if q.device.type == "cpu":
        follow_threads(torch.get_num_threads())
    if copies is not None:
        if one_head:
            k, v = k[:, :1], v[:, :1]
        q, k, v = (_copy(x) if copied else x for x, copied in zip((q, k, v), copies))
        addresses = (q.data_ptr(), k.data_ptr(), v.data_ptr())
    out = _empty_strided(shape, strides, dtype=q.dtype, device=q.device)
    if alibi or sink or tensors:
        plan.launch(*addresses, out.data_ptr(), 0, _stream(q.device), alibi=alibi, sink=sink, tensors=tensors)
    else:
        plan.launch(*addresses, out.data_ptr(), 0, _stream(q.device))
    computed.add()
    return out


# --- any call that fits ------------------------------------------------------------------------------------------------


def output_layout(q: Tensor, v: Tensor) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Shape and strides of the output, symbolic ones too."""
    (batch, heads, rows, _), columns = q.shape, v.shape[3]
    return (batch, heads, rows, columns), (rows * heads * columns, columns, heads * columns, 1)


def check(q: Tensor, k: Tensor, v: Tensor, scale: Optional[float], is_causal: bool = False, window_left: int = -1, window_right: int = -1,
          softcap: Optional[float] = None, alibi_slopes: Optional[Tensor] = None, sink: Optional[Tensor] = None,
          attn_mask: Optional[Tensor] = None) -> None:  # fmt: skip
    """RuntimeError for what torch.ops.flashcore.attention does not compute. Kernels and the fake kernel ask the same."""
    for role, x in (("q", q), ("k", k), ("v", v)):
        torch._check(x.dim() == 4, lambda role=role, x=x: f"flashcore.attention: {role} has {x.dim()} axes; give [batch, heads, length, dim]")
        torch._check(x.dtype in DTYPES, lambda role=role, x=x: f"flashcore.attention: {role} is {x.dtype}; give float32, float16 or bfloat16")
        torch._check(x.dtype == q.dtype, lambda role=role, x=x: f"flashcore.attention: {role} is {x.dtype} and q is {q.dtype}; convert one of them")
        torch._check(x.device == q.device, lambda role=role, x=x: f"flashcore.attention: {role} is on {x.device} and q on {q.device}; move one")
    torch._check(k.shape[0] == q.shape[0], lambda: _misfit("batch entries", q.shape[0], k.shape[0], "q", "k"))
    torch._check(v.shape[0] == q.shape[0], lambda: _misfit("batch entries", q.shape[0], v.shape[0], "q", "v"))
    torch._check(k.shape[1] >= 1, lambda: "flashcore.attention: k has no heads; give at least one")
    torch._check(q.shape[1] % k.shape[1] == 0, lambda: (
        f"flashcore.attention: q has {q.shape[1]} heads and k {k.shape[1]}; the first must be a multiple of the second"))  # fmt: skip
    torch._check(v.shape[1] == k.shape[1], lambda: _misfit("heads", k.shape[1], v.shape[1], "k", "v"))
    torch._check(v.shape[2] == k.shape[2], lambda: _misfit("rows", k.shape[2], v.shape[2], "k", "v"))
    torch._check(k.shape[3] == q.shape[3], lambda: _misfit("elements in a row", q.shape[3], k.shape[3], "q", "k"))
    most = _MAX_HEAD_DIM_GPU if q.device.type == "cuda" else MAX_HEAD_DIM
    for role, x in (("q", q), ("v", v)):
        torch._check(x.shape[3] >= 1, lambda role=role: f"flashcore.attention: {role} has rows of no elements; give 1 to {most}")
        torch._check(x.shape[3] <= most, lambda role=role, x=x: (
            f"flashcore.attention: {role} has rows of {x.shape[3]} elements; give 1 to {most}"))  # fmt: skip
    if scale is not None:
        torch._check(scale >= MIN_SCALE and scale <= MAX_SCALE, lambda: (
            f"flashcore.attention: scale is {scale}; give {MIN_SCALE:g} to {MAX_SCALE:g}, or None for 1/sqrt(dim)"))  # fmt: skip


    for side, keys in (("left", window_left), ("right", window_right)):
        torch._check(-1 <= keys < 2**31, lambda side=side, keys=keys: (
            f"flashcore.attention: window_{side} is {keys}; give a number of keys, 0 or more, or -1 for no bound"))  # fmt: skip
    torch._check(not is_causal or window_right <= 0, lambda: (
        f"flashcore.attention: is_causal is given and window_right is {window_right}; leave one of them out"))  # fmt: skip
    if softcap is not None:
        torch._check(softcap >= MIN_SCALE and softcap <= MAX_SCALE, lambda: (
            f"flashcore.attention: softcap is {softcap}; give {MIN_SCALE:g} to {MAX_SCALE:g}, or None for none"))  # fmt: skip
    heads = (q.shape[1],)
    for role, x, shapes in (("alibi_slopes", alibi_slopes, (heads, (q.shape[0], q.shape[1]))), ("sink", sink, (heads,))):
        if x is None:
            continue
        torch._check(tuple(x.shape) in shapes, lambda role=role, x=x, shapes=shapes: (
            f"flashcore.attention: {role} has shape {tuple(x.shape)}; give {' or '.join(map(str, shapes))}, a number for each query head"))  # fmt: skip
        torch._check(x.device == q.device and x.is_floating_point(), lambda role=role, x=x: (
            f"flashcore.attention: {role} is {x.dtype} on {x.device} and q on {q.device}; give a floating-point tensor there"))  # fmt: skip
    if attn_mask is not None:
        full = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        torch._check(broadcasts(attn_mask, q, k), lambda: (
            f"flashcore.attention: attn_mask has shape {tuple(attn_mask.shape)}; give one that broadcasts to {full}"))  # fmt: skip
        torch._check(attn_mask.device == q.device and (attn_mask.dtype is torch.bool or attn_mask.dtype in DTYPES), lambda: (
            f"flashcore.attention: attn_mask is {attn_mask.dtype} on {attn_mask.device} and q on {q.device}; give bool, float32, float16 or bfloat16 there"))  # fmt: skip


def broadcasts(mask: Tensor, q: Tensor, k: Tensor) -> bool:
    full = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    missing = 4 - mask.dim()
    return missing >= 0 and all(extent == 1 or extent == wanted for extent, wanted in zip(mask.shape, full[missing:]))


def _misfit(what: str, a: int, b: int, role_a: str, role_b: str) -> str:
    return f"flashcore.attention: {role_a} has {a} {what} and {role_b} {b}; both must agree"


def forward(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: Optional[float] = None, window_left: int = -1,
            window_right: int = -1, softcap: Optional[float] = None, alibi_slopes: Optional[Tensor] = None, sink: Optional[Tensor] = None) -> Tensor:  # fmt: skip
    """What the operator computes, for dense tensors of the CPU or a GPU."""
    addresses = (q.data_ptr(), k.data_ptr(), v.data_ptr())
    window = (window_left, window_right)
    scores = (softcap, 0 if alibi_slopes is None else alibi_slopes.dim(), 0 if sink is None else 1)
    key = key_of(q, k, v, addresses, is_causal, scale, True, window, scores)
    prepared = known.get(key)
    # The key holds no shapes of slopes and sinks, and has the 0 of no slopes for a slope without axes.
    if alibi_slopes is not None or sink is not None or not isinstance(prepared, Prepared):
        check(q, k, v, scale, is_causal, window_left, window_right, softcap, alibi_slopes, sink)
    if not isinstance(prepared, Prepared):
        shape, strides = output_layout(q, v)
        if 0 in shape or k.shape[2] == 0:  # a row without keys is 0
            return torch.empty_strided(shape, strides, dtype=q.dtype, device=q.device).zero_()
        prepared = prepare(key, q, k, v, addresses, is_causal, scale, window, scores)
    slopes, logits = (None if x is None else x.detach().to(torch.float32).contiguous() for x in (alibi_slopes, sink))
    return run(prepared, q, k, v, addresses, 0 if slopes is None else slopes.data_ptr(), 0 if logits is None else logits.data_ptr())
