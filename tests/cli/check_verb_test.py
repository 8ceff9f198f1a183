"""flashcore check and compile: what they count, print and return."""

import json
import os
import unittest

from support import BAD_USAGE, DONE, FAILED, NOT_JUDGED, NO_ENVIRONMENT, CliTest, copy_device_sources


class CheckTest(CliTest):
    def test_a_suite_passes_and_says_how_many(self):
        result = self.expect(DONE, "check", "--device", "cpu", "--suite", "smoke", "--json", self.path("c.json"))
        self.assertRegex(result.stdout, r"(?m)^[1-9]\d* passed, 0 failed, 0 skipped$")
        with open(self.path("c.json"), encoding="utf-8") as file:
            report = json.load(file)
        self.assertEqual(report["failed"], 0)
        self.assertEqual(report["passed"], len(report["results"]))
        for trial in report["results"]:
            self.assertEqual(trial["ended"], "passed")

    def test_random_configs_are_checked_too(self):
        one = json.loads(self.expect(DONE, "check", "--device", "cpu", "--problem", "b1_h2_s65_d64_fp16_causal", "--patterns", "normal", "--json", "-", "--quiet").stdout)
        more = json.loads(self.expect(DONE, "check", "--device", "cpu", "--problem", "b1_h2_s65_d64_fp16_causal", "--patterns", "normal", "--configs", "3", "--json", "-", "--quiet").stdout)
        self.assertGreater(more["passed"], one["passed"])

    def test_skipped_is_never_passed(self):
        suite = self.write("wide.yaml", "name: wide\nproblems:\n  - {name: wide, num_heads: 1, seq_len: 8, head_dim: 1000, dtype: fp32}\n")
        result = self.expect(NOT_JUDGED, "check", "--device", "cpu", "--suite", suite)
        self.assertIn("0 passed, 0 failed, 1 skipped", result.stdout)
        self.assertIn("1000", result.stdout)

    def test_fuzzing_is_the_same_for_the_same_seed(self):
        result = self.expect(DONE, "check", "--device", "cpu", "--fuzz", "20", "--seed", "3")
        self.assertIn("20 passed, 0 failed, 0 skipped", result.stdout)

    def test_fuzzing_of_some_kinds_keeps_every_case(self):
        self.expect(DONE, "check", "--device", "cpu", "--fuzz", "6", "--kinds", "paged,quantised_cache", "--seed", "5", "--json", self.path("f.json"))
        with open(self.path("f.json"), encoding="utf-8") as file:
            report = json.load(file)
        self.assertEqual((report["schema"], report["passed"], report["failed"]), ("flashcore.fuzz/1", 6, 0))
        self.assertEqual([row["index"] for row in report["results"]], list(range(6)))
        for row in report["results"]:
            self.assertRegex(row["problem"], "_page|_kv")
        self.assertIn("fresh", self.expect(DONE, "verify", self.path("f.json")).stdout)
        report["results"].pop()
        with open(self.path("f.json"), "w", encoding="utf-8") as file:
            json.dump(report, file)
        self.assertIn("it counts 6 passed, and its rows give 5", self.run_flashcore("verify", self.path("f.json")).stdout)
        self.expect_error(BAD_USAGE, ["--kinds", "--fuzz"], "check", "--device", "cpu", "--kinds", "paged")
        self.expect_error(BAD_USAGE, ["--again", "--fuzz"], "check", "--device", "cpu", "--again", "x.json")
        self.expect_error(BAD_USAGE, ["zebra", "8bit"], "check", "--device", "cpu", "--fuzz", "3", "--kinds", "zebra")

    def test_neighbours_keep_every_case(self):
        self.expect(DONE, "check", "--device", "cpu", "--neighbours", "13", "--seed", "5", "--json", self.path("n.json"))
        with open(self.path("n.json"), encoding="utf-8") as file:
            report = json.load(file)
        self.assertEqual((report["schema"], report["passed"], report["failed"], report["by_family"]), ("flashcore.neighbours/1", 13, 0, {"cpu_fwd": {"passed": 13, "failed": 0}}))
        self.assertEqual([len(row["batches"]) for row in report["results"]], [10, 3])
        self.assertIn("fresh", self.expect(DONE, "verify", self.path("n.json")).stdout)
        report["results"].pop()
        with open(self.path("n.json"), "w", encoding="utf-8") as file:
            json.dump(report, file)
        self.assertIn("it counts 13 passed, and its rows give 10", self.run_flashcore("verify", self.path("n.json")).stdout)

    def test_neighbours_of_a_candidate_that_promises_nothing_have_other_bits(self):
        flags = ["--device", "emulator", "--family", "sm80_decode_fwd", "--config", "split_keys=0,min_blocks=1", "--seed", "7"]
        self.expect(FAILED, "check", "--neighbours", "20", *flags, "--json", self.path("n.json"))
        told = self.expect(DONE, "verify", self.path("n.json")).stdout
        self.assertIn("which did not pass", told)
        with open(self.path("n.json"), encoding="utf-8") as file:
            report = json.load(file)
        self.assertGreater(report["failed"], 0)
        self.assertEqual(report["failed"], sum(len(row["different"]) for row in report["results"]))

    def test_lengths_that_no_batch_has_are_given_to_sequences_without_keys_too(self):
        """The gate of used lengths launched such a batch without the impossible length, and took what was right for wrong."""
        problem = "b1_h4_hk1_sq1_sk2325_d16_fp32_causaltl_wl128_raggedrandom"
        self.expect(DONE, "check", "--device", "cpu", "--problem", problem, "--patterns", "normal", "--seed", "787254377")

    def test_the_sequences_beside_an_impossible_one_have_a_bound_of_their_own(self):
        """Fewer rows average less: the bound of all was too small for those that are left. On an H100 a right kernel failed."""
        problem, config = "b2_h1_sq63_sk1_d256_fp16_kve4m3_raggedhalving", "warp_rows=16,row_warps=1,key_warps=4,block_n=64,num_stages=2,ctas_per_sm=2,min_blocks=1,split_keys=0"
        flags = ["--device", "emulator", "--family", "sm80_decode_fwd", "--config", config, "--patterns", "outlier", "--seed", "645473527"]
        self.expect(DONE, "check", *flags, "--problem", problem)

    def test_what_does_not_go_with_fuzz(self):
        for flags in (["--suite", "smoke"], ["--problem", "b1_h1_s8_d8_fp32"], ["--patterns", "normal"], ["--family", "cpu_fwd", "--config", "block_m=32"]):
            self.expect_error(BAD_USAGE, ["--fuzz"], "check", "--device", "cpu", "--fuzz", "3", *flags)
        self.expect_error(BAD_USAGE, ["ref_fwd", "cpu"], "check", "--device", "cpu", "--fuzz", "3", "--family", "ref_fwd")
        self.expect_error(BAD_USAGE, ["zebra", "normal"], "check", "--device", "cpu", "--patterns", "zebra")

    def test_needles_of_a_long_context_are_found_by_exact_sums(self):
        flags = ["--needles", "--device", "cpu", "--seq-kv", "4096,16384", "--head-dims", "64"]
        result = self.expect(DONE, "check", *flags, "--json", self.path("n.json"))
        self.assertIn("2 passed, 0 failed, 0 skipped", result.stdout)
        with open(self.path("n.json"), encoding="utf-8") as file:
            report = json.load(file)
        self.assertEqual(report["schema"], "flashcore.needles/1")
        self.assertEqual([row["seqlen_kv"] for row in report["results"]], [4096, 16384])
        for row in report["results"]:
            (only,) = row["candidates"]
            self.assertTrue(only["gated"])
            self.assertEqual(only["verdict"], "passes")
            found = only["needles"]
            self.assertEqual(sum(entry["found"] for entry in found["by_weight"]), found["found"])
            self.assertEqual(sum(found["by_place"].values()), found["found"])
            self.assertLess(only["drift"]["o_rms"], only["limit"]["o_rms"])

    def test_needles_that_sums_without_promotion_lose(self):
        flags = ["--needles", "--device", "emulator", "--seq-kv", "4096", "--head-dims", "64", "--family", "sm89_fp8_fwd"]
        result = self.expect(FAILED, "check", *flags, "--config", "promote_keys=0")
        self.assertRegex(result.stdout, r"promote_keys=0 \(never\) .* loses \d+ needles, o drifts")
        self.assertIn("0 passed, 1 failed", result.stdout)
        result = self.expect(DONE, "check", *flags)
        self.assertRegex(result.stdout, r"default  promote_keys=64 .* passes")
        self.assertRegex(result.stdout, r"by name  promote_keys=0 .* loses")
        self.assertIn("1 passed, 0 failed, 0 skipped; of settings that must be asked for by name 1 would fail", result.stdout)

    def test_what_does_not_go_with_needles(self):
        needles = ["check", "--device", "cpu", "--needles"]
        for flags in (["--suite", "smoke"], ["--problem", "b1_h1_s8_d8_fp32"], ["--patterns", "normal"], ["--fuzz", "3"], ["--configs", "2"], ["--planted"]):
            self.expect_error(BAD_USAGE, ["--needles"], *needles, *flags)
        self.expect_error(BAD_USAGE, ["--seq-kv", "--needles"], "check", "--device", "cpu", "--seq-kv", "4096")
        self.expect_error(BAD_USAGE, ["100", "4096"], *needles, "--seq-kv", "100")
        self.assertIn("skipped", self.expect(NOT_JUDGED, *needles, "--family", "sm90_fp8_fwd", "--seq-kv", "4096", "--head-dims", "64").stdout)

    def test_a_run_of_its_own_refuses_what_it_would_ignore(self):
        modes = {"--fuzz": ["3"], "--neighbours": ["3"], "--needles": [], "--planted": [], "--conformance": []}
        for one in modes:
            for other in modes:
                if one < other:
                    self.expect_error(BAD_USAGE, [one, other, "give one"], "check", "--device", "cpu", one, *modes[one], other, *modes[other])
        flags = {"--suite": "smoke", "--family": "cpu_fwd", "--patterns": "normal", "--configs": "0", "--jobs": "1", "--seed": "1", "--kinds": "paged",
                 "--problem": "b1_h1_s8_d8_fp32"}  # fmt: skip
        reads = {"--fuzz": ["--family", "--kinds", "--seed", "--jobs"], "--neighbours": ["--family", "--seed"], "--needles": ["--family", "--seed"],
                 "--planted": ["--problem"], "--conformance": []}  # fmt: skip
        for mode, value in modes.items():
            for flag, word in flags.items():
                if flag not in reads[mode]:
                    with self.subTest(mode=mode, flag=flag):
                        self.expect_error(BAD_USAGE, [mode, "does not read " + flag + ": "], "check", "--device", "cpu", mode, *value, flag, word)
        self.expect_error(BAD_USAGE, ["--planted", "--suite, --seed: leave them out"],
                          "check", "--planted", "--seed", "2", "--suite", "smoke")  # fmt: skip

    def test_json_to_a_folder_that_is_not_there_fails_before_the_work(self):
        self.expect_error(NO_ENVIRONMENT, ["/nowhere"], "check", "--device", "cpu", "--fuzz", "1000000", "--json", "/nowhere/c.json", timeout=20)


