"""python -m flashcore.quantize_bench on the CPU: each way is judged and timed, and its file says of what; a wrong result is not timed."""

import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
try:
    import torch  # noqa: F401
except ImportError as error:
    print(f"{error}: skipped")
    sys.exit(77)

from flashcore import quantize, quantize_bench as bench  # noqa: E402

SMALL = ["--device", "cpu", "--rounds", "2", "--shapes", "b1_h4_hk2_s96_d64"]


class QuantizeBenchTest(unittest.TestCase):
    def run_bench(self, *more):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "made" / "quantize.json"
            status = bench.main([*SMALL, *more, "--json", str(path)])
            return status, json.loads(path.read_text())

    def test_every_way_is_timed_beside_a_copy(self):
        status, made = self.run_bench()
        self.assertEqual((status, made["schema"]), (0, "flashcore.quantize_bench/1"))
        self.assertEqual([row["way"] for row in made["rows"]], list(bench.WAYS))
        for row in made["rows"]:
            self.assertNotIn("left_out", row)
            self.assertEqual({len(x) for x in row["samples_us"].values()}, {2})
            self.assertGreater(row["gbps"]["flashcore"], 0)
            self.assertLess(0, row["error"])

    def test_bytes_are_counted_as_the_page_says(self):
        shape, elements = bench.shape_of("b1_h4_hk2_s96_d64"), 8 * 96 * 64
        of_k = 2 * 96 * 64
        count = lambda way: bench.moved_bytes(shape, 2, bench.WAYS[way])  # noqa: E731
        self.assertEqual(count("tensor"), 5 * elements)
        self.assertEqual(count("smooth_k"), 5 * elements + 2 * of_k)
        self.assertEqual(count("token"), 3 * elements + 2 * of_k)
        self.assertEqual(count("factors given"), 3 * elements)
        self.assertEqual(count("block"), count("tensor"))

    def test_a_wrong_result_is_not_timed(self):
        shifted = lambda x: torch.roll(x.view(torch.uint8), 1, 2).view(x.dtype)  # noqa: E731
        faults = {
            "descale_q": lambda made: made._replace(descale_q=made.descale_q * 1.2),
            "descale_k": lambda made: made._replace(descale_k=made.descale_k * 2),
            "descale_v": lambda made: made._replace(descale_v=made.descale_v * 2),
            "q": lambda made: made._replace(q=shifted(made.q)),
            "k": lambda made: made._replace(k=shifted(made.k)),
        }
        for name, fault in faults.items():
            with self.subTest(name), mock.patch.object(bench, "quantize", lambda *arrays, fault=fault, **options: fault(quantize(*arrays, **options))):
                status, made = self.run_bench("--ways", "tensor;head;token;block;e5m2;smooth_k;smooth_k, hadamard")
                self.assertEqual(status, 1)
                for row in made["rows"]:
                    self.assertEqual((row.get("left_out"), "us" in row), ("what was written is not what was read", False), row["way"])

    def test_what_is_refused(self):
        for arguments in (["--ways", "row"], ["--shapes", "b1_h3_hk2_s8_d8"], ["--shapes", "b1_h2"], ["--rounds", "0"]):
            with self.subTest(arguments), mock.patch("sys.stderr"), self.assertRaises(SystemExit) as ended:
                bench.main([*SMALL, *arguments])
            self.assertEqual(ended.exception.code, 2)


if __name__ == "__main__":
    unittest.main()
