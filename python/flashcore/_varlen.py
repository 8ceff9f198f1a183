"""flashcore.varlen_attention: batches of sequences of different lengths, packed one after another."""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Iterator
from typing import Any, Callable

from . import _arrays, _block_mask, _factors, _functions, _library, _plan, _scores
from ._arrays import View
from ._block_mask import BlockMask
from ._functions import Functions, Given
from ._library import GIVEN_KV_DTYPE, GIVEN_O_DTYPE, GIVEN_SCALE, GIVEN_SOFTCAP, GIVEN_STRIDES, GIVEN_TENSOR_STRIDES, GIVEN_WINDOW, Attention, Error, Strides
from ._plan import Plan

_RAGGED = 1  # FC_LENGTHS_FULL


class _Sizes:
    """The sizes of one call, checked against each other."""

    def __init__(self, q: View, k: View, v: View, batch: int, bounds: tuple[int, int]) -> None:
        for role, x in (("q", q), ("k", k), ("v", v)):
            if len(x.shape) != 3:
                raise Error(f"{role} has shape {x.shape}; give three axes, [rows of all sequences, heads, head_dim]")
        _factors.require_types(q, ("k", k), ("v", v))
        (self.total_q, self.heads_q, self.head_dim), (self.total_kv, self.heads_kv, dim_k) = q.shape, k.shape
        total_v, heads_v, self.head_dim_v = v.shape
        self.batch, (self.seqlen_q, self.seqlen_kv) = batch, bounds
        if (total_v, heads_v) != (self.total_kv, self.heads_kv):
            raise Error(f"k has {self.total_kv} rows of {self.heads_kv} heads and v has {total_v} of {heads_v}; both must agree")
        if dim_k != self.head_dim:
            raise Error(f"q has head_dim {self.head_dim} and k has {dim_k}; both must agree")

    def output_shape(self) -> tuple[int, int, int]:
        return (self.total_q, self.heads_q, self.head_dim_v)


def _strides(role: str, x: View) -> Strides:
    _arrays.require_adjacent(role, x)
    return Strides(0, x.strides[1], x.strides[0])


def _bound(value: Any, role: str) -> int:
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 2**31:
        raise Error(f"{role} is {value!r}; give the longest that a sequence may be, a whole number from 0 on")
    return number


def _int32s(x: Any, role: str, q: View, stream: int | None) -> View:
    found = _factors.contiguous_beside(_arrays.view(x, role, stream), role, q)
    if len(found.shape) != 1:
        raise Error(f"{role} has shape {found.shape}; give one axis")
    return found


def _batch_of(cu_q: View, cu_kv: View, **used: View | None) -> int:
    batch = cu_q.shape[0] - 1
    if batch < 1 or cu_kv.shape != cu_q.shape:
        raise Error(f"cu_seqlens_q has shape {cu_q.shape} and cu_seqlens_kv has {cu_kv.shape}; give the boundaries of each sequence, [batch + 1] both")
    for role, x in used.items():
        if x is not None and x.shape != (batch,):
            raise Error(f"{role} has shape {x.shape}; give how many {'keys' if role == 'seqused_kv' else 'rows'} of each sequence count, [batch] = {(batch,)}")
    return batch


class _Rehearsals(threading.local):
    active = False


_rehearsals = _Rehearsals()


@contextlib.contextmanager
def rehearsal() -> Iterator[None]:
    """Calls within it check their operands and make their plan, and launch nothing: for who must not begin what is refused later."""
    _rehearsals.active = True
    try:
        yield
    finally:
        _rehearsals.active = False


def _refuse_bad(bad: dict[int, str]) -> None:
    if bad:
        first = min(bad)
        others = f" (and of {len(bad) - 1} more: {', '.join(map(str, sorted(bad)[1:9]))}{', ...' if len(bad) > 9 else ''})" if len(bad) > 1 else ""
        raise Error(f"of sequence {first}{others} the lengths do not fit: {bad[first]}")


