"""flash_attn_with_kvcache: FlashAttention's caches, in pages or dense, and new tokens written to them."""

from __future__ import annotations

import functools
from typing import Any, Optional, Union

import torch
from torch import Tensor

from . import _append as _append_module
from . import _columns, _library, _paged, _plan, _torch_launch, _varlen


def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Optional[Tensor] = None, v: Optional[Tensor] = None,
                            rotary_cos: Optional[Tensor] = None, rotary_sin: Optional[Tensor] = None,
                            cache_seqlens: Optional[Union[int, Tensor]] = None, cache_batch_idx: Optional[Tensor] = None,
                            cache_leftpad: Optional[Tensor] = None, block_table: Optional[Tensor] = None, softmax_scale: Optional[float] = None,
                            causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, rotary_interleaved: bool = True,
                            alibi_slopes: Optional[Tensor] = None, num_splits: int = 0, return_softmax_lse: bool = False, *,
                            page_table: Optional[Tensor] = None, cu_seqlens_q: Optional[Tensor] = None, max_seqlen_q: Optional[int] = None,
                            cu_seqlens_k_new: Optional[Tensor] = None, sink: Optional[Tensor] = None, q_descale: Optional[Tensor] = None, k_descale: Optional[Tensor] = None,
                            v_descale: Optional[Tensor] = None, qv: Optional[Tensor] = None) -> Union[Tensor, tuple[Tensor, Tensor]]:  # fmt: skip
    """flash_attn.flash_attn_with_kvcache: the rows of q over a cache, to which new tokens are appended first. Nothing is read on the host, so a
    captured call serves a cache that grows.

    Args:
        q: [batch, rows, heads, dim]; with cu_seqlens_q [rows of all sequences, heads, dim].
        k_cache, v_cache: [pages, page_size, heads_kv, dim] with a block_table, pages of 1 to 65536 keys; without one
            [batch, length, heads_kv, dim].
        k, v: [batch, new, heads_kv, dim], of the caches' type, or of q's beside quantised caches: written to the caches from cache_seqlens on, before q reads them.
            flashcore.append writes them, by a step of its own. What would lie outside of the cache is not written, and its sequence gets NaN. No
            two sequences may append to one page.
        rotary_cos, rotary_sin: [positions, rotary_dim / 2], with k and v: k is turned by the angles of its positions on the way, and q as the
            new keys are; without causal or a window all rows of q by that of cache_seqlens. A row without an angle gets NaN. Of 16 or 32 bits,
            or in the type of q and k of float8: PyTorch turns those, in float32, and rounds them again.
        cache_seqlens: int32 [batch], or a number: keys of each sequence before the new ones. Default: all that the cache has room for;
            needed with k and v.
        cache_batch_idx: int32 [batch]: the entry of a dense cache, or the row of block_table, that each sequence has.
        cache_leftpad: int32 [batch]: the first key of each sequence, before which the cache holds padding that no row sees. Lengths, pages and
            rotary angles count from the cache's beginning all the same. A mask function says it ("j >= leftpad[b]"), so the padding is read, and its V
            has to hold finite numbers. With caches in pages, too (not in FlashAttention).
        block_table, page_table: int32 [batch, max_pages], FlashAttention 2's and 3's name; with cache_batch_idx [entries, max_pages].
        softmax_scale, causal, window_size, softcap, alibi_slopes: as of flash_attn_func.
        rotary_interleaved: True: the elements 2 c and 2 c + 1 share an angle; False: c and c + rotary_dim / 2.
        num_splits: ignored.
        return_softmax_lse: also return the log-sum-exp.
        cu_seqlens_q, max_seqlen_q: int32 [batch + 1] and a bound, for sequences with different numbers of rows (FlashAttention 3's).
        cu_seqlens_k_new: int32 [batch + 1]: k and v are [new rows of all sequences, heads_kv, dim] (FlashAttention 3's).
        sink: [heads], logits that join each row's sum (not in FlashAttention).
        q_descale, k_descale, v_descale: float32 [batch, heads_kv], FlashAttention 3's, or numbers: what q and caches of 8 bits are multiplied
            with. Beside q of 16 bits caches of float8_e4m3fn, float8_e5m2 or int8 are quantised ones: k_descale and v_descale (not in
            FlashAttention), which may also be of each key, [pages, heads_kv, page_size] or [batch, heads_kv, length].
        qv: [batch, rows, heads, dim of v], or as q with cu_seqlens_q (FlashAttention 3's): scores are scale * (q kᵀ + qv vᵀ), as of
            multi-head latent attention, whose value is a part of the key; the default of softmax_scale is 1/sqrt(dim + dim of v) then. The caches
            are columns of one tensor, v_cache its first ones and k_cache the others: cache[..., :512] and cache[..., 512:] of
            [pages, page_size, heads_kv, 576], not of 8 bits. Rotary angles turn q and k alone.

    Returns:
        The output with the axes of q, or (output, softmax_lse) with float32 [batch, heads, rows], or [heads, rows of all sequences].
        There is no gradient.

    Raises:
        flashcore.Error: for what is None only, and for tensors that do not fit together.
    """
    if (rotary_cos is None) != (rotary_sin is None):
        raise _library.Error(f"rotary_{'sin' if rotary_cos is None else 'cos'} is given alone; give both, or neither")
    if rotary_cos is not None and k is None:
        raise _library.Error("rotary_cos is given and k is not; give the new keys and values too, or turn q by yourself")
    if page_table is not None:
        if block_table is not None:
            raise _library.Error("block_table and page_table are both given; they are one thing: leave one out")
        block_table = page_table
    if (k is None) != (v is None):
        raise _library.Error(f"{'k' if v is None else 'v'} is given alone; give new tokens' k and v, or neither")
    if k is not None and cache_seqlens is None:
        raise _library.Error("k and v are given and cache_seqlens is not; say how many keys each sequence has before the new ones")
    if k is None and cu_seqlens_k_new is not None:
        raise _library.Error("cu_seqlens_k_new is given and k is not; give the new keys and values too, or leave it out")
    _check(q, k_cache, v_cache, softcap, window_size)
    if qv is not None:
        _columns.check_second_query(q, k_cache, v_cache, qv)
        softmax_scale = (q.shape[-1] + v_cache.shape[-1]) ** -0.5 if softmax_scale is None else softmax_scale
    q_descale, k_descale, v_descale = _descales(q, k_cache, q_descale, k_descale, v_descale)
    with torch.no_grad():
        q, k_cache, v_cache = (x.detach() for x in (q, k_cache, v_cache))
        batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
        # Factors of each key are those of pages: an entry of the cache is one.
        by_key = isinstance(k_descale, Tensor) and k_descale.dim() == 3
        dense = block_table is None and cache_batch_idx is None and not by_key
        _require_integers("block_table", block_table, 2, torch.int32)
        _require_integers("cache_batch_idx", cache_batch_idx, 1, torch.int32, torch.int64)
        _require_integers("cache_leftpad", cache_leftpad, 1, torch.int32)
        if cache_leftpad is not None and cache_leftpad.shape != (batch,):
            raise _library.Error(f"cache_leftpad has shape {tuple(cache_leftpad.shape)}; give the first key of each sequence, [batch] = ({batch},)")
        if block_table is None:
            block_table = _table_of_dense(k_cache, cache_batch_idx, batch)
        elif cache_batch_idx is not None:
            block_table = _rows_of(block_table, cache_batch_idx, batch)
        room = block_table.shape[1] * k_cache.shape[1]
        used = _lengths(cache_seqlens, batch, room, q)
        options = _options(softmax_scale, causal, window_size, softcap, alibi_slopes, sink)
        call = functools.partial(_call, k_cache=k_cache, v_cache=v_cache, table=block_table, cu_q=cu_seqlens_q, max_q=max_seqlen_q, dense=dense,
                                 with_lse=return_softmax_lse, leftpad=cache_leftpad, qv=None if qv is None else qv.detach(), descale_q=q_descale, descale_k=k_descale, descale_v=v_descale, **options)  # fmt: skip
        if k is not None and v is not None:
            rotary = None if rotary_cos is None or rotary_sin is None else (rotary_cos.detach(), rotary_sin.detach(), rotary_interleaved)
            at_length = not causal and _plan.window_sides(window_size) == (-1, -1)
            _rehearse(call, q, used)
            q, used = _append(q, k_cache, v_cache, k.detach(), v.detach(), block_table, used, rotary, at_length, k_descale, v_descale,
                              cu_seqlens_q, cu_seqlens_k_new)  # fmt: skip
        return call(q, used)


