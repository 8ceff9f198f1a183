"""flashcore.BlockMask: the blocks of keys that a mask shows, listed once and read by many calls."""

from __future__ import annotations

import collections
import ctypes
import threading
import weakref
from typing import TYPE_CHECKING, Any, Optional

from . import _library
from ._library import Error, Operands

if TYPE_CHECKING:
    from ._plan import Plan

_MOST_LISTS = 64  # of one BlockMask: problems times streams


class _Lists:
    """The lists of one plan, for calls on one stream, which need not wait for one another."""

    def __init__(self, plan: Plan, operands: Operands, stream: int, generation: int) -> None:
        library = _library.library()
        handle = ctypes.c_void_p()
        _library.check(library.fc_block_mask_create(plan._handle, ctypes.byref(operands), stream, ctypes.byref(handle)))
        assert handle.value is not None
        self.handle = handle.value
        weakref.finalize(self, library.fc_block_mask_destroy, handle.value).atexit = False
        self.generation = generation

    def update(self, operands: Operands, stream: int, generation: int) -> None:
        _library.check(_library.library().fc_block_mask_update(self.handle, ctypes.byref(operands), stream))
        self.generation = generation


class BlockMask:
    """The blocks of keys that a mask shows, listed by the first call that is given it and read by the calls after that.

    On a GPU most kernels with a mask go over a list of blocks. Where the mask reads arrays (documents, intervals, a boolean mask), and in
    ragged batches, a call makes these lists first, by a kernel of its own. Calls that are given one BlockMask, as those of a model's layers,
    make them once:

        blocks = flashcore.BlockMask()
        for layer in layers:
            o = flashcore.attention(q, k, v, documents=ids, block_mask=blocks)

    You promise that what the lists are made of holds the same in all of these calls: the arrays that the mask reads, and of a ragged batch
    the lengths. Nobody looks. After a change call `update`; without it rows may miss keys that they should see. The arrays themselves may be
    others with the same contents.

    Calls of different problems, and on different streams, may be given the same BlockMask: each problem has its own lists on each stream, of
    which the 64 that were used last are kept; let a stream end its work before you destroy it. A list has four bytes for each block of keys
    and tile of rows, for each head and batch entry if the mask names them: `block_mask_bytes` of a plan's description. Where a call makes no
    lists it changes nothing: on the CPU, without a mask, for decoding, and where the mask reads no array and lengths are fixed.

    In a CUDA graph: make a call before the capture on the stream that is captured, for `torch.cuda.graph(graph, stream=stream)`; a capture
    without it is refused. Then call `update` and capture the calls. The first of them makes the lists in the graph, at each replay anew.
    Without `update` a graph reads the lists as they are. Before a call outside of the graph call `update` again.
    """

    def __init__(self) -> None:
        self._lists: collections.OrderedDict[tuple[Plan, int], _Lists] = collections.OrderedDict()
        self._lock = threading.Lock()
        self._generation = 0  # of what the mask reads

    def update(self) -> None:
        """What the mask reads has changed: the next call of each problem makes its lists anew, in the same memory and in order on its stream."""
        with self._lock:
            self._generation += 1

    def _lists_for(self, plan: Plan, operands: Operands, stream: int) -> _Lists:
        """Of a launch, made here if there are none or if they are of an older generation. The caller holds them over the launch: another
        thread's problem may take their place."""
        with self._lock:
            generation = self._generation
            lists = self._lists.get((plan, stream))
            if lists is None:
                lists = self._lists[plan, stream] = _Lists(plan, operands, stream, generation)
                while len(self._lists) > _MOST_LISTS:
                    self._lists.popitem(last=False)
            else:
                self._lists.move_to_end((plan, stream))
                if lists.generation != generation:
                    lists.update(operands, stream, generation)
            return lists


def require(block_mask: Any) -> Optional[BlockMask]:
    if block_mask is None or isinstance(block_mask, BlockMask):
        return block_mask
    hint = "; PyTorch's is for flashcore.torch.flex_attention" if type(block_mask).__module__.startswith("torch.") else ""
    raise Error(f"block_mask is a {type(block_mask).__name__}; give a flashcore.BlockMask(), or None{hint}")
