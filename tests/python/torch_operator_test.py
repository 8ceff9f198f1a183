"""torch.ops.flashcore.attention: what it refuses, derivatives, vmap, autocast, torch.compile, torch.export."""

import os
import sys
import unittest
import warnings
from pathlib import Path

import torch
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path[:0] = [str(ROOT / "python"), str(Path(__file__).resolve().parent)]
import flashcore.torch as ft  # noqa: E402

PYTORCH = torch.nn.functional.scaled_dot_product_attention
OPERATOR = torch.ops.flashcore.attention


def inputs(batch=2, heads=4, heads_kv=None, rows=9, keys=None, dim=16, columns=None, dtype=torch.float32, grad=False):
    torch.manual_seed(1)
    make = lambda *shape: torch.randn(*shape).to(dtype).requires_grad_(grad)  # noqa: E731
    heads_kv, keys = heads_kv or heads, keys or rows
    return make(batch, heads, rows, dim), make(batch, heads_kv, keys, dim), make(batch, heads_kv, keys, columns or dim)


def near(a, b, tolerance=1e-4):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


# (words of the message, q, k, v, scale)
def refused():
    q, k, v = inputs()
    return [
        ("q has 3 axes", q[0], k[0], v[0], None),
        ("k has 3 axes", q, k[0], v[0], None),
        ("q has 2 batch entries and k 1", q, k[:1], v[:1], None),
        ("q has 2 batch entries and v 1", q, k, v[:1], None),
        ("q has 4 heads and k 3", q, k[:, :3], v[:, :3], None),
        ("k has no heads", q, k[:, :0], v[:, :0], None),
        ("k has 4 heads and v 2", q, k, v[:, :2], None),
        ("k has 9 rows and v 5", q, k, v[:, :, :5], None),
        ("q has 16 elements in a row and k 8", q, k[..., :8], v, None),
        ("rows of no elements", q[..., :0], k[..., :0], v, None),
        ("v has rows of no elements", q, k, v[..., :0], None),
        ("q has rows of 300 elements", *inputs(dim=300)[:2], v, None),
        ("v has rows of 257 elements", *inputs(columns=257), None),
        ("k is torch.float16 and q is torch.float32", q, k.half(), v, None),
        ("q is torch.float64; give float32, float16 or bfloat16", q.double(), k.double(), v.double(), None),
        ("q is torch.int64", q.long(), k.long(), v.long(), None),
        ("q is torch.complex64", q.cfloat(), k.cfloat(), v.cfloat(), None),
        ("k is on meta and q on cpu", q, k.to("meta"), v, None),
        ("scale is 0.0", q, k, v, 0.0),
        ("scale is -1.0", q, k, v, -1.0),
        ("scale is nan", q, k, v, float("nan")),
        ("scale is inf", q, k, v, float("inf")),
        ("scale is 1e-07", q, k, v, 1e-7),
    ]


class OperatorTest(unittest.TestCase):
    def setUp(self):
        self.caught = warnings.catch_warnings()
        self.caught.__enter__()
        self.addCleanup(self.caught.__exit__, None, None, None)
        warnings.simplefilter("ignore")

    def fails(self, words, call):
        with self.assertRaises(Exception) as caught:
            call()
        self.assertIsInstance(caught.exception, RuntimeError)
        self.assertIn(words, str(caught.exception))
        return str(caught.exception)


