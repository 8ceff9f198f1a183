"""FlashInfer's prefill: rows of requests over paged caches, ragged tensors, or one dense one."""

from __future__ import annotations

import functools
from typing import Any, Optional, Union

import torch
from torch import Tensor

from . import _masks, _options, _tables
from ._options import Cache
from ._ragged import BatchPrefillWithRaggedKVCacheWrapper
from ._run import Rows, by_table, forwarded, many_rows, run_paged, scales_of, sinks_of
from ._single import single_prefill_with_kv_cache, single_prefill_with_kv_cache_return_lse

Made = Union[Tensor, tuple[Tensor, Tensor]]


__all__ = ["BatchPrefillWithPagedKVCacheWrapper", "BatchPrefillWithRaggedKVCacheWrapper", "single_prefill_with_kv_cache",
           "single_prefill_with_kv_cache_return_lse", "trtllm_batch_context_with_kv_cache"]  # fmt: skip


class BatchPrefillWithPagedKVCacheWrapper:
    """flashinfer.BatchPrefillWithPagedKVCacheWrapper: plan() once a step, run() in every layer. Chunks of prompts, whole prompts and
    decoding rows may be in one batch.

    plan() waits for a GPU only where boundaries are there and their bounds (max_token_per_sequence, max_sequence_kv) are not given, or with
    custom masks.

    Args:
        float_workspace_buffer: says the device; flashcore needs no workspace.
        kv_layout: "NHD" or "HND".
        use_cuda_graph: every plan() writes to the same memory, so that a captured run() replays with the newest boundaries and pages.
        qo_indptr_buf, paged_kv_indptr_buf, paged_kv_indices_buf, paged_kv_last_page_len_buf: needed with use_cuda_graph.
        custom_mask_buf: needed with use_cuda_graph if plan() is given masks: as many bits as they have pairs of a row and a key at most.
            flashcore keeps a byte for each of the bits, in memory of its own.
        mask_indptr_buf: ignored.
        jit_args: None, or those of FlashInfer's variant AttentionSink: run(q, cache, sinks, sm_scale) then. jit_kwargs: ignored.
        backend: ignored.

    Raises:
        flashcore.Error: as each method, for what has no kernel and for tensors that do not fit.
    """

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False, qo_indptr_buf: Optional[Tensor] = None,
                 paged_kv_indptr_buf: Optional[Tensor] = None, paged_kv_indices_buf: Optional[Tensor] = None,
                 paged_kv_last_page_len_buf: Optional[Tensor] = None, custom_mask_buf: Optional[Tensor] = None,
                 mask_indptr_buf: Optional[Tensor] = None, backend: str = "auto", jit_args: Any = None, jit_kwargs: Any = None) -> None:  # fmt: skip
        self._has_sinks = _options.is_sink_variant(jit_args)
        self._layout = _options.layout_of(kv_layout)
        self._graph = use_cuda_graph
        self._device = _options.device_of(float_workspace_buffer)
        buffers = (paged_kv_indptr_buf, paged_kv_indices_buf, paged_kv_last_page_len_buf)
        if use_cuda_graph and any(x is None for x in (qo_indptr_buf, *buffers)):
            raise _options.Error("use_cuda_graph is True and a buffer is not given; give those of qo_indptr, indptr, indices and last_page_len")
        self._planner = _tables.Planner(self._device, buffers if use_cuda_graph else None)  # type: ignore[arg-type]
        self._rows = Rows(self._device, qo_indptr_buf if use_cuda_graph else None)
        self._masks = _masks.Masks(self._device, use_cuda_graph, custom_mask_buf)
        self._of: Optional[_options.Options] = None

    @property
    def is_cuda_graph_enabled(self) -> bool:
        return self._graph

    @property
    def device(self) -> torch.device:
        return self._device

    def reset_workspace_buffer(self, float_workspace_buffer: Tensor, int_workspace_buffer: Any = None) -> None:
        """Ignored: there is no workspace."""

    def plan(self, qo_indptr: Tensor, paged_kv_indptr: Tensor, paged_kv_indices: Tensor, paged_kv_last_page_len: Tensor, num_qo_heads: int,
             num_kv_heads: int, head_dim_qk: int, page_size: int, head_dim_vo: Optional[int] = None, custom_mask: Optional[Tensor] = None,
             packed_custom_mask: Optional[Tensor] = None, causal: bool = False, pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False,
             sm_scale: Optional[float] = None, window_left: int = -1, logits_soft_cap: Optional[float] = None, rope_scale: Optional[float] = None,
             rope_theta: Optional[float] = None, q_data_type: Any = "float16", kv_data_type: Any = None, o_data_type: Any = None,
             non_blocking: bool = True, prefix_len_ptr: Optional[Tensor] = None, token_pos_in_items_ptr: Optional[Tensor] = None,
             token_pos_in_items_len: int = 0, max_item_len_ptr: Optional[Tensor] = None, seq_lens: Optional[Tensor] = None,
             seq_lens_q: Optional[Tensor] = None, block_tables: Optional[Tensor] = None, max_token_per_sequence: Optional[int] = None,
             max_sequence_kv: Optional[int] = None, fixed_split_size: Optional[int] = None, disable_split_kv: bool = False) -> None:  # fmt: skip
        """Says what the next runs compute.

        Args:
            qo_indptr: int32 [batch + 1]: request s has the rows qo_indptr[s] to qo_indptr[s + 1] - 1 of q.
            paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len: as of BatchDecodeWithPagedKVCacheWrapper.plan. The rows' own keys are
                among them.
            head_dim_vo: V's head dim; default: K's.
            causal: each request's last row sees all of its keys, the row before it one less, ...
            pos_encoding_mode: "NONE", or "ALIBI" with the slopes of its paper.
            custom_mask: bool [sum of rows * keys], True where a row sees a key: the masks [rows, keys] of the requests, one after another. In the
                place of causal; a window counts besides.
            packed_custom_mask: the same in bits, uint8, the lowest bit first, each request's in whole bytes, as FlashInfer's own segment_packbits
                packs; custom_mask is ignored then.
            max_token_per_sequence, max_sequence_kv: the most rows and keys that a request may have.
            block_tables, seq_lens: int32 [batch, pages] and [batch], in the place of the page lists.
            prefix_len_ptr, token_pos_in_items_ptr, max_item_len_ptr: None only.
            use_fp16_qk_reduction, rope_scale, rope_theta, non_blocking, token_pos_in_items_len, seq_lens_q: ignored.
            The rest as of BatchDecodeWithPagedKVCacheWrapper.plan.
        """
        _options.refuse(prefix_len_ptr=prefix_len_ptr, token_pos_in_items_ptr=token_pos_in_items_ptr, max_item_len_ptr=max_item_len_ptr)
        has_mask = custom_mask is not None or packed_custom_mask is not None
        of = _options.options(num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo, causal=causal and not has_mask, pos_encoding_mode=pos_encoding_mode,
                              window_left=window_left, logits_soft_cap=logits_soft_cap, sm_scale=sm_scale, q_data_type=q_data_type,
                              kv_data_type=kv_data_type, o_data_type=o_data_type, fixed_split_size=fixed_split_size,
                              disable_split_kv=disable_split_kv)  # fmt: skip
        self._of = None  # until all of it fits: runs of half a plan would read other pages
        pages = self._planner.plan(paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size, max_sequence_kv, block_tables, seq_lens)
        if qo_indptr.shape[0] != pages.used.shape[0] + 1:
            raise _options.Error(f"qo_indptr has {qo_indptr.shape[0]} elements and the caches {pages.used.shape[0]} requests; give [batch + 1]")
        self._rows.plan(qo_indptr, "qo_indptr", max_token_per_sequence)
        mask = self._masks.plan(custom_mask, packed_custom_mask, self._rows.lengths(), pages.used)
        self._of = _options.make_slopes(of, self._device)._replace(mask=mask)

    begin_forward = plan

    def run(self, q: Tensor, paged_kv_cache: Cache, *args: Any, q_scale: Any = None, k_scale: Any = None, v_scale: Any = None, out: Optional[Tensor] = None,
            lse: Optional[Tensor] = None, return_lse: bool = False, enable_pdl: Optional[bool] = None, window_left: Optional[int] = None,
            sinks: Optional[Tensor] = None, kv_cache_sf: Any = None, skip_softmax_threshold_scale_factor: Optional[float] = None,
            use_fp16_softmax: Optional[bool] = None, uses_spcompress: Optional[bool] = None) -> Made:  # fmt: skip
        """Attention of each request's rows.

        Args:
            q: [rows of all requests, heads, dim].
            args: of 8 bits the scales of q, k and v, a number or float32 [heads] each.
            The rest as of BatchDecodeWithPagedKVCacheWrapper.run.

        Returns:
            [rows, heads, dim of V], or (out, lse) with the log-sum-exp to base 2, float32 [rows, heads].
        """
        _options.refuse(skip_softmax_threshold_scale_factor=skip_softmax_threshold_scale_factor, kv_cache_sf=kv_cache_sf)
        o, pages = self._of, self._planner.made
        if o is None or pages is None:
            raise _options.Error("run() is called before plan(); plan() says the requests and heads")
        if self._has_sinks and sinks is None:
            (o, sinks), args = sinks_of(o, args), ()
        scales = scales_of(args, (q_scale, k_scale, v_scale))
        q = _options.require_q(q, o, None)
        cu_q, rows = self._rows.of(q)
        rows = many_rows(o, rows)
        return run_paged(q, paged_kv_cache, o, pages, cu_q, rows, self._layout, scales, out, lse, return_lse, window_left, sinks)

    run_return_lse = functools.partialmethod(run, return_lse=True)

    def forward(self, q: Tensor, paged_kv_cache: Cache, causal: bool = False, pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False,
                k_scale: Any = None, v_scale: Any = None, window_left: int = -1, logits_soft_cap: Optional[float] = None,
                sm_scale: Optional[float] = None, rope_scale: Optional[float] = None, rope_theta: Optional[float] = None) -> Made:  # fmt: skip
        """run() with these in the place of plan()'s, as FlashInfer's older name has it."""
        self._of = forwarded(self._of, causal, pos_encoding_mode, window_left, logits_soft_cap, sm_scale)
        return self.run(q, paged_kv_cache, k_scale=k_scale, v_scale=v_scale)

    def forward_return_lse(self, q: Tensor, paged_kv_cache: Cache, causal: bool = False, pos_encoding_mode: str = "NONE",
                           use_fp16_qk_reduction: bool = False, k_scale: Any = None, v_scale: Any = None, window_left: int = -1,
                           logits_soft_cap: Optional[float] = None, sm_scale: Optional[float] = None, rope_scale: Optional[float] = None,
                           rope_theta: Optional[float] = None) -> Made:  # fmt: skip
        """forward() with the log-sum-exp."""
        self._of = forwarded(self._of, causal, pos_encoding_mode, window_left, logits_soft_cap, sm_scale)
        return self.run(q, paged_kv_cache, k_scale=k_scale, v_scale=v_scale, return_lse=True)

    def end_forward(self) -> None:
        """Nothing is held between plans."""


