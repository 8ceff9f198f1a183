"""scripts/fit-expected-times has the formulas of Family::expected_us: with the constants of the families' expected_time.json both
say the same of the same problems. And what it writes into those files is what the library reads."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
BINARY = os.environ.get("FLASHCORE_BINARY", str(ROOT / "build" / "flashcore"))
KERNELS = ROOT / "src" / "kernels"
FAMILIES = ("sm90_fwd", "sm90_short_fwd", "sm80_short_fwd")
PROBLEMS = """b1_h12_s2048_d128_bf16 b4_h16_s577_d64_fp16 b96_h16_s128_d64_fp16_causal b1_h8_s3000_d64_fp16_causal
b25_h12_s300_d96_bf16 b2_h16_s2048_d192_dv128_bf16_causal b4_h8_s900_d256_fp16 b1_h8_s512_d64_fp16 b1_h2_s1024_d128_fp16_causal
b4_h32_hk8_sq16_sk4096_d128_bf16 b64_h32_hk8_sq1_sk4096_d128_bf16 b1_h16_sq64_sk20000_d128_bf16 b3_h40_hk8_sq1_sk5000_d64_bf16
b1_h8_hk1_sq1_sk60000_d128_bf16 b16_h12_s64_d40_fp16 b1_h8_s32_d64_fp16 b3_h40_hk8_sq1_sk100_d128_bf16 b2_h5_s77_d72_bf16_causal""".split()


def script():
    loader = importlib.machinery.SourceFileLoader("fit_expected_times", str(ROOT / "scripts" / "fit-expected-times"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def entries(kernels=KERNELS):
    """By family, what its file holds of the H200."""
    return {family: json.loads((kernels / family / "expected_time.json").read_text())["h200"] for family in FAMILIES}


def fields_of(candidate):
    return tuple(map(int, re.findall(r"=(\d+)", candidate)))


def config_of(family, fields):
    """As the script's formulas take it."""
    return {"sm90_fwd": (*fields[:2], fields[-1]), "sm90_short_fwd": fields[:6], "sm80_short_fwd": fields}[family]


def shape(value):
    """The names and kinds in it, which the library reads strictly."""
    if isinstance(value, dict):
        return {name: shape(member) for name, member in value.items()}
    if isinstance(value, list):
        return [shape(member) for member in value[:1]]
    return "number" if isinstance(value, (int, float)) and value > 0 else value


