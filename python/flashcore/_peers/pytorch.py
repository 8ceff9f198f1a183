"""PyTorch's own: scaled_dot_product_attention by each of its backends, and varlen_attn."""

from __future__ import annotations

from typing import Any, Callable

from .call import NO_LSE, Call
from .layouts import batched, packed
from .problem import Problem, Refused

MAX_SCORE_BYTES = 12e9  # of an implementation that forms all scores


def sdpa_call_of(backend: str) -> Callable[[Problem], Call]:
    def make(p: Problem) -> Call:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        which = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}[backend]
        if p.left is not None or p.right not in (None, 0):
            raise Refused("PyTorch's scaled_dot_product_attention has no window but by a mask tensor")
        if p.ragged:
            if p.on_gpu or p.mask_text:
                raise Refused("PyTorch's scaled_dot_product_attention knows no ragged batches; its varlen_attn is asked")

            def attend(q: Any, k: Any, v: Any) -> Any:
                with sdpa_kernel(which):
                    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=p.right == 0, scale=p.scale, enable_gqa=p.grouped)

            return _by_sequence_call(p, attend, "a call for each sequence")
        if backend == "math" and p.batch * p.heads * p.rows * p.keys * 4 > MAX_SCORE_BYTES:
            raise Refused(f"it forms all scores, {p.batch * p.heads * p.rows * p.keys * 4 / 1e9:.0f} GB of them")
        bias = p.mask_tensor if p.mask_text else None
        if p.mask_text and (bias is None or p.masked):
            raise Refused("PyTorch's scaled_dot_product_attention takes a mask that is one tensor, and no other beside it")
        if p.right == 0 and p.offset != 0:
            if backend not in ("flash", "efficient") or not p.on_gpu:
                raise Refused("PyTorch's is_causal aligns the mask top-left, this problem's is bottom-right")
            from torch.nn.attention.bias import causal_lower_right

            bias = causal_lower_right(p.rows, p.keys)
        notes = [NO_LSE] if backend != "flash" else []
        k, v = p.k, p.v
        if backend == "efficient" and p.grouped:  # it knows no groups; the copy is not timed, reading it is
            k, v = (x.repeat_interleave(p.heads // p.heads_kv, dim=1) for x in (k, v))
            notes.append("repeats K and V")
        if backend == "math" and p.grouped:
            notes.append("repeats K and V")

        def compute() -> Any:
            with sdpa_kernel(which):
                return torch.nn.functional.scaled_dot_product_attention(
                    p.q, k, v, attn_mask=bias, is_causal=bias is None and p.right == 0, scale=p.scale, enable_gqa=k.shape[1] != p.heads)  # fmt: skip

        return Call(compute, tuple(notes))

    return make


def _by_sequence_call(p: Problem, attend: Any, note: str) -> Call:
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


def varlen_call(p: Problem) -> Call:
    """PyTorch's own, which is FlashAttention-2."""
    if not p.ragged:
        raise Refused("it is asked for ragged batches only")
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
