"""flashcore profile on the CPU, on the emulator, for a GPU that is not here, and with counters that Nsight Compute wrote elsewhere."""

import glob
import json
import os
import shutil
import time
import unittest

import support
from support import BAD_USAGE, DONE, NO_ENVIRONMENT, NOT_JUDGED

SMALL = "b1_h2_s128_d64_fp16"
H200 = ("--arch", "sm_90", "--key", "h200")

# Written by hand after Nsight Compute's documentation: no GPU has run here.
CSV = '''==PROF== Connected to process 1 (flashcore)
"ID","Process ID","Kernel Name","gpu__time_duration.sum","sm__throughput.avg.pct_of_peak_sustained_elapsed",\
"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active","l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",\
"l1tex__data_pipe_lsu_wavefronts_mem_shared.sum","sm__cycles_elapsed.sum"
"","","","ns","%","%","","",""
"0","1","forward","80000","40","30","14,000,000","16,000,000","24,000,000"
'''


class ProfileTest(support.CliTest):
    def profile(self, code, *arguments):
        result = self.expect(code, "profile", *arguments, "--json", "-", "--quiet")
        document = json.loads(result.stdout)
        self.assertEqual(document["schema"], "flashcore.profile/1")
        return document["results"]

    def names(self, entry):
        self.assertEqual([b["rank"] for b in entry["bottlenecks"]], list(range(1, len(entry["bottlenecks"]) + 1)))
        for bottleneck in entry["bottlenecks"]:
            self.assertTrue(bottleneck["sentence"].endswith("."), bottleneck)
            self.assertTrue(bottleneck["evidence"], bottleneck)
        return [b["name"] for b in entry["bottlenecks"]]

    def row(self, entry, name):
        (row,) = [row for row in entry["indicators"] if row["name"] == name]
        return row

    def sass(self, tool, family="sm80_fwd"):
        """The profile's machine code by that program; None, and why, where the compiler is missing."""
        (entry,) = self.profile(DONE, "--device", "emulator", "--problem", SMALL, "--family", family, "--sass", "--nvdisasm", tool)
        if entry["sass"] is None and any(lost["source"] == "machine code" and "NVRTC" in lost["why"] for lost in entry["lost"]):
            self.skipTest("no NVRTC here: nothing can be compiled with line information")
        self.assertIsNotNone(entry["sass"], entry["lost"])
        return entry["sass"]

    def tool(self, script):
        self.write("nvdisasm", "#!/bin/sh\n" + script)
        os.chmod(self.path("nvdisasm"), 0o755)
        return self.path("nvdisasm")

    def test_hot_lines_stand_beside_what_a_disassembler_told_of_them(self):
        # One instruction for each line of the kernel's file.
        sass = self.sass(self.tool(r"""printf '\t.section\t.text.kernel,"ax"\n'
for line in $(seq 1 500); do
  printf '\t//## File "/x/kernels/sm80_fwd/kernel.cuh", line %d\n        /*%04x*/                   FAKE R%d ;\n' $line $line $line
done
"""))
        self.assertEqual(sass["tool"], self.path("nvdisasm"))
        own = [line for line in sass["lines"] if line["where"].startswith("kernels/sm80_fwd/kernel.cuh:") and not line["caller"]]
        self.assertTrue(own, sass["lines"])
        with open(os.path.join(support.SOURCE_DIR, "src/kernels/sm80_fwd/kernel.cuh"), encoding="utf-8") as file:
            text = file.read().splitlines()
        for line in own:
            number = int(line["where"].split(":")[1].split()[0])
            self.assertEqual([i["text"] for i in line["instructions"]], ["FAKE R%d" % number])
            self.assertEqual(line["source"], text[number - 1].strip())
        units = [line["requests"] * line["units_per_request"] for line in sass["lines"]]
        self.assertEqual(units, sorted(units, reverse=True), "the one with most traffic first")

    def test_tiles_that_move_by_one_instruction_are_among_the_hot_lines(self):
        tool = self.tool(r"""printf '\t.section\t.text.kernel,"ax"\n\t//## File "/x/kernels/a.cuh", line 1\n        /*0000*/                   FAKE ;\n'
""")
        kinds = {line["kind"]: line for line in self.sass(tool, "sm90_fwd")["lines"]}
        self.assertIn("TMA load", kinds)
        self.assertIn("wgmma operands", kinds)
        for kind in ("TMA load", "wgmma operands"):
            self.assertIn("kernels/", kinds[kind]["where"])
            self.assertEqual(kinds[kind]["units_per_request"], kinds[kind]["least_per_request"])

    def test_ctrl_c_ends_the_disassembler_and_keeps_the_profile(self):
        command = ["profile", "--device", "emulator", "--problem", SMALL, "--family", "sm80_fwd", "--sass", "--quiet",
                   "--json", self.path("p.json")]  # fmt: skip
        self.sass(self.tool(r"""printf '\t.section\t.text.kernel,"ax"\n\t//## File "/x/kernels/a.cuh", line 1\n        /*0000*/                   FAKE ;\n'
"""))  # or it skips, without NVRTC
        process = self.start_flashcore(*command, "--nvdisasm", self.tool("touch ready\nexec sleep 100\n"))
        self.wait_for_file("ready", process)
        start = time.monotonic()
        support.interrupt(process)
        self.assertEqual(process.wait(timeout=60), NOT_JUDGED)
        self.assertLess(time.monotonic() - start, 10)
        with open(self.path("p.json"), encoding="utf-8") as file:
            (entry,) = json.load(file)["results"]
        self.assertTrue(entry["bottlenecks"] and entry["counted"])
        self.assertIn("was interrupted", [lost["why"] for lost in entry["lost"] if lost["source"] == "machine code"][0])

    def test_the_real_disassembler_finds_the_loads_of_a_line(self):
        found = shutil.which("nvdisasm") or next(iter(sorted(glob.glob(os.path.join(
            support.SOURCE_DIR, "out/torch/lib/python3*/site-packages/triton/backends/nvidia/bin/nvdisasm")))), None)
        if not found:
            self.skipTest("no nvdisasm here: only the fake one was asked")
        sass, hopper = self.sass(found), self.sass(found, "sm90_fwd")
        self.assertTrue(sass["same_code"], "line information changed the code")
        for line in sass["lines"] + [line for line in hopper["lines"] if line["kind"] in ("TMA load", "wgmma operands")]:
            texts = " ".join(i["text"] for i in line["instructions"])
            expected = {"TMA load": "UTMALDG", "wgmma operands": "HGMMA", "shared load": "LDS", "global store": "STG", "global load": "LDG", "shared store": "STS"}[line["kind"]]
            self.assertIn(expected, texts, line["where"])

    def test_without_a_disassembler_it_says_what_to_do_and_keeps_the_rest(self):
        for script, words in ((None, ["is not there", "--nvdisasm"]), ("echo broken >&2; exit 7\n", ["ended with 7: broken"]),
                              ("exit 0\n", ["no instruction with a source line"])):  # fmt: skip
            tool = self.tool(script) if script else self.path("nowhere")
            (entry,) = self.profile(DONE, "--device", "emulator", "--problem", SMALL, "--family", "sm80_fwd", "--sass", "--nvdisasm", tool)
            self.assertIsNone(entry["sass"])
            (why,) = [lost["why"] for lost in entry["lost"] if lost["source"] == "machine code"]
            if "NVRTC" not in why:
                for word in words:
                    self.assertIn(word, why)
            self.assertIn("still hold", why)
            self.assertTrue(entry["bottlenecks"] and entry["counted"])
        self.expect_error(BAD_USAGE, ["--sass", "cpu"], "profile", "--device", "cpu", "--problem", SMALL, "--sass")
        self.expect_error(BAD_USAGE, ["--nvdisasm", "--sass"], "profile", "--device", "emulator", "--problem", SMALL, "--nvdisasm", "x")
        self.expect_error(BAD_USAGE, ["--emulate"], "profile", *H200, "--problem", SMALL, "--sass")
        self.expect_error(BAD_USAGE, ["--planted"], "profile", "--device", "emulator", "--planted", "--sass")

    def test_on_the_cpu(self):
        (entry,) = self.profile(DONE, "--device", "cpu", "--problem", "b1_h4_s256_d64_fp32", "--seconds", "0.3")
        self.assertEqual(entry["family"], "cpu_fwd")
        self.assertGreater(entry["time_us"], 0)
        self.assertIn("FMA units", [roof["name"] for roof in entry["roofline"]])
        self.assertTrue(self.names(entry))
        self.assertGreater(self.row(entry, "threads")["value"], 0)
        self.assertIsNone(self.row(entry, "instructions")["value"])
        self.assertFalse(self.files_of_store())

    def files_of_store(self):
        return [name for name in self.files() if name.endswith(".db")]

    def test_on_the_emulator(self):
        (entry,) = self.profile(DONE, "--device", "emulator", "--problem", SMALL, "--family", "sm80_fwd", "--config", "block_m=64,block_n=32,num_warps=4")
        # Four tiles for the SMs of a whole GPU.
        self.assertEqual(self.names(entry)[0], "small grid")
        self.assertEqual(entry["counted"]["problem"], SMALL)
        self.assertTrue(any(line["kind"] == "global load" for line in entry["counted"]["lines"]))
        self.assertTrue(any(wait["kind"] == "copy wait" and wait["threads"] > 0 for wait in entry["counted"]["waits"]))
        self.assertGreater(entry["compiled"]["registers"], 0)
        self.assertEqual(self.row(entry, "spilled bytes per thread")["met"], True)
        self.assertEqual(self.row(entry, "SM busy")["source"], "needs hardware counters")
        self.assertIsNone(entry["time_us"])

    def test_a_big_problem_is_counted_on_a_small_one_and_says_so(self):
        result = self.expect(DONE, "profile", "--device", "emulator", "--problem", "b4_h16_hk16_s2048_d64_fp16", "--family", "sm80_fwd")
        self.assertIn("counted on b1_h1_s512_d64_fp16, since the emulator would take minutes for b4_h16_s2048_d64_fp16", result.stdout)
        self.assertIn("needs hardware counters", result.stdout)

    def test_the_planted_slow_kernels_are_named_first(self):
        result = self.expect(DONE, "profile", "--planted", "--device", "emulator", "--json", "planted.json")
        with open(self.path("planted.json"), encoding="utf-8") as file:
            document = json.load(file)
        self.assertEqual((document["named"], document["missed"], document["lacking"]), (5, 0, 0), result.stdout)
        self.assertRegex(document["created_at"], r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
        for entry in document["results"]:
            self.assertEqual(entry["bottlenecks"][0]["name"], entry["planted"])
        conflicts = document["results"][0]["bottlenecks"][0]
        self.assertTrue(any("sm80_fwd/kernel.cuh" in line and "would do" in line for line in conflicts["evidence"]), conflicts)

    def test_a_gpu_that_is_not_here(self):
        (entry,) = self.profile(DONE, *H200, "--problem", "b1_h32_hk8_s4096_d128_bf16_causal")
        self.assertGreater(entry["time_us"], 0)
        self.assertEqual({roof["name"] for roof in entry["roofline"]}, {"tensor cores", "special functions", "L2", "DRAM"})
        self.assertEqual([lost["source"] for lost in entry["lost"]], ["hardware counters"])
        self.assertIn("--emulate", entry["lost"][0]["why"])

    def test_counters_of_elsewhere(self):
        path = self.write("ncu.csv", CSV)
        (entry,) = self.profile(DONE, *H200, "--problem", "b16_h16_s2048_d64_fp16", "--counters", path)
        self.assertEqual(self.names(entry)[0], "bank conflicts")
        self.assertEqual(self.row(entry, "SM busy")["met"], False)
        self.assertEqual(entry["lost"], [])
        self.assertEqual(entry["time_us"], 80)

    def test_counters_of_another_kernel_are_warned_of(self):
        # A longer kernel beside the candidate's is passed over; where the candidate's is not there, the longest counts.
        beside = CSV + '"1","1","elementwise_kernel","90000","1","2","3","4","5"\n'
        arguments = (*H200, "--problem", "b16_h16_s2048_d64_fp16", "--counters")
        (entry,) = self.profile(DONE, *arguments, self.write("beside.csv", beside))
        self.assertEqual((entry["time_us"], entry["lost"]), (80, []))
        (entry,) = self.profile(DONE, *arguments, self.write("other.csv", beside.replace('"forward"', '"backward"')))
        self.assertEqual(entry["time_us"], 90)
        self.assertEqual([lost["source"] for lost in entry["lost"]], ["hardware counters"])
        self.assertIn("elementwise_kernel", entry["lost"][0]["why"])
        self.assertEqual(entry["counters_of_another"], "elementwise_kernel")
        said = self.expect(DONE, "profile", *arguments, self.path("other.csv")).stdout
        self.assertIn("warning: the counters are of another kernel, elementwise_kernel", said)
        self.assertLess(said.index("warning:"), said.index("time "))
        self.assertIn("of hardware counters: the file has no kernel", said)
        self.assertNotIn("without hardware counters", said)

    def test_cells_that_are_no_number_are_named(self):
        for cell in ("abc", "nan"):
            names, units, row = CSV.splitlines()[-3:]
            fields = row.split(",")
            fields[4] = f'"{cell}"'
            (entry,) = self.profile(DONE, *H200, "--problem", "b16_h16_s2048_d64_fp16", "--counters", self.write("bad.csv", "\n".join((names, units, ",".join(fields))) + "\n"))
            self.assertIn(f"left out what is no number: {names.split(',')[4][1:-1]} is '{cell}'", entry["lost"][0]["why"])

    def test_counters_that_the_driver_refused_are_said_as_that(self):
        refused = self.write("refused.csv", "==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters\n")
        arguments = (*H200, "--problem", "b16_h16_s2048_d64_fp16", "--counters")
        self.expect_error(BAD_USAGE, ["does not let this user read counters", "NVreg_RestrictProfilingToAdminUsers=0"], "profile", *arguments, refused)
        other = self.write("error.csv", "==ERROR== The application returned an error code (11).\n")
        self.expect_error(BAD_USAGE, ["Nsight Compute reports", "error code (11)"], "profile", *arguments, other)

    def test_who_looks_for_a_timeline_is_told_where_it_is(self):
        self.expect_error(BAD_USAGE, ["`flashcore timeline`"], "profile", "--timeline", "--device", "emulator", "--problem", SMALL)

    def test_counts_beside_a_gpu_that_is_not_here(self):
        (entry,) = self.profile(DONE, *H200, "--problem", "b16_h16_s2048_d64_fp16", "--family", "sm80_fwd", "--emulate")
        self.assertIsNotNone(self.row(entry, "multiplies under copies")["value"])
        self.assertGreater(entry["time_us"], 0)

    def test_where_there_is_nothing_to_compute(self):
        row = "  - {name: %s, num_heads: 1, seq_len: %d, seq_len_kv: 64, head_dim: %d, dtype: fp32}\n"
        head = "name: some\nproblems:\n" + row % ("empty", 0, 64)
        for other, code, words in ((row % ("short", 64, 64), DONE, "1 profile made, 0 of candidates that failed, 1 skipped"),
                                   (row % ("wide", 64, 1000), NOT_JUDGED, "0 profiles made, 0 of candidates that failed, 2 skipped")):  # fmt: skip
            result = self.expect(code, "profile", "--device", "cpu", "--suite", self.write("some.yaml", head + other), "--seconds", "0.05")
            self.assertIn("skipped b1_h1_sq0_sk64_d64_fp32 has no query rows", result.stdout)
            self.assertIn(words, result.stdout)

    def test_without_a_host_compiler_the_artifact_still_holds(self):
        self.environment["FLASHCORE_CXX"] = "/nowhere/c++"
        (entry,) = self.profile(DONE, "--device", "emulator", "--problem", SMALL, "--family", "ref_fwd")
        self.assertEqual([lost["source"] for lost in entry["lost"]], ["emulator's counts"])
        self.assertIn("what the compiler says still holds", entry["lost"][0]["why"])
        self.assertGreater(entry["compiled"]["registers"], 0)

    def test_only_what_is_there_still_holds(self):
        emulated = ("profile", "--device", "emulator", "--problem", SMALL, "--family", "ref_fwd")
        self.environment["FLASHCORE_NVRTC"] = self.path("nowhere.so")
        alone = self.expect(DONE, *emulated)
        self.assertIn("registers, spills and occupancy are unknown, and what the emulator counts still holds", alone.stdout + alone.stderr)
        # Without a host compiler nothing is left that could hold.
        self.environment["FLASHCORE_CXX"] = "/nowhere/c++"
        neither = self.run_flashcore(*emulated)
        self.assertEqual(neither.returncode, NO_ENVIRONMENT, neither.stdout + neither.stderr)
        self.assertIn("registers, spills and occupancy are unknown", neither.stdout + neither.stderr)
        self.assertNotIn("still hold", neither.stdout + neither.stderr)

    def test_usage(self):
        bad = lambda words, *arguments: self.expect_error(BAD_USAGE, words, "profile", *arguments)  # noqa: E731
        problem = ("--problem", SMALL)
        bad(["--problem"], "--device", "emulator")
        bad(["b1_h2"], "--device", "emulator", "--problem", "b1_h2")
        bad(["ref_fwd", "needs an NVIDIA GPU"], "--device", "cpu", *problem, "--family", "ref_fwd")
        bad(["nobody"], "--device", "emulator", *problem, "--family", "nobody")
        bad(["sm80_fwd"], "--device", "emulator", "--problem", "b1_h2_s128_d64_fp32", "--family", "sm80_fwd")
        bad(["--metrics", "emulator"], "--device", "emulator", *problem, "--metrics", "sm__cycles_active.avg")
        bad(["--metrics", "cpu"], "--device", "cpu", *problem, "--metrics", "sm__cycles_active.avg")
        bad(["'busy' is no name of a hardware counter", "sm__cycles_active.avg"], *H200, *problem, "--metrics", "busy")
        bad(["--emulate"], "--device", "emulator", *problem, "--emulate")
        bad(["--seconds", "emulator has no time"], "--device", "emulator", *problem, "--seconds", "1")
        bad(["--ncu"], "--device", "cpu", *problem, "--ncu", "ncu")
        bad(["--key", "--arch"], "--key", "h200", *problem)
        bad(["--key h2000", "h100, h100pcie, h200"], "--arch", "sm_90", "--key", "h2000", *problem)
        # Keys of the user's own table are known, too; of a table with several, all.
        self.environment["FLASHCORE_TUNED"] = self.write("table.json", '{"a_gpu_of_mine": {}, "h200": {}}')
        bad(["--key h2000", "a_gpu_of_mine, h100, h100pcie, h200"], "--arch", "sm_90", "--key", "h2000", *problem)
        bad(["no planted slow kernel", "slow_nothing", "give one of slow_bank_conflicts, slow_spills"], "--planted", "--device", "emulator", "--problem", "slow_nothing")
        bad(["GPU kernels"], "--planted", "--device", "cpu")
        bad(["--planted"], "--planted", *H200)
        bad(["--planted", "--config"], "--planted", "--device", "emulator", "--config", "num_stages=2")
        bad(["--seconds", "--planted"], "--planted", "--device", "emulator", "--seconds", "1")
        bad(["--metrics", "--arch"], *H200, *problem, "--metrics", "sm__cycles_active.avg")
        bad(["--ncu", "--arch"], *H200, *problem, "--ncu", "ncu")
        bad(["--seconds", "--arch"], *H200, *problem, "--seconds", "1")
        bad(["--seed", "--emulate"], *H200, *problem, "--seed", "2")
        empty = self.write("empty.csv", "nothing\n")
        bad(["--counters", "empty.csv", '"ID"'], *H200, *problem, "--counters", empty)
        cut = self.write("cut.csv", CSV[:-30])
        bad(["cut.csv", "line 4"], *H200, *problem, "--counters", cut)
        bad(["missing.csv"], *H200, *problem, "--counters", self.path("missing.csv"))
        bad(["--counters", "--ncu"], *H200, *problem, "--counters", empty, "--ncu", "ncu")
        self.expect_error(NO_ENVIRONMENT, ["cuda"], "profile", "--device", "cuda", *problem)

    def test_what_nsight_compute_runs(self):
        """The hidden verb, with the request that a profile writes."""
        request = {"problem_name": "p", "suite": "profile", "candidate": "ref_fwd", "patches": [], "incumbent": None, "timed": {}, "phase": "check",
                   "patterns": ["normal"], "level": "quick", "time": True, "min_samples": 0, "max_reference_flops": 1e8, "use_cache": True,
                   "past_resources": True, "problem": "b1_h1_s16_d64_fp16",
                   "spec": {"regime": "graph", "condition": "burst", "seed": 1, "margin": 0.03, "max_seconds": 1}}
        path = self.write("request.json", json.dumps(request))
        result = self.expect(DONE, "launch-candidate", "--device", "emulator", "--request", path)
        self.assertEqual(result.stdout, "")


if __name__ == "__main__":
    unittest.main()
