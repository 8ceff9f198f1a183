"""FlashAttention's functions, with their names, arguments and layout: a program that imports them from `flash_attn` can import them here.

    from flashcore.flash_attn import flash_attn_func
    out = flash_attn_func(q, k, v, causal=True, window_size=(1023, 0))

q is [batch, length, heads, dim], k and v are [batch, length_kv, heads_kv, dim], as in FlashAttention. Causal masks and windows are
aligned at the last key, as in FlashAttention from 2.1 on. Differences: any GPU from sm_80 and the CPU, float32 too on the CPU; head
dims up to 1024 on a GPU (above 576 by the naive kernel; 256 on a CPU), also those that are no multiple of 8; values may have another head dim than keys. Not here yet: dropout, rotary embeddings, gradients of ragged batches
other than sequence by sequence.
"""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor

from . import _library, _paged, _plan, _torch_launch, _torch_operator, _varlen
from ._torch_cache import flash_attn_with_kvcache
from .torch import attention

__all__ = ["flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
           "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache"]  # fmt: skip


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
                    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None,
                    deterministic: bool = False, return_attn_probs: bool = False, *, sink: Optional[Tensor] = None
                    ) -> Union[Tensor, tuple[Tensor, Tensor, None]]:  # fmt: skip
    """flash_attn.flash_attn_func.

    Args:
        q: [batch, length, heads, dim].
        k, v: [batch, length_kv, heads_kv, dim]; heads_kv divides heads.
        dropout_p: 0 only.
        softmax_scale: default 1/sqrt(dim).
        causal: the last row sees every key.
        window_size: (left, right): how many keys a row sees to either side of its own one; -1: no bound.
        softcap: 0 for none.
        alibi_slopes: float32 [heads] or [batch, heads]: slope * |i + length_kv - length - j| is taken from each score.
        deterministic: ignored; every result is.
        return_attn_probs: also return the log-sum-exp, float32 [batch, heads, length], and None for the probabilities, which are never
            formed. -inf for a row that sees no key, where FlashAttention 2 has +inf. Such a call has no gradient.
        sink: [heads], logits that join each row's sum (not in FlashAttention 2).

    Returns:
        [batch, length, heads, dim of v], or (out, softmax_lse, None).

    Raises:
        flashcore.Error: for dropout, a window that is none, slopes or sinks that are no tensors of floats, a gradient of a call that returns
            the log-sum-exp. RuntimeError: for tensors that do not fit together.
    """
    _refuse_dropout(dropout_p)
    _require_tensors(q=q, k=k, v=v)
    left, right = _plan.window_sides(window_size)
    if causal:
        right = 0
    window = None if left < 0 and right < 0 else (left, right)
    cap = None if softcap == 0.0 else softcap
    _require_floats(alibi_slopes=alibi_slopes, sink=sink)
    if not return_attn_probs:
        return attention(*map(_heads_first, (q, k, v)), window=window, scale=softmax_scale, softcap=cap, alibi_slopes=alibi_slopes, sink=sink).transpose(1, 2)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, alibi_slopes, sink)):
        raise _library.Error("return_attn_probs is given and an input requires a gradient, which the log-sum-exp has not; leave one of them out")
    q, k, v = _torch_operator.cast(q, k, v)
    # The checks of the operator, which computes calls without the log-sum-exp.
    _torch_launch.check(*map(_heads_first, (q, k, v)), softmax_scale, False, left, right, cap, alibi_slopes, sink)
    if 0 in q.shape[:3]:
        return q.new_zeros((*q.shape[:3], v.shape[3])), q.new_zeros((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32), None
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    slopes, logits = (None if x is None else x.float().contiguous() for x in (alibi_slopes, sink))
    out, lse = _plan.attention(q, k, v, layout="bshd", window=window, scale=softmax_scale, softcap=cap, alibi=slopes, sink=logits, return_lse=True)
    return out, lse, None


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
                             window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None,
                             deterministic: bool = False, return_attn_probs: bool = False
                             ) -> Union[Tensor, tuple[Tensor, Tensor, None]]:  # fmt: skip
    """flash_attn.flash_attn_kvpacked_func: kv is [batch, length_kv, 2, heads_kv, dim]. The rest as of flash_attn_func."""
    k, v = _unpack(kv, "kv", 2)
    return flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_qkvpacked_func(qkv: Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
                              window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None,
                              deterministic: bool = False, return_attn_probs: bool = False
                              ) -> Union[Tensor, tuple[Tensor, Tensor, None]]:  # fmt: skip
    """flash_attn.flash_attn_qkvpacked_func: qkv is [batch, length, 3, heads, dim]. The rest as of flash_attn_func."""
    q, k, v = _unpack(qkv, "qkv", 3)
    return flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
                           dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
                           window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None,
                           deterministic: bool = False, return_attn_probs: bool = False, block_table: Optional[Tensor] = None, *,
                           sink: Optional[Tensor] = None, seqused_q: Optional[Tensor] = None, seqused_k: Optional[Tensor] = None
                           ) -> Union[Tensor, tuple[Tensor, Tensor, None]]:  # fmt: skip
    """flash_attn.flash_attn_varlen_func: sequences of different lengths, one after another. Nothing is read on the host, so a captured call
    serves any lengths up to the bounds.

    Args:
        q: [rows of all sequences, heads, dim].
        k, v: [keys of all sequences, heads_kv, dim]; heads_kv divides heads.
        cu_seqlens_q, cu_seqlens_k: int32 [batch + 1]: sequence s has rows cu_seqlens_q[s] to cu_seqlens_q[s + 1] - 1.
        max_seqlen_q, max_seqlen_k: upper bounds of the lengths. A sequence beyond them gets NaN.
        block_table: int32 [batch, max_pages]: k and v are [pages, page_size, heads_kv, dim] then, and cu_seqlens_k says but how many keys
            each sequence has (it may be None with seqused_k). Such a call has no gradient.
        sink: [heads], logits that join each row's sum (not in FlashAttention 2).
        seqused_q, seqused_k: int32 [batch]: how many rows and keys of each sequence count (FlashAttention 3's). Default: all.
        The rest as of flash_attn_func, by each sequence's own lengths.

    Returns:
        [rows, heads, dim of v], or (out, softmax_lse, None) with the log-sum-exp as float32 [heads, rows]. A call whose inputs require a
        gradient is made of calls for each sequence, whose lengths it reads on the host: it refuses what gets NaN otherwise.

    Raises:
        flashcore.Error: for dropout, a gradient of a call with a block_table, tensors that do not fit together, a gradient of a call that returns the log-sum-exp.
    """
    _refuse_dropout(dropout_p)
    _require_tensors(q=q, k=k, v=v)
    left, right = _plan.window_sides(window_size)
    if causal:
        right = 0
    window = None if left < 0 and right < 0 else (left, right)
    cap = None if softcap == 0.0 else softcap
    q, k, v = _torch_operator.cast(q, k, v)
    _require_floats(alibi_slopes=alibi_slopes, sink=sink)
    options = dict(window=window, scale=softmax_scale, softcap=cap)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, alibi_slopes, sink)):
        if return_attn_probs:
            raise _library.Error("return_attn_probs is given and an input requires a gradient, which the log-sum-exp has not; leave one of them out")
        if block_table is not None:
            raise _library.Error("block_table is given and an input requires a gradient, which a cache in pages has not; use torch.no_grad()")
        return _by_sequence(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k, alibi_slopes, sink, **options)
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    slopes, logits = (None if x is None else x.detach().float().contiguous() for x in (alibi_slopes, sink))
    if block_table is not None:
        if seqused_k is None:
            if cu_seqlens_k is None:
                raise _library.Error("block_table is given, cu_seqlens_k and seqused_k are not; give one: how many keys each sequence has")
            seqused_k = cu_seqlens_k[1:] - cu_seqlens_k[:-1]
        made = _paged.paged_attention(q, k, v, block_table, seqused_k, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q,
                                      max_seqlen_kv=max_seqlen_k, alibi=slopes, sink=logits, seqused_q=seqused_q,
                                      return_lse=return_attn_probs, **options)  # fmt: skip
    else:
        made = _varlen.varlen_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, alibi=slopes, sink=logits,
                                        seqused_q=seqused_q, seqused_kv=seqused_k, return_lse=return_attn_probs, **options)  # fmt: skip
    _torch_launch.computed.add()
    return (*made, None) if return_attn_probs else made


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
                                    dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
                                    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None,
                                    deterministic: bool = False, return_attn_probs: bool = False
                                    ) -> Union[Tensor, tuple[Tensor, Tensor, None]]:  # fmt: skip
    """flash_attn.flash_attn_varlen_kvpacked_func: kv is [keys of all sequences, 2, heads_kv, dim]. The rest as of flash_attn_varlen_func."""
    k, v = _unpack(kv, "kv", 2, "keys of all sequences")
    return flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
                                  window_size, softcap, alibi_slopes, deterministic, return_attn_probs)  # fmt: skip


