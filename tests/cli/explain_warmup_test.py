"""flashcore explain and flashcore warmup, for an H200 that is not here and for this CPU."""

import json
import math
import os
import unittest

import support
from support import BAD_USAGE, DONE, FAILED

H200 = ("--arch", "sm_90", "--key", "h200")


class ExplainTest(support.CliTest):
    def explain(self, code, *arguments):
        result = self.expect(code, "explain", *arguments, "--json", "-", "--quiet")
        return json.loads(result.stdout)["results"]

    def test_a_tuned_problem(self):
        (entry,) = self.explain(DONE, *H200, "--problem", "b16_h16_s2048_d64_fp16")
        self.assertTrue(entry["reason"].startswith("tuned table: b16_h16_s2048_d64_fp16"), entry)
        self.assertGreater(entry["expected_us"], entry["floor_us"])
        self.assertIn("cpu_fwd: it runs on a CPU", entry["refused"])
        self.assertTrue(any(other["reason"].startswith("default of sm80_fwd") for other in entry["alternatives"]))

    def test_a_neighbour(self):
        (entry,) = self.explain(DONE, *H200, "--problem", "b16_h16_s2000_d64_fp16")
        self.assertIn("nearest entry of the tuned table", entry["reason"])
        self.assertEqual(entry["expected_from"], "by its model, fitted on h200")
        self.assertIsNone(entry["carried_over_from"])
        self.assertGreater(entry["expected_us"], entry["floor_us"])

    def test_a_gpu_without_a_fit_of_its_own(self):
        h100 = ("--arch", "sm_90", "--key", "h100")
        for entry in self.explain(DONE, *h100, "--suite", "windows"):
            self.assertEqual(entry["carried_over_from"], "h200", entry)
            self.assertIn("carried over from h200 to 132 SMs, 1980 MHz, 3352 GB/s of DRAM", entry["expected_from"])
            for modelled in [entry, *entry["alternatives"]]:
                self.assertGreaterEqual(modelled["modelled_us"] or math.inf, entry["floor_us"])
        result = self.expect(DONE, "explain", *h100, "--problem", "b64_h32_hk8_sq1_sk4000_d128_bf16")
        self.assertRegex(result.stdout, r"expected  3\d\d.* us \(.*carried over from h200")
        self.assertRegex(result.stdout, r"floor     3\d\d")
        # A GPU of the user's own table has its constants whole, and no floor to be held against.
        self.environment["FLASHCORE_TUNED"] = self.write("table.json", '{"mine": {}}')
        (entry,) = self.explain(DONE, "--arch", "sm_90", "--key", "mine", "--problem", "b64_h32_hk8_sq1_sk4000_d128_bf16")
        self.assertIn("carried over from h200 to 132 SMs; clock and DRAM bandwidth are not known", entry["expected_from"])
        self.assertIsNone(entry["floor_us"])
        # A model that nothing was measured of, and a key that is a slip or a CPU's.
        result = self.expect(DONE, "explain", "--arch", "sm_90", "--key", "h100pcie", "--problem", "b1_h8_s512_d64_fp16")
        self.assertRegex(result.stdout, r"note: no tuned table, no shipped result and no trial of --store is of 'h100pcie'.*h200")
        self.assertNotIn("cpu", result.stdout[result.stdout.index("note:"):])
        for verb in ("explain", "profile"):
            for key in ("h2000", "cpu_epyc_1c"):
                said = self.expect_error(BAD_USAGE, ["--key " + key, "no such GPU", "h100pcie, h200"], verb, "--arch", "sm_90", "--key", key, "--problem", "b1_h8_s512_d64_fp16").stderr
                self.assertNotIn("cpu", said.replace("--key " + key, ""))
        self.assertNotIn("note:", self.expect(DONE, "explain", *H200, "--problem", "b1_h8_s512_d64_fp16").stdout)

    def test_a_whole_suite(self):
        entries = self.explain(DONE, *H200, "--suite", "canonical")
        self.assertGreater(len(entries), 20)
        self.assertTrue(all(entry["candidate"] for entry in entries))

    def test_nothing_runs_it(self):
        (entry,) = self.explain(FAILED, "--device", "cpu", "--problem", "b1_h1_s8_d600_fp32")
        self.assertNotIn("candidate", entry)
        self.assertIsNone(entry["expected_us"])
        said = self.expect(FAILED, "explain", "--device", "cpu", "--problem", "b1_h1_s8_d600_fp32").stdout
        self.assertIn("refused   cpu_fwd: head_dim=600", said)
        self.assertNotIn("not known", said)

    def test_makes_no_store(self):
        self.expect(DONE, "explain", *H200, "--problem", "b1_h8_s512_d64_fp16")
        self.assertFalse([name for name in self.files() if name.endswith(".db")])

    def test_usage(self):
        self.expect_error(BAD_USAGE, ["--key h200 is a GPU of sm_90", "--arch sm_90"], "explain", "--arch", "sm_80", "--key", "h200", "--problem", "b1_h8_s512_d64_fp16")
        self.expect_error(BAD_USAGE, ["--key h200", "give --arch sm_90"], "explain", "--key", "h200", "--problem", "b1_h8_s512_d64_fp16")
        self.expect_error(BAD_USAGE, ["exclude each other"], "explain", "--device", "cpu", *H200, "--problem", "b1_h8_s512_d64_fp16")


