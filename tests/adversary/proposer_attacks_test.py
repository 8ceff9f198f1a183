"""Proposers that die, flood, hang and lie: bad answers are rejected and recorded, and the tune goes on."""

import json
import os
import signal
import time
import unittest

from cli_attack import PATIENCE, AttackTest, wait_for
from support import BAD_USAGE, DONE

TUNE = ["tune", "--device", "cpu", "--problem", "b1_h2_s96_d64_fp32", "--family", "cpu_fwd", "--finalists", "1", "--strategy", "none",
        "--budget", "30", "--store", "t.db", "--json", "tune.json"]  # fmt: skip

# Reads the protocol; answers come from a file, one after each "propose".
PROPOSER = """
import json, sys
answers = open(%r, "rb").read().split(b"\\n")
for line in sys.stdin:
    event = json.loads(line)
    if event["event"] == "rejected":
        open(%r, "a").write(event["message"] + "\\n")
    if event["event"] == "propose":
        sys.stdout.buffer.write((answers.pop(0) if answers else b'{"done": true}') + b"\\n")
        sys.stdout.buffer.flush()
"""


class ProposerAttacksTest(AttackTest):
    def arm(self):
        with open(self.path("tune.json"), encoding="utf-8") as file:
            return json.load(file)["results"][0]["arms"][0]

    def tune_with(self, answers, code=DONE):
        with open(self.path("answers"), "wb") as file:
            file.write(b"\n".join(answers))
        self.write("proposer.py", PROPOSER % (self.path("answers"), self.path("told")))
        self.expect(code, *TUNE, "--proposer", "exec python3 '%s'" % self.path("proposer.py"), timeout=PATIENCE * 2)
        return self.arm()

    def patch(self, name, **files):
        os.makedirs(self.path("patches", name), exist_ok=True)
        for file, text in files.items():
            self.write(os.path.join("patches", name, file.replace("__", ".")), text)
        return self.path("patches", name)

    def test_bad_patches_and_answers_are_rejected_recorded_and_told(self):
        good = b'{"candidate": "cpu_fwd:block_m=24,block_n=64"}'
        replace = "replace: [{file: ref_fwd/kernel.cuh, from: '%s', to: x}]"
        patches = [
            self.patch("unknown_file", patch__yaml="replace: [{file: no/such.cuh, from: a, to: b}]"),
            self.patch("escaping", patch__yaml="replace: [{file: ../../etc/passwd, from: root, to: b}]"),
            self.patch("not_found", patch__yaml=replace % "no such text"),
            self.patch("unknown_field", patch__yaml="extend: {no_such_field: [1]}"),
            self.patch("wrong_type", patch__yaml="extend: {num_warps: [many]}"),
            self.patch("bad name!", patch__yaml=replace % "#pragma once"),
        ]
        bad = [json.dumps({"candidate": "ref_fwd", "patch": folder}).encode() for folder in patches]
        # The store takes no trial of such a name: what got so far would end the run.
        bad += [json.dumps({"family": "ref_fwd", "name": "wrong_x", "extend": {"num_warps": [3]}}).encode(), b'{"candidate": "cpu_fwd+wrong_x"}']
        bad += [b'{"candidate": "\xff\xfe"}', b'{"family": "cpu_fwd", "config": {"block_m": 1e300}}', b'{"family": "cpu_fwd", "config": {"block_m": NaN}}',
                b'{"family": "cpu_fwd", "config": {"block_m": 4294967320}}', b"[]", b'{"candidate": 3}', b"[" * 50000]  # fmt: skip
        answers = []
        for line in bad:
            answers += [line, good]
        last = b'{"candidate": "cpu_fwd:block_m=48,block_n=64"}'
        arm = self.tune_with([*answers, last])
        self.assertEqual(arm["note"], "")
        self.assertEqual(arm["rejected"], len(bad))
        self.assertEqual(len(arm["rejections"]), len(bad))
        self.assertTrue(all(r["reason"] for r in arm["rejections"]))
        self.assertEqual(arm["trials"], len(bad) + 1, "the run went on to the last answer")
        with open(self.path("told"), encoding="utf-8", errors="replace") as file:
            self.assertGreaterEqual(len(file.read().splitlines()), len(bad))

    def test_five_in_a_row_end_the_arm_not_the_run(self):
        good = b'{"candidate": "cpu_fwd:block_m=24,block_n=64"}'
        self.assertFalse(self.tune_with([good] + [b"nonsense"] * 9)["failed"], "it made a proposal")
        arm = self.tune_with([b"nonsense"] * 9, BAD_USAGE)
        self.assertEqual((arm["rejected"], arm["failed"]), (5, True))
        self.assertIn("5 answers in a row were no proposals", arm["note"])

    def test_one_that_dies_at_once_is_an_error_with_its_stderr(self):
        self.expect_error(BAD_USAGE, ["exited with code 7", "no model here"], *TUNE, "--proposer", "echo no model here >&2; exit 7")
        self.expect_error(BAD_USAGE, ["exited with code 127", "not found"], *TUNE, "--proposer", "no-such-proposer")
        self.expect_error(BAD_USAGE, ["exited with code 0"], *TUNE, "--proposer", "exit 0")
        self.assertIn("SIGSEGV", self.expect(BAD_USAGE, *TUNE, "--proposer", "ulimit -c 0; kill -SEGV $$").stderr)

    def test_one_that_dies_is_an_error_too_where_earlier_trials_spent_the_budget(self):
        tune = [*TUNE[:-5], "3", *TUNE[-4:]]
        self.assertEqual(tune[tune.index("--budget") + 1], "3")
        random = [word if word != "none" else "random" for word in tune]
        self.expect(DONE, *random)
        self.expect_error(BAD_USAGE, ["exited with code 7", "no model here"], *random, "--proposer", "echo no model here >&2; exit 7")

    def test_silence_before_any_proposal_is_an_error(self):
        tune = [word if word != "30" else "1s" for word in TUNE]
        done = self.expect(BAD_USAGE, *tune, "--proposer", "exec sleep 1000", timeout=PATIENCE)
        self.assertIn("no answer after", done.stderr)
        self.assertTrue(self.arm()["failed"])

    def test_floods_end_the_arm(self):
        for flood, note in (("exec cat /dev/zero", "without a newline"), ("exec yes nonsense", "5 answers in a row")):
            with self.subTest(flood):
                self.assertIn("made no proposal", self.expect(BAD_USAGE, *TUNE, "--proposer", flood, timeout=PATIENCE).stderr)
                self.assertIn(note, self.arm()["note"])

    def test_a_signal_ends_it_whatever_it_does(self):
        state = self.path("pids")
        for misbehaves in ("exec sleep 1000", "yes >&2", "trap '' TERM INT; while :; do sleep 1; done", "setsid sleep 1000 & echo $! >> '%s'; exec sleep 1000" % state):
            with self.subTest(misbehaves):
                if os.path.exists(state):
                    os.remove(state)
                process = self.start_flashcore(*TUNE, "--proposer", "echo $$ >> '%s'; %s" % (state, misbehaves))
                pids = wait_for("the proposer", lambda: self.pids("pids"))
                start = time.monotonic()
                self.stop(process, signal.SIGTERM)
                self.assertLess(time.monotonic() - start, 60)
                self.assert_nobody_is_left(self.pids("pids") or pids)


if __name__ == "__main__":
    unittest.main()