def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0,
                                     softmax_scale: Optional[float] = None, causal: bool = False, window_size: tuple[int, int] = (-1, -1),
                                     softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None, deterministic: bool = False,
                                     return_attn_probs: bool = False) -> Union[Tensor, tuple[Tensor, Tensor, None]]:  # fmt: skip
    """flash_attn.flash_attn_varlen_qkvpacked_func: qkv is [rows of all sequences, 3, heads, dim]. The rest as of flash_attn_varlen_func."""
    q, k, v = _unpack(qkv, "qkv", 3, "rows of all sequences")
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale, causal, window_size,
                                  softcap, alibi_slopes, deterministic, return_attn_probs)  # fmt: skip


def _by_sequence(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_kv: Tensor, used_q: Optional[Tensor], used_kv: Optional[Tensor],
                 most_q: int, most_kv: int, slopes: Optional[Tensor], sink: Optional[Tensor], **options: Any) -> Tensor:  # fmt: skip
    """One sequence after another, for their gradients. Rows that no sequence has are 0."""
    out = q.new_zeros(q.shape[0], q.shape[1], v.shape[2])
    all_rows = _parts("q", cu_q, used_q, most_q, q.shape[0])
    all_keys = _parts("k", cu_kv, used_kv, most_kv, k.shape[0])
    if len(all_rows) != len(all_keys):
        raise _library.Error(f"cu_seqlens_q is of {len(all_rows)} sequences and cu_seqlens_k of {len(all_keys)}; give [batch + 1] both")
    for s, (rows, keys) in enumerate(zip(all_rows, all_keys)):
        if rows.stop == rows.start:
            continue
        one = (x[part].transpose(0, 1).unsqueeze(0) for x, part in ((q, rows), (k, keys), (v, keys)))
        own = slopes if slopes is None or slopes.dim() == 1 else slopes[s]
        made = attention(*one, alibi_slopes=own, sink=sink, **options)
        out = torch.slice_scatter(out, made[0].transpose(0, 1), 0, rows.start, rows.stop)
    return out


