"""flashcore.torch by value, on the CPU: tensors of any layout, copied by the CPU's rule and by the GPUs'."""

import random
import sys
import unittest
from pathlib import Path
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from torch_support import PYTORCH, Quiet, counted, inputs  # noqa: E402

import flashcore.torch as ft  # noqa: E402
import torch_layouts as layouts  # noqa: E402
from flashcore import _plan, _torch_launch  # noqa: E402


class LayoutTest(Quiet):
    def agrees(self, q, k, v, options, storages=()):
        before = [storage.clone() for storage in storages]
        out, computed, passed_on = counted(lambda: ft.scaled_dot_product_attention(q, k, v, **options))
        self.assertEqual(computed, 1, passed_on)
        self.assertLess(layouts.distance(out, layouts.reference(q, k, v, **options)), layouts.BOUND[q.dtype], (layouts.describe(q, k, v), options))
        for was, storage in zip(before, storages):
            self.assertTrue(torch.equal(was, storage))

    def on_rows_of_16_bytes(self):
        """The GPU's rule for what is copied, on the CPU; every launch is asked whether it keeps it."""
        problems, launch, create = {}, _plan.Plan.launch, _plan.Plan.__init__

        def created(plan, device, problem):
            create(plan, device, problem)
            problems[id(plan)] = problem

        def launched(plan, q, k, v, *rest):
            problem = problems.get(id(plan))
            if problem is not None and problem.alignment == 16:
                item = 4 if problem.dtype == 0 else 2
                sizes = {"q": (problem.heads_q, problem.seqlen_q), "k": (problem.heads_kv, problem.seqlen_kv), "v": (problem.heads_kv, problem.seqlen_kv)}
                for role, address in (("q", q), ("k", k), ("v", v)):
                    strides, (heads, rows) = getattr(problem, role), sizes[role]
                    for extent, stride in ((problem.batch, strides.batch), (heads, strides.head), (rows, strides.row)):
                        self.assertTrue(extent == 1 or stride > 0 and stride * item % 16 == 0, (role, extent, stride))
                    self.assertEqual(address % 16, 0, role)
                self.checked += 1
            return launch(plan, q, k, v, *rest)

        self.checked = 0
        _torch_launch.known.clear()
        self.addCleanup(_torch_launch.known.clear)
        self.enter(mock.patch.object(_torch_launch, "_reads_16_bytes", lambda device: True))
        self.enter(mock.patch.object(_plan.Plan, "__init__", created))
        self.enter(mock.patch.object(_plan.Plan, "launch", launched))

    def test_slices_between_16_byte_borders(self):
        for rule in ("cpu", "gpu"):
            if rule == "gpu":
                self.on_rows_of_16_bytes()
            for offset in range(8):
                for role in range(3):
                    tensors = list(inputs(2, 8, 30, 64, dtype=torch.bfloat16))
                    tensors[role] = torch.randn(2, 8, 30, 80).bfloat16()[..., offset : offset + 64]
                    self.agrees(*tensors, {})
        self.assertEqual(self.checked, 24)

    def test_random_layouts(self):
        rng = random.Random(16)
        for _ in range(80):
            q, k, v, options, storages = layouts.draw(rng)
            self.agrees(q, k, v, options, storages)

    def test_random_layouts_copied_by_the_rule_of_gpus(self):
        self.on_rows_of_16_bytes()
        rng = random.Random(17)
        for _ in range(80):
            q, k, v, options, storages = layouts.draw(rng)
            self.agrees(q, k, v, options, storages)
        self.assertGreater(self.checked, 40)

    def test_one_plan_serves_only_calls_that_are_copied_alike(self):
        self.on_rows_of_16_bytes()
        storage = torch.randn(2 * 3 * 20 * 64 + 8).bfloat16()
        for offset in (0, 1, 0, 8, 3, 0):
            x = storage[offset : offset + 2 * 3 * 20 * 64].view(2, 3, 20, 64)
            self.agrees(x, x, x, {})

    def test_expanded(self):
        for shape, strides in (((2, 4, 64, 32), (0, 0, 0, 1)), ((2, 4, 64, 32), (0, 0, 32, 1)), ((2, 4, 64, 32), (2048, 0, 32, 1))):
            x = torch.randn(4096).as_strided(shape, strides)
            other = torch.randn(shape)
            for tensors in ((x, x, x), (other, x, x), (x, other, other), (other, x, other)):
                self.agrees(*tensors, {})

    def test_the_copying_rule(self):
        copy = lambda shape, strides, address=64, unit=16: _torch_launch.must_copy(shape, strides, address, 2, unit)  # noqa: E731
        self.assertFalse(copy((2, 8, 300, 64), (8 * 300 * 64, 300 * 64, 64, 1)))
        self.assertTrue(copy((2, 8, 300, 64), (8 * 300 * 64, 300 * 64, 64, 1), address=66))
        self.assertFalse(copy((2, 8, 300, 64), (8 * 300 * 64, 300 * 64, 64, 1), address=66, unit=2))
        self.assertTrue(copy((2, 8, 300, 64), (8 * 300 * 68, 300 * 68, 68, 1)))
        self.assertFalse(copy((1, 1, 1, 64), (3, 5, 7, 1)))
        self.assertTrue(copy((1, 8, 300, 64), (0, 0, 64, 1)))
        self.assertFalse(copy((1, 8, 300, 64), (0, 0, 64, 1), unit=2))
        self.assertTrue(copy((1, 8, 300, 64), (0, 1, 64, 8), unit=2))

    def test_negated_views_and_zeros_without_memory(self):
        q, k, v = inputs()
        imaginary = torch.view_as_complex(torch.randn(2, 4, 9, 16, 2)).conj().imag
        for x in (torch._neg_view(q), imaginary, torch._efficientzerotensor(q.shape)):
            torch.testing.assert_close(ft.scaled_dot_product_attention(x, k, v), PYTORCH(x.clone(), k, v), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(ft.scaled_dot_product_attention(q, k, x), PYTORCH(q, k, x.clone()), atol=1e-5, rtol=1e-5)


if __name__ == "__main__":
    unittest.main()
