"""Every example in every verb's --help is executed, so that none rots."""

import json
import re
import shlex
import unittest

from support import DONE, EXPERIMENT, CliTest, verbs, write_qkv


def needs_nvrtc(example):
    return example[1] == "compile" or "--compile-only" in example or example[1] == "warmup" and "--arch" in example


class HelpExamplesTest(CliTest):
    def examples(self, verb):
        text = self.expect(DONE, verb, "--help").stdout
        self.assertIn("Examples:", text)
        for line in text[text.index("Examples:"):].splitlines():
            match = re.fullmatch(r"  (flashcore .*?)(?:  # exit (\d(?: or \d)*))?", line)
            if match:
                yield shlex.split(match.group(1)), {int(code) for code in (match.group(2) or str(DONE)).split(" or ")}

    def prepare(self):
        """The files that examples mention: tensors, a store with a tuned problem, a fresh and a stale results file."""
        for extension in ("npy", "safetensors"):
            write_qkv(self.folder, extension)
        self.expect(DONE, "tune", "--device", "cpu", "--problem", "b1_h1_s64_d64_fp32", "--budget", "2", "--finalists", "1")
        self.expect(DONE, "bench", "--device", "cpu", "--problem", "b1_h1_s64_d64_fp32", "--json", self.path("fresh.json"))
        with open(self.path("fresh.json"), encoding="utf-8") as file:
            results = json.load(file)
        for result in results["results"]:
            result["source_hash"] = "0" * 32
        self.write("stale.json", json.dumps(results))
        self.write("example.yaml", EXPERIMENT)
        self.write("config.json", json.dumps({"family": "cpu_fwd", "config": {"block_n": 64}}))
        remark = {"file": "kernel.cuh", "from": "#pragma once", "to": "#pragma once  // mine"}
        self.write("patch.json", json.dumps({"family": "ref_fwd", "name": "mine", "replace": [remark]}))

    def test_every_example_of_every_verb(self):
        self.prepare()
        nvrtc = any(f["item"].startswith("NVRTC") and f["present"] for f in json.loads(self.expect(DONE, "doctor", "--device", "cpu", "--json", "-", "--quiet").stdout)["findings"])
        untested = []
        for verb in verbs():
            found = list(self.examples(verb))
            self.assertTrue(found, "flashcore %s --help has no example" % verb)
            for example, codes in found:
                if needs_nvrtc(example) and not nvrtc:
                    untested.append(" ".join(example))
                    continue
                with self.subTest(example=" ".join(example)):
                    self.assertEqual(example[0], "flashcore")
                    result = self.run_flashcore(*example[1:])
                    self.assertIn(result.returncode, codes, result.stdout + result.stderr)
        if untested:
            self.skipTest("no NVRTC here, so these were not run: " + "; ".join(untested))


if __name__ == "__main__":
    unittest.main()
