"""flex_attention with the user's functions, computed here where they can be said in the language of docs/expressions.md."""

from __future__ import annotations

import re
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as pytorch

from . import _library, _plan, _torch_launch
from ._torch_counters import pass_on
from ._torch_flex_lists import lists_of
from ._torch_flex_operator import CAN_RECORD, attend_compiled, operand, require_short
from ._torch_flex_sizes import Accepted, accepted, are_within, in_words_of_the_caller, note_sizes, noted
from ._torch_reasons import GRADIENT, why_not_now, why_not_of
from ._torch_trace import Untraceable, trace


class _Recorded(NamedTuple):
    given: dict[str, Any]  # score, mask and tensors of flashcore.attention
    mask_reads: tuple[Tensor, ...]  # the caller's own, of which `given` may have copies


def _functions(device: torch.device, shapes: tuple[tuple[int, ...], ...], score_mod: Optional[Callable[..., Any]],
               mask_mod: Optional[Callable[..., Any]]) -> _Recorded:  # fmt: skip
    """`shapes`: of q and k, or none where they are not known yet."""
    given: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    mask_reads: tuple[Tensor, ...] = ()
    for name, function in (("score", score_mod), ("mask", mask_mod)):
        if function is None:
            continue
        try:
            traced = trace(function, name == "score", device)
            read = {key: x for key, x in traced.tensors.items() if re.search(rf"\b{key}\b", traced.text)}
            tensors |= {key: operand(x, device, traced.sums_ints) for key, x in read.items()}
            if traced.sums_ints and shapes:
                require_short(*shapes)
        except Untraceable as why:
            raise Untraceable(f"{'score_mod' if name == 'score' else 'mask_mod'} cannot be recorded for flashcore: {why}") from None
        if traced.text not in ("s", "(0 == 0)"):
            given[name] = traced.text
        if name == "mask":
            mask_reads = tuple(read.values())
    return _Recorded(given | ({"tensors": tensors} if tensors else {}), mask_reads)


@torch.compiler.assume_constant_result
def _accepted(device: torch.device, score_mod: Optional[Callable[..., Any]], mask_mod: Optional[Callable[..., Any]]) -> Accepted:
    """Asked when torch.compile records a call, which records the functions as well and so notices when they change."""
    asked = noted()
    try:
        return accepted(asked, device, _functions(device, asked.shapes[:2] if asked else (), score_mod, mask_mod).given)
    except Untraceable as why:
        return str(why), None


def _why_not(query: Tensor, key: Tensor, value: Tensor, block_mask: Any, scale: Optional[float], enable_gqa: bool, return_lse: bool,
             return_aux: Any) -> Optional[str]:  # fmt: skip
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        return GRADIENT
    if block_mask is not None and block_mask.mask_mod is pytorch.noop_mask:
        return "block_mask has blocks and no mask_mod"
    if return_lse and return_aux is not None:
        return "return_lse and return_aux are both given"
    if return_aux is not None and getattr(return_aux, "max_scores", False):
        return "the largest scores are asked for"
    if block_mask is not None and tuple(block_mask.seq_lengths) != (query.shape[-2], key.shape[-2]):
        return f"block_mask is of lengths {tuple(block_mask.seq_lengths)}, not {(query.shape[-2], key.shape[-2])}"
    return why_not_of(query, key, value, False, scale, enable_gqa) or why_not_now(query, key, value)


