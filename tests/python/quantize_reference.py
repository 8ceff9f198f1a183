"""flashcore.quantize by its definition, in NumPy or PyTorch operations: the oracle of quantize_test.py."""

from __future__ import annotations

import math
import sys
from typing import Any

from flashcore import Quantized

LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
_NAMES = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}


def _is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


class _Numpy:
    def __init__(self) -> None:
        import ml_dtypes
        import numpy

        self.np, self.types = numpy, ml_dtypes

    def wide(self, x: Any) -> Any:
        return x.astype(self.np.float32)

    def largest(self, x: Any, axes: tuple[int, ...]) -> Any:
        return self.np.max(self.np.where(self.np.isfinite(x), abs(x), 0), axis=axes, keepdims=True, initial=0)

    def at_least(self, x: Any, least: float) -> Any:
        return self.np.maximum(x, self.np.float32(least))

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        return self.np.where(condition, a, b).astype(self.np.float32)

    def round(self, x: Any, dtype: str) -> Any:
        return self.np.ascontiguousarray(self.np.clip(x, -LARGEST[dtype], LARGEST[dtype]).astype(getattr(self.types, _NAMES[dtype])))

    def overflows(self, x: Any, dtype: str) -> int:
        """Numbers that a conversion which does not saturate makes infinities or NaN of."""
        return int((~self.np.isnan(x) & ~self.np.isfinite(x.astype(getattr(self.types, _NAMES[dtype])).astype(self.np.float32))).sum())

    def mean(self, x: Any, axis: int) -> Any:
        return x.mean(axis=axis, keepdims=True, dtype=self.np.float64).astype(self.np.float32)

    def contiguous(self, x: Any) -> Any:
        return self.np.ascontiguousarray(x)

    def constant(self, values: list[float], like: Any) -> Any:
        return self.np.array(values, self.np.float32)

    def stack(self, a: Any, b: Any) -> Any:
        return self.np.stack((a, b), -2)

    def zeros(self, shape: tuple[int, ...], like: Any) -> Any:
        return self.np.zeros(shape, like.dtype)

    def permuted(self, x: Any, axes: tuple[int, ...]) -> Any:
        return x.transpose(axes)


class _Torch:
    def __init__(self) -> None:
        self.torch = sys.modules["torch"]

    def wide(self, x: Any) -> Any:
        return x.detach().to(self.torch.float32)

    def largest(self, x: Any, axes: tuple[int, ...]) -> Any:
        return self.torch.where(self.torch.isfinite(x), x.abs(), self.torch.zeros_like(x)).amax(dim=axes, keepdim=True)

    def at_least(self, x: Any, least: float) -> Any:
        return x.clamp(min=least)

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        return self.torch.where(condition, a, self.torch.as_tensor(b, dtype=self.torch.float32, device=condition.device))

    def round(self, x: Any, dtype: str) -> Any:
        return x.clamp(-LARGEST[dtype], LARGEST[dtype]).to(getattr(self.torch, _NAMES[dtype])).contiguous()

    def mean(self, x: Any, axis: int) -> Any:
        return x.to(self.torch.float64).mean(dim=axis, keepdim=True).to(self.torch.float32)

    def contiguous(self, x: Any) -> Any:
        return x.contiguous()

    def constant(self, values: list[float], like: Any) -> Any:
        return self.torch.tensor(values, dtype=self.torch.float32, device=like.device)

    def stack(self, a: Any, b: Any) -> Any:
        return self.torch.stack((a, b), -2)

    def zeros(self, shape: tuple[int, ...], like: Any) -> Any:
        return self.torch.zeros(shape, dtype=like.dtype, device=like.device)

    def permuted(self, x: Any, axes: tuple[int, ...]) -> Any:
        return x.permute(axes)


def _signs(count: int, seed: int) -> list[float]:
    """±1, the same in every framework (SplitMix64)."""
    values, state = [], seed & (2**64 - 1)
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & (2**64 - 1)
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        values.append(1.0 if (z ^ (z >> 31)) & 1 else -1.0)
    return values


