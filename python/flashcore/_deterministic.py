"""deterministic_batch: the kernel of a ragged or paged problem by which a row's bits depend on its own sequence alone."""

from __future__ import annotations

import ctypes
import json
from typing import Any

from . import _functions, _library
from ._library import GIVEN_STRIDES, Attention, Error, Strides

# The first of them that has the problem is taken, with these parameters. sm80_fwd and ref_fwd have a row's keys in one CTA, in their order.
_FEW_ROWS = ("cpu_fwd", "sm80_decode_fwd", "sm80_wide_fwd", "sm80_fwd", "ref_fwd")
_MANY_ROWS = ("cpu_fwd", "sm80_wide_fwd", "sm80_fwd", "ref_fwd")
_PARAMETERS = {"cpu_fwd": {"kv_split": 1}, "sm80_decode_fwd": {"split_keys": 2048, "min_blocks": 1}, "sm80_wide_fwd": {"num_splits": 1}}
MOST_FEW_ROWS = 16
_MANY, _KEYS = 4096, 4096


def refuse(given: bool, candidate: Any, functions: _functions.Functions) -> None:
    """Error for what does not go with deterministic_batch."""
    if given and candidate is not None:
        raise Error(f"deterministic_batch is given and candidate is {candidate!r}; leave one out: it chooses the kernel")
    if given and functions != _functions.NONE:
        raise Error("deterministic_batch is given with a score or mask function; leave one out: kernels with functions are not known to keep bits")


def candidate(device: str, problem: Attention) -> bytes:
    """The same for every batch: dispatch is asked about one sequence of fixed length."""
    asked = Attention.from_buffer_copy(problem)
    few = problem.seqlen_q <= MOST_FEW_ROWS
    asked.batch, asked.seqlen_q, asked.seqlen_kv = 1, max(problem.seqlen_q, 1) if few else _MANY, _KEYS
    asked.total_q = asked.seqlen_q
    if problem.page_size:
        asked.pages = asked.max_pages = asked.table_stride = -(-_KEYS // problem.page_size)
    else:
        asked.total_kv = _KEYS
    asked.q = asked.k = asked.v = asked.o = Strides()  # the batch's own suit its sizes alone
    asked.given &= ~GIVEN_STRIDES
    found = json.loads(_library.text_of(_library.library().fc_explain, _library.context(device), ctypes.byref(asked)))
    texts = [found["candidate"], *(other["candidate"] for other in found["alternatives"])]
    configs = {name: config for name, _, config in (text.partition(":") for text in texts)}
    for family in _FEW_ROWS if few else _MANY_ROWS:
        if family in configs:
            values = dict(part.split("=") for part in configs[family].split(",") if part) | _PARAMETERS.get(family, {})
            return f"{family}:{','.join(f'{name}={value}' for name, value in values.items())}".encode()
    raise Error(f"deterministic_batch is given and none of {', '.join(_FEW_ROWS)} has this problem; leave it out")
