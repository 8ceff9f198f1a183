"""Block tables of FlashInfer's page lists (CSR), made once a plan and read by each of its runs."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from .. import _paged, _plan, _torch_cache
from . import _options

_MOST_ENTRIES = 1 << 26  # of a table in 256 MiB


class Pages(NamedTuple):
    """Of one plan, on the device of the caches."""

    table: Tensor
    used: Tensor
    page_size: int


def int32(x: Any, name: str, axes: int = 1) -> Tensor:
    """Numbers that 32 bits do not hold become ones that no cache has, never those of another page."""
    if not isinstance(x, Tensor) or x.dim() != axes or x.dtype not in (torch.int32, torch.int64):
        what = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise _options.Error(f"{name} is {what}; give an int32 tensor of {'one axis' if axes == 1 else f'{axes} axes'}")
    return _torch_cache.int32(x)


def on_host(x: Tensor) -> Tensor:
    """The one copy that a plan waits for, if its boundaries are on a GPU and no bound was given."""
    return x if x.device.type == "cpu" else x.cpu()


def boundaries(given: Any, name: str, total: Optional[int]) -> tuple[Tensor, Optional[Tensor]]:
    """As int32, and on the host where they are there already; those are looked at."""
    x = int32(given, name)
    if x.shape[0] < 2:
        raise _options.Error(f"{name} has shape {tuple(x.shape)}; give the boundaries of at least one request, [batch + 1]")
    if x.device.type != "cpu":
        return x, None
    if int(x[0]) != 0 or bool((x[1:] < x[:-1]).any()) or (total is not None and int(x[-1]) > total):
        room = "" if total is None else f", at most {total}"
        raise _options.Error(f"{name} is {x.tolist() if x.shape[0] < 10 else f'{x[:9].tolist()}...'}; give boundaries that begin at 0 and never descend{room}")
    return x, x


def longest(x: Tensor, host: Optional[Tensor]) -> int:
    host = on_host(x) if host is None else host
    return max(int((host[1:] - host[:-1]).max()), 0)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


class Planner:
    """Makes Pages. With `fixed` (CUDA graphs) every plan writes to the same memory, so that captured runs read the newest."""

    names = ("indptr", "indices", "last_page_len")

    def __init__(self, device: torch.device, fixed: Optional[tuple[Tensor, Tensor, Tensor]]) -> None:
        self.device = device
        self.fixed = fixed  # the caller's buffers, in the order of `names`
        self.made: Optional[Pages] = None

    def plan(self, indptr: Any, indices: Any, last_page_len: Any, page_size: int, max_keys: Optional[int], block_tables: Optional[Tensor],
             seq_lens: Optional[Tensor]) -> Pages:  # fmt: skip
        page_size = _options.whole(page_size, "page_size", 1, 65536, "keys")
        if max_keys is not None:
            max_keys = _options.whole(max_keys, "max_sequence_kv", 0, 2**31 - 1, "keys")
        of_starts, of_indices, of_last = self.names
        indices, last = int32(indices, of_indices), int32(last_page_len, of_last)
        starts, host = boundaries(indptr, of_starts, indices.shape[0])
        batch = starts.shape[0] - 1
        if last.shape[0] != batch:
            raise _options.Error(f"{of_last} has shape {tuple(last.shape)} and {of_starts} {tuple(starts.shape)}; give [batch] and [batch + 1]")
        if self.fixed is not None:
            self._fill(starts, indices, last)
        if block_tables is not None and seq_lens is not None:
            pages = self._given(block_tables, seq_lens, batch, page_size)
        else:
            columns = self._columns(starts, host, indices, page_size, max_keys, batch)
            device = [x.to(self.device, non_blocking=True) for x in (starts, indices, last)]
            pages = Pages(*self._table(*device, page_size, columns), page_size)
        self.made = pages if self.fixed is None or self.made is None else self._renewed(self.made, pages)
        return self.made

    def _table(self, starts: Tensor, indices: Tensor, last: Tensor, page_size: int, columns: int) -> tuple[Tensor, Tensor]:
        table, used = _paged.block_table_of_csr(starts, indices, last, page_size, columns)
        return table, used

    def _given(self, tables: Tensor, lengths: Tensor, batch: int, page_size: int) -> Pages:
        table, used = int32(tables, "block_tables", 2).to(self.device), int32(lengths.flatten(), "seq_lens").to(self.device)
        if table.shape[0] != batch or used.shape[0] != batch:
            raise _options.Error(f"block_tables has shape {tuple(tables.shape)} and seq_lens {tuple(lengths.shape)}; give [batch, pages] and [batch] with "
                                 f"batch = {batch}")  # fmt: skip
        if self.fixed is not None:  # the caller may write to them
            table, used = table.clone(), used.clone()
        return Pages(table, used, page_size)

    def _columns(self, starts: Tensor, host: Optional[Tensor], indices: Tensor, page_size: int, max_keys: Optional[int], batch: int) -> int:
        if self.fixed is not None and self.made is not None:
            columns = self.made.table.shape[1]
            if host is not None and longest(starts, host) > columns:
                raise _options.Error(f"a request has {longest(starts, host)} pages and the first plan had room for {columns}; with use_cuda_graph give the "
                                     "first plan max_sequence_kv, the most keys that a request may have")  # fmt: skip
            return columns
        if max_keys is not None:
            return max(ceil_div(max_keys, page_size), 1)
        if self.fixed is None:
            return max(longest(starts, host), 1)
        columns = max(self.fixed[1].shape[0], 1)
        if columns * batch > _MOST_ENTRIES:
            capped = max(_MOST_ENTRIES // batch, 1)
            _plan.say_once(f"the buffer of page indices has {columns} entries and the batch {batch} requests, so the block table has room for {capped} pages of "
                           "a request, in 256 MiB; a longer request gets NaN. Give the first plan() max_sequence_kv, the most keys that a request may have, "
                           "for a smaller table or longer requests", key="flashinfer_block_table")  # fmt: skip
            if longest(starts, host) > capped:
                raise _options.Error(f"a request has {longest(starts, host)} pages and the block table room for {capped}; give plan() max_sequence_kv, the most "
                                     "keys that a request may have")  # fmt: skip
            return capped
        return columns

    def _fill(self, starts: Tensor, indices: Tensor, last: Tensor) -> None:
        assert self.fixed is not None
        for name, buffer, given, whole in zip(self.names, self.fixed, (starts, indices, last), (True, False, True)):
            if given.shape[0] > buffer.shape[0] or (whole and given.shape != buffer.shape):
                raise _options.Error(f"{name} has {given.shape[0]} elements and the wrapper's buffer {buffer.shape[0]}; with use_cuda_graph the batch is "
                                     "fixed, and pages fit the buffer")  # fmt: skip
            if given.data_ptr() != buffer.data_ptr():
                buffer[: given.shape[0]].copy_(given, non_blocking=True)

    def _renewed(self, old: Pages, new: Pages) -> Pages:
        if new.table.shape[1] > old.table.shape[1] or new.page_size != old.page_size:
            raise _options.Error(f"this plan has {new.table.shape[1]} pages of {new.page_size} keys for a request and the first had {old.table.shape[1]} of "
                                 f"{old.page_size}; with use_cuda_graph the first plan says the most: give it max_sequence_kv")  # fmt: skip
        old.table[:, : new.table.shape[1]].copy_(new.table)
        old.used.copy_(new.used)
        return old


class LengthsPlanner(Planner):
    """Of calls that say each request's keys, not those in its last page. A list may have pages that no key is on yet."""

    names = ("kv_indptr", "kv_indices", "kv_len_arr")

    def _table(self, starts: Tensor, indices: Tensor, last: Tensor, page_size: int, columns: int) -> tuple[Tensor, Tensor]:
        table, _ = _paged.block_table_of_csr(starts, indices, last, page_size, columns)
        room = (starts[1:] - starts[:-1]).long() * page_size
        # -1 is no length, and so NaN in all of the request's rows: those that see no key without a page would have numbers.
        return table, torch.where(last <= room, last, -1)