def _parts(of: str, cu: Tensor, used: Optional[Tensor], most: int, rows: int) -> list[slice]:
    """Where each sequence lies in the packed tensor `of`. The host reads them, so what would be NaN of a kernel is refused."""
    starts = _numbers(f"cu_seqlens_{of}", cu)
    if not starts:
        raise _library.Error(f"cu_seqlens_{of} is empty; give [batch + 1]")
    counts = None if used is None else _numbers(f"seqused_{of}", used)
    if counts is not None and len(counts) != len(starts) - 1:
        raise _library.Error(f"seqused_{of} is of {len(counts)} sequences and cu_seqlens_{of} of {len(starts) - 1}; give one number for each")
    found = []
    for s, (start, end) in enumerate(zip(starts, starts[1:])):
        if not 0 <= start <= end <= rows:
            raise _library.Error(f"cu_seqlens_{of}[{s}:{s + 2}] is {start}, {end}; give boundaries that do not descend, within the {rows} rows that {of} has")
        count = end - start if counts is None else counts[s]
        if not 0 <= count <= end - start:
            raise _library.Error(f"seqused_{of}[{s}] is {count} and the sequence has {end - start}; give 0 to that many")
        if count > most:
            raise _library.Error(f"sequence {s} has {count} rows of {of} and max_seqlen_{of} is {most}; give a bound that holds")
        found.append(slice(start, start + count))
    return found


def _numbers(name: str, x: Any) -> list[int]:
    if not isinstance(x, Tensor) or x.dim() != 1 or x.is_floating_point():
        raise _library.Error(f"{name} is {f'{x.dtype} of shape {tuple(x.shape)}' if isinstance(x, Tensor) else type(x).__name__}; give int32, one axis")
    return [int(n) for n in x.tolist()]


def _heads_first(x: Tensor) -> Tensor:
    return x.transpose(1, 2) if x.dim() == 4 else x  # another number of axes is refused with a better message


def _require_tensors(**operands: Any) -> None:
    for name, x in operands.items():
        if not isinstance(x, Tensor):
            raise _library.Error(f"{name} is a {type(x).__name__}; flashcore.flash_attn takes PyTorch tensors (flashcore.attention takes NumPy's)")


def _require_floats(**operands: Optional[Tensor]) -> None:
    for name, x in operands.items():
        if x is not None and not isinstance(x, Tensor):
            raise _library.Error(f"{name} is a {type(x).__name__}; give a tensor with a number for each query head")
        if x is not None and not x.is_floating_point():
            raise _library.Error(f"{name} is {x.dtype}; give a floating-point tensor with a number for each query head")


def _unpack(packed: Tensor, name: str, count: int, rows: str = "batch, length") -> tuple[Tensor, ...]:
    axes = 3 + len(rows.split(", "))
    if packed.dim() != axes or packed.shape[axes - 3] != count:
        raise _library.Error(f"{name} has shape {tuple(packed.shape)}; give [{rows}, {count}, heads, dim]")
    return packed.unbind(axes - 3)


def _refuse_dropout(dropout_p: float) -> None:
    if dropout_p != 0.0:
        raise _library.Error(f"dropout_p is {dropout_p}; flashcore has no dropout: give 0.0, as for inference")
