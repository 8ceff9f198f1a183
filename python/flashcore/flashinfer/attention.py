"""FlashInfer's wrapper for models with attention sinks."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor

from . import _options
from ._options import Cache
from .prefill import BatchPrefillWithPagedKVCacheWrapper

__all__ = ["BatchAttentionWithAttentionSinkWrapper"]


class BatchAttentionWithAttentionSinkWrapper(BatchPrefillWithPagedKVCacheWrapper):
    """flashinfer.BatchAttentionWithAttentionSinkWrapper: BatchPrefillWithPagedKVCacheWrapper, whose run() is given the sinks.

    Args:
        pos_encoding_mode, use_fp16_qk_reduction, q_data_type, kv_data_type, head_dim_qk, head_dim_vo, window_left: ignored, as plan() says
            them.
        The rest as of BatchPrefillWithPagedKVCacheWrapper.
    """

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False, qo_indptr_buf: Optional[Tensor] = None,
                 paged_kv_indptr_buf: Optional[Tensor] = None, paged_kv_indices_buf: Optional[Tensor] = None,
                 paged_kv_last_page_len_buf: Optional[Tensor] = None, custom_mask_buf: Optional[Tensor] = None,
                 mask_indptr_buf: Optional[Tensor] = None, backend: str = "auto", pos_encoding_mode: str = "NONE",
                 use_fp16_qk_reduction: bool = False, q_data_type: torch.dtype = torch.bfloat16, kv_data_type: torch.dtype = torch.bfloat16,
                 head_dim_qk: int = 128, head_dim_vo: int = 128, window_left: int = -1) -> None:  # fmt: skip
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, qo_indptr_buf, paged_kv_indptr_buf, paged_kv_indices_buf,
                         paged_kv_last_page_len_buf, custom_mask_buf, mask_indptr_buf, backend)  # fmt: skip

    def run(self, q: Tensor, paged_kv_cache: Cache, *args: Any, sinks: Optional[Tensor] = None,
            **options: Any) -> Union[Tensor, tuple[Tensor, Tensor]]:  # fmt: skip
        """run(q, cache, sink, sm_scale): as BatchPrefillWithPagedKVCacheWrapper.run, with a logit for each query head that joins each row's
        sum, and the scale of scores in the place of plan()'s."""
        if len(args) > 2 or (args and sinks is not None):
            raise _options.Error(f"run() is given {len(args)} arguments behind the cache; give the sinks [heads] and the scale of scores")
        if len(args) == 2 and self._of is not None:
            planned, self._of = self._of, self._of._replace(scale=args[1])
            try:
                return super().run(q, paged_kv_cache, sinks=args[0], **options)
            finally:
                self._of = planned
        return super().run(q, paged_kv_cache, sinks=args[0] if args else sinks, **options)