class UserTableTest(support.CliTest):
    def test_dispatch_takes_the_users_entry_and_passes_over_what_does_not_fit(self):
        table = self.write("table.json", json.dumps({"h200": {
            "b1_h8_s512_d64_fp16": "sm80_fwd:block_m=64", "b2_h8_s512_d64_fp16": "sm80_fwd:block_m=nonsense", "not an id": "sm80_fwd"}}))
        self.environment["FLASHCORE_TUNED"] = table
        result = self.expect(DONE, "explain", *H200, "--problem", "b1_h8_s512_d64_fp16")
        # An entry that cannot be read is named, and the others count.
        self.assertIn("because   your tuned table: b1_h8_s512_d64_fp16", result.stdout)
        self.assertIn("passed over in your tuned table %s: 'not an id'" % table, result.stdout)
        # So is one whose candidate is none, where it would have been taken.
        result = self.expect(DONE, "explain", *H200, "--problem", "b2_h8_s512_d64_fp16")
        self.assertIn("'b2_h8_s512_d64_fp16': ", result.stdout)
        self.assertIn("nonsense", result.stdout)
        self.write("table.json", "my notes")
        result = self.expect(DONE, "explain", *H200, "--problem", "b1_h8_s512_d64_fp16")
        self.assertIn("because   tuned table", result.stdout)
        self.assertIn("it is not JSON by device and problem", result.stdout)
        self.write("table.json", json.dumps({"h200": {"b1_h8_s512_d64_fp16": "sm80_fwd:block_m=64", "b2_h8_s512_d64_fp16": "sm80_fwd:block_m=nonsense"}}))
        result = self.expect(DONE, "explain", *H200, "--problem", "b1_h8_s512_d64_fp16")
        self.assertIn("because   your tuned table: b1_h8_s512_d64_fp16", result.stdout)
        self.assertIn("sm80_fwd:block_m=64", result.stdout)

    def test_a_problem_with_functions_takes_its_own_entry_then_that_of_the_plain_problem(self):
        plain = "b1_h4_s96_d64_fp32"
        own = {"id": plain, "mask": "j <= i || j < 5"}
        key = json.loads(self.expect(DONE, "bench", "--device", "cpu", "--problem", plain, "--json", "-", "--quiet").stdout)["results"][0]["device"]["key"]
        entries = {plain: "cpu_fwd:block_m=24,block_n=32,threads=0,kv_split=1", json.dumps(own): "cpu_fwd:block_m=48,block_n=32,threads=0,kv_split=1"}
        self.environment["FLASHCORE_TUNED"] = self.write("table.json", json.dumps({key: entries}))
        chosen = lambda problem: self.explain("cpu", json.dumps(problem))["config"]["block_m"]  # noqa: E731
        self.assertEqual(chosen(own), 48)
        self.assertEqual(chosen({**own, "mask": "j <= i || j < 6"}), 24)
        self.assertEqual(self.explain("cpu", plain)["config"]["block_m"], 24)

    def explain(self, device, problem):
        result = self.expect(DONE, "explain", "--device", device, "--problem", problem, "--json", "-", "--quiet")
        return json.loads(result.stdout)["results"][0]

    def test_a_table_that_others_may_write_is_passed_over(self):
        entry = json.dumps({"h200": {"b1_h8_s512_d64_fp16": "sm80_fwd:block_m=64"}})
        os.makedirs(self.environment["FLASHCORE_CACHE"], exist_ok=True)
        table = os.path.join(self.environment["FLASHCORE_CACHE"], "tuned.json")
        with open(table, "w") as file:
            file.write(entry)
        self.assertIn("because   your tuned table", self.expect(DONE, "explain", *H200, "--problem", "b1_h8_s512_d64_fp16").stdout)
        os.chmod(table, 0o666)
        result = self.expect(DONE, "explain", *H200, "--problem", "b1_h8_s512_d64_fp16")
        self.assertIn("because   tuned table", result.stdout)
        self.assertIn("everybody may write to", result.stdout)
        self.environment["FLASHCORE_TUNED"] = table  # the user's word
        self.assertIn("because   your tuned table", self.expect(DONE, "explain", *H200, "--problem", "b1_h8_s512_d64_fp16").stdout)


class WarmupTest(support.CliTest):
    def test_compiles_once(self):
        first = self.expect(DONE, "warmup", *H200, "--problem", "b1_h8_s512_d64_fp16")
        self.assertIn("1 compiled, 0 there already", first.stdout)
        second = self.expect(DONE, "warmup", *H200, "--problem", "b1_h8_s512_d64_fp16")
        self.assertIn("0 compiled, 1 there already", second.stdout)
        self.assertTrue(any(name.endswith(".kernel") for name in self.files()))

    def test_a_key_that_is_a_slip(self):
        for key in ("h2000", "cpu_epyc_1c"):
            said = self.expect_error(BAD_USAGE, ["--key " + key, "no such GPU", "h100pcie, h200", "leave --key out"],
                                     "warmup", "--arch", "sm_90", "--key", key, "--problem", "b1_h8_s512_d64_fp16").stderr  # fmt: skip
            self.assertNotIn("store", said)  # it reads none
        self.assertFalse([name for name in self.files() if name.endswith(".kernel")])
        self.expect_error(BAD_USAGE, ["--key h200", "give --arch sm_90"], "warmup", "--key", "h200", "--problem", "b1_h8_s512_d64_fp16")

    def test_a_gpu_of_the_users_own_table(self):
        self.environment["FLASHCORE_TUNED"] = self.write("table.json", '{"mine": {}}')
        self.expect(DONE, "warmup", "--arch", "sm_90", "--key", "mine", "--problem", "b1_h8_s512_d64_fp16")

    def test_the_cpu_needs_none(self):
        self.assertIn("nothing to compile", self.expect(DONE, "warmup", "--device", "cpu", "--suite", "smoke").stdout)


if __name__ == "__main__":
    unittest.main()
