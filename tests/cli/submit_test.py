"""`flashcore submit` as a user runs it: what a machine lacks is no fault of a submission."""

import json
import unittest

from support import DONE, FAILED, NO_ENVIRONMENT, CliTest

COMMENT = {"family": "sm80_fwd", "name": "mine", "replace": [{"file": "sm80_fwd/kernel.cuh", "from": "#pragma once", "to": "#pragma once  // mine"}]}


class SubmitTest(CliTest):
    def submit(self, code, answer, *flags):
        with open(self.path("answer.json"), "w", encoding="utf-8") as file:
            json.dump(answer, file)
        self.expect(code, "submit", "answer.json", "--problem", "b1_h2_s64_d64_fp16", "--json", "verdict.json", *flags)
        with open(self.path("verdict.json"), encoding="utf-8") as file:
            (result,) = json.load(file)["results"]
        return result

    def test_a_kernel_of_gpus_is_not_judged_on_a_cpu(self):
        for answer in (COMMENT, {"candidate": "sm80_fwd"}):
            result = self.submit(NO_ENVIRONMENT, answer, "--device", "cpu")
            self.assertEqual(result["verdict"], "not_judged")
            self.assertIn("--device emulator", result["message"])

    def test_the_emulator_judges_it(self):
        self.assertEqual(self.submit(DONE, COMMENT, "--device", "emulator")["verdict"], "passed")
        self.assertEqual(self.submit(FAILED, {"candidate": "sm80_fwd:block_m=7"}, "--device", "emulator")["verdict"], "failed")


if __name__ == "__main__":
    unittest.main()
