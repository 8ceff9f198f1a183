"""PyTorch: a drop-in for scaled_dot_product_attention, an operator for torch.compile and torch.export, and enable().

    import flashcore.torch
    with flashcore.torch.enable():
        model(x)                      # every scaled_dot_product_attention inside runs on flashcore where it can
    print(flashcore.torch.counters())

What flashcore does not compute (masks, dropout, gradients, ...) goes to PyTorch, with a `flashcore.Note` the first time
that says why, at the caller's line. Gradients: a call whose inputs require one runs on PyTorch, forward and backward;
`torch.ops.flashcore.attention`, called directly, computes its backward by running PyTorch's on the same inputs. It
refuses what does not fit with a RuntimeError, under torch.compile the same, and follows vmap, forward-mode derivatives
and autocast.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _plan, _torch_launch, _torch_operator
from ._torch_launch import DTYPES, MAX_HEAD_DIM, MAX_SCALE, MIN_SCALE

__all__ = ["counters", "disable", "enable", "reset_counters", "scaled_dot_product_attention", "why_not"]

_BF16, _FP16, _FP32 = torch.bfloat16, torch.float16, torch.float32
_PLAIN = frozenset((Tensor, torch.nn.Parameter))
_MAX_REASONS = 256  # sizes are part of some

# --- counters ----------------------------------------------------------------------------------------------------------

_lock = threading.RLock()


def _renew_lock() -> None:
    # Another thread of the parent may have held it when this process was forked, as a DataLoader's worker is.
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)
_passed_on: dict[str, _torch_launch.Counter] = {}


def counters() -> dict[str, Any]:
    """How many calls of the process came here since the last `reset_counters`.

    Returns:
        {"computed": calls that flashcore computed, "passed_on": {why, in words: calls that PyTorch computed}}. What
        torch.compile recorded counts whenever it runs if flashcore computes it, and once, when it is recorded, if
        PyTorch does; a CUDA graph's launches count when they are captured.
    """
    with _lock:
        return {"computed": _torch_launch.computed.read(), "passed_on": {why: counter.read() for why, counter in _passed_on.items()}}


def reset_counters() -> None:
    """All counters to 0."""
    with _lock:
        _torch_launch.reset_computed()
        _passed_on.clear()


@torch.compiler.assume_constant_result
def pass_on(reason: str) -> None:
    """Counts a call for PyTorch, and says why the first time. Nearly all that a call that is passed on costs."""
    counter = _passed_on.get(reason)
    if counter is None:
        counter = _new_reason(reason)
    counter.add()


def _new_reason(reason: str) -> _torch_launch.Counter:
    with _lock:
        named = reason if len(_passed_on) < _MAX_REASONS else "other reasons"
        counter = _passed_on.setdefault(named, _torch_launch.Counter())
    _plan.say_once(f"flashcore.torch: PyTorch computes this attention: {reason}")
    return counter


# --- what is computed here ---------------------------------------------------------------------------------------------

_MASK = "attn_mask is given, and flashcore knows causal masks only"
_DROPOUT = "dropout_p is above 0"
_GRADIENT = "an input requires a gradient, and flashcore has no backward pass yet"
_AXES = "an input has other than four axes; flashcore takes [batch, heads, length, dim]"
_FLOAT32 = "float32 on a GPU has no tensor-core kernel in flashcore"
_CHOSEN = "sdpa_kernel(...) or torch.backends.cuda.enable_..._sdp(...) chose among PyTorch's kernels after enable()"


def _why_not(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: Optional[float], enable_gqa: bool) -> Optional[str]:
    """Of what shapes, strides, dtypes and options tell. torch.compile traces through it."""
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        return _AXES
    if query.layout is not torch.strided or key.layout is not torch.strided or value.layout is not torch.strided:
        return "an input is not a dense tensor"
    if query.is_nested or key.is_nested or value.is_nested:
        return "an input is a nested tensor"
    kind = query.device.type
    if kind != "cpu" and kind != "cuda":
        return f"the inputs are on the device '{kind}'"
    if key.device != query.device or value.device != query.device or key.dtype != query.dtype or value.dtype != query.dtype:
        return "the inputs differ in dtype or device"
    if query.dtype not in DTYPES:
        return f"the dtype is {query.dtype}"
    if kind == "cuda" and query.dtype == torch.float32:
        return _FLOAT32
    dim, columns = query.shape[3], value.shape[3]
    if kind == "cuda" and (dim % 8 != 0 or columns % 8 != 0 or dim > MAX_HEAD_DIM or columns > MAX_HEAD_DIM):
        return f"head dims {dim} and {columns}: the fast GPU kernels take multiples of 8 up to {MAX_HEAD_DIM}"
    if kind == "cpu" and (dim > MAX_HEAD_DIM or columns > MAX_HEAD_DIM):
        return f"head dims {dim} and {columns}: the CPU kernel takes up to {MAX_HEAD_DIM}"
    if key.shape[3] != dim or key.shape[0] != query.shape[0] or value.shape[0] != query.shape[0] or key.shape[1] != value.shape[1] or key.shape[2] != value.shape[2]:
        return "the shapes need broadcasting, or do not fit together"
    if 0 in query.shape or 0 in key.shape or columns == 0:
        return "a tensor is empty"
    if key.shape[1] != query.shape[1] and (not enable_gqa or query.shape[1] % key.shape[1] != 0):
        return "query and key differ in heads without enable_gqa"
    if scale is not None and not MIN_SCALE <= scale <= MAX_SCALE:
        return f"scale is {scale}"
    return None


def _why_not_now(*tensors: Tensor) -> Optional[str]:
    """Of what the moment tells: transforms, and tensors whose memory does not hold their values."""
    if torch._C._are_functorch_transforms_active():
        levels = torch._C._functorch.get_interpreter_stack() or []
        if any(level.key() != torch._C._functorch.TransformType.Vmap for level in levels):
            return "a transform of torch.func other than vmap runs"
    elif forward_ad._current_level >= 0 and _torch_operator.has_tangent(*tensors):
        return "an input has a tangent, and flashcore has no forward-mode derivative"
    return None


def why_not(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor] = None, dropout_p: float = 0.0,
            is_causal: bool = False, scale: Optional[float] = None, enable_gqa: bool = False) -> Optional[str]:  # fmt: skip
    """Why such a call of `scaled_dot_product_attention` runs on PyTorch, in words; None if flashcore computes it."""
    if attn_mask is not None:
        return _MASK
    if dropout_p != 0:
        return _DROPOUT
    if not (isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor)):
        return "query, key and value are not all tensors"
    if type(is_causal) is not bool:
        return f"is_causal is a {type(is_causal).__name__}"
    if scale is not None and not isinstance(scale, (float, int, torch.SymFloat, torch.SymInt)):
        return f"scale is a {type(scale).__name__}"
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        return _GRADIENT
    return _why_not(*_torch_operator.cast(query, key, value), is_causal, scale, enable_gqa)


class _Switch:
    """Our function in the place of torch.nn.functional's, and what was there before."""

    def __init__(self) -> None:
        self.on = False
        self.before: Callable[..., Tensor] = _torch_operator.pytorch_attention
        self.backends: tuple[bool, ...] = ()  # of PyTorch that were allowed when it was switched on
        self.function = _replacement_of(self)
        # torch.jit.script takes it for PyTorch's, as it takes the function that it replaces.
        torch.jit._builtins._register_builtin(self.function, "aten::scaled_dot_product_attention")


