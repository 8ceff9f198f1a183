"""scripts/peer-tests: what is missing is told before anything runs, and rules name tests and parameters that can occur."""
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "peer-tests"


def load_rules():
    spec = importlib.util.spec_from_file_location("rules", ROOT / "tests/peers/rules.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class PeerTests(unittest.TestCase):
    def run_script(self, *arguments):
        done = subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def test_missing_checkouts_are_told(self):
        code, text = self.run_script("--checkouts", "/nowhere/at/all")
        self.assertEqual(code, 3)
        self.assertIn("/nowhere/at/all is no folder; give one with checkouts", text)
        with tempfile.TemporaryDirectory() as folder:
            code, text = self.run_script("--checkouts", folder, "--suite", "flashinfer")
            self.assertEqual(code, 3)
            self.assertIn("check out flashinfer's repository into", text)
            code, text = self.run_script("--checkouts", folder)
            self.assertEqual(code, 3)
            self.assertIn("no test file to run", text)
            (pathlib.Path(folder) / "flash-attention" / "hopper").mkdir(parents=True)
            code, text = self.run_script("--checkouts", folder)
            self.assertEqual(code, 3)
            self.assertIn("has no test_flash_attn.py; its checkout is incomplete", text)

    def test_help_says_what_it_needs(self):
        code, text = self.run_script("--help")
        self.assertEqual(code, 0)
        for words in ("--checkouts", "--sample", "Exit codes"):
            self.assertIn(words, text)

    def test_a_file_is_named_as_pytest_imports_it(self):
        with tempfile.TemporaryDirectory() as folder:
            inner = pathlib.Path(folder) / "outer" / "inner"
            inner.mkdir(parents=True)
            name = load_rules().module_name
            self.assertEqual(name(inner / "test_it.py"), "test_it")
            (inner / "__init__.py").touch()
            self.assertEqual(name(inner / "test_it.py"), "inner.test_it")
            (inner.parent / "__init__.py").touch()
            self.assertEqual(name(inner / "test_it.py"), "outer.inner.test_it")

    def test_rules(self):
        rules, gpu, cpu = load_rules(), {"device": "cuda"}, {"device": "cpu"}
        for test, values, settings, reason in (
            ("f.py::test_flash_attn_output", {"has_qv": True}, gpu, None),
            ("f.py::test_any", {"pos_encoding_mode": "ALIBI", "causal": False}, gpu, None),
            ("f.py::test_any", {"pos_encoding_mode": "ALIBI", "logits_soft_cap": 0.0}, gpu, None),
            ("f.py::test_any", {"pos_encoding_mode": "ALIBI", "logits_soft_cap": 8.0}, gpu, rules.NO_CAPPED_ALIBI),
            ("f.py::test_with_custom_mask", {}, gpu, None),
            ("f.py::test_batch_nvfp4_x", {}, gpu, rules.NO_FP4),
            ("test_nvfp4.py::test_any", {}, gpu, None),
            ("f.py::test_any", {"head_dim": 512}, gpu, None),
            ("f.py::test_any", {"head_dim": 512}, cpu, rules.WIDE_ON_CPU),
            ("f.py::test_any", {"seq_len": 9999}, cpu, rules.LONG_ON_CPU),
        ):
            self.assertEqual(rules.why_left_out(test, values, settings), reason, (test, values))

    def test_only_named_refusals_are_skips(self):
        rules = load_rules()
        refused = type("Error", (Exception,), {"__module__": "flashcore._library"})
        self.assertEqual(rules.why_refused(refused("qv is given, and k_cache and v_cache are not columns of one tensor; kernels")), rules.NO_QV)
        self.assertIsNone(rules.why_refused(refused("q has shape (1, 2)")))
        self.assertIsNone(rules.why_refused(ValueError("qv is given")))
        self.assertIsNone(rules.why_refused(AssertionError("kv_cache_sf is given")))

    def test_no_bound_of_a_test_is_edited(self):
        for edits in load_rules().EDITS.values():
            for old, new, times in edits:
                for word in ("assert", "tol", "close"):
                    self.assertNotIn(word, old + new)
                self.assertGreater(times, 0)

    def test_groups_are_of_a_file(self):
        rules = load_rules()
        item = types.SimpleNamespace(path=pathlib.Path("a/test_x.py"), name="test_y[1-2]", originalname="test_y", cls=None)
        self.assertEqual(rules.group_of(item), "test_x.py::test_y")


if __name__ == "__main__":
    unittest.main()
