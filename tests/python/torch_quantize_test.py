"""flashcore.quantize of PyTorch tensors: the numbers of its definition in PyTorch operations, and NumPy's."""

import os
import sys
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path[:0] = [str(ROOT / "python"), str(Path(__file__).resolve().parent)]
import flashcore  # noqa: E402

try:
    import torch
except ImportError as error:
    print(f"{error}; scripts/install-packages --torch brings it")
    sys.exit(77)

import quantize_reference  # noqa: E402

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
OPTIONS = ({}, {"scaling": "head", "dtype": "e5m2"}, {"scaling": "token", "smooth_k": True, "layout": "bshd"},
           {"smooth_k": True, "hadamard": True}, {"v_layout": "dn", "scaling": "head"},
           {"smooth_k": True, "v_layout": "dn", "layout": "bshd"})  # fmt: skip


class TorchQuantizeTest(unittest.TestCase):
    def arrays(self, dtype, device, layout="bhsd"):
        torch.manual_seed(3)
        made = [torch.randn(2, heads, rows, 64) for heads, rows in ((4, 33), (2, 75), (2, 75))]
        made[1] += torch.randn(64) * 5
        made = [x.to(device, dtype) for x in made]
        return [x.transpose(1, 2) for x in made] if layout == "bshd" else made

    def test_the_same_as_by_the_definition(self):
        for device in DEVICES:
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                for options in OPTIONS:
                    with self.subTest(f"{device} {dtype} {options}"):
                        arrays = self.arrays(dtype, device, options.get("layout", "bhsd"))
                        made, wanted = flashcore.quantize(*arrays, **options), quantize_reference.quantize(*arrays, **options)
                        for got, right in zip(made.arrays, wanted.arrays):
                            self.assertEqual((got.shape, got.dtype, got.device, got.stride()), (right.shape, right.dtype, right.device, right.stride()))
                            # On a GPU PyTorch multiplies by the reciprocal of a scalar: its factors may be an ulp away, and codes a step.
                            codes = (got.view(torch.uint8).to(torch.int16) - right.view(torch.uint8).to(torch.int16)).abs()
                            self.assertLessEqual(int(codes.max()), 0 if device == "cpu" and not options.get("smooth_k") else 1)
                            self.assertLessEqual(float((codes > 0).float().mean()), 1e-3)
                        for got, right in zip(made.descales.values(), wanted.descales.values()):
                            torch.testing.assert_close(got, right, rtol=2.0**-22, atol=0)
                        if wanted.k_mean is not None:
                            torch.testing.assert_close(made.k_mean, wanted.k_mean, rtol=2.0**-22, atol=0)

    def test_gradients_are_left_out(self):
        arrays = [x.requires_grad_() for x in self.arrays(torch.float32, "cpu")]
        made = flashcore.quantize(*arrays)
        self.assertFalse(made.descale_q.requires_grad)

    def test_attention_takes_what_it_makes(self):
        for device in DEVICES:
            arrays = self.arrays(torch.bfloat16, device)
            made = flashcore.quantize(*arrays, scaling="head", smooth_k=True, v_layout="dn")
            o = flashcore.attention(*made.arrays, **made.descales, v_layout="dn").float()
            right = torch.nn.functional.scaled_dot_product_attention(*(x.float() for x in arrays), enable_gqa=True)
            self.assertLess(float((o - right).norm() / right.norm()), 0.08)
            for layout in ("bhsd", "bshd"):
                turned = [x.transpose(1, 2) for x in arrays] if layout == "bshd" else arrays
                made = flashcore.quantize(*turned, scaling="token", smooth_k=True, layout=layout)
                o = flashcore.attention(*made.arrays, **made.descales, layout=layout).float()
                o = o.transpose(1, 2) if layout == "bshd" else o
                self.assertLess(float((o - right).norm() / right.norm()), 0.08)

    @unittest.skipUnless(torch.cuda.is_available(), "no GPU here")
    def test_a_graph_captures_it(self):
        arrays = self.arrays(torch.float16, "cuda")
        options = {"smooth_k": True, "hadamard": True, "v_layout": "dn"}
        flashcore.quantize(*arrays, **options)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = flashcore.quantize(*arrays, **options)
        for x in arrays:
            x.mul_(3)
        graph.replay()
        for got, right in zip(made, flashcore.quantize(*arrays, **options)):
            self.assertTrue(torch.equal(got.view(torch.uint8), right.view(torch.uint8)))

    def test_frameworks_do_not_mix(self):
        q, k, v = self.arrays(torch.float32, "cpu")
        with self.assertRaisesRegex(flashcore.Error, "q is fp32 on cpu of torch and k is fp32 on cpu of numpy; all three must agree"):
            flashcore.quantize(q, k.numpy(), v)


if __name__ == "__main__":
    unittest.main()
