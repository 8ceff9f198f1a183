"""flashcore as a provider of torch.nn.attention: the calls that it then gets, their gradients, and what it hands back."""

import itertools
import sys
import unittest
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

sys.path.insert(0, str(Path(__file__).resolve().parent))
from torch_support import PYTORCH, Quiet, counted, inputs  # noqa: E402

REGISTRY = torch.nn.attention


@unittest.skipUnless(hasattr(REGISTRY, "activate_flash_attention_impl") and hasattr(torch.library, "get_kernel"), "this PyTorch has no registry")
class ProviderTest(Quiet):
    def setUp(self):
        super().setUp()
        self.addCleanup(lambda: REGISTRY.current_flash_attention_impl() and REGISTRY.restore_flash_attention_impl())

    def test_it_is_offered_and_does_nothing_before_it_is_asked_to(self):
        self.assertIn("flashcore", REGISTRY.list_flash_attention_impls())
        self.assertIsNone(REGISTRY.current_flash_attention_impl())
        _, computed, passed = counted(lambda: PYTORCH(*inputs()))
        self.assertEqual((computed, passed), (0, {}))

    def test_calls_and_gradients(self):
        for shape in ((2, 4, 9, 16), (1, 2, 130, 64)):
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                for options in ({}, {"is_causal": True}, {"scale": 0.3}):
                    with self.subTest(shape=shape, dtype=dtype, **options):
                        tensors = [[x.requires_grad_() for x in inputs(*shape, dtype=dtype)] for _ in range(2)]
                        expected = PYTORCH(*tensors[0], **options)
                        REGISTRY.activate_flash_attention_impl("flashcore")
                        out, computed, passed = counted(lambda: PYTORCH(*tensors[1], **options))  # noqa: B023
                        self.assertEqual((computed, passed), (1, {}))
                        self.assertEqual((out.stride(), out.dtype), (expected.stride(), dtype))
                        REGISTRY.restore_flash_attention_impl()
                        tolerance = {"atol": 1e-5, "rtol": 1e-5} if dtype is torch.float32 else {"atol": 3e-2, "rtol": 3e-2}
                        torch.testing.assert_close(out, expected, **tolerance)
                        weights = torch.randn_like(out)
                        for ours, theirs in zip(torch.autograd.grad(out, tensors[1], weights), torch.autograd.grad(expected, tensors[0], weights)):
                            torch.testing.assert_close(ours, theirs, **tolerance)

    def test_calls_from_within_pytorch(self):
        """A fused encoder layer calls the attention from C++, where enable() has no hold."""
        torch.manual_seed(2)
        layer = torch.nn.MultiheadAttention(32, 2, batch_first=True)
        x = torch.randn(2, 5, 32)
        expected = layer(x, x, x, need_weights=False)[0]
        REGISTRY.activate_flash_attention_impl("flashcore")
        (out, _), computed, _ = counted(lambda: layer(x, x, x, need_weights=False))
        self.assertEqual(computed, 1)
        torch.testing.assert_close(out, expected)
        compiled, computed, _ = counted(lambda: torch.compile(F.scaled_dot_product_attention, backend="aot_eager", fullgraph=True)(*inputs()))
        self.assertEqual(computed, 1)
        torch.testing.assert_close(compiled, PYTORCH(*inputs()))

    def test_what_it_does_not_compute_is_pytorchs(self):
        q, k, v = inputs()
        mask = torch.rand(9, 9) < 0.8
        expected = PYTORCH(q, k, v, mask), PYTORCH(q.double(), k.double(), v.double())
        REGISTRY.activate_flash_attention_impl("flashcore")
        for wanted, call, why in ((expected[0], lambda: PYTORCH(q, k, v, mask), "attn_mask"), (expected[1], lambda: PYTORCH(q.double(), k.double(), v.double()), "float64")):
            out, computed, passed = counted(call)
            self.assertEqual(computed, 0)
            self.assertIn(why, " ".join(passed))
            torch.testing.assert_close(out, wanted)

    def test_it_goes_as_it_came(self):
        REGISTRY.activate_flash_attention_impl("flashcore")
        REGISTRY.activate_flash_attention_impl("flashcore")
        self.assertEqual(REGISTRY.current_flash_attention_impl(), "flashcore")
        REGISTRY.restore_flash_attention_impl()
        self.assertEqual(counted(lambda: PYTORCH(*inputs()))[1], 0)

    @unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")
    def test_calls_and_gradients_on_a_gpu(self):
        """PyTorch's backward takes the output and the log-sum-exp that are found here."""
        def given(dtype, keys, heads_kv=4):
            generator = torch.Generator("cuda").manual_seed(1)
            shapes = ((2, 4, 130, 72), (2, heads_kv, keys, 72), (2, heads_kv, keys, 72))
            return [torch.randn(shape, device="cuda", dtype=dtype, generator=generator).requires_grad_() for shape in shapes]

        cases = [({}, 130, 4), ({"is_causal": True}, 130, 4), ({"scale": 0.3}, 257, 4), ({"enable_gqa": True}, 130, 2), ({"attn_mask": causal_lower_right(130, 257)}, 257, 4)]
        for dtype, (options, keys, heads_kv) in itertools.product((torch.float16, torch.bfloat16), cases):
            with self.subTest(dtype=dtype, **options), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                call = lambda tensors: PYTORCH(*tensors, **options)  # noqa: E731, B023
                theirs, ours = given(dtype, keys, heads_kv), given(dtype, keys, heads_kv)
                expected = call(theirs)
                REGISTRY.activate_flash_attention_impl("flashcore")
                out, computed, passed = counted(lambda: call(ours))  # noqa: B023
                self.assertEqual((computed, passed), (1, {}))
                REGISTRY.restore_flash_attention_impl()
                self.assertEqual((out.stride(), out.dtype), (expected.stride(), dtype))
                torch.testing.assert_close(out, expected, atol=2e-2, rtol=2e-2)
                weights = torch.randn_like(out)
                for mine, other in zip(torch.autograd.grad(out, ours, weights), torch.autograd.grad(expected, theirs, weights)):
                    torch.testing.assert_close(mine, other, atol=3e-2, rtol=3e-2)

    @unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")
    def test_compiled_and_captured_on_a_gpu(self):
        q, k, v = (torch.randn(2, 4, 200, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        expected = PYTORCH(q, k, v, is_causal=True)
        REGISTRY.activate_flash_attention_impl("flashcore")
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            compiled, computed, _ = counted(lambda: torch.compile(F.scaled_dot_product_attention, fullgraph=True)(q, k, v, is_causal=True))
            self.assertEqual(computed, 1)
            torch.testing.assert_close(compiled, expected, atol=2e-2, rtol=2e-2)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = PYTORCH(q, k, v, is_causal=True)
            q.neg_()
            graph.replay()
            torch.testing.assert_close(out, PYTORCH(q, k, v, is_causal=True))
            dropped, computed, passed = counted(lambda: PYTORCH(q, k, v, dropout_p=0.5))
            self.assertEqual((computed, len(passed), dropped.shape), (0, 1, q.shape))


if __name__ == "__main__":
    unittest.main()
