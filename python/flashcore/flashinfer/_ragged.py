"""FlashInfer's prefill of requests whose keys follow each other in one tensor."""

from __future__ import annotations

import functools
from typing import Any, Optional, Union

import torch
from torch import Tensor

from .. import _varlen
from . import _masks, _options, _tables
from ._run import Rows, each_of_group, forwarded, many_rows, scales_of, sinks_of

Made = Union[Tensor, tuple[Tensor, Tensor]]


class BatchPrefillWithRaggedKVCacheWrapper:
    """flashinfer.BatchPrefillWithRaggedKVCacheWrapper: requests whose rows, and whose keys, follow each other. plan() and run() as of
    BatchPrefillWithPagedKVCacheWrapper.

    Args:
        float_workspace_buffer: says the device; flashcore needs no workspace.
        kv_layout: "NHD": K and V are [keys of all requests, heads, dim]; "HND": [heads, keys of all requests, dim].
        use_cuda_graph: every plan() writes to the same memory, so that a captured run() replays with the newest boundaries.
        qo_indptr_buf, kv_indptr_buf: needed with use_cuda_graph.
        custom_mask_buf: needed with use_cuda_graph if plan() is given masks: as many bits as they have pairs of a row and a key at most.
            flashcore keeps a byte for each of the bits, in memory of its own.
        mask_indptr_buf: ignored.
        jit_args: None, or those of FlashInfer's variant AttentionSink: run(q, k, v, sinks, sm_scale) then. jit_kwargs: ignored.
        backend: ignored.

    Raises:
        flashcore.Error: as each method, for what has no kernel and for tensors that do not fit.
    """

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False, qo_indptr_buf: Optional[Tensor] = None,
                 kv_indptr_buf: Optional[Tensor] = None, custom_mask_buf: Optional[Tensor] = None, mask_indptr_buf: Optional[Tensor] = None,
                 backend: str = "auto", jit_args: Any = None, jit_kwargs: Any = None) -> None:  # fmt: skip
        self._has_sinks = _options.is_sink_variant(jit_args)
        self._layout = _options.layout_of(kv_layout)
        self._graph = use_cuda_graph
        if use_cuda_graph and (qo_indptr_buf is None or kv_indptr_buf is None):
            raise _options.Error("use_cuda_graph is True and a buffer is not given; give those of qo_indptr and kv_indptr")
        self._device = _options.device_of(float_workspace_buffer)
        self._rows = Rows(self._device, qo_indptr_buf if use_cuda_graph else None)
        self._keys = Rows(self._device, kv_indptr_buf if use_cuda_graph else None)
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

    def plan(self, qo_indptr: Tensor, kv_indptr: Tensor, num_qo_heads: int, num_kv_heads: int, head_dim_qk: int, head_dim_vo: Optional[int] = None,
             custom_mask: Optional[Tensor] = None, packed_custom_mask: Optional[Tensor] = None, causal: bool = False, pos_encoding_mode: str = "NONE",
             use_fp16_qk_reduction: bool = False, window_left: int = -1, logits_soft_cap: Optional[float] = None, sm_scale: Optional[float] = None,
             rope_scale: Optional[float] = None, rope_theta: Optional[float] = None, q_data_type: Any = "float16", kv_data_type: Any = None,
             o_data_type: Any = None, non_blocking: bool = True, prefix_len_ptr: Optional[Tensor] = None,
             token_pos_in_items_ptr: Optional[Tensor] = None, token_pos_in_items_len: int = 0, max_item_len_ptr: Optional[Tensor] = None,
             fixed_split_size: Optional[int] = None, disable_split_kv: bool = False, seq_lens: Optional[Tensor] = None,
             seq_lens_q: Optional[Tensor] = None, max_token_per_sequence: Optional[int] = None, max_sequence_kv: Optional[int] = None,
             v_indptr: Optional[Tensor] = None, o_indptr: Optional[Tensor] = None) -> None:  # fmt: skip
        """Says what the next runs compute.

        Args:
            qo_indptr, kv_indptr: int32 [batch + 1]: where each request's rows and keys begin.
            v_indptr, o_indptr: None only.
            custom_mask, packed_custom_mask: as of BatchPrefillWithPagedKVCacheWrapper.plan.
            seq_lens: ignored, as seq_lens_q and the arguments that BatchPrefillWithPagedKVCacheWrapper.plan ignores.
            The rest as of BatchPrefillWithPagedKVCacheWrapper.plan.
        """
        _options.refuse(prefix_len_ptr=prefix_len_ptr, token_pos_in_items_ptr=token_pos_in_items_ptr, max_item_len_ptr=max_item_len_ptr,
                        v_indptr=v_indptr, o_indptr=o_indptr)  # fmt: skip
        has_mask = custom_mask is not None or packed_custom_mask is not None
        of = _options.options(num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo, causal=causal and not has_mask, pos_encoding_mode=pos_encoding_mode,
                              window_left=window_left, logits_soft_cap=logits_soft_cap, sm_scale=sm_scale, q_data_type=q_data_type,
                              kv_data_type=kv_data_type, o_data_type=o_data_type, fixed_split_size=fixed_split_size,
                              disable_split_kv=disable_split_kv)  # fmt: skip
        self._of = None  # until all of it fits: runs of half a plan would read other pages
        if _tables.int32(qo_indptr, "qo_indptr").shape != _tables.int32(kv_indptr, "kv_indptr").shape:
            raise _options.Error(f"qo_indptr has {qo_indptr.shape[0]} elements and kv_indptr {kv_indptr.shape[0]}; give [batch + 1] both")
        self._rows.plan(qo_indptr, "qo_indptr", max_token_per_sequence)
        self._keys.plan(kv_indptr, "kv_indptr", max_sequence_kv)
        mask = self._masks.plan(custom_mask, packed_custom_mask, self._rows.lengths(), self._keys.lengths())
        self._of = _options.make_slopes(of, self._device)._replace(mask=mask)

    begin_forward = plan

    def run(self, q: Tensor, k: Tensor, v: Tensor, *args: Any, q_scale: Any = None, k_scale: Any = None, v_scale: Any = None, o_scale: Optional[float] = None,
            out: Optional[Tensor] = None, lse: Optional[Tensor] = None, return_lse: bool = False, enable_pdl: Optional[bool] = None,
            kv_cache_sf: Any = None) -> Made:  # fmt: skip
        """Attention of each request's rows.

        Args:
            q: [rows of all requests, heads, dim].
            args: of 8 bits the scales of q, k and v; with jit_args the sinks [heads] and the scale of scores.
            k, v: [keys of all requests, heads_kv, dim], or the axes of kv_layout="HND".
            o_scale: what outputs are divided by. A number.
            The rest as of BatchPrefillWithPagedKVCacheWrapper.run.

        Returns:
            [rows, heads, dim of V], or (out, lse) with the log-sum-exp to base 2, float32 [rows, heads].
        """
        _options.refuse(kv_cache_sf=kv_cache_sf)
        if lse is not None and not return_lse:  # it is written all the same
            return self.run(q, k, v, *args, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, o_scale=o_scale, out=out, lse=lse, return_lse=True)[0]
        o = self._of
        if o is None:
            raise _options.Error("run() is called before plan(); plan() says the requests and heads")
        q = _options.require_q(q, o, None)
        k, v = k.detach(), v.detach()
        if self._layout == "HND":
            k, v = k.transpose(0, 1), v.transpose(0, 1)
        if k.dim() != 3 or v.dim() != 3 or k.shape[1:] != (o.heads_kv, o.dim) or v.shape[1:] != (o.heads_kv, o.dim_v) or k.dtype != o.kv_dtype:
            raise _options.Error(f"k and v are {k.dtype} of shapes {tuple(k.shape)} and {tuple(v.shape)}; plan() was told {o.kv_dtype}, {o.heads_kv} heads, "
                                 f"dims {o.dim} and {o.dim_v}")  # fmt: skip
        cu_q, rows = self._rows.of(q)
        rows = many_rows(o, rows)
        cu_kv, keys = self._keys.of(k, "k and v have", "keys")
        sinks = None
        if self._has_sinks:
            (o, sinks), args = sinks_of(o, args), ()
        k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (k, v))

        def one(q: Tensor, o: _options.Options, scales: tuple[Any, Any, Any], out: Optional[Tensor], sinks: Optional[Tensor],
                lse: Optional[Tensor] = None) -> Any:  # fmt: skip
            by = _options.factors(o, cu_q.shape[0] - 1, q.device, *scales, o_scale)
            made = _varlen.varlen_attention(q, k, v, cu_q, cu_kv, rows, keys, out=_options.output(q, o, out), return_lse=return_lse,
                                            **_options.keywords(o, q.device, by, sinks))  # fmt: skip
            return _options.finish(made, return_lse, lse, by, cu_q if out is not None else None)

        scales = scales_of(args, (q_scale, k_scale, v_scale))
        if _options.has_query_factors(o, scales[0]):
            return each_of_group(one, q, o, scales, out, lse, return_lse, sinks)  # type: ignore[no-any-return]
        return one(q, o, scales, out, sinks, lse)  # type: ignore[no-any-return]

    run_return_lse = functools.partialmethod(run, return_lse=True)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False, pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False,
                window_left: int = -1, logits_soft_cap: Optional[float] = None, sm_scale: Optional[float] = None, rope_scale: Optional[float] = None,
                rope_theta: Optional[float] = None) -> Made:  # fmt: skip
        """run() with these in the place of plan()'s, as FlashInfer's older name has it."""
        self._of = forwarded(self._of, causal, pos_encoding_mode, window_left, logits_soft_cap, sm_scale)
        return self.run(q, k, v)

    def forward_return_lse(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False, pos_encoding_mode: str = "NONE",
                           use_fp16_qk_reduction: bool = False, window_left: int = -1, logits_soft_cap: Optional[float] = None,
                           sm_scale: Optional[float] = None, rope_scale: Optional[float] = None, rope_theta: Optional[float] = None) -> Made:  # fmt: skip
        """forward() with the log-sum-exp."""
        self._of = forwarded(self._of, causal, pos_encoding_mode, window_left, logits_soft_cap, sm_scale)
        return self.run(q, k, v, return_lse=True)

    def end_forward(self) -> None:
        """Nothing is held between plans."""