class CheckTest(OperatorTest):
    def test_what_does_not_fit_is_refused_everywhere_alike(self):
        for words, q, k, v, scale in refused():
            with self.subTest(words):
                if not any(x.device.type == "meta" for x in (q, k, v)):
                    eager = self.fails(words, lambda: OPERATOR(q, k, v, False, scale))  # noqa: B023
                    meta = self.fails(words, lambda: OPERATOR(q.to("meta"), k.to("meta"), v.to("meta"), False, scale))  # noqa: B023
                    self.assertEqual(eager, meta)
                else:
                    self.fails("", lambda: OPERATOR(q, k, v, False, scale))  # noqa: B023
                with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
                    fakes = [mode.from_tensor(x) if x.device.type != "meta" else x for x in (q, k, v)]
                    self.fails("" if k.device.type == "meta" else words, lambda: OPERATOR(*fakes, False, scale))  # noqa: B023

    def test_a_gpu_has_wider_rows(self):
        """FlashAttention 3's tests have values of 512 columns. Fake tensors: no GPU is needed."""
        with torch._subclasses.FakeTensorMode():
            q, k = (torch.empty(2, 4, 9, 64, dtype=torch.float16, device="cuda") for _ in range(2))
            for columns in (256, 512, 1024):
                v = torch.empty(2, 4, 9, columns, dtype=torch.float16, device="cuda")
                self.assertEqual(OPERATOR(q, k, v).shape, (2, 4, 9, columns))
            self.fails("v has rows of 1025 elements; give 1 to 1024", lambda: OPERATOR(q, k, torch.empty(2, 4, 9, 1025, dtype=torch.float16, device="cuda")))

    def test_compiled_code_refuses_the_same(self):
        for dynamic in (False, True):
            compiled = torch.compile(lambda q, k, v, scale: OPERATOR(q, k, v, False, scale), backend="aot_eager", dynamic=dynamic)
            for words, q, k, v, scale in [refused()[i] for i in (2, 4, 8, 13, 18)]:
                torch._dynamo.reset()
                with self.subTest(words, dynamic=dynamic):
                    # Sizes that may vary have names like s85.
                    self.fails(words.split(" 2 ")[0].split(" 4 ")[0].split(" 16 ")[0] if dynamic else words, lambda: compiled(q, k, v, scale))  # noqa: B023

    def test_a_scale_is_obeyed(self):
        for scale in (1e-6, 0.3, 2.0, None):
            near(OPERATOR(*inputs(), True, scale), PYTORCH(*inputs(), is_causal=True, scale=scale))

    def test_other_kinds_of_tensors(self):
        q, k, v = inputs()
        for make in (torch.Tensor.to_sparse, torch.Tensor.to_mkldnn):
            with self.assertRaises((RuntimeError, NotImplementedError)):
                OPERATOR(make(q), k, v)
        with self.assertRaises((RuntimeError, NotImplementedError)):
            OPERATOR(torch.nested.nested_tensor([q[0], q[1]]), k, v)
        parameter = torch.nn.Parameter(q)
        near(OPERATOR(parameter, k, v), PYTORCH(q, k, v))

    def test_empty_tensors(self):
        q, k, v = inputs()
        for tensors in ((q[:0], k[:0], v[:0]), (q[:, :, :0], k, v), (q, k[:, :, :0], v[:, :, :0]), (q[:, :0], k, v)):
            out, theirs = OPERATOR(*tensors), PYTORCH(*tensors, enable_gqa=True) if tensors[0].shape[1] else None
            self.assertEqual(out.shape, (*tensors[0].shape[:3], 16))
            if theirs is not None:
                self.assertTrue(torch.equal(out, theirs))

    def test_negated_views_and_layouts(self):
        q, k, v = inputs()
        near(OPERATOR(torch._neg_view(q), k, torch._neg_view(v)), PYTORCH(-q, k, -v))
        imaginary = torch.view_as_complex(torch.randn(2, 4, 9, 16, 2)).conj().imag
        near(OPERATOR(imaginary, k, v), PYTORCH(imaginary.clone(), k, v))
        near(OPERATOR(q.transpose(2, 3).contiguous().transpose(2, 3), k, v), PYTORCH(q, k, v))
        x = torch.randn(1, 1, 1, 16).expand(2, 4, 9, 16)
        near(OPERATOR(x, x, x), PYTORCH(x, x, x))

    def test_same_bits_with_deterministic_algorithms_and_in_inference_mode(self):
        expected = OPERATOR(*inputs())
        torch.use_deterministic_algorithms(True)
        try:
            self.assertTrue(torch.equal(OPERATOR(*inputs()), expected))
        finally:
            torch.use_deterministic_algorithms(False)
        with torch.inference_mode():
            out = OPERATOR(*inputs(grad=True))
        self.assertTrue(out.is_inference() and torch.equal(out, expected))
        with torch.no_grad():
            self.assertFalse(OPERATOR(*inputs(grad=True)).requires_grad)