def _replacement_of(switch: _Switch) -> Callable[..., Tensor]:
    def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor] = None, dropout_p: float = 0.0,
                                     is_causal: bool = False, scale: Optional[float] = None, enable_gqa: bool = False) -> Tensor:  # fmt: skip
        """What torch.nn.functional.scaled_dot_product_attention is while enabled."""
        if not switch.on:  # someone put it back, or kept it: then it is what it replaced
            return switch.before(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        return _attend(switch.before, True, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)

    return scaled_dot_product_attention


_flash, _efficient, _math, _cudnn = (
    getattr(torch._C, f"_get_{name}_sdp_enabled", lambda: True) for name in ("flash", "mem_efficient", "math", "cudnn"))  # fmt: skip


def _backends() -> tuple[bool, ...]:
    """Which of its kernels PyTorch may use."""
    return (_flash(), _efficient(), _math(), _cudnn())


@torch.compiler.assume_constant_result
def _backends_changed() -> bool:
    return (_flash(), _efficient(), _math(), _cudnn()) != _switches[-1].backends


# --- the drop-in -------------------------------------------------------------------------------------------------------


def _is_watched() -> bool:
    """A mode looks at every operator (make_fx, FakeTensorMode, FlopCounterMode), or a trace records them."""
    return torch._C._len_torch_dispatch_stack() > 0 or torch._C._is_tracing()


def _attend(pytorch: Callable[..., Tensor], obey: bool, query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor],
            dropout_p: float, is_causal: bool, scale: Optional[float], enable_gqa: bool) -> Tensor:  # fmt: skip
    """Here where it can be, else by `pytorch`. The frequent ways out come first, as they must cost next to nothing.

    `obey`: pass on where sdpa_kernel(...) chose one of PyTorch's kernels."""
    if attn_mask is not None:
        pass_on(_MASK)
        return pytorch(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if dropout_p != 0:
        pass_on(_DROPOUT)
        return pytorch(query, key, value, None, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if obey and _backends_changed():
        pass_on(_CHOSEN)
        return pytorch(query, key, value, None, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
    if torch.compiler.is_compiling():
        return _attend_traced(pytorch, query, key, value, is_causal, scale, enable_gqa)
    if type(query) in _PLAIN and type(key) in _PLAIN and type(value) in _PLAIN and type(is_causal) is bool and (scale is None or type(scale) is float):
        if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
            pass_on(_GRADIENT)
            return pytorch(query, key, value, None, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
        dtype = query.dtype
        if (query.dim() != 4 or (dtype is not _BF16 and dtype is not _FP16 and (dtype is not _FP32 or query.is_cuda))) and not torch._C._is_any_autocast_enabled():
            pass_on(_AXES if query.dim() != 4 else _FLOAT32 if dtype is _FP32 else f"the dtype is {dtype}")
            return pytorch(query, key, value, None, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
        if not (_is_watched() or torch._C._is_any_autocast_enabled() or forward_ad._current_level >= 0
                or query.is_neg() or key.is_neg() or value.is_neg()):  # fmt: skip
            return _attend_plain(pytorch, query, key, value, is_causal, scale, enable_gqa)
    return _attend_otherwise(pytorch, query, key, value, is_causal, scale, enable_gqa)


def _attend_plain(pytorch: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: Optional[float],
                  enable_gqa: bool) -> Tensor:  # fmt: skip
    """Of tensors whose memory holds their values. What was decided of a call like one before it still holds."""
    try:
        addresses = (query.data_ptr(), key.data_ptr(), value.data_ptr())
        found_by = _torch_launch.key_of(query, key, value, addresses, is_causal, scale, enable_gqa)
    except RuntimeError:  # tensors in a transform of torch.func and sparse ones have no address or strides
        return _attend_otherwise(pytorch, query, key, value, is_causal, scale, enable_gqa)
    how = _torch_launch.known.get(found_by)
    if how is None:
        if 0 in addresses:  # empty ones, those on "meta", and zeros without memory
            return _attend_otherwise(pytorch, query, key, value, is_causal, scale, enable_gqa)
        how = _why_not(query, key, value, is_causal, scale, enable_gqa)
        if how is None:
            how = _torch_launch.prepare(found_by, query, key, value, addresses, is_causal, scale)
        else:
            _torch_launch.remember(found_by, how)
    if type(how) is str:
        pass_on(how)
        return pytorch(query, key, value, None, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
    if 0 in addresses:
        return _attend_otherwise(pytorch, query, key, value, is_causal, scale, enable_gqa)
    return _torch_launch.run(how, query, key, value, addresses)


def _attend_traced(pytorch: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: Optional[float],
                   enable_gqa: bool) -> Tensor:  # fmt: skip
    """Under torch.compile and torch.export, which see the operator or PyTorch's."""
    reason = why_not(query, key, value, None, 0.0, is_causal, scale, enable_gqa)
    if reason is None:
        return torch.ops.flashcore.attention(*_torch_operator.cast(query, key, value), is_causal, scale)  # type: ignore[no-any-return]
    pass_on(reason)
    return pytorch(query, key, value, None, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)


def _attend_otherwise(pytorch: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: Optional[float],
                      enable_gqa: bool) -> Tensor:  # fmt: skip
    """Under transforms, modes, traces and autocast, and of tensors that are not plain ones."""
    reason = why_not(query, key, value, None, 0.0, is_causal, scale, enable_gqa) or _why_not_now(query, key, value)
    if reason is None:
        plain = type(query) in _PLAIN and type(key) in _PLAIN and type(value) in _PLAIN
        if plain or _is_watched() or isinstance(query, torch._subclasses.FakeTensor):
            # The dispatcher knows modes, vmap, negated views and autocast.
            return torch.ops.flashcore.attention(query, key, value, is_causal, scale)  # type: ignore[no-any-return]
        reason = f"the inputs are of the tensor subclass {next(type(x).__name__ for x in (query, key, value) if type(x) not in _PLAIN)}"
    pass_on(reason)
    return pytorch(query, key, value, None, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor] = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: Optional[float] = None,
                                 enable_gqa: bool = False) -> Tensor:  # fmt: skip
    """torch.nn.functional.scaled_dot_product_attention, with the same arguments and results, by flashcore where it can.

    Args:
        query: [batch, heads, length, dim], float16, bfloat16 or float32 (CPU), any strides.
        key: [batch, heads_kv, length_kv, dim]; fewer heads than the query's need enable_gqa.
        value: [batch, heads_kv, length_kv, dim_v].
        attn_mask, dropout_p: anything but None and 0 goes to PyTorch, with a note the first time.
        is_causal: row i sees keys 0..i (top-left, as PyTorch defines it).
        scale: default 1/sqrt(dim).
        enable_gqa: as PyTorch's.

    Returns:
        [batch, heads, length, dim_v], in memory [batch, length, heads, dim_v]. Under autocast of its dtype, as PyTorch's.

    Called by this name, it is flashcore's inside sdpa_kernel(...) too; what enable() puts in PyTorch's place obeys that.
    """
    return _attend(_torch_operator.pytorch_attention, False, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


# --- in PyTorch's place ------------------------------------------------------------------------------------------------


# Guarded by _lock. One switch serves as long as it replaces PyTorch's function, so that torch.compile meets one function. Where
# another's function is replaced, which may call an older one of ours, a new one does: each passes on to what it replaced.
_switches = [_Switch()]  # the last is in use; all stay, as others may have kept their functions
_holders, _generation = 0, 0  # enable()s that have not ended; disable() begins a new generation


def is_enabled() -> bool:
    """Whether torch.nn.functional's function was replaced by flashcore's, and not put back."""
    return _switches[-1].on


def _switch_on() -> None:
    functional, now, switch = torch.nn.functional, torch.nn.functional.scaled_dot_product_attention, _switches[-1]
    if switch.on and now is not _torch_operator.pytorch_attention:
        return  # ours, or another's that was put over ours
    if now is not switch.function:
        if now is not _torch_operator.pytorch_attention:
            switch = next((old for old in _switches if old.before is now), None) or _Switch()
            _switches[:] = [*(old for old in _switches if old is not switch), switch]
        switch.before = now
        functional.scaled_dot_product_attention = switch.function  # type: ignore[assignment]
    switch.backends = _backends()
    switch.on = True


def _switch_off() -> None:
    global _holders
    _holders = 0
    switch = _switches[-1]
    was_on, switch.on = switch.on, False
    if torch.nn.functional.scaled_dot_product_attention is switch.function:
        torch.nn.functional.scaled_dot_product_attention = switch.before  # type: ignore[assignment]
    elif was_on:
        _plan.say_once("flashcore.torch: torch.nn.functional.scaled_dot_product_attention was replaced by someone else after enable(); "
                       "their function stays, and flashcore computes nothing for it any more")  # fmt: skip


class _Enabled:
    """What enable() returns: leaving it as a context ends what it began, whatever others began or ended meanwhile."""

    def __init__(self) -> None:
        self._generation: Optional[int] = None
        self._begin()

    def _begin(self) -> None:
        global _holders
        with _lock:
            _switch_on()
            _holders += 1
            self._generation = _generation

    def _end(self) -> None:
        global _holders
        with _lock:
            if self._generation != _generation:
                return
            self._generation = None
            _holders -= 1
            if _holders == 0:
                _switch_off()

    def __enter__(self) -> None:
        if self._generation is None:  # entered again
            self._begin()

    def __exit__(self, *error: Any) -> None:
        self._end()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """As a decorator: enabled while the function runs, and not before."""
        self._end()

        @functools.wraps(function)
        def enabled(*args: Any, **options: Any) -> Any:
            with enable():
                return function(*args, **options)

        return enabled


def enable() -> Any:
    """From now on torch.nn.functional.scaled_dot_product_attention is flashcore's, for every thread of the process.

        flashcore.torch.enable()             # until disable()
        with flashcore.torch.enable():       # until the block is left
            model(x)

    Blocks may overlap in any order and in any threads: the function from before is back when the last is left. It also
    works as a decorator.

    Reaches models that look the function up when they call it (Hugging Face with attn_implementation="sdpa", timm, most
    others); one that imported it by name before keeps PyTorch's. torch.nn.MultiheadAttention and TransformerEncoderLayer look
    it up too, but in eval mode without gradients they run one fused operator of PyTorch instead, which enable() leaves alone:
    torch.backends.mha.set_fastpath_enabled(False) turns it off.

    Inside torch.nn.attention.sdpa_kernel(...), entered after enable(), PyTorch computes, by the kernels that are chosen there.
    """
    return _Enabled()


def disable() -> None:
    """Ends every enable(), with or without a block, in all threads."""
    global _generation
    with _lock:
        _generation += 1
        _switch_off()


torch.jit._builtins._register_builtin(scaled_dot_product_attention, "aten::scaled_dot_product_attention")
