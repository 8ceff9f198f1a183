"""FlashInfer's multi-head latent attention over paged caches, after the projections are absorbed: all heads share one latent key, whose first
columns are the value."""

from __future__ import annotations

import functools
import math
from typing import Any, Optional, Union

import torch
from torch import Tensor

from .. import _columns, _plan
from . import _options, _tables
from ._run import Rows, run_paged

Made = Union[Tensor, tuple[Tensor, Tensor]]
_LN2 = math.log(2.0)
_BUFFERS = ("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr")


__all__ = ["BatchMLAPagedAttentionWrapper"]


class BatchMLAPagedAttentionWrapper:
    """flashinfer.mla.BatchMLAPagedAttentionWrapper: plan() once a step, run() in every layer. Chunks of prompts and decoding rows may be in
    one batch.

    A key is a row of ckv_cache beside its row of kpe_cache (512 and 64 columns of DeepSeek's models), and the row of ckv_cache is its value.
    The kernels read keys from one tensor. Two caches that are views of one, cache[..., :512] and cache[..., 512:] of
    [pages, page_size, 576], are read where they are. Caches in memory of their own are copied to one by every run(), all pages of them,
    which a flashcore.Note says once. q_nope and q_pe are few rows, and are copied where they are not such views.

    A GPU computes up to 576 columns by sm90_wide_fwd (Hopper) or sm80_wide_fwd, which has quantised caches too, and up to 1024 by ref_fwd; a CPU computes up to 256.

    Args:
        float_workspace_buffer: says the device; flashcore needs no workspace.
        use_cuda_graph: every plan() writes to the same memory, so that a captured run() replays with the newest boundaries, pages and lengths.
        qo_indptr, kv_indptr, kv_indices, kv_len_arr: buffers, needed with use_cuda_graph; the third says how many pages a request may have,
            unless the first plan() is given max_sequence_kv.
        backend: ignored, but for "cutlass", whose run() has no plan(): refused.

    Raises:
        flashcore.Error: as each method, for what has no kernel and for tensors that do not fit.
    """

    def __init__(self, float_workspace_buffer: Tensor, use_cuda_graph: bool = False, qo_indptr: Optional[Tensor] = None,
                 kv_indptr: Optional[Tensor] = None, kv_indices: Optional[Tensor] = None, kv_len_arr: Optional[Tensor] = None,
                 backend: str = "auto") -> None:  # fmt: skip
        if backend == "cutlass":
            raise _options.Error("backend is 'cutlass', whose run() takes tables and has no plan(); give 'auto' and call plan()")
        self._device = _options.device_of(float_workspace_buffer)
        self._graph = use_cuda_graph
        buffers = (qo_indptr, kv_indptr, kv_indices, kv_len_arr)
        if use_cuda_graph and any(x is None for x in buffers):
            missing = next(name for name, x in zip(_BUFFERS, buffers) if x is None)
            raise _options.Error(f"use_cuda_graph is True and {missing} is not given; give the buffers {', '.join(_BUFFERS)}")
        self._planner = _tables.LengthsPlanner(self._device, buffers[1:] if use_cuda_graph else None)  # type: ignore[arg-type]
        self._rows = Rows(self._device, qo_indptr if use_cuda_graph else None)
        self._of: Optional[_options.Options] = None

    @property
    def is_cuda_graph_enabled(self) -> bool:
        return self._graph

    @property
    def device(self) -> torch.device:
        return self._device

    def plan(self, qo_indptr: Tensor, kv_indptr: Tensor, kv_indices: Tensor, kv_len_arr: Tensor, num_heads: int, head_dim_ckv: int, head_dim_kpe: int,
             page_size: int, causal: bool, sm_scale: float, q_data_type: Any, kv_data_type: Any, use_profiler: bool = False, *,
             max_token_per_sequence: Optional[int] = None, max_sequence_kv: Optional[int] = None) -> None:  # fmt: skip
        """Says what the next runs compute. It waits for a GPU only where boundaries are there and their bounds (max_token_per_sequence,
        max_sequence_kv) are not given.

        Args:
            qo_indptr: int32 [batch + 1]: request s has the rows qo_indptr[s] to qo_indptr[s + 1] - 1 of q_nope and q_pe.
            kv_indptr: int32 [batch + 1]: request s has the pages kv_indices[kv_indptr[s]] to kv_indices[kv_indptr[s + 1] - 1]. As in FlashInfer
                there may be more elements, which are not looked at.
            kv_indices: int32 [all pages of all requests].
            kv_len_arr: int32 [batch]: keys of each request, its rows' own ones included. More than its pages hold, or fewer than none, give
                NaN.
            num_heads: query heads; there is one key head.
            head_dim_ckv, head_dim_kpe: columns of the two caches; the second may be 0.
            page_size: keys of a page, 1 to 65536.
            causal: each request's last row sees all of its keys, the row before it one less, ...
            sm_scale: what scores are multiplied with: 1/sqrt of the head dim before the projections were absorbed, (128 + 64) ** -0.5 of
                DeepSeek's models. No default.
            q_data_type: float16, bfloat16, or on the CPU float32; the output has it too.
            kv_data_type: q_data_type, or float8_e4m3fn, float8_e5m2 or int8: quantised caches, whose factors run() is given.
            use_profiler: False only.
            max_token_per_sequence, max_sequence_kv: the most rows and keys that a request may have (not in FlashInfer).
        """
        _options.refuse(use_profiler=use_profiler)
        ckv = _options.whole(head_dim_ckv, "head_dim_ckv", 1, 2**31 - 1, "columns")
        kpe = _options.whole(head_dim_kpe, "head_dim_kpe", 0, 2**31 - 1 - ckv, "columns")
        heads = _options.whole(num_heads, "num_heads", 1, 2**31 - 1, "heads")
        if sm_scale is None:
            raise _options.Error("sm_scale is None; give 1/sqrt of the head dim before the projections were absorbed, as (128 + 64) ** -0.5")
        if (q := _options.dtype_of(q_data_type, "q_data_type")).itemsize == 1:
            raise _options.Error(f"q_data_type is {q}; give float16 or bfloat16: only the caches may have 8 bits")
        of = _options.options(heads, 1, ckv + kpe, ckv, causal=bool(causal), pos_encoding_mode="NONE", window_left=-1, logits_soft_cap=None,
                              sm_scale=_options.number(sm_scale, "sm_scale"), q_data_type=q, kv_data_type=kv_data_type, o_data_type=None)  # fmt: skip
        self._of = None  # until all of it fits: runs of half a plan would read other pages
        bounds = _tables.int32(qo_indptr, "qo_indptr").shape[0]
        if isinstance(kv_len_arr, Tensor) and kv_len_arr.shape == (bounds - 1,) and isinstance(kv_indptr, Tensor) and kv_indptr.dim() == 1:
            kv_indptr = kv_indptr[:bounds]
        pages = self._planner.plan(kv_indptr, kv_indices, kv_len_arr, page_size, max_sequence_kv, None, None)
        if _tables.int32(qo_indptr, "qo_indptr").shape[0] != pages.used.shape[0] + 1:
            raise _options.Error(f"qo_indptr has {qo_indptr.shape[0]} elements and kv_len_arr {pages.used.shape[0]}; give [batch + 1] and [batch]")
        self._rows.plan(qo_indptr, "qo_indptr", max_token_per_sequence)
        self._of = of

    def run(self, q_nope: Tensor, q_pe: Tensor, ckv_cache: Tensor, kpe_cache: Tensor, out: Optional[Tensor] = None, lse: Optional[Tensor] = None,
            return_lse: bool = False, profiler_buffer: Optional[Tensor] = None, kv_len: Optional[Tensor] = None, page_table: Optional[Tensor] = None,
            return_lse_base_on_e: bool = False, o_scale: Optional[float] = None, *, ckv_scale: Optional[float] = None,
            ckv_scale_arr: Optional[Tensor] = None, kpe_scale: Optional[float] = None) -> Made:  # fmt: skip
        """Attention of each request's rows.

        Args:
            q_nope: [rows of all requests, heads, head_dim_ckv].
            q_pe: [rows of all requests, heads, head_dim_kpe].
            ckv_cache: [pages, page_size, head_dim_ckv], of any strides: the first columns of one tensor, for the reason above.
            kpe_cache: [pages, page_size, head_dim_kpe]: the columns behind them.
            out: where to write, as q_nope.
            return_lse: also return the log-sum-exp, float32 [rows, heads]. lse: where to write it, asked for or not.
            return_lse_base_on_e: it is natural; otherwise to base 2.
            ckv_scale, kpe_scale: numbers that quantised caches are multiplied with; both needed there, and only there. Where they differ,
                q_nope or q_pe takes the smaller one's ratio to the other, and is rounded once more.
            profiler_buffer, kv_len, page_table, o_scale, ckv_scale_arr: None only.

        Returns:
            [rows, heads, head_dim_ckv], or (out, lse).
        """
        _options.refuse(profiler_buffer=profiler_buffer, kv_len=kv_len, page_table=page_table, o_scale=o_scale, ckv_scale_arr=ckv_scale_arr)
        o, pages = self._of, self._planner.made
        if o is None or pages is None:
            raise _options.Error("run() is called before plan(); plan() says the requests and heads")
        kpe = o.dim - o.dim_v
        q_nope, q_pe = (_require(x, name, o.dtype, ("rows", o.heads_q, dim)) for x, name, dim in ((q_nope, "q_nope", o.dim_v), (q_pe, "q_pe", kpe)))
        ckv_cache, kpe_cache = (_require(x, name, o.kv_dtype, ("pages", pages.page_size, dim))
                                for x, name, dim in ((ckv_cache, "ckv_cache", o.dim_v), (kpe_cache, "kpe_cache", kpe)))  # fmt: skip
        for name, x, other, y in (("q_pe", q_pe, "q_nope", q_nope), ("kpe_cache", kpe_cache, "ckv_cache", ckv_cache)):
            if x.shape[0] != y.shape[0] or x.device != y.device:
                raise _options.Error(f"{name} has shape {tuple(x.shape)} on {x.device} and {other} {tuple(y.shape)} on {y.device}; give as many on one device")
        scales, ratios = _scales(o, ckv_scale, kpe_scale)
        q_nope, q_pe = (x if by == 1.0 else (x.float() * by).to(o.dtype) for x, by in zip((q_nope, q_pe), ratios))
        q = _columns.adjoined(q_nope, q_pe)
        keys = _cache(ckv_cache, kpe_cache).unsqueeze(2)
        cu_q, rows = self._rows.of(q_nope, "q_nope has")
        made = run_paged(_columns.joined(q_nope, q_pe) if q is None else q, (keys, keys[..., : o.dim_v]), o, pages, cu_q, rows, "NHD", scales, out, lse,
                         return_lse, None, None)  # fmt: skip
        if return_lse_base_on_e and (return_lse or lse is not None):
            (made[1] if lse is None else lse).mul_(_LN2)
        return made  # type: ignore[no-any-return]

    run_return_lse = functools.partialmethod(run, return_lse=True)


