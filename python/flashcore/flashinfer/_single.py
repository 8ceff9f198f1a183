"""FlashInfer's calls on one request with dense keys."""

from __future__ import annotations

import functools
from typing import Any, Optional, Union

import torch
from torch import Tensor

from .. import _plan
from . import _masks, _options
from ._run import each_of_group

Made = Union[Tensor, tuple[Tensor, Tensor]]


def single_prefill_with_kv_cache(q: Tensor, k: Tensor, v: Tensor, scale_q: Any = None, scale_k: Any = None, scale_v: Any = None,
                                 o_dtype: Optional[torch.dtype] = None, custom_mask: Optional[Tensor] = None,
                                 packed_custom_mask: Optional[Tensor] = None, causal: bool = False, kv_layout: str = "NHD",
                                 pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False, sm_scale: Optional[float] = None,
                                 window_left: int = -1, logits_soft_cap: Optional[float] = None, rope_scale: Optional[float] = None,
                                 rope_theta: Optional[float] = None, backend: str = "auto", return_lse: bool = False, kv_cache_sf: Any = None,
                                 k_scale: Any = None, v_scale: Any = None) -> Made:  # fmt: skip
    """flashinfer.single_prefill_with_kv_cache: the rows of one request over dense keys.

    Args:
        q: [rows, heads, dim].
        k, v: [keys, heads_kv, dim], or [heads_kv, keys, dim] with kv_layout="HND".
        scale_q, scale_k, scale_v: numbers that scores and outputs are multiplied with; of 8 bits float32 [heads] too.
        custom_mask: bool [rows, keys], True where visible, in the place of causal.
        packed_custom_mask: the same in bits, uint8 [ceil(rows * keys / 8)], the lowest bit first; custom_mask is ignored then.
        kv_cache_sf: None only.
        use_fp16_qk_reduction, rope_scale, rope_theta, backend: ignored.
        The rest as of BatchPrefillWithPagedKVCacheWrapper.

    Returns:
        [rows, heads, dim of V], or (out, lse) with the log-sum-exp to base 2, float32 [rows, heads].
    """
    _options.refuse(kv_cache_sf=kv_cache_sf)
    if not all(isinstance(x, Tensor) and x.dim() == 3 for x in (q, k, v)):
        shapes = [tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__ for x in (q, k, v)]
        raise _options.Error(f"q, k and v are {shapes[0]}, {shapes[1]} and {shapes[2]}; give tensors [rows, heads, dim]")
    q, k, v = (x.detach() for x in (q, k, v))
    if _options.layout_of(kv_layout) == "HND":
        k, v = k.transpose(0, 1), v.transpose(0, 1)
    mask = _masks.of_one(custom_mask, packed_custom_mask, q.shape[0], k.shape[0])
    o = _options.options(q.shape[1], k.shape[1], q.shape[2], v.shape[2], causal=causal and mask is None, pos_encoding_mode=pos_encoding_mode,
                         window_left=window_left, logits_soft_cap=logits_soft_cap, sm_scale=sm_scale, q_data_type=q.dtype, kv_data_type=k.dtype,
                         o_data_type=o_dtype)  # fmt: skip
    scales = scale_q, scale_k if scale_k is not None else k_scale, scale_v if scale_v is not None else v_scale
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))

    def one(q: Tensor, o: _options.Options, scales: tuple[Any, Any, Any], out: Optional[Tensor], sinks: Optional[Tensor]) -> Any:
        by = _options.factors(o, 1, q.device, *scales)
        made = _plan.attention(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), layout="bshd", out=_options.output(q, o, out).unsqueeze(0),
                               return_lse=return_lse, mask=mask, **_options.keywords(o, q.device, by, sinks))  # fmt: skip
        return _options.finish((made[0].squeeze(0), made[1].squeeze(0)) if return_lse else made.squeeze(0), return_lse, None, by)

    if _options.has_query_factors(o, scale_q):
        return each_of_group(one, q, o, scales, None, None, return_lse, None)  # type: ignore[no-any-return]
    return one(q, o, scales, None, None)  # type: ignore[no-any-return]


single_prefill_with_kv_cache_return_lse = functools.partial(single_prefill_with_kv_cache, return_lse=True)


def single_decode_with_kv_cache(q: Tensor, k: Tensor, v: Tensor, kv_layout: str = "NHD", pos_encoding_mode: str = "NONE", use_tensor_cores: bool = False,
                                q_scale: Any = None, k_scale: Any = None, v_scale: Any = None, window_left: int = -1,
                                logits_soft_cap: Optional[float] = None, sm_scale: Optional[float] = None, rope_scale: Optional[float] = None,
                                rope_theta: Optional[float] = None, return_lse: bool = False) -> Made:  # fmt: skip
    """flashinfer.single_decode_with_kv_cache: one row over dense keys.

    Args:
        q: [heads, dim].
        k, v: [keys, heads_kv, dim], or [heads_kv, keys, dim] with kv_layout="HND".
        use_tensor_cores, rope_scale, rope_theta: ignored.
        The rest as of BatchDecodeWithPagedKVCacheWrapper.

    Returns:
        [heads, dim], or (out, lse) with the log-sum-exp to base 2, float32 [heads].
    """
    if not isinstance(q, Tensor) or q.dim() != 2:
        raise _options.Error(f"q is {tuple(q.shape) if isinstance(q, Tensor) else type(q).__name__}; give [heads, dim]")
    made = single_prefill_with_kv_cache(q.unsqueeze(0), k, v, scale_q=q_scale, scale_k=k_scale, scale_v=v_scale, causal=True, kv_layout=kv_layout,
                                        pos_encoding_mode=pos_encoding_mode, window_left=window_left, logits_soft_cap=logits_soft_cap,
                                        sm_scale=sm_scale, return_lse=return_lse)  # fmt: skip
    return (made[0].squeeze(0), made[1].squeeze(0)) if return_lse else made.squeeze(0)  # type: ignore[union-attr]
