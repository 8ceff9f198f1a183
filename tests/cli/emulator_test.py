"""The emulated GPU as a user meets it: a broken kernel gets a report, bench counts, conformance is recorded and replayed."""

import json
import re
import time
import unittest

from support import BAD_USAGE, DONE, FAILED, CliTest, copy_device_sources


class EmulatorTest(CliTest):
    def test_the_mission_problem_passes_in_time_and_is_counted(self):
        begin = time.monotonic()
        self.expect(DONE, "check", "--device", "emulator", "--problem", "b1_h8_s512_d64_fp16", "--family", "sm90_fwd")
        self.assertLess(time.monotonic() - begin, 60)
        document = json.loads(self.expect(DONE, "bench", "--device", "emulator", "--problem", "b1_h8_s512_d64_fp16", "--json", "-", "--quiet").stdout)
        counters = document["results"][0]["counters"]
        self.assertIsNone(document["results"][0]["time_us"])
        needed = 4 * 8 * 512 * 512 * 64
        self.assertGreaterEqual(counters["mma_flops"], needed)
        self.assertLess(counters["mma_flops"], 2 * needed)
        self.assertGreater(counters["mma_with_copies_in_flight"], 0)

    def test_a_cluster_of_sixteen_merges(self):
        # More than the eight that every GPU grants, and a key group to each.
        self.expect(DONE, "check", "--device", "emulator", "--problem", "b1_h1_sq40_sk600_d64_fp16_causal", "--family", "sm90_short_fwd", "--config",
                    "row_groups=1,key_groups=1,cluster=16,block_n=32,num_stages=2,pack_heads=1,early_launch=1", "--patterns", "normal")

    def test_conformance_is_recorded_replayed_and_one_bad_test_takes_no_other_with_it(self):
        recording = self.path("conformance.json")
        check = ("check", "--conformance", "--device", "emulator")
        recorded = self.expect(DONE, *check, "--record", recording)
        count = int(re.search(r"recorded (\d+) tests", recorded.stdout)[1])
        self.assertGreater(count, 60)
        replayed = self.expect(DONE, *check, "--recording", recording)
        self.assertIn(f"{count} passed, 0 failed, 0 skipped", replayed.stdout)
        # Another bit in the recording is a difference, and says where.
        with open(recording, encoding="utf-8") as file:
            document = json.load(file)
        words = document["outputs"]["fma"]["words"]
        document["outputs"]["fma"]["words"] = words[:8] + f"{int(words[8:16], 16) ^ 1:08x}" + words[16:]
        with open(recording, "w", encoding="utf-8") as file:
            json.dump(document, file)
        tampered = self.expect(FAILED, *check, "--recording", recording)
        self.assertRegex(tampered.stdout, r"fma: different\n +word 1: 0x")
        self.assertIn(f"{count - 1} passed, 1 failed, 0 skipped", tampered.stdout)
        # A micro-test that faults.
        copy_device_sources(self.path())
        path = self.path("src", "kernels", "conformance", "memory.cuh")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        self.assertIn("ptx::atomic_add_global(p.out, 3);", text)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace("ptx::atomic_add_global(p.out, 3);", "ptx::atomic_add_global(p.out + 1000000, 3);"))
        self.environment["FLASHCORE_SOURCE"] = self.folder
        result = self.expect(FAILED, *check, "--record", recording)
        self.assertRegex(result.stdout, r"atomics: different\n.*out of bounds")
        with open(recording, encoding="utf-8") as file:
            document = json.load(file)
        self.assertEqual(list(document["failures"]), ["atomics"])
        self.assertEqual(len(document["outputs"]), count - 1)

    def test_conformance_refuses_what_it_would_ignore(self):
        self.expect(BAD_USAGE, "check", "--conformance")
        self.expect(BAD_USAGE, "check", "--conformance", "--device", "emulator", "--suite", "smoke")
        self.expect(BAD_USAGE, "check", "--device", "emulator", "--suite", "smoke", "--record", self.path("x.json"))
        self.expect(BAD_USAGE, "check", "--conformance", "--device", "emulator", "--recording", __file__)

    def test_a_broken_kernel_gets_a_report(self):
        copy_device_sources(self.path())
        kernel = self.path("src", "kernels", "sm80_fwd", "kernel.cuh")
        with open(kernel, encoding="utf-8") as file:
            text = file.read()
        line = "else ptx::cp_async_wait<2 * (kStages - 2)>();"
        self.assertIn(line, text)
        with open(kernel, "w", encoding="utf-8") as file:
            file.write(text.replace(line, "else ptx::cp_async_wait<2 * (kStages - 2) + 1>();"))
        self.environment["FLASHCORE_SOURCE"] = self.folder
        result = self.expect(FAILED, "check", "--device", "emulator", "--problem", "b1_h1_s200_d64_fp16", "--family", "sm80_fwd",
                             "--config", "block_n=32,num_stages=2", "--patterns", "normal")
        for word in ("race", "ldmatrix_x4", "cp.async of thread", "sm80_fwd/kernel.cuh:", "FLASHCORE_EMULATOR_SEED"):
            self.assertIn(word, result.stdout)


if __name__ == "__main__":
    unittest.main()
