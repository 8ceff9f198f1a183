"""Two tensors as the columns of one: the latent keys of multi-head latent attention, whose first columns are the value."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from . import _library


def adjoined(a: Tensor, b: Tensor) -> Optional[Tensor]:
    """The tensor whose first columns are `a` and whose others are `b`; None if they do not lie so in memory."""
    if b.shape[-1] == 0:
        return a if a.stride(-1) == 1 else None
    alike = all(x == y for x, y, extent in zip(a.stride()[:-1], b.stride()[:-1], a.shape[:-1]) if extent > 1)
    adjacent = all(x.stride(-1) == 1 or x.shape[-1] == 1 for x in (a, b))
    if not alike or not adjacent or b.data_ptr() != a.data_ptr() + a.shape[-1] * a.itemsize:
        return None
    if a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():  # neighbours by chance, of two allocations
        return None
    return a.as_strided((*a.shape[:-1], a.shape[-1] + b.shape[-1]), (*a.stride()[:-1], 1))


def joined(a: Tensor, b: Tensor) -> Tensor:
    if a.itemsize > 1:
        return torch.cat((a, b), -1)
    return torch.cat((a.view(torch.uint8), b.view(torch.uint8)), -1).view(a.dtype)  # not every PyTorch joins 8-bit floats


def check_second_query(q: Tensor, k: Tensor, v: Tensor, qv: Tensor) -> None:
    """FlashAttention 3's qv, a second query that reads V."""
    if not isinstance(qv, Tensor) or qv.dtype != q.dtype or qv.shape != (*q.shape[:-1], v.shape[-1]) or qv.device != q.device:
        what = f"{qv.dtype} of shape {tuple(qv.shape)} on {qv.device}" if isinstance(qv, Tensor) else f"a {type(qv).__name__}"
        raise _library.Error(f"qv is {what}; give {q.dtype} of shape {(*q.shape[:-1], v.shape[-1])} on {q.device}, as q with the columns of v")
    if k.shape[:-1] != v.shape[:-1] or k.dtype != v.dtype:
        raise _library.Error(f"qv is given, k is {k.dtype} of shape {tuple(k.shape)} and v {v.dtype} of shape {tuple(v.shape)}; they may differ in their last "
                             "axis only")  # fmt: skip
    if q.dtype.itemsize == 1 or k.dtype.itemsize == 1:
        raise _library.Error(f"qv is given, q is {q.dtype} and k {k.dtype}; give 16 bits: with qv a key has columns of k and of v, whose factors differ")


def with_second_query(q: Tensor, k: Tensor, v: Tensor, qv: Optional[Tensor], scale: Optional[float]) -> tuple[Tensor, Tensor, Optional[float]]:
    """(q, k, scale) of one query and one key, of which the first columns are qv's and v's. Keys that do not lie so are copied."""
    if qv is None:
        return q, k, scale
    check_second_query(q, k, v, qv)
    has_gradient = torch.is_grad_enabled() and (k.requires_grad or v.requires_grad)
    found = None if has_gradient else adjoined(v, k)
    scale = (q.shape[-1] + v.shape[-1]) ** -0.5 if scale is None else scale
    return torch.cat((qv, q), -1), joined(v, k) if found is None else found, scale


def latent_cache(k_cache: Tensor, v_cache: Tensor) -> Tensor:
    """The cache whose first columns are v_cache and whose others are k_cache."""
    found = adjoined(v_cache, k_cache)
    if found is None:
        dim_v, dim = v_cache.shape[-1], v_cache.shape[-1] + k_cache.shape[-1]
        raise _library.Error(f"qv is given, and k_cache and v_cache are not columns of one tensor; kernels read a key from one place: allocate cache = "
                             f"[..., heads_kv, {dim}] and give cache[..., {dim_v}:] as k_cache and cache[..., :{dim_v}] as v_cache")  # fmt: skip
    return found
