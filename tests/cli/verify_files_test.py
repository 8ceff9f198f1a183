"""flashcore verify on files that are no tables of times: those that this build writes are fresh, and an edit is found."""

import json
import os
import unittest

from support import BAD_USAGE, DONE, FAILED, NOT_JUDGED, SOURCE_DIR, CliTest


class VerifyFilesTest(CliTest):
    def edited(self, name, edit, keep_digest=True):
        with open(self.path(name), encoding="utf-8") as file:
            document = json.load(file)
        edit(document)
        if not keep_digest:
            del document["digest"]
        return self.write("edited.json", json.dumps(document))

    def expect_judged(self, name, edit, says):
        """Fresh as it was written; edited, its digest tells, and without one its rows do."""
        self.expect(DONE, "verify", name)
        self.assertIn("digest", self.expect(FAILED, "verify", self.edited(name, edit)).stdout)
        self.assertIn(says, self.expect(FAILED, "verify", self.edited(name, edit, keep_digest=False)).stdout)

    def test_needles(self):
        self.expect(DONE, "check", "--needles", "--device", "cpu", "--seq-kv", "4096", "--head-dims", "64", "--json", "n.json")
        self.expect_judged("n.json", lambda d: d["results"][0]["candidates"][0].update(lost=5), "by its counts")

    def test_planted_faults(self):
        self.expect(DONE, "check", "--planted", "--device", "emulator", "--problem", "gpu_wrong_tail", "--json", "p.json")
        self.expect_judged("p.json", lambda d: d["results"][0].update(caught=False), "it counts 1 caught, and its rows give 0")
        self.expect_judged("p.json", lambda d: d.update(not_here=["gpu_race"], skipped=1), "gpu_race: it was skipped, and shows on emulator")

    def test_inversions(self):
        flags = ["--device", "emulator", "--problem", "b1_h1_s64_d64_fp16", "--family", "sm80_fwd", "--variants", "no_exponentials,no_stores"]
        self.expect(DONE, "invert", *flags, "--json", "i.json")
        self.expect(DONE, "verify", "i.json")
        self.assertIn("digest", self.expect(FAILED, "verify", self.edited("i.json", lambda d: d["results"][0]["ranking"].pop())).stdout)
        told = self.expect(FAILED, "verify", self.edited("i.json", lambda d: d["results"][0].update(answer="more stores"), keep_digest=False)).stdout
        self.assertIn("its answer is not what its ranking gives", told)
        cut = self.edited("i.json", lambda d: d["results"][0]["ranking"].pop(), keep_digest=False)
        self.assertIn("INCOMPLETE", self.expect(NOT_JUDGED, "verify", cut).stdout)

    def test_timelines(self):
        self.expect(DONE, "timeline", "--device", "emulator", "--problem", "b1_h1_s128_d64_fp16", "--family", "sm90_fwd", "--json", "t.json")
        self.expect_judged("t.json", lambda d: d["results"][0]["sums"][0].update(total=1), "the total is 1")

    def test_tune_runs(self):
        self.expect(DONE, "tune", "--device", "cpu", "--problem", "b1_h2_s64_d32_fp32", "--budget", "2s", "--store", "s.db", "--json", "u.json")
        self.expect_judged("u.json", lambda d: d["results"][0]["winner"]["timing"].update(p50_us=0.5), "p50_us of its winner")

    def test_what_no_one_judges_is_an_error_and_hides_no_other_file(self):
        gate = os.path.join(SOURCE_DIR, "results", "h200", "campaign", "09_gate.json")
        self.expect_error(BAD_USAGE, ["flashcore.gate/1", "verify cannot judge", "`flashcore gate --json FILE`"], "verify", gate)
        zebra = self.write("zebra.json", '{"schema": "flashcore.zebra/1"}')
        self.expect_error(BAD_USAGE, ["flashcore.zebra/1", "verify cannot judge", "flashcore.planted/1"], "verify", zebra)
        self.expect_error(BAD_USAGE, ["names no schema"], "verify", self.write("none.json", "{}"))

    def test_an_interrupted_run_is_incomplete(self):
        self.expect(DONE, "check", "--needles", "--device", "cpu", "--seq-kv", "4096", "--head-dims", "64", "--json", "n.json")
        stopped = self.edited("n.json", lambda d: d.update(interrupted=True), keep_digest=False)
        result = self.expect(NOT_JUDGED, "verify", stopped, "--json", "v.json")
        self.assertRegex(result.stdout, "INCOMPLETE .* interrupted before its end")
        with open(self.path("v.json"), encoding="utf-8") as file:
            self.assertIn("interrupted", json.load(file)["results"][0]["incomplete"])


if __name__ == "__main__":
    unittest.main()
