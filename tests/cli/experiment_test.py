"""Experiments as a user runs them: files, verdict pages, the ledger; and the planted faults that need no device."""

import glob
import json
import os
import re
import shutil
import subprocess
import unittest

from support import BAD_USAGE, DONE, EXPERIMENT, FAILED, NOT_JUDGED, SOURCE_DIR, CliTest


class ExperimentTest(CliTest):
    def test_a_run_leaves_pages_samples_and_a_ledger_entry(self):
        self.write("e.yaml", EXPERIMENT)
        self.assertIn("not run", self.expect(DONE, "experiment", "list", "e.yaml", "--ledger", "out").stdout)
        result = self.run_flashcore("experiment", "run", "e.yaml", "--device", "cpu", "--out", "out", "--json", "all.json")
        self.assertIn(result.returncode, (DONE, NOT_JUDGED), result.stderr)  # a busy machine may leave it inconclusive
        for name in ("verdict.md", "verdict.html", "verdict.json", "samples.json"):
            self.assertTrue(os.path.getsize(self.path("out", "key_blocks", name)) > 0)
        with open(self.path("out", "key_blocks", "verdict.json"), encoding="utf-8") as file:
            verdict = json.load(file)
        self.assertEqual(len(verdict["summary"]), 3)
        self.assertIn(verdict["verdict"], ("CONFIRMED", "SIZE OUTSIDE", "REFUTED", "INCONCLUSIVE"))
        # The verdict is said once, before the name, and not again in the first line under it.
        self.assertRegex(result.stdout, r"(?m)^%s  key_blocks\n  Blocks of 32 keys" % verdict["verdict"])
        listed = self.expect(DONE, "experiment", "list", "--ledger", "out").stdout
        self.assertIn("key_blocks", listed)
        self.assertIn(verdict["verdict"], listed)
        self.assertRegex(listed, r"key_blocks +[A-Z ]+\w+ +[\d-]+ +present ")
        self.assertIn("1 experiment in out, 1 of them with the present source", listed)
        for pair in verdict["pairs"]:
            pair["source_hash"]["control"] = "another"
        self.write("out/key_blocks/verdict.json", json.dumps(verdict))
        listed = self.expect(DONE, "experiment", "list", "--ledger", "out", "--json", "list.json").stdout
        self.assertRegex(listed, r"key_blocks +[A-Z ]+\w+ +[\d-]+ +earlier ")
        with open(self.path("list.json"), encoding="utf-8") as file:
            self.assertIs(json.load(file)["results"][0]["of_present_source"], False)

    def test_mistakes_are_named_with_file_and_line(self):
        self.write("bad.yaml", EXPERIMENT.replace("refuted_by", "refuted"))
        self.expect_error(BAD_USAGE, ["bad.yaml:5", "unknown key 'refuted'", "refuted_by"], "experiment", "run", "bad.yaml", "--device", "cpu")
        self.expect_error(BAD_USAGE, ["needs files"], "experiment", "run", "--device", "cpu")
        self.expect_error(BAD_USAGE, ["run,check,list,judge"], "experiment", "walk")
        self.write("e.yaml", EXPERIMENT)
        self.expect_error(BAD_USAGE, ["--limit", "90s"], "experiment", "run", "e.yaml", "--device", "cpu", "--limit", "soon")
        # What an action does not read is not taken in silence.
        for action, *flag in (("check", "--limit", "9s"), ("check", "--out", "out"), ("check", "--ledger", "out"), ("list", "--processes", "3"),
                              ("list", "--device", "cpu"), ("judge", "--device", "cpu"), ("judge", "--ledger", "out")):
            self.expect_error(BAD_USAGE, [flag[0] + " changes nothing", "experiment ", "leave it out"], "experiment", action, "e.yaml", *flag)
        self.assertIn("nowhere (no such folder)", self.expect(NOT_JUDGED, "experiment", "list", "--ledger", "nowhere").stdout)

    def test_kernels_of_another_kind_of_device_are_a_usage_error(self):
        self.write("e.yaml", EXPERIMENT.replace("cpu_fwd:block_m=96,block_n=256", "sm80_fwd").replace("cpu_fwd:block_m=96,block_n=32", "sm80_fwd:num_stages=2"))
        self.write("cpu.yaml", EXPERIMENT.replace("key_blocks", "of_the_cpu"))
        for action in ("check", "run"):
            self.expect_error(BAD_USAGE, ["e.yaml: sm80_fwd is a kernel of GPUs, and cpu", "nothing was judged", "--device emulator"],
                              "experiment", action, "cpu.yaml", "e.yaml", "--device", "cpu")  # fmt: skip
        self.expect_error(BAD_USAGE, ["cpu.yaml: cpu_fwd is a kernel of CPUs, and emulator is none", "--device cpu"], "experiment", "check", "cpu.yaml", "--device", "emulator")

    @unittest.skipUnless(shutil.which("c++"), "the emulator needs a C++ compiler")
    def test_patched_kernels_are_correct_on_the_emulator(self):
        files = [os.path.join(SOURCE_DIR, "experiments", name + ".yaml") for name in ("register_prefetch", "tile_shapes", "access_width")]
        arguments = ["experiment", "check", *files, "--device", "emulator"]
        result = self.run_flashcore(*arguments, timeout=300)
        if "lets no sandbox be made" in result.stderr:
            arguments.append("--trust-code")  # they are ours
        text = self.expect(DONE, *arguments, timeout=300).stdout
        self.assertIn("18 candidates pass their gates, 0 do not", text)

    @unittest.skipUnless(shutil.which("c++"), "the emulator needs a C++ compiler")
    def test_each_step_of_the_lineage_is_correct_on_the_emulator(self):
        # The two others compare the same candidates.
        files = [os.path.join(SOURCE_DIR, "experiments", name + ".yaml") for name in ("lineage_cp_async", "lineage_warp_specialised", "batching_1")]
        text = self.expect(DONE, "experiment", "check", *files, "--device", "emulator", "--trust-code", timeout=300).stdout
        self.assertIn("14 candidates pass their gates, 0 do not", text)

    def test_every_shipped_file_can_be_read(self):
        files = sorted(glob.glob(os.path.join(SOURCE_DIR, "experiments", "*.yaml")))
        self.assertGreaterEqual(len(files), 10)
        text = self.expect(DONE, "experiment", "list", *files, "--ledger", "nowhere").stdout
        closed = sum("\nclosed:" in open(file, encoding="utf-8").read() for file in files)
        self.assertGreater(closed, 0)
        self.assertIn("%d of the files given not run yet, %d closed" % (len(files) - closed, closed), text)

    def test_predictions_stand_beside_results(self):
        ledger = os.path.join(SOURCE_DIR, "results", "experiments")
        text = self.expect(DONE, "experiment", "list", "--ledger", ledger, "--json", "list.json").stdout
        self.assertRegex(text, r"block_m +80 rows +b4_h16_s1024_d64_fp16 +0\.99 to 1\.08 +0\.735 \[0\.734, 0\.737\] +slower +REFUTED")
        summary = re.search(r"of (\d+) comparisons timed, (\d+) within the predicted range, (\d+) faster than it, (\d+) slower, off its middle by "
                            r"([\d.]+)% in the median", text)
        self.assertIsNotNone(summary, text[-400:])
        with open(self.path("list.json"), encoding="utf-8") as file:
            document = json.load(file)
        pairs = [pair for result in document["results"] for pair in result["predictions"] if pair["speedup"] is not None]
        inside = sum(pair["place"] == "within" for pair in pairs)
        # By the interval: hopper_cluster's 1.0104 lies above 1.01, and its interval reaches it.
        for pair in pairs:
            if pair["predicted"][0] <= pair["speedup"] <= pair["predicted"][1]:
                self.assertEqual(pair["place"], "within", pair)
            self.assertFalse(pair["place"] != "within" and pair["outcome"] == "CONFIRMED", pair)
            self.assertFalse(pair["place"] == "within" and pair["outcome"] == "SIZE OUTSIDE", pair)
        self.assertEqual([int(summary[1]), int(summary[2])], [len(pairs), inside])
        self.assertEqual(int(summary[1]), sum(int(summary[i]) for i in (2, 3, 4)))

    def test_stored_results_are_judged_again(self):
        shutil.copytree(os.path.join(SOURCE_DIR, "results", "experiments", "hopper_stages"), self.path("stored"))
        text = self.expect(DONE, "experiment", "judge", "stored").stdout
        self.assertIn("1 experiment judged again from what was stored, 0 with another verdict", text)
        with open(self.path("stored", "verdict.json"), encoding="utf-8") as file:
            verdict = json.load(file)
        with open(os.path.join(SOURCE_DIR, "results", "experiments", "hopper_stages", "samples.json"), "rb") as file, \
                open(self.path("stored", "samples.json"), "rb") as copy:
            self.assertEqual(copy.read(), file.read(), "samples are what was measured")
        for pair in verdict["pairs"]:
            pair["predicted"] = [1.2, 1.4]
        self.write("stored/verdict.json", json.dumps(verdict))
        text = self.expect(DONE, "experiment", "judge", "stored", "--json", "all.json").stdout
        self.assertIn("REFUTED  hopper_stages (was SIZE OUTSIDE)", text)
        self.assertIn("1 with another verdict", text)
        with open(self.path("all.json"), encoding="utf-8") as file:
            self.assertEqual([pair["outcome"] for pair in json.load(file)["results"][0]["pairs"]], ["REFUTED", "REFUTED"])
        self.write("stored/samples.json", "{}")
        self.expect_error(BAD_USAGE, ["stored/samples.json", "flashcore.experiment-samples/1"], "experiment", "judge", "stored")
        self.expect_error(BAD_USAGE, ["judge needs folders"], "experiment", "judge")
        self.expect_error(BAD_USAGE, ["nowhere/verdict.json"], "experiment", "judge", "nowhere")
        self.expect_error(BAD_USAGE, ["needs folders", "e.yaml is a file"], "experiment", "judge", self.write("e.yaml", "name: e"))

    def test_a_closed_idea_is_listed_and_not_run(self):
        closed = EXPERIMENT + "known: It had been the largest gain.\nclosed: {verdict: REFUTED, finding: Others fill the gap., last_commit: a20fe2b}\n"
        self.write("e.yaml", closed)
        self.assertRegex(self.expect(DONE, "experiment", "list", "e.yaml", "--ledger", "nowhere").stdout,
                         r"key_blocks +REFUTED +- +closed +- +Others fill the gap\.")
        for action in ("run", "check"):
            result = self.expect(NOT_JUDGED, "experiment", action, "e.yaml", "--device", "cpu", *(["--out", "out"] if action == "run" else []))
            self.assertIn("key_blocks is closed (REFUTED) and not run; commit a20fe2b still holds its code: Others fill the gap.", result.stdout)
        self.write("bad.yaml", closed.replace("REFUTED", "LOST"))
        self.expect_error(BAD_USAGE, ["bad.yaml:", "LOST"], "experiment", "list", "bad.yaml", "--ledger", "nowhere")

    def test_what_was_known_stands_in_the_verdict(self):
        self.write("e.yaml", EXPERIMENT + "known: Blocks of 64 were the fastest of a search.\n")
        result = self.run_flashcore("experiment", "run", "e.yaml", "--device", "cpu", "--out", "out")
        self.assertIn(result.returncode, (DONE, NOT_JUDGED), result.stderr)
        for page in ("verdict.md", "verdict.html", "verdict.json"):
            with open(self.path("out", "key_blocks", page), encoding="utf-8") as file:
                self.assertIn("Blocks of 64 were the fastest of a search.", file.read(), page)

    def test_no_experiment_was_ever_deleted(self):
        def git(*arguments):
            return subprocess.run(["git", "-C", SOURCE_DIR, *arguments], capture_output=True, text=True, check=False)
        if git("rev-parse", "--show-toplevel").returncode != 0 or git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
            self.skipTest("no git history here: what was deleted cannot be told")
        names = git("log", "--diff-filter=DR", "--name-only", "--no-renames", "--format=", "--", "experiments/*.yaml").stdout.split()
        gone = sorted({name for name in names if not os.path.exists(os.path.join(SOURCE_DIR, name))})
        self.assertEqual(gone, [], "a refuted idea stays, with `closed` if its code is gone")


