"""xformers' memory_efficient_attention."""

from __future__ import annotations

from typing import Any

from .call import Call
from .layouts import rows_first
from .problem import Problem


def xformers_call(p: Problem) -> Call:
    import xformers.ops as ops
    from xformers.ops import fmha

    p.need_bottom_right("its")
    q, k, v = rows_first(p)
    group = p.heads // p.heads_kv
    if p.grouped:
        q = q.unflatten(2, (p.heads_kv, group))
        k, v = (x[:, :, :, None].expand(-1, -1, -1, group, -1) for x in (k, v))
    bias: Any = None
    if p.left is not None or p.right not in (None, 0):
        bias = fmha.attn_bias.LocalAttentionFromBottomRightMask(p.keys if p.left is None else p.left, p.keys if p.right is None else p.right)
    elif p.masked:
        bias = fmha.attn_bias.LowerTriangularFromBottomRightMask()

    def compute() -> Any:
        out = ops.memory_efficient_attention(q, k, v, attn_bias=bias, scale=p.scale)
        return (out.flatten(2, 3) if p.grouped else out).transpose(1, 2)

    return Call(compute)
