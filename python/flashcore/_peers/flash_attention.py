"""FlashAttention's packages: FlashAttention-2 (flash_attn) and -3 (flash_attn_interface)."""

from __future__ import annotations

import importlib
from typing import Any, Callable

from .call import Call
from .layouts import batched, packed, rows_first
from .problem import Problem, Refused


def flash_attention_call_of(module: str) -> Callable[[Problem], Call]:
    """FlashAttention-2 (flash_attn) and -3 (flash_attn_interface)."""

    def make(p: Problem) -> Call:
        package = importlib.import_module(module)
        if p.ragged:
            return _ragged_call(p, package)
        p.need_bottom_right("its")
        q, k, v = rows_first(p)
        causal = p.right == 0
        window = (-1 if p.left is None else p.left, -1 if p.right is None or causal else p.right)
        options = {"softmax_scale": p.scale, "causal": causal, "window_size": window}

        def compute() -> Any:
            if p.decoding:  # their decoding: splits the keys among CTAs
                out = package.flash_attn_with_kvcache(q, k, v, cache_seqlens=p.keys, **options)
            else:
                out = package.flash_attn_func(q, k, v, **options)
            return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

        return Call(compute)

    return make


def _ragged_call(p: Problem, package: Any) -> Call:
    p.need_bottom_right("its")
    causal = p.right == 0
    options = {"softmax_scale": p.scale, "causal": causal,
               "window_size": (-1 if p.left is None else p.left, -1 if p.right is None or causal else p.right)}  # fmt: skip
    q = packed(p.q).contiguous()
    if p.paged:
        if p.total_q != p.batch * p.rows:
            raise Refused("its caches take sequences of equally many rows")
        k, v = (x.transpose(1, 2).contiguous() for x in (p.k, p.v))
        rows = q.view(p.batch, p.rows, p.heads, p.dim)
        table = {"block_table": p.block_table} if package.__name__ == "flash_attn" else {"page_table": p.block_table}

        def decode() -> Any:
            out = package.flash_attn_with_kvcache(rows, k, v, cache_seqlens=p.seqused_kv, **table, **options)
            return batched(p, (out[0] if isinstance(out, tuple) else out).view(-1, p.heads, p.dim_v))

        call = Call(decode)
    else:
        k, v = (packed(x).contiguous() for x in (p.k, p.v))

        def prefill() -> Any:
            out = package.flash_attn_varlen_func(q, k, v, p.cu_seqlens_q, p.cu_seqlens_kv, p.rows, p.keys, **options)
            return batched(p, out[0] if isinstance(out, tuple) else out)

        call = Call(prefill)
    call.inputs = (q, v)
    return call