class PlantedTest(CliTest):
    def test_faults_of_compilation_are_caught_without_a_device(self):
        result = self.run_flashcore("check", "--planted", "--device", "cpu", "--json", "planted.json")
        with open(self.path("planted.json"), encoding="utf-8") as file:
            outcome = json.load(file)
        if any("NVRTC" in r["what"] for r in outcome["results"] if not r["caught"]):
            self.skipTest("no NVRTC here")
        self.assertEqual(result.returncode, DONE, result.stdout)
        self.assertGreaterEqual(outcome["caught"], 4)
        self.assertIn("planted_tests", result.stdout, "who runs the faults of the CPU")
        self.assertEqual(outcome["missed"], 0)

    def test_verify_finds_causal_flops_counted_in_full(self):
        self.expect(DONE, "bench", "--device", "cpu", "--problem", "b1_h1_s128_d64_fp32_causal", "--json", "honest.json")
        self.expect(DONE, "verify", "honest.json")
        with open(self.path("honest.json"), encoding="utf-8") as file:
            results = json.load(file)
        results["results"][0]["tflops"] *= 128 * 128 / (128 * 129 / 2)
        self.write("full.json", json.dumps(results))
        self.assertIn("unmasked pairs", self.expect(FAILED, "verify", "full.json").stdout)


if __name__ == "__main__":
    unittest.main()