_rehearsed: dict[Any, None] = {}


def _rehearse(call: functools.partial[Any], q: Tensor, used: Tensor) -> None:
    """Before anything is appended: a call that is refused leaves the caches as they are. On a GPU nothing is read that could make one of another
    step refused, and a step like one before is not tried again; on a CPU factors are read."""
    looks = tuple((x.dtype, x.shape, x.stride(), x.device) if isinstance(x, Tensor) else repr(x) for x in (q, used, *call.keywords.values()))
    if looks in _rehearsed and q.device.type != "cpu":
        return
    with _varlen.rehearsal():
        call(q, used)
    if len(_rehearsed) >= 256:
        _rehearsed.clear()
    _rehearsed[looks] = None


def _descales(q: Tensor, k_cache: Tensor, *given: Any) -> tuple[Any, Any, Any]:
    """Contiguous ones. What is missing or too many is told before anything is appended."""
    names = ("q_descale", "k_descale", "v_descale")
    needed = () if k_cache.dtype.itemsize > 1 else names if q.dtype.itemsize == 1 else names[1:]
    there = [name for name, x in zip(names, given) if x is not None]
    for name in there:
        if name not in needed:
            raise _library.Error(f"{name} is given, q is {q.dtype} and k_cache {k_cache.dtype}; leave it out: only tensors of 8 bits have factors")
    if there and len(there) < len(needed):
        missing = next(name for name in needed if name not in there)
        raise _library.Error(f"{there[0]} is given and {missing} is not; give {'all three' if len(needed) == 3 else 'both'}, or none")
    for name, x in zip(names, given):
        # Of each key: appending writes them, and a copy would keep them from the caller.
        if isinstance(x, Tensor) and x.dim() == 3 and not x.is_contiguous() and q.dtype.itemsize > 1:
            raise _library.Error(f"{name} has a factor for each key and is not contiguous; give a contiguous tensor: new factors are written to it")
    q_by, k_by, v_by = (x.detach().contiguous() if isinstance(x, Tensor) else x for x in given)
    return q_by, k_by, v_by


