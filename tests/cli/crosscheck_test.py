"""`crosscheck` on the CPU, with and without other tools, and bad input."""

import json
import os
import sys
import time
import unittest

from support import BAD_USAGE, DONE, FAILED, NOT_JUDGED, SOURCE_DIR, CliTest, interrupt

PROBLEM = ["--device", "cpu", "--problem", "b1_h2_s128_d64_fp32"]


class CrosscheckTest(CliTest):
    def crosscheck(self, *more, codes=(DONE, FAILED, NOT_JUDGED)):
        result = self.run_flashcore("crosscheck", *PROBLEM, "--json", self.path("c.json"), *more)
        self.assertIn(result.returncode, codes, result.stderr)
        with open(self.path("c.json"), encoding="utf-8") as file:
            return json.load(file)["results"][0]

    def fake_python(self, methods, matmuls=()):
        """A program in the place of Python that answers this."""
        answer = json.dumps({"schema": "flashcore.crosscheck_tools/1", "methods": methods, "matmuls": list(matmuls)})
        path = self.write("fake-python", "#!%s\nimport sys\nopen(sys.argv[sys.argv.index('--json') + 1], 'w').write(%r)\n" % (sys.executable, answer))
        os.chmod(path, 0o755)
        self.environment["PATH"] = self.folder + os.pathsep + os.environ["PATH"]
        return ["--python", "fake-python"]

    def test_a_python_that_is_not_there(self):
        self.expect_error(BAD_USAGE, ["--python /nope/python", "No such file"], "crosscheck", *PROBLEM, "--python", "/nope/python")

    def test_the_ways_of_this_process_are_there_without_any_tool(self):
        row = self.crosscheck("--python", "no-such-python", "--limit", "90%", codes=(NOT_JUDGED, FAILED))
        if row["verdict"] != "disagrees":  # of a busy machine
            self.assertEqual(row["verdict"], "could not judge")
            self.assertEqual(row["why"], "no other tool is here")
        methods = {m["method"]: m for m in row["methods"]}
        for name in ("steady clock loop", "repetitions as Google Benchmark's"):
            self.assertEqual(len(methods[name]["time_us"]["samples"]), 24)
            self.assertGreater(methods[name]["ratio"]["estimate"], 0)
        for name in ("PyTorch's profiler", "torch.utils.benchmark"):
            self.assertEqual(methods[name]["agreement"], "could not judge")
            self.assertIn("not on PATH", methods[name]["cause"])
        self.assertEqual(row["ceilings"][0]["agreement"], "could not judge")

    def test_a_tool_that_was_ended_for_its_time_is_told_as_that(self):
        self.write("slow-python", "#!/bin/sh\nexec sleep 30\n")
        os.chmod(self.path("slow-python"), 0o755)
        row = self.crosscheck("--python", self.path("slow-python"), "--tool-time", "1s", "--limit", "90%", codes=(NOT_JUDGED, FAILED))
        if row["verdict"] != "disagrees":  # of a busy machine
            self.assertIn("no other tool gave a time: PyTorch's profiler, ", row["why"])
            self.assertIn("was still running after 1 s and was ended (--tool-time gives it longer)", row["why"])
        self.assertTrue(next(m for m in row["methods"] if m["method"] == "PyTorch's profiler")["out_of_time"])

    def test_ctrl_c_ends_the_tool_that_runs_and_keeps_the_rest(self):
        self.write("slow-python", "#!/bin/sh\ntouch ready\nexec sleep 100\n")
        os.chmod(self.path("slow-python"), 0o755)
        process = self.start_flashcore("crosscheck", *PROBLEM, "--json", self.path("c.json"), "--limit", "90%", "--python", self.path("slow-python"))
        self.wait_for_file("ready", process)
        start = time.monotonic()
        interrupt(process)
        self.assertIn(process.wait(timeout=60), (NOT_JUDGED, FAILED))  # failed: a loop that a busy machine held up
        self.assertLess(time.monotonic() - start, 10)
        with open(self.path("c.json"), encoding="utf-8") as file:
            document = json.load(file)
        self.assertTrue(document["interrupted"])
        methods = {m["method"]: m for m in document["results"][0]["methods"]}
        self.assertEqual(len(methods["steady clock loop"]["time_us"]["samples"]), 24)
        self.assertIn("was interrupted", methods["PyTorch's profiler"]["cause"])
        if document["results"][0]["verdict"] != "disagrees":  # of a busy machine
            self.assertIn("it was interrupted before", document["results"][0]["why"])

    def test_a_tool_that_disagrees_is_a_finding(self):
        row = self.crosscheck("--python", "true", "--limit", "90%", codes=(NOT_JUDGED, FAILED))
        self.assertIn("true -m flashcore.crosscheck ended well and wrote nothing; --python names a Python that imports flashcore", json.dumps(row))
        row = self.crosscheck(*self.fake_python([{"method": "liar", "times_us": [5e5] * 8}]), codes=(FAILED,))
        liar = next(m for m in row["methods"] if m["method"] == "liar")
        self.assertEqual(liar["agreement"], "disagrees")
        self.assertEqual(row["verdict"], "disagrees")

    def test_a_multiply_beyond_the_ceiling_is_a_finding(self):
        row = self.crosscheck(*self.fake_python([], [{"what": "impossible", "tflops": 1e6}]), codes=(FAILED,))
        self.assertEqual(row["ceilings"][0]["agreement"], "disagrees")
        self.assertIn("the ceiling is too low", row["ceilings"][0]["cause"])
        self.assertRegex(row["ceiling_is_of"], "multiply-adds of fp32 vectors.* neither .* has the tiles of cpu_fwd:")

    def test_the_packages_own_answer_is_read(self):
        self.environment["PYTHONPATH"] = os.path.join(SOURCE_DIR, "python")
        row = self.crosscheck("--python", sys.executable, "--limit", "90%")
        for method in row["methods"]:
            if method["agreement"] == "could not judge":
                self.assertTrue(method["cause"], method)
        self.assertNotIn("No module named flashcore", json.dumps(row))

    def test_what_of_a_suite_cannot_be_timed_is_skipped_and_said(self):
        suite = self.write("mixed.yaml", "name: mixed\nproblems:\n  - {name: runs, num_heads: 1, seq_len: 64, head_dim: 64, dtype: fp32}\n"
                           "  - {name: empty, num_heads: 1, seq_len: 0, seq_len_kv: 64, head_dim: 64, dtype: fp32}\n"
                           "  - {name: wide, num_heads: 1, seq_len: 8, head_dim: 1000, dtype: fp32}\n")
        result = self.run_flashcore("crosscheck", "--device", "cpu", "--suite", suite, "--rounds", "6", "--limit", "90%",
                                    "--python", "no-such-python", "--json", self.path("c.json"))
        self.assertIn(result.returncode, (NOT_JUDGED, FAILED), result.stderr)
        with open(self.path("c.json"), encoding="utf-8") as file:
            document = json.load(file)
        self.assertEqual([row["name"] for row in document["results"]], ["runs"])
        self.assertEqual([reason.partition(":")[0] for reason in document["skipped"]], ["empty", "wide"])
        self.assertIn("head_dim=1000", document["skipped"][1])
        self.assertIn("skipped wide: no family runs", result.stdout)
        self.assertIn(", 2 skipped", result.stdout)
        # One that was asked for, or a suite of which nothing runs, is a request that cannot be met.
        self.expect_error(BAD_USAGE, ["head_dim=1000"], "crosscheck", "--device", "cpu", "--suite", suite, "--problem", "wide")
        wide = self.write("wide.yaml", "name: wide\nproblems:\n  - {name: wide, num_heads: 1, seq_len: 8, head_dim: 1000, dtype: fp32}\n")
        self.expect_error(BAD_USAGE, ["nothing of wide can be timed", "head_dim=1000"], "crosscheck", "--device", "cpu", "--suite", wide)

    def test_bad_input(self):
        for limit in ("0", "2x", "nan", "200%", "-1%"):
            self.expect_error(BAD_USAGE, ["--limit"], "crosscheck", *PROBLEM, "--limit=" + limit)
        self.expect_error(BAD_USAGE, ["no time"], "crosscheck", "--device", "emulator", "--problem", "b1_h1_s17_d64_fp16")
        self.expect_error(BAD_USAGE, ["--tool-time"], "crosscheck", *PROBLEM, "--tool-time", "2")
        self.expect_error(BAD_USAGE, ["--rounds"], "crosscheck", *PROBLEM, "--rounds", "5")
        self.expect_error(BAD_USAGE, ["family"], "crosscheck", *PROBLEM, "--family", "none_fwd")


if __name__ == "__main__":
    unittest.main()
