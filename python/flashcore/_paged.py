"""flashcore.paged_attention and flashcore.decode: caches in pages that a block table names, as serving engines keep them."""

from __future__ import annotations

import collections
import operator
import sys
from typing import Any

from . import _arrays, _block_mask, _factors, _functions, _library, _plan, _scores, _varlen
from ._arrays import View
from ._block_mask import BlockMask
from ._functions import Functions
from ._library import GIVEN_KV_DTYPE, GIVEN_O_DTYPE, GIVEN_SCALE, GIVEN_SOFTCAP, GIVEN_STRIDES, GIVEN_TENSOR_STRIDES, GIVEN_WINDOW, Attention, Error, Strides
from ._plan import Plan

_LAYOUTS = {"NHD": (1, 2), "HND": (2, 1)}  # where the keys of a page and the heads stand
_MOST_KEYS = 2**31 - 1


class _Sizes:
    """The sizes of one call, checked against each other."""

    def __init__(self, q: View, k: View, v: View, table: View, batch: int, layout: Any) -> None:
        if not isinstance(layout, str) or layout not in _LAYOUTS:
            raise Error(f"layout is {layout!r}; use 'NHD' ([pages, page_size, heads_kv, head_dim]) or 'HND' ([pages, heads_kv, page_size, head_dim])")
        self.row_axis, self.head_axis = _LAYOUTS[layout]
        if len(q.shape) != 3:
            raise Error(f"q has shape {q.shape}; give three axes, [rows of all sequences, heads, head_dim]")
        for role, x in (("k_cache", k), ("v_cache", v)):
            if len(x.shape) != 4:
                raise Error(f"{role} has shape {x.shape}; give four axes, [pages, page_size, heads_kv, head_dim] or those of layout='HND'")
        _factors.require_types(q, ("k_cache", k), ("v_cache", v))
        self.total_q, self.heads_q, self.head_dim = q.shape
        self.pages, self.page_size, self.heads_kv = k.shape[0], k.shape[self.row_axis], k.shape[self.head_axis]
        self.head_dim_v = v.shape[3]
        if v.shape[:3] != k.shape[:3]:
            raise Error(f"k_cache has shape {k.shape} and v_cache {v.shape}; pages, page size and heads must agree")
        if k.shape[3] != self.head_dim:
            raise Error(f"q has head_dim {self.head_dim} and k_cache has {k.shape[3]}; both must agree")
        if not 1 <= self.page_size <= 65536:
            raise Error(f"k_cache has pages of {self.page_size} keys; give pages of 1 to 65536")
        self.batch = batch
        if len(table.shape) != 2 or table.shape[0] != batch:
            raise Error(f"block_table has shape {table.shape}; give [batch, max_pages] with batch = {batch}")
        self.max_pages = table.shape[1]
        if self.max_pages > 1 and table.strides[1] != 1:
            raise Error(f"block_table has stride {table.strides[1]} along its last axis; the entries of a row must be adjacent: copy it")
        self.table_stride = table.strides[0] if batch > 1 else max(self.max_pages, 1)
        if self.table_stride < self.max_pages:
            raise Error(f"block_table has stride {self.table_stride} and {self.max_pages} columns; its rows must not overlap: copy it")

    @property
    def shape_of_keys(self) -> tuple[int, int, int]:
        return (self.pages, self.heads_kv, self.page_size)

    def output_shape(self) -> tuple[int, int, int]:
        return (self.total_q, self.heads_q, self.head_dim_v)

    def cache_strides(self, role: str, x: View) -> Strides:
        _arrays.require_adjacent(role, x)
        return Strides(x.strides[0], x.strides[self.head_axis], x.strides[self.row_axis])


def _table(x: Any, q: View, stream: int | None) -> View:
    found = _arrays.view(x, "block_table", stream)
    if found.device != q.device:
        raise Error(f"block_table is on {found.device} and q on {q.device}; move one")
    return found