def _check(q: Tensor, k_cache: Tensor, v_cache: Tensor, softcap: float, window_size: Any) -> None:
    """What would otherwise be told in the words of paged_attention."""
    for name, x in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        if not isinstance(x, Tensor):
            raise _library.Error(f"{name} is a {type(x).__name__}; flashcore.flash_attn takes PyTorch tensors (flashcore.paged_attention takes NumPy's)")
        quantised = isinstance(k_cache, Tensor) and k_cache.dtype.itemsize == 1 < q.dtype.itemsize
        if name != "q" and x.dtype != (k_cache.dtype if quantised else q.dtype):
            raise _library.Error(f"{name} is {x.dtype} and q {q.dtype}; give one type, or caches of 8 bits beside q of 16")
        if name != "q" and x.dim() != 4:
            raise _library.Error(f"{name} has shape {tuple(x.shape)}; give [pages, page_size, heads_kv, dim], or [batch, length, heads_kv, dim] without a "
                                 "block_table")  # fmt: skip
    if softcap < 0:
        raise _library.Error(f"softcap is {softcap}; give a positive number, or 0 for none")
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise _library.Error(f"window_size is {window_size!r}; give (left, right), -1 for no bound")


def _require_integers(name: str, x: Optional[Tensor], axes: int, *dtypes: torch.dtype) -> None:
    """Before anything is appended: a call that is refused leaves the caches as they are."""
    if x is not None and (not isinstance(x, Tensor) or x.dim() != axes or x.dtype not in dtypes):
        what = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise _library.Error(f"{name} is {what}; give int32 {'[batch, max_pages]' if axes == 2 else '[batch]'}")


