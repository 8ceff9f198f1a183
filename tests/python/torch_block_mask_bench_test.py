"""python -m flashcore.block_mask_bench on the CPU: both kinds of calls are timed on the same bits, and its file says of what."""

import contextlib
import io
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
    import torch
except ImportError as error:
    print(f"{error}: skipped")
    sys.exit(77)

from flashcore import block_mask_bench as bench  # noqa: E402

SMALL = {"documents": bench.Problem(2, 4, 2, 96, 64, document=20), "boolean": bench.Problem(1, 4, 2, 96, 64)}


@mock.patch.object(bench, "PROBLEMS", SMALL)
class BlockMaskBenchTest(unittest.TestCase):
    def run_bench(self, *more):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "made" / "block_mask.json"
            status = bench.main(["--device", "cpu", "--rounds", "2", "--problems", "documents,boolean", *more, "--json", str(path)])
            return status, json.loads(path.read_text())

    def test_both_kinds_of_calls_are_timed(self):
        status, made = self.run_bench()
        self.assertEqual((status, made["schema"]), (0, "flashcore.block_mask_bench/1"))
        self.assertEqual([row["name"] for row in made["rows"]], list(SMALL))
        for row in made["rows"]:
            self.assertEqual({party: len(x) for party, x in row["samples_us"].items()}, {"own lists": 2, "block mask": 2})

    def test_a_cpu_has_no_ratio(self):
        """It lists no blocks: both kinds of calls do the same."""
        with contextlib.redirect_stdout(io.StringIO()) as out:
            _, made = self.run_bench()
        self.assertEqual([row.get("speed_up") for row in made["rows"]], [None, None])
        self.assertEqual(out.getvalue().count("us, no ratio: a CPU lists no blocks\n"), 2, out.getvalue())
        with mock.patch.object(bench, "samples_on_gpu", lambda calls, counts, rounds, rng: {"own lists": [3.0] * rounds, "block mask": [2.0] * rounds}):
            row = bench.measure("documents", SMALL["documents"], torch.device("cpu"), 2, 1)  # as of a GPU
        self.assertEqual(row["speed_up"], 1.5)
        self.assertTrue(bench.line_of(row).endswith("x1.500"))

    def test_other_bits_are_not_timed(self):
        right = bench.attention
        with mock.patch.object(bench, "attention", lambda *x, block_mask=None, **more: right(*x, block_mask=block_mask, **more) * (1 if block_mask is None else 2)):
            status, made = self.run_bench()
        self.assertEqual(status, 1)
        self.assertEqual({row["left_out"] for row in made["rows"]}, {"a block mask changes bits of o"})

    def test_what_is_no_problem_is_named(self):
        with self.assertRaises(SystemExit), mock.patch("sys.stderr"):
            bench.main(["--problems", "zebra"])


if __name__ == "__main__":
    unittest.main()
