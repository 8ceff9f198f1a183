"""How attentions are called on ragged batches and paged caches (`_peer_calls` has the others): packed rows, boundaries, block tables."""

from __future__ import annotations

import math
from typing import Any

from . import _functions, _paged, _plan, _scores, _varlen
from ._arrays import View, view
from ._peer_calls import NO_LSE, Call, Problem, Refused, TwoBufferCall

WORKSPACE_BYTES = 512 << 20  # FlashInfer's
PLANNED = "its plan of the lengths is made on the host before, and not timed"


def packed(x: Any) -> Any:
    """[1, heads, total, dim] as [total, heads, dim], in the same memory."""
    return x[0].transpose(0, 1)


def batched(p: Problem, packed_rows: Any) -> Any:
    """A packed output as the problem's: [1, heads, total_q, dim_v]."""
    return packed_rows.transpose(0, 1)[None]


def int32s(p: Problem, values: list[int]) -> Any:
    import torch

    return torch.tensor(values, dtype=torch.int32, device=p.device)


def flashcore_call(p: Problem, candidate: str) -> Call:
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


def _flashinfer_scales(p: Problem) -> dict[str, float]:
    """Of a quantised cache: numbers, which its wrappers multiply the softmax scale and the output with."""
    import torch

    if not p.quantised:
        return {}
    if p.kv_dtype == torch.int8:
        raise Refused("its quantised caches are of 8-bit floats")
    if not p.paged:
        raise Refused("its quantised caches are in pages")
    if p.scaling == "head":
        raise Refused("its quantised caches have one factor for each of K and V")
    return dict(zip(("k_scale", "v_scale"), (float(x) for x in p.descales)))


def flashinfer_call(p: Problem) -> Call:
    import flashinfer
    import torch

    p.need_bottom_right("its")
    if p.right not in (None, 0):
        raise Refused("its window has a left side only")
    if p.dtype == torch.float32:
        raise Refused("its prefill takes 16-bit types")
    scales = _flashinfer_scales(p)
    workspace = torch.zeros(WORKSPACE_BYTES if p.on_gpu else 1, dtype=torch.uint8, device=p.device)
    outs = [torch.empty(p.total_q, p.heads, p.dim_v, dtype=p.dtype, device=p.device) for _ in range(2)]
    views = [(batched(p, out), None) for out in outs]
    q = packed(p.q).contiguous()
    window = -1 if p.left is None else p.left
    if not p.paged:
        k, v = (packed(x).contiguous() for x in (p.k, p.v))
        ragged = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
        ragged.plan(p.cu_seqlens_q, p.cu_seqlens_kv, p.heads, p.heads_kv, p.dim, head_dim_vo=p.dim_v, causal=p.right == 0, window_left=window,
                    sm_scale=p.scale, q_data_type=p.dtype)  # fmt: skip
        call = TwoBufferCall(lambda i: ragged.run(q, k, v, out=outs[i]), views, (PLANNED,))
        call.inputs = (q, v)
        return call
    if p.dim != p.dim_v:
        raise Refused("its paged caches have one head dim")
    cache = tuple(x.transpose(1, 2).contiguous() for x in (p.k, p.v))
    pages, lengths = p.block_table.tolist(), p.seqused_kv.tolist()
    counts = [(length + p.page_size - 1) // p.page_size for length in lengths]
    starts = [sum(counts[:s]) for s in range(p.batch + 1)]
    indptr, last = int32s(p, starts), int32s(p, [(length - 1) % p.page_size + 1 if length else 0 for length in lengths])
    indices = int32s(p, [page for row, count in zip(pages, counts) for page in row[:count]])
    if p.rows == 1 and p.total_q == p.batch:
        decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
        decode.plan(indptr, indices, last, p.heads, p.heads_kv, p.dim, p.page_size, window_left=window, sm_scale=p.scale, q_data_type=p.dtype,
                    kv_data_type=p.kv_dtype)  # fmt: skip
        wrapper = decode
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        wrapper.plan(p.cu_seqlens_q, indptr, indices, last, p.heads, p.heads_kv, p.dim, p.page_size, causal=p.right == 0, window_left=window,
                     sm_scale=p.scale, q_data_type=p.dtype, kv_data_type=p.kv_dtype)  # fmt: skip
    call = TwoBufferCall(lambda i: wrapper.run(q, cache, out=outs[i], **scales), views, (PLANNED,))
    call.inputs = (q, cache[1])
    return call


def cudnn_call(p: Problem) -> Call:
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
    from ._peer_calls import _build_cudnn

    workspace = _build_cudnn(graph, p)
    packs = [dict(zip(named, (q, k, v, table, table, rows, keys))) | {o: out} for out in placed]

    def compute(i: int) -> None:
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(packs[i], workspace, handle=handle)

    call = TwoBufferCall(compute, [(batched(p, out.view(-1, p.heads, p.dim_v)), None) for out in outs])
    call.inputs = (q, v)
    return call


def varlen_call(p: Problem) -> Call:
    """PyTorch's own, which is FlashAttention-2."""
    from torch.nn.attention.varlen import varlen_attn

    if p.paged:
        raise Refused("it reads no pages")
    p.need_bottom_right("its")
    q, k, v = (packed(x).contiguous() for x in (p.q, p.k, p.v))
    window = (-1 if p.left is None else p.left, -1 if p.right is None else p.right)
    options = {"scale": p.scale, "window_size": window}
    call = Call(lambda: batched(p, varlen_attn(q, k, v, p.cu_seqlens_q, p.cu_seqlens_kv, p.rows, p.keys, **options)), (NO_LSE,))
    call.inputs = (q, v)
    return call


def flash_package_call(p: Problem, package: Any) -> Call:
    """FlashAttention-2 (flash_attn) and -3 (flash_attn_interface)."""
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


def by_sequence_call(p: Problem, attend: Any, note: str) -> Call:
    """An attention without ragged batches, called for each sequence by itself."""
    import torch

    if p.paged:
        raise Refused("it reads no pages")
    q_ends, kv_ends = p.cu_seqlens_q.tolist(), p.cu_seqlens_kv.tolist()
    bounds = [(q_ends[s], q_ends[s + 1], kv_ends[s], kv_ends[s + 1]) for s in range(p.batch)]
    if any(q_end > q and kv_end == kv or p.right == 0 and q_end - q != kv_end - kv for q, q_end, kv, kv_end in bounds):
        raise Refused("PyTorch's is_causal aligns the mask top-left, and rows without keys are NaN")
    out = p.empty_output()

    def compute() -> Any:
        for q, q_end, kv, kv_end in bounds:
            out[:, :, q:q_end] = attend(p.q[:, :, q:q_end], p.k[:, :, kv:kv_end], p.v[:, :, kv:kv_end])
        return out

    with torch.no_grad():
        return Call(compute, (note,))
