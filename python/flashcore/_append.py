"""flashcore.append: new keys and values written to a cache, and turned by rotary position embedding on the way."""

from __future__ import annotations

from typing import Any, Optional

from . import _arrays, _factors, _kernels, _library, _paged, _plan
from ._arrays import View
from ._library import AppendKind, AppendOperands, Error, Strides

_NO_ROTARY, _HALF, _INTERLEAVED = 0, 1, 2  # fc_rotary
_CACHE_AS_K = -1
_TABLE_DTYPES = ("fp32", "fp16", "bf16")


def _kind(dtype: str, cache: str, rotary: int, table: str, counts: bool) -> AppendKind:
    return AppendKind(dtype=_plan.DTYPES[dtype], rotary=rotary, rotary_dtype=_plan.DTYPES[table],
                      cache_dtype=_CACHE_AS_K if cache == dtype else _plan.DTYPES[cache], counts_saturated=int(counts))  # fmt: skip


class _Call:
    """One call's operands, checked against each other. `keep` holds what they point at."""

    def __init__(self, k: Any, v: Any, k_cache: Any, v_cache: Any, layout: Any, packed: bool, stream: Optional[int],
                 kv_dtype: Any = None) -> None:  # fmt: skip
        self.stream, self.keep = stream, []  # type: tuple[Optional[int], list[Any]]
        self.k, self.v = _arrays.view(k, "k", stream), _arrays.view(v, "v", stream)
        self.k_cache, self.v_cache = (
            _arrays.cache_view(x, role, stream, kv_dtype, written=True) for x, role in ((k_cache, "k_cache"), (v_cache, "v_cache"))
        )
        self.packed = packed
        if not isinstance(layout, str) or layout not in _paged._LAYOUTS:
            raise Error(f"layout is {layout!r}; use 'NHD' ([pages, page_size, heads_kv, head_dim]) or 'HND' ([pages, heads_kv, page_size, head_dim])")
        row, head = _paged._LAYOUTS[layout]
        axes = "[rows of all sequences, heads_kv, head_dim]" if packed else "[batch, rows, heads_kv, head_dim]"
        for role, x, cache in (("k", self.k, self.k_cache), ("v", self.v, self.v_cache)):
            if len(x.shape) != (3 if packed else 4):
                raise Error(f"{role} has shape {x.shape}; give {axes}")
            if len(cache.shape) != 4:
                raise Error(f"{role}_cache has shape {cache.shape}; give four axes, [pages, page_size, heads_kv, head_dim] or those of layout='HND'")
            agree = (x.dtype, x.device) == (self.k.dtype, self.k.device) and cache.device == x.device and cache.dtype == self.k_cache.dtype
            if not agree or not (cache.dtype == x.dtype or (x.dtype not in _factors.CACHES and cache.dtype in _factors.CACHES)):
                beside = "" if x is self.k else f", {role} {x.dtype} on {x.device}"
                raise Error(f"k is {self.k.dtype} on {self.k.device}{beside} and {role}_cache {cache.dtype} on {cache.device}; all "
                            "must agree, but for the type of a quantised cache: e4m3, e5m2, int8 or int4 beside k and v of 16 or 32 bits")  # fmt: skip
            if x.shape[-2:] != (cache.shape[head], cache.shape[3]) or x.shape[:-1] != self.k.shape[:-1]:
                raise Error(f"{role} has shape {x.shape}, k {self.k.shape} and {role}_cache {cache.shape}; give rows that suit the cache, {axes}, as many of "
                            "v as of k")  # fmt: skip
            _arrays.require_adjacent(role, x)
            _arrays.require_adjacent(f"{role}_cache", cache)
        if tuple(self.k_cache.shape[i] for i in (0, row, head)) != tuple(self.v_cache.shape[i] for i in (0, row, head)):
            raise Error(f"k_cache has shape {self.k_cache.shape} and v_cache {self.v_cache.shape}; pages, page size and heads must agree")

        def cache_strides(x: View) -> Strides:
            return Strides(x.strides[0], x.strides[head], x.strides[row])

        self.operands = AppendOperands(
            heads_kv=self.k.shape[-2], head_dim=self.k.shape[-1], head_dim_v=self.v.shape[-1], rows_new=self.k.shape[0 if packed else 1],
            k=self.k.address, v=self.v.address, k_strides=self.strides(self.k), v_strides=self.strides(self.v),
            pages=self.k_cache.shape[0] if self.k_cache.shape[row] else 0, page_size=max(self.k_cache.shape[row], 1), k_cache=self.k_cache.address, v_cache=self.v_cache.address, k_cache_strides=cache_strides(self.k_cache),
            v_cache_strides=cache_strides(self.v_cache))  # fmt: skip

    @staticmethod
    def strides(x: View) -> Strides:
        return Strides(x.strides[0] if len(x.shape) == 4 else 0, x.strides[-2], x.strides[-3])

    def int32s(self, x: Any, role: str, count: int, *, written: bool = False) -> int:
        """The address of [count]; 0 for none."""
        if x is None:
            return 0
        found = (_arrays.output if written else _arrays.view)(x, role, self.stream)
        found = _factors.contiguous_beside(found, role, self.k)
        if found.shape != (count,):
            raise Error(f"{role} has shape {found.shape}; give int32 ({count},)")
        self.keep.append(found)
        return found.address

    def table(self, x: Any) -> None:
        if x is None:
            # A forgotten table would write to the pages of others.
            if self.k_cache.shape[0] != self.operands.batch:
                raise Error(f"k_cache has shape {self.k_cache.shape} and there are {self.operands.batch} sequences; give the block_table of a paged cache, or a dense cache with a row for each sequence")
            return
        found = _arrays.view(x, "block_table", self.stream)
        batch = self.operands.batch
        if found.device != self.k.device:
            raise Error(f"block_table is on {found.device} and k on {self.k.device}; move one")
        if len(found.shape) != 2 or found.shape[0] != batch:
            raise Error(f"block_table has shape {found.shape}; give [batch, max_pages] with batch = {batch}")
        columns = found.shape[1]
        stride = found.strides[0] if batch > 1 else max(columns, 1)
        if (columns > 1 and found.strides[1] != 1) or stride < columns:
            raise Error(f"block_table has strides {found.strides}; the entries of a row must be adjacent and rows must not overlap: copy it")
        self.keep.append(found)
        # An empty table still says that there are no pages.
        self.operands.block_table, self.operands.max_pages = found.address or self.operands.cache_seqlens, columns
        self.operands.table_stride = max(stride, 1)

    def rotary(self, cos: Any, sin: Any, interleaved: bool) -> tuple[int, str]:
        if (cos is None) != (sin is None):
            raise Error(f"rotary_{'sin' if cos is None else 'cos'} is given alone; give both, or neither")
        if cos is None:
            return _NO_ROTARY, "fp32"
        views = [_arrays.view(x, role, self.stream) for x, role in ((cos, "rotary_cos"), (sin, "rotary_sin"))]
        for role, x in zip(("rotary_cos", "rotary_sin"), views):
            if len(x.shape) != 2 or x.device != self.k.device or (x.dtype, x.shape, x.strides) != (views[0].dtype, views[0].shape, views[0].strides):
                raise Error(f"{role} is {x.dtype} {x.shape} with strides {x.strides} on {x.device}; give cos and sin [positions, rotary_dim / 2] alike, on {self.k.device}")
            if x.dtype not in _TABLE_DTYPES:
                raise Error(f"{role} is {x.dtype}; give float32, float16 or bfloat16")
            _arrays.require_adjacent(role, x)
        if not 2 <= 2 * views[0].shape[1] <= self.k.shape[-1]:
            raise Error(f"rotary_cos has {views[0].shape[1]} columns and k {self.k.shape[-1]}; give half as many as are turned, at least one")
        self.keep.extend(views)
        o = self.operands
        o.cos, o.sin = (x.address for x in views)
        o.rotary_rows, o.rotary_dim = views[0].shape[0], 2 * views[0].shape[1]
        o.rotary_stride = views[0].strides[0] if views[0].shape[0] > 1 else 0
        return _INTERLEAVED if interleaved else _HALF, views[0].dtype

    def queries(self, q: Any, q_out: Any, packed: bool) -> Any:
        """The array that turned rows go to."""
        source = _arrays.view(q, "q", self.stream)
        if len(source.shape) != (3 if packed else 4) or source.shape[-1] != self.k.shape[-1] or (not packed and source.shape[0] != self.operands.batch):
            raise Error(f"q has shape {source.shape} and k {self.k.shape}; give [batch, rows, heads, head_dim], or with cu_seqlens_q [rows, heads, head_dim]")
        if q_out is None:
            q_out = _arrays.empty_like(source, source.shape, source.dtype)
        target = _arrays.output(q_out, "q_out", self.stream)
        for role, x in (("q", source), ("q_out", target)):
            if (x.dtype, x.device) != (self.k.dtype, self.k.device) or x.shape != source.shape:
                raise Error(f"{role} is {x.dtype} {x.shape} on {x.device}; give {self.k.dtype} {source.shape} on {self.k.device}")
            _arrays.require_adjacent(role, x)
        self.keep.extend((source, target))
        o = self.operands
        o.heads_q, o.rows_q = source.shape[-2], source.shape[0 if packed else 1]
        o.q, o.q_out, o.q_strides, o.q_out_strides = source.address, target.address, self.strides(source), self.strides(target)
        return q_out

    def factors(self, descale_k: Any, descale_v: Any) -> None:
        """Of a quantised cache; Error for others."""
        if self.k.dtype == self.k_cache.dtype and (descale_k is not None or descale_v is not None):
            role = "descale_v" if descale_k is None else "descale_k"
            raise Error(f"{role} is given and k is {self.k.dtype} as its cache; leave it out: such rows are copied as they are")
        found = _factors.read(self.k, self.k_cache, (None, descale_k, descale_v), lambda: self.operands, self.stream, written=True)
        self.keep.append(found.keep)
        self.operands.scaling = found.scaling
        if found.scaling == _factors.TOKEN:
            _, self.operands.new_descale_k, self.operands.new_descale_v = found.addresses
        elif found.addresses:
            _, self.operands.descale_k, self.operands.descale_v = found.addresses

    def count_saturated(self, x: Any) -> None:
        if x is None:
            return
        if self.k.dtype == self.k_cache.dtype:
            raise Error(f"saturated is given and k is {self.k.dtype} as its cache; leave it out: such rows are copied as they are")
        found = _factors.contiguous_beside(_arrays.output(x, "saturated", self.stream), "saturated", self.k)
        if found.shape != (2,):
            raise Error(f"saturated has shape {found.shape}; give int64 (2,), of k and of v")
        self.keep.append(found)
        self.operands.saturated = found.address

    def launch(self, rotary: tuple[int, str], written: tuple[Any, ...]) -> None:
        number = _arrays.current_stream(self.k) if self.stream is None else self.stream
        if self.operands.batch > 0:
            _kernels.kernel("append", self.k.device, _kind, self.k.dtype, self.k_cache.dtype, *rotary, self.operands.saturated != 0).launch(self.operands, number)
        for x in written:
            if x is not None:
                _arrays.note_written(x)
        if _arrays.must_wait(self.k):
            _library.check(_library.library().fc_context_synchronize(_library.context(self.k.device), number))


