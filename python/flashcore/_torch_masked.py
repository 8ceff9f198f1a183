"""attn_mask: a condition for each pair, or numbers that are added to the scores. Every way to broadcast it, and the masks that are none."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Union

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _functions, _torch_launch, _torch_operator, _torch_packed
from ._functions import Functions
from ._library import Error
from ._torch_counters import pass_on
from ._torch_reasons import CHOSEN, is_restricted, why_not, why_not_now

_PLAIN = frozenset((Tensor, torch.nn.Parameter))
_SLOW = "attn_mask is given, and of flashcore's kernels the slow reference alone takes such a call"
# What is added to hide a key: bfloat16 and float32 have their least number beside -inf, and no score reaches this.
_HIDDEN = -1e30
# The kernels multiply a row's maximum by log2(e): below -2.36e38 that is -inf, and the row would be taken for one without keys.
_LEAST = -1e38


# --- masks that are lengths or causal ----------------------------------------------------------------------------------


class Lengths(NamedTuple):
    """Each batch entry shows `count` keys from `first` on to all of its rows. int32 [batch]."""

    first: Tensor
    count: Tensor


def _visible(held: Tensor) -> Optional[Tensor]:
    """A mask of conditions: itself, or of numbers that hide a key or leave it as it is. None for other numbers."""
    if held.dtype is torch.bool:
        return held
    shown = held == 0
    return shown if bool((shown | (held == -torch.inf)).all()) else _without_least_numbers(held, shown)


def _without_least_numbers(held: Tensor, shown: Tensor) -> Optional[Tensor]:
    # Where a row has no other key, PyTorch gives the mean of those hidden by a finite number.
    return shown if bool((shown | (held < _HIDDEN)).all()) and bool(shown.any(-1).all()) else None


def recognise(held: Tensor, axes: str, rows: int, keys: int) -> Union[Lengths, str, None]:
    """What the values of a mask say: "all" keys are visible, "top_left" or "bottom_right" causal, lengths, or None. Reads the tensor:
    on a GPU that would wait for it."""
    if axes in ("", "j", "bj"):
        shown = _visible(held)
        if shown is None:
            return None
        if bool(shown.all()):
            return "all"
        shown = shown.expand(1, keys) if shown.dim() == 1 else shown
        count, first = shown.sum(-1), shown.int().argmax(-1)
        last = keys - 1 - shown.flip(-1).int().argmax(-1)
        one_run = bool(((last - first + 1 == count) | (count == 0)).all())
        return Lengths(first.int(), count.int()) if one_run else None
    if axes == "ij":
        shown = _visible(held[:1])
        if shown is None:
            return None
        own = int(shown.sum()) - 1  # of the first row
        if own not in (0, keys - rows) or not bool(shown[0, : own + 1].all()):
            return None
        shown = _visible(held)
        if shown is not None and torch.equal(shown, torch.ones(rows, keys, dtype=torch.bool).tril_(own)):
            return "top_left" if own == 0 else "bottom_right"
    return None


def _of_lengths(q: Tensor, k: Tensor, v: Tensor, lengths: Lengths, scale: Optional[float], softcap: Optional[float], sink: Optional[Tensor]) -> Tensor:
    """Softmax over a run of keys of each batch entry."""
    batch, _, rows, _ = q.shape
    first, count = lengths
    if first.shape[0] == 1 or (bool((first == first[0]).all()) and bool((count == count[0]).all())):
        run = slice(int(first[0]), int(first[0]) + int(count[0]))
        if run.stop == run.start:
            _torch_launch.computed.add()  # without a launch
        return _torch_launch.forward(q, k[:, :, run], v[:, :, run], False, scale, -1, -1, softcap, None, sink)
    queries = torch.zeros_like(first), torch.full_like(first, rows)
    out = _torch_packed.attend_padded(q, k, v, first, count, kept={}, queries=queries, causal=False, window=None, scale=scale, softcap=softcap,
                                      sink=None if sink is None else sink.detach().float().contiguous())  # fmt: skip
    return out.transpose(1, 2)


# --- any mask ----------------------------------------------------------------------------------------------------------


def _held(mask: Tensor) -> tuple[Tensor, str]:
    """The tensor that holds the mask, and its axes: those along which it differs."""
    missing = 4 - mask.dim()
    kept = [axis for axis in range(mask.dim()) if mask.shape[axis] > 1 and mask.stride(axis) != 0]
    held = mask[tuple(slice(None) if axis in kept else 0 for axis in range(mask.dim()))] if mask.dim() else mask
    held = held.reshape(1) if not kept else held
    return held, "".join("bhij"[missing + axis] for axis in kept)


def _function_of(held: Tensor, axes: str) -> tuple[Functions, Tensor]:
    """What the mask is to the scores, and the tensor that is read."""
    if held.dtype is not torch.bool:
        reaches = held.dtype is not torch.float16
        held = held.float()
        if reaches:
            held = torch.where((held < _LEAST) & (held != -torch.inf), _LEAST, held)
    is_bool = held.dtype is torch.bool
    name = _functions.MASK if is_bool else _functions.BIAS
    tensor = _functions.Tensor(name, 2 if is_bool else 0, tuple(held.shape), tuple(held.stride()))
    text = f"{name}[{', '.join(axes) or '0'}]"
    return (Functions("", text, (tensor,)) if is_bool else Functions(f"s + {text}", "", (tensor,))), held


def compute(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, is_causal: bool = False, scale: Optional[float] = None, window_left: int = -1,
            window_right: int = -1, softcap: Optional[float] = None, alibi_slopes: Optional[Tensor] = None, sink: Optional[Tensor] = None) -> Union[Tensor, str]:  # fmt: skip
    """The output, or why no kernel is to compute it. The inputs were checked and are not empty."""
    held, axes = _held(mask.detach())
    banded = is_causal or window_left >= 0 or window_right >= 0
    if q.device.type == "cpu" and not banded:
        found = recognise(held, axes, q.shape[2], k.shape[2])
        if isinstance(found, Lengths):
            if alibi_slopes is None:  # its distances are counted from the last key of all
                return _of_lengths(q, k, v, found, scale, softcap, sink)
        elif found is not None:
            return _torch_launch.forward(q, k, v, found == "top_left", scale, -1, 0 if found == "bottom_right" else -1, softcap, alibi_slopes, sink)
    functions, held = _function_of(held, axes)
    addresses = (q.data_ptr(), k.data_ptr(), v.data_ptr())
    window = (window_left, window_right)
    scores = (softcap, 0 if alibi_slopes is None else alibi_slopes.dim(), 0 if sink is None else 1)
    found_by = (_torch_launch.key_of(q, k, v, addresses, is_causal, scale, True, window, scores), functions)
    how = _torch_launch.known.get(found_by)
    if how is None:
        how = _prepared(found_by, q, k, v, addresses, is_causal, scale, window, scores, functions)
    if isinstance(how, str):
        return how
    slopes, logits = (None if x is None else x.detach().float().contiguous() for x in (alibi_slopes, sink))
    return _torch_launch.run(how, q, k, v, addresses, 0 if slopes is None else slopes.data_ptr(), 0 if logits is None else logits.data_ptr(),
                             tensors=(held.data_ptr(),))  # fmt: skip


def _prepared(found_by: Any, q: Tensor, k: Tensor, v: Tensor, addresses: Any, is_causal: bool, scale: Optional[float], window: tuple[int, int],
              scores: Any, functions: Functions) -> Union[_torch_launch.Prepared, str]:  # fmt: skip
    how: Union[_torch_launch.Prepared, str]
    try:
        how = _torch_launch.prepare(found_by, q, k, v, addresses, is_causal, scale, window, scores, functions)
        if how.plan.info["family"] == "ref_fwd":
            how = _SLOW
    except Error as error:
        if error.kind != "bad input":
            raise
        how = f"attn_mask is given, and no kernel takes such a call: {error}"
    _torch_launch.remember(found_by, how)
    return how


# --- the drop-in -------------------------------------------------------------------------------------------------------


def _is_plain(*tensors: Tensor) -> bool:
    """Memory holds their values, and nothing but this looks at the call."""
    return (torch._C._len_torch_dispatch_stack() == 0 and not torch._C._is_tracing() and not torch._C._is_any_autocast_enabled()
            and forward_ad._current_level < 0 and not torch._C._are_functorch_transforms_active() and not any(x.is_neg() for x in tensors))  # fmt: skip


def subclass(tensors: tuple[Tensor, ...]) -> Optional[str]:
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0 or torch._C._is_tracing():
        return None
    other = next((type(x).__name__ for x in tensors if type(x) not in _PLAIN and not isinstance(x, torch._subclasses.FakeTensor)), None)
    return other and f"the inputs are of the tensor subclass {other}"


def attend(pytorch: Callable[..., Tensor], obey: bool, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, dropout_p: float,
           is_causal: bool, scale: Optional[float], enable_gqa: bool) -> Tensor:  # fmt: skip
    """Here where it can be, else by `pytorch`. A row that sees no key is 0."""
    reason = why_not(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa)
    if reason is None:
        reason = CHOSEN if obey and is_restricted() else subclass((query, key, value, mask))
    if reason is None and torch.compiler.is_compiling():
        return _by_operator(*_torch_operator.cast(query, key, value, mask), scale)
    if reason is None:
        reason = why_not_now(query, key, value, mask)
    if reason is None and not _is_plain(query, key, value, mask):
        return _by_operator(query, key, value, mask, scale)  # the dispatcher knows modes, vmap, negated views and autocast
    if reason is None:
        out = compute(query, key, value, mask, scale=scale)
        if isinstance(out, Tensor):
            return out
        reason = out
    pass_on(reason)
    return pytorch(query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def _by_operator(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: Optional[float]) -> Tensor:
    return torch.ops.flashcore.attention(query, key, value, False, scale, -1, -1, None, None, None, mask)  # type: ignore[no-any-return]
