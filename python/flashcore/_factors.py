"""The factors of 8-bit q, k and v, or of a quantised cache (descales): which kind a call has, and where they lie."""

from __future__ import annotations

import ctypes
import math
import numbers
import contextlib
import operator
import sys
from typing import Any, Callable, NamedTuple

from . import _arrays
from ._arrays import View
from ._library import Error

DTYPES = ("e4m3", "e5m2")
CACHES = (*DTYPES, "int8", "int4")  # of k and v beside q of 16 or 32 bits
OUTPUTS = ("bf16", "fp16", "e4m3", "e5m2")
USUAL, NONE, TENSOR, HEAD, TOKEN = 0, 1, 2, 3, 4  # fc_scaling
_WORDS = {None: USUAL, "none": NONE, "tensor": TENSOR, "head": HEAD, "token": TOKEN}
_ROLES = ("descale_q", "descale_k", "descale_v")


class Factors(NamedTuple):
    """Of one call. Addresses are 0 where there are none."""

    scaling: int
    addresses: tuple[int, ...]
    keep: Any  # alive as long as the addresses are used


_NO_FACTORS = Factors(NONE, (), None)


def output_dtype(dtype: str) -> str:
    """What a call on such q, k and v returns if nobody says otherwise."""
    return "bf16" if dtype in DTYPES else dtype


def require_types(q: View, *others: tuple[str, View]) -> None:
    """Error unless k and v are of q's type, or of one type that a quantised cache has, and on its device."""
    quantised = q.dtype not in DTYPES and all(x.dtype in CACHES for _, x in others)
    if quantised and len({x.dtype for _, x in others}) > 1:
        found = " and ".join(f"{role} is {x.dtype}" for role, x in others)
        raise Error(f"{found}; a quantised cache has one type: give k and v of the same")
    for role, x in others:
        if x.device != q.device or x.dtype != (others[0][1].dtype if quantised else q.dtype):
            raise Error(f"q is {q.dtype} on {q.device} and {role} is {x.dtype} on {x.device}; all three must agree, but for the type of a "
                        "quantised cache: e4m3, e5m2, int8 or int4 of k and v beside q of 16 or 32 bits")  # fmt: skip


def number_of(scaling: Any, dtype: str) -> int:
    """`dtype`: of k."""
    try:
        number = _WORDS[scaling]
    except (KeyError, TypeError):
        raise Error(f"scaling is {scaling!r}; use 'tensor', 'head', 'token' or 'none'") from None
    if number in (TENSOR, HEAD, TOKEN) and dtype not in CACHES:
        raise Error(f"scaling is {scaling!r} and k is {dtype}; leave it out: only arrays of 8 bits have factors")
    return number


def _of_number(value: Any, role: str, q: View) -> tuple[int, Any]:
    """Memory of q's device that holds it."""
    try:
        number = float(value)
    except OverflowError:  # its digits may be more than Python prints
        raise Error(f"{role} is a number beyond 1.8e308, the largest of a float; factors are positive and finite in float32, up to 3.4e38") from None
    stored = ctypes.c_float(number).value
    if not 0 < stored < math.inf:
        rounded = "" if number == stored or math.isnan(number) else f", {stored} in float32"
        raise Error(f"{role} is {number}{rounded}; factors are positive and finite")
    if q.device == "cpu":
        cell = ctypes.c_float(number)
        return ctypes.addressof(cell), cell
    if q.framework == "torch":
        tensor = sys.modules["torch"].full((1,), number, dtype=sys.modules["torch"].float32, device=q.keep.device)
        return int(tensor.data_ptr()), tensor
    if q.framework == "cupy":
        with q.keep.device:
            array = sys.modules["cupy"].full((1,), number, dtype="float32")
        return int(array.data.ptr), array
    raise Error(f"{role} is a number and q is on {q.device}; give a float32 array of one element there")


def float_array(x: Any, role: str, q: View, stream: int | None) -> View:
    """A contiguous float32 array on q's device."""
    found = _arrays.view(x, role, stream)
    if found.dtype != "fp32":
        raise Error(f"{role} is of {found.dtype}; give float32")
    return contiguous_beside(found, role, q)


