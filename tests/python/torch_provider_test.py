"""flashcore as a provider of torch.nn.attention: the calls that it then gets, their gradients, and what it hands back."""

import sys
import unittest
from pathlib import Path

import torch
import torch.nn.functional as F

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


if __name__ == "__main__":
    unittest.main()
