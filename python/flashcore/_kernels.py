"""Kernels of the steps beside attention (append, quantize): made once, launched with any sizes."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any, Callable

from . import _library


class Kernel:
    """A compiled kernel. Never closed: captured graphs may still launch it at exit."""

    def __init__(self, step: str, device: str, kind: ctypes.Structure) -> None:
        self._handle = ctypes.c_void_p()
        library = _library.library()
        create = getattr(library, f"fc_{step}_create")
        _library.check(create(_library.context(device), ctypes.byref(kind), ctypes.byref(self._handle)))
        self._launch = getattr(library, f"fc_{step}_launch")

    def launch(self, operands: ctypes.Structure, stream: int) -> None:
        status = self._launch(self._handle, ctypes.byref(operands), stream)
        if status:
            _library.raise_last_error(status)


_kernels: dict[tuple[Any, ...], Kernel] = {}
_lock = threading.Lock()


def _renew_lock() -> None:
    # Another thread of the parent may have held it when this process was forked, and is not here to give it back.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def kernel(step: str, device: str, kind_of: Callable[..., ctypes.Structure], *key: Any) -> Kernel:
    """The one of kind_of(*key) on that device."""
    found = _kernels.get((step, device, *key))
    if found is None:
        made = Kernel(step, device, kind_of(*key))
        with _lock:
            found = _kernels.setdefault((step, device, *key), made)
    return found
