"""flashcore.torch with an attn_mask: every way of broadcasting it beside PyTorch, and what is passed on. On the CPU, told to take masks as a GPU does."""

import sys
import unittest
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent))
from torch_support import PYTORCH, Quiet, counted, inputs  # noqa: E402

import flashcore.torch as ft  # noqa: E402
from flashcore import _torch_launch, _torch_masked  # noqa: E402

BATCH, HEADS, ROWS, KEYS, DIM = 2, 4, 9, 11, 16


class MaskedTest(Quiet):
    def setUp(self):
        super().setUp()
        self.enter(mock.patch.object(_torch_masked, "DEVICES", ("cpu", "cuda")))
        _torch_launch.known.clear()
        self.addCleanup(_torch_launch.known.clear)
        torch.manual_seed(1)
        self.q, self.k, self.v = torch.randn(BATCH, HEADS, ROWS, DIM), torch.randn(BATCH, HEADS, KEYS, DIM), torch.randn(BATCH, HEADS, KEYS, DIM)

    def agrees(self, mask, tensors=None, **options):
        q, k, v = tensors or (self.q, self.k, self.v)
        out, computed, passed = counted(lambda: ft.scaled_dot_product_attention(q, k, v, mask, **options))
        self.assertEqual((computed, passed), (1, {}))
        tolerance = {} if q.dtype is torch.float32 else {"atol": 2e-2, "rtol": 2e-2}
        torch.testing.assert_close(out, PYTORCH(q, k, v, mask, **options), **tolerance)

    def passed_on(self, why, mask, tensors=None, **options):
        _, computed, passed = counted(lambda: ft.scaled_dot_product_attention(*(tensors or (self.q, self.k, self.v)), mask, **options))
        self.assertEqual(computed, 0)
        self.assertRegex(" ".join(passed), why)

    def test_shapes(self):
        for shape in ((BATCH, HEADS, ROWS, KEYS), (BATCH, 1, ROWS, KEYS), (1, HEADS, ROWS, KEYS), (BATCH, 1, 1, KEYS), (HEADS, ROWS, KEYS), (ROWS, KEYS), (1, KEYS),
                      (ROWS, 1), (1, 1)):  # fmt: skip
            mask = torch.rand(shape) < 0.7
            mask[..., 0] = True
            self.agrees(mask)
            self.agrees(torch.randn(shape))
            self.agrees(mask, scale=0.5)

    def test_layouts(self):
        self.agrees(torch.randn(KEYS, ROWS).T)
        self.agrees((torch.randn(BATCH, 1, 1, KEYS) > -1).expand(BATCH, HEADS, ROWS, KEYS))
        self.agrees(torch.randn(ROWS, 2 * KEYS)[:, ::2])
        self.agrees(torch.zeros(()).expand(ROWS, KEYS))
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (self.q, self.k, self.v))
        self.agrees(torch.rand(ROWS, KEYS) < 0.8, (q, k, v))

    def test_rows_that_see_nothing(self):
        mask = torch.rand(ROWS, KEYS) < 0.5
        mask[3] = False
        self.agrees(mask)
        added = torch.zeros(ROWS, KEYS).masked_fill_(~mask, float("-inf"))
        self.agrees(added)

    def test_dtypes_and_grouped_heads(self):
        for dtype in (torch.float16, torch.bfloat16):
            q, k, v = (x.to(dtype) for x in (self.q, self.k[:, :2], self.v[:, :2]))
            self.agrees(torch.randn(HEADS, ROWS, KEYS).to(dtype), (q, k, v), enable_gqa=True)
            self.agrees(torch.rand(BATCH, 1, ROWS, KEYS) < 0.8, (q, k, v), enable_gqa=True)

    def test_other_masks_of_one_shape(self):
        for _ in range(3):
            self.agrees(torch.rand(BATCH, 1, 1, KEYS) < 0.8)
        self.assertEqual(len(_torch_launch.known), 1)

    def test_enabled(self):
        mask = torch.rand(ROWS, KEYS) < 0.8
        with ft.enable():
            out, computed, _ = counted(lambda: F.scaled_dot_product_attention(self.q, self.k, self.v, attn_mask=mask))
        self.assertEqual(computed, 1)
        torch.testing.assert_close(out, PYTORCH(self.q, self.k, self.v, mask))

    def test_what_is_passed_on(self):
        mask = torch.rand(ROWS, KEYS) < 0.8
        self.passed_on("dropout_p", mask, dropout_p=0.5)
        self.passed_on("requires a gradient", mask, (self.q.clone().requires_grad_(), self.k, self.v))
        self.passed_on("requires a gradient", torch.randn(ROWS, KEYS, requires_grad=True))
        with torch.autocast("cpu", torch.bfloat16):
            self.passed_on("autocast", mask)
        self.passed_on("three|four axes", mask, (self.q[0], self.k[0], self.v[0]))
        with mock.patch.object(_torch_masked, "DEVICES", ("cuda",)):
            self.passed_on("attn_mask is given, and flashcore takes one on a GPU only", mask)
        with self.assertRaises(RuntimeError):
            ft.scaled_dot_product_attention(self.q, self.k, self.v, torch.ones(3, KEYS, dtype=torch.bool))
        compiled = torch.vmap(lambda q, k, v: ft.scaled_dot_product_attention(q, k, v, mask))
        _, computed, passed = counted(lambda: compiled(*(x[None] for x in (self.q, self.k, self.v))))
        self.assertEqual(computed, 0)
        self.assertRegex(" ".join(passed), "transform")

    def test_inputs_of_the_support_are_plain(self):
        self.agrees(torch.ones(9, 9, dtype=torch.bool), inputs())


if __name__ == "__main__":
    unittest.main()