def _options(scale: Optional[float], causal: bool, window_size: tuple[int, int], softcap: float, slopes: Optional[Tensor],
             sink: Optional[Tensor]) -> dict[str, Any]:  # fmt: skip
    left, right = _plan.window_sides(window_size)
    if causal:
        right = 0
    slopes, logits = (None if x is None else x.detach().float().contiguous() for x in (slopes, sink))
    return dict(window=None if left < 0 and right < 0 else (left, right), scale=scale, softcap=None if softcap == 0.0 else softcap, alibi=slopes, sink=logits)


def _table_of_dense(cache: Tensor, batch_idx: Optional[Tensor], batch: int) -> Tensor:
    """Of a dense cache each entry is a page."""
    if cache.dim() != 4 or (batch_idx is None and cache.shape[0] != batch):
        raise _library.Error(f"k_cache has shape {tuple(cache.shape)} and q has {batch} sequences; give [batch, length, heads_kv, dim], or a block_table")
    if batch_idx is None:
        return torch.arange(batch, dtype=torch.int32, device=cache.device)[:, None]
    if batch_idx.shape != (batch,):
        raise _library.Error(f"cache_batch_idx has shape {tuple(batch_idx.shape)}; give the cache's entry of each sequence, [batch] = ({batch},)")
    return int32(batch_idx)[:, None].contiguous()


def _rows_of(table: Tensor, batch_idx: Tensor, batch: int) -> Tensor:
    """A number that is no row of the table gets pages that no cache has, never another row's."""
    if batch_idx.shape != (batch,):
        raise _library.Error(f"cache_batch_idx has shape {tuple(batch_idx.shape)}; give the row of block_table of each sequence, [batch] = ({batch},)")
    if table.shape[0] == 0 < batch:
        raise _library.Error(f"block_table has shape {tuple(table.shape)}; give [entries, max_pages], of which cache_batch_idx chooses rows")
    chosen = batch_idx.long()
    is_row = (chosen >= 0) & (chosen < table.shape[0])
    return torch.where(is_row[:, None], table[torch.where(is_row, chosen, 0)], -1)


def int32(x: Tensor) -> Tensor:
    """A number that 32 bits do not hold becomes the largest or smallest one, which is no page: a cast would make another's of it."""
    limits = torch.iinfo(torch.int32)
    return x if x.dtype == torch.int32 else x.clamp(limits.min, limits.max).int()


def _lengths(given: Optional[Union[int, Tensor]], batch: int, room: int, q: Tensor) -> Tensor:
    if isinstance(given, Tensor):
        if given.dtype != torch.int32 or given.shape != (batch,):
            raise _library.Error(f"cache_seqlens is {given.dtype} of shape {tuple(given.shape)}; give int32 [batch] = ({batch},)")
        return given
    if given is not None and (isinstance(given, bool) or not isinstance(given, int)):
        raise _library.Error(f"cache_seqlens is a {type(given).__name__}; give an int32 tensor [batch], or a number")
    if given is not None and not 0 <= given < 2**31:
        raise _library.Error(f"cache_seqlens is {given}; give the keys of each sequence, 0 to {2**31 - 1}")
    return torch.full((batch,), room if given is None else given, dtype=torch.int32, device=q.device)


def _adjacent(x: Tensor) -> Tensor:
    return x if x.shape[-1] <= 1 or x.stride(-1) == 1 else x.contiguous()


