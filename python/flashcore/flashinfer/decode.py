"""FlashInfer's decoding: one row, or a few, of each request over its keys in a paged cache."""

from __future__ import annotations

import functools
from typing import Any, Optional, Union

import torch
from torch import Tensor

from . import _options, _tables
from ._options import Cache
from ._run import by_table, forwarded, run_paged, scales_of
from ._single import single_decode_with_kv_cache

Made = Union[Tensor, tuple[Tensor, Tensor]]


__all__ = ["BatchDecodeWithPagedKVCacheWrapper", "CUDAGraphBatchDecodeWithPagedKVCacheWrapper", "fast_decode_plan", "single_decode_with_kv_cache",
           "trtllm_batch_decode_with_kv_cache"]  # fmt: skip


class BatchDecodeWithPagedKVCacheWrapper:
    """flashinfer.BatchDecodeWithPagedKVCacheWrapper: plan() once a step, run() in every layer.

    plan() makes a block table on the device of the workspace. It waits for a GPU only where `indptr` is there and neither
    `max_sequence_kv` nor block tables are given: the longest request's pages are asked for. run() reads lengths and pages on the device.

    Args:
        float_workspace_buffer: says the device; flashcore needs no workspace.
        kv_layout: "NHD" ([pages, page_size, heads, dim]) or "HND" ([pages, heads, page_size, dim]).
        use_cuda_graph: every plan() writes to the same memory, so that a captured run() replays with the newest lengths and pages.
        paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer: needed with use_cuda_graph; the second says how
            many pages a request may have, unless the first plan() is given max_sequence_kv.
        use_tensor_cores, backend: ignored.
        jit_args: None only.

    Raises:
        flashcore.Error: as each method, for what has no kernel and for tensors that do not fit.
    """

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False, use_tensor_cores: bool = False,
                 paged_kv_indptr_buffer: Optional[Tensor] = None, paged_kv_indices_buffer: Optional[Tensor] = None,
                 paged_kv_last_page_len_buffer: Optional[Tensor] = None, backend: str = "auto", jit_args: Any = None) -> None:  # fmt: skip
        _options.refuse(jit_args=jit_args)
        self._layout = _options.layout_of(kv_layout)
        self._graph = use_cuda_graph
        self._device = _options.device_of(float_workspace_buffer)
        self.use_tensor_cores = use_tensor_cores
        buffers = (paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer)
        if use_cuda_graph and any(x is None for x in buffers):
            raise _options.Error("use_cuda_graph is True and a buffer is not given; give those of indptr, indices and last_page_len")
        self._planner = _tables.Planner(self._device, buffers if use_cuda_graph else None)  # type: ignore[arg-type]
        self._of: Optional[_options.Options] = None
        self._rows = 1
        self._cu_q: Optional[Tensor] = None

    @property
    def is_cuda_graph_enabled(self) -> bool:
        return self._graph

    @property
    def device(self) -> torch.device:
        return self._device

    def reset_workspace_buffer(self, float_workspace_buffer: Tensor, int_workspace_buffer: Any = None) -> None:
        """Ignored: there is no workspace."""

    def plan(self, indptr: Tensor, indices: Tensor, last_page_len: Tensor, num_qo_heads: int, num_kv_heads: int, head_dim: int, page_size: int,
             pos_encoding_mode: str = "NONE", window_left: int = -1, logits_soft_cap: Optional[float] = None, q_data_type: Any = "float16",
             kv_data_type: Any = None, o_data_type: Any = None, data_type: Any = None, sm_scale: Optional[float] = None,
             rope_scale: Optional[float] = None, rope_theta: Optional[float] = None, non_blocking: bool = True,
             block_tables: Optional[Tensor] = None, seq_lens: Optional[Tensor] = None, fixed_split_size: Optional[int] = None,
             disable_split_kv: bool = False, q_len_per_req: int = 1, *, max_sequence_kv: Optional[int] = None,
             global_override_indptr_cpu: Optional[Tensor] = None) -> None:  # fmt: skip
        """Says what the next runs compute.

        Args:
            indptr: int32 [batch + 1]: request s has the pages indices[indptr[s]] to indices[indptr[s + 1] - 1].
            indices: int32 [all pages of all requests].
            last_page_len: int32 [batch]: keys in each request's last page, 1 to page_size.
            pos_encoding_mode: "NONE", or "ALIBI" with the slopes of its paper.
            window_left: keys that a row sees before its own one; -1: all.
            logits_soft_cap: None or 0 for none.
            q_data_type, kv_data_type, data_type: q's type and the caches', which must be one, but for caches of 8 bits beside q of 16;
                data_type stands for those that are None.
            o_data_type: the output's, of 8-bit q; default bfloat16 there.
            sm_scale: default 1/sqrt(head_dim).
            block_tables, seq_lens: int32 [batch, pages] and [batch], in the place of the page lists.
            q_len_per_req: rows of each request, causal among themselves; their keys are in the cache already.
            max_sequence_kv: the most keys that a request may have (not in FlashInfer's decode; bounds the table without a look at indptr).
            global_override_indptr_cpu: indptr on the host, as of fast_decode_plan.
            fixed_split_size, disable_split_kv: a positive number or True: a request's results have the same bits whatever else is in the
                batch, by deterministic_batch of flashcore.paged_attention. Any number means the same.
            rope_scale, rope_theta, non_blocking: ignored.
        """
        if q_len_per_req < 1:
            raise _options.Error(f"q_len_per_req is {q_len_per_req}; give the rows of a request, 1 or more")
        q_data_type = data_type if q_data_type is None else q_data_type
        kv_data_type = data_type if kv_data_type is None else kv_data_type
        of = _options.options(num_qo_heads, num_kv_heads, head_dim, None, causal=True, pos_encoding_mode=pos_encoding_mode, window_left=window_left,
                              logits_soft_cap=logits_soft_cap, sm_scale=sm_scale, q_data_type="float16" if q_data_type is None else q_data_type,
                              kv_data_type=kv_data_type, o_data_type=o_data_type, fixed_split_size=fixed_split_size,
                              disable_split_kv=disable_split_kv)  # fmt: skip
        self._of = None  # until all of it fits: runs of half a plan would read other pages
        starts = indptr if global_override_indptr_cpu is None else global_override_indptr_cpu
        pages = self._planner.plan(starts, indices, last_page_len, page_size, max_sequence_kv, block_tables, seq_lens)
        if self._cu_q is None or self._cu_q.shape[0] != pages.used.shape[0] + 1 or self._rows != q_len_per_req:
            self._cu_q = torch.arange(pages.used.shape[0] + 1, dtype=torch.int32, device=self._device) * q_len_per_req
        self._of, self._rows = _options.make_slopes(of, self._device), q_len_per_req

    begin_forward = plan

    def run(self, q: Tensor, paged_kv_cache: Cache, *args: Any, q_scale: Any = None, k_scale: Any = None, v_scale: Any = None, out: Optional[Tensor] = None,
            lse: Optional[Tensor] = None, return_lse: bool = False, enable_pdl: Optional[bool] = None, window_left: Optional[int] = None,
            sinks: Optional[Tensor] = None, q_len_per_req: Optional[int] = None, skip_softmax_threshold_scale_factor: Optional[float] = None,
            kv_cache_sf: Any = None) -> Made:  # fmt: skip
        """Attention of each request's rows.

        Args:
            q: [batch * q_len_per_req, heads, dim].
            args: of 8 bits the scales of q, k and v, as by name.
            paged_kv_cache: [pages, 2, page_size, heads_kv, dim] (NHD) or [pages, 2, heads_kv, page_size, dim] (HND), or (K, V) without the 2.
                Pages of one key may lack their axis.
            q_scale, k_scale, v_scale: numbers that scores and outputs are multiplied with; of 8 bits also tensors on q's device, of one element
                or float32 [heads] of each, which are not waited for.
            out: where to write, as q.
            return_lse: also return the log-sum-exp to base 2, float32 [rows, heads]. lse: where to write it, asked for or not.
            window_left: in the place of plan()'s.
            sinks: [heads], logits that join each row's sum.
            enable_pdl: ignored.

        Returns:
            The output, or (output, lse).
        """
        _options.refuse(skip_softmax_threshold_scale_factor=skip_softmax_threshold_scale_factor, kv_cache_sf=kv_cache_sf)
        o, pages = self._of, self._planner.made
        if o is None or pages is None:
            raise _options.Error("run() is called before plan(); plan() says the pages and heads")
        batch = pages.used.shape[0]
        if q_len_per_req is not None and q_len_per_req != self._rows:
            raise _options.Error(f"q_len_per_req is {q_len_per_req} and plan() was told {self._rows}; give both alike")
        q = _options.require_q(q, o, batch * self._rows)
        return run_paged(q, paged_kv_cache, o, pages, self._cu_q, self._rows, self._layout, scales_of(args, (q_scale, k_scale, v_scale)), out, lse, return_lse, window_left, sinks)

    run_return_lse = functools.partialmethod(run, return_lse=True)

    def forward(self, q: Tensor, paged_kv_cache: Cache, pos_encoding_mode: str = "NONE", q_scale: Any = None, k_scale: Any = None, v_scale: Any = None,
                window_left: int = -1, logits_soft_cap: Optional[float] = None, sm_scale: Optional[float] = None, rope_scale: Optional[float] = None,
                rope_theta: Optional[float] = None) -> Made:  # fmt: skip
        """run() with these in the place of plan()'s, as FlashInfer's older name has it."""
        self._of = forwarded(self._of, True, pos_encoding_mode, window_left, logits_soft_cap, sm_scale)
        return self.run(q, paged_kv_cache, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale)

    def forward_return_lse(self, q: Tensor, paged_kv_cache: Cache, pos_encoding_mode: str = "NONE", q_scale: Any = None, k_scale: Any = None,
                           v_scale: Any = None, window_left: int = -1, logits_soft_cap: Optional[float] = None, sm_scale: Optional[float] = None,
                           rope_scale: Optional[float] = None, rope_theta: Optional[float] = None) -> Made:  # fmt: skip
        """forward() with the log-sum-exp."""
        self._of = forwarded(self._of, True, pos_encoding_mode, window_left, logits_soft_cap, sm_scale)
        return self.run(q, paged_kv_cache, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, return_lse=True)

    def end_forward(self) -> None:
        """Nothing is held between plans."""