def launch_packed(sizes: Any, views: tuple[View, View, View], out: Any, descales: tuple[Any, Any, Any], score: tuple[Any, Any, Any],
                  functions: Given, plan_of: Callable[[tuple[View, View, View, View], int, _scores.Scores], Plan], return_lse: bool,
                  stream: int | None, return_amax: Any, check_lengths: bool, block_mask: BlockMask | None,
                  **addresses: int) -> Any:  # fmt: skip
    """The output of packed rows, and what else is asked for, made and launched. `score`: softcap, alibi, sink; `addresses`: of the lengths."""
    vq, vk, vv = views
    if out is None:
        out = _arrays.empty_like(vq, sizes.output_shape(), _factors.output_dtype(vq.dtype))
        vo = _arrays.view(out, "out", stream)
    else:
        vo = _arrays.output(out, "out", stream)
    factors = _factors.read(vq, vk, descales, lambda: sizes, stream)
    scores, operands = _scores.read(vq, *score, lambda: sizes, stream)
    scores = _scores.with_amax(scores, return_amax, vq.dtype)
    p = plan_of((vq, vk, vv, vo), factors.scaling, scores)
    if _rehearsals.active:
        return None
    number = _arrays.current_stream(vq) if stream is None else stream
    if check_lengths:
        _refuse_bad(p.status(stream=number, **addresses))
    lse = lse_view = None
    if return_lse:
        lse = _arrays.empty_like(vq, (sizes.heads_q, sizes.total_q), "fp32")
        lse_view = _arrays.view(lse, "lse", stream)
    amax = amax_view = None
    if scores.amax:
        amax = _arrays.empty_like(vq, (2, sizes.heads_q), "fp32")
        amax_view = _arrays.view(amax, "amax", stream)
    p.launch(vq.address, vk.address, vv.address, vo.address, lse_view.address if lse_view else 0, number, *factors.addresses or (0, 0, 0),
             operands.alibi, operands.sink, tensors=functions.addresses, amax=amax_view.address if amax_view else 0, block_mask=block_mask,
             **addresses)  # fmt: skip
    _arrays.note_written(out)
    if _arrays.must_wait(vq):
        _library.check(_library.library().fc_context_synchronize(_library.context(vq.device), number))
    return _scores.results(out, (return_lse, lse), (scores.amax, amax))


