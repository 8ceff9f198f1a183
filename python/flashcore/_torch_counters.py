"""How many calls came to flashcore.torch, and how many went to PyTorch, and why."""

from __future__ import annotations

import os
import threading
from typing import Any

import torch

from . import _plan, _torch_launch

_MAX_REASONS = 256  # sizes are part of some

lock = threading.RLock()  # also of the switch; a forked process has another


def _renew_lock() -> None:
    # Another thread of the parent may have held it when this process was forked, as a DataLoader's worker is.
    global lock
    lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)
_passed_on: dict[str, _torch_launch.Counter] = {}


def counters() -> dict[str, Any]:
    """How many calls of the process came here since the last `reset_counters`.

    Returns:
        {"computed": calls that flashcore computed, "passed_on": {why, in words: calls that PyTorch computed}}. A call
        in compiled code counts each time it runs if flashcore computes it, and once, when it is compiled, if PyTorch
        does. The launches of a CUDA graph count once, when they are captured.
    """
    with lock:
        return {"computed": _torch_launch.computed.read(), "passed_on": {why: counter.read() for why, counter in _passed_on.items()}}


def reset_counters() -> None:
    """All counters to 0."""
    with lock:
        _torch_launch.reset_computed()
        _passed_on.clear()


@torch.compiler.assume_constant_result
def pass_on(reason: str) -> None:
    """Counts a call for PyTorch, and says why the first time. Nearly all that a call that is passed on costs."""
    counter = _passed_on.get(reason)
    if counter is None:
        counter = _new_reason(reason)
    counter.add()


@torch.compiler.assume_constant_result
def passed_on() -> int:
    """How many calls were, for whatever reason."""
    with lock:
        return sum(counter.read() for counter in _passed_on.values())


def _new_reason(reason: str) -> _torch_launch.Counter:
    with lock:
        named = reason if len(_passed_on) < _MAX_REASONS else "other reasons"
        counter = _passed_on.setdefault(named, _torch_launch.Counter())
    _plan.say_once(f"flashcore.torch: PyTorch computes this attention: {reason}")
    return counter
