"""scripts/summarise-tests: its last line counts what happened, and a test that did not run is never passed."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "summarise-tests"
PASSED = '<testcase name="a" status="run"><system-out>fine</system-out></testcase>'
FAILED = '<testcase name="b" status="fail"><failure message=""/><system-out>expected 1, got 2</system-out></testcase>'
GTEST_SKIP = ('<testcase name="c" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>'
              "<system-out>[ RUN      ] X.Y\nx_test.cpp:3: Skipped\nno GPU\n[  SKIPPED ] X.Y (0 ms)</system-out></testcase>")
EXIT_77 = '<testcase name="d" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/><system-out>skipped: no browser</system-out></testcase>'
MISSING = '<testcase name="e" status="notrun"><skipped message="Unable to find executable: x"/><system-out/></testcase>'
UNITTEST = ('<testcase name="f" status="run"><system-out>test_a (m.T.test_a) ... ok\ntest_b (m.T.test_b) ... skipped \'no disk\'\n'
            "Ran 2 tests in 0.1s\n\nOK (skipped=1)</system-out></testcase>")
UNITTEST_FAILED = ('<testcase name="g" status="fail"><failure message=""/><system-out>test_a (m.T.test_a) ... ok\n'
                   "Ran 4 tests in 0.1s\n\nFAILED (failures=1, errors=1)</system-out></testcase>")
UNITTEST_CUT_SHORT = '<testcase name="h" status="run"><system-out>test_a (m.T.test_a) ... ok\ntest_b (m.T.test_b) ... 2 timed</system-out></testcase>'


class SummariseTests(unittest.TestCase):
    def summarise(self, *cases, arguments=()):
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
            file.write("<testsuite>" + "".join(cases) + "</testsuite>")
            file.flush()
            done = subprocess.run([sys.executable, str(SCRIPT), file.name, *arguments], capture_output=True, text=True)
        return done.returncode, done.stdout, done.stdout.strip().splitlines()[-1]

    def test_counts_and_gives_reasons(self):
        code, text, last = self.summarise(PASSED, PASSED, GTEST_SKIP, EXIT_77)
        self.assertEqual((code, last), (0, "2 passed, 0 failed, 2 skipped"))
        self.assertIn("skipped c: no GPU", text)
        self.assertIn("skipped d: skipped: no browser", text)

    def test_a_failure_fails_and_shows_its_output(self):
        code, text, last = self.summarise(PASSED, FAILED)
        self.assertEqual((code, last), (1, "1 passed, 1 failed, 0 skipped"))
        self.assertIn("expected 1, got 2", text)

    def test_a_missing_program_is_a_failure(self):
        self.assertEqual(self.summarise(PASSED, MISSING)[::2], (1, "1 passed, 1 failed, 0 skipped"))

    def test_unittest_cases_count_one_by_one(self):
        code, text, last = self.summarise(UNITTEST, UNITTEST_FAILED)
        self.assertEqual((code, last), (1, "3 passed, 2 failed, 1 skipped"))
        self.assertIn("test_b (m.T.test_b): no disk", text)

    def test_a_file_that_ended_amid_its_cases_failed(self):
        code, text, last = self.summarise(PASSED, UNITTEST_CUT_SHORT)
        self.assertEqual((code, last), (1, "1 passed, 1 failed, 0 skipped"))
        self.assertIn("FAILED h", text)

    def test_nothing_run_or_only_skipped_is_not_a_pass(self):
        self.assertEqual(self.summarise()[::2], (1, "0 passed, 0 failed, 0 skipped"))
        self.assertEqual(self.summarise(EXIT_77)[::2], (1, "0 passed, 0 failed, 1 skipped"))

    def test_a_failure_that_only_ctest_knows_of_counts(self):
        self.assertEqual(self.summarise(PASSED, arguments=("--ctest-exit", "8"))[0], 1)


if __name__ == "__main__":
    unittest.main()