def _append(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, table: Optional[Tensor], used: Tensor,
            rotary: Optional[tuple[Tensor, Tensor, bool]], q_at_length: bool, k_descale: Optional[Tensor],
            v_descale: Optional[Tensor], cu_q: Optional[Tensor], cu_new: Optional[Tensor]) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(q, the new lengths), once new keys are written behind the old ones by flashcore.append."""
    batch = used.shape[0]
    axes = 4 if cu_new is None else 3
    suits = k.dim() == v.dim() == axes and k.shape[-2:] == k_cache.shape[2:] and v.shape[:-1] == k.shape[:-1] and v.shape[-1] == v_cache.shape[3]
    if not suits or (cu_new is None and k.shape[0] != batch):
        asked = "[batch, new, heads_kv, dim]" if cu_new is None else "[new rows of all sequences, heads_kv, dim]"
        raise _library.Error(f"k and v have shapes {tuple(k.shape)} and {tuple(v.shape)}; give {asked} that suit the caches")
    quantises = k.dtype == v.dtype == q.dtype and q.dtype != k_cache.dtype
    if not quantises and (k.dtype != k_cache.dtype or v.dtype != v_cache.dtype):
        raise _library.Error(f"k and v are {k.dtype} and {v.dtype}, the caches {k_cache.dtype} and {v_cache.dtype}; give one type, or beside caches of 8 "
                             "bits q's")  # fmt: skip
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if any(stride == 0 and size > 1 for stride, size in zip(cache.stride(), cache.shape)):
            raise _library.Error(f"{name} has strides {cache.stride()}: its entries share memory, and one's new tokens would overwrite another's; "
                                 "give a cache of its own memory (.clone())")  # fmt: skip
    if rotary is not None:
        rotary = (*(x.float() if x.dtype.itemsize == 1 else x for x in rotary[:2]), rotary[2])
    if rotary is not None and k.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        q, k, used = _turned_by_torch(q, k, used, *rotary, q_at_length, cu_q, cu_new)
        rotary = None
    cos, sin, interleaved = rotary or (None, None, False)
    lengths = torch.empty_like(used)
    turned = _append_module.append(_adjacent(k), _adjacent(v), k_cache, v_cache, used.contiguous(), block_table=table,
                                   cu_seqlens_new=cu_new, cu_seqlens_q=cu_q if rotary else None, rotary_cos=cos, rotary_sin=sin,
                                   rotary_interleaved=interleaved, q=_adjacent(q) if rotary else None, q_at_length=q_at_length,
                                   new_seqlens=lengths, descale_k=k_descale if quantises else None,
                                   descale_v=v_descale if quantises else None)  # fmt: skip
    return q if turned is None else turned, lengths


def _turned_by_torch(q: Tensor, k: Tensor, used: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, q_at_length: bool, cu_q: Optional[Tensor],
                     cu_new: Optional[Tensor]) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(q, k, used) of 8-bit rows, which flashcore.append does not turn. A sequence whose new keys lack an angle has -1 keys before them: nothing
    of it is written, and it gets NaN. Nothing is read on the host."""
    if cos.dim() != 2 or cos.shape != sin.shape or not 1 <= cos.shape[1] <= k.shape[-1] // 2 or q.dim() != (4 if cu_q is None else 3) or q.shape[-1] != k.shape[-1]:
        raise _library.Error(f"rotary_cos has shape {tuple(cos.shape)}, rotary_sin {tuple(sin.shape)}, q {tuple(q.shape)} and k {tuple(k.shape)}; give cos and "
                             "sin [positions, rotary_dim / 2] alike, and q and k of one head_dim")  # fmt: skip
    new: Any = k.shape[1] if cu_new is None else cu_new[1:].long() - cu_new[:-1]
    k = _turned(k, cos, sin, interleaved, _positions(k, used, cu_new, False))
    q = _turned(q, cos, sin, interleaved, _positions(q, used, cu_q, q_at_length))
    return q, k, torch.where(used.long() + new > cos.shape[0], -1, used)