class DerivativeTest(OperatorTest):
    def test_each_subset_of_inputs(self):
        for wanted in range(8):
            ours, theirs = ([x.requires_grad_(bool(wanted >> i & 1)) for i, x in enumerate(inputs(heads_kv=2))] for _ in range(2))
            out, expected = OPERATOR(*ours, True), PYTORCH(*theirs, is_causal=True, enable_gqa=True)
            self.assertEqual(out.requires_grad, wanted != 0)
            if not wanted:
                continue
            out.square().sum().backward()
            expected.square().sum().backward()
            for a, b in zip(ours, theirs):
                self.assertEqual(a.grad is None, b.grad is None)
                if b.grad is not None:
                    near(a.grad, b.grad)

    def test_second_derivatives(self):
        def twice(function, *tensors):
            first = torch.autograd.grad(function(*tensors).square().sum(), tensors, create_graph=True)
            return torch.autograd.grad(sum(g.square().sum() for g in first), tensors)

        ours = twice(OPERATOR, *inputs(grad=True))
        with sdpa_kernel(SDPBackend.MATH):  # the one of PyTorch's that has them
            theirs = twice(PYTORCH, *inputs(grad=True))
        for a, b in zip(ours, theirs):
            near(a, b, 1e-3)

    def test_forward_mode(self):
        q, k, v = inputs()
        tangent = torch.randn_like(q)
        for function in (OPERATOR, lambda *x: OPERATOR(*x, True, 0.3)):
            expected = (function(q + 1e-2 * tangent, k, v) - function(q - 1e-2 * tangent, k, v)) / 2e-2
            near(torch.func.jvp(lambda x: function(x, k, v), (q,), (tangent,))[1], expected, 2e-3)  # noqa: B023
            with forward_ad.dual_level():
                found = forward_ad.unpack_dual(function(forward_ad.make_dual(q, tangent), k, v)).tangent
                self.assertIsNone(forward_ad.unpack_dual(function(q, k, v)).tangent)
            near(found, expected, 2e-3)

    def test_forward_mode_of_the_drop_in_is_pytorchs(self):
        q, k, v = inputs()
        tangent = torch.randn_like(q)

        def tangents(function):
            with forward_ad.dual_level():
                found = forward_ad.unpack_dual(function(forward_ad.make_dual(q, tangent), k, v)).tangent
            return found, torch.func.jvp(lambda x: function(x, k, v), (q,), (tangent,))[1]

        with sdpa_kernel(SDPBackend.MATH):
            for a, b in zip(tangents(ft.scaled_dot_product_attention), tangents(PYTORCH)):
                near(a, b)
        ft.reset_counters()
        with self.assertRaises(NotImplementedError):  # PyTorch's CPU kernel has none, and says so
            tangents(ft.scaled_dot_product_attention)
        self.assertTrue(any("tangent" in why for why in ft.counters()["passed_on"]))

    def test_transforms(self):
        q, k, v = inputs()
        for function in (OPERATOR, ft.scaled_dot_product_attention):
            loss = lambda f: lambda x: f(x, k, v).square().sum()  # noqa: E731
            near(torch.func.grad(loss(function))(q), torch.func.grad(loss(PYTORCH))(q))
            near(torch.func.functionalize(lambda x: function(x, k, v))(q), PYTORCH(q, k, v))  # noqa: B023
            near(torch.func.vjp(lambda x: function(x, k, v), q)[1](torch.ones_like(q))[0], torch.func.vjp(lambda x: PYTORCH(x, k, v), q)[1](torch.ones_like(q))[0])  # noqa: B023
        small = inputs(1, 1, 1, 2, 2, 2)
        jacobian = lambda transform, function: transform(lambda x: function(x, *small[1:]))(small[0])  # noqa: E731
        expected = torch.autograd.functional.jacobian(lambda x: PYTORCH(x, *small[1:]), small[0])
        near(jacobian(torch.func.jacfwd, OPERATOR), expected)
        near(jacobian(torch.func.jacrev, OPERATOR), expected)
        near(jacobian(torch.func.jacrev, ft.scaled_dot_product_attention), expected)

    def test_vmap(self):
        q, k, v = (x.unflatten(0, (3, 2)) for x in inputs(batch=6))
        each = torch.stack([PYTORCH(q[i], k[i], v[i], is_causal=True) for i in range(3)])
        for function in (lambda *x: OPERATOR(*x, True), lambda *x: ft.scaled_dot_product_attention(*x, is_causal=True)):
            ft.reset_counters()
            near(torch.vmap(function)(q, k, v), each)
            near(torch.vmap(function, in_dims=(2, 0, 0))(q.movedim(0, 2), k, v), each)
            near(torch.vmap(function, in_dims=(0, None, None))(q, k[0], v[0]), torch.stack([PYTORCH(x, k[0], v[0], is_causal=True) for x in q]))
            near(torch.vmap(torch.vmap(function), in_dims=1, out_dims=1)(*(x.unflatten(1, (2, 1)).movedim(0, 1) for x in (q, k, v))), each.unflatten(1, (2, 1)).movedim(0, 1))
            self.assertEqual(ft.counters(), {"computed": 4, "passed_on": {}})
        with self.assertRaisesRegex(RuntimeError, "axes"):
            torch.vmap(OPERATOR)(q[0], k[0], v[0])
        per_sample = lambda f: torch.vmap(torch.func.grad(lambda *x: f(*x).square().sum()))(q, k, v)  # noqa: E731
        near(per_sample(OPERATOR), per_sample(PYTORCH))
        near(per_sample(ft.scaled_dot_product_attention), per_sample(PYTORCH))

    def test_autocast(self):
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype=dtype):
                out = OPERATOR(*inputs())
                mixed = OPERATOR(inputs()[0], *inputs(dtype=dtype)[1:])
                trained = OPERATOR(*inputs(grad=True))
            self.assertEqual({out.dtype, mixed.dtype, trained.dtype}, {dtype})
            near(out, OPERATOR(*inputs(dtype=dtype)))
            trained.float().square().sum().backward()
        with torch.autocast("cpu", dtype=torch.bfloat16), self.assertRaisesRegex(RuntimeError, "float64"):
            OPERATOR(*(x.double() for x in inputs()))


