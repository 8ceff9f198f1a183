"""enable() and disable(): flashcore's function in the place of torch.nn.functional's."""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional

import torch
from torch import Tensor

from . import _plan, _torch_counters, _torch_operator
from ._torch_dropin import attend


class _Switch:
    """Our function in the place of torch.nn.functional's, and what was there before."""

    def __init__(self) -> None:
        self.on = False
        self.before: Callable[..., Tensor] = _torch_operator.pytorch_attention
        self.function = _replacement_of(self)
        # torch.jit.script takes it for PyTorch's, as it takes the function that it replaces.
        torch.jit._builtins._register_builtin(self.function, "aten::scaled_dot_product_attention")


def _replacement_of(switch: _Switch) -> Callable[..., Tensor]:
    def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor] = None, dropout_p: float = 0.0,
                                     is_causal: bool = False, scale: Optional[float] = None, enable_gqa: bool = False) -> Tensor:  # fmt: skip
        """What torch.nn.functional.scaled_dot_product_attention is while enabled."""
        if not switch.on:  # someone put it back, or kept it: then it is what it replaced
            return switch.before(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if torch._C._is_torch_function_mode_enabled() and not torch.compiler.is_compiling():
            # A mode sees this call, as it sees PyTorch's, instead of what the call is made of; its own call comes back without it.
            return torch.overrides.handle_torch_function(  # type: ignore[no-any-return]
                scaled_dot_product_attention, (query, key, value), query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)  # fmt: skip
        return attend(switch.before, True, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)

    # Pickle stores a function by its name. Loaded, it is what the loading process has there.
    scaled_dot_product_attention.__module__ = "torch.nn.functional"
    scaled_dot_product_attention.__qualname__ = "scaled_dot_product_attention"
    return scaled_dot_product_attention


# Guarded by _torch_counters.lock. One switch serves as long as it replaces PyTorch's function, so that torch.compile meets one function. Where
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
        with _torch_counters.lock:
            _switch_on()
            _holders += 1
            self._generation = _generation

    def _end(self) -> None:
        global _holders
        with _torch_counters.lock:
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

    A choice among PyTorch's kernels is obeyed, whether it is made before enable() or after it: PyTorch computes inside
    torch.nn.attention.sdpa_kernel(...), and after torch.backends.cuda.enable_flash_sdp(False) and similar calls.
    torch.compile records the choice in force when it compiles: compile inside sdpa_kernel(...), or call
    torch.compiler.reset() first.

    While enabled, the function pickles under PyTorch's name, so that a file with it loads where flashcore is missing.
    """
    return _Enabled()


def disable() -> None:
    """Ends every enable(), with or without a block, in all threads."""
    global _generation
    with _torch_counters.lock:
        _generation += 1
        _switch_off()
