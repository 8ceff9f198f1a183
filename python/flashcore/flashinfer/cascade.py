"""FlashInfer's merging of partial results, and attention over caches in several levels."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from . import _options
from ._options import Cache
from .prefill import BatchPrefillWithPagedKVCacheWrapper

__all__ = ["MultiLevelCascadeAttentionWrapper", "merge_state", "merge_state_in_place", "merge_states"]


def merge_states(v: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """flashinfer.merge_states: attention over all keys, of results over parts of them. PyTorch computes it, in float32.

    Args:
        v: [rows, parts, heads, dim]: outputs.
        s: [rows, parts, heads]: log-sum-exps to base 2.

    Returns:
        ([rows, heads, dim], float32 [rows, heads]). Of parts without keys (-inf) nothing counts.
    """
    if v.dim() != 4 or s.shape != v.shape[:3] or v.shape[1] == 0:
        raise _options.Error(f"v has shape {tuple(v.shape)} and s {tuple(s.shape)}; give [rows, parts, heads, dim] and [rows, parts, heads]")
    s = s.float()
    top = s.amax(1, keepdim=True)
    weights = torch.exp2(s - torch.where(top.isneginf(), 0.0, top))
    total = weights.sum(1)
    # A part without keys may hold anything.
    parts = torch.where(weights[..., None] == 0, 0.0, v.float() * weights[..., None])
    merged = parts.sum(1) / torch.where(total == 0, 1.0, total)[..., None]
    return merged.to(v.dtype), torch.log2(total) + torch.where(top.isneginf(), 0.0, top)[:, 0]


def merge_state(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor) -> tuple[Tensor, Tensor]:
    """flashinfer.merge_state: merge_states of two parts, [rows, heads, dim] and [rows, heads] each."""
    if v_a.shape != v_b.shape or s_a.shape != s_b.shape:
        raise _options.Error(f"v_a has shape {tuple(v_a.shape)}, v_b {tuple(v_b.shape)}, s_a {tuple(s_a.shape)}, s_b {tuple(s_b.shape)}; both parts must agree")
    return merge_states(torch.stack((v_a, v_b), 1), torch.stack((s_a, s_b), 1))


def merge_state_in_place(v: Tensor, s: Tensor, v_other: Tensor, s_other: Tensor, mask: Optional[Tensor] = None) -> None:
    """flashinfer.merge_state_in_place: merge_state into v and s, of the rows where `mask` (bool [rows], or None) is True."""
    merged_v, merged_s = merge_state(v, s, v_other, s_other)
    if mask is not None:
        if mask.shape != s.shape[:1]:
            raise _options.Error(f"mask has shape {tuple(mask.shape)}; give bool [rows] = ({s.shape[0]},)")
        chosen = mask.bool()[:, None]
        merged_v, merged_s = torch.where(chosen[..., None], merged_v, v), torch.where(chosen, merged_s, s)
    v.copy_(merged_v)
    s.copy_(merged_s)


class MultiLevelCascadeAttentionWrapper:
    """flashinfer.MultiLevelCascadeAttentionWrapper: attention over keys that requests have in common in several levels, each level by a
    BatchPrefillWithPagedKVCacheWrapper, merged.

    Args:
        num_levels: how many levels.
        The rest as of BatchPrefillWithPagedKVCacheWrapper, buffers as lists with one for each level.
    """

    def __init__(self, num_levels: int, float_workspace_buffer: Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False,
                 qo_indptr_buf_arr: Optional[list[Tensor]] = None, paged_kv_indptr_buf_arr: Optional[list[Tensor]] = None,
                 paged_kv_indices_buf_arr: Optional[list[Tensor]] = None,
                 paged_kv_last_page_len_buf_arr: Optional[list[Tensor]] = None) -> None:  # fmt: skip
        if num_levels < 1:
            raise _options.Error(f"num_levels is {num_levels}; give 1 or more")
        lists = [qo_indptr_buf_arr, paged_kv_indptr_buf_arr, paged_kv_indices_buf_arr, paged_kv_last_page_len_buf_arr]
        buffers = [[None] * num_levels if x is None else x for x in lists]
        self._levels = [BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout, use_cuda_graph, *(x[level] for x in buffers))
                        for level in range(num_levels)]  # fmt: skip

    @property
    def is_cuda_graph_enabled(self) -> bool:
        return self._levels[0].is_cuda_graph_enabled

    def plan(self, qo_indptr_arr: list[Tensor], paged_kv_indptr_arr: list[Tensor], paged_kv_indices_arr: list[Tensor],
             paged_kv_last_page_len: list[Tensor], num_qo_heads: int, num_kv_heads: int, head_dim: int, page_size: int, causal: bool = False,
             pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False, sm_scale: Optional[float] = None, window_left: int = -1,
             logits_soft_cap: Optional[float] = None, rope_scale: Optional[float] = None, rope_theta: Optional[float] = None,
             q_data_type: Any = "float16", kv_data_type: Any = None) -> None:  # fmt: skip
        """Of each level in turn; the last one, which holds each request's own keys, is causal if asked.

        Args:
            qo_indptr_arr, paged_kv_indptr_arr, paged_kv_indices_arr, paged_kv_last_page_len: one for each level, of the groups of requests
                that have its keys in common.
            window_left: -1, or with one level: a window does not know the keys of other levels.
            The rest as of BatchPrefillWithPagedKVCacheWrapper.plan.
        """
        lists = dict(qo_indptr_arr=qo_indptr_arr, paged_kv_indptr_arr=paged_kv_indptr_arr, paged_kv_indices_arr=paged_kv_indices_arr,
                     paged_kv_last_page_len=paged_kv_last_page_len)  # fmt: skip
        for name, given in lists.items():
            if len(given) != len(self._levels):
                raise _options.Error(f"{name} has {len(given)} elements and there are {len(self._levels)} levels; give one for each level")
        if window_left >= 0 and len(self._levels) > 1:
            raise _options.Error(f"window_left is {window_left} and there are {len(self._levels)} levels; a level does not know the others' keys: give -1")
        for at, level in enumerate(self._levels):
            level.plan(qo_indptr_arr[at], paged_kv_indptr_arr[at], paged_kv_indices_arr[at], paged_kv_last_page_len[at], num_qo_heads, num_kv_heads,
                       head_dim, page_size, causal=causal and at == len(self._levels) - 1, pos_encoding_mode=pos_encoding_mode, sm_scale=sm_scale,
                       window_left=window_left, logits_soft_cap=logits_soft_cap, q_data_type=q_data_type, kv_data_type=kv_data_type)  # fmt: skip

    begin_forward = plan

    def run(self, q: Tensor, paged_kv_cache: Cache) -> Tensor:
        """[rows, heads, dim], of q and a cache that all levels share."""
        parts = [level.run(q, paged_kv_cache, return_lse=True) for level in self._levels]
        if len(parts) == 1:
            return parts[0][0]
        return merge_states(torch.stack([part[0] for part in parts], 1), torch.stack([part[1] for part in parts], 1))[0]

    forward = run
