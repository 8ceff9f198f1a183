"""Verbs, flags and what they refuse: exit code 3 or 4 and one message each."""

import os
import re
import unittest

from support import BAD_USAGE, DONE, NO_ENVIRONMENT, SOURCE_DIR, CliTest, has_gpu, verbs

# What --help says of --suite, the beginning.
DEFAULT_SUITES = {
    "check": "smoke", "crosscheck": "smoke", "ab": "quick", "bench": "quick", "explain": "quick", "tune": "quick", "invert": "none", "peers": "canonical",
    "warmup": "canonical", "gate": "what the baseline holds", "compile": "a few problems of every kind", "campaign": "campaign on a GPU", "profile": "none",
}  # fmt: skip
HIDDEN = {"worker", "execute-kernel", "timer-server", "launch-candidate", "confine"}


class UsageTest(CliTest):
    def test_version_and_help_name_every_verb_and_hide_the_worker(self):
        self.assertRegex(self.expect(DONE, "--version").stdout, r"^flashcore \d+\.\d+\.\d+\n$")
        with open(os.path.join(SOURCE_DIR, "src", "cli", "verbs.h"), encoding="utf-8") as file:
            declared = {name.replace("_", "-") for name in re.findall(r"Run add_(\w+)\(", file.read())}
        self.assertEqual(set(verbs()), declared - HIDDEN)
        for verb in verbs():
            self.assertIn("Examples:", self.expect(DONE, verb, "--help").stdout)

    def test_no_verb_and_unknown_verbs_list_what_there_is(self):
        self.expect_error(BAD_USAGE, ["no verb", "doctor", "verify"])
        self.expect_error(BAD_USAGE, ["unknown verb 'tunee'", "tune"], "tunee")
        # Verbs of the design that do not exist yet are absent, not stubbed.
        self.expect_error(BAD_USAGE, ["unknown verb 'profiles'"], "profiles")
        self.expect_error(BAD_USAGE, ["unknown verb 'experiments'; did you mean 'experiment'?"], "experiments")

    def test_an_unknown_problem_names_the_near_ones_and_where_the_form_is(self):
        self.expect_error(BAD_USAGE, ["'misson' is no problem of suite canonical", "did you mean 'mission'", "flashcore problem --reference"],
                          "check", "--device", "cpu", "--suite", "canonical", "--problem", "misson")  # fmt: skip

    def test_unknown_flags_and_values_are_refused_by_every_verb(self):
        for verb in verbs():
            with self.subTest(verb=verb):
                self.expect_error(BAD_USAGE, [verb + " --help"], verb, "--no-such-flag")
        self.expect_error(BAD_USAGE, ["abc"], "check", "--fuzz", "abc")
        self.expect_error(BAD_USAGE, ["-5"], "check", "--fuzz", "-5")
        self.expect_error(BAD_USAGE, ["--strategy", "evolution"], "tune", "--strategy", "luck")

    def test_a_flag_given_twice(self):
        problem = ["--problem", "b1_h1_s64_d64_fp32"]
        self.expect_error(BAD_USAGE, ["--device was given twice; give it once"], "bench", *problem, "--device", "cpu", "--device", "cpu")
        self.expect_error(BAD_USAGE, ["--budget was given 3 times; give it once"], "tune", "--budget", "3", "--budget", "4", "--budget=5")

    def test_help_says_which_suite_is_taken_without_suite(self):
        for verb, suite in DEFAULT_SUITES.items():
            text = " ".join(self.expect(DONE, verb, "--help").stdout.split())
            self.assertRegex(text, r"a suite that ships, or a \.yaml file \(default: %s" % suite, verb)
        # Of verbs that take suites none is silent.
        takers = {verb for verb in verbs() if "a suite that ships, or a .yaml file" in " ".join(self.expect(DONE, verb, "--help").stdout.split())}
        self.assertEqual(takers, set(DEFAULT_SUITES))
        with open(os.path.join(SOURCE_DIR, "docs", "measurement.md"), encoding="utf-8") as file:
            page = file.read()
        for verb, suite in DEFAULT_SUITES.items():
            self.assertRegex(page, r"\|[^|\n]*`%s`[^|\n]*\| %s" % (verb, suite), verb)

    def test_budget_must_be_a_time_or_a_count(self):
        for budget in ("0", "-5", "soon", "5 parsecs", "1.5", "nan", "60d"):
            with self.subTest(budget=budget):
                self.expect_error(BAD_USAGE, ["60s"], "tune", "--device", "cpu", "--budget=" + budget)

    def test_devices(self):
        self.expect_error(BAD_USAGE, ["tpu", "cpu"], "check", "--device", "tpu")
        if has_gpu():
            self.skipTest("this machine has a GPU, so asking for one is no error")
        for verb in (["check"], ["bench"], ["tune"], ["doctor"]):
            with self.subTest(verb=verb):
                self.expect_error(NO_ENVIRONMENT, ["cuda"], *verb, "--device", "cuda")

    def test_architectures(self):
        self.expect_error(BAD_USAGE, ["sm_12345", "sm_90"], "compile", "--arch", "sm_12345")

    def test_families_and_configs(self):
        problem = ["--device", "cpu", "--problem", "b1_h1_s32_d64_fp32"]
        self.expect_error(BAD_USAGE, ["no_fwd", "cpu_fwd"], "check", *problem, "--family", "no_fwd")
        self.expect_error(BAD_USAGE, ["--family"], "check", *problem, "--config", "block_m=32")
        self.expect_error(BAD_USAGE, ["blok_m", "block_m"], "check", *problem, "--family", "cpu_fwd", "--config", "blok_m=32")
        self.expect_error(BAD_USAGE, ["block_m"], "check", *problem, "--family", "cpu_fwd", "--config", "block_m=31337")
        self.expect_error(BAD_USAGE, ["block_m"], "check", *problem, "--family", "cpu_fwd", "--config", "block_m=many")
        self.expect_error(BAD_USAGE, ["cpu_fwd", "nothing to compile"], "compile", "--family", "cpu_fwd")

    def test_a_config_that_why_invalid_rejects(self):
        # Whatever the architecture, this tile does not fit its shared memory with four stages.
        self.expect_error(BAD_USAGE, ["sm80_fwd", "not valid"], "compile", "--arch", "sm_86", "--problem", "b1_h8_s512_d256_fp16", "--family", "sm80_fwd", "--config",
                          "block_m=128,block_n=128,num_stages=4")

    def test_problems(self):
        for problem, words in {
            "b1_h8_s512": ["b1_h8_s512"],
            "nonsense": ["nonsense"],
            "b1_h8_s-5_d64_fp16": [],
            "b0_h8_s64_d64_fp16": [],
            "b1_h8_hk3_s64_d64_fp16": ["3"],
            "b1_h8_s99999999999999999999_d64_fp16": [],
            "b1_h8_s64_d5000_fp16": ["5000"],
            "b1_h8_s64_d64_fp13": ["fp13"],
        }.items():
            with self.subTest(problem=problem):
                self.expect_error(BAD_USAGE, words, "check", "--device", "cpu", "--problem", problem)

    def test_a_head_dim_that_no_family_supports(self):
        result = self.expect_error(BAD_USAGE, ["d1000", "cpu_fwd"], "check", "--device", "cpu", "--problem", "b1_h1_s16_d1000_fp32")
        self.assertIn("256", result.stderr)


