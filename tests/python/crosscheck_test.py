"""flashcore.crosscheck without PyTorch: what is absent is named, and others' documents are read as they are."""

import os
import sys
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
from flashcore import crosscheck  # noqa: E402


def nvbench_state(*means):
    return {"summaries": [{"tag": "nv/cold/time/gpu/mean", "data": [{"name": "value", "type": "float64", "value": str(m)}]} for m in means]}


class CrosscheckTest(unittest.TestCase):
    def test_without_pytorch_every_way_is_named_with_why(self):
        with mock.patch.dict(sys.modules, {"torch": None}):
            answer = crosscheck.measure("b1_h1_s64_d64_fp32", "cpu", None)
        self.assertEqual({m["method"] for m in answer["methods"]}, set(crosscheck.METHODS))
        for reading in [*answer["methods"], *answer["matmuls"]]:
            self.assertIn("PyTorch does not import", reading["why_not"])
            self.assertNotIn("times_us", reading)

    def test_a_gpus_tools_say_that_a_cpu_has_none(self):
        launch = mock.Mock(on_gpu=False)
        for method in (crosscheck.by_do_bench, crosscheck.by_nvbench):
            self.assertIn("on a GPU only", method(launch)["why_not"])

    def test_nvbenchs_means_are_read_in_microseconds(self):
        found = crosscheck.read_nvbench({"benchmarks": [{"states": [nvbench_state(1.5e-5), nvbench_state(2e-5)]}]}, "1")
        self.assertEqual([round(t, 6) for t in found["times_us"]], [15, 20])
        self.assertTrue(found["cold"])
        for document in ({"benchmarks": []}, {"benchmarks": [{"states": [{"summaries": None}]}]}, {"benchmarks": [{"states": [{"summaries": [{"tag": "other", "data": []}]}]}]}):
            self.assertIn("no mean", crosscheck.read_nvbench(document, "1")["why_not"])


if __name__ == "__main__":
    unittest.main()
