"""`flashcore invert` as a user runs it: on the CPU with times, on the emulator with counts, and every mistake."""

import json
import shutil
import subprocess
import sys
import unittest

from support import BAD_USAGE, DONE, NOT_JUDGED, CliTest

CPU = ["--device", "cpu", "--problem", "b1_h2_s256_d64_fp32", "--processes", "1", "--seconds", "1"]
EMULATOR = ["--device", "emulator", "--problem", "b1_h1_s100_d64_fp16", "--family", "sm80_fwd"]


class InvertVerbTest(CliTest):
    def document(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            document = json.load(file)
        self.assertEqual(document["schema"], "flashcore.invert/1")
        self.assertIs(document["interrupted"], False)
        return document["results"]

    def test_a_cpu_family_has_real_times_of_other_configs(self):
        text = self.expect(DONE, "invert", *CPU, "--json", "i.json").stdout
        [result] = self.document("i.json")
        self.assertEqual(result["unit"], "time")
        self.assertTrue(result["ranking"])
        for row in result["ranking"]:
            self.assertIs(row["wrong_on_purpose"], False)
            self.assertGreater(row["time_ratio"], 0)
            self.assertLessEqual(row["ci95"][0], row["ci95"][1])
        self.assertIn(result["answer"], text)
        why = {row["variant"]: row["why_not"] for row in result["not_judged"]}
        self.assertIn("compiled into the program", why["no_stores"])
        # Nothing of a CPU is a CTA, a warp or a GPU's.
        self.assertNotRegex(text.replace("divergence", ""), r"\b(CTAs?|warps?|GPUs?|lanes?|SMs?|tensor cores?|TMA)\b")
        self.assertIn("busy", result)

    def test_one_thread_is_said_as_that(self):
        self.expect(DONE, "invert", *CPU, "--variants", "serial_grid", "--json", "i.json")
        [result] = self.document("i.json")
        for row in result["ranking"] + result["not_judged"]:
            self.assertRegex(row["sentence"], "one thread|same machine code")

    def test_a_busy_machine_is_said(self):
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            text = self.expect(DONE, "invert", *CPU, "--variants", "tiny_blocks", "--quiet", "--json", "i.json").stdout
        finally:
            other.kill()
            other.wait()
        [result] = self.document("i.json")
        self.assertIn("warning: " + result["busy"], text)
        self.assertIn("cores", result["busy"])

    def test_a_store_is_not_written(self):
        self.expect(DONE, "invert", *CPU, "--variants", "tiny_blocks", "--quiet")
        self.assertEqual([name for name in self.files() if "trials" in name], [])

    def test_a_flag_of_timing_is_refused_where_nothing_is_timed(self):
        for flag, value in (("--seconds", "1"), ("--processes", "3"), ("--margin", "3%"), ("--regime", "cold"), ("--condition", "burst")):
            self.expect_error(BAD_USAGE, [flag + " changes nothing", "an emulated GPU has no time", "leave it out"], "invert", *EMULATOR, flag, value)

    def test_a_problem_or_a_suite_is_named(self):
        self.expect_error(BAD_USAGE, ["--problem", "--suite"], "invert", "--device", "cpu")

    def test_mistakes_are_named(self):
        self.expect_error(BAD_USAGE, ["'no_gravity' is no variant", "no_exponentials", "serial_grid"], "invert", *CPU, "--variants", "no_stores,no_gravity")
        self.expect_error(BAD_USAGE, ["nonsense_fwd"], "invert", *CPU, "--family", "nonsense_fwd")
        # A name that only inversion uses is no candidate of any verb.
        for verb in (["bench"], ["check"]):
            self.expect_error(BAD_USAGE, ["sm80_fwd+wrong_no_stores"], *verb, *CPU[:4], "--family", "sm80_fwd+wrong_no_stores")
        self.expect(NOT_JUDGED, "invert", *CPU, "--variants", "no_stores")

    @unittest.skipUnless(shutil.which("c++"), "the emulator needs a C++ compiler")
    def test_the_emulator_counts(self):
        names = "no_exponentials,no_stores,strided_loads,forced_spills,waited_multiplies"
        text = self.expect(DONE, "invert", *EMULATOR, "--variants", names, "--json", "i.json", timeout=300).stdout
        [result] = self.document("i.json")
        self.assertEqual(result["unit"], "count")
        self.assertEqual(result["processes"], 1)
        self.assertIn("an emulated GPU has no time", result["answer"])
        self.assertIn("wrong on purpose", text)
        rows = {row["variant"]: row for row in result["ranking"]}
        self.assertEqual(set(rows), {"no_exponentials", "no_stores", "strided_loads"})
        self.assertEqual(rows["no_exponentials"]["count"]["variant"], 0)
        self.assertEqual(rows["no_stores"]["count"]["variant"], 0)
        self.assertGreater(rows["strided_loads"]["count"]["variant"], rows["strided_loads"]["count"]["plain"])
        self.assertTrue(rows["no_stores"]["candidate"].startswith("sm80_fwd+wrong_no_stores:"))
        self.assertEqual([rows[name]["wrong_on_purpose"] for name in ("no_stores", "strided_loads")], [True, False])
        self.assertEqual({row["variant"] for row in result["not_judged"]}, {"forced_spills", "waited_multiplies"})


if __name__ == "__main__":
    unittest.main()
