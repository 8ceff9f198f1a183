"""examples/neighbours.py as an external proposer of flashcore tune."""

import json
import os
import sys
import unittest

from support import DONE, SOURCE_DIR, CliTest

PROPOSER = f'"{sys.executable}" "{os.path.join(SOURCE_DIR, "examples", "neighbours.py")}"'


class ProposerTest(CliTest):
    def test_the_example_climbs_through_the_tuners_gates(self):
        self.expect(
            DONE, "tune", "--device", "cpu", "--problem", "b1_h2_s128_d64_fp32", "--family", "cpu_fwd", "--strategy", "none", "--proposer", PROPOSER,
            "--budget", "5", "--finalists", "1", "--store", self.path("trials.db"), "--json", self.path("tune.json"))  # fmt: skip
        with open(self.path("tune.json"), encoding="utf-8") as file:
            arms = json.load(file)["results"][0]["arms"]
        self.assertEqual([arm["strategy"] for arm in arms], ["proposer"])
        self.assertEqual(arms[0]["note"], "")
        self.assertGreaterEqual(arms[0]["trials"], 3)


if __name__ == "__main__":
    unittest.main()
