"""flashcore.overhead: its figures say what they are."""

import os
import sys
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
from flashcore import overhead  # noqa: E402


class OverheadTest(unittest.TestCase):
    def test_overhead_says_what_its_figures_are(self):
        self.assertIn("the computation of b1_h1_s8_d16_fp32 included", overhead.what_is_measured("cpu", "cpu", "b1_h1_s8_d16_fp32", 5))
        self.assertIn("the device is not waited for", overhead.what_is_measured("cuda:0", "GPU", "b1_h8_s512_d64_fp16", 5))


if __name__ == "__main__":
    unittest.main()
