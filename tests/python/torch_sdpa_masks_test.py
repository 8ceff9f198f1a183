"""Masks as PyTorch's own tests of scaled_dot_product_attention have them (test/test_transformers.py), through the drop-in: sizes, types,
broadcasts, layouts, gradients, rows without keys, biases that are classes, and what is refused."""

import itertools
import math
import sys
import unittest
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import CausalBias, CausalVariant, causal_lower_right, causal_upper_left

sys.path.insert(0, str(Path(__file__).resolve().parent))
from torch_support import PYTORCH, Quiet, counted  # noqa: E402

import flashcore.torch as ft  # noqa: E402

# (absolute, relative), of outputs and of gradients beside those of fp64.
TOLERANCES = {torch.float32: (1e-5, 1e-4), torch.bfloat16: (5e-2, 5e-2), torch.float16: (1e-2, 1e-2)}


def definition(q, k, v, mask=None, scale=None):
    """In fp64; a row that sees no key is 0."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask.double()
    hidden = (scores == -torch.inf).all(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(hidden, 0.0), -1) * ~hidden @ v


class SdpaMasksTest(Quiet):
    def setUp(self):
        super().setUp()
        torch.manual_seed(7)
        self.enter(ft.enable())

    def tensors(self, batch, heads, rows, keys, dim, dtype, heads_kv=None, packed=False):
        """Views of [batch, length, heads, dim], as models have them; packed: of one tensor."""
        heads_kv = heads_kv or heads
        if packed:
            x = torch.randn(batch, rows, 3 * heads * dim).to(dtype)
            return tuple(part.view(batch, rows, heads, dim).transpose(1, 2) for part in x.chunk(3, -1))
        return tuple(torch.randn(batch, length, h, dim).to(dtype).transpose(1, 2) for length, h in ((rows, heads), (keys, heads_kv), (keys, heads_kv)))

    def mask(self, shape, dtype):
        if dtype is torch.bool:
            mask = torch.rand(shape) < 0.6
            if mask.shape[-1] > 1:
                mask[..., 0] = True
            return mask
        return torch.randn(shape).to(dtype)

    def agrees(self, q, k, v, mask, computed_here=True, **options):
        out, computed, passed = counted(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options))
        self.assertEqual((computed, bool(passed)), (int(computed_here), not computed_here), passed)
        self.assertEqual((out.dtype, out.shape), (q.dtype, (*q.shape[:-1], v.shape[-1])))
        absolute, relative = TOLERANCES[q.dtype]
        torch.testing.assert_close(out.double(), definition(q, k, v, mask, options.get("scale")), atol=absolute, rtol=relative)

    def test_every_broadcast_size_and_type(self):
        sizes = ((2, 3, 11, 17, 8), (2, 1, 64, 130, 16), (1, 3, 67, 33, 64), (3, 1, 1, 50, 32))
        for (batch, heads, rows, keys, dim), dtype in itertools.product(sizes, TOLERANCES):
            q, k, v = self.tensors(batch, heads, rows, keys, dim, dtype)
            shapes = [*itertools.product((rows, 1), (keys, 1)), *itertools.product((batch, 1), (heads, 1), (rows, 1), (keys, 1)), (heads, rows, keys)]
            for shape, kind in itertools.product(dict.fromkeys(shapes), dict.fromkeys((torch.bool, torch.float32, dtype))):
                with self.subTest(q=tuple(q.shape), keys=keys, dtype=dtype, mask=shape, kind=kind):
                    self.agrees(q, k, v, self.mask(shape, kind))

    def test_long_lengths_and_grouped_heads(self):
        for dtype in (torch.float32, torch.bfloat16):
            q, k, v = self.tensors(1, 4, 267, 514, 16, dtype, heads_kv=2)
            for shape in ((267, 514), (1, 1, 1, 514), (4, 1, 514), (1, 4, 267, 514)):
                for kind in (torch.bool, dtype):
                    with self.subTest(shape=shape, dtype=dtype, kind=kind):
                        self.agrees(q, k, v, self.mask(shape, kind), enable_gqa=True)

    def test_layouts_of_masks_and_inputs(self):
        q, k, v = self.tensors(2, 3, 19, 19, 8, torch.float32, packed=True)
        for kind in (torch.bool, torch.float32):
            whole = self.mask((2, 3, 19, 40), kind)
            for name, mask in {"a transpose": self.mask((19, 19), kind).T, "every second key": whole[..., ::2][..., :19], "a part": whole[..., 5:24], "expanded": self.mask((2, 1, 1, 19), kind).expand(2, 3, 19, 19),
                               "expanded along keys": self.mask((19, 1), kind).expand(19, 19), "permuted": self.mask((19, 3, 2, 19), kind).permute(2, 1, 0, 3)}.items():  # fmt: skip
                with self.subTest(name, kind=kind):
                    self.agrees(q, k, v, mask)
        one_head = torch.randn(2, 19, 1, 8).transpose(1, 2)
        self.agrees(*(one_head.expand(2, 3, 19, 8) for _ in range(3)), self.mask((19, 19), torch.bool))

    def test_scales_and_uniform_rows(self):
        q, k, v = self.tensors(1, 2, 33, 65, 16, torch.float32)
        for scale in (1e-3, 1.0, 3.5, 1 / math.sqrt(33)):
            self.agrees(q, k, v, self.mask((33, 65), torch.bool), scale=scale)
        out = F.scaled_dot_product_attention(torch.zeros(1, 1, 1, 8), torch.zeros(1, 1, 4099, 8), torch.ones(1, 1, 4099, 8), attn_mask=torch.ones(1, 4099, dtype=torch.bool))
        torch.testing.assert_close(out, torch.ones(1, 1, 1, 8))

    def test_rows_without_keys(self):
        """0, as PyTorch's are; and 0 gradients of them."""
        for rows in ([0], [3], [0, 2, 4], [0, 1, 2, 3, 4]):
            for kind in (torch.bool, torch.float32):
                q, k, v = self.tensors(2, 2, 5, 5, 8, torch.float32)
                mask = torch.ones(2, 1, 5, 5, dtype=torch.bool)
                mask[:, :, rows] = False
                mask = mask if kind is torch.bool else torch.zeros(2, 1, 5, 5).masked_fill(~mask, -torch.inf)
                self.agrees(q, k, v, mask)
                self.assertTrue((F.scaled_dot_product_attention(q, k, v, attn_mask=mask)[:, :, rows] == 0).all())
                wanted = [x.detach().requires_grad_() for x in (q, k, v)]
                torch.ops.flashcore.attention(*wanted, attn_mask=mask).sum().backward()
                self.assertTrue((wanted[0].grad[:, :, rows] == 0).all())
                self.assertTrue(all(torch.isfinite(x.grad).all() for x in wanted))

    def test_gradients_through_the_drop_in(self):
        """PyTorch's, with the reason counted: flashcore has no backward pass for them yet."""
        for kind, wanted in itertools.product((torch.bool, torch.float32), (0, 1, 2, 3)):
            tensors = [*self.tensors(2, 3, 11, 17, 8, torch.float32), self.mask((2, 1, 11, 17), kind)]
            if wanted == 3 and kind is torch.bool:
                continue
            ours = [x.detach().clone().requires_grad_(at == wanted) for at, x in enumerate(tensors)]
            theirs = [x.detach().clone().requires_grad_(at == wanted) for at, x in enumerate(tensors)]
            out, computed, passed = counted(lambda: F.scaled_dot_product_attention(*ours))  # noqa: B023
            self.assertEqual(computed, 0)
            self.assertIn("gradient", " ".join(passed))
            out.square().sum().backward()
            definition(*theirs).square().sum().backward()
            torch.testing.assert_close(ours[wanted].grad, theirs[wanted].grad, atol=1e-4, rtol=1e-4)

    def test_causal_biases_that_are_classes(self):
        q, k, v = self.tensors(2, 3, 11, 17, 8, torch.float32)
        for bias in (causal_upper_left(11, 17), causal_lower_right(11, 17)):
            call = lambda bias=bias: F.scaled_dot_product_attention(q, k, v, attn_mask=bias)  # noqa: E731
            out, computed, passed = counted(call)
            self.assertEqual((computed, passed), (1, {}))
            torch.testing.assert_close(out.double(), definition(q, k, v, bias._materialize()), atol=1e-5, rtol=1e-5)
            compiled, computed, passed = counted(torch.compile(call, backend="eager", fullgraph=True))
            self.assertEqual((computed, passed), (1, {}))
            torch.testing.assert_close(compiled, out, atol=1e-5, rtol=1e-5)

    def test_causal_biases_that_go_to_pytorch(self):
        q, k, v = self.tensors(2, 3, 11, 17, 8, torch.float32)
        with self.assertRaisesRegex(ValueError, "causal"):
            F.scaled_dot_product_attention(q, k, v, causal_lower_right(11, 17), is_causal=True)
        for bias, options in ((causal_lower_right(11, 17), {"dropout_p": 1.0}), (causal_lower_right(11, 17), {"requires_grad": True}), (causal_upper_left(11, 17), {"dropout_p": 1.0})):
            given = q.clone().requires_grad_(options.pop("requires_grad", False))
            call = lambda given=given, bias=bias, options=options: F.scaled_dot_product_attention(given, k, v, bias, **options)  # noqa: E731
            out, computed, passed = counted(call)
            self.assertEqual((computed, sum(passed.values())), (0, 1), passed)
            compiled = torch.compile(call, backend="eager", fullgraph=True)()
            torch.testing.assert_close(compiled, out, atol=1e-5, rtol=1e-5)

    def test_a_causal_bias_that_is_an_argument_of_compiled_code(self):
        q, k, v = self.tensors(2, 3, 11, 17, 8, torch.float32)
        for bias in (causal_upper_left(11, 17), causal_lower_right(11, 17)):
            compiled = torch.compile(lambda *x: F.scaled_dot_product_attention(*x[:3], attn_mask=x[3]), backend="eager")(q, k, v, bias)
            torch.testing.assert_close(compiled, F.scaled_dot_product_attention(q, k, v, bias), atol=1e-5, rtol=1e-5)

    def test_a_class_made_from_causal_bias_says_itself_what_the_call_is(self):
        class Mine(CausalBias):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                return "mine" if func is F.scaled_dot_product_attention else super().__torch_function__(func, types, args, kwargs)

        q, k, v = self.tensors(2, 3, 11, 17, 8, torch.float32)
        for variant in CausalVariant:
            bias = Mine(variant, 11, 17)
            self.assertEqual(counted(lambda: F.scaled_dot_product_attention(q, k, v, bias))[:2], ("mine", 0))  # noqa: B023
            self.assertIn("Mine", ft.why_not(q, k, v, bias))

    def test_why_not_of_causal_biases(self):
        q, k, v = self.tensors(2, 3, 11, 17, 8, torch.float32)
        for bias, reason in ((causal_upper_left(11, 17), None), (causal_lower_right(11, 17), None), (causal_upper_left(3, 3), None),
                             (causal_lower_right(11, 16), "attn_mask is for 11 rows and 16 keys")):  # fmt: skip
            self.assertEqual(ft.why_not(q, k, v, bias), reason)
        self.assertIn("is_causal", ft.why_not(q, k, v, causal_lower_right(11, 17), is_causal=True))

    def test_a_multihead_attention_with_masks(self):
        layer = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
        x = torch.randn(3, 16, 16)
        padding = torch.arange(16) >= torch.tensor([[16], [9], [1]])
        square = torch.ones(16, 16, dtype=torch.bool).triu(1)
        torch.backends.mha.set_fastpath_enabled(False)
        self.addCleanup(torch.backends.mha.set_fastpath_enabled, True)
        for options in ({"attn_mask": square}, {"key_padding_mask": padding}, {"attn_mask": square, "key_padding_mask": padding},
                        {"attn_mask": torch.zeros(16, 16).masked_fill(square, -torch.inf)}, {"attn_mask": square.expand(12, 16, 16)}):  # fmt: skip
            with self.subTest(list(options)), torch.no_grad():
                (out, _), computed, passed = counted(lambda: layer(x, x, x, need_weights=False, **options))  # noqa: B023
                self.assertEqual((computed, passed), (1, {}))
                ft.disable()
                expected = layer(x, x, x, need_weights=False, **options)[0]
                ft.enable()
                torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)

    def test_what_is_refused(self):
        """By PyTorch's own errors, the same with flashcore as without."""
        q, k, v = self.tensors(2, 3, 11, 17, 8, torch.float32)
        for mask in (torch.ones(11, 17, dtype=torch.int64), torch.ones(11, 17, dtype=torch.float64), torch.ones(12, 17, dtype=torch.bool), torch.ones(2, 2, 11, 17), torch.ones(5, 2, 3, 11, 17),
                     torch.ones(11, 17).to_sparse(), "a mask"):  # fmt: skip
            with self.subTest(str(mask)[:20]):
                with self.assertRaises((RuntimeError, TypeError, NotImplementedError)) as theirs:
                    PYTORCH(q, k, v, mask)
                with self.assertRaises(type(theirs.exception)) as ours:
                    F.scaled_dot_product_attention(q, k, v, mask)
                self.assertEqual(str(ours.exception).splitlines()[0], str(theirs.exception).splitlines()[0])


if __name__ == "__main__":
    unittest.main()