def paged_attention(q: Any, k_cache: Any, v_cache: Any, block_table: Any, seqused_kv: Any, *, cu_seqlens_q: Any, max_seqlen_q: int,
                    max_seqlen_kv: int | None = None, layout: str = "NHD", causal: Any = False, window: Any = None,
                    window_alignment: str | None = None, scale: float | None = None, softcap: float | None = None, alibi: Any = None,
                    sink: Any = None, seqused_q: Any = None, out: Any = None, return_lse: bool = False, stream: int | None = None,
                    candidate: str | None = None, descale_q: Any = None, descale_k: Any = None, descale_v: Any = None, score: str | None = None,
                    mask: Any = None, tensors: Any = None, bias: Any = None, prefix: Any = None, deterministic_batch: bool = False, kv_dtype: str | None = None,
                    return_amax: bool = False, intervals: Any = None, check_lengths: bool = False, block_mask: BlockMask | None = None) -> Any:  # fmt: skip
    """Attention of each sequence of a batch over its keys in a paged cache: decoding, chunks of a prompt, or whole prompts.

    Lengths and pages are read on the device when the work runs, never on the host: a call captured into a CUDA graph serves a growing
    cache and any mix of lengths up to the bounds.

    Args:
        q: [total_q, heads, head_dim]: the rows of all sequences, one sequence after another. Arrays, dtypes and devices as of `attention`.
        k_cache: of q's type or, beside q of 16 or 32 bits, a quantised cache of float8_e4m3fn, float8_e5m2, int8 or int4.
            [pages, page_size, heads_kv, head_dim], or [pages, heads_kv, page_size, head_dim] with layout="HND". Any strides, so that
            K and V may be parts of one array, as long as the elements of a row are adjacent. Pages of 1 to 65536 keys.
        v_cache: the same with head_dim_v columns.
        block_table: int32 [batch, max_pages] on the device of q: entry p of row s is the page that holds the keys from p · page_size on
            of sequence s. Entries behind a sequence's last page are not read. Sequences may share pages.
        seqused_kv: int32 [batch]: how many keys each sequence has.
        cu_seqlens_q: int32 [batch + 1]: sequence s has the rows cu_seqlens_q[s] to cu_seqlens_q[s + 1] - 1.
        max_seqlen_q: upper bound of a sequence's rows. A tighter one runs faster.
        max_seqlen_kv: upper bound of its keys. Default: what a row of the table has room for.
        layout: "NHD" or "HND", of both caches.
        causal, window, window_alignment: as of `attention`, by each sequence's own lengths: the last row's own key is its last one.
        scale, softcap: as of `attention`.
        alibi: slopes, float32 [heads] or [batch, heads]; the distance is |i + length_kv - length_q - j| of the sequence.
        sink: float32 [heads], as of `attention`.
        seqused_q: int32 [batch]: how many rows of each sequence count. Default: all.
        out: where to write, [total_q, heads, head_dim_v]. Default: a new array.
        return_lse: also return the log-sum-exp of each row, float32 [heads, total_q].
        stream, candidate: as of `attention`.
        descale_q, descale_k, descale_v: of 8-bit q and caches: one each, or [batch, heads_kv] by sequence. Of a quantised cache,
            8-bit pages beside q of 16 or 32 bits, descale_k and descale_v, of which each key may have its own: float32
            [pages, heads_kv, page_size], whatever the layout. `append` finds and writes them.
        score, mask, tensors, bias, prefix, intervals: as of `varlen_attention`.
        deterministic_batch: as of `varlen_attention`; bits do not depend on the size and order of pages either.
        kv_dtype: as of `attention`: "int4" for caches of uint8 [..., head_dim / 2] with two elements a byte.
        return_amax: as of `attention`.
        check_lengths: as of `varlen_attention`, of the pages in the table too.
        block_mask: as of `varlen_attention`. Pages may be others, but a cache that grows has other lengths at each step.

    Returns:
        The output, or a tuple of it, lse and amax, of which there is what was asked for. A row that sees no key gets output 0 and lse -inf,
        or its sink. A sequence with more keys than the bound or its row of the table allows, or fewer than none, gets NaN in its rows; so
        does each row that sees a key on a page that the cache does not have. `check_lengths` says which sequence it is.

    Raises:
        Error: as `varlen_attention`, and for a cache or a block table that does not fit.
    """
    stream = _plan._stream_number(stream)
    vq = _arrays.view(q, "q", stream)
    vk, vv = _arrays.cache_view(k_cache, "k_cache", stream, kv_dtype), _arrays.cache_view(v_cache, "v_cache", stream, kv_dtype)
    table = _table(block_table, vq, stream)
    used = _varlen._int32s(seqused_kv, "seqused_kv", vq, stream)
    cu_q = _varlen._int32s(cu_seqlens_q, "cu_seqlens_q", vq, stream)
    used_q = None if seqused_q is None else _varlen._int32s(seqused_q, "seqused_q", vq, stream)
    batch = cu_q.shape[0] - 1
    if batch >= 1 and used_q is not None and used_q.shape != (batch,):
        raise Error(f"seqused_q has shape {used_q.shape} and cu_seqlens_q {cu_q.shape}; give how many rows of each sequence count, [batch] = ({batch},)")
    if batch < 1 or used.shape != (batch,):
        raise Error(f"cu_seqlens_q has shape {cu_q.shape} and seqused_kv has {used.shape}; give the boundaries of each sequence's rows, [batch + 1], "
                    "and how many keys it has, [batch]")  # fmt: skip
    sizes = _Sizes(vq, vk, vv, table, batch, layout)
    room = min(sizes.max_pages * sizes.page_size, _MOST_KEYS)
    bounds = (_varlen._bound(max_seqlen_q, "max_seqlen_q"), room if max_seqlen_kv is None else _varlen._bound(max_seqlen_kv, "max_seqlen_kv"))
    sizes.seqlen_q, sizes.seqlen_kv = bounds
    given = _functions.read(vq, score, mask, tensors, bias, prefix, None, causal, lambda: sizes, stream, intervals,
                            packed=_functions.Packed(cu_q, cu_q, sizes.total_q, max(sizes.seqlen_kv, 1)))  # fmt: skip
    return _varlen.launch_packed(
        sizes, (vq, vk, vv), out, (descale_q, descale_k, descale_v), (softcap, alibi, sink), given,
        lambda all_views, scaling, scores: _plan_of(sizes, all_views, causal, window, window_alignment, scale, candidate, scaling, scores,
                                                    given.functions, deterministic_batch),
        return_lse, stream, return_amax, check_lengths, _block_mask.require(block_mask), cu_seqlens_q=cu_q.address, seqused_kv=used.address, seqused_q=used_q.address if used_q else 0,
        block_table=table.address)  # fmt: skip


