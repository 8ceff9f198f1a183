"""flashcore.crosscheck with PyTorch, on the CPU: every way that there is gives the times of our launch."""

import os
import sys
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
from flashcore import crosscheck  # noqa: E402


class TorchCrosscheckTest(unittest.TestCase):
    def test_every_way_of_a_cpu_gives_enough_times(self):
        answer = crosscheck.measure("b1_h2_s64_d64_fp32_causal", "cpu", "cpu_fwd:block_m=48,block_n=64")
        methods = {m["method"]: m for m in answer["methods"]}
        for name in ("PyTorch's profiler", "torch.utils.benchmark"):
            self.assertGreaterEqual(len(methods[name]["times_us"]), 6, methods[name])
            self.assertTrue(all(t > 0 for t in methods[name]["times_us"]))
            # The range that the profiler records and Python's call take microseconds where nothing is computed.
            self.assertGreater(methods[name]["empty_us"], 0)
        for product in answer["matmuls"]:
            self.assertGreater(product["tflops"], 0, product)

    def test_another_problem_than_the_engine_s_is_not_timed(self):
        for problem in ("b1_h2_s64_d64_fp32_wl8", "b1_h2_s64_d64_fp32_softcap3", "b1_h2_s64_d64_fp32_scale0.5", "b1_h2_s64_d64_fp32_bshd"):
            with self.subTest(problem):
                answer = crosscheck.measure(problem, "cpu", None)
                self.assertEqual({tuple(sorted(m)) for m in answer["methods"]}, {("method", "why_not")}, answer)
                self.assertIn("are not made here", answer["methods"][0]["why_not"])

    def test_what_is_no_problem_or_candidate_is_an_error(self):
        self.assertEqual(crosscheck.main(["--problem", "nonsense", "--device", "cpu"]), 4)
        self.assertEqual(crosscheck.main(["--problem", "b1_h1_s8_d64_fp32", "--device", "cpu", "--candidate", "none_fwd"]), 4)


if __name__ == "__main__":
    unittest.main()
