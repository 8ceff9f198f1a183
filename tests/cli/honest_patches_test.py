"""200 honest patches are not accused: all pass the check of sources and the compiler, and a sample every gate on the emulator.

`honest_patches_test.py --all` sends all of them through the gates (`ctest -C on_demand -R honest`).
"""

import json
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor

from honest_patches import FAMILIES, honest_patches
from support import DONE, NO_ENVIRONMENT, CliTest

COUNT = 200
SAMPLED = COUNT if "--all" in sys.argv else 20
PROBLEMS = {"sm89_fp8_fwd": "b1_h1_s70_d64_e4m3", "sm90_fp8_fwd": "b1_h1_s70_d64_e4m3"}
HALF = "b1_h1_s70_d64_fp16"


class HonestPatchesTest(CliTest):
    def judge(self, number, patches, *flags):
        """The verdicts of patches that share a problem."""
        problem = PROBLEMS.get(patches[0][0]["family"], HALF)
        answers, verdicts = "answers%d.jsonl" % number, self.path("verdicts%d.json" % number)
        self.write(answers, "".join(json.dumps(answer) + "\n" for answer, _ in patches))
        result = self.run_flashcore("submit", answers, "--problem", problem, "--json", verdicts, *flags, timeout=5000)
        if result.returncode == NO_ENVIRONMENT:
            self.skipTest("this machine cannot judge them: " + result.stderr + result.stdout)
        with open(verdicts, encoding="utf-8") as file:
            judged = json.load(file)["results"]
        self.assertEqual(len(judged), len(patches), result.stderr)
        accused = ["%s: %s" % (what, v["message"]) for (_, what), v in zip(patches, judged) if v["verdict"] != "passed"]
        self.assertEqual(accused, [])
        self.assertEqual(result.returncode, DONE)

    def judge_all(self, patches, *flags):
        by_family = [[patch for patch in patches if patch[0]["family"] == family] for family in FAMILIES]
        with ThreadPoolExecutor(2) as pool:
            for outcome in [pool.submit(self.judge, i, group, *flags) for i, group in enumerate(by_family) if group]:
                outcome.result()

    def test_they_are_200_different_ones_of_every_family_and_rule(self):
        patches = honest_patches(COUNT)
        self.assertGreaterEqual(len({json.dumps({k: v for k, v in answer.items() if k != "name"}) for answer, _ in patches}), COUNT * 0.95)
        self.assertEqual({answer["family"] for answer, _ in patches}, set(FAMILIES))
        self.assertTrue(all("files" in answer or "replace" in answer for answer, _ in patches))

    def test_all_of_them_pass_the_check_of_sources_and_the_compiler(self):
        self.judge_all(honest_patches(COUNT), "--compile-only", "--arch", "sm_90")

    def test_a_sample_passes_every_gate_on_the_emulator(self):
        self.judge_all(honest_patches(SAMPLED), "--device", "emulator")


if __name__ == "__main__":
    unittest.main(argv=[word for word in sys.argv if word != "--all"])
