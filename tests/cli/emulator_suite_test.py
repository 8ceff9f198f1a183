"""Every GPU family passes the suite of the emulated GPU in its default configs, and one of its problems in more.

`emulator_suite_test.py --all` takes another config of every problem as well (`ctest -C on_demand -R emulator_suite`).
"""

import json
import os
import sys
import unittest

from support import DONE, SOURCE_DIR, CliTest

ALL_CONFIGS = "--all" in sys.argv
BOTH = "normal,non_finite"


class EmulatorSuiteTest(CliTest):
    def check(self, family, *flags):
        """Trials of the family on the suite, all of them right."""
        result = self.expect(DONE, "check", "--device", "emulator", "--suite", "emulator", "--family", family, *flags, "--json",
                             self.path("c.json"), "--quiet", timeout=1200)  # fmt: skip
        self.assertRegex(result.stdout, r"[1-9]\d* passed, 0 failed")
        with open(self.path("c.json"), encoding="utf-8") as file:
            trials = json.load(file)["results"]
        self.assertEqual({trial["family"] for trial in trials}, {family})
        return trials

    def test_every_family_passes_the_suite(self):
        gpu_families = sorted(name for name in os.listdir(os.path.join(SOURCE_DIR, "src", "kernels"))
                              if os.path.exists(os.path.join(SOURCE_DIR, "src", "kernels", name, "family.cpp")) and name != "cpu_fwd")
        self.assertGreaterEqual(len(gpu_families), 5)
        passed_by = {}
        for family in gpu_families:
            with self.subTest(family=family):
                # Of the data patterns the two that reach different code; all of them take twice as long and are the lab's tests'
                # subject. Of configs those that users get: one more for each problem takes twice as long as well. ref_fwd is
                # emulated for longest, because its warps exchange values for every key.
                patterns = "normal" if family == "ref_fwd" and not ALL_CONFIGS else BOTH
                trials = self.check(family, "--patterns", patterns, "--configs", "1" if ALL_CONFIGS else "0")
                passed_by[family] = {trial["problem_name"] for trial in trials if trial["ended"] == "passed"}
                rich = next(name for name in ("all_scores", "fp8_softcap", "wide_causal") if name in passed_by[family])
                trials = self.check(family, "--problem", rich, "--patterns", BOTH, "--configs", "6")
                self.assertGreaterEqual(len({trial["config"] for trial in trials}), 3)
        # A family may skip element types that it does not take, ragged batches or paged caches all together, pages too small for TMA, and
        # head dims that are too wide or too narrow for it, and nothing else.
        of_8_bits = {name for name in passed_by["ref_fwd"] if name.startswith("fp8")}
        self.assertGreaterEqual(len(of_8_bits), 15)
        scored = {name for name in passed_by["ref_fwd"] if any(word in name for word in ("softcap", "alibi", "sink", "scores"))}
        self.assertGreaterEqual(len(scored), 7)
        ragged = {name for name in passed_by["ref_fwd"] if "ragged" in name}
        self.assertGreaterEqual(len(ragged), 5)
        paged = {name for name in passed_by["ref_fwd"] if name.startswith("paged")}
        self.assertGreaterEqual(len(paged), 4)
        paged_8_bits = {name for name in of_8_bits if "paged" in name}
        self.assertGreaterEqual(len(paged_8_bits), 3)
        wide = {name for name in passed_by["ref_fwd"] if name.startswith("wide")}
        self.assertGreaterEqual(len(wide), 5)
        wide_codes = {name for name in wide if "codes" in name}
        self.assertGreaterEqual(len(wide_codes), 3)
        for family, names in passed_by.items():
            wanted = passed_by["ref_fwd"] - of_8_bits - wide
            if family in ("sm80_wide_fwd", "sm90_wide_fwd"):
                self.assertEqual(names - wide, set(), f"{family} takes narrow heads now: all of them are wanted of it")
                wanted = wide
            if family == "sm90_wide_fwd":
                self.assertEqual(names & wide_codes, set(), "it converts quantised caches now: all of them are wanted of it")
                wanted = wide - wide_codes
            if family == "sm90_fp8_fwd":
                wanted = of_8_bits - {"fp8_out"}
            if family == "sm89_fp8_fwd":  # it transposes every V
                self.assertEqual(names & paged_8_bits, set(), "it reads paged caches now: all of them are wanted of it")
                wanted = of_8_bits - {"fp8_vdn"} - paged_8_bits
            if family == "sm80_decode_fwd":  # it has no factors of rows
                wanted |= of_8_bits - {"fp8_vdn", "fp8_token_softcap", "fp8_token_functions", "fp8_e5m2_token"}
            if family in ("sm80_short_fwd", "sm90_short_fwd"):
                self.assertEqual(names & ragged, set(), f"{family} takes ragged batches now: all of them are wanted of it")
                wanted -= ragged
            if family == "sm80_short_fwd":
                self.assertEqual(names & paged, set(), f"{family} reads paged caches now: all of them are wanted of it")
                wanted -= paged
            if family == "sm90_short_fwd":  # of pages whose keys are a multiple of 8
                wanted -= {"paged_window", "paged_one_key"}
            self.assertGreaterEqual(names, wanted, family)


if __name__ == "__main__":
    unittest.main(argv=[word for word in sys.argv if word != "--all"])
