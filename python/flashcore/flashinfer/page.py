"""FlashInfer's functions on pages: new keys and values are written to them."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from .. import _append, _torch_cache
from . import _options, _tables
from ._options import Cache

__all__ = ["append_paged_kv_cache", "append_paged_mla_kv_cache", "get_batch_indices_positions", "get_seq_lens"]


def get_seq_lens(kv_indptr: Tensor, kv_last_page_len: Tensor, page_size: int) -> Tensor:
    """flashinfer.get_seq_lens: keys of each request, int32 [batch], of its page list and the keys in its last page."""
    return torch.clamp(kv_indptr[1:] - kv_indptr[:-1] - 1, min=0) * page_size + kv_last_page_len


def get_batch_indices_positions(append_indptr: Tensor, seq_lens: Tensor, nnz: int, batch_indices: Optional[Tensor] = None,
                                positions: Optional[Tensor] = None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """flashinfer.get_batch_indices_positions: whose each new key is, and where it goes. Nothing is read on the host.

    Args:
        append_indptr: int32 [batch + 1]: request s has the new keys append_indptr[s] to append_indptr[s + 1] - 1.
        seq_lens: int32 [batch]: keys of each request, the new ones included.
        nnz: new keys. What lies behind append_indptr's end is nobody's.
        batch_indices, positions: where to write, int32 [nnz] both.

    Returns:
        (batch_indices, positions): int32 [nnz]: the request, or -1, and the number of the key in it.
    """
    for name, given in (("batch_indices", batch_indices), ("positions", positions)):
        if given is not None and (given.shape != (nnz,) or given.dtype != torch.int32):
            raise _options.Error(f"{name} is {given.dtype} of shape {tuple(given.shape)}; give int32 [nnz] = ({nnz},)")
    starts, lengths = append_indptr.long(), seq_lens.long().to(append_indptr.device)
    entry = torch.arange(nnz, device=starts.device)
    batch = lengths.shape[0]
    whose = torch.searchsorted(starts, entry, right=True) - 1
    is_one = (whose >= 0) & (whose < batch)
    whose = whose.clamp(0, max(batch - 1, 0))
    at = entry - starts[whose + 1] + lengths[whose]
    found = torch.where(is_one, whose, -1).int(), torch.where(is_one, at, 0).int()
    if batch_indices is not None:
        batch_indices.copy_(found[0])
    if positions is not None:
        positions.copy_(found[1])
    return found[0] if batch_indices is None else batch_indices, found[1] if positions is None else positions


def append_paged_kv_cache(append_key: Tensor, append_value: Tensor, batch_indices: Tensor, positions: Tensor, paged_kv_cache: Cache, kv_indices: Tensor,
                          kv_indptr: Tensor, kv_last_page_len: Tensor, kv_layout: str = "NHD", *, k_scale: Any = None, v_scale: Any = None) -> None:  # fmt: skip
    """flashinfer.append_paged_kv_cache: writes new keys and values to their pages. One kernel writes them, a step of its own; nothing is
    read on the host.

    Args:
        append_key, append_value: [nnz, heads_kv, dim], of the type of the cache, and copied as they are; or of 16 or 32 bits beside a cache
            of float8_e4m3fn, float8_e5m2 or int8, with k_scale and v_scale. (FlashInfer reads such rows as if they had the cache's type.)
        batch_indices, positions: int32 [nnz], as get_batch_indices_positions makes them. Keys of a request -1, of a page that the request or
            the cache does not have are not written.
        paged_kv_cache: as of BatchDecodeWithPagedKVCacheWrapper.run.
        kv_indices, kv_indptr: the page lists of all requests, with room for the new keys.
        kv_last_page_len: ignored, as positions say it.
        kv_layout: "NHD" or "HND".
        k_scale, v_scale: of a quantised cache, as run() is given them (not in FlashInfer): numbers, or tensors of one element or
            float32 [heads_kv] on the cache's device. What is written is append_key / k_scale, rounded to the nearest, and saturates.

    Raises:
        flashcore.Error: for tensors that do not fit together, a quantised cache without scales, scales without one, and a cache whose pages
            share memory.
    """
    layout = _options.layout_of(kv_layout)
    k_cache, v_cache = _options.split(paged_kv_cache, layout)
    if layout == "HND":
        k_cache, v_cache = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
    _append_rows(_Part("append_key", append_key, "paged_kv_cache", k_cache, "k_scale", k_scale),
                 _Part("append_value", append_value, "paged_kv_cache", v_cache, "v_scale", v_scale),
                 batch_indices, positions, kv_indices, kv_indptr)  # fmt: skip


def append_paged_mla_kv_cache(append_ckv: Tensor, append_kpe: Tensor, batch_indices: Tensor, positions: Tensor, ckv_cache: Tensor, kpe_cache: Tensor,
                              kv_indices: Tensor, kv_indptr: Tensor, kv_last_page_len: Tensor, *, ckv_scale: Any = None, kpe_scale: Any = None) -> None:  # fmt: skip
    """flashinfer.append_paged_mla_kv_cache: append_paged_kv_cache of the two caches of BatchMLAPagedAttentionWrapper, which may be views of
    one tensor.

    Args:
        append_ckv, append_kpe: [nnz, dim of each], of any dims.
        ckv_cache, kpe_cache: [pages, page_size, dim of each]. They are written.
        ckv_scale, kpe_scale: of quantised caches (not in FlashInfer): a number, or a tensor of one element on their device, each.
        The rest as of append_paged_kv_cache.

    Raises:
        flashcore.Error: as append_paged_kv_cache.
    """
    parts = []
    for part in (_Part("append_ckv", append_ckv, "ckv_cache", ckv_cache, "ckv_scale", ckv_scale),
                 _Part("append_kpe", append_kpe, "kpe_cache", kpe_cache, "kpe_scale", kpe_scale)):  # fmt: skip
        for name, x, axes, shape in ((part.name, part.new, 2, "[nnz, dim]"), (part.cache_name, part.cache, 3, "[pages, page_size, dim]")):
            if not isinstance(x, Tensor) or x.dim() != axes:
                what = f"has shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"is a {type(x).__name__}"
                raise _options.Error(f"{name} {what}; give {shape}")
        parts.append(part._replace(new=part.new.unsqueeze(1), cache=part.cache.unsqueeze(2)))
    _append_rows(*parts, batch_indices, positions, kv_indices, kv_indptr)


class _Part(NamedTuple):
    """The rows of K or of V: [nnz, heads, dim] to [pages, page_size, heads, dim]; and what messages call them."""

    name: str
    new: Tensor
    cache_name: str
    cache: Tensor
    scale_name: str
    scale: Any


def _append_rows(k: _Part, v: _Part, batch_indices: Tensor, positions: Tensor, kv_indices: Tensor, kv_indptr: Tensor) -> None:
    whose, at, indices, starts = (_tables.int32(x, name) for x, name in (
        (batch_indices, "batch_indices"), (positions, "positions"), (kv_indices, "kv_indices"), (kv_indptr, "kv_indptr")))  # fmt: skip
    count = whose.shape[0]
    for name, new, cache_name, cache, *_ in (k, v):
        if not isinstance(new, Tensor):
            raise _options.Error(f"{name} is a {type(new).__name__}; give a tensor [nnz, heads, dim]")
        if new.shape != (count, *cache.shape[2:]) or at.shape != (count,):
            raise _options.Error(f"{name} has shape {tuple(new.shape)}, batch_indices {tuple(batch_indices.shape)} and positions {tuple(positions.shape)}; give "
                                 f"[nnz, heads, dim] = ({count}, {cache.shape[2]}, {cache.shape[3]}) and [nnz]")  # fmt: skip
        if any(stride == 0 and size > 1 for stride, size in zip(cache.stride(), cache.shape)):
            raise _options.Error(f"{cache_name} has strides {cache.stride()}: its pages share memory, and new keys would overwrite another's; give a cache "
                                 "of its own memory (.clone())")  # fmt: skip
    quantises = [_quantises(part, (k.scale_name, v.scale_name)) for part in (k, v)]
    by: list[Any] = [None, None]
    if all(quantises):
        by = _options.descales(starts.shape[0] - 1, k.cache.device, *((part.scale_name, part.scale, part.cache.shape[2]) for part in (k, v)))
    rows = [_torch_cache._adjacent(part.new.detach()) for part in (k, v)]
    _append.append_rows(*rows, k.cache.detach(), v.cache.detach(), *(x.contiguous() for x in (whose, at, indices, starts)), descale_k=by[0], descale_v=by[1])


def _quantises(part: _Part, scale_names: tuple[str, str]) -> bool:
    """Error for rows that would be written as something else than they are."""
    name, new, cache_name, cache, scale_name, scale = part
    if new.dtype == cache.dtype:
        if scale is not None:
            raise _options.Error(f"{scale_name} is given, {name} is {new.dtype} and so is {cache_name}; leave it out: such rows are copied as they are")
        return False
    if cache.dtype not in _options.CACHES or new.dtype.itemsize == 1:
        raise _options.Error(f"{name} is {new.dtype} and {cache_name} {cache.dtype}; give rows of the cache's type, or of 16 bits beside a cache of 8")
    if scale is None:
        raise _options.Error(f"{name} is {new.dtype}, {cache_name} is {cache.dtype} and {scale_name} is not given; give {' and '.join(scale_names)}, 1.0 for "
                             "values as they are, or rows of the cache's type")  # fmt: skip
    return True