def flex_attention(query: Tensor, key: Tensor, value: Tensor, score_mod: Optional[Callable[..., Any]] = None, block_mask: Any = None,
                   scale: Optional[float] = None, enable_gqa: bool = False, return_lse: bool = False, kernel_options: Any = None, *,
                   return_aux: Any = None) -> Any:  # fmt: skip
    """torch.nn.attention.flex_attention.flex_attention, with the same arguments and results, by flashcore where it can.

    Args:
        query: [batch, heads, length, dim], float16, bfloat16 or float32 (CPU), any strides.
        key, value: [batch, heads_kv, length_kv, dim]; fewer heads than the query's need enable_gqa.
        score_mod: a function (score, b, h, q_idx, kv_idx) of scalar tensors. It is recorded once, with the tensors that it reads,
            which are read anew at each call; scores are float32 whatever the query's dtype is. torch.compile records it as a part of
            its graph, without a break, and again when it changes, or when dynamic lengths reach those at which it may divide by zero.
        block_mask: of create_block_mask. Its function is recorded as well, and counts alone: flashcore finds the blocks itself. On a GPU
            the first call with a BlockMask lists them, and the others read that, as long as PyTorch counts no write to a tensor that the
            function reads (`_version`). It does not count writes through `.data`, NumPy or a storage, by torch.distributed, by kernels of
            others and by replays of
            CUDA graphs: give a new BlockMask after them. Calls in a CUDA graph or under torch.compile, and tensors of torch.inference_mode, have the blocks listed in each call. One
            without a function (BlockMask.from_kv_blocks) goes to PyTorch; one whose blocks hide more than its function does is not
            supported: as in PyTorch's uncompiled flex_attention, the function says what is visible.
        scale: default 1/sqrt(dim).
        enable_gqa: as PyTorch's.
        return_lse, return_aux: also the natural log-sum-exp, float32 [batch, heads, length].
        kernel_options: of PyTorch's kernels; not used here.

    Returns:
        [batch, heads, length, dim], as PyTorch's: with return_lse (output, lse), with return_aux (output, AuxOutput).

    Recorded are arithmetic, comparisons, conditions (& | ^ ~, and products and sums of them), where, minimum, maximum, clamp, relu, abs, exp, exp2, log, log2, tanh, sqrt, rsqrt,
    sigmoid, powers 0.5, 2 and 3 of floats, and elements of tensors. Other functions (sin, erf, masked_fill, floor, ...), operations on the bits of ints, branches on values,
    arithmetic on floats of 16 bits and any of 64 (give such a tensor as float32, converted outside of score_mod), divisions that may be by zero and indices that may leave their tensor at the call's sizes,
    tensors or inputs that require a gradient, and the row maxima that return_aux may ask for go to PyTorch's
    flex_attention, uncompiled unless the call is compiled, with a `flashcore.Note` the first time that says why.
    """
    if torch.compiler.is_compiling() and CAN_RECORD:
        return _compiled(query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, kernel_options, return_aux)
    return _eager(query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, kernel_options, return_aux)


@torch.compiler.disable
def _eager(query: Tensor, key: Tensor, value: Tensor, score_mod: Optional[Callable[..., Any]], block_mask: Any, scale: Optional[float],
           enable_gqa: bool, return_lse: bool, kernel_options: Any, return_aux: Any) -> Any:  # fmt: skip
    """The same outside of torch.compile, which breaks its graph here where it cannot record the call."""
    why = _why_not(query, key, value, block_mask, scale, enable_gqa, return_lse, return_aux)
    if why is None:
        try:
            wants_lse = return_lse or (return_aux is not None and return_aux.lse)
            mask_mod = None if block_mask is None else block_mask.mask_mod
            recorded = _functions(query.device, (query.shape, key.shape), score_mod, mask_mod)
            with lists_of(block_mask, recorded.mask_reads, query.device) as lists:
                made = _plan.attention(query, key, value, scale=scale, return_lse=wants_lse, block_mask=lists, **recorded.given)
        except Untraceable as error:
            why = str(error)
        except _library.Error as error:
            if error.kind != "bad input":
                raise
            why = in_words_of_the_caller(error)
    if why is not None:
        pass_on(why)
        return pytorch.flex_attention(query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, kernel_options, return_aux=return_aux)
    _torch_launch.computed.add()
    if return_aux is not None:
        return (made[0], pytorch.AuxOutput(lse=made[1])) if return_aux.lse else (made, pytorch.AuxOutput())
    return made


def _compiled(query: Tensor, key: Tensor, value: Tensor, score_mod: Optional[Callable[..., Any]], block_mask: Any, scale: Optional[float],
              enable_gqa: bool, return_lse: bool, kernel_options: Any, return_aux: Any) -> Any:  # fmt: skip
    """The same while torch.compile records the call."""
    why = _why_not(query, key, value, block_mask, scale, enable_gqa, return_lse, return_aux)
    mask_mod = None if block_mask is None else block_mask.mask_mod
    if why is None:
        note_sizes(query, key, value)
        why, most = _accepted(query.device, score_mod, mask_mod)
        are_within(query, key, most)  # they are: what counts is that the sizes were compared
    if why is not None:
        pass_on(why)
        return pytorch.flex_attention(query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, kernel_options, return_aux=return_aux)
    wants_lse = return_lse or (return_aux is not None and return_aux.lse)
    out, lse = attend_compiled(query, key, value, score_mod, mask_mod, scale, wants_lse)
    if return_aux is not None:
        return out, pytorch.AuxOutput(lse=lse if return_aux.lse else None)
    return (out, lse) if return_lse else out