class CompileTest(CliTest):
    def test_default_configs_pass_the_resource_gate(self):
        result = self.run_flashcore("compile", "--all", "--arch", "sm_80,sm_90", "--problem", "b1_h8_s512_d64_fp16", "--json", self.path("c.json"))
        if result.returncode == NO_ENVIRONMENT and "NVRTC" in result.stderr:
            self.skipTest("no NVRTC here")
        self.assertEqual(result.returncode, DONE, result.stdout + result.stderr)
        with open(self.path("c.json"), encoding="utf-8") as file:
            report = json.load(file)
        self.assertGreater(len(report["results"]), 0)
        for entry in report["results"]:
            self.assertTrue(entry["passed"])
            self.assertEqual(entry["artifact"]["spill_store_bytes"], 0)

    def test_fuzz_compiles_the_same_for_the_same_seed_and_draws_its_own(self):
        command = ["compile", "--fuzz", "3", "--seed", "5", "--family", "ref_fwd", "--arch", "sm_90", "--quiet", "--json", "-"]
        result = self.run_flashcore(*command)
        if result.returncode == NO_ENVIRONMENT and "NVRTC" in result.stderr:
            self.skipTest("no NVRTC here")
        drawn = [[(entry["problem"], entry["config"]) for entry in json.loads(text)["results"]] for text in (result.stdout, self.expect(DONE, *command).stdout)]
        self.assertEqual(len(drawn[0]), 3)
        self.assertEqual(drawn[0], drawn[1])
        for flags in (["--suite", "smoke"], ["--problem", "b1_h1_s8_d8_fp16"], ["--all-configs", "2"], ["--family", "ref_fwd", "--config", "num_warps=4"]):
            self.expect_error(BAD_USAGE, ["--fuzz"], "compile", "--fuzz", "3", "--arch", "sm_90", *flags)

    def test_quiet_still_says_what_failed(self):
        # A kernel that no compiler takes, in a copy of the sources.
        tree = self.path("tree")
        copy_device_sources(tree)
        with open(os.path.join(tree, "src", "kernels", "ref_fwd", "kernel.cuh"), "a", encoding="utf-8") as file:
            file.write("planted fault\n")
        self.environment["FLASHCORE_SOURCE"] = tree
        words = ("compile", "--family", "ref_fwd", "--arch", "sm_80", "--problem", "b1_h1_s8_d64_fp16", "--quiet")
        result = self.run_flashcore(*words)
        if result.returncode == NO_ENVIRONMENT and "NVRTC" in result.stderr:
            self.skipTest("no NVRTC here")
        self.assertEqual(result.returncode, FAILED, result.stdout + result.stderr)
        self.assertRegex(result.stdout, r"ref_fwd +sm_80 +b1_h1_s8_d64_fp16.*FAIL")
        self.assertIn("0 passed, 1 failed", result.stdout)
        del self.environment["FLASHCORE_SOURCE"]
        self.assertEqual(len(self.expect(DONE, *words).stdout.splitlines()), 1)

    def test_a_problem_no_gpu_family_takes_is_not_a_pass(self):
        result = self.run_flashcore("compile", "--family", "sm80_fwd", "--arch", "sm_80", "--problem", "b1_h1_s8_d64_fp32")
        if result.returncode == NO_ENVIRONMENT and "NVRTC" in result.stderr:
            self.skipTest("no NVRTC here")
        self.assertEqual(result.returncode, NOT_JUDGED, result.stdout + result.stderr)


if __name__ == "__main__":
    unittest.main()
