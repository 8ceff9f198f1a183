"""Sequences of different lengths as PyTorch tensors: padded batches where they lie, and packed ones in a batch of one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _arrays, _factors, _functions, _scores, _torch_launch, _varlen
from ._plan import Plan

_MAX_KNOWN = 4096  # shapes that never come back: a cache that grows with every token
_known: dict[Any, Plan] = {}  # of padded calls, by all that decides which plan computes them


def _rows(x: Tensor) -> tuple[Tensor, int] | None:
    """[batch, heads, length, dim] as [rows, heads, dim] of the same memory, and how many rows a batch entry is further on. None where
    the entries do not lie whole rows apart."""
    batch, heads, length, dim = x.shape
    apart, head, row, column = x.stride()
    if (column != 1 and dim > 1) or row < 0:
        return None
    if length == 1:
        row = apart if batch > 1 else heads * dim
        per = 1
    elif batch == 1:
        per = length
    elif row > 0 and apart % row == 0 and apart // row >= length:
        per = apart // row
    else:
        return None
    total = (batch - 1) * per + length
    return (None if total >= 2**31 else (x.as_strided((total, heads, dim), (row, head, 1)), per))


def _as_rows(x: Tensor) -> tuple[Tensor, int]:
    """The same, of a copy where there is no other way."""
    found = _rows(x)
    if found is None:
        found = _rows(x.transpose(1, 2).contiguous().transpose(1, 2))
        assert found is not None
    return found


def _boundaries(first: Tensor, count: Tensor, per: int, total: int) -> Tensor:
    """Where each sequence begins, and the end of all: cu_seqlens of sequences with gaps, which seqused leaves out."""
    begin = torch.arange(first.shape[0], dtype=torch.int32, device=first.device) * per + first
    return torch.cat((begin, begin.new_full((1,), total)))


def attend_padded(query: Tensor, key: Tensor, value: Tensor, first: Tensor, count: Tensor, *, kept: dict[Any, Any],
                  queries: tuple[Tensor, Tensor] | None = None, **options: Any) -> Tensor:  # fmt: skip
    """Attention over sequences of which positions first .. first + count - 1 count; of rows those of `queries`, a pair like it, if given.

    query is [batch, heads, rows, dim], without `queries` with as many rows as key and value, or one, the last position of each. Returns
    [batch, rows, heads, dim of value]; rows that do not count are 0. `kept` holds the boundaries for the model's next layers.
    """
    batch, heads, rows, _ = query.shape
    if query.shape[2] > 1:  # o has its boundaries, and rows of one batch entry after those of another
        query = query.transpose(1, 2).contiguous().transpose(1, 2)
    (q, per_q), (k, per_k), (v, per_v) = _as_rows(query), _as_rows(key), _as_rows(value)
    if per_k != per_v:
        (k, per_k), (v, _) = (_as_rows(x.transpose(1, 2).contiguous().transpose(1, 2)) for x in (key, value))
    name = (per_q, rows, q.shape[0], per_k, k.shape[0])
    if name not in kept:
        of_q = queries or ((first * 0, count * 0 + 1) if rows == 1 else (first, count))
        kept[name] = (_boundaries(*of_q, per_q, q.shape[0]), of_q[1], _boundaries(first, count, per_k, k.shape[0]))
    cu_q, used_q, cu_kv = kept[name]
    new = torch.empty if rows == 1 else torch.zeros
    out = new((batch, rows, heads, value.shape[3]), dtype=query.dtype, device=query.device)
    addresses = (q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr())
    sink = options.pop("sink")
    known = (queries is None, q.dtype, k.dtype, v.dtype, q.device, q.shape, q.stride(), k.shape, k.stride(), v.shape, v.stride(), batch, rows, key.shape[2],
             (addresses[0] | addresses[1] | addresses[2] | addresses[3]) & 15, sink is None, *options.values())  # fmt: skip
    plan = _known.get(known)
    if plan is None:
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        plan = _known[known] = _plan_of(q, k, v, out.view(batch * rows, heads, value.shape[3]), batch, (rows, key.shape[2]), sink, **options)
    if q.device.type == "cpu":
        _torch_launch.follow_threads(torch.get_num_threads())
    plan.launch(*addresses, 0, _torch_launch._stream(q.device), sink=0 if sink is None else sink.data_ptr(), cu_seqlens_q=cu_q.data_ptr(),
                cu_seqlens_kv=cu_kv.data_ptr(), seqused_kv=count.data_ptr(), seqused_q=used_q.data_ptr())  # fmt: skip
    _torch_launch.computed.add()
    return out


def _plan_of(q: Tensor, k: Tensor, v: Tensor, out: Tensor, batch: int, bounds: tuple[int, int], sink: Tensor | None, *, causal: bool, window: Any,
             scale: Any, softcap: Any) -> Plan:  # fmt: skip
    """As varlen_attention finds it."""
    views = tuple(_arrays.view(x, role, None) for role, x in (("q", q), ("k", k), ("v", v), ("out", out)))
    sizes = _varlen._Sizes(*views[:3], batch, bounds)
    scaling = _factors.read(views[0], views[1], (None, None, None), lambda: sizes, None).scaling
    scores = _scores.of_words(softcap, None, sink is not None)
    return _varlen._plan_of(sizes, views, causal, window, None, scale, None, scaling, scores, _functions.NONE)


def attend_packed(query: Tensor, key: Tensor, value: Tensor, cu_q: Tensor, cu_kv: Tensor, longest_q: int, longest_kv: int, **options: Any) -> Tensor:
    """Causal attention of each of the sequences that follow each other in a batch of one: [1, rows, heads, dim of value]. Rows behind
    the last one, which a collator may add, are 0."""
    q, k, v = (_as_rows(x)[0] for x in (query, key, value))
    out = torch.zeros((q.shape[0], q.shape[1], v.shape[2]), dtype=q.dtype, device=q.device)
    _varlen.varlen_attention(q, k, v, cu_q.contiguous(), cu_kv.contiguous(), longest_q, longest_kv, out=out, **options)
    _torch_launch.computed.add()
    return out.unsqueeze(0)
