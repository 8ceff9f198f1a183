"""flashcore.quantize: q, k and v as 8-bit floats with their factors."""

from __future__ import annotations

import numbers
import operator
import sys
from typing import Any, NamedTuple

from . import _arrays, _factors, _kernels, _plan
from ._arrays import View
from ._library import Error, QuantizeKind, QuantizeOperands, Strides

_NAMES = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
_WIDE = ("fp32", "fp16", "bf16")
_SCALINGS = {"tensor": _factors.TENSOR, "head": _factors.HEAD, "token": _factors.TOKEN, "block": _factors.TOKEN}


class Quantized(NamedTuple):
    """What `quantize` returns: `flashcore.attention(*x.arrays, **x.descales)`, with `v_layout="dn"` where that was asked for.

    Attributes:
        arrays, descales: (q, k, v), and the three factors by their names in `flashcore.attention`.
        q, k, v: of float8_e4m3fn or float8_e5m2, contiguous, in the layout that was given; v with v_layout="dn" as that says.
        descale_q, descale_k, descale_v: float32, of one element or [batch, heads_kv]; with scaling="token" or "block" [batch, heads, seqlen_q],
            [batch, heads_kv, seqlen_kv] and [batch, heads_kv], whatever the layout; rows of a block have the same.
        k_mean: what smooth_k took from every key, float32, with one row; None without. Scores are lower by scale · q · k_mean, alike for
            all keys of a row, so that o is the same and the log-sum-exp is lower by it.
    """

    q: Any
    k: Any
    v: Any
    descale_q: Any
    descale_k: Any
    descale_v: Any
    k_mean: Any = None

    @property
    def arrays(self) -> tuple[Any, Any, Any]:
        return self.q, self.k, self.v

    @property
    def descales(self) -> dict[str, Any]:
        return {"descale_q": self.descale_q, "descale_k": self.descale_k, "descale_v": self.descale_v}


def _kind(dtype: str, code: str, counts: bool) -> QuantizeKind:
    return QuantizeKind(dtype=_plan.DTYPES[dtype], code_dtype=_plan.DTYPES[code], counts_saturated=int(counts))


def _read(role: str, x: Any) -> View:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(x, torch.Tensor):
        x = x.detach()
    elif numpy is None or not isinstance(x, numpy.ndarray):
        raise Error(f"{role} is a {type(x).__name__}; quantize takes NumPy arrays and PyTorch tensors")
    found = _arrays.view(x, role)
    if len(found.shape) != 4:
        raise Error(f"{role} has shape {found.shape}; give four axes, [batch, heads, seqlen, head_dim] or those of layout='bshd'")
    if found.dtype not in _WIDE:
        raise Error(f"{role} is {found.dtype}; give float32, float16 or bfloat16, which quantize makes 8-bit floats of")
    _arrays.require_adjacent(role, found)
    return found


def _empty(like: View, shape: tuple[int, ...], dtype: str) -> Any:
    """A new contiguous array of the framework and on the device of `like`."""
    if dtype == "fp32" or like.framework == "torch":
        return _arrays.empty_like(like, shape, dtype)
    try:
        import ml_dtypes
    except ImportError:
        raise Error("quantize of NumPy arrays needs the package ml_dtypes, which has the 8-bit floats; install it", "environment") from None
    return sys.modules["numpy"].empty(shape, getattr(ml_dtypes, _NAMES[dtype]))


