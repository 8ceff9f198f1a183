"""The emulated GPU as a user meets it: every GPU family passes its suite, a broken kernel gets a report, bench counts."""

import json
import os
import shutil
import time
import unittest

from support import DONE, FAILED, SOURCE_DIR, CliTest


class EmulatorTest(CliTest):
    def test_every_family_passes_the_suite(self):
        result = self.expect(DONE, "check", "--device", "emulator", "--suite", "emulator", "--configs", "6", "--json", self.path("c.json"), "--quiet", timeout=280)
        self.assertRegex(result.stdout, r"[1-9]\d* passed, 0 failed, 0 skipped")
        with open(self.path("c.json"), encoding="utf-8") as file:
            trials = json.load(file)["results"]
        configs = {}
        for trial in trials:
            configs.setdefault(trial["family"], set()).add(trial["config"])
        gpu_families = {name for name in os.listdir(os.path.join(SOURCE_DIR, "src", "kernels"))
                        if os.path.exists(os.path.join(SOURCE_DIR, "src", "kernels", name, "family.cpp")) and name != "cpu_fwd"}
        self.assertEqual(set(configs), gpu_families)
        for family, seen in configs.items():
            self.assertGreaterEqual(len(seen), 3, family)

    def test_the_mission_problem_passes_in_time_and_is_counted(self):
        begin = time.monotonic()
        for family in ("sm80_fwd", "sm90_fwd"):
            self.expect(DONE, "check", "--device", "emulator", "--problem", "b1_h8_s512_d64_fp16", "--family", family)
        self.assertLess(time.monotonic() - begin, 120)
        document = json.loads(self.expect(DONE, "bench", "--device", "emulator", "--problem", "b1_h8_s512_d64_fp16", "--json", "-", "--quiet").stdout)
        counters = document["results"][0]["counters"]
        self.assertIsNone(document["results"][0]["time_us"])
        needed = 4 * 8 * 512 * 512 * 64
        self.assertGreaterEqual(counters["mma_flops"], needed)
        self.assertLess(counters["mma_flops"], 2 * needed)
        self.assertGreater(counters["mma_with_copies_in_flight"], 0)

    def test_a_broken_kernel_gets_a_report(self):
        shutil.copytree(os.path.join(SOURCE_DIR, "src", "kernels"), self.path("src", "kernels"))
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