def _plan_of(sizes: _Sizes, views: tuple[View, View, View, View], causal: Any, window: Any, window_alignment: Any, scale: Any, candidate: Any,
             scaling: int, scores: _scores.Scores, functions: Functions, deterministic_batch: bool = False) -> Plan:  # fmt: skip
    alignment = _plan._alignment(*views)
    causal, window, scale = _plan._causal_number(causal), _plan.window_sides(window), _plan._scale_number(scale)
    window_alignment = _plan._alignment_number(window_alignment, causal, window)
    name = _library.encoded(candidate, "candidate") if candidate is not None else None
    layouts = tuple((x.device, x.dtype, x.shape, x.strides) for x in views)
    key = ("paged", sizes.batch, sizes.row_axis, sizes.max_pages, sizes.table_stride, sizes.seqlen_q, sizes.seqlen_kv, layouts, causal, window, window_alignment, scale,
           alignment, name, scaling, scores, functions, bool(deterministic_batch))  # fmt: skip

    def make() -> Plan:
        q, k, v, o = views
        allowed = _factors.OUTPUTS if q.dtype in _factors.DTYPES else (q.dtype,)
        if o.shape != sizes.output_shape() or o.dtype not in allowed or o.device != q.device:
            raise Error(f"out is {o.dtype} {o.shape} on {o.device}; it must be {' or '.join(allowed)} {sizes.output_shape()} on {q.device}")
        problem = Attention(
            dtype=_plan.DTYPES[q.dtype], kv_dtype=_plan.DTYPES[k.dtype], batch=sizes.batch, heads_q=sizes.heads_q, heads_kv=sizes.heads_kv, seqlen_q=sizes.seqlen_q, seqlen_kv=sizes.seqlen_kv,
            head_dim=sizes.head_dim, head_dim_v=sizes.head_dim_v, causal=causal, alignment=alignment, scale=0.0 if scale is None else scale,
            q=_varlen._strides("q", q), k=sizes.cache_strides("k_cache", k), v=sizes.cache_strides("v_cache", v), o=_varlen._strides("out", o),
            candidate=name or None, window_left=window[0], window_right=window[1], window_alignment=window_alignment,
            o_dtype=_plan.DTYPES[o.dtype], scaling=scaling, softcap=scores.softcap or 0.0, alibi=scores.alibi, sink=scores.sink,
            amax=scores.amax, lengths=_varlen._RAGGED, deterministic_batch=int(bool(deterministic_batch)), total_q=sizes.total_q, page_size=sizes.page_size, pages=sizes.pages, max_pages=sizes.max_pages,
            table_stride=sizes.table_stride,
            given=GIVEN_STRIDES | GIVEN_WINDOW | GIVEN_O_DTYPE | GIVEN_KV_DTYPE | GIVEN_TENSOR_STRIDES | (0 if scale is None else GIVEN_SCALE) | (0 if scores.softcap is None else GIVEN_SOFTCAP),
            **functions.fields())  # fmt: skip
        return Plan(q.device, problem)

    return _plan.cached(key, make)