def varlen_attention(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_kv: Any, max_seqlen_q: int, max_seqlen_kv: int, *, causal: Any = False,
                     window: Any = None, window_alignment: str | None = None, scale: float | None = None, softcap: float | None = None,
                     alibi: Any = None, sink: Any = None, seqused_kv: Any = None, seqused_q: Any = None, out: Any = None, return_lse: bool = False,
                     stream: int | None = None, candidate: str | None = None, descale_q: Any = None, descale_k: Any = None,
                     descale_v: Any = None, score: str | None = None, mask: Any = None, tensors: Any = None, bias: Any = None,
                     prefix: Any = None, deterministic_batch: bool = False, kv_dtype: str | None = None,
                     return_amax: bool = False, documents: Any = None, document_boundaries: Any = None, intervals: Any = None,
                     check_lengths: bool = False, block_mask: BlockMask | None = None) -> Any:  # fmt: skip
    """Attention of each sequence of a ragged batch by itself, without padding.

    The lengths are read on the device when the work runs, never on the host: a call captured into a CUDA graph serves any lengths up to
    the bounds.

    Args:
        q: [total_q, heads, head_dim]: the rows of all sequences, one sequence after another. Arrays, dtypes and devices as of `attention`;
            any strides, as long as the elements of a row are adjacent.
        k: [total_kv, heads_kv, head_dim]; heads_kv divides heads (grouped-query attention).
        v: [total_kv, heads_kv, head_dim_v].
        cu_seqlens_q: int32 [batch + 1], on the device of q: sequence s has the rows cu_seqlens_q[s] to cu_seqlens_q[s + 1] - 1.
        cu_seqlens_kv: int32 [batch + 1]: the same of k and v.
        max_seqlen_q, max_seqlen_kv: upper bounds of the lengths. Tighter ones run faster.
        causal, window, window_alignment: as of `attention`, by each sequence's own lengths: the last row's own key is its
            sequence's last one.
        scale: from 1e-6 to 1e6; default 1/sqrt(head_dim).
        softcap: as of `attention`.
        alibi: slopes, float32 [heads] or [batch, heads]; the distance is |i + length_kv - length_q - j| of the sequence.
        sink: float32 [heads], as of `attention`.
        seqused_kv: int32 [batch]: how many keys of each sequence count, from its first on. Default: all.
        seqused_q: int32 [batch]: the same of rows. What lies between sequences, as in a padded batch, is neither read nor written.
        out: where to write, [total_q, heads, head_dim_v]. Default: a new array.
        return_lse: also return the log-sum-exp of each row, float32 [heads, total_q].
        stream: a CUstream as a number; default: the framework's current stream.
        candidate: "family" or "family:key=value,…" pins a kernel; default: flashcore chooses.
        descale_q, descale_k, descale_v: of 8-bit q, k and v, or of a quantised cache: one each, or [batch, heads_kv] by sequence. Rows
            have none of their own, as they may in `attention`.
        score, mask, tensors, bias: as of `attention`, by each sequence's own rows and keys: i and j count from its first ones, seqlen_q and
            seqlen_kv are its lengths, and b is its place in the batch. Arrays have the bounds, [batch, heads, max_seqlen_q, max_seqlen_kv]
            or what broadcasts to it; what they hold past a sequence's end is not read.
        prefix: as of `attention`: a number of keys, or int32 [batch].
        deterministic_batch: a row's bits depend on its own sequence alone, not on the others of the batch, nor on max_seqlen_kv; among
            batches with a max_seqlen_q of up to 16, and among those above. It chooses the kernel, without regard to speed, and does not go
            with candidate or functions.
        kv_dtype: as of `attention`: "int4" for k and v of uint8 [..., head_dim / 2] with two elements a byte.
        return_amax: as of `attention`.
        documents: documents within sequences, int32 ids: packed as q and k are, [total_q] and [total_kv], or by the bounds,
            [batch, max_seqlen_q] and [batch, max_seqlen_kv]; one array for both, or a pair. A row sees the keys of its own document in its own sequence.
        document_boundaries: the same as borders in the packed rows, int32 [documents + 1], or a pair of them, of rows and of keys.
        intervals: as of `attention`, (starts, ends) or a list of such pairs: packed as q is, [total_q] or [heads, total_q], or by the
            bound, [batch, heads, max_seqlen_q] and what has three axes and broadcasts to it. Keys count from the sequence's own first one.
        check_lengths: True: first wait for the device and look at the lengths on the host, and refuse the call with the sequence that does not
            fit. To find a mistake: such a call cannot be captured into a graph.
        block_mask: as of `attention`. The lists are made of the lengths too, so that these must hold the same until `BlockMask.update`.

    Returns:
        The output, or a tuple of it, lse and amax, of which there is what was asked for. A row that sees no key gets output 0 and lse -inf,
        or its sink. Rows that no sequence has are not
        written. A sequence whose boundaries leave the arrays, end before they begin or pass a bound gets NaN in its rows, on every
        device: nobody looks at them on the host but for check_lengths, which says which sequence it is.

    Raises:
        Error: for arrays that do not fit together, dtypes, devices, an out that is read-only or overlaps an input, arguments of another
            type; for a missing driver or compiler.
    """
    stream, block_mask = _plan._stream_number(stream), _block_mask.require(block_mask)
    vq = _arrays.view(q, "q", stream)
    vk, vv = _arrays.cache_view(k, "k", stream, kv_dtype), _arrays.cache_view(v, "v", stream, kv_dtype)
    cu_q, cu_kv = _int32s(cu_seqlens_q, "cu_seqlens_q", vq, stream), _int32s(cu_seqlens_kv, "cu_seqlens_kv", vq, stream)
    used = None if seqused_kv is None else _int32s(seqused_kv, "seqused_kv", vq, stream)
    used_q = None if seqused_q is None else _int32s(seqused_q, "seqused_q", vq, stream)
    bounds = (_bound(max_seqlen_q, "max_seqlen_q"), _bound(max_seqlen_kv, "max_seqlen_kv"))
    sizes = _Sizes(vq, vk, vv, _batch_of(cu_q, cu_kv, seqused_kv=used, seqused_q=used_q), bounds)
    given = _functions.read(vq, score, mask, tensors, bias, prefix, documents, causal, lambda: sizes, stream, intervals, document_boundaries,
                            _functions.Packed(cu_q, cu_kv, sizes.total_q, sizes.total_kv))  # fmt: skip
    return launch_packed(
        sizes, (vq, vk, vv), out, (descale_q, descale_k, descale_v), (softcap, alibi, sink), given,
        lambda all_views, scaling, scores: _plan_of(sizes, all_views, causal, window, window_alignment, scale, candidate, scaling, scores,
                                                    given.functions, deterministic_batch),
        return_lse, stream, return_amax, check_lengths, block_mask, cu_seqlens_q=cu_q.address, cu_seqlens_kv=cu_kv.address, seqused_kv=used.address if used else 0,
        seqused_q=used_q.address if used_q else 0)  # fmt: skip


