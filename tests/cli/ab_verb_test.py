"""flashcore ab and gate: messages, exit codes, JSON and JUnit. What the verdicts rest on is tested below the command line, on
a simulated device; here no test depends on how quiet the machine is."""

import json
import os
import unittest
import xml.etree.ElementTree as ElementTree

from support import BAD_USAGE, DONE, FAILED, NOT_JUDGED, CliTest, interrupt

PROBLEM = "b1_h1_s64_d64_fp32"
ON_CPU = ["--device", "cpu", "--problem", PROBLEM]
ONE_THREAD = ["--family", "cpu_fwd", "--config", "threads=1"]  # less at the mercy of who else uses the machine
VERDICTS = {"FASTER": DONE, "SAME": DONE, "SLOWER": FAILED, "INCONCLUSIVE": NOT_JUDGED}


class AbTest(CliTest):
    def calibration(self, alarms):
        os.makedirs(self.path(".flashcore"), exist_ok=True)
        key = json.loads(self.expect(DONE, "bench", *ON_CPU, "--json", "-", "--quiet").stdout)["results"][0]["device"]["key"]
        entry = {"device": key, "problem": "p", "candidate": "c", "created_at": "now", "regime": "graph", "condition": "burst", "repeats": 100, "alarms": alarms, "alpha": 0.05}
        self.write(".flashcore/calibration.json", json.dumps({"schema": "flashcore.calibration/1", "calibrations": [entry]}))

    def test_the_same_candidate_is_same_by_construction(self):
        result = self.expect(DONE, "ab", "cpu_fwd", "cpu_fwd", *ON_CPU, "--json", self.path("ab.json"))
        self.assertIn("SAME", result.stdout)
        self.assertIn("by construction", result.stdout)
        with open(self.path("ab.json"), encoding="utf-8") as file:
            document = json.load(file)
        self.assertEqual(document["schema"], "flashcore.ab/1")
        self.assertTrue(document["results"][0]["same_code"])

    def test_every_verdict_has_its_exit_code_and_its_evidence(self):
        result = self.run_flashcore("ab", "cpu_fwd:block_n=256", "cpu_fwd:block_n=128", *ON_CPU, "--seconds", "1.5", "--json", "-", "--quiet")
        document = json.loads(result.stdout)["results"][0]
        verdict = document["verdict"]
        self.assertEqual(result.returncode, VERDICTS[verdict], document["sentence"])
        self.assertIn({"FASTER": "is faster", "SLOWER": "is slower", "SAME": "the same", "INCONCLUSIVE": "may or may not"}[verdict], document["sentence"])
        self.assertEqual(len(document["processes"]), 3)
        low, high = document["ci95"]
        self.assertLessEqual(low, document["speedup"])
        self.assertGreaterEqual(high, document["speedup"])
        self.assertGreater(document["detectable"], 0)
        for process in document["processes"]:
            blocks = len(process["log_ratios"])
            self.assertEqual(len(process["candidate"]["samples_us"]), 2 * blocks)
            self.assertEqual(len(process["baseline"]["powers_w"]), 2 * blocks)

    def test_what_cannot_be_is_refused_before_anything_runs(self):
        self.expect_error(BAD_USAGE, ["two", "baseline"], "ab", "cpu_fwd", *ON_CPU)
        self.expect_error(BAD_USAGE, ["two"], "ab", *ON_CPU)
        self.expect_error(BAD_USAGE, ["no_fwd", "cpu_fwd"], "ab", "cpu_fwd", "no_fwd", *ON_CPU)
        self.expect_error(BAD_USAGE, ["blok_m"], "ab", "cpu_fwd", "cpu_fwd:blok_m=3", *ON_CPU)
        self.expect_error(BAD_USAGE, ["emulated", "no time"], "ab", "sm80_fwd", "sm80_fwd", "--device", "emulator", "--problem", "b1_h1_s64_d64_fp16")
        self.expect_error(BAD_USAGE, ["--margin", "3%"], "ab", "cpu_fwd", "cpu_fwd", *ON_CPU, "--margin", "lots")
        self.expect_error(BAD_USAGE, ["--margin"], "ab", "cpu_fwd", "cpu_fwd", *ON_CPU, "--margin", "0")
        self.expect_error(BAD_USAGE, ["itself"], "ab", "cpu_fwd", "cpu_fwd", "--calibrate", *ON_CPU)
        self.assertFalse(os.path.exists(self.path(".flashcore")), "nothing was made for a command that was refused")

    def test_false_alarms_beyond_twice_alpha_end_judging(self):
        self.calibration(alarms=11)
        result = self.expect(NOT_JUDGED, "ab", "cpu_fwd:block_n=256", "cpu_fwd:block_n=128", *ON_CPU)
        for word in ("NOT JUDGED", "11", "--calibrate"):
            self.assertIn(word, result.stdout)
        self.expect(DONE, "ab", "cpu_fwd", "cpu_fwd", *ON_CPU)
        self.calibration(alarms=10)
        result = self.run_flashcore("ab", "cpu_fwd:block_n=256", "cpu_fwd:block_n=128", *ON_CPU, "--seconds", "1", "--processes", "1")
        self.assertNotIn("NOT JUDGED", result.stdout)
        self.assertIn("not for publishing", result.stdout)

    def test_few_races_calibrate_nothing_and_lift_no_refusal(self):
        self.calibration(alarms=29)
        with open(self.path(".flashcore", "calibration.json"), encoding="utf-8") as file:
            before = file.read()
        result = self.expect(NOT_JUDGED, "ab", "--calibrate", "--repeats", "1", *ON_CPU, "--json", "run.json")
        for words in ("NOT JUDGED", "1 races are too few", "not kept", "--repeats 100", "load average"):
            self.assertIn(words, result.stdout)
        with open(self.path(".flashcore", "calibration.json"), encoding="utf-8") as file:
            self.assertEqual(file.read(), before)
        with open(self.path("run.json"), encoding="utf-8") as file:
            (part,) = json.load(file)["results"]
        self.assertEqual((part["repeats"], part["passed"]), (1, False))
        self.assertGreaterEqual(part["machine"]["cores"], 1, "how busy the machine was")
        self.assertIn("29", self.expect(NOT_JUDGED, "ab", "cpu_fwd:block_n=256", "cpu_fwd:block_n=128", *ON_CPU).stdout)

    def test_self_test_reports_every_part(self):
        result = self.expect(NOT_JUDGED, "ab", "--self-test", "--repeats", "2", "--device", "cpu", "--json", "self_test.json", "--quiet")
        self.assertEqual(result.stdout.count("NOT JUDGED"), 3)
        with open(self.path("self_test.json"), encoding="utf-8") as file:
            document = json.load(file)
        self.assertEqual(document["schema"], "flashcore.ab-self-test/1")
        self.assertEqual([r["planted"] for r in document["results"]], [0, 0.03, 0.005])
        self.assertEqual([r["repeats"] for r in document["results"]], [2, 1, 1])
        self.assertTrue(all("others_busy" in r["machine"] for r in document["results"]))
        self.assertEqual([document["passed"], *(r["passed"] for r in document["results"])], [False] * 4)
        # Too few races are no fault of the file; an edit is.
        told = self.expect(DONE, "verify", "self_test.json").stdout
        self.assertIn("it says itself that it did not pass", told)
        self.assertIn("1 fresh, which did not pass, 0 stale or wrong, 0 not confirmed", told)
        self.assertNotIn("no digest", told)
        document["created_at"] = "2026-11-26T09:48:27.891Z"
        self.write("edited.json", json.dumps(document))
        self.assertIn("its digest is of another one", self.expect(FAILED, "verify", "edited.json").stdout)