def append(k: Any, v: Any, k_cache: Any, v_cache: Any, cache_seqlens: Any, *, block_table: Any = None, layout: str = "NHD", cu_seqlens_new: Any = None,
           rotary_cos: Any = None, rotary_sin: Any = None, rotary_interleaved: bool = False, q: Any = None, q_out: Any = None, cu_seqlens_q: Any = None,
           q_at_length: bool = False, new_seqlens: Any = None, refused: Any = None, stream: int | None = None, descale_k: Any = None,
           descale_v: Any = None, kv_dtype: str | None = None, saturated: Any = None) -> Any:  # fmt: skip
    """Writes the new keys and values of each sequence behind those that it has in a cache, and turns K and Q by rotary position embedding
    on the way where asked. One kernel, a step of its own before attention.

    Lengths and pages are read on the device when the work runs, never on the host: a call captured into a CUDA graph appends to a growing
    cache.

    Args:
        k: [batch, rows, heads_kv, head_dim], or with cu_seqlens_new [rows of all sequences, heads_kv, head_dim]. Arrays and devices as of
            `attention`; any strides, as long as the elements of a row are adjacent.
        v: the same with head_dim_v columns.
        k_cache, v_cache: pages as of `paged_attention`, of the type of k, or a quantised cache of float8_e4m3fn, float8_e5m2, int8 or int4 beside k
            and v of 16 or 32 bits: what is written is k / descale_k, rounded to the nearest, and saturates. Without a block_table a dense
            cache [batch, length, heads_kv, head_dim], a row for each sequence. They are written. No two rows may share memory.
        cache_seqlens: int32 [batch]: the keys that each sequence has. Its new row i becomes key number cache_seqlens + i.
        block_table: int32 [batch, max_pages], as of `paged_attention`, with room for the new keys. Pages that sequences share must be full,
            or copied before: one that two sequences write to, or two columns of one, keeps what it held on a CPU, and on a GPU with
            `refused`; else both write to it, in no order.
        layout: "NHD" or "HND", of both caches.
        cu_seqlens_new: int32 [batch + 1]: sequence s has the rows cu_seqlens_new[s] to cu_seqlens_new[s + 1] - 1. Rows of no sequence are not
            read.
        rotary_cos, rotary_sin: [positions, rotary_dim / 2], float32, float16 or bfloat16: row p turns what becomes key number p. The
            elements from rotary_dim on are copied. Not of 8-bit types.
        rotary_interleaved: True: the elements 2 c and 2 c + 1 share an angle (GPT-J); False: c and c + rotary_dim / 2 (GPT-NeoX, Llama).
        q: rows to be turned as the new keys are, [batch, rows_q, heads, head_dim], or with cu_seqlens_q [rows of all sequences, heads,
            head_dim]: row i as key number cache_seqlens + i. Needs cos and sin.
        q_out: where turned rows go. Default: a new array; q itself is allowed.
        cu_seqlens_q: int32 [batch + 1]: boundaries of q.
        q_at_length: all rows of a sequence's q are turned as key number cache_seqlens (FlashAttention's way without a causal mask or window).
        new_seqlens: int32 [batch], written: how many keys each sequence has afterwards, for seqused_kv of `paged_attention`. It may be
            cache_seqlens itself.
        refused: int32 [1]: the number of refused rows is added to it. On a GPU each row then reads the lengths and tables of all sequences, for
            pages that are written twice.
        stream: as of `attention`.
        descale_k, descale_v: factors of a quantised cache, as of `attention`; None: 1. Those of keys, float32 [pages, heads_kv, page_size]
            whatever the layout, are written for the new ones: the row's largest finite magnitude over the largest number of the cache's
            type, at least 2^-126; 1 for a row without a finite number.
        kv_dtype: "int4": the caches are uint8 [..., head_dim / 2] with two elements a byte, as of `attention`. With cos and sin, and without
            rotary_interleaved, rotary_dim is a multiple of 4 then.
        saturated: int64 [2], of a quantised cache: to it is added how many elements of k and of v saturated. An element
            saturates if rounding to the nearest would exceed the type's largest number; infinities count, NaN does not. Beside the factors of
            keys, which are written, only infinities do.

    Returns:
        The turned q, or None without q. Nothing is written for a row whose sequence has a negative length, no place in its row of the table,
        a page that the cache does not have, no row of cos and sin, boundaries outside of k, or (above) a page that is written twice, whose
        sequence's new length counts it all the same. Attention answers such a sequence's new length
        with NaN: it is -1, or more than the cache has room for. A row of q without a position becomes NaN.

    Raises:
        Error: as `paged_attention`, and for outputs that overlap what is read.
    """
    stream = _plan._stream_number(stream)
    call = _Call(k, v, k_cache, v_cache, layout, cu_seqlens_new is not None, stream, kv_dtype)
    lengths = _arrays.view(cache_seqlens, "cache_seqlens", stream)
    if len(lengths.shape) != 1 or (not call.packed and lengths.shape[0] != call.k.shape[0]):
        raise Error(f"cache_seqlens has shape {lengths.shape} and k {call.k.shape}; give the keys that each sequence has, [batch]")
    batch = lengths.shape[0]
    o = call.operands
    o.batch = batch
    o.cache_seqlens = call.int32s(cache_seqlens, "cache_seqlens", batch)
    o.cu_seqlens_new = call.int32s(cu_seqlens_new, "cu_seqlens_new", batch + 1)
    call.table(block_table)
    rotary = call.rotary(rotary_cos, rotary_sin, rotary_interleaved)
    turned = None
    if q is not None:
        if rotary[0] and call.k.dtype in _factors.CACHES:
            raise Error(f"rotary_cos is given and k is {call.k.dtype}; give k and v of q's type: they are turned before they are scaled to 8 bits")
        if not rotary[0]:
            raise Error("q is given and rotary_cos is not; give cos and sin, or leave q out: without them it stays as it is")
        turned = call.queries(q, q_out, cu_seqlens_q is not None)
        o.cu_seqlens_q = call.int32s(cu_seqlens_q, "cu_seqlens_q", batch + 1)
        o.q_at_length = int(bool(q_at_length))
    elif q_out is not None or cu_seqlens_q is not None:
        raise Error(f"{'cu_seqlens_q' if q_out is None else 'q_out'} is given and q is not; give q")
    call.factors(descale_k, descale_v)
    o.new_seqlens = call.int32s(new_seqlens, "new_seqlens", batch, written=True)
    o.refused = call.int32s(refused, "refused", 1, written=True)
    call.count_saturated(saturated)
    new_factors = (descale_k, descale_v) if o.scaling == _factors.TOKEN else ()
    call.launch(rotary, (k_cache, v_cache, turned, new_seqlens, refused, saturated, *new_factors))
    return turned


