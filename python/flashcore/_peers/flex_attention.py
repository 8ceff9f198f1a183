"""PyTorch's FlexAttention: masks as block masks, functions of scores as Python functions of the same text."""

from __future__ import annotations

from typing import Any, Callable

from . import expressions
from .call import NO_LSE, Call
from .problem import Problem


def flex_call_of(mode: str | None) -> Callable[[Problem], Call]:
    def make(p: Problem) -> Call:
        import torch
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        torch._dynamo.reset()  # it counts every problem as a recompilation of one function, and allows eight
        offset, left, right = p.offset, p.left, p.right
        shown = expressions.function_of(p.mask_text, p.tensors) if p.mask_text else None
        at = {"seqlen_q": p.rows, "seqlen_kv": p.keys}
        group = p.heads // p.heads_kv

        def in_band(i: Any, j: Any) -> Any:
            own = i + offset
            if left is None:
                return j <= own + right
            return own - j <= left if right is None else (own - j <= left) & (j <= own + right)

        mask = None
        if p.masked or shown:

            def visible(b: Any, h: Any, i: Any, j: Any) -> Any:
                if shown is None:
                    return in_band(i, j)
                own = shown(at | {"b": b, "h": h, "hk": h // group, "i": i, "j": j})
                return own & in_band(i, j) if p.masked else own

            names = expressions.names_of(p.mask_text)
            batch, heads = p.batch if "b" in names else None, p.heads if names & {"h", "hk"} else None
            mask = create_block_mask(visible, batch, heads, p.rows, p.keys, device=p.device)
        elif p.rows < 128:
            # Without one, its decoding kernel takes the keys as a single block: one CTA a head (1104 us where this takes 156).
            mask = create_block_mask(lambda b, h, i, j: j >= 0, None, None, p.rows, p.keys, device=p.device)
        score = None
        if p.softcap is not None or p.slopes is not None or p.score_text:
            cap, slopes, own_key = p.softcap, p.slopes, p.keys - p.rows
            own_score = expressions.function_of(p.score_text or "s", p.tensors)

            def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
                s = s if cap is None else cap * torch.tanh(s / cap)
                if slopes is not None:
                    s = s - (slopes[h] if slopes.dim() == 1 else slopes[b, h]) * (i + own_key - j).abs()
                return own_score(at | {"s": s, "b": b, "h": h, "hk": h // group, "i": i, "j": j})

        def attend(q: Any, k: Any, v: Any) -> Any:
            if p.sink is None:
                return flex_attention(q, k, v, score_mod=score, block_mask=mask, scale=p.scale, enable_gqa=p.grouped)
            out, lse = flex_attention(q, k, v, score_mod=score, block_mask=mask, scale=p.scale, enable_gqa=p.grouped, return_lse=True)
            return (out * torch.sigmoid(lse - p.sink[:, None])[..., None]).to(q.dtype)

        compiled = torch.compile(attend, dynamic=False, fullgraph=True, **({"mode": mode} if mode else {}))
        return Call(lambda: compiled(p.q, p.k, p.v), (NO_LSE,) if p.sink is None else ("joins the sink after, by its log-sum-exp",))

    return make
