"""Lists of blocks for PyTorch's BlockMask: which calls of flex_attention share a `flashcore.BlockMask`, and when it is made anew.

The lists belong to the BlockMask, and so does what is known of the tensors that its mask_mod reads: address, layout and PyTorch's version
number of each. Where all are as they were, the lists are valid; else the next call makes them anew. What could go wrong:

- A tensor without a version number (made under torch.inference_mode): the lists are made in each call.
- A tensor that is gone, whose address another one has with the same version: the memory is kept as long as the lists are of it.
- A write that PyTorch does not count, by a kernel of another framework, torch.distributed, through `.data`, NumPy or a storage, or by a CUDA graph's replay: it is not
  seen. PyTorch's own kernels go by the blocks that create_block_mask found, and do not see it either. A new BlockMask is looked at anew.
- A CUDA graph: what its tensors hold may change before each replay, so that the graph makes the lists itself, in each call.
- Streams: each has lists of its own, so that they are in order with the calls that read them.
- Problems: each has lists of its own as well. All are made anew where a tensor has changed.
- Threads: two calls whose mask_mod reads other tensors must not come between the other's lists and launch; a lock keeps them apart.
- The BlockMask is gone while calls run: its lists are not freed, for which the device would be waited for, but serve a later one.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import weakref
from typing import Any, Iterator, Optional

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ._block_mask import BlockMask

_MOST_FREE = 16


class _Kept:
    """Lists, and what they were made of."""

    def __init__(self) -> None:
        self.lists, self.lock = BlockMask(), threading.Lock()
        self.state: Optional[tuple[Any, ...]] = None
        self.memory: tuple[Any, ...] = ()

    def follow(self, state: tuple[Any, ...], tensors: tuple[Tensor, ...]) -> None:
        if state != self.state:
            self.lists.update()
            self.state, self.memory = state, tuple(x.untyped_storage() for x in tensors)


_kept: Any = WeakIdKeyDictionary()  # by PyTorch's BlockMask
_free: collections.deque[_Kept] = collections.deque(maxlen=_MOST_FREE)


def _give_back(kept: _Kept) -> None:
    kept.state, kept.memory = None, ()
    _free.append(kept)


def _kept_of(block_mask: Any) -> _Kept:
    kept: Optional[_Kept] = _kept.get(block_mask)
    if kept is None:
        try:
            made = _free.pop()
        except IndexError:
            made = _Kept()
        kept = _kept.setdefault(block_mask, made)
        assert kept is not None
        if kept is made:
            weakref.finalize(block_mask, _give_back, made).atexit = False
    return kept


def _state_of(tensors: tuple[Tensor, ...]) -> Optional[tuple[Any, ...]]:
    """What is another one after PyTorch wrote to a tensor; None where it does not count that."""
    try:
        if any(x.is_inference() for x in tensors):
            return None
        return tuple((x.data_ptr(), x._version, x.device, x.dtype, x.shape, x.stride()) for x in tensors)
    except RuntimeError:  # inside vmap a tensor has no memory of its own
        return None


def _has_lists(device: torch.device) -> bool:
    return device.type == "cuda"


def _is_captured(device: torch.device) -> bool:
    """Of the stream that the call runs on, which is that of its own device."""
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


@contextlib.contextmanager
def lists_of(block_mask: Any, tensors: tuple[Tensor, ...], device: torch.device) -> Iterator[Optional[BlockMask]]:
    """What a call with that BlockMask, whose mask_mod reads these tensors, gives to flashcore.attention; None: the call makes its lists itself."""
    state = _state_of(tensors) if block_mask is not None and _has_lists(device) and not _is_captured(device) else None
    if state is None:
        yield None
        return
    kept = _kept_of(block_mask)
    with kept.lock:
        kept.follow(state, tensors)
        yield kept.lists
