"""flashcore.torch with an attn_mask: every way of broadcasting it beside PyTorch, masks that are lengths or causal, compilers, gradients, and
what is passed on."""

import contextlib
import ctypes
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

OPERATOR = torch.ops.flashcore.attention
BATCH, HEADS, ROWS, KEYS, DIM = 2, 4, 9, 11, 16


class MaskedTest(Quiet):
    def setUp(self):
        super().setUp()
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

    def passed_on(self, why, mask, tensors=None, pytorch=None, **options):
        """`pytorch`: what PyTorch, which gets the call, raises."""
        with self.assertRaises(pytorch) if pytorch else contextlib.nullcontext():
            ft.scaled_dot_product_attention(*(tensors or (self.q, self.k, self.v)), mask, **options)
        computed, passed = ft.counters()["computed"], ft.counters()["passed_on"]
        ft.reset_counters()
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
        self.passed_on("is_causal are both", mask, is_causal=True)
        self.passed_on("three|four axes", mask, (self.q[0], self.k[0], self.v[0]))
        self.passed_on("attn_mask is torch.int32", mask.int(), pytorch=RuntimeError)
        self.passed_on("does not broadcast", torch.ones(3, KEYS, dtype=torch.bool), pytorch=RuntimeError)
        self.passed_on("does not broadcast", torch.ones(1, 1, 1, ROWS, KEYS, dtype=torch.bool), pytorch=RuntimeError)
        self.passed_on("tensor subclass Special", mask.as_subclass(type("Special", (torch.Tensor,), {})))
        with self.assertRaisesRegex(RuntimeError, "attn_mask has shape .* give one that broadcasts to .2, 4, 9, 11."):
            OPERATOR(self.q, self.k, self.v, attn_mask=mask[:3])
        with self.assertRaisesRegex(RuntimeError, "attn_mask is torch.int64"):
            OPERATOR(self.q, self.k, self.v, attn_mask=mask.long())

    def test_inputs_of_the_support_are_plain(self):
        self.agrees(torch.ones(9, 9, dtype=torch.bool), inputs())

    def kinds(self):
        """Of masks: a function of the pairs, numbers, lengths, causal, and rows that see nothing."""
        shown = torch.rand(BATCH, 1, ROWS, KEYS) < 0.7
        shown[:, :, 4] = False
        padding = torch.arange(KEYS) < torch.tensor([[7], [0]])
        return {"pairs": shown, "numbers": torch.randn(HEADS, ROWS, KEYS), "hidden": torch.zeros(ROWS, KEYS).masked_fill(~shown[0, 0], -torch.inf),
                "lengths": padding[:, None, None], "causal": torch.ones(ROWS, KEYS, dtype=torch.bool).tril()}  # fmt: skip

    def test_compiled_in_one_graph(self):
        for dynamic in (False, True):
            torch._dynamo.reset()
            compiled = torch.compile(lambda *x: ft.scaled_dot_product_attention(*x) * 2, backend="aot_eager", fullgraph=True, dynamic=dynamic)
            for name, mask in self.kinds().items():
                with self.subTest(name, dynamic=dynamic):
                    out, computed, passed = counted(lambda: compiled(self.q, self.k, self.v, mask))  # noqa: B023
                    self.assertEqual((computed, passed), (1, {}))
                    torch.testing.assert_close(out, 2 * PYTORCH(self.q, self.k, self.v, mask))
        torch._dynamo.reset()
        program = torch.export.export(_Attend(), (self.q, self.k, self.v, self.kinds()["pairs"]))
        self.assertIn("flashcore.attention", program.graph_module.code)
        with ft.enable():
            torch._dynamo.reset()
            out, computed, _ = counted(lambda: torch.compile(_Attend(), backend="eager", fullgraph=True)(self.q, self.k, self.v, self.kinds()["pairs"]))
        self.assertEqual(computed, 1)

    def test_compiled_calls_that_need_a_gradient_are_pytorchs(self):
        q, mask = self.q.clone().requires_grad_(), torch.randn(ROWS, KEYS, requires_grad=True)
        for tensors in ((q, self.k, self.v, mask.detach()), (self.q, self.k, self.v, mask)):
            torch._dynamo.reset()
            compiled = torch.compile(lambda *x: ft.scaled_dot_product_attention(*x), backend="aot_eager", fullgraph=True)
            out, computed, passed = counted(lambda: compiled(*tensors))  # noqa: B023
            self.assertEqual(computed, 0)
            self.assertIn("requires a gradient", " ".join(passed))
            self.assertTrue(out.requires_grad)

    def test_autocast_transforms_and_modes(self):
        for name, mask in self.kinds().items():
            for dtype in (torch.bfloat16, torch.float16):
                with self.subTest(name, dtype=dtype), torch.autocast("cpu", dtype=dtype):
                    out, computed, passed = counted(lambda: ft.scaled_dot_product_attention(self.q, self.k, self.v, mask))  # noqa: B023
                    self.assertEqual((computed, passed, out.dtype), (1, {}, dtype))
                    torch.testing.assert_close(out, PYTORCH(self.q, self.k, self.v, mask), atol=2e-2, rtol=2e-2)
            with self.subTest(name):
                q, k, v = (torch.stack([x, x + 1, -x]) for x in (self.q, self.k, self.v))
                masks = torch.stack([mask, mask.flip(-1), mask])
                each = torch.stack([PYTORCH(*x) for x in zip(q, k, v, masks)])
                found, computed, passed = counted(lambda: torch.vmap(ft.scaled_dot_product_attention)(q, k, v, masks))  # noqa: B023
                torch.testing.assert_close(found, each)
                self.assertEqual((computed, passed), (1, {}))
                one = torch.vmap(lambda q, k, v: ft.scaled_dot_product_attention(q, k, v, mask))(q, k, v)  # noqa: B023
                torch.testing.assert_close(one, torch.stack([PYTORCH(*x, mask) for x in zip(q, k, v)]))
                torch.testing.assert_close(ft.scaled_dot_product_attention(torch._neg_view(self.q), self.k, self.v, mask), PYTORCH(-self.q, self.k, self.v, mask))
        with torch._subclasses.FakeTensorMode() as mode:
            out = ft.scaled_dot_product_attention(*(mode.from_tensor(x) for x in (self.q, self.k, self.v, mask)))
        self.assertEqual((type(out).__name__, out.shape), ("FakeTensor", self.q.shape))

    def test_gradients_of_the_operator(self):
        for name, mask in self.kinds().items():
            for grouped, options in ((False, {}), (True, {}), (False, {"softcap": 2.0, "sink": torch.randn(HEADS)}), (False, {"window_left": 4})):
                with self.subTest(name, grouped=grouped, options=list(options)):
                    heads = 2 if grouped else HEADS
                    inputs = [x.clone().requires_grad_() for x in (self.q, self.k[:, :heads], self.v[:, :heads])]
                    if mask.is_floating_point() and torch.isfinite(mask).all():
                        inputs.append(mask.clone().requires_grad_())
                    out = OPERATOR(*inputs[:3], **options, attn_mask=inputs[-1] if len(inputs) == 4 else mask)
                    theirs = [x.detach().clone().requires_grad_() for x in inputs]
                    expected = _definition(*theirs[:3], theirs[-1] if len(theirs) == 4 else mask, **options)
                    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
                    for a, b in zip(torch.autograd.grad(out.square().sum(), inputs), torch.autograd.grad(expected.square().sum(), theirs)):
                        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)

    def test_opcheck(self):
        for mask in self.kinds().values():
            torch.library.opcheck(OPERATOR.default, (self.q, self.k, self.v), {"attn_mask": mask})
        torch.library.opcheck(OPERATOR.default, (self.q.clone().requires_grad_(), self.k, self.v), {"attn_mask": torch.randn(ROWS, KEYS, requires_grad=True)})

    def test_what_masks_say(self):
        """Lengths and causal masks are found in conditions and in numbers, whatever their shape, and nothing else is taken for one."""
        hidden = lambda mask, number=-torch.inf: torch.zeros(mask.shape).masked_fill(~mask, number)  # noqa: E731
        tril = torch.ones(ROWS, KEYS, dtype=torch.bool).tril
        right, left = torch.arange(KEYS) < torch.tensor([[7], [4]]), torch.arange(KEYS) >= torch.tensor([[0], [3]])
        holes = right.clone()
        holes[0, 3] = False
        for mask, axes, found in (
            (torch.ones(KEYS, dtype=torch.bool), "j", "all"), (torch.zeros(BATCH, KEYS), "bj", "all"), (torch.ones(1, dtype=torch.bool), "", "all"),
            (right, "bj", [(0, 7), (0, 4)]), (left, "bj", [(0, KEYS), (3, KEYS - 3)]), (right[1], "j", [(0, 4)]), (hidden(left), "bj", [(0, KEYS), (3, KEYS - 3)]),
            (hidden(right, torch.finfo(torch.float32).min), "bj", [(0, 7), (0, 4)]), (torch.zeros(KEYS, dtype=torch.bool), "j", [(0, 0)]), (holes, "bj", None),
            (hidden(torch.zeros(KEYS, dtype=torch.bool), -3e38), "j", None), (hidden(right, -1e4), "bj", None), (hidden(right) + 1, "bj", None), (tril(), "ij", "top_left"),
            (tril(KEYS - ROWS), "ij", "bottom_right"), (hidden(tril()), "ij", "top_left"), (tril(1), "ij", None), (tril().flip(0), "ij", None),
            (tril() & (torch.arange(KEYS) != 2), "ij", None), (tril(), "hi", None), (right, "bi", None),
        ):  # fmt: skip
            result = _torch_masked.recognise(mask, axes, ROWS, KEYS)
            self.assertEqual(list(zip(*(x.tolist() for x in result))) if isinstance(result, _torch_masked.Lengths) else result, found, (mask, axes))
        self.q, self.k, self.v = (torch.randn(BATCH, HEADS, n, DIM) for n in (ROWS, KEYS, KEYS))
        for mask in (right[:, None, None], left[:, None, None], hidden(right, -3e38)[:, None, None], tril(KEYS - ROWS), tril(), right[:1, None, None], holes[:, None, None],
                     torch.zeros(KEYS, dtype=torch.bool), hidden(torch.zeros(KEYS, dtype=torch.bool), -3e38)):  # fmt: skip
            mask = mask.reshape(1, -1) if mask.dim() == 1 else mask  # PyTorch takes two axes at least
            self.agrees(mask)
            if mask.shape[-2:-1] != (ROWS,):
                self.agrees(mask, (self.q[:, :, :1], self.k, self.v))
        self.agrees(tril(), (self.q.transpose(1, 2).contiguous().transpose(1, 2), self.k, self.v))

    def test_lengths_and_causal_masks_cost_no_function(self):
        """Padding is computed as lengths: its plan has none of the functions that every pair would be asked by."""
        prepared = []
        with mock.patch.object(_torch_masked, "_prepared", lambda *x: prepared.append(x) or "a function is not wanted here"):
            for mask in (self.kinds()["lengths"], self.kinds()["causal"], torch.zeros(BATCH, 1, 1, KEYS)):
                ft.scaled_dot_product_attention(self.q, self.k, self.v, mask)
            self.assertEqual(prepared, [])
            ft.scaled_dot_product_attention(self.q, self.k, self.v, torch.ones(ROWS, KEYS))  # numbers, which are added
            self.assertEqual(len(prepared), 1)

    def test_numbers_that_the_kernels_cannot_scale_are_clamped(self):
        """A row of finite numbers near the least one shows all of its keys; -inf hides a key still. Read where the kernel would read it."""
        mask = torch.randn(ROWS, KEYS)
        mask[2], mask[3, :4], mask[4], mask[5, 1] = -3.3e38, -torch.inf, -torch.inf, -2e38
        expected = mask.clone()
        expected[2], expected[5, 1] = -1e38, -1e38
        read, run = [], _torch_launch.run

        def looks(*arguments, tensors, **named):
            read.append(torch.frombuffer(bytearray(ctypes.string_at(tensors[0], 4 * ROWS * KEYS)), dtype=torch.float32).reshape(ROWS, KEYS))
            return run(*arguments, tensors=tensors, **named)

        with mock.patch.object(_torch_launch, "run", looks):
            self.agrees(mask)
            self.agrees(mask.bfloat16(), tuple(x.bfloat16() for x in (self.q, self.k, self.v)))
        torch.testing.assert_close(read[0], expected, rtol=0, atol=0)
        self.assertTrue(bool((read[1][torch.isfinite(read[1])] >= _torch_masked._LEAST).all()))
        self.assertEqual(read[1].isneginf().sum(), expected.isneginf().sum())


class _Attend(torch.nn.Module):
    def forward(self, q, k, v, mask):
        return ft.scaled_dot_product_attention(q, k, v, mask)


def _definition(q, k, v, mask, softcap=None, sink=None, window_left=-1):
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask
    own = torch.arange(ROWS)[:, None] + KEYS - ROWS
    scores = scores if window_left < 0 else scores.masked_fill(torch.arange(KEYS) < own - window_left, -torch.inf)
    more = torch.full(scores.shape[:-1], -torch.inf) if sink is None else sink[:, None].expand(scores.shape[:-1])
    seen = torch.cat([scores, more[..., None]], -1)
    empty = (seen == -torch.inf).all(-1, keepdim=True)
    return (torch.softmax(seen.masked_fill(empty, 0.0), -1) * ~empty)[..., :-1] @ v


if __name__ == "__main__":
    unittest.main()
