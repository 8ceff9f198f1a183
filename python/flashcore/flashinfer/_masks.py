"""FlashInfer's custom masks: one tensor with the masks of all requests, plain or in bits, and the mask function that reads them."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from . import _options

# A kernel's text has the size of the tensor, so that few sizes are few kernels: 1 MiB, and each time four times as much.
_SMALLEST = 1 << 20
_STEP = 4
_MOST = 2**31 - 1  # what an index of 32 bits reaches
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Mask(NamedTuple):
    """Of one plan, on the device of the caches: a mask function, and the tensors that it names."""

    text: str
    tensors: dict[str, Tensor]


def of_batch(flags: Tensor, starts: Tensor, keys: Tensor) -> Mask:
    """flags: bool, a byte for each pair; request s has the pair (i, j) at starts[s] + i * keys[s] + j. No boundary, however wrong, leads out of
    `flags`."""
    last = flags.shape[0] - 1
    return Mask(f"custom_mask[min(max(mask_start[b] + i * mask_keys[b] + j, 0), {last})]",
                {"custom_mask": flags, "mask_start": starts, "mask_keys": keys})  # fmt: skip


def flags_of(custom: Any) -> Tensor:
    """As bool, flat. An additive mask of floats would mean the opposite, and is refused."""
    if not isinstance(custom, Tensor) or custom.dtype not in (torch.bool, *_INTEGERS):
        what = custom.dtype if isinstance(custom, Tensor) else f"a {type(custom).__name__}"
        raise _options.Error(f"custom_mask is {what}; give a bool tensor, True where a row sees a key")
    return custom.detach().reshape(-1).bool()


def unpacked(packed: Any) -> Tensor:
    """The bits of bytes, the lowest first, as bool."""
    if not isinstance(packed, Tensor) or packed.dtype != torch.uint8 or packed.dim() != 1:
        what = f"{packed.dtype} of shape {tuple(packed.shape)}" if isinstance(packed, Tensor) else f"a {type(packed).__name__}"
        raise _options.Error(f"packed_custom_mask is {what}; give uint8 of one axis, eight pairs a byte, the lowest bit first")
    bits = torch.tensor([1 << at for at in range(8)], dtype=torch.uint8, device=packed.device)
    return (packed.detach()[:, None] & bits).ne(0).flatten()


def require_size(name: str, found: int, wanted: int, pairs: int, each: str) -> None:
    if found != wanted:
        raise _options.Error(f"{name} has {found} elements and the requests {pairs} pairs of a row and a key; give {wanted}, {each}")


class Masks:
    """Makes Mask. With `fixed` (CUDA graphs) every plan writes to the same memory, as long as the caller's buffer has bits."""

    def __init__(self, device: torch.device, fixed: bool, buffer: Optional[Tensor]) -> None:
        self.device, self.fixed = device, fixed
        self.buffer = buffer if fixed else None
        self.made: Optional[Mask] = None

    def plan(self, custom: Any, packed: Any, rows: Tensor, keys: Tensor) -> Optional[Mask]:
        """rows, keys: [batch], of each request. The packed one counts where both are given, as in FlashInfer. Waits for a GPU, to judge the size."""
        if custom is None and packed is None:
            if self.buffer is not None:
                raise _options.Error("the wrapper has a custom_mask_buf and plan() no mask; give custom_mask, or make a wrapper without that buffer")
            return None
        lengths = keys.clamp(min=0).cpu().long()
        pairs = rows.clamp(min=0).cpu().long() * lengths
        total = int(pairs.sum())
        if packed is not None:
            flags, places = unpacked(packed), (pairs + 7) // 8 * 8
            require_size("packed_custom_mask", packed.shape[0], int(places.sum()) // 8, total, "whole bytes for each request, as segment_packbits packs")
        else:
            flags, places = flags_of(custom), pairs
            require_size("custom_mask", flags.shape[0], total, total, "one for each")
        if flags.shape[0] > self._room():
            raise _options.Error(f"the masks have {flags.shape[0]} pairs of a row and a key; at most {self._room()} fit" + (
                ", the bits of custom_mask_buf: give the wrapper a longer one" if self.fixed else ": plan fewer requests at once"))  # fmt: skip
        starts = (places.cumsum(0) - places).int()
        return self._written(flags, starts, lengths.int())

    def _room(self) -> int:
        if not self.fixed:
            return _MOST
        if not isinstance(self.buffer, Tensor):
            raise _options.Error("custom_mask is given with use_cuda_graph, and the wrapper has no custom_mask_buf; give it one of as many bits as masks "
                                 "have pairs at most")  # fmt: skip
        return min(8 * self.buffer.numel() * self.buffer.element_size(), _MOST)

    def _written(self, flags: Tensor, starts: Tensor, keys: Tensor) -> Mask:
        if self.made is None or not self.fixed:
            size = max(self._room(), 1) if self.fixed else _SMALLEST
            while size < flags.shape[0]:
                size = min(size * _STEP, _MOST)
            make = lambda n, dtype: torch.empty(n, dtype=dtype, device=self.device)  # noqa: E731
            self.made = of_batch(make(size, torch.bool), make(starts.shape[0], torch.int32), make(starts.shape[0], torch.int32))
        held = self.made.tensors
        held["custom_mask"][: flags.shape[0]].copy_(flags)
        held["mask_start"].copy_(starts)
        held["mask_keys"].copy_(keys)
        return self.made


def of_one(custom: Any, packed: Any, rows: int, keys: int) -> Optional[Tensor]:
    """Of one request: bool [rows, keys], or None: every row sees every key, if there are any."""
    if packed is not None:
        flags = unpacked(packed)
        require_size("packed_custom_mask", packed.shape[0], (rows * keys + 7) // 8, rows * keys, "eight pairs a byte")
        return flags[: rows * keys].view(rows, keys) if rows * keys else None
    if custom is None:
        return None
    if not isinstance(custom, Tensor) or custom.shape != (rows, keys):
        what = f"has shape {tuple(custom.shape)}" if isinstance(custom, Tensor) else f"is a {type(custom).__name__}"
        raise _options.Error(f"custom_mask {what}; give bool [rows, keys] = {(rows, keys)}")
    return flags_of(custom).view(rows, keys) if rows * keys else None
