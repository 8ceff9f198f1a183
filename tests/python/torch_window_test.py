"""Sliding windows in PyTorch: flashcore.torch.attention and the operator's arguments, against PyTorch with a mask."""

import os
import sys
import unittest
from pathlib import Path

import torch

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
import flashcore  # noqa: E402
import flashcore.torch as ft  # noqa: E402

WINDOWS = [((3, 2), False), ((0, None), False), ((None, 4), False), ((5, 0), False), ((4, None), True), ((-1, -1), True), ((100, 100), False)]


def inputs(rows=9, keys=17, heads_kv=2, grad=False, batch=2):
    torch.manual_seed(1)
    make = lambda heads, length: torch.randn(batch, heads, length, 16).requires_grad_(grad)  # noqa: E731
    return make(4, rows), make(heads_kv, keys), make(heads_kv, keys)


def expected(q, k, v, window, is_causal, scale=None):
    """Its own mask, from the definition."""
    rows, keys = q.shape[-2], k.shape[-2]
    left, right = (10**6 if side in (None, -1) else side for side in window or (None, None))
    own = torch.arange(rows)[:, None] + (0 if is_causal else keys - rows)
    key = torch.arange(keys)[None, :]
    mask = (key >= own - left) & (key <= own + (0 if is_causal else right))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)
    return torch.where(mask.any(-1)[:, None], out, 0.0)


def near(a, b):
    torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


class WindowTest(unittest.TestCase):
    def test_agrees_with_a_mask(self):
        for window, is_causal in WINDOWS:
            for rows, keys in ((9, 17), (17, 17), (1, 33), (20, 7)):
                with self.subTest(window=window, is_causal=is_causal, rows=rows, keys=keys):
                    q, k, v = inputs(rows, keys)
                    near(ft.attention(q, k, v, window=window, is_causal=is_causal, scale=0.3), expected(q, k, v, window, is_causal, 0.3))

    def test_without_a_window_it_is_the_operator(self):
        q, k, v = inputs()
        torch.testing.assert_close(ft.attention(q, k, v, is_causal=True), torch.ops.flashcore.attention(q, k, v, True), atol=0, rtol=0)

    def test_gradients(self):
        for window, is_causal in WINDOWS[:5]:
            ours, theirs = inputs(grad=True), inputs(grad=True)
            ft.attention(*ours, window=window, is_causal=is_causal).square().sum().backward()
            expected(*theirs, window, is_causal).square().sum().backward()
            for a, b in zip(ours, theirs):
                near(a.grad, b.grad)

    def test_vmap_and_second_derivatives(self):
        q, k, v = inputs(batch=3)
        each = torch.vmap(lambda a, b, c: ft.attention(a[None], b[None], c[None], window=(3, 1))[0])(q, k, v)
        near(each, expected(q, k, v, (3, 1), False))
        small = [x[:, :, :4].double().float().detach().requires_grad_() for x in inputs(heads_kv=4)]
        grad = torch.autograd.grad(ft.attention(*small, window=(1, 0)).sum(), small[0], create_graph=True)[0]
        self.assertTrue(torch.isfinite(torch.autograd.grad(grad.square().sum(), small[1])[0]).all())

    def test_every_kind_of_derivative_sees_the_window(self):
        # They go through the formula, not through the kernel. Rows without keys (20 rows, 7 keys) have gradient 0.
        for window, is_causal, rows, keys in (((3, 2), False, 9, 17), ((2, None), True, 9, 17), ((1, 1), False, 20, 7)):
            with self.subTest(window=window, is_causal=is_causal, rows=rows, keys=keys):
                tensors = inputs(rows, keys)
                attend = lambda *x: ft.attention(*x, window=window, is_causal=is_causal)  # noqa: B023, E731
                out = expected(*tensors, window, is_causal)
                near(torch.func.vjp(attend, *tensors)[0], out)
                near(torch.func.jvp(attend, tensors, tensors)[0], out)
                ours, theirs = inputs(rows, keys, grad=True), inputs(rows, keys, grad=True)
                again = torch.autograd.grad(attend(*ours).square().sum(), ours, create_graph=True)
                once = torch.autograd.grad(attend(*theirs).square().sum(), theirs)
                for a, b in zip(again, once):
                    near(a, b)

    def test_compiled(self):
        q, k, v = inputs()
        compiled = torch.compile(lambda *x: ft.attention(*x, window=(4, 1)) * 2, fullgraph=True, backend="aot_eager")
        near(compiled(q, k, v), 2 * expected(q, k, v, (4, 1), False))
        torch.library.opcheck(torch.ops.flashcore.attention.default, (q, k, v, False, None, 4, 1), test_utils=("test_schema", "test_faketensor"))

    def test_refused(self):
        q, k, v = inputs()
        for window in (3, (1,), (1, 2, 3), (-2, 0), ("a", 0), (True, 1)):
            with self.assertRaisesRegex(flashcore.Error, "window is"):
                ft.attention(q, k, v, window=window)
        with self.assertRaisesRegex(RuntimeError, "is_causal is given and window_right is 3"):
            ft.attention(q, k, v, window=(1, 3), is_causal=True)
        with self.assertRaisesRegex(RuntimeError, "window_left is -7"):
            torch.ops.flashcore.attention(q, k, v, False, None, -7, 0)


if __name__ == "__main__":
    unittest.main()
