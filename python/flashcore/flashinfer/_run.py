"""What wrappers have in common: rows of requests, scales, and the call that computes."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

from .. import _paged
from . import _options, _tables
from ._options import Cache

_MOST_FEW_ROWS = 16  # of fc_attention.deterministic_batch


class Rows:
    """The rows of each request, as plans give them; with CUDA graphs in memory that stays."""

    def __init__(self, device: torch.device, buffer: Optional[Tensor]) -> None:
        self.device, self.buffer = device, buffer
        self.cu: Optional[Tensor] = None
        self.longest: Optional[int] = None  # None: as many as the tensor has
        self.total: Optional[int] = None

    def plan(self, qo_indptr: Any, name: str, bound: Optional[int]) -> None:
        starts, host = _tables.boundaries(qo_indptr, name, None)
        if self.buffer is None:
            self.cu = starts.to(self.device, non_blocking=True)
            host = _tables.on_host(starts) if host is None and bound is None else host
            self.longest = bound if bound is not None else _tables.longest(starts, host)
            self.total = None if host is None else int(host[-1])
            return
        if starts.shape != self.buffer.shape:
            raise _options.Error(f"{name} has {starts.shape[0]} elements and the wrapper's buffer {self.buffer.shape[0]}; with use_cuda_graph the batch is fixed")
        if starts.data_ptr() != self.buffer.data_ptr():
            self.buffer.copy_(starts, non_blocking=True)
        self.cu, self.longest = self.buffer, bound

    def lengths(self) -> Tensor:
        assert self.cu is not None
        return self.cu[1:] - self.cu[:-1]

    def of(self, q: Tensor, name: str = "q has", what: str = "rows") -> tuple[Tensor, int]:
        if self.cu is None:
            raise _options.Error("run() is called before plan(); plan() says the requests and heads")
        if self.total is not None and self.total > q.shape[0]:
            raise _options.Error(f"{name} {q.shape[0]} {what} and plan() was told {self.total}; give the {what} of all requests")
        return self.cu, q.shape[0] if self.longest is None else self.longest


def many_rows(o: _options.Options, rows: int) -> int:
    """The bound of a request's rows. Few rows have another kernel than many, and so other bits: a plan that wants the same ones has many."""
    return max(rows, _MOST_FEW_ROWS + 1) if o.same_bits else rows


