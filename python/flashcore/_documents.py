"""Documents given by their boundaries, and what packed batches have for each row: the arrays that mask functions read, made by the caller's framework."""

from __future__ import annotations

import contextlib
import operator
import sys
from typing import Any

from . import _arrays
from ._arrays import View
from ._library import Error


def _numbers(x: Any, role: str) -> tuple[Any, Any]:
    """The array, of int32, and the module of its framework: NumPy, CuPy, jax.numpy or PyTorch."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor) and x.dtype is torch.int32:  # torch.compile reads no address, which a view has
        return x, torch
    found = _arrays.view(x, role)
    if found.framework in ("numpy", "cupy"):
        return found.keep, sys.modules[found.framework]
    if found.framework == "jax":
        return found.keep[0], sys.modules["jax"].numpy
    numpy = sys.modules.get("numpy")
    if numpy is None or found.device != "cpu":
        raise Error(f"{role} is a {type(x).__name__} on {found.device}, which flashcore has no functions for; give a NumPy, CuPy, JAX or PyTorch array")
    return (numpy.asarray(x) if isinstance(x, memoryview) else numpy.from_dlpack(x)), numpy


def _device_of(x: Any, module: Any) -> Any:
    """CuPy works on the current device, wherever its arrays lie."""
    return x.device if module.__name__ == "cupy" else contextlib.nullcontext()


def _range(like: Any, module: Any, count: int) -> Any:
    """0 .. count - 1 where `like` lies."""
    if module.__name__ == "torch":
        return module.arange(count, dtype=module.int32, device=like.device)
    with _device_of(like, module):
        return module.arange(count, dtype="int32")


def document_ids(boundaries: Any, seqlen: int) -> Any:
    """The ids of documents that lie one after another in a row of tokens: what `documents` of `attention` takes.

    Args:
        boundaries: int32 [documents + 1] or [batch, documents + 1], ascending: document d has the tokens boundaries[d] to boundaries[d + 1] - 1,
            as cu_seqlens has it. NumPy, CuPy, JAX or PyTorch. Equal ones are empty documents, so rows of fewer documents repeat the last one.
        seqlen: how many tokens a row has.

    Returns:
        int32 [seqlen] or [batch, seqlen], of the framework and on the device of `boundaries`, on its current stream; no value is read on the host.
        Tokens before the first boundary have the id -1, and those from the last one on the number of documents: each of the two is a
        document of its own.

    Raises:
        Error: for boundaries of another shape or dtype, and a seqlen that is no number of tokens.
    """
    return _ids(boundaries, seqlen, "boundaries")


def _ids(boundaries: Any, seqlen: Any, role: str) -> Any:
    try:
        count = -1 if isinstance(seqlen, bool) else operator.index(seqlen)
    except TypeError:
        count = -1
    if not 0 <= count < 2**31:
        raise Error(f"seqlen is {seqlen!r}; give how many tokens a row has, 0 or more")
    borders, module = _numbers(boundaries, role)
    if borders.ndim not in (1, 2) or borders.shape[-1] < 2 or borders.shape[0] == 0:
        raise Error(f"{role} has shape {tuple(borders.shape)}; give the borders of one row's documents, [documents + 1] or [batch, documents + 1]")
    positions = _range(borders, module, count)
    with _device_of(borders, module):
        return _searched(borders, positions, module, count)


def _searched(borders: Any, positions: Any, module: Any, count: int) -> Any:
    if module.__name__ == "torch":
        of_rows = positions.expand(*borders.shape[:-1], count).contiguous()
        return module.searchsorted(borders.contiguous(), of_rows, right=True, out_int32=True) - 1
    if borders.ndim == 1:
        return (module.searchsorted(borders, positions, side="right") - 1).astype("int32")
    return module.stack([(module.searchsorted(row, positions, side="right") - 1).astype("int32") for row in borders])


def ids_of_boundaries(boundaries: Any, seqlen_q: int, seqlen_kv: int) -> tuple[Any, Any]:
    """Of rows and of keys. One array of boundaries, or a pair."""
    if isinstance(boundaries, (tuple, list)):
        if len(boundaries) != 2:
            raise Error(f"document_boundaries has {len(boundaries)} arrays; give one, or two: of rows and of keys")
        return tuple(_ids(x, n, "document_boundaries") for x, n in zip(boundaries, (seqlen_q, seqlen_kv)))  # type: ignore[return-value]
    if seqlen_q != seqlen_kv:
        raise Error(f"document_boundaries is one array, and there are {seqlen_q} rows and {seqlen_kv} keys, whose documents it cannot say; give a pair: of "
                    "rows and of keys")  # fmt: skip
    of_rows = _ids(boundaries, seqlen_q, "document_boundaries")
    return of_rows, of_rows


def by_sequence(x: Any, role: str, boundaries: View, bound: int, axes: int) -> Any:
    """[..., packed rows], of up to `axes` axes, as [batch, ..., bound]: of each sequence its own rows, and any others past its end. No value
    is read on the host, so a captured launch serves other boundaries as well."""
    packed, module = _numbers(x, role)
    while packed.ndim < axes:
        packed = packed[None]
    borders, of_borders = _numbers(boundaries.keep[0] if boundaries.framework in ("jax", "dlpack") else boundaries.keep, "cu_seqlens_q")
    if of_borders is not module:
        raise Error(f"{role} is a {type(x).__name__}, and the boundaries of the sequences are of another framework; give both by one")
    if module.__name__ == "torch" and packed.device != borders.device:
        raise Error(f"{role} is on {packed.device}, and the boundaries of the sequences are on {borders.device}; move one")
    with _device_of(packed, module):
        rows = borders[:-1, None] + _range(borders, module, bound)[None, :]
        taken = packed[..., module.clip(rows, 0, packed.shape[-1] - 1)]
        return module.moveaxis(taken, -2, 0)
