"""The layouts that packages take, of tensors that are [batch, heads, seqlen, head_dim] in a problem."""

from __future__ import annotations

from typing import Any

from .problem import Problem


def rows_first(p: Problem) -> list[Any]:
    """[batch, seqlen, heads, head_dim], contiguous: what FlashAttention's packages take."""
    return [x.transpose(1, 2).contiguous() for x in (p.q, p.k, p.v)]


def packed(x: Any) -> Any:
    """[1, heads, total, dim] as [total, heads, dim], in the same memory."""
    return x[0].transpose(0, 1)


def batched(p: Problem, packed_rows: Any) -> Any:
    """A packed output as the problem's: [1, heads, total_q, dim_v]."""
    return packed_rows.transpose(0, 1)[None]