class SuiteTest(CliTest):
    def refuse(self, words, body):
        path = self.write("bad.yaml", body)
        self.expect_error(BAD_USAGE, ["bad.yaml", *words], "check", "--device", "cpu", "--suite", path)

    def test_bad_suites_name_the_line(self):
        line = "  - {name: a, num_heads: 1, seq_len: 8, head_dim: 8, dtype: fp32%s}\n"
        head = "name: bad\nproblems:\n"
        self.refuse([":3:", "colour"], head + line % ", colour: red")
        self.refuse([":4:", "'a'"], head + line % "" + line % "")
        self.refuse([":3:", "batch"], head + line % ", batch_size: -1")
        self.refuse([":3:"], head + line % ", batch_size: 99999999999999999999999")
        self.refuse([":3:"], head + line % ", batch_size: 9223372036854775807")
        self.refuse([":3:", "lots"], head + line % ", batch_size: lots")
        self.refuse([":3:", "dtype"], head + line % ", dtype: fp32")
        self.refuse([], "name: bad\nproblems: [")
        self.refuse([], "")

    def test_missing_and_unknown_suites(self):
        self.expect_error(BAD_USAGE, ["/nowhere/suite.yaml"], "check", "--device", "cpu", "--suite", "/nowhere/suite.yaml")
        self.expect_error(BAD_USAGE, ["galactic", "smoke"], "check", "--device", "cpu", "--suite", "galactic")


if __name__ == "__main__":
    unittest.main()
