"""Masks that rows have for themselves, intervals of keys and documents, in flashcore.torch.attention."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from . import _documents, _functions, _plan, _torch_launch, _torch_masked
from ._library import Error

_Options = tuple[bool, Optional[float], int, int, Optional[float]]  # is_causal, scale, left, right, softcap


def attend(q: Tensor, k: Tensor, v: Tensor, options: _Options, alibi_slopes: Optional[Tensor], sink: Optional[Tensor], intervals: Any, documents: Any,
           document_boundaries: Any) -> Tensor:  # fmt: skip
    """flashcore.torch.attention with at least one of them."""
    tensors = tuple(x for x in (q, k, v, alibi_slopes, sink) if x is not None)
    wants_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if torch.compiler.is_compiling() or wants_gradient or any(type(x) not in _torch_masked._PLAIN for x in tensors) or not _torch_masked._is_plain(*tensors):
        mask = _pairs(q, k, intervals, documents, document_boundaries)
        return torch.ops.flashcore.attention(q, k, v, *options, alibi_slopes, sink, mask)  # type: ignore[no-any-return]
    is_causal, scale, left, right, softcap = options
    _torch_launch.check(q, k, v, scale, *options[:1], *options[2:], alibi_slopes, sink)
    shape, strides = _torch_launch.output_layout(q, v)
    out = torch.empty_strided(shape, strides, dtype=q.dtype, device=q.device)
    if 0 in shape or k.shape[2] == 0:  # a row without keys is 0
        return out.zero_()
    slopes, logits = (None if x is None else x.detach().float().contiguous() for x in (alibi_slopes, sink))
    if q.device.type == "cpu":
        _torch_launch.follow_threads(torch.get_num_threads())
    _plan.attention(*(_rows(x.detach()) for x in (q, k, v)), causal="top_left" if is_causal else False, window=(left, right), scale=scale, softcap=softcap,
                    alibi=slopes, sink=logits, out=out, intervals=intervals, documents=documents, document_boundaries=document_boundaries)  # fmt: skip
    _torch_launch.computed.add()
    return out


def _rows(x: Tensor) -> Tensor:
    """Itself, or a copy where the elements of a row are not adjacent."""
    return x if x.stride(3) == 1 or x.shape[3] == 1 else x.contiguous()


def _pairs(q: Tensor, k: Tensor, intervals: Any, documents: Any, document_boundaries: Any) -> Tensor:
    """True where a row sees a key, [1 or batch, 1 or heads, rows, keys]: what every transform of PyTorch takes."""
    rows, keys = q.shape[2], k.shape[2]
    seen = torch.ones(1, 1, rows, keys, dtype=torch.bool, device=q.device)
    if document_boundaries is not None:
        if documents is not None:
            raise Error(_functions.DOCUMENTS_TWICE)
        documents = _documents.ids_of_boundaries(document_boundaries, rows, keys)
    if documents is not None:
        of_rows, of_keys = documents if isinstance(documents, (tuple, list)) and len(documents) == 2 else (documents, documents)
        seen = seen & (_as(of_rows, 2)[:, None, :, None] == _as(of_keys, 2)[:, None, None, :])
    if intervals is None:
        return seen
    key = torch.arange(keys, device=q.device)
    union = None
    for start, end in _functions.interval_pairs(intervals):
        part = torch.ones_like(seen[..., :1, :])
        for bound, is_start in ((start, True), (end, False)):
            if bound is None:
                continue
            bound = _as(bound, 3)[..., None] if isinstance(bound, Tensor) else bound
            part = part & (key >= bound if is_start else key < bound)
        union = part if union is None else union | part
    return seen & union


def _as(x: Tensor, axes: int) -> Tensor:
    """With axes of one element in front."""
    if not isinstance(x, Tensor) or x.dtype is not torch.int32 or x.dim() > axes:
        found = f"a tensor of {x.dtype} and shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise Error(f"documents or intervals has {found}; give int32 tensors of up to {axes} axes")
    return x.reshape((1,) * (axes - x.dim()) + tuple(x.shape))
