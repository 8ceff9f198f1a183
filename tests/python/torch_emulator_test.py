"""The drop-in's way to a GPU, with the GPU's kernels, on the emulator: tensors that lie in memory in every way, by value."""

import ctypes
import os
import random
import sys
import unittest
from pathlib import Path
from unittest import mock

import torch

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path[:0] = [str(ROOT / "python"), str(Path(__file__).resolve().parent)]
import flashcore.torch as ft  # noqa: E402
import torch_layouts as layouts  # noqa: E402
from flashcore import _library, _torch_launch  # noqa: E402

DIM = 16  # one: each pair of head dims, dtype and mask is compiled


class Arena:
    """Memory of the emulated GPU, as tensors. It lies in the process, and the emulator refuses addresses outside."""

    SIZE = 1 << 24

    def __init__(self):
        library, address = _library.library(), ctypes.c_void_p()
        library.fc_memory_allocate.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)]
        _library.check(library.fc_memory_allocate(_library.context("emulator"), self.SIZE, ctypes.byref(address)))
        self.bytes = torch.frombuffer((ctypes.c_uint8 * self.SIZE).from_address(address.value), dtype=torch.uint8)
        self.top = 0

    def place(self, elements, dtype):
        begin = -(-self.top // 256) * 256
        self.top = begin + elements * dtype.itemsize
        if self.top > self.SIZE:
            raise MemoryError("the arena is full")
        return self.bytes[begin : self.top].view(dtype)

    def copy(self, x):
        """As x.clone(): contiguous."""
        return self.place(x.numel(), x.dtype).copy_(x.reshape(-1)).view(x.shape)

    def move(self, x, storage):
        """x with all of its storage, strides and offset as they are."""
        new = self.place(storage.numel(), x.dtype).copy_(storage)
        return new.as_strided(x.shape, x.stride(), new.storage_offset() + x.storage_offset())

    def empty_strided(self, shape, strides, dtype, device):
        new = self.place(torch.Size(shape).numel(), dtype)
        return new.as_strided(shape, strides, new.storage_offset())


class EmulatorTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.arena = Arena()

    def setUp(self):
        _torch_launch.known.clear()
        self.addCleanup(_torch_launch.known.clear)
        for name, value in {"_reads_16_bytes": lambda device: True, "_name": lambda device: "emulator", "_copy": self.arena.copy,
                            "_empty_strided": self.arena.empty_strided}.items():  # fmt: skip
            patch = mock.patch.object(_torch_launch, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def agrees(self, tensors, storages, options):
        self.arena.top = 0
        q, k, v = (self.arena.move(x, storage) for x, storage in zip(tensors, storages))
        ft.reset_counters()
        out = ft.scaled_dot_product_attention(q, k, v, **options)
        self.assertEqual(ft.counters(), {"computed": 1, "passed_on": {}})
        self.assertLess(layouts.distance(out, layouts.reference(q, k, v, **options)), layouts.BOUND[q.dtype], (layouts.describe(q, k, v), options))

    def test_slices_between_16_byte_borders(self):
        for role in range(3):
            for offset in (0, 1, 4, 7):
                whole = [torch.randn(1, 2, 20, DIM).bfloat16() for _ in range(3)]
                whole[role] = torch.randn(1, 2, 20, DIM + 8).bfloat16()
                tensors = [x[..., offset : offset + DIM] if x.shape[3] > DIM else x for x in whole]
                self.agrees(tensors, [x.reshape(-1) for x in whole], {})
        self.assertNotEqual(next(iter(_torch_launch.known.values())).plan.info["family"], "ref_fwd")

    def test_random_layouts(self):
        rng, copied = random.Random(18), 0
        for _ in range(40):
            q, k, v, options, storages = layouts.draw(rng, "cpu", (torch.bfloat16,), [(DIM, DIM)])
            if q.shape[2] <= 16 and k.shape[2] <= 16:  # larger ones run on more kernels, each of which takes seconds to compile
                self.agrees((q, k, v), storages, {**options, "scale": None})
                copied += next(reversed(_torch_launch.known.values())).copies is not None
        self.assertGreater(copied, 5)


if __name__ == "__main__":
    unittest.main()
