"""Intervals of keys and documents in flashcore.torch.attention, against PyTorch with a boolean mask: eager, compiled, with gradients."""

import os
import sys
import unittest
from pathlib import Path

import torch

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path[:0] = [str(ROOT / "python"), str(Path(__file__).resolve().parent)]
import flashcore  # noqa: E402
import flashcore.torch as ft  # noqa: E402
from torch_support import counted  # noqa: E402

BATCH, HEADS, ROWS, KEYS = 2, 4, 9, 17


def inputs(grad=False):
    torch.manual_seed(1)
    return tuple(torch.randn(BATCH, heads, rows, 16).requires_grad_(grad) for heads, rows in ((HEADS, ROWS), (2, KEYS), (2, KEYS)))


def numbers(*shape, most=KEYS):
    return torch.randint(0, most, shape, dtype=torch.int32)


def expected(q, k, v, mask):
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return torch.where(mask.any(-1, keepdim=True), out, 0.0)


class RowMasksTest(unittest.TestCase):
    def cases(self):
        """(arguments, mask) of each kind."""
        key = torch.arange(KEYS)
        starts, few = numbers(BATCH, HEADS, ROWS), numbers(ROWS)
        ends = starts + 5
        first = (key >= starts[..., None]) & (key < ends[..., None])
        yield {"intervals": (starts, ends)}, first
        yield {"intervals": [(starts, ends), (None, few), (15, None)]}, first | (key < few[:, None]) | (key >= 15)
        of_rows, of_keys = numbers(BATCH, ROWS, most=3), numbers(BATCH, KEYS, most=3)
        same = (of_rows[:, :, None] == of_keys[:, None, :])[:, None]
        yield {"documents": (of_rows, of_keys)}, same
        yield {"documents": (of_rows, of_keys), "intervals": (few, None)}, same & (key >= few[:, None])
        borders = torch.tensor([[0, 4, 7, 17], [1, 2, 9, 17]], dtype=torch.int32)
        same = flashcore.document_ids(borders, ROWS)[:, None, :, None] == flashcore.document_ids(borders, KEYS)[:, None, None, :]
        yield {"document_boundaries": (borders, borders)}, same

    def near(self, a, b):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)

    def test_agrees_with_a_mask(self):
        for arguments, mask in self.cases():
            with self.subTest(arguments=list(arguments)):
                q, k, v = inputs()
                out, computed, passed_on = counted(lambda: ft.attention(q, k, v, **arguments))
                self.near(out, expected(q, k, v, mask))
                self.assertEqual((computed, passed_on), (1, {}))
                window = torch.arange(KEYS) <= torch.arange(ROWS)[:, None]
                self.near(ft.attention(q, k, v, is_causal=True, **arguments), expected(q, k, v, mask & window))
                turned = torch.randn(BATCH, HEADS, 16, ROWS).transpose(2, 3)
                self.near(ft.attention(turned, k, v, **arguments), expected(turned, k, v, mask))

    def test_with_scores_and_half_precision(self):
        q, k, v = (x.to(torch.bfloat16) for x in inputs())
        slopes, sinks = torch.rand(HEADS), torch.randn(HEADS).to(torch.bfloat16)
        for arguments, mask in self.cases():
            others = {"softcap": 2.0, "alibi_slopes": slopes, "sink": sinks, "window": (12, 0)}
            out = ft.attention(q, k, v, **arguments, **others)
            by_mask = torch.ops.flashcore.attention(q, k, v, False, None, 12, 0, 2.0, slopes, sinks, mask)
            torch.testing.assert_close(out, by_mask, atol=2e-2, rtol=2e-2)
            self.assertEqual(out.stride(), by_mask.stride())

    def test_gradients_and_transforms(self):
        for arguments, mask in self.cases():
            ours, theirs = inputs(True), inputs(True)
            ft.attention(*ours, **arguments).square().sum().backward()
            expected(*theirs, mask).square().sum().backward()
            for a, b in zip(ours, theirs):
                self.near(a.grad, b.grad)
        arguments, mask = next(self.cases())
        q, k, v = inputs()
        mapped = torch.vmap(lambda x: ft.attention(x, k, v, **arguments))(torch.stack((q, 2 * q)))
        self.near(mapped[1], expected(2 * q, k, v, mask))
        with torch.autocast("cpu", torch.bfloat16):
            self.assertIs(ft.attention(q, k, v, **arguments).dtype, torch.bfloat16)

    def test_compiled(self):
        for arguments, mask in self.cases():
            torch._dynamo.reset()
            q, k, v = inputs()
            compiled = torch.compile(lambda q, k, v: ft.attention(q, k, v, **arguments) * 2, fullgraph=True, backend="aot_eager")
            self.near(compiled(q, k, v), 2 * expected(q, k, v, mask))

    def test_nothing_to_compute(self):
        q, k, v = inputs()
        self.assertEqual(ft.attention(q[:0], k[:0], v[:0], intervals=(3, None)).shape, (0, HEADS, ROWS, 16))
        self.assertFalse(ft.attention(q, k[:, :, :0], v[:, :, :0], intervals=(3, None)).any())

    def test_what_does_not_fit(self):
        for grad in (False, True):
            q, k, v = inputs(grad)
            with self.assertRaisesRegex((flashcore.Error, RuntimeError), "intervals.* give"):
                ft.attention(q, k, v, intervals=(torch.zeros(ROWS), None))
            with self.assertRaisesRegex(flashcore.Error, "documents and document_boundaries are given"):
                ft.attention(q, k, v, documents=numbers(ROWS), document_boundaries=numbers(3))


if __name__ == "__main__":
    unittest.main()