class CompilerTest(OperatorTest):
    def test_opcheck(self):
        for arguments in [(*inputs(heads_kv=2, grad=True), True, None), (*inputs(columns=8), False, 0.3), (*inputs(dtype=torch.bfloat16), False, None),
                          (inputs(grad=True)[0], *inputs()[1:], True, None), (inputs()[0].transpose(2, 3).contiguous().transpose(2, 3), *inputs()[1:])]:  # fmt: skip
            torch.library.opcheck(OPERATOR.default, arguments)

    def test_dynamic_shapes(self):
        compiled = torch.compile(lambda q, k, v: OPERATOR(q, k, v, True) * 2, backend="aot_eager", dynamic=True, fullgraph=True)
        for shape in ({}, {"rows": 30}, {"batch": 5, "rows": 3}, {"heads": 8, "heads_kv": 4}, {"rows": 4, "keys": 11}):
            near(compiled(*inputs(**shape)), OPERATOR(*inputs(**shape), True) * 2)

    def test_compiled_training(self):
        compiled = torch.compile(lambda q, k, v: OPERATOR(q, k, v, True).square().sum(), backend="aot_eager", fullgraph=True)
        ours, theirs = inputs(grad=True), inputs(grad=True)
        compiled(*ours).backward()
        PYTORCH(*theirs, is_causal=True).square().sum().backward()
        for a, b in zip(ours, theirs):
            near(a.grad, b.grad)

    def test_compiled_autocast_and_vmap(self):
        def mixed(q, k, v):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return OPERATOR(q, k, v)

        self.assertEqual(torch.compile(mixed, backend="aot_eager", fullgraph=True)(*inputs()).dtype, torch.bfloat16)
        q, k, v = (x.unflatten(0, (3, 2)) for x in inputs(batch=6))
        near(torch.compile(lambda *x: torch.vmap(OPERATOR)(*x), backend="aot_eager", fullgraph=True)(q, k, v), torch.vmap(OPERATOR)(q, k, v))

    def test_export_and_make_fx(self):
        class Attend(torch.nn.Module):
            def forward(self, q, k, v):
                return ft.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

        for strict in (True, False):
            program = torch.export.export(Attend(), inputs(heads_kv=2), strict=strict)
            self.assertEqual(sum("flashcore.attention" in str(node.target) for node in program.graph.nodes), 1)
            near(program.module()(*inputs(heads_kv=2)), Attend()(*inputs(heads_kv=2)))
        from torch.fx.experimental.proxy_tensor import make_fx

        for mode in ("real", "fake", "symbolic"):
            graph = make_fx(Attend(), tracing_mode=mode)(*inputs(heads_kv=2))
            self.assertIn("flashcore.attention", graph.code)
            near(graph(*inputs(heads_kv=2)), Attend()(*inputs(heads_kv=2)))
        traced = torch.jit.trace(Attend(), inputs(heads_kv=2))
        near(traced(*inputs(heads_kv=2)), Attend()(*inputs(heads_kv=2)))


if __name__ == "__main__":
    unittest.main()