def _require(x: Any, name: str, dtype: torch.dtype, shape: tuple[Any, ...]) -> Tensor:
    if not isinstance(x, Tensor) or x.dim() != 3 or tuple(x.shape[1:]) != shape[1:] or x.dtype != dtype:
        what = f".dtype is {x.dtype}, its shape {tuple(x.shape)}" if isinstance(x, Tensor) else f" is a {type(x).__name__}"
        raise _options.Error(f"{name}{what}; plan() was told {dtype} [{', '.join(map(str, shape))}]")
    return x.detach()


def _scales(o: _options.Options, ckv: Any, kpe: Any) -> tuple[tuple[Any, Any, Any], tuple[float, float]]:
    """Those of q, K and V, and what q_nope and q_pe are multiplied with: K has one factor for all of its columns."""
    if o.kv_dtype == o.dtype:
        for name, x in (("ckv_scale", ckv), ("kpe_scale", kpe)):
            if x is not None:
                raise _options.Error(f"{name} is given and kv_data_type is {o.kv_dtype}; leave it out: only caches of 8 bits have factors")
        return (None, None, None), (1.0, 1.0)
    kpe = ckv if o.dim == o.dim_v and kpe is None else kpe
    numbers = []
    for name, x in (("ckv_scale", ckv), ("kpe_scale", kpe)):
        if x is None:
            raise _options.Error(f"{name} is not given and kv_data_type is {o.kv_dtype}; give what the codes of the cache are multiplied with, 1.0 for none")
        numbers.append(_options.number(x, name))
        if not 0 < numbers[-1] < math.inf:
            raise _options.Error(f"{name} is {x}; give a number that is positive and finite")
    of_ckv, of_kpe = numbers if o.dim > o.dim_v else (numbers[0], numbers[0])
    larger = max(of_ckv, of_kpe)  # so that q is made smaller, and does not overflow in 16 bits
    return (None, larger, of_ckv), (of_ckv / larger, of_kpe / larger)


def _cache(ckv: Tensor, kpe: Tensor) -> Tensor:
    found = _columns.adjoined(ckv, kpe)
    if found is not None:
        return found
    made = _columns.joined(ckv, kpe)
    if made.numel() == 0:
        return made
    # Right, and slow: refusing would leave FlashInfer's own examples without an answer.
    _plan.say_once(f"ckv_cache and kpe_cache are not columns of one tensor, so every run() copies all of their pages into one: here {made.nbytes / 2**20:.1f} "
                   f"MiB of new memory, read and written before attention reads it. Allocate cache = [pages, page_size, {made.shape[-1]}] and give "
                   f"cache[..., :{ckv.shape[-1]}] and cache[..., {ckv.shape[-1]}:], which are read where they are", key="mla_caches_apart")  # fmt: skip
    return made
