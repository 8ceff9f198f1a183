"""Ctrl-C and SIGTERM in the middle of every long verb: it ends soon, not with 0, says so in its JSON, and leaves nobody behind.

The work in hand is a compiler that never returns, so that the signal always comes in the middle.
"""

import json
import os
import shutil
import signal
import unittest

from cli_attack import AttackTest, wait_for
from support import NO_ENVIRONMENT, NOT_JUDGED, SOURCE_DIR

EXPERIMENT = """
name: two_arms
hypothesis: Four warps are as fast as two.
mechanism: None.
refuted_by: A difference.
control: {name: two, candidate: "ref_fwd:num_warps=2"}
candidates:
  - {name: four, candidate: "ref_fwd:num_warps=4", predicted: [1.05, 2.0]}
problems: [b1_h1_s16_d64_fp16]
acceptance: {processes: 1, seconds: 0.2}
"""
EMULATOR = ["--device", "emulator"]


class InterruptionTest(AttackTest):
    def read_json(self, name="out.json"):
        with open(self.path(name), encoding="utf-8") as file:
            return json.load(file)

    def interrupt(self, good, *arguments, number=signal.SIGTERM):
        """Stops the verb while its compiler hangs; the exit code and the JSON."""
        shutil.rmtree(self.path("state"), ignore_errors=True)
        self.compiler("exec sleep 1000", good=good)
        process = self.start_flashcore(*arguments, "--json", "out.json")
        wait_for("the hanging compiler", self.pids)
        code = self.stop(process, number)
        self.assertLess(self.took, 30)
        self.assert_nobody_is_left(self.pids())
        return code, self.read_json()

    def test_check(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            shutil.rmtree(self.path("cache"), ignore_errors=True)
            code, document = self.interrupt(1, "check", *EMULATOR, "--suite", "two.yaml", "--family", "ref_fwd:num_warps=4", "--patterns", "normal",
                                            "--jobs", "1", number=number)  # fmt: skip
            self.assertEqual((code, document["interrupted"], document["passed"]), (NOT_JUDGED, True, 1), self.said)
            self.assertIn("stopped by", self.said)

    def test_check_fuzz(self):
        code, document = self.interrupt(1, "check", *EMULATOR, "--fuzz", "20", "--family", "ref_fwd", "--jobs", "1")
        self.assertEqual((code, document["interrupted"]), (NOT_JUDGED, True), self.said)

    def test_check_planted(self):
        code, document = self.interrupt(1, "check", *EMULATOR, "--planted")
        self.assertIn(code, (NOT_JUDGED, 1), self.said)  # a fault may be missed before, with half of a compiler
        self.assertTrue(document["interrupted"])

    def test_check_conformance(self):
        code, document = self.interrupt(0, "check", *EMULATOR, "--conformance")
        self.assertEqual((code, document["interrupted"]), (NOT_JUDGED, True), self.said)

    def test_bench(self):
        code, document = self.interrupt(1, "bench", *EMULATOR, "--suite", "two.yaml", "--family", "ref_fwd:num_warps=4", "--store", "t.db")
        self.assertEqual((code, document["interrupted"]), (NOT_JUDGED, True), self.said)
        self.assertEqual([r["ended"] for r in document["results"]], ["passed"])

    def test_experiment_check(self):
        self.write("e.yaml", EXPERIMENT)
        code, document = self.interrupt(1, "experiment", "check", "e.yaml", *EMULATOR)
        self.assertEqual((code, document["interrupted"]), (NOT_JUDGED, True), self.said)

    def test_a_signal_before_main_is_not_lost(self):
        """Pending when the program starts, and delivered as soon as it lets signals through: its first line."""

        def hold_one():
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            os.kill(os.getpid(), signal.SIGTERM)

        for verb in (["check", "--device", "cpu", "--suite", "quick"], ["bench", "--device", "cpu", "--suite", "quick", "--store", "t.db"]):
            process = self.run_flashcore(*verb, "--json", "out.json", preexec_fn=hold_one)
            self.assertEqual((process.returncode, self.read_json()["interrupted"]), (NOT_JUDGED, True), process.stderr)
        # A verb that asks nobody ends as programs do.
        process = self.run_flashcore("leaderboard", "--store", "t.db", preexec_fn=hold_one)
        self.assertEqual(process.returncode, -signal.SIGTERM, process.stderr)

    def test_a_hangup_leaves_no_folders(self):
        os.makedirs(self.path("tmp"), exist_ok=True)
        self.environment["TMPDIR"] = self.path("tmp")
        code, document = self.interrupt(1, "check", *EMULATOR, "--suite", "two.yaml", "--family", "ref_fwd:num_warps=4", "--patterns", "normal",
                                        "--jobs", "1", number=signal.SIGHUP)  # fmt: skip
        self.assertEqual((code, document["interrupted"]), (NOT_JUDGED, True), self.said)
        self.assertEqual(os.listdir(self.path("tmp")), [])

    def test_what_is_done_is_not_called_interrupted(self):
        self.compiler("exit 1", good=100)
        process = self.run_flashcore("check", *EMULATOR, "--suite", "two.yaml", "--family", "ref_fwd:num_warps=4", "--patterns", "normal", "--json", "out.json")
        self.assertEqual(process.returncode, 0, process.stdout)
        self.assertFalse(self.read_json()["interrupted"])

    def stop_after_a_line(self, *arguments, lines=1, number=signal.SIGTERM):
        process = self.start_flashcore(*arguments, "--json", "out.json")
        for _ in range(lines):
            if not process.stdout.readline():
                break
        code = self.stop(process, number)
        self.assertLess(self.took, 60)
        return code

    def test_compile_and_warmup(self):
        if self.run_flashcore("compile", "--family", "ref_fwd", "--arch", "sm_90", "--problem", "b1_h1_s16_d64_fp16").returncode == NO_ENVIRONMENT:
            self.skipTest("there is no NVRTC here")
        code = self.stop_after_a_line("compile", "--all", "--all-configs", "200", "--cold", lines=2)
        self.assertEqual((code, self.read_json()["interrupted"]), (NOT_JUDGED, True), self.said)
        self.assertLess(len(self.read_json()["results"]), 1000)
        code = self.stop_after_a_line("warmup", "--arch", "sm_90", "--suite", "canonical", "--all-choices")
        self.assertEqual((code, self.read_json()["interrupted"]), (NOT_JUDGED, True), self.said)

    def test_ab_and_gate_and_doctor(self):
        problem = ["--device", "cpu", "--problem", "b1_h1_s64_d64_fp32"]
        code = self.stop_after_a_line("ab", "cpu_fwd", "cpu_fwd:block_n=128", *problem, "--seconds", "600", "--store", "t.db")
        self.assertEqual((code, self.read_json()["interrupted"]), (NOT_JUDGED, True), self.said)
        code = self.stop_after_a_line("ab", "--calibrate", "--repeats", "10000", *problem, "--store", "t.db")
        self.assertEqual((code, self.read_json()["interrupted"]), (NOT_JUDGED, True), self.said)
        code = self.stop_after_a_line("doctor", "--device", "cpu")
        self.assertEqual((code, self.read_json()["interrupted"]), (NOT_JUDGED, True), self.said)
        self.expect(0, "gate", "--device", "cpu", "--write-baseline", "b.json", "--problem", "b1_h1_s64_d64_fp32", "--seconds", "0.2", "--processes", "2")
        with open(self.path("b.json"), encoding="utf-8") as file:
            baseline = json.load(file)
        baseline["results"] *= 500
        self.write("b.json", json.dumps(baseline))
        code = self.stop_after_a_line("gate", "--device", "cpu", "--baseline", "b.json", "--seconds", "0.2", "--processes", "2", "--junit", "gate.xml")
        self.assertIn(code, (1, NOT_JUDGED), self.said)  # a busy machine may call one row slower
        self.assertTrue(self.read_json()["interrupted"])
        self.assertLess(len(self.read_json()["results"]), 500)
        self.assertTrue(os.path.getsize(self.path("gate.xml")) > 0)


if __name__ == "__main__":
    if shutil.which("c++") is None:
        print("skipped: needs a C++ compiler")
        raise SystemExit(77)
    assert os.path.isdir(SOURCE_DIR)
    unittest.main()
