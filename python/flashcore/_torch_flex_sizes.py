"""The sizes of a call of flex_attention while torch.compile records it, and up to which the library takes the call's functions.

The library judges a function by what its variables can be: a division that may be by zero, an index that may leave its tensor. Sizes that
torch.compile keeps open have an example alone (their hint). To ask a size for its number would fix it, and each other one would be compiled again.
"""

from __future__ import annotations

import re
import threading
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from . import _arrays, _functions, _library, _plan
from ._arrays import View

try:  # of PyTorch's own parts; without it the library is asked when the call runs
    from torch._dynamo.comptime import comptime
except ImportError:  # pragma: no cover

    def comptime(_: Any) -> None: ...


_DOUBLINGS = 20
_LONGEST = 2**_DOUBLINGS  # rows and keys; what is taken there counts as taken at any length
_FAR = 2**30  # elements along an axis, which no index of such lengths reaches
_LENGTH = 2  # the axis of them


class _Asked(NamedTuple):
    shapes: tuple[tuple[int, ...], ...]  # of q, k and v
    is_open: tuple[bool, ...]  # their lengths
    dtype: str

    def views(self, device: torch.device, doublings: int = 0) -> tuple[View, ...]:
        """With open lengths so many times doubled, up to the longest."""
        name = "cpu" if device.type == "cpu" else f"cuda:{device.index}"
        lengths = [max(n, min(n << doublings, _LONGEST)) if is_open else n for n, is_open in zip((x[_LENGTH] for x in self.shapes), self.is_open)]
        shapes = ((*x[:_LENGTH], length, *x[_LENGTH + 1 :]) for x, length in zip(self.shapes, lengths))
        return tuple(_plan.without_memory(name, self.dtype, shape) for shape in shapes)


class _Noted(threading.local):
    asked: Optional[_Asked] = None


_noted = _Noted()


def _note(context: Any) -> None:
    tensors = [context.get_local(name).as_fake() for name in ("query", "key", "value")]
    hints = [[n.node.hint if isinstance(n, torch.SymInt) else n for n in x.shape] for x in tensors]
    if all(n is not None for shape in hints for n in shape):
        is_open = tuple(isinstance(x.shape[_LENGTH], torch.SymInt) for x in tensors)
        _noted.asked = _Asked(tuple(tuple(map(int, shape)) for shape in hints), is_open, _arrays._dtype(str(tensors[0].dtype), "q"))


def note_sizes(query: Tensor, key: Tensor, value: Tensor) -> None:
    """For the next `noted` of this thread. Does nothing but under torch.compile."""
    comptime(_note)


def noted() -> Optional[_Asked]:
    asked, _noted.asked = _noted.asked, None
    return asked


_OF_TEXT = re.compile(r"column \d+ of the (score|mask): ")


def in_words_of_the_caller(error: _library.Error) -> str:
    """Who gave a function has not seen its text, and so no column of it."""
    message = str(error)
    found = _OF_TEXT.match(message)
    return message if found is None else f"{found[1]}_mod as recorded is too long or cannot be written as an expression of flashcore: {message[found.end():]}"


Accepted = tuple[Optional[str], Optional[tuple[int, int]]]


def accepted(asked: Optional[_Asked], device: torch.device, given: dict[str, Any]) -> Accepted:
    """Why the library refuses the call, and up to how many rows and keys it takes the functions; None: it does not, or no bound is known.
    `given`: score, mask and tensors of flashcore.attention."""
    if asked is None:
        return None, None
    views = asked.views(device)
    try:
        functions = _functions.read(views[0], given.get("score"), given.get("mask"), given.get("tensors"), None, None, None, False,
                                    lambda: _plan._Sizes(*views, "bhsd"), None).functions  # fmt: skip
        _plan.require_accepted(*views, functions)
    except _library.Error as error:
        # Anything else than a bad input is raised when the call runs.
        return (in_words_of_the_caller(error) if error.kind == "bad input" else None), None
    return None, _most(asked, device, functions) if any(asked.is_open) else None


def _most(asked: _Asked, device: torch.device, functions: _functions.Functions) -> Optional[tuple[int, int]]:
    """What is taken at some lengths is taken at all smaller ones. Tensors count as long ones: they may grow with the call."""
    far = functions._replace(tensors=tuple(t._replace(sizes=(_FAR,) * len(t.sizes), strides=(0,) * len(t.sizes)) for t in functions.tensors))
    for doublings in range(_DOUBLINGS, 0, -1):
        views = asked.views(device, doublings)
        try:
            _plan.require_accepted(*views, far)
        except _library.Error:
            continue
        return None if doublings == _DOUBLINGS else (views[0].shape[_LENGTH], views[1].shape[_LENGTH])
    return asked.shapes[0][_LENGTH], asked.shapes[1][_LENGTH]


def are_within(query: Tensor, key: Tensor, most: Optional[tuple[int, int]]) -> bool:
    """torch.compile keeps what a comparison of sizes gave, and records the call anew for sizes of which it is otherwise."""
    return most is None or bool(query.shape[_LENGTH] <= most[0] and key.shape[_LENGTH] <= most[1])
