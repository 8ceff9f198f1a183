"""cuDNN through its frontend: dense tensors of 16 and of 8 bits, and paged caches."""

from __future__ import annotations

import math
from typing import Any

from .call import TwoBufferCall
from .layouts import batched, packed
from .problem import Problem, Refused

LARGEST_E4M3 = 448.0


def cudnn_frontend_call(p: Problem) -> Call:
    import cudnn
    import torch

    if p.ragged:
        return _paged_call(p)
    if p.is_8bit:
        return _8bit_call(p)
    kind = {torch.float16: cudnn.data_type.HALF, torch.bfloat16: cudnn.data_type.BFLOAT16}.get(p.dtype)
    if kind is None:
        raise Refused("its attention takes 16-bit types")
    handle = cudnn.create_handle()
    graph = cudnn.pygraph(io_data_type=kind, intermediate_data_type=cudnn.data_type.FLOAT, compute_data_type=cudnn.data_type.FLOAT, handle=handle)
    q, k, v = (graph.tensor_like(x) for x in (p.q, p.k, p.v))
    options = {"attn_scale": p.scale or 1 / math.sqrt(p.dim), "name": "attention", **_mask_options(p)}
    try:
        o, _ = graph.sdpa(q=q, k=k, v=v, generate_stats=False, **options)
    except TypeError:  # before 1.13
        o, _ = graph.sdpa(q=q, k=k, v=v, is_inference=True, **options)
    outs = [p.empty_output() for _ in range(2)]
    o.set_output(True).set_dim(list(outs[0].size())).set_stride(list(outs[0].stride()))
    workspace = _build(graph, p)
    packs = [{q: p.q, k: p.k, v: p.v, o: out} for out in outs]

    def compute(i: int) -> None:
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(packs[i], workspace, handle=handle)

    return TwoBufferCall(compute, [(out, None) for out in outs])


def _8bit_call(p: Problem) -> Call:
    """o leaves as e4m3, the only type that cuDNN has for it on Hopper, times what brings its largest value to half of e4m3's largest.

    Probabilities enter P·V as e4m3, times 256: their largest is 1.
    """
    import cudnn
    import torch

    if p.dtype != torch.float8_e4m3fn:
        raise Refused("its 8-bit attention is asked for e4m3 only")
    if p.scaling in ("head", "token"):
        raise Refused("its 8-bit attention takes one factor a tensor")
    if p.left is not None or p.right not in (None, 0) or (p.right == 0 and p.offset != 0):
        raise Refused("its 8-bit attention has no mask but a causal one on as many rows as keys")
    kinds, handle = cudnn.data_type, cudnn.create_handle()
    graph = cudnn.pygraph(io_data_type=kinds.FP8_E4M3, intermediate_data_type=kinds.FLOAT, compute_data_type=kinds.FLOAT, handle=handle)

    def tensor(x: Any, kind: Any) -> Any:
        return graph.tensor(dim=list(x.size()), stride=list(x.stride()), data_type=kind)

    def number(value: float) -> Any:
        return torch.full((1, 1, 1, 1), value, dtype=torch.float32, device=p.device)

    factors = {f"descale_{name}": x.view(1, 1, 1, 1) for name, x in zip("qkv", p.descales or [number(1.0)] * 3)}
    factors |= {"descale_s": number(1 / 256), "scale_s": number(256.0), "scale_o": number(1.0)}
    inputs = {"q": p.q, "k": p.k, "v": p.v}
    arguments = {name: tensor(x, kinds.FP8_E4M3) for name, x in inputs.items()} | {name: tensor(x, kinds.FLOAT) for name, x in factors.items()}
    options = {"attn_scale": p.scale or 1 / math.sqrt(p.dim), "use_causal_mask": p.right == 0, "name": "attention"}
    try:
        o, _, *largest = graph.sdpa_fp8(generate_stats=False, **arguments, **options)
    except TypeError:  # before 1.13
        o, _, *largest = graph.sdpa_fp8(is_inference=True, **arguments, **options)
    outs = [torch.empty(p.batch, p.heads, p.rows, p.dim_v, dtype=p.dtype, device=p.device) for _ in range(2)]
    o.set_output(True).set_dim(list(outs[0].size())).set_stride(list(outs[0].stride())).set_data_type(kinds.FP8_E4M3)
    for x in largest:  # of the probabilities and of o
        x.set_output(True).set_dim([1, 1, 1, 1]).set_stride([1, 1, 1, 1]).set_data_type(kinds.FLOAT)
    workspace = _build(graph, p)
    bound = {arguments[name]: x for name, x in (inputs | factors).items()} | {x: number(0.0) for x in largest}
    packs = [bound | {o: out} for out in outs]

    def compute(i: int) -> None:
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(packs[i], workspace, handle=handle)

    compute(0)
    call = TwoBufferCall(compute, [(out, None) for out in outs], ("writes o as e4m3",))
    amax = bound[largest[-1]].item()
    if amax > 0:
        scale = 2.0 ** math.floor(math.log2(LARGEST_E4M3 / 2 / amax))
        factors["scale_o"].fill_(scale)
        call.o_factor = 1 / scale
    return call


