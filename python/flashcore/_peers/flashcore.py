"""flashcore itself beside its peers: dense tensors, ragged batches and paged caches by one candidate."""

from __future__ import annotations

from typing import Any

from .. import _functions, _paged, _plan, _scores, _varlen
from .._arrays import View, view
from .call import Call, TwoBufferCall
from .layouts import packed
from .problem import Problem


def flashcore_call(p: Problem, candidate: str) -> Call:
    import torch

    import flashcore

    if p.ragged:
        return _ragged_call(p, candidate)
    q, k, v = p.placed(p.q), p.placed(p.k), p.placed_v
    outs = [p.placed(p.empty_output()) for _ in range(2)]
    lses = [torch.empty(p.batch, p.heads, p.rows, dtype=torch.float32, device=p.device) for _ in range(2)]
    window = None if p.window == (None, None) else p.window
    alignment = None if p.causal or window is None else p.alignment
    if p.causal and p.window[0] is None:
        window = None
    slopes = None if p.slopes is None else "head" if p.slopes.dim() == 1 else "batch"
    plan = flashcore.plan(q, k, v, out=outs[0], causal=p.causal, scale=p.scale, candidate=candidate, window=window, window_alignment=alignment,
                          softcap=p.softcap, alibi=slopes, sink=p.sink is not None, scaling=p.scaling if p.is_8bit or p.quantised else None,
                          score=p.score_text or None, mask=p.mask_text or None, tensors=p.tensors or None,
                          v_layout=p.v_layout)  # fmt: skip
    tensors = [p.tensors[name].data_ptr() for name in plan.tensors]
    operands = [*p.descale_addresses, 0 if p.slopes is None else p.slopes.data_ptr(), 0 if p.sink is None else p.sink.data_ptr()]

    def compute(i: int, keep: Any = (q, k, v)) -> None:  # addresses do not keep memory alive
        stream = torch.cuda.current_stream().cuda_stream if p.on_gpu else 0
        plan.launch(*(x.data_ptr() for x in (q, k, v, outs[i], lses[i])), stream, *operands, tensors=tensors)

    call = TwoBufferCall(compute, list(zip(outs, lses)))
    call.inputs, call.code_hash = (q, v), plan.info.get("code_hash", "")
    return call


def _ragged_call(p: Problem, candidate: str) -> Call:
    import torch

    q, k, v = (p.placed(x) for x in (p.q, p.k, p.v))
    outs = [p.placed(p.empty_output()) for _ in range(2)]
    lses = [torch.empty(p.heads, p.total_q, dtype=torch.float32, device=p.device) for _ in range(2)]
    of_rows: tuple[View, View] = (view(packed(q), "q"), view(packed(outs[0]), "out"))
    of_keys = [view(x.transpose(1, 2) if p.paged else packed(x), role) for x, role in ((k, "k"), (v, "v"))]
    sizes: Any
    if p.paged:
        sizes = _paged._Sizes(of_rows[0], *of_keys, view(p.block_table, "block_table"), p.batch, "NHD")
        sizes.seqlen_q, sizes.seqlen_kv = p.rows, p.keys
    else:
        sizes = _varlen._Sizes(of_rows[0], *of_keys, p.batch, (p.rows, p.keys))
    window = None if p.window == (None, None) else p.window
    if p.causal and p.window[0] is None:
        window = None
    slopes = None if p.slopes is None else "head" if p.slopes.dim() == 1 else "batch"
    scores = _scores.of_words(p.softcap, slopes, p.sink is not None)
    given = _functions.read(of_rows[0], p.score_text or None, p.mask_text or None, p.tensors or None, None, None, None, p.causal, lambda: sizes, None)
    plan_of = _paged._plan_of if p.paged else _varlen._plan_of
    scaling = _plan._factors.number_of(p.scaling if p.is_8bit or p.quantised else None, of_keys[0].dtype)
    plan = plan_of(sizes, (of_rows[0], *of_keys, of_rows[1]), p.causal, window, None if p.causal or window is None else p.alignment, p.scale, candidate,
                   scaling, scores, given.functions)  # fmt: skip
    operands = [*p.descale_addresses, 0 if p.slopes is None else p.slopes.data_ptr(), 0 if p.sink is None else p.sink.data_ptr()]
    lengths = {"cu_seqlens_q": p.cu_seqlens_q.data_ptr()}
    if p.paged:
        lengths |= {"seqused_kv": p.seqused_kv.data_ptr(), "block_table": p.block_table.data_ptr()}
    else:
        lengths |= {"cu_seqlens_kv": p.cu_seqlens_kv.data_ptr()}

    def compute(i: int, keep: Any = (q, k, v, given)) -> None:  # addresses do not keep memory alive
        stream = torch.cuda.current_stream().cuda_stream if p.on_gpu else 0
        plan.launch(*(x.data_ptr() for x in (q, k, v, outs[i], lses[i])), stream, *operands, tensors=given.addresses, **lengths)

    call = TwoBufferCall(compute, list(zip(outs, lses)))
    call.inputs, call.code_hash = (q, v), plan.info.get("code_hash", "")
    return call