def append_rows(k: Any, v: Any, k_cache: Any, v_cache: Any, row_sequences: Any, row_positions: Any, indices: Any, indptr: Any, layout: str = "NHD", *,
                descale_k: Any = None, descale_v: Any = None) -> None:  # fmt: skip
    """The same in FlashInfer's form: row r of k [rows, heads_kv, head_dim] becomes key number row_positions[r] of sequence row_sequences[r], int32
    both, whose pages are indices[indptr[s]] to indices[indptr[s + 1] - 1]. Descales of each sequence are [batch, heads_kv] of indptr's batch."""
    call = _Call(k, v, k_cache, v_cache, layout, True, None)
    rows = call.k.shape[0]
    starts, pages = _arrays.view(indptr, "indptr"), _arrays.view(indices, "indices")
    if len(starts.shape) != 1 or len(pages.shape) != 1 or starts.shape[0] < 1:
        raise Error(f"indptr has shape {starts.shape} and indices {pages.shape}; give [batch + 1] and [pages]")
    o = call.operands
    o.batch, o.max_pages = starts.shape[0] - 1, pages.shape[0]
    call.factors(descale_k, descale_v)
    if rows == 0 or pages.shape[0] == 0:
        return
    o.row_sequences, o.row_positions = call.int32s(row_sequences, "row_sequences", rows), call.int32s(row_positions, "row_positions", rows)
    o.block_table, o.table_starts = call.int32s(indices, "indices", pages.shape[0]), call.int32s(indptr, "indptr", starts.shape[0])
    call.launch((_NO_ROTARY, "fp32"), (k_cache, v_cache, *((descale_k, descale_v) if o.scaling == _factors.TOKEN else ())))