_DECODE_OPTIONS = {"max_seqlen_kv", "layout", "window", "window_alignment", "scale", "softcap", "alibi", "sink", "stream", "candidate",
                   "descale_q", "descale_k", "descale_v", "score", "mask", "tensors", "bias", "prefix", "intervals", "deterministic_batch",
                   "kv_dtype", "check_lengths"}  # fmt: skip


def decode(q: Any, k_cache: Any, v_cache: Any, block_table: Any, seqused_kv: Any, *, causal: Any = True, out: Any = None, return_lse: bool = False,
           **options: Any) -> Any:  # fmt: skip
    """One step of decoding: the same few rows of every sequence over its keys in a paged cache, the rows' own keys included.

    Args:
        q: [batch, rows, heads, head_dim], or [batch, heads, head_dim] for one row each.
        k_cache, v_cache, block_table, seqused_kv: as of `paged_attention`.
        causal: True (the default): the last row sees every key, the one before it one less, ...
        out: [batch, rows, heads, head_dim_v], or without the rows as q. Default: a new array.
        return_lse: also return the log-sum-exp, float32 [batch, heads, rows], or [batch, heads].
        options: max_seqlen_kv, layout, window, window_alignment, scale, softcap, alibi, sink, stream, candidate, descales, functions,
            intervals, deterministic_batch, kv_dtype and check_lengths of `paged_attention`.

    Returns:
        The output with the axes of q, or (output, lse).

    Raises:
        Error: as `paged_attention`, and for a q of more rows each whose sequences do not lie one after another.
    """
    stream = _plan._stream_number(options.get("stream"))
    view = _arrays.view(q, "q", stream)
    rows = view.shape[1] if len(view.shape) == 4 else 1
    packed = _packed_rows(view, "q")
    batch = view.shape[0]
    if unknown := sorted(set(options) - _DECODE_OPTIONS):
        raise TypeError(f"decode() got an unexpected keyword argument {unknown[0]!r}; it takes {', '.join(sorted(_DECODE_OPTIONS))} besides its own")
    lengths = _arrays.view(seqused_kv, "seqused_kv", stream).shape
    if lengths != (batch,):
        raise Error(f"seqused_kv has shape {lengths} and q {batch} sequences; give how many keys each has, [batch] = ({batch},)")
    columns = _arrays.cache_view(v_cache, "v_cache", stream, options.get("kv_dtype")).shape[-1:]
    if out is None:
        out = _arrays.empty_like(view, (*view.shape[:-1], *columns), _factors.output_dtype(view.dtype))
    view_out = _arrays.output(out, "out", stream)
    if view_out.shape != (*view.shape[:-1], *columns):
        raise Error(f"out has shape {view_out.shape}; give {(*view.shape[:-1], *columns)}, the axes of q with the columns of v")
    packed_out = _packed_rows(view_out, "out")
    cu_q = _equal_boundaries(view, batch, rows)
    made = paged_attention(packed, k_cache, v_cache, block_table, seqused_kv, cu_seqlens_q=cu_q, max_seqlen_q=rows, causal=causal,
                           out=packed_out, return_lse=return_lse, **options)  # fmt: skip
    _arrays.note_written(out)
    if not return_lse:
        return out
    lse = made[1].reshape(view.shape[-2], batch, rows).swapaxes(0, 1)
    return out, lse if len(view.shape) == 4 else lse[:, :, 0]


def _packed_rows(x: View, role: str) -> View:
    """[batch, rows, heads, dim] as [batch * rows, heads, dim]."""
    if len(x.shape) == 3:
        return x
    if len(x.shape) != 4:
        raise Error(f"{role} has shape {x.shape}; give [batch, rows, heads, head_dim], or [batch, heads, head_dim] for one row each")
    batch, rows = x.shape[:2]
    if rows > 1 and batch > 1 and x.strides[0] != rows * x.strides[1]:
        raise Error(f"{role} has strides {x.strides}; the rows of the batch must lie one after another: copy it with .contiguous() or "
                    "numpy.ascontiguousarray")  # fmt: skip
    return x._replace(shape=(batch * rows, *x.shape[2:]), strides=(x.strides[1] if rows > 1 else x.strides[0], *x.strides[2:]))


_boundaries: collections.OrderedDict[Any, Any] = collections.OrderedDict()