def _paged_call(p: Problem) -> Call:
    """Pages through its frontend. Its batches of rows are equal, which decoding steps and chunks are."""
    import cudnn
    import torch

    if not p.paged:
        raise Refused("it is asked for ragged batches in pages only")
    if p.total_q != p.batch * p.rows:
        raise Refused("it is asked for sequences of equally many rows only")
    if p.left is not None or p.right not in (None, 0):
        raise Refused("it is asked for windows of dense tensors only")
    kind = {torch.float16: cudnn.data_type.HALF, torch.bfloat16: cudnn.data_type.BFLOAT16}.get(p.dtype)
    if kind is None:
        raise Refused("its attention takes 16-bit types")
    handle = cudnn.create_handle()
    graph = cudnn.pygraph(io_data_type=kind, intermediate_data_type=cudnn.data_type.FLOAT, compute_data_type=cudnn.data_type.FLOAT, handle=handle)
    q = packed(p.q).contiguous().view(p.batch, p.rows, p.heads, p.dim).transpose(1, 2)
    k, v = (p.placed(x) for x in (p.k, p.v))
    table = p.block_table.view(p.batch, 1, -1, 1)
    rows = torch.full((p.batch, 1, 1, 1), p.rows, dtype=torch.int32, device=p.device)
    keys = p.seqused_kv.view(p.batch, 1, 1, 1)
    named = [graph.tensor_like(x) for x in (q, k, v, table, table, rows, keys)]
    options = {"attn_scale": p.scale or 1 / math.sqrt(p.dim), "use_padding_mask": True, "seq_len_q": named[5], "seq_len_kv": named[6],
               "paged_attention_k_table": named[3], "paged_attention_v_table": named[4], "paged_attention_max_seq_len_kv": p.keys,
               "name": "attention"}  # fmt: skip
    if p.right == 0:
        options["use_causal_mask_bottom_right"] = True
    try:
        o, _ = graph.sdpa(q=named[0], k=named[1], v=named[2], generate_stats=False, **options)
    except TypeError:  # before 1.13
        o, _ = graph.sdpa(q=named[0], k=named[1], v=named[2], is_inference=True, **options)
    outs = [torch.empty(p.batch, p.rows, p.heads, p.dim_v, dtype=p.dtype, device=p.device) for _ in range(2)]
    placed = [out.transpose(1, 2) for out in outs]
    o.set_output(True).set_dim(list(placed[0].size())).set_stride(list(placed[0].stride()))
    workspace = _build(graph, p)
    packs = [dict(zip(named, (q, k, v, table, table, rows, keys))) | {o: out} for out in placed]

    def compute(i: int) -> None:
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(packs[i], workspace, handle=handle)

    call = TwoBufferCall(compute, [(batched(p, out.view(-1, p.heads, p.dim_v)), None) for out in outs])
    call.inputs = (q, v)
    return call


def _mask_options(p: Problem) -> dict[str, Any]:
    import cudnn

    options: dict[str, Any] = {}
    if p.masked:
        align = cudnn.diagonal_alignment
        options["diagonal_alignment"] = align.BOTTOM_RIGHT if p.alignment == "bottom_right" and p.rows != p.keys else align.TOP_LEFT
        if p.left is not None:
            options["diagonal_band_left_bound"] = p.left + 1  # it counts the row's own key
        if p.right is not None:
            options["diagonal_band_right_bound"] = p.right
    return options


def _build(graph: Any, p: Problem) -> Any:
    """Workspace of the graph, which is ready to run."""
    import cudnn
    import torch

    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    return torch.empty(max(graph.get_workspace_size(), 1), device=p.device, dtype=torch.uint8)
