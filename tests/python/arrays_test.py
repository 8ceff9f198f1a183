"""flashcore.attention on arrays of JAX, CuPy and PyTorch, on every device they see; what does not import is skipped.

On a GPU machine: PYTHONPATH=<the unpacked wheel> python3 tests/python/arrays_test.py
"""

import ctypes
import math
import mmap
import os
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

import numpy as np

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
if "FLASHCORE_LIBRARY" in os.environ:  # else the package on PYTHONPATH, which has its own
    sys.path.insert(0, str(ROOT / "python"))
import flashcore  # noqa: E402


def reference(q, k, v):
    """Causal, bottom-right, in float64: the output and the log-sum-exp."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[3])
    rows, keys = scores.shape[2:]
    scores = np.where(np.arange(keys)[None, :] <= np.arange(rows)[:, None] + keys - rows, scores, -np.inf)
    weights = np.exp(scores)
    total = weights.sum(axis=-1, keepdims=True)
    return weights / total @ v, np.log(total[..., 0])


class Arrays:
    """What each framework's test shares. `put` takes a NumPy array to the framework's device, `get` brings one back."""

    bound = 2e-3  # relative, of a whole output: fp16 rounds each element by 2^-11, and P once more

    def check(self, put, get, kind, dtype):
        rng = np.random.default_rng(1)
        host = [rng.standard_normal(shape).astype(dtype) for shape in ((2, 4, 70, 64), (2, 2, 100, 64), (2, 2, 100, 64))]
        out, lse = flashcore.attention(*(put(x) for x in host), causal=True, return_lse=True)
        self.assertIsInstance(out, kind)
        self.assertIsInstance(lse, kind)
        expected, expected_lse = reference(*host)
        error = np.linalg.norm(get(out).astype(np.float64) - expected) / np.linalg.norm(expected)
        self.assertLess(error, self.bound)
        np.testing.assert_allclose(get(lse), expected_lse, atol=2e-3)


class JaxTest(Arrays, unittest.TestCase):
    def setUp(self):
        try:
            import jax
        except ImportError as error:
            self.skipTest(f"JAX does not import: {error}")
        self.jax = jax

    def test_every_device(self):
        devices = {device.platform: device for kind in ("cpu", "cuda") for device in self.devices(kind)[:1]}
        self.assertTrue(devices)
        for platform, device in devices.items():
            with self.subTest(platform):
                dtype = np.float32 if platform == "cpu" else np.float16
                self.check(lambda x: self.jax.device_put(x, device), np.asarray, self.jax.Array, dtype)

    def test_arrays_that_never_change_are_no_outputs(self):
        q = np.ones((1, 2, 8, 16), np.float32)
        out = self.jax.device_put(np.zeros_like(q), self.jax.devices("cpu")[0])
        for x in (q, self.jax.device_put(q, self.jax.devices("cpu")[0])):
            with self.assertRaisesRegex(flashcore.Error, "cannot be written"):
                flashcore.attention(x, x, x, out=out)
        self.assertFalse(np.asarray(out).any())

    def devices(self, kind):
        try:
            return self.jax.devices(kind)
        except RuntimeError:
            return []


class CupyTest(Arrays, unittest.TestCase):
    def test_the_gpu(self):
        try:
            import cupy

            if cupy.cuda.runtime.getDeviceCount() == 0:
                raise ImportError("no GPU")
        except Exception as error:  # noqa: BLE001: without a driver it raises types of its own
            self.skipTest(f"CuPy does not import, or sees no GPU: {error}")
        self.check(cupy.asarray, cupy.asnumpy, cupy.ndarray, np.float16)


class TorchTest(Arrays, unittest.TestCase):
    def setUp(self):
        try:
            import torch
        except ImportError as error:
            self.skipTest(f"PyTorch does not import: {error}")
        self.torch = torch

    def test_autograd_knows_of_an_output_that_was_written(self):
        torch = self.torch
        x, q = torch.randn(1, 2, 8, 16), torch.randn(1, 2, 8, 16)
        w = torch.ones_like(x, requires_grad=True)
        y = (x * w).sum()  # saves x
        flashcore.attention(q, q, q, out=x)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            y.backward()

    def test_outputs_that_are_read_only_in_part(self):
        """The first page can be written: writing was a SIGSEGV at a later one."""
        libc = ctypes.CDLL(None, use_errno=True)
        page, columns = mmap.PAGESIZE, 64
        k = np.ones((1, 1, 2, columns), np.float32)
        # The second one is longer than what is asked of the kernel page by page.
        for pages in (4, 1200):
            rows = pages * page // (4 * columns)
            q = np.ones((1, 1, rows, columns), np.float32)
            memory = mmap.mmap(-1, pages * page)
            out = np.frombuffer(memory, np.float32).reshape(1, 1, rows, columns)
            address = out.ctypes.data
            self.assertEqual(address % page, 0)
            middle = out[:, :, rows // 4 : rows - rows // 4]
            for first in (1, pages // 2, pages - 1):
                with self.subTest(pages=pages, first=first):
                    self.assertEqual(libc.mprotect(ctypes.c_void_p(address + first * page), ctypes.c_size_t(page), mmap.PROT_READ), 0)
                    try:
                        for array in (out, out[:, :, ::-1]):
                            with self.assertRaisesRegex(flashcore.Error, "mapped read-only, all or a part of it"):
                                flashcore.attention(q, k, k, out=array)
                        if first == pages - 1:  # which these do not reach
                            flashcore.attention(q[:, :, : middle.shape[2]], k, k, out=middle)
                            flashcore.attention(q[:, :, :1], k, k, out=out[:, :, :1])
                    finally:
                        libc.mprotect(ctypes.c_void_p(address + first * page), ctypes.c_size_t(page), mmap.PROT_READ | mmap.PROT_WRITE)
            out[...] = 0
            flashcore.attention(q, k, k, out=out)
            self.assertTrue((out == 1).all())
            # A thing of its own lies between rows: it is looked at, and not written.
            wide = np.full((1, 1, rows // 2, 2 * columns), 7, np.float32)
            flashcore.attention(q[:, :, : rows // 2], k, k, out=wide[..., :columns])
            self.assertTrue((wide[..., :columns] == 1).all() and (wide[..., columns:] == 7).all())

    def test_outputs_over_read_only_mappings(self):
        """Neither PyTorch nor NumPy knows of these: writing was a SIGSEGV."""
        torch = self.torch
        q = torch.randn(2, 3, 40, 64)
        want = flashcore.attention(q, q, q)
        with tempfile.NamedTemporaryFile() as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's, of arrays that are not writable
            data = bytes(2 * q.nbytes)
            file.write(data)
            file.flush()
            for mode, allowed in (("r", False), ("r+", True), ("c", True)):
                mapped = torch.from_numpy(np.memmap(file.name, np.float32, mode, shape=(2, *q.shape)))
                for out in (mapped[0], mapped[1], mapped[0].numpy()):
                    if allowed:
                        np.testing.assert_array_equal(np.asarray(flashcore.attention(q, q, q, out=out)), want.numpy())
                        continue
                    for call in (flashcore.attention, flashcore.plan):
                        with self.assertRaisesRegex(flashcore.Error, "out, a .*, lies in memory that is mapped read-only"):
                            call(q, q, q, out=out)
                    self.assertEqual(Path(file.name).read_bytes(), data)
                flashcore.attention(mapped[0], q, q)  # as an input it is as good as any

    def test_tensors_that_are_more_than_their_memory(self):
        torch = self.torch
        q = torch.ones(1, 2, 8, 16)

        def refused(words, x):
            with self.assertRaisesRegex(flashcore.Error, words):
                flashcore.attention(x, q, q)
            with self.assertRaisesRegex(flashcore.Error, words):
                flashcore.attention(q.clone(), q, q, out=x)

        class Placed(torch.Tensor):
            pass

        refused("is a Placed, a subclass of torch.Tensor", q.as_subclass(Placed))
        refused("resolve_neg", torch._neg_view(torch.ones_like(q)))
        refused("resolve_neg", torch.ones(q.shape, dtype=torch.complex64).conj().imag)
        refused("nested tensor", torch.nested.nested_tensor([q[0], q[0]]))
        refused("layout torch.sparse", q.to_sparse())
        refused("device meta", q.to("meta"))
        with torch._subclasses.FakeTensorMode() as mode:
            fake = mode.from_tensor(torch.ones(1))
        refused("a subclass of torch.Tensor", fake)
        with self.assertRaisesRegex(flashcore.Error, "without memory of its own"):
            torch.vmap(lambda x: flashcore.attention(x, x, x))(torch.ones(3, 1, 2, 8, 16))
        parameter = torch.nn.Parameter(q)
        with torch.no_grad():
            self.assertTrue(torch.equal(flashcore.attention(parameter, parameter, parameter), q))

    def test_expanded_tensors(self):
        """Every stride 0 is no contiguous tensor; on a GPU another kernel reads it."""
        torch = self.torch
        for device in ["cpu"] + (["cuda"] if torch.cuda.is_available() else []):
            dtype = torch.float32 if device == "cpu" else torch.float16
            q, row = (torch.randn(shape, device=device, dtype=dtype) for shape in ((2, 4, 33, 64), (1, 1, 1, 64)))
            k = row.expand(2, 4, 64, 64)
            for x, y, z in ((q, k, k), (k, q, q), (q, row.expand(2, 4, 33, 64), q)):
                with self.subTest(device=device, strides=(x.stride(), y.stride(), z.stride())):
                    out = flashcore.attention(x, y, z)
                    expected = torch.nn.functional.scaled_dot_product_attention(*(a.double().contiguous() for a in (x, y, z)))
                    self.assertLess(((out.double() - expected).norm() / expected.norm()).item(), self.bound)

    def test_every_device(self):
        torch = self.torch
        for device in ["cpu"] + (["cuda"] if torch.cuda.is_available() else []):
            with self.subTest(device):
                dtype = np.float32 if device == "cpu" else np.float16
                self.check(lambda x: torch.from_numpy(x).to(device), lambda x: x.cpu().numpy(), torch.Tensor, dtype)


if __name__ == "__main__":
    unittest.main()
