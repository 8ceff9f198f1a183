"""flashcore.attention on arrays of JAX, CuPy and PyTorch, on every device they see; what does not import is skipped.

On a GPU machine: PYTHONPATH=<the unpacked wheel> python3 tests/python/arrays_test.py
"""

import math
import os
import sys
import unittest
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
    def test_every_device(self):
        try:
            import torch
        except ImportError as error:
            self.skipTest(f"PyTorch does not import: {error}")
        for device in ["cpu"] + (["cuda"] if torch.cuda.is_available() else []):
            with self.subTest(device):
                dtype = np.float32 if device == "cpu" else np.float16
                self.check(lambda x: torch.from_numpy(x).to(device), lambda x: x.cpu().numpy(), torch.Tensor, dtype)


if __name__ == "__main__":
    unittest.main()
