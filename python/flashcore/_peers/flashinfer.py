"""FlashInfer by its wrappers with plan and run: dense tensors as batches of equal lengths, ragged batches, paged caches."""

from __future__ import annotations

import itertools
from typing import Any

from .call import Call, TwoBufferCall
from .layouts import batched, packed, rows_first
from .problem import Problem, Refused

WORKSPACE_BYTES = 512 << 20  # of ragged batches and paged caches
PLANNED = "its plan of the lengths is made on the host before, and not timed"


def flashinfer_call(p: Problem) -> Call:
    import flashinfer
    import torch

    if p.ragged:
        return _ragged_call(p)
    if p.quantised:
        raise Refused("its quantised caches are in pages")
    p.need_bottom_right("its")
    if p.right not in (None, 0):
        raise Refused("its window has a left side only")
    if p.dtype == torch.float32:
        raise Refused("its prefill takes 16-bit types")
    ends = lambda step: torch.arange(0, (p.batch + 1) * step, step, dtype=torch.int32, device=p.device)  # noqa: E731
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device=p.device)
    outs = [torch.empty(p.batch * p.rows, p.heads, p.dim_v, dtype=p.dtype, device=p.device) for _ in range(2)]
    views = [(out.view(p.batch, p.rows, p.heads, p.dim_v).transpose(1, 2), None) for out in outs]
    q, k, v = (x.flatten(0, 1) for x in rows_first(p))
    window = -1 if p.left is None else p.left
    page = 16
    if p.decoding and p.keys % page == 0 and p.dim == p.dim_v:
        pages = p.keys // page
        cache = tuple(x.view(p.batch * pages, page, p.heads_kv, -1) for x in (k, v))
        decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
        last = torch.full((p.batch,), page, dtype=torch.int32, device=p.device)
        table = torch.arange(p.batch * pages, dtype=torch.int32, device=p.device)
        decode.plan(ends(pages), table, last, p.heads, p.heads_kv, p.dim, page, window_left=window, sm_scale=p.scale, q_data_type=p.dtype, kv_data_type=p.dtype)
        return TwoBufferCall(lambda i: decode.run(q, cache, out=outs[i]), views)
    prefill = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
    prefill.plan(ends(p.rows), ends(p.keys), p.heads, p.heads_kv, p.dim, head_dim_vo=p.dim_v, causal=p.right == 0, window_left=window, sm_scale=p.scale, q_data_type=p.dtype)
    return TwoBufferCall(lambda i: prefill.run(q, k, v, out=outs[i]), views)


def _ragged_call(p: Problem) -> Call:
    import flashinfer
    import torch

    p.need_bottom_right("its")
    if p.right not in (None, 0):
        raise Refused("its window has a left side only")
    if p.dtype == torch.float32:
        raise Refused("its prefill takes 16-bit types")
    scales = _scales(p)
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
    if p.rows == 1:  # its decoding wants a row of each sequence, so those without one are left out
        ends_q = p.cu_seqlens_q.tolist()
        with_row = [s for s in range(p.batch) if ends_q[s + 1] > ends_q[s]]
        pages, lengths = [pages[s] for s in with_row], [lengths[s] for s in with_row]
    counts = [(length + p.page_size - 1) // p.page_size for length in lengths]
    starts = [0, *itertools.accumulate(counts)]
    indptr, last = _int32s(p, starts), _int32s(p, [(length - 1) % p.page_size + 1 if length else 0 for length in lengths])
    indices = _int32s(p, [page for row, count in zip(pages, counts) for page in row[:count]])
    if p.rows == 1:
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


def _scales(p: Problem) -> dict[str, float]:
    """Of a quantised cache: numbers, which its wrappers multiply the softmax scale and the output with."""
    import torch

    if not p.quantised:
        return {}
    if p.kv_dtype == torch.int8:
        raise Refused("its quantised caches are of 8-bit floats")
    if not p.paged:
        raise Refused("its quantised caches are in pages")
    if p.scaling in ("head", "token"):
        raise Refused("its quantised caches have one factor for each of K and V")
    return dict(zip(("k_scale", "v_scale"), (float(x) for x in p.descales)))


def _int32s(p: Problem, values: list[int]) -> Any:
    import torch

    return torch.tensor(values, dtype=torch.int32, device=p.device)