def _positions(x: Tensor, used: Tensor, cu: Optional[Tensor], at_length: bool) -> Tensor:
    """The key number that each row of x is turned as, int64: [batch, rows], or with boundaries [rows of all sequences]."""
    starts = used.long()
    if cu is None:
        return starts[:, None] + torch.arange(x.shape[1], device=x.device) * (not at_length)
    rows = torch.arange(x.shape[0], dtype=cu.dtype, device=x.device)
    sequence = (torch.searchsorted(cu, rows, right=True) - 1).clamp(0, used.shape[0] - 1)
    return starts[sequence] + (rows - cu[sequence]) * (not at_length)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, positions: Tensor) -> Tensor:
    """x by the angles of its rows' positions, rounded to its type; it saturates. A row without an angle becomes NaN."""
    columns = cos.shape[1]
    has_angle = (positions >= 0) & (positions < cos.shape[0])
    c, s = (torch.cat((angles.float(), angles.new_full((1, columns), torch.nan, dtype=torch.float32)))[torch.where(has_angle, positions, -1)].unsqueeze(-2)
            for angles in (cos, sin))  # fmt: skip
    wide, rest = x[..., : 2 * columns].float(), x[..., 2 * columns :].float()
    a, b = (wide[..., 0::2], wide[..., 1::2]) if interleaved else (wide[..., :columns], wide[..., columns:])
    parts = a * c - b * s, b * c + a * s
    turned = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    most = torch.finfo(x.dtype).max
    return torch.cat((turned.clamp(-most, most), rest), -1).to(x.dtype)


def _call(q: Tensor, used: Tensor, *, k_cache: Tensor, v_cache: Tensor, table: Tensor, cu_q: Optional[Tensor], max_q: Optional[int], dense: bool,
          with_lse: bool, leftpad: Optional[Tensor], qv: Optional[Tensor], **options: Any) -> Any:  # fmt: skip
    """What flash_attn_with_kvcache returns, or None in a rehearsal."""
    if leftpad is not None:
        options.update(mask="j >= leftpad[b]", tensors={"leftpad": leftpad.contiguous()})
    if qv is not None:
        q, k_cache = torch.cat((qv, q), -1), _columns.latent_cache(k_cache, v_cache)
    q = q if q.stride(-1) == 1 else q.contiguous()
    if cu_q is None:
        if q.dim() != 4:
            raise _library.Error(f"q has shape {tuple(q.shape)}; give [batch, rows, heads, dim], or cu_seqlens_q")
        batch, rows, heads = q.shape[:3]
        packed, bound = q.reshape(batch * rows, heads, q.shape[3]), rows
        cu_q = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * rows
    else:
        if max_q is None:
            raise _library.Error("cu_seqlens_q is given and max_seqlen_q is not; give the longest that a sequence's rows may be")
        batch, packed, bound = cu_q.shape[0] - 1, q, max_q
    length = k_cache.shape[1]
    if dense and all(x.stride(0) == length * x.stride(1) or x.shape[0] == 1 for x in (k_cache, v_cache)):
        # One entry after another: a ragged batch with room to spare, which faster kernels read.
        cu_kv = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * length
        made = _varlen.varlen_attention(packed, k_cache.flatten(0, 1), v_cache.flatten(0, 1), cu_q, cu_kv, bound, length, seqused_kv=used,
                                        return_lse=with_lse, **options)  # fmt: skip
    else:
        made = _paged.paged_attention(packed, k_cache, v_cache, table, used, cu_seqlens_q=cu_q, max_seqlen_q=bound, return_lse=with_lse, **options)
    if made is None:
        return None
    _torch_launch.computed.add()
    if q.dim() == 3:
        return made
    out, lse = made if with_lse else (made, None)
    out = out.view(batch, rows, heads, out.shape[2])
    return out if lse is None else (out, lse.view(heads, batch, rows).transpose(0, 1))
