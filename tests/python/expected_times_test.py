"""scripts/fit-expected-times has the formulas of Family::expected_us: with the constants that the C++ source holds, both say
the same of the same problems."""

import importlib.machinery
import importlib.util
import json
import os
import re
import subprocess
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
BINARY = os.environ.get("FLASHCORE_BINARY", str(ROOT / "build" / "flashcore"))
KERNELS = ROOT / "src" / "kernels"
PROBLEMS = """b1_h12_s2048_d128_bf16 b4_h16_s577_d64_fp16 b96_h16_s128_d64_fp16_causal b1_h8_s3000_d64_fp16_causal
b25_h12_s300_d96_bf16 b2_h16_s2048_d192_dv128_bf16_causal b4_h8_s900_d256_fp16 b1_h8_s512_d64_fp16 b1_h2_s1024_d128_fp16_causal
b4_h32_hk8_sq16_sk4096_d128_bf16 b64_h32_hk8_sq1_sk4096_d128_bf16 b1_h16_sq64_sk20000_d128_bf16 b3_h40_hk8_sq1_sk5000_d64_bf16
b1_h8_hk1_sq1_sk60000_d128_bf16 b16_h12_s64_d40_fp16 b1_h8_s32_d64_fp16 b3_h40_hk8_sq1_sk100_d128_bf16 b2_h5_s77_d72_bf16_causal""".split()


def script():
    loader = importlib.machinery.SourceFileLoader("fit_expected_times", str(ROOT / "scripts" / "fit-expected-times"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def constants(fit):
    """Of sm90_fwd, by head dim and tile, of sm90_short_fwd, by is_streamed, and of sm80_short_fwd, in the script's order."""
    source = (KERNELS / "sm90_fwd" / "expected_time.cpp").read_text()
    tiles = {}
    for widest, name in ((64, "kSmall"), (128, "kMiddle"), (256, "kLarge")):
        table = re.search(rf"{name}\[\] = (.*?);", source, re.DOTALL)[1]
        for row in re.findall(r"\{(\d[^{}]*)\}", table):
            consumers, block_n, groups, *rest = row.split(",")
            tiles[widest, int(consumers), int(block_n), int(groups)] = [float(x) for x in rest]

    def named(family, names):
        source = (KERNELS / family / "expected_time.cpp").read_text()
        value = {name: float(text) for name, text in re.findall(r"(k\w+) = ([\d.]+)(?:e\d)?[,;]", source)}
        return [value[name] for name in names.split()]

    source = (KERNELS / "sm90_short_fwd" / "expected_time.cpp").read_text()
    short = {}
    for streamed, name in ((False, "kShared"), (True, "kStreamed")):
        *rest, norm = map(float, re.search(rf"{name} = \{{(.*?)\}}", source, re.DOTALL)[1].split(","))
        short[streamed] = rest
        assert norm == (fit.STREAMED_NORM if streamed else 2)
    direct = "kStart kStep kStepProducts kMerge kMergeParts kLoadedBytes"
    return tiles, short, named("sm80_short_fwd", direct)


class ExpectedTimesTest(unittest.TestCase):
    def test_the_script_and_the_library_expect_the_same(self):
        fit = script()
        tiles, short, direct = constants(fit)
        compared = directs = 0
        parsed = fit.parse_all(PROBLEMS)
        for problem in PROBLEMS:
            done = subprocess.run([BINARY, "explain", "--arch", "sm_90", "--key", "none", "--problem", problem, "--json", "-", "--quiet"],
                                  stdout=subprocess.PIPE, text=True, check=True)  # fmt: skip
            entry = json.loads(done.stdout)["results"][0]
            for choice in [entry, *entry["alternatives"]]:
                told = re.search(r"expected to take ([\d.]+) us", choice["reason"])
                fields = tuple(map(int, re.findall(r"=(\d+)", choice["candidate"])))
                p = parsed[problem]
                if choice["candidate"].startswith("sm90_fwd:"):
                    widest = next(w for w in (64, 128, 256) if max(p["dim"], p["dim_v"]) <= w)
                    tile = (*fields[:2], fields[8])
                    own = fit.sm90_fwd_us(p, tile, tiles[(widest, *tile)])
                elif choice["candidate"].startswith("sm90_short_fwd:"):
                    own = fit.sm90_short_fwd_us(p, fields[:6], short[fit.is_streamed(p, fields)])
                elif choice["candidate"].startswith("sm80_short_fwd:") and told:
                    own = fit.sm80_short_fwd_us(p, fields, direct)
                    directs += 1
                else:
                    continue
                self.assertAlmostEqual(float(told[1]), own, delta=0.06 + 1e-3 * own, msg=f"{problem} {choice['candidate']}")
                compared += 1
        self.assertGreaterEqual(compared, 2 * len(PROBLEMS) - 5)
        self.assertGreaterEqual(directs, 4)


if __name__ == "__main__":
    unittest.main()