def _plan_of(sizes: _Sizes, views: tuple[View, View, View, View], causal: Any, window: Any, window_alignment: Any, scale: Any, candidate: Any,
             scaling: int, scores: _scores.Scores, functions: Functions, deterministic_batch: bool = False) -> Plan:  # fmt: skip
    alignment = _plan._alignment(*views)
    causal, window, scale = _plan._causal_number(causal), _plan.window_sides(window), _plan._scale_number(scale)
    window_alignment = _plan._alignment_number(window_alignment, causal, window)
    name = _library.encoded(candidate, "candidate") if candidate is not None else None
    layouts = tuple((x.device, x.dtype, x.shape, x.strides) for x in views)
    key = ("varlen", sizes.batch, sizes.seqlen_q, sizes.seqlen_kv, layouts, causal, window, window_alignment, scale, alignment, name, scaling,
           scores, functions, bool(deterministic_batch))  # fmt: skip

    def make() -> Plan:
        q, k, v, o = views
        allowed = _factors.OUTPUTS if q.dtype in _factors.DTYPES else (q.dtype,)
        if o.shape != sizes.output_shape() or o.dtype not in allowed or o.device != q.device:
            raise Error(f"out is {o.dtype} {o.shape} on {o.device}; it must be {' or '.join(allowed)} {sizes.output_shape()} on {q.device}")
        problem = Attention(
            dtype=_plan.DTYPES[q.dtype], kv_dtype=_plan.DTYPES[k.dtype], batch=sizes.batch, heads_q=sizes.heads_q, heads_kv=sizes.heads_kv, seqlen_q=sizes.seqlen_q, seqlen_kv=sizes.seqlen_kv,
            head_dim=sizes.head_dim, head_dim_v=sizes.head_dim_v, causal=causal, alignment=alignment, scale=0.0 if scale is None else scale,
            q=_strides("q", q), k=_strides("k", k), v=_strides("v", v), o=_strides("out", o), candidate=name or None, window_left=window[0],
            window_right=window[1], window_alignment=window_alignment, o_dtype=_plan.DTYPES[o.dtype], scaling=scaling,
            softcap=scores.softcap or 0.0, alibi=scores.alibi, sink=scores.sink, amax=scores.amax, lengths=_RAGGED, deterministic_batch=int(bool(deterministic_batch)), total_q=sizes.total_q, total_kv=sizes.total_kv,
            given=GIVEN_STRIDES | GIVEN_WINDOW | GIVEN_O_DTYPE | GIVEN_KV_DTYPE | GIVEN_TENSOR_STRIDES | (0 if scale is None else GIVEN_SCALE) | (0 if scores.softcap is None else GIVEN_SOFTCAP),
            **functions.fields())  # fmt: skip
        return Plan(q.device, problem)

    return _plan.cached(key, make)