class CUDAGraphBatchDecodeWithPagedKVCacheWrapper(BatchDecodeWithPagedKVCacheWrapper):
    """flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper: the wrapper with use_cuda_graph."""

    def __init__(self, workspace_buffer: Tensor, indptr_buffer: Tensor, indices_buffer: Tensor, last_page_len_buffer: Tensor, kv_layout: str = "NHD",
                 use_tensor_cores: bool = False) -> None:  # fmt: skip
        super().__init__(workspace_buffer, kv_layout, True, use_tensor_cores, indptr_buffer, indices_buffer, last_page_len_buffer)


def fast_decode_plan(self: BatchDecodeWithPagedKVCacheWrapper, *args: Any, **kwargs: Any) -> None:
    """flashinfer.fast_decode_plan: every plan is one."""
    BatchDecodeWithPagedKVCacheWrapper.plan(self, *args, **kwargs)


def trtllm_batch_decode_with_kv_cache(query: Tensor, kv_cache: Cache, workspace_buffer: Optional[Tensor], block_tables: Tensor, seq_lens: Tensor,
                                      max_seq_len: int, bmm1_scale: Any = 1.0, bmm2_scale: Any = 1.0, window_left: int = -1,
                                      out: Optional[Tensor] = None, out_dtype: Any = None, o_sf_scale: Optional[float] = None,
                                      o_sf_vec_size: Optional[int] = None, sinks: Any = None, kv_layout: str = "HND",
                                      enable_pdl: Optional[bool] = None, backend: str = "auto", q_len_per_req: Optional[int] = 1,
                                      o_scale: Optional[float] = 1.0, mask: Optional[Tensor] = None, max_q_len: Optional[int] = None,
                                      cum_seq_lens_q: Optional[Tensor] = None, skip_softmax_threshold_scale_factor: Optional[float] = None,
                                      kv_cache_sf: Any = None, uses_shared_paged_kv_idx: bool = True, lse: Optional[Tensor] = None,
                                      return_lse: bool = False, bmm1_scale_log2: Optional[Tensor] = None,
                                      multi_ctas_kv_counter_buffer: Optional[Tensor] = None, enable_block_sparse_attention: bool = False,
                                      bf16q_fp8kv_transform_mode: Optional[str] = None) -> Made:  # fmt: skip
    """flashinfer.decode.trtllm_batch_decode_with_kv_cache: the last rows of each request over its keys, without a plan. Nothing is read on
    the host, so that a captured call serves any lengths up to max_seq_len.

    Args:
        query: [batch * q_len_per_req, heads, dim]; with cum_seq_lens_q [rows of all requests, heads, dim].
        kv_cache: [pages, 2, heads_kv, page_size, dim], [pages, 2, page_size, heads_kv, dim] with kv_layout="NHD", or (K, V) without the 2.
        block_tables: int32 [batch, max_pages].
        seq_lens: int32 [batch]: keys of each request, those of its rows included.
        max_seq_len: the most keys that a request may have.
        bmm1_scale: what scores are multiplied with, q_scale * k_scale * sm_scale: the scale of softmax, and those of a quantised cache and
            of 8-bit q. A number, or of 8-bit caches a tensor of one element on the device of q, which is not waited for.
        bmm2_scale: what outputs are multiplied with: v_scale. As bmm1_scale.
        window_left: keys that a row sees before its own one; -1: all.
        out, out_dtype: where to write, or its type.
        sinks: [heads], logits that join each row's sum; a tensor or a list of one.
        q_len_per_req: rows of each request, causal among themselves.
        max_q_len, cum_seq_lens_q: a bound and int32 [batch + 1], for requests with different numbers of rows.
        return_lse, lse: the log-sum-exp to base 2 too, float32 [rows, heads].
        workspace_buffer, enable_pdl, backend, multi_ctas_kv_counter_buffer, bf16q_fp8kv_transform_mode: ignored.
        o_sf_scale, mask, skip_softmax_threshold_scale_factor, kv_cache_sf, bmm1_scale_log2: None only; the other two flags as by default.

    Returns:
        [rows, heads, dim], or (out, lse).
    """
    _options.refuse(o_sf_scale=o_sf_scale, mask=mask, skip_softmax_threshold_scale_factor=skip_softmax_threshold_scale_factor, kv_cache_sf=kv_cache_sf,
                    bmm1_scale_log2=bmm1_scale_log2, enable_block_sparse_attention=enable_block_sparse_attention)  # fmt: skip
    block_tables = _tables.int32(block_tables, "block_tables", 2)
    rows = 1 if q_len_per_req is None else q_len_per_req
    if cum_seq_lens_q is None:
        if query.shape[0] != block_tables.shape[0] * rows:
            raise _options.Error(f"query has {query.shape[0]} rows and block_tables {block_tables.shape[0]} requests of {rows}; give batch * q_len_per_req")
        cum_seq_lens_q = torch.arange(block_tables.shape[0] + 1, dtype=torch.int32, device=query.device) * rows
    elif max_q_len is None:
        raise _options.Error("cum_seq_lens_q is given and max_q_len is not; give the most rows that a request may have")
    return by_table(query, kv_cache, block_tables, seq_lens, max_seq_len, cum_seq_lens_q, rows if max_q_len is None else max_q_len, bmm1_scale, bmm2_scale,
                    window_left, out, out_dtype, sinks, kv_layout, True, uses_shared_paged_kv_idx, lse, return_lse, o_scale)  # fmt: skip