def trtllm_batch_context_with_kv_cache(query: Tensor, kv_cache: Cache, workspace_buffer: Optional[Tensor], block_tables: Tensor, seq_lens: Tensor,
                                       max_q_len: int, max_kv_len: int, bmm1_scale: Any, bmm2_scale: Any, batch_size: int, cum_seq_lens_q: Tensor,
                                       cum_seq_lens_kv: Optional[Tensor], window_left: int = -1, out: Optional[Tensor] = None, out_dtype: Any = None,
                                       o_sf_scale: Optional[float] = None, o_sf_vec_size: Optional[int] = None, kv_layout: str = "HND",
                                       enable_pdl: Optional[bool] = None, sinks: Any = None, kv_cache_sf: Any = None,
                                       skip_softmax_threshold_scale_factor: Optional[float] = None, uses_shared_paged_kv_idx: bool = True,
                                       causal: bool = True, lse: Optional[Tensor] = None, return_lse: bool = False,
                                       multi_ctas_kv_counter_buffer: Optional[Tensor] = None, use_fp16_softmax: Optional[bool] = None,
                                       uses_spcompress: Optional[bool] = None) -> Made:  # fmt: skip
    """flashinfer.prefill.trtllm_batch_context_with_kv_cache: rows of requests over their keys in a paged cache, without a plan.

    Args:
        max_q_len, max_kv_len: the most rows and keys that a request may have.
        batch_size: requests.
        cum_seq_lens_q: int32 [batch + 1]: where the rows of each request begin.
        cum_seq_lens_kv: ignored, as seq_lens says it.
        causal: each request's last row sees all of its keys, the row before it one less, ...
        The rest as of trtllm_batch_decode_with_kv_cache.

    Returns:
        [rows, heads, dim], or (out, lse) with the log-sum-exp to base 2, float32 [rows, heads].
    """
    _options.refuse(o_sf_scale=o_sf_scale, kv_cache_sf=kv_cache_sf, skip_softmax_threshold_scale_factor=skip_softmax_threshold_scale_factor)
    block_tables = _tables.int32(block_tables, "block_tables", 2)
    if block_tables.shape[0] != batch_size or cum_seq_lens_q.shape != (batch_size + 1,):
        raise _options.Error(f"batch_size is {batch_size}, block_tables has shape {tuple(block_tables.shape)} and cum_seq_lens_q "
                             f"{tuple(cum_seq_lens_q.shape)}; give [batch, max_pages] and [batch + 1]")  # fmt: skip
    return by_table(query, kv_cache, block_tables, seq_lens, max_kv_len, cum_seq_lens_q, max_q_len, bmm1_scale, bmm2_scale, window_left, out, out_dtype,
                    sinks, kv_layout, causal, uses_shared_paged_kv_idx, lse, return_lse)  # fmt: skip