def contiguous_beside(found: View, role: str, q: View) -> View:
    """`found`, which must be contiguous and on q's device."""
    if found.device != q.device:
        raise Error(f"{role} is on {found.device} and q on {q.device}; move one")
    strides = tuple(stride for stride, extent in zip(found.strides, found.shape) if extent > 1)
    expected = tuple(s for s, extent in zip(_arrays._contiguous(found.shape), found.shape) if extent > 1)
    if strides != expected:
        raise Error(f"{role} has strides {found.strides}; give a contiguous array")
    return found


def pair_of_blocks(blocks: Any, role: str) -> tuple[int, int]:
    """How many rows of q, and how many keys, have a factor together."""
    sizes: list[int] = []
    if isinstance(blocks, (tuple, list)) and len(blocks) == 2 and not any(isinstance(x, bool) for x in blocks):
        with contextlib.suppress(TypeError):
            sizes = [operator.index(x) for x in blocks]
    if sizes and all(1 <= size < 2**31 for size in sizes):
        return sizes[0], sizes[1]
    raise Error(f"{role} is {blocks!r}; give (rows of q, keys) that have one factor, as (128, 64), each at least 1")


def of_blocks(descales: tuple[Any, Any, Any], blocks: Any, sizes: Any, q: View, k: View, stream: int | None) -> tuple[Any, Any, Any]:
    """Factors of rows, of those of blocks: [batch, heads, number of blocks]. Those of v are by block beside a quantised cache alone."""
    rows, keys = pair_of_blocks(blocks, "descale_blocks")
    of_8_bits = q.dtype in DTYPES
    if k.dtype not in CACHES:
        raise Error(f"descale_blocks is given and q is {q.dtype}; leave it out: only arrays of 8 bits have factors")
    if all(x is None for x in descales):
        raise Error(f"descale_blocks is {(rows, keys)} and no factors are given; give {'descale_q, descale_k and descale_v' if of_8_bits else 'descale_k and descale_v'}, "
                    "or leave it out")  # fmt: skip
    if stream is not None and q.device != "cpu" and stream != _arrays.current_stream(q):
        raise Error(f"descale_blocks is given and stream is {stream}, which is not the framework's current stream, where factors are repeated; make it the "
                    "current one, or give factors of rows")  # fmt: skip
    made = list(descales)
    for i, (role, block, (batch, heads, length)) in enumerate(
            zip(_ROLES, (rows, keys, keys), (sizes.shape_of_rows, sizes.shape_of_keys, sizes.shape_of_keys))):  # fmt: skip
        if made[i] is None or (role == "descale_v" and of_8_bits):
            continue
        wanted = (batch, heads, -(-length // block))
        if isinstance(made[i], (int, float)):
            raise Error(f"{role} is {made[i]!r} and descale_blocks is {(rows, keys)}; give one factor for each block, {wanted}")
        found = float_array(made[i], role, q, stream)
        if found.shape != wanted:
            raise Error(f"{role} has shape {found.shape} and descale_blocks is {(rows, keys)}; give one factor for each block, {wanted}")
        made[i] = _repeated(made[i], role, min(block, max(length, 1)), length)
    return made[0], made[1], made[2]


def _repeated(x: Any, role: str, block: int, length: int) -> Any:
    """On x's device, by its framework, in the order of the stream that is current there."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return x.repeat_interleave(block, dim=-1)[..., :length].contiguous()
    framework = type(x).__module__.split(".")[0]
    library = sys.modules.get({"jaxlib": "jax.numpy", "jax": "jax.numpy"}.get(framework, framework))
    if framework not in ("numpy", "cupy", "jax", "jaxlib") or library is None:
        raise Error(f"{role} is a {type(x).__name__}; factors of blocks are those of NumPy, CuPy, JAX or PyTorch: repeat it for each row yourself")
    if framework in ("jax", "jaxlib"):
        return library.repeat(x, block, axis=-1)[..., :length]
    with x.device if framework == "cupy" else contextlib.nullcontext():
        return library.ascontiguousarray(library.repeat(x, block, axis=-1)[..., :length])


def _beside_rows(of_q: Any, of_k: Any, of_heads: Any) -> str:
    return f"factors of rows are descale_q {of_q} and descale_k {of_k} beside descale_v {of_heads}"


def read(q: View, k: View, descales: tuple[Any, Any, Any], sizes: Callable[[], Any], stream: int | None, *, written: bool = False) -> Factors:
    """Error, naming the argument, for factors that do not suit q, k and v, or one another. `sizes`: what has the batch, heads_kv and, where
    each key may have a factor of its own, shape_of_keys, and each row of q shape_of_rows. `written`: such factors are outputs."""
    given = {role: x is not None for role, x in zip(_ROLES, descales)}
    if not any(given.values()):
        return _NO_FACTORS
    first = next(role for role, there in given.items() if there)
    if k.dtype not in CACHES:
        raise Error(f"{first} is given and q is {q.dtype}; leave it out: only arrays of 8 bits have factors")
    needed = _ROLES if q.dtype in DTYPES else _ROLES[1:]
    if given["descale_q"] and "descale_q" not in needed:
        raise Error(f"descale_q is given and q is {q.dtype} beside a cache of {k.dtype}; leave it out: only k and v have factors")
    if not all(given[role] for role in needed):
        missing = next(role for role in needed if not given[role])
        raise Error(f"{first} is given and {missing} is not; give all three, or none" if needed == _ROLES else
                    f"{first} is given and {missing} is not; give both, or none")  # fmt: skip
    made, addresses, keep = sizes(), [0] * (len(_ROLES) - len(needed)), []
    shape_of_heads, of_8_bits = (made.batch, made.heads_kv), needed == _ROLES
    shape_of_rows, shape_of_keys = (getattr(made, name, None) for name in ("shape_of_rows", "shape_of_keys"))
    if not of_8_bits:
        by_row = {"descale_k": shape_of_keys, "descale_v": shape_of_keys}
    else:  # v's are by head then
        by_row = {"descale_q": shape_of_rows, "descale_k": shape_of_keys if shape_of_rows else None}
    kinds: list[int] = []
    for role, x in zip(needed, descales[len(_ROLES) - len(needed) :]):
        if isinstance(x, numbers.Real) and not isinstance(x, bool):
            address, cell = _of_number(x, role, q)
            kinds.append(TENSOR)
        else:
            found = float_array(x, role, q, stream)
            address, cell = found.address, found
            if found.shape == shape_of_heads:
                kinds.append(TOKEN if of_8_bits and kinds == [TOKEN, TOKEN] else HEAD)
            elif found.shape in ((), (1,)):
                kinds.append(TENSOR)
            elif found.shape == by_row.get(role):
                kinds.append(TOKEN)
                if written:
                    _arrays.output(x, role, stream)
            elif of_8_bits and TOKEN in kinds:
                raise Error(f"{role} has shape {found.shape}; {_beside_rows(shape_of_rows, shape_of_keys, shape_of_heads)}")
            else:
                shape = by_row.get(role)
                of_rows = f", or of each {'row' if role == 'descale_q' else 'key'} {shape}" if shape else ""
                raise Error(f"{role} has shape {found.shape}; give one element, or [batch, heads_kv] = {shape_of_heads}{of_rows}")
        addresses.append(address)
        keep.append(cell)
    if len(set(kinds)) != 1:
        least, most = needed[kinds.index(min(kinds))], needed[kinds.index(max(kinds))]
        words = {TENSOR: "one for all", HEAD: "a factor for each key head", TOKEN: f"a factor for each {'row' if most == 'descale_q' else 'key'}"}
        if of_8_bits and TOKEN in kinds:
            raise Error(f"{most} has {words[max(kinds)]} and {least} {words[min(kinds)]}; {_beside_rows(shape_of_rows, shape_of_keys, shape_of_heads)}")
        raise Error(f"{most} has {words[max(kinds)]} and {least} {words[min(kinds)]}; give all {'three ' if needed == _ROLES else ''}alike")
    return Factors(kinds[0], tuple(addresses), keep)