def _equal_boundaries(like: View, batch: int, rows: int) -> Any:
    """int32 [batch + 1] in steps of `rows`, on the device of `like`. Kept, unless a graph is captured, whose memory is its own."""
    key = (like.framework, like.device, batch, rows)
    found = _boundaries.get(key)
    if found is not None:
        return found
    module = sys.modules.get({"torch": "torch", "cupy": "cupy"}.get(like.framework, "numpy"))
    if like.device != "cpu" and like.framework not in ("torch", "cupy") or module is None:
        raise Error(f"q is of {like.framework} on {like.device}; give a NumPy, PyTorch or CuPy array, or call paged_attention with cu_seqlens_q")
    capturing = False
    if like.framework == "torch":
        capturing = like.device != "cpu" and module.cuda.is_current_stream_capturing()
        found = module.arange(batch + 1, dtype=module.int32, device=like.keep.device) * rows
    elif like.framework == "cupy":
        with like.keep.device:
            found = module.arange(batch + 1, dtype="int32") * module.int32(rows)
    else:
        found = module.arange(batch + 1, dtype="int32") * module.int32(rows)
    if not capturing:
        _boundaries[key] = found
        while len(_boundaries) > 64:
            _boundaries.popitem(last=False)
    return found


def block_table_of_csr(indptr: Any, indices: Any, last_page_len: Any, page_size: int, max_pages: int) -> tuple[Any, Any]:
    """The block table and lengths of a cache whose pages are given in FlashInfer's form (CSR). Nothing is read on the host.

    Args:
        indptr: int32 [batch + 1]: sequence s has the pages indices[indptr[s]] to indices[indptr[s + 1] - 1]. PyTorch or NumPy.
        indices: int32 [all pages of all sequences].
        last_page_len: int32 [batch]: keys in the last page of each sequence, 1 to page_size.
        page_size: keys in a page.
        max_pages: columns of the table: the most pages that a sequence may have.

    Returns:
        (block_table, seqused_kv): int32 [batch, max_pages] and [batch], new arrays on the device of `indices`. A last page longer than a
        page, boundaries that descend, and more pages than max_pages make a length that no sequence has, and so NaN.

    Raises:
        Error: for other arrays, shapes and numbers.
    """
    try:
        page_size, max_pages = operator.index(page_size), operator.index(max_pages)
    except TypeError:
        raise Error(f"page_size is {page_size!r} and max_pages {max_pages!r}; give whole numbers") from None
    if not 1 <= page_size <= 65536 or not 1 <= max_pages < 2**31:
        raise Error(f"page_size is {page_size} and max_pages {max_pages}; give 1 to 65536 keys and at least one page")
    views = [_arrays.view(x, role) for role, x in (("indptr", indptr), ("indices", indices), ("last_page_len", last_page_len))]
    batch = views[0].shape[0] - 1 if len(views[0].shape) == 1 else -1
    if batch < 1 or len(views[1].shape) != 1 or views[2].shape != (batch,):
        raise Error(f"indptr has shape {views[0].shape}, indices {views[1].shape} and last_page_len {views[2].shape}; give [batch + 1], [pages] and [batch]")
    if any(x.framework not in ("torch", "numpy") or x.framework != views[1].framework or x.device != views[1].device for x in views):
        raise Error("indptr, indices and last_page_len are not all of PyTorch or all of NumPy on one device; convert them")
    return _csr(sys.modules[views[1].framework], indptr, indices, last_page_len, page_size, max_pages)


def _csr(module: Any, indptr: Any, indices: Any, last_page_len: Any, page_size: int, max_pages: int) -> tuple[Any, Any]:
    on = {"device": indices.device} if module.__name__ == "torch" else {}
    wide = module.int64
    starts, ends = (x.astype(wide) if module.__name__ == "numpy" else x.to(wide) for x in (indptr[:-1], indptr[1:]))
    counts, columns, total = ends - starts, module.arange(max_pages, dtype=wide, **on), indices.shape[0]
    at = starts[:, None] + columns
    none = module.full((), -1, dtype=module.int32, **on)
    if total == 0:
        table = module.full(tuple(at.shape), -1, dtype=module.int32, **on)
    else:
        is_page = (columns < counts[:, None]) & (at >= 0) & (at < total)
        table = module.where(is_page, indices[module.clip(at, 0, total - 1)], none)
    last = last_page_len.astype(wide) if module.__name__ == "numpy" else last_page_len.to(wide)
    keys = module.where(counts == 0, 0 * counts, (counts - 1) * page_size + last)
    good = (counts >= 0) & (counts <= max_pages) & ((counts == 0) | ((last >= 1) & (last <= page_size))) & (keys <= _MOST_KEYS)
    keys = module.where(good, keys, 0 * counts - 1)
    return table, keys.astype(module.int32) if module.__name__ == "numpy" else keys.to(module.int32)