class GateTest(CliTest):
    def record(self):
        self.expect(DONE, "gate", *ON_CPU, *ONE_THREAD, "--write-baseline", self.path("baseline.json"), "--seconds", "0.5", "--processes", "2")
        with open(self.path("baseline.json"), encoding="utf-8") as file:
            return json.load(file)

    def suite_of(self, *problems):
        lines = ["  - {name: %s, num_heads: 1, seq_len: %d, seq_len_kv: 32, head_dim: %d, dtype: fp32}\n" % problem for problem in problems]
        return self.write("mixed.yaml", "name: mixed\nproblems:\n" + "".join(lines))

    def recorded(self):
        with open(self.path("baseline.json"), encoding="utf-8") as file:
            return [row["name"] for row in json.load(file)["results"]]

    def test_a_baseline_keeps_what_it_has_whatever_else_cannot_be_recorded(self):
        suite = self.suite_of(("runs", 16, 64), ("empty", 0, 64), ("wide", 8, 1000))
        command = ["gate", "--device", "cpu", "--suite", suite, "--write-baseline", self.path("baseline.json"), "--seconds", "0.2", "--processes", "1"]
        result = self.expect(DONE, *command)
        self.assertEqual(self.recorded(), ["runs"])
        for words in ("skipped empty: ", "skipped wide: no family runs", "1 of 3 problems recorded", ", 2 skipped"):
            self.assertIn(words, result.stdout)
        # With nothing to record the file stays as it was.
        self.expect_error(BAD_USAGE, ["no baseline of wide", "head_dim=1000"], *command, "--problem", "wide")
        self.expect_error(BAD_USAGE, ["head_dim=1000"], *command, "--problem", "wide", "--family", "cpu_fwd")
        self.assertEqual(self.recorded(), ["runs"])

    def test_an_interrupted_baseline_keeps_what_it_has(self):
        suite = self.suite_of(*[("p%d" % i, i, 64) for i in range(1, 101)])
        process = self.start_flashcore("gate", "--device", "cpu", "--suite", suite, "--write-baseline", self.path("baseline.json"),
                                       "--seconds", "0.5", "--processes", "1")  # fmt: skip
        self.assertIn("p1: ", process.stdout.readline())
        interrupt(process)
        self.assertEqual(process.wait(timeout=60), NOT_JUDGED)
        self.assertEqual(self.recorded()[0], "p1")
        self.assertLess(len(self.recorded()), 100)
        self.assertIn("stopped by Ctrl-C", process.stdout.read())

    def gate(self, code, document, *flags):
        self.write("baseline.json", json.dumps(document))
        return self.expect(code, "gate", "--device", "cpu", *ONE_THREAD, "--baseline", self.path("baseline.json"), "--seconds", "0.5", *flags)

    def test_unchanged_code_passes(self):
        result = self.gate(DONE, self.record(), "--junit", self.path("gate.xml"), "--json", self.path("gate.json"))
        self.assertIn("1 passed, 0 failed, 0 not judged", result.stdout)
        suite = ElementTree.parse(self.path("gate.xml")).getroot()
        self.assertEqual((suite.get("tests"), suite.get("failures"), suite.get("errors")), ("1", "0", "0"))
        with open(self.path("gate.json"), encoding="utf-8") as file:
            document = json.load(file)
        self.assertEqual(document["margin"], 0.02)
        self.assertEqual(document["results"][0]["verdict"], "SAME")
        self.assertTrue(document["results"][0]["same_code"], "the machine code is the baseline's")
        self.assertFalse(document["results"][0]["interleaved"], "so nothing was timed")
        self.assertIn("not timed", result.stdout)

    def test_a_baseline_says_how_busy_the_machine_was(self):
        document = self.record()
        machine = document["results"][0]["machine"]
        self.assertEqual(len(machine), 2, "one of each process")
        self.assertTrue(all(reading["cores"] >= 1 and len(reading["load_average"]) == 2 for reading in machine))
        words = "when the baseline was recorded the machine was busy: other programs kept up to 1.5 cores busy"
        for reading in machine:
            reading["others_busy"] = 0.0
        self.assertNotIn(words, self.gate(DONE, document).stdout)
        machine[1]["others_busy"] = 1.5
        self.assertIn(words, self.gate(DONE, document).stdout)

    def test_a_regression_against_a_recorded_time_ends_with_1(self):
        document = self.record()
        document["results"][0]["code_hash"] = "of other code"
        # So far off that no load on this machine can hide it: the interval is as wide as processes differ.
        document["results"][0]["time_us"]["p50"] /= 1e12
        document["results"][0]["process_p50_us"] = []
        result = self.gate(FAILED, document, "--quiet", "--junit", self.path("gate.xml"))
        self.assertIn("SLOWER", result.stdout)
        self.assertIn("not interleaved", result.stdout)
        failure = ElementTree.parse(self.path("gate.xml")).getroot().find("testcase/failure")
        self.assertEqual(failure.get("type"), "SLOWER")
        # And the sign: faster than recorded is no regression.
        document["results"][0]["time_us"]["p50"] *= 1e24
        self.assertIn("FASTER", self.gate(DONE, document).stdout)

    def test_what_was_not_judged_is_not_passed(self):
        document = self.record()
        document["results"][0]["device"]["key"] = "h200"
        result = self.gate(NOT_JUDGED, document)
        self.assertIn("h200", result.stdout)
        self.assertIn("0 passed, 0 failed, 1 not judged", result.stdout)
        result = self.gate(NOT_JUDGED, document, "--problem", "b1_h1_s32_d64_fp32")
        self.assertIn("nothing was judged", result.stdout)

    def test_bench_results_are_a_baseline_too(self):
        self.expect(DONE, "bench", *ON_CPU, *ONE_THREAD, "--json", self.path("baseline.json"))
        with open(self.path("baseline.json"), encoding="utf-8") as file:
            self.gate(DONE, json.load(file))

    def test_the_leaderboard_is_the_default(self):
        self.expect_error(BAD_USAGE, ["trials.db"], "gate", "--device", "cpu")
        self.expect(DONE, "tune", *ON_CPU, "--budget", "2", "--finalists", "1")
        # Dispatch may pick another candidate than the tuned one: then they are raced, and this machine decides.
        result = self.run_flashcore("gate", "--device", "cpu", "--seconds", "0.5", "--processes", "2", "--json", "-", "--quiet")
        verdict = json.loads(result.stdout)["results"][0]["verdict"]
        self.assertEqual(result.returncode, VERDICTS[verdict])

    def test_bad_files_and_flags(self):
        for text in ("{", "{}", '{"schema": "flashcore.bench/1", "results": []}'):
            self.write("bad.json", text)
            self.expect_error(BAD_USAGE, ["bad.json"], "gate", "--device", "cpu", "--baseline", self.path("bad.json"))
        self.expect_error(BAD_USAGE, ["--write-baseline"], "gate", *ON_CPU, "--write-baseline", self.path("b.json"), "--junit", self.path("j.xml"))


if __name__ == "__main__":
    unittest.main()
