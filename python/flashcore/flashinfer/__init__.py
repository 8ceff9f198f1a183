"""FlashInfer's classes and functions, with their names and arguments: an engine that imports them from `flashinfer` can import them here.

    import flashcore.flashinfer as flashinfer
    decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD")
    decode.plan(indptr, indices, last_page_len, 32, 8, 128, 16, q_data_type=torch.bfloat16)
    out = decode.run(q, kv_cache)

The modules `decode`, `prefill`, `mla`, `page`, `cascade` and `attention` have FlashInfer's names too. Any GPU from sm_80 and the CPU, float32 too
on the CPU; V may have another head dim than K. Nothing is compiled by plan(), no workspace is used, and log-sum-exps are to base 2, as
FlashInfer's are. Page lists, tables and lengths may be int64; a number that 32 bits do not hold is no page. With causal ALiBi
log-sum-exps count distances from a row's own key. A request whose pages or lengths do not fit gets NaN, never another's data.

Not here: rotary embeddings inside attention (ROPE_LLAMA), 4-bit caches, sparse latent attention, multi-item scoring, POD and block-sparse
wrappers, head dims above 256 on a CPU.
"""

from __future__ import annotations

from . import attention, cascade, decode, mla, page, prefill
from .attention import BatchAttentionWithAttentionSinkWrapper
from .cascade import MultiLevelCascadeAttentionWrapper, merge_state, merge_state_in_place, merge_states
from .decode import (BatchDecodeWithPagedKVCacheWrapper, CUDAGraphBatchDecodeWithPagedKVCacheWrapper, fast_decode_plan, single_decode_with_kv_cache,
                     trtllm_batch_decode_with_kv_cache)  # fmt: skip
from .mla import BatchMLAPagedAttentionWrapper
from .page import append_paged_kv_cache, append_paged_mla_kv_cache, get_batch_indices_positions, get_seq_lens
from .prefill import (BatchPrefillWithPagedKVCacheWrapper, BatchPrefillWithRaggedKVCacheWrapper, single_prefill_with_kv_cache,
                      single_prefill_with_kv_cache_return_lse, trtllm_batch_context_with_kv_cache)  # fmt: skip

__all__ = ["BatchAttentionWithAttentionSinkWrapper", "BatchDecodeWithPagedKVCacheWrapper", "BatchMLAPagedAttentionWrapper",
           "BatchPrefillWithPagedKVCacheWrapper", "BatchPrefillWithRaggedKVCacheWrapper", "CUDAGraphBatchDecodeWithPagedKVCacheWrapper",
           "MultiLevelCascadeAttentionWrapper", "append_paged_kv_cache", "append_paged_mla_kv_cache", "attention", "cascade", "decode",
           "fast_decode_plan", "get_batch_indices_positions", "get_seq_lens", "merge_state", "merge_state_in_place", "merge_states", "mla", "page",
           "prefill", "single_decode_with_kv_cache", "single_prefill_with_kv_cache", "single_prefill_with_kv_cache_return_lse",
           "trtllm_batch_context_with_kv_cache", "trtllm_batch_decode_with_kv_cache"]  # fmt: skip