class ExpectedTimesTest(unittest.TestCase):
    def test_the_script_and_the_library_expect_the_same(self):
        fit, fitted = script(), entries()
        compared = dict.fromkeys(FAMILIES, 0)
        parsed = fit.parse_all(PROBLEMS)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        table = Path(folder.name, "table.json")  # of a GPU that no model and no entry is of
        table.write_text('{"none": {}}')
        environment = dict(os.environ, FLASHCORE_TUNED=str(table))
        for problem in PROBLEMS:
            done = subprocess.run([BINARY, "explain", "--arch", "sm_90", "--key", "none", "--problem", problem, "--json", "-", "--quiet"],
                                  stdout=subprocess.PIPE, text=True, check=True, env=environment)  # fmt: skip
            entry = json.loads(done.stdout)["results"][0]
            for choice in [entry, *entry["alternatives"]]:
                family = choice["candidate"].split(":")[0]
                if choice["modelled_us"] is None:
                    continue
                own = fit.expected_us(family, parsed[problem], config_of(family, fields_of(choice["candidate"])), fitted[family])
                self.assertAlmostEqual(choice["modelled_us"] / own, 1, delta=1e-9, msg=f"{problem} {choice['candidate']}")
                compared[family] += 1
        self.assertGreaterEqual(min(compared["sm90_fwd"], compared["sm90_short_fwd"]), len(PROBLEMS) - 3)
        self.assertGreaterEqual(compared["sm80_short_fwd"], 4)

    def test_files_have_the_form_in_which_they_are_written(self):
        fit = script()
        for family in FAMILIES:
            text = (KERNELS / family / "expected_time.json").read_text()
            self.assertEqual(text, fit.text_of(json.loads(text)), family)

    def test_an_id_may_be_written_in_more_than_one_way(self):
        parsed = script().parse_all(["b2_h4_hk4_s64_d64_fp16", "b2_h4_s64_d64_fp16"])
        self.assertEqual(len(parsed), 2)
        self.assertEqual(*parsed.values())

    def test_times_of_another_device_become_an_entry_of_it(self):
        """Times that the formulas themselves make are met by what is fitted to them, and the files stay what the library reads."""
        fit = script()
        limits = {"arch": 90, "multiprocessors": 114, "clock_mhz": 1755, "dram_peak_gbps": 2039}
        truth = {family: fit.start_of({"h200": entry}, "h100pcie", limits, None) for family, entry in entries().items()}
        self.assertEqual(truth["sm90_fwd"]["fitted_on"], {**limits, "dram_gbps": round(4400 * 2039 / 4916.736)})
        for tile in truth["sm90_fwd"]["constants"]["tiles"]:
            tile["us_per_block"] *= 1.5
        truth["sm80_short_fwd"]["constants"]["us_per_step"] *= 1.5
        candidates = ["sm90_fwd:num_consumers=2,block_n=128,num_stages=2,q_stages=2,ping_pong=1,rescale_threshold=8,scheduler=1,cluster=1,key_groups=1",
                      "sm90_short_fwd:row_groups=1,key_groups=1,cluster=2,block_n=64,num_stages=2,pack_heads=1,early_launch=0",
                      "sm80_short_fwd:row_blocks=1,key_warps=2,block_n=32,pack_heads=1,early_launch=0"]  # fmt: skip
        problems = [f"b{b}_h8_s{s}_d{d}_fp16{mask}" for b in (1, 16) for s in (128, 300, 2048) for d in (64, 128) for mask in ("", "_causal")]
        parsed = fit.parse_all(problems)
        times = {}
        for problem in problems:
            for index, candidate in enumerate(candidates):
                family = candidate.split(":")[0]
                config = config_of(family, fields_of(candidate))
                if family != "sm80_short_fwd" or "2048" not in problem:
                    us = fit.expected_us(family, parsed[problem], config, truth[family])
                    times.setdefault(problem, []).append([index, us])
        with tempfile.TemporaryDirectory() as folder:
            kernels = Path(folder) / "kernels"
            for family in FAMILIES:
                (kernels / family).mkdir(parents=True)
                shutil.copy(KERNELS / family / "expected_time.json", kernels / family)
            document = {"device": "h100pcie", "limits": limits, "candidates": candidates, "times_us": times}
            (Path(folder) / "times.json").write_text(json.dumps(document))
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                fit.main(["--times", folder + "/times.json", "--kernels", str(kernels), "--write"])
            self.assertRegex(said.getvalue(), r"fitted: regret 1\.0")
            self.assertEqual(entries(kernels), entries(), "the entry of another device")
            for family in FAMILIES:
                text = (kernels / family / "expected_time.json").read_text()
                written = json.loads(text)
                self.assertEqual(list(written), ["h100pcie", "h200"])
                self.assertEqual(shape(written["h100pcie"]), shape(written["h200"]), family)
                self.assertEqual(written["h100pcie"]["fitted_on"], truth[family]["fitted_on"])
                for problem, entry in times.items():
                    for index, us in entry:
                        if candidates[index].startswith(family + ":"):
                            own = fit.expected_us(family, parsed[problem], config_of(family, fields_of(candidates[index])), written["h100pcie"])
                            self.assertAlmostEqual(own / us, 1, delta=0.05, msg=f"{problem} {candidates[index]}")


if __name__ == "__main__":
    unittest.main()
