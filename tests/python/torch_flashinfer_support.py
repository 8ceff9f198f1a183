"""Shared by the tests of flashcore.flashinfer: requests in pages, attention in fp64 with the error that a dtype may make, and tensors on the
emulated GPU. No test by itself."""

import ctypes
import math
import os
import sys
from pathlib import Path
from unittest import mock

import torch

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
from flashcore import _arrays, _library  # noqa: E402

WORKSPACE = torch.empty(1)


def exact(q, k, v, *, causal=False, window_left=-1, softcap=0.0, scale=None, slopes=None, signed=False, sinks=None, mask=None, scale_v=1.0):
    """(out, log-sum-exp to base 2, allowed error of out by one rounding of P and of out) of one request: [rows, heads, dim]. `signed`: slopes
    count from the number of the row, as FlashInfer's do, not from its own key."""
    eps = torch.finfo(q.dtype).eps
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.double().transpose(0, 1) for x in (q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)))
    s = q @ k.transpose(1, 2) * (q.shape[2] ** -0.5 if scale is None else scale)
    s = softcap * torch.tanh(s / softcap) if softcap else s
    own, key = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1], torch.arange(k.shape[1])[None]
    if slopes is not None:
        s = s + slopes.double()[:, None, None] * (key - (torch.arange(q.shape[1])[:, None] if signed else own))
    hidden = (key > own) & bool(causal)
    if window_left >= 0:
        hidden = hidden | (key < own - window_left)
    if mask is not None:
        hidden = hidden | ~mask
    s = s.masked_fill(hidden, -torch.inf)
    joined = s if sinks is None else torch.cat((s, sinks.double()[:, None, None].expand(-1, s.shape[1], 1)), 2)
    lse = torch.logsumexp(joined, 2)
    p = torch.exp(s - torch.where(lse.isneginf(), 0.0, lse)[..., None])
    out = p @ v * scale_v
    allowed = eps * (out.abs() + p @ v.abs() * abs(scale_v)) + 1e-6
    return out.transpose(0, 1), lse.t() / math.log(2), allowed.transpose(0, 1)


class Requests:
    """A batch in pages: `keys[s]` keys of request s, in shuffled pages of a pool that holds others too."""

    def __init__(self, lengths, page_size, heads_kv, dim, dtype, layout="NHD", dim_v=None, rows=None):
        self.lengths, self.page_size, self.layout = lengths, page_size, layout
        dim_v = dim if dim_v is None else dim_v
        counts = [-(-length // page_size) for length in lengths]
        self.indptr = torch.tensor([0, *counts]).cumsum(0).int()
        pages = sum(counts) + 3
        self.indices = torch.randperm(pages)[: sum(counts)].int()
        self.last = torch.tensor([(length - 1) % page_size + 1 if length else 0 for length in lengths]).int()
        self.k, self.v = ([torch.randn(length, heads_kv, d).to(dtype) for length in lengths] for d in (dim, dim_v))
        # What nobody may read is NaN.
        self.pools = [torch.full((pages, page_size, heads_kv, d), torch.nan).to(dtype) for d in (dim, dim_v)]
        for pool, parts in zip(self.pools, (self.k, self.v)):
            for s, part in enumerate(parts):
                for p, page in enumerate(self.pages_of(s)):
                    rows_of_page = part[p * page_size : (p + 1) * page_size]
                    pool[page, : rows_of_page.shape[0]] = rows_of_page
        if rows is not None:
            self.qo_indptr = torch.tensor([0, *rows]).cumsum(0).int()

    def pages_of(self, s):
        return self.indices[self.indptr[s] : self.indptr[s + 1]].tolist()

    def cache(self, together):
        """In one tensor or two, in the axes of the layout."""
        k, v = (x.transpose(1, 2).contiguous() if self.layout == "HND" else x for x in self.pools)
        return torch.stack((k, v), 1) if together else (k, v)

    def lists(self):
        return self.indptr, self.indices, self.last

    def table(self):
        width = int((self.indptr[1:] - self.indptr[:-1]).max()) + 1
        table = torch.full((len(self.lengths), width), -7, dtype=torch.int32)
        for s in range(len(self.lengths)):
            table[s, : len(self.pages_of(s))] = torch.tensor(self.pages_of(s), dtype=torch.int32)
        return table


def judge(test, out, lse, wanted):
    """Against what exact() returned."""
    error = (out.double() - wanted[0]).abs()
    test.assertTrue((error <= wanted[2]).all(), f"error {error.max().item()} where {wanted[2].flatten()[error.argmax()].item()} is allowed")
    if lse is not None:
        torch.testing.assert_close(lse.double(), wanted[1], atol=2e-4, rtol=1e-5)


class EmulatedGpu:
    """Tensors in the memory of the emulated GPU, each in an allocation of its own; flashcore takes every tensor for one there. It is PyTorch's
    CPU that has them, so that a test can read them."""

    def __init__(self, test):
        self.library = _library.library()
        self.library.fc_memory_allocate.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)]
        self.library.fc_memory_free.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self.test, of_torch = test, _arrays._of_torch
        for name, value in (("_of_torch", lambda x, role: of_torch(x, role)._replace(device="emulator")),
                            ("current_stream", lambda like: 0),
                            ("empty_like", lambda like, shape, dtype: self.place(torch.empty(shape, dtype={"fp32": torch.float32}[dtype])))):  # fmt: skip
            patch = mock.patch.object(_arrays, name, value)
            patch.start()
            test.addCleanup(patch.stop)

    def place(self, x):
        address = ctypes.c_void_p()
        _library.check(self.library.fc_memory_allocate(_library.context("emulator"), max(x.nbytes, 1), ctypes.byref(address)))
        self.test.addCleanup(self.library.fc_memory_free, _library.context("emulator"), address)
        placed = torch.frombuffer((ctypes.c_uint8 * x.nbytes).from_address(address.value), dtype=torch.uint8).view(x.dtype).view(x.shape)
        return placed.copy_(x)