def scales_of(args: tuple[Any, ...], named: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Those of q, k and v, behind the cache or by name."""
    if not args:
        return named
    if len(args) != 3:
        raise _options.Error(f"run() is given {len(args)} arguments behind the cache; give the scales of q, k and v, or none")
    return args[0], args[1], args[2]


def sinks_of(o: _options.Options, args: tuple[Any, ...]) -> tuple[_options.Options, Any]:
    """Of FlashInfer's variant AttentionSink, whose run() is given the sinks and the scale of scores behind the cache."""
    if len(args) != 2:
        raise _options.Error(f"run() is given {len(args)} arguments behind the cache; give the sinks [heads] and the scale of scores")
    return o._replace(scale=_options.number(args[1], "sm_scale")), args[0]


def each_of_group(one: Callable[..., Any], q: Tensor, o: _options.Options, scales: tuple[Any, Any, Any], out: Optional[Tensor], lse: Optional[Tensor],
                  return_lse: bool, sinks: Optional[Tensor]) -> Any:  # fmt: skip
    """`one(q, o, scales, out, sinks)` for each query head of a group: a kernel's factors are those of key heads, so that keys are read as often as
    query heads share them."""
    scale, group = scales[0], o.heads_q // o.heads_kv
    if scale.shape != (o.heads_q,):
        raise _options.Error(f"q_scale is {scale.dtype} of shape {tuple(scale.shape)}; give float32 [heads] = ({o.heads_q},), or a number")
    if o.alibi:
        raise _options.Error("q_scale has a factor for each query head, of which several share a key head, beside pos_encoding_mode='ALIBI'; give a number")
    made = _options.output(q, o, out)
    parts = []
    for at in range(group):
        heads = slice(at, None, group)
        parts.append(one(q[:, heads], o._replace(heads_q=o.heads_kv), (scale[heads].contiguous(), *scales[1:]), made[:, heads],
                         None if sinks is None else sinks[heads]))  # fmt: skip
    if not return_lse:
        return made
    found = torch.stack([part[1] for part in parts], 2).flatten(1)
    if lse is None:
        return made, found
    if lse.shape != found.shape or lse.dtype != torch.float32:
        raise _options.Error(f"lse is {lse.dtype} of shape {tuple(lse.shape)}; give float32 [rows, heads] = {tuple(found.shape)}")
    return made, lse.copy_(found)


def forwarded(o: Optional[_options.Options], causal: bool, mode: str, window_left: int, softcap: Optional[float], scale: Optional[float]) -> _options.Options:
    """Of the older methods, whose own arguments replace the plan's."""
    if o is None:
        raise _options.Error("forward() is called before plan(); plan() says the pages and heads")
    made = _options.options(o.heads_q, o.heads_kv, o.dim, o.dim_v, causal=causal and o.mask is None, pos_encoding_mode=mode, window_left=window_left,
                            logits_soft_cap=softcap, sm_scale=scale, q_data_type=o.dtype, kv_data_type=o.kv_dtype, o_data_type=o.out_dtype,
                            disable_split_kv=o.same_bits)  # fmt: skip
    return made._replace(mask=o.mask)


def run_paged(q: Tensor, cache: Cache, o: _options.Options, pages: _tables.Pages, cu_q: Optional[Tensor], rows: int, layout: str,
              scales: tuple[Any, Any, Any], out: Optional[Tensor], lse: Optional[Tensor], return_lse: bool, window_left: Optional[int],
              sinks: Optional[Tensor]) -> Any:  # fmt: skip
    if lse is not None and not return_lse:  # it is written all the same
        return run_paged(q, cache, o, pages, cu_q, rows, layout, scales, out, lse, True, window_left, sinks)[0]
    if _options.has_query_factors(o, scales[0]):
        return each_of_group(lambda q, o, scales, out, sinks: run_paged(q, cache, o, pages, cu_q, rows, layout, scales, out, None, return_lse, window_left, sinks),
                             q, o, scales, out, lse, return_lse, sinks)  # fmt: skip
    k, v = _options.split(cache, layout)
    keys, heads = (1, 2) if layout == "NHD" else (2, 1)
    if k.shape[keys] != pages.page_size or k.shape[heads] != o.heads_kv or v.shape[3] != o.dim_v or k.dtype != o.kv_dtype:
        raise _options.Error(f"the cache is {k.dtype} with K {tuple(k.shape)} and V {tuple(v.shape)}; plan() was told {o.kv_dtype}, {layout}, pages of "
                             f"{pages.page_size} keys, {o.heads_kv} heads, dims {o.dim} and {o.dim_v}")  # fmt: skip
    by = _options.factors(o, pages.used.shape[0], q.device, *scales)
    made = _paged.paged_attention(q, k, v, pages.table, pages.used, cu_seqlens_q=cu_q, max_seqlen_q=rows, layout=layout,
                                  out=_options.output(q, o, out), return_lse=return_lse,
                                  **_options.keywords(o, q.device, by, sinks, window_left))  # fmt: skip
    return _options.finish(made, return_lse, lse, by, cu_q if out is not None else None)


def by_table(query: Tensor, cache: Cache, tables: Tensor, lengths: Tensor, max_keys: int, cu_q: Tensor, rows: int, bmm1: Any, bmm2: Any, window_left: int,
             out: Optional[Tensor], out_dtype: Any, sinks: Any, layout: str, causal: bool, shared: bool, lse: Optional[Tensor], return_lse: bool,
             o_scale: Optional[float] = 1.0) -> Any:  # fmt: skip
    """What both of TensorRT-LLM's calls do."""
    if not shared:
        raise _options.Error("uses_shared_paged_kv_idx is False; K and V have their pages in common here: give one table, [batch, max_pages]")
    if isinstance(sinks, (list, tuple)):
        if len(sinks) != 1:
            raise _options.Error(f"sinks is a list of {len(sinks)}; give one tensor [heads]")
        sinks = sinks[0]
    lengths = _tables.int32(lengths.flatten() if isinstance(lengths, Tensor) else lengths, "seq_lens")
    cu_q, max_keys = _tables.int32(cu_q, "cum_seq_lens_q"), _options.whole(max_keys, "the most keys of a request", 0, 2**31 - 1, "keys")
    if not isinstance(query, Tensor) or query.dim() != 3:
        raise _options.Error(f"query is {tuple(query.shape) if isinstance(query, Tensor) else type(query).__name__}; give [rows, heads, dim]")
    layout = _options.layout_of(layout)
    k, v = _options.split(cache, layout, "kv_cache")
    given = out.dtype if out is not None and out_dtype is None else out_dtype
    # A scale on the device is not waited for: that of an 8-bit K is read there, as its factor.
    fused = bmm1 if k.dtype.itemsize == 1 and _options.is_on(bmm1, query.device) and not _options.is_by_head(bmm1) else None
    o = _options.options(query.shape[-2], k.shape[1 if layout == "HND" else 2], query.shape[-1], v.shape[3], causal=causal, pos_encoding_mode="NONE",
                         window_left=window_left, logits_soft_cap=None, sm_scale=1.0 if fused is not None else _options.number(bmm1, "bmm1_scale"),
                         q_data_type=query.dtype, kv_data_type=k.dtype, o_data_type=given)  # fmt: skip
    by = _options.factors(o, tables.shape[0], query.device, None, fused, bmm2, o_scale)
    query = _options.require_q(query, o, None)
    made = _paged.paged_attention(query, k, v, tables, lengths, cu_seqlens_q=cu_q, max_seqlen_q=rows,
                                  max_seqlen_kv=min(max_keys, tables.shape[1] * k.shape[2 if layout == "HND" else 1]), layout=layout,
                                  out=_options.output(query, o, out), return_lse=return_lse or lse is not None,
                                  **_options.keywords(o, query.device, by, sinks))  # fmt: skip
    made = _options.finish(made, return_lse or lse is not None, lse, by, cu_q if out is not None else None)
    return made[0] if lse is not None and not return_lse else made