class _Call:
    """One call's operands, checked against each other, and the arrays that are written."""

    def __init__(self, q: Any, k: Any, v: Any, layout: str) -> None:
        self.q, self.k, self.v = (_read(role, x) for role, x in (("q", q), ("k", k), ("v", v)))
        self.heads, self.rows = (1, 2) if layout == "bhsd" else (2, 1)
        for role, x in (("k", self.k), ("v", self.v)):
            if (x.dtype, x.device, x.framework) != (self.q.dtype, self.q.device, self.q.framework):
                raise Error(f"q is {self.q.dtype} on {self.q.device} of {self.q.framework} and {role} is {x.dtype} on {x.device} of {x.framework}; "
                            "all three must agree")  # fmt: skip
        shapes = q_shape, k_shape, v_shape = self.q.shape, self.k.shape, self.v.shape
        heads_kv = k_shape[self.heads]
        if heads_kv == 0 or q_shape[self.heads] % heads_kv or k_shape[:3] != v_shape[:3] or q_shape[0] != k_shape[0] or q_shape[3] != k_shape[3]:
            raise Error("q, k and v have shapes {}, {} and {}; batches must agree, rows and heads of k and v, whose heads divide those of q, and "
                        "head_dim of q and k".format(*shapes))  # fmt: skip
        self.operands = QuantizeOperands(
            batch=q_shape[0], heads_q=q_shape[self.heads], heads_kv=heads_kv, seqlen_q=q_shape[self.rows], seqlen_kv=k_shape[self.rows],
            head_dim=q_shape[3], head_dim_v=v_shape[3], q=self.q.address, k=self.k.address, v=self.v.address, q_strides=self.strides(self.q),
            k_strides=self.strides(self.k), v_strides=self.strides(self.v))  # fmt: skip

    def strides(self, x: View) -> Strides:
        return Strides(x.strides[0], x.strides[self.heads], x.strides[self.rows])

    def codes(self, role: str, like: View, dtype: str) -> Any:
        made = _empty(like, like.shape, dtype)
        found = _arrays.view(made, role)
        setattr(self.operands, f"{role}_codes", found.address)
        setattr(self.operands, f"{role}_codes_strides", self.strides(found))
        return made

    def transposed_codes(self, dtype: str) -> Any:
        """[batch, heads, columns, keys], of which a column's keys are adjacent and columns lie a multiple of 16 elements apart."""
        o = self.operands
        padded = _empty(self.v, (o.batch, o.heads_kv, o.head_dim_v, -(-o.seqlen_kv // 16) * 16), dtype)
        found = _arrays.view(padded, "v")
        o.v_layout, o.v_codes, o.v_codes_strides = 1, found.address, Strides(*found.strides[:3])
        return padded[..., : o.seqlen_kv]

    def given_factor(self, role: str, x: Any, shape: tuple[int, ...]) -> Any:
        """x itself, or an array of a number."""
        name = f"descale_{role}"
        if isinstance(x, numbers.Real) and not isinstance(x, bool):
            if shape != (1,):
                raise Error(f"{name} is a number; give float32 {shape}, or scaling='tensor'")
            address, _ = _factors._of_number(x, name, self.q)  # looks at it
            made = _empty(self.q, shape, "fp32")
            made[...] = x
            x = made
        found = _factors.float_array(x, name, self.q, None)
        if found.shape != shape and (found.shape, shape) != ((), (1,)):
            raise Error(f"{name} has shape {found.shape}; give {shape}, as scaling says")
        setattr(self.operands, name, found.address)
        return x

    def count_saturated(self, x: Any) -> None:
        found = _factors.contiguous_beside(_arrays.output(x, "saturated"), "saturated", self.q)
        if found.shape != (3,):
            raise Error(f"saturated has shape {found.shape}; give int64 (3,), of q, k and v")
        self.operands.saturated = found.address

    def floats(self, field: str, shape: tuple[int, ...]) -> Any:
        made = _empty(self.q, shape, "fp32")
        setattr(self.operands, field, _arrays.view(made, field).address)
        return made


def quantize(q: Any, k: Any, v: Any, *, scaling: str = "tensor", dtype: str = "e4m3", smooth_k: bool = False, hadamard: bool = False,
             seed: int = 0, layout: str = "bhsd", v_layout: str = "nd", descale_q: Any = None, descale_k: Any = None, descale_v: Any = None,
             saturated: Any = None, blocks: Any = None) -> Quantized:  # fmt: skip
    """q, k and v as 8-bit floats, scaled so that the largest finite magnitude is the largest of the type.

    A step of its own before attention, on the device of the arrays and in float32. It saturates, and keeps NaN. Nothing is read on the host,
    so that a CUDA graph may capture it, and the same input gives the same bits.

    Args:
        q, k, v: NumPy arrays or PyTorch tensors of float32, float16 or bfloat16, with shapes as `attention` takes them; any strides, as long as
            the elements of a row are adjacent.
        scaling: "tensor": one factor for each of q, k and v; "head": one for each batch entry and key head, with the query heads that
            read it; "token": one for each row of q and of k, and for v as "head". Outlier rows do not cost others their precision then. "block": one
            for each `blocks` rows, and for v as "head".
        dtype: "e4m3" or "e5m2".
        smooth_k: takes the mean over keys from k first, which leaves o as it is: outlier channels of k are much the same for all keys.
        hadamard: rotates q and k by a random Hadamard transform, which spreads outlier channels; head_dim is a power of two up to 512.
        seed: of the signs of `hadamard`.
        layout: "bhsd" or "bshd".
        v_layout: "nd", or "dn": v as [batch, heads_kv, head_dim_v, seqlen_kv], for `attention(v_layout="dn")`. Its columns lie a multiple of 16
            elements apart, with zeros between.
        descale_q, descale_k, descale_v: factors that are there already, those of the step before, say, in the shapes that scaling says; or
            numbers with scaling="tensor". All three or none, and not with "token". The largest magnitudes are not looked for then, so that
            the arrays are read once.
        blocks: with scaling="block" how many rows of a head of q, and how many keys, have one factor: (128, 128), or another pair; the last of
            a head may be fewer. Attention takes the factors as those of rows.
        saturated: int64 [3]: to it is added how many elements of q, k and v saturated. An element saturates if rounding to the nearest
            would exceed the type's largest number; infinities count, NaN does not. Beside factors that quantize makes only infinities do.

    Returns:
        Quantized, of the arrays' framework and device.

    Raises:
        Error: for other arrays, for sizes that do not fit together, for a head_dim that has no Hadamard transform.
    """
    if not isinstance(scaling, str) or scaling not in _SCALINGS:
        raise Error(f"scaling is {scaling!r}; use 'tensor', 'head', 'token' or 'block'")
    if not isinstance(dtype, str) or dtype not in _NAMES:
        raise Error(f"dtype is {dtype!r}; use 'e4m3' or 'e5m2'")
    try:
        seed_bits = operator.index(seed) & (2**64 - 1)
    except TypeError:
        raise Error(f"seed is {seed!r}; give a whole number") from None
    if layout not in ("bhsd", "bshd"):
        raise Error(f"layout is {layout!r}; use 'bhsd' ([batch, heads, seqlen, head_dim]) or 'bshd'")
    if v_layout not in ("nd", "dn"):
        raise Error(f"v_layout is {v_layout!r}; use 'nd', or 'dn' for v as [batch, heads_kv, head_dim_v, seqlen_kv]")
    for name, switch in (("smooth_k", smooth_k), ("hadamard", hadamard)):
        if type(switch).__name__ not in ("bool", "bool_"):  # NumPy has one of its own
            raise Error(f"{name} is {switch!r}; use True or False")
    call = _Call(q, k, v, layout)
    o = call.operands
    o.scaling, o.hadamard, o.seed = _SCALINGS[scaling], int(hadamard), seed_bits
    given = (descale_q, descale_k, descale_v)
    if any(x is not None for x in given):
        if any(x is None for x in given):
            missing = next(role for role, x in zip("qkv", given) if x is None)
            raise Error(f"descale_{missing} is not given and others are; give all three, or none")
        if o.scaling == _factors.TOKEN:
            raise Error(f"factors are given and scaling is {scaling!r}, whose factors are found on the way; use 'tensor' or 'head'")
        o.has_factors = 1
    if scaling == "block":
        o.block_q, o.block_kv = _factors.pair_of_blocks(blocks if blocks is not None else (128, 128), "blocks")
    elif blocks is not None:
        raise Error(f"blocks is {blocks!r} and scaling {scaling!r}; use scaling='block', or leave it out")
    if saturated is not None:
        call.count_saturated(saturated)
    codes = [call.codes(role, x, dtype) for role, x in (("q", call.q), ("k", call.k))]
    codes.append(call.transposed_codes(dtype) if v_layout == "dn" else call.codes("v", call.v, dtype))
    of_heads = (1,) if scaling == "tensor" else (o.batch, o.heads_kv)
    of_q, of_k = ((o.batch, o.heads_q, o.seqlen_q), (o.batch, o.heads_kv, o.seqlen_kv)) if o.scaling == _factors.TOKEN else (of_heads, of_heads)
    shapes = zip("qkv", given, (of_q, of_k, of_heads))
    descales = [call.floats(f"descale_{role}", shape) if x is None else call.given_factor(role, x, shape) for role, x, shape in shapes]
    k_mean = None
    if smooth_k and o.seqlen_kv:
        k_mean = call.floats("k_mean", (o.batch, o.heads_kv, 1, o.head_dim) if layout == "bhsd" else (o.batch, 1, o.heads_kv, o.head_dim))
    _kernels.kernel("quantize", call.q.device, _kind, call.q.dtype, dtype, saturated is not None).launch(o, _arrays.current_stream(call.q))
    if saturated is not None:
        _arrays.note_written(saturated)
    return Quantized(*codes, *descales, k_mean)
