"""What 8 bits cost from end to end: the program's numbers, its gates, and what it refuses."""

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2])) / "python"))
from flashcore import block_mask_bench, cache_error, decode_sweep, fp8_error, model, overhead, quantize_bench  # noqa: E402

SMALL = ["--rows", "48", "--keys", "384", "--head-dim", "64"]


def run(*arguments):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code = fp8_error.main([*SMALL, *arguments])
        except SystemExit as stopped:
            code = stopped.code
    return code, out.getvalue()


class HelpTest(unittest.TestCase):
    def test_each_option_of_a_measuring_program_is_explained(self):
        for program in (block_mask_bench, cache_error, decode_sweep, fp8_error, model, overhead, quantize_bench):
            out = io.StringIO()
            with self.subTest(program=program.__name__), contextlib.redirect_stdout(out), self.assertRaises(SystemExit):
                program.main(["--help"])
            options = {block.split()[0]: " ".join(block.split()) for block in out.getvalue().split("\n  --")[1:]}
            self.assertEqual([name for name, told in options.items() if len(told.split()) < 3], [])


class Fp8ErrorTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        try:
            import ml_dtypes  # noqa: F401
            import numpy  # noqa: F401
        except ImportError as error:
            raise unittest.SkipTest(f"{error}; scripts/install-packages --tests brings it") from None

    def test_every_kind_of_data_within_the_gates(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "errors.json"
            code, text = run("--json", str(path))
            found = json.loads(path.read_text())
        self.assertEqual((code, found["failed"]), (0, []), text)
        errors = {(line["data"], line["way"]): line for line in found["lines"]}
        self.assertEqual(len(errors), len(fp8_error.DATA) * (len(fp8_error.WAYS) + len(fp8_error.CACHES)))
        of = lambda data, way: errors[data, way]["end_to_end"]  # noqa: E731
        self.assertLess(of("shifted", "tensor, smooth_k"), 0.5 * of("shifted", "tensor"))
        self.assertLess(of("far_key", "token"), 0.1 * of("far_key", "tensor"))
        self.assertGreater(of("far_key", "tensor, hadamard"), 1, "as docs/fp8.md says")
        self.assertLess(of("normal", "cache int8, token"), of("normal", "cache e4m3, token"))
        for name, line in errors.items():
            self.assertLess(line["kernel"], 0.01, name)  # beside fp64 on the codes, whatever quantising costs

    def test_the_gates_can_fail(self):
        code, text = run("--data", "normal", "--slack", "0.5")
        self.assertEqual(code, 1)
        self.assertIn("FAILED normal: tensor has", text)
        code, text = run("--data", "far_key", "--most-of-plain", "0.01", "--slack-of-others", "0.5")
        self.assertEqual(code, 1)
        self.assertIn("FAILED far_key: the best way, ", text)

    def test_what_is_refused(self):
        for arguments, words in ((["--data", "odd"], "use some of normal,shifted"), (["--keys", "3"], "--keys is 3: at least 16"), (["--head-dim", "24"], "at least 32")):
            code, text = run(*arguments)
            self.assertEqual(code, 2)
            self.assertIn(words, text)


if __name__ == "__main__":
    unittest.main()