def _rotate(xp: Any, x: Any, signs: Any) -> Any:
    """The Walsh-Hadamard transform of each row, after random signs: a rotation, which q · k does not see."""
    dim, shape = x.shape[-1], x.shape
    x = (x * signs).reshape(-1, dim)
    size = 1
    while size < dim:
        x = x.reshape(-1, dim // (2 * size), 2, size)
        x = xp.stack(x[:, :, 0] + x[:, :, 1], x[:, :, 0] - x[:, :, 1]).reshape(-1, dim)
        size *= 2
    return x.reshape(shape) * (1.0 / math.sqrt(dim))


def _transposed(xp: Any, v: Any, heads: int, rows: int) -> Any:
    """[batch, heads, columns, rows], of which a column's rows are adjacent and columns lie a multiple of 16 elements apart."""
    batch, count, keys, columns = (v.shape[axis] for axis in (0, heads, rows, 3))
    padded = xp.zeros((batch, count, columns, -(-keys // 16) * 16), v)
    out = padded[..., :keys]
    out[...] = xp.permuted(v, (0, heads, 3, rows))
    return out


def quantize(q: Any, k: Any, v: Any, *, scaling: str = "tensor", dtype: str = "e4m3", smooth_k: bool = False, hadamard: bool = False,
             seed: int = 0, layout: str = "bhsd", v_layout: str = "nd", descale_q: Any = None, descale_k: Any = None, descale_v: Any = None,
             saturated: Any = None, blocks: Any = None) -> Quantized:  # fmt: skip
    """As flashcore.quantize, of arguments that are right; counts of NumPy's arrays alone."""
    given = {"q": descale_q, "k": descale_k, "v": descale_v}
    xp: Any = _Torch() if _is_torch(q) else _Numpy()
    heads, rows = (1, 2) if layout == "bhsd" else (2, 1)
    batch, heads_kv, dim = k.shape[0], k.shape[heads], q.shape[3]
    wide = {role: xp.wide(x) for role, x in (("q", q), ("k", k), ("v", v))}
    k_mean = None
    if smooth_k and k.shape[rows]:
        k_mean = xp.mean(wide["k"], rows)
        wide["k"] = wide["k"] - k_mean
    if hadamard:
        signs = xp.constant(_signs(dim, seed), q)
        wide["q"], wide["k"] = (_rotate(xp, wide[role], signs) for role in ("q", "k"))
    stored, descales = {}, {}
    for role, x in wide.items():
        # [batch, kv head, query heads of it, rows, columns] or with rows before heads.
        group = x.shape[heads] // heads_kv
        shape = (*x.shape[:heads], heads_kv, group, *x.shape[heads + 1 :])
        grouped = x.reshape(shape)
        by_row = scaling in ("token", "block") and role != "v"
        kept = tuple(range(4)) if by_row else (0, heads) if scaling != "tensor" else ()
        largest = xp.largest(grouped, tuple(axis for axis in range(5) if axis not in kept))
        if by_row and scaling == "block" and largest.size:
            # Of rows of a block, of which the last is short, the largest is that of each.
            block, axis = blocks["qk".index(role)], rows if heads == 2 else rows + 1
            firsts = xp.np.arange(0, largest.shape[axis], block)
            largest = xp.np.repeat(xp.np.maximum.reduceat(largest, firsts, axis=axis), block, axis=axis)
            largest = xp.np.take(largest, xp.np.arange(x.shape[rows]), axis=axis)
        descale = xp.where(largest > 0, xp.at_least(largest / LARGEST[dtype], 2.0**-126), 1.0)
        if given[role] is not None:
            of_heads = (batch, heads_kv, 1, 1, 1) if heads == 1 else (batch, 1, heads_kv, 1, 1)
            descale = given[role].reshape(of_heads if scaling == "head" else (1,) * 5)
        if saturated is not None:
            saturated["qkv".index(role)] += xp.overflows(grouped / descale, dtype)
        stored[role] = xp.round((grouped / descale).reshape(x.shape), dtype)
        if role == "v" and v_layout == "dn":
            stored[role] = _transposed(xp, stored[role], heads, rows)
        if by_row:
            of_rows = descale.reshape(x.shape[:3])
            descales[role] = xp.contiguous(of_rows if heads == 1 else xp.permuted(of_rows, (0, 2, 1)))
        else:
            descales[role] = xp.contiguous(descale.reshape((1,) if scaling == "tensor" else (batch, heads_kv)))
    return Quantized(stored["q"], stored["k"], stored["v"], descales["q"], descales["k"], descales["v"], k_mean)
