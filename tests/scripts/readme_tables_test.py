"""scripts/readme-tables: writes what the results say, and never a stale number."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "readme-tables"
README = "# x\n\n<!-- results: gpu/tiny -->\nold\n<!-- /results -->\n\nend\n"


def result(problem, p50, speedup):
    return {"schema": "flashcore.bench/1", "problem": problem, "name": "one", "device": {"name": "A GPU"}, "source_hash": "abcdef0123456789",
            "family": "sm80_fwd", "config": {}, "chosen_by": "dispatch", "time_us": {"p10": p50 - 1, "p50": p50, "p90": p50 + 1}, "tflops": 57.24, "gbps": 3609.0, "decode": "_sq1_" in problem, "floor_us": p50 / 2,
            "regime": "graph", "condition": "burst", "peers": [{"name": "peer", "version": "9", "speedup": speedup, "ci95": [speedup - 0.01, speedup + 0.01]}],
            "environment": {"commit": "0123456789abcdef", "driver": "1.2"}}


class ReadmeTables(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "README.md").write_text(README)
        (self.root / "results" / "gpu").mkdir(parents=True)
        self.verdict(0)

    def verdict(self, code, stale=(), wrong=(), unknown=()):
        """A stand-in for `flashcore verify` that gives this exit code and these rows."""
        stale, unknown = ([{"row": row, "name": "one", "why": "it has changed"} for row in rows] for rows in (stale, unknown))
        answer = json.dumps({"results": [{"stale": stale, "unknown": unknown, "wrong": list(wrong)}]})
        program = self.root / "flashcore"
        program.write_text(f"#!/bin/sh\n[ \"$1 $3 $4\" = 'verify --json -' ] && echo '{answer}'\nexit {code}\n")
        program.chmod(0o755)

    def results(self, *rows):
        (self.root / "results" / "gpu" / "tiny.json").write_text(json.dumps({"results": rows}))

    def run_script(self, *arguments):
        command = [sys.executable, str(SCRIPT), "--root", str(self.root), "--flashcore", str(self.root / "flashcore"), *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    def readme(self):
        return (self.root / "README.md").read_text()

    def test_writes_the_numbers_and_is_then_up_to_date(self):
        self.results(result("b1_h8_s512_d64_fp16", 9.4, 1.2), result("b1_h8_s2048_d64_fp16", 22.0, 0.9),
                     result("b1_h32_hk8_sq1_sk32768_d128_bf16", 40.0, 3.0))
        self.assertEqual(self.run_script("--check").returncode, 1)
        self.assertEqual(self.run_script().returncode, 0)
        text = self.readme()
        self.assertIn("9.40 [8.40, 10.4] | 57.2 TFLOP/s | 2.00× | 1.20× [1.19, 1.21]", text)
        self.assertIn("40.0 [39.0, 41.0] | 3,609 GB/s", text)
        self.assertIn("**geometric mean without decode** | | | | | **1.04×** of 2 |", text)
        self.assertIn("commit 0123456789ab", text)
        self.assertTrue(text.endswith("\nend\n") and "old" not in text)
        self.assertEqual(self.run_script("--check").returncode, 0)

    def test_errors_of_8_bits_are_beside_the_speed(self):
        row = result("b1_h8_s512_d64_e4m3", 9.4, 1.2)
        row["correct"] = {"rel_error": 0.031, "timed_rel_error": 0.0258}
        row["peers"][0]["rel_error"] = 0.03561
        other = result("b1_h8_s2048_d64_e5m2", 22.0, 0.9)  # of old, without errors
        self.results(row, other)
        self.assertEqual(self.run_script().returncode, 0)
        text = self.readme()
        self.assertIn("| × floor | error | error of peer | over peer |\n| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n", text)
        self.assertIn("| 2.00× | 0.026 | 0.036 | 1.20× [1.19, 1.21] |", text)
        self.assertIn("| 2.00× | – | – | 0.90×", text)
        self.assertIn("**geometric mean** | | | | | | | **1.04×** of 2 |", text)
        self.assertIn("*Error*: ‖o − o₆₄‖ / ‖o₆₄‖", text)
        self.results(row, result("b1_h8_s512_d64_bf16_kve4m3", 22.0, 0.9))
        self.run_script()
        self.assertNotIn("error", self.readme())

    def test_problems_of_the_suite_that_no_row_has_are_told(self):
        (self.root / "suites").mkdir()
        row = result("b1_h8_s512_d64_fp16", 9.4, 1.2)
        row.update(name="first", suite="few")
        problems = ["first", "second", "third"]
        (self.root / "suites" / "few.yaml").write_text("problems:\n" + "".join(f"  - {{name: {name}, seq_len: 5}}\n" for name in problems))
        self.results(row)
        self.assertEqual(self.run_script().returncode, 0)
        self.assertIn("Not measured here, of the 3 problems of `suites/few.yaml`: `second`, `third`.", self.readme())
        (self.root / "suites" / "few.yaml").write_text("problems:\n  - {name: first, seq_len: 5}\n")
        self.assertEqual(self.run_script().returncode, 0)
        self.assertNotIn("Not measured here", self.readme())

    def test_a_ranking_is_written_from_its_file(self):
        row = {"variant": "no_stores", "kind": "leave_one_out", "time_ratio": 0.987, "ci95": [0.98, 0.99]}
        ranking = {"problem": "b1", "candidate": "x_fwd:a=1", "device": {"name": "A GPU"}, "processes": 3, "regime": "graph", "condition": "burst", "ranking": [row],
                   "not_judged": [{"variant": "forced_spills", "why_not": "x_fwd+slow:a=1 did not pass its gates (resource), and: more\nlines"}]}  # fmt: skip
        (self.root / "docs" / "design").mkdir(parents=True)
        design = self.root / "docs" / "design" / "one.md"
        design.write_text("# y\n\n<!-- inversion: gpu/invert -->\nold\n<!-- /results -->\n")
        self.results(result("b1_h8_s512_d64_fp16", 9.4, 1.2))
        self.run_script()
        self.assertIn("Not measured yet: `results/gpu/invert.json`", design.read_text())
        (self.root / "results" / "gpu" / "invert.json").write_text(json.dumps({"results": [ranking]}))
        self.run_script()
        text = design.read_text()
        self.assertIn("| `no_stores` | left out | 0.99 [0.98, 0.99] |", text)
        self.assertIn("Not judged: `forced_spills`, it did not pass its gates (resource).", text)
        self.assertNotIn("old", text)
        self.assertIn("one session of 3 processes, graph, burst; the file names no day and no commit; source ?. From `results/gpu/invert.json`.", text)
        design.write_text("# y\n\n<!-- inversion: gpu/invert committed=2026-11-23,abc -->\n<!-- /results -->\n")
        self.run_script()
        self.assertIn("the file names no day and no commit, and was committed on 2026-11-23 (`abc`);", design.read_text())
        (self.root / "results" / "gpu" / "invert.json").write_text(json.dumps({"results": [ranking | {"measured_at": "2026-11-24T10:00:00.000Z"}]}))
        self.run_script()
        self.assertIn("; measured on 2026-11-24; source", design.read_text())

    def test_fuzzing_is_a_line_for_each_run(self):
        (self.root / "docs").mkdir()
        page = self.root / "docs" / "correctness.md"
        page.write_text("# y\n\n<!-- fuzz: gpu -->\nold\n<!-- /results -->\n")
        self.results(result("b1_h8_s512_d64_fp16", 9.4, 1.2))
        self.run_script()
        self.assertIn("Not run yet: `results/gpu` holds no fuzz*.json.", page.read_text())
        run = {"device": {"name": "A GPU", "id": "cuda:0"}, "seed": 7, "measured_at": "2026-01-02T03", "kinds": ["paged", "8bit"], "results": [{}] * 1200, "passed": 1199, "failed": 1,
               "by_family": {"x_fwd": {"passed": 1000, "failed": 1}, "y_fwd": {"passed": 199, "failed": 0}}, "by_kind": {"paged": {"passed": 3, "failed": 0}}}  # fmt: skip
        (self.root / "results" / "gpu" / "fuzz_paged.json").write_text(json.dumps(run))
        (self.root / "results" / "gpu" / "fuzz.json").write_text(json.dumps(run | {"kinds": [], "by_kind": {}}))
        self.assertEqual(self.run_script().returncode, 0)
        text = page.read_text()
        self.assertIn("| any | 1,200 | 1,199 | 1 | x_fwd 1000 (1 failed), y_fwd 199 | – | 7, 2026-01-02, `results/gpu/fuzz.json` |\n"
                      "| paged or 8bit | 1,200 | 1,199 | 1 | x_fwd 1000 (1 failed), y_fwd 199 | paged 3 | 7, 2026-01-02, `results/gpu/fuzz_paged.json` |", text)  # fmt: skip
        self.assertIn("A GPU, `--device cuda:0`.", text)
        self.verdict(1, stale=[0])
        self.run_script()
        self.assertIn("| any | – | – | – | it has changed | – | 7, 2026-01-02, `results/gpu/fuzz.json` |", page.read_text())
        self.verdict(0)
        (self.root / "results" / "gpu" / "fuzz.json").write_text("{}")
        self.assertIn("results/gpu/fuzz.json is not of schema flashcore.fuzz/1", self.run_script().stderr)

    def test_neighbours_are_a_line_for_each_run(self):
        (self.root / "docs").mkdir()
        page = self.root / "docs" / "correctness.md"
        page.write_text("# y\n\n<!-- neighbours: gpu -->\nold\n<!-- /results -->\n")
        self.results(result("b1_h8_s512_d64_fp16", 9.4, 1.2))
        self.run_script()
        self.assertIn("Not run yet: `results/gpu` holds no neighbours*.json.", page.read_text())
        run = {"device": {"name": "A GPU", "id": "cuda:0"}, "seed": 7, "measured_at": "2026-01-02T03", "candidate": "", "results": [{}] * 120, "passed": 1199, "failed": 1,
               "by_family": {"x_fwd": {"passed": 1000, "failed": 1}, "y_fwd": {"passed": 199, "failed": 0}}}  # fmt: skip
        (self.root / "results" / "gpu" / "neighbours.json").write_text(json.dumps(run))
        self.assertEqual(self.run_script().returncode, 0)
        text = page.read_text()
        self.assertIn("| of | sequences | batches | equal bits | other bits | by family | seed, day, file |\n| --- | ---: | ---: | ---: | ---: | --- | --- |\n"
                      "| what `deterministic_batch` takes | 120 | 1,200 | 1,199 | 1 | x_fwd 1000 (1 failed), y_fwd 199 | 7, 2026-01-02, `results/gpu/neighbours.json` |", text)  # fmt: skip
        (self.root / "results" / "gpu" / "neighbours.json").write_text(json.dumps(run | {"candidate": "x_fwd"}))
        self.run_script()
        self.assertIn("| `x_fwd` | 120 |", page.read_text())
        self.verdict(1, stale=[0])
        self.run_script()
        self.assertIn("| `x_fwd` | – | – | – | – | it has changed | 7, 2026-01-02, `results/gpu/neighbours.json` |", page.read_text())

    def needles(self, keys, *candidates):
        def one(text, value, found, drift, passes):
            return {"candidate": text, "gated": value == 1, "promotion": {"field": "promote_every", "value": value, "keys": 96 * value}, "needles": {"found": found}, "finds": passes,
                    "stays": passes, "drift": {"o_rms": drift}, "limit": {"o_rms": 0.0155}, "verdict": "passes" if passes else "loses 51 needles"}  # fmt: skip

        return {"seqlen_kv": keys, "head_dim": 64, "bf16": {"needles": {"found": 112}}, "candidates": [one(*candidate) for candidate in candidates]}

    def cache_errors(self, device, scale=1.0):
        caches = (("16 bits", None, 4096, 0.002), ("e4m3", "head", 2048, 0.04), ("int8", "token", 2112, 0.009))
        lines = [{"model": model, "keys": keys, "data": data, "cache": cache, "scaling": scaling, "bytes_per_key": size,
                  "end_to_end": {"o": scale * error * (1 + (data == "both")), "worst_row": 0.5, "lse": 1.25}, "kernel": {"o": 0.0021, "worst_row": 0.004, "lse": 3e-7}}
                 for model, keys in (("a", 1024), ("b", 32768)) for data in ("normal", "both") for cache, scaling, size, error in caches]  # fmt: skip
        lines[-1]["end_to_end"]["o"] = 0.034  # the largest of int8 beside both
        decoder = [{"weights": weights, "cache": cache, "scaling": scaling, "logits": error, "same_tokens": 9, "tokens": 12}
                   for weights in ("plain", "biased K") for cache, scaling, _, error in caches]  # fmt: skip
        return {"schema": "flashcore.cache_error/1", "device": device, "dtype": "bfloat16", "page_size": 16, "seed": 1, "measured_at": "2026-01-02T03", "source_hash": "abcdef0123456789",
                "models": {"a": {}, "b": {}}, "failed": [], "left_out": [{"left_out": "c", "why": "head dim 576"}], "lines": lines, "decoder": {"lines": decoder}}  # fmt: skip

    def test_cache_errors_of_the_device_or_else_of_another(self):
        page = self.root / "docs" / "serving.md"
        page.parent.mkdir()
        page.write_text("# y\n\n<!-- cache_error: gpu/cache_error otherwise=cpu -->\nold\n<!-- /results -->\n")
        self.results(result("b1_h8_s512_d64_fp16", 10.0, 1.5))
        self.assertEqual(self.run_script().returncode, 0)
        self.assertIn("Not measured yet: `results/gpu/cache_error.json` does not exist.", page.read_text())
        (self.root / "results" / "cpu").mkdir()
        (self.root / "results" / "cpu" / "cache_error.json").write_text(json.dumps(self.cache_errors("A CPU")))
        self.assertEqual(self.run_script().returncode, 0)
        text = page.read_text()
        self.assertIn("| int8, token | 52% | 0.009 | 0.034 | 0.5 | 1.2 | 0.0021 | 3e-07 |", text)
        self.assertIn("The largest over a, b and caches of 1,024 and 32,768 keys.\nLeft out: c (head dim 576).", text)
        self.assertIn("| data: both | 16 bits | int8, token |", text)
        self.assertIn("| b, 32,768 keys | 0.004 | 0.034 |", text)
        self.assertIn("| e4m3, head | 0.04 | 9 of 12 | 0.04 | 9 of 12 |", text)
        self.assertIn("A CPU, bfloat16, pages of 16 keys, seed 1, of 2026-01-02, source abcdef012345. From `results/cpu/cache_error.json`.", text)
        (self.root / "results" / "gpu" / "cache_error.json").write_text(json.dumps(self.cache_errors("A GPU", 2) | {"failed": ["it broke"]}))
        self.assertEqual(self.run_script("--check").returncode, 1)
        self.assertEqual(self.run_script().returncode, 0)
        self.assertIn("source abcdef012345. 1 of its gates failed: it broke. From `results/gpu/cache_error.json`.", page.read_text())
        self.assertNotIn("A CPU", page.read_text())
        for wrong in ({"lines": []}, {"decoder": {"lines": [{"weights": "plain"}]}}, {"lines": [{}]}):
            (self.root / "results" / "gpu" / "cache_error.json").write_text(json.dumps(self.cache_errors("A GPU") | wrong))
            done = self.run_script()
            self.assertEqual((done.returncode, "gpu/cache_error.json is not of schema flashcore.cache_error/1" in done.stderr), (3, True), (wrong, done.stderr))

    def test_surveys_by_their_schema(self):
        page = self.root / "docs" / "fp8.md"
        page.parent.mkdir()
        page.write_text("# y\n\n<!-- survey: gpu/quantize -->\n<!-- /results -->\n\n<!-- survey: gpu/block_mask -->\n<!-- /results -->\n")
        self.results(result("b1_h8_s512_d64_fp16", 10.0, 1.5))
        self.assertEqual(self.run_script().returncode, 0)
        self.assertIn("Not measured yet: `results/gpu/quantize.json` does not exist.", page.read_text())
        common = {"device": "A GPU", "rounds": 20, "measured_at": "2026-01-02T03", "source_hash": "abcdef0123456789", "dtype": "bfloat16"}
        timed = lambda way, share: {"way": way, "shape": "b1_s8", "gbps": {"flashcore": 3484.0, "copy": 4190.0}, "share_of_copy": share}  # noqa: E731
        quantize = {**common, "schema": "flashcore.quantize_bench/1", "rows": [timed("tensor", 0.8321), {"way": "hadamard", "shape": "b1_s8", "left_out": "a head dim of no transform"}]}
        problem = {"batch": 1, "heads": 4, "heads_kv": 2, "rows": 96, "dim": 64, "document": 20}
        blocks = {**common, "schema": "flashcore.block_mask_bench/1", "rows": [
            {"problem": problem, "us": {"own lists": 110.04, "block mask": 99.96}, "speed_up": 1.1008}, {"problem": {**problem, "document": 0}, "left_out": "other bits"},
            {"problem": {**problem, "rows": 32}, "us": {"own lists": 7.0, "block mask": 8.0}}]}  # fmt: skip
        for name, document in (("quantize", quantize), ("block_mask", blocks)):
            (self.root / "results" / "gpu" / f"{name}.json").write_text(json.dumps(document))
        self.assertEqual(self.run_script().returncode, 0)
        text = page.read_text()
        self.assertIn("| tensor | 3.48 (0.83) |\n| hadamard | – |", text)
        self.assertIn("4.19 to 4.19 TB/s", text)
        self.assertIn("| documents of 20 rows, causal<br>`b1_h4_hk2_s96_d64` | 110.0 | 100.0 | 1.101 |", text)
        self.assertIn("| boolean, causal pattern<br>`b1_h4_hk2_s96_d64` | – | – | other bits |", text)
        self.assertIn("`b1_h4_hk2_s32_d64` | 7.0 | 8.0 | – |", text)
        self.assertIn("A GPU, medians of 20 rounds, one process, no gates, of 2026-01-02, source abcdef012345. From `results/gpu/block_mask.json`.", text)
        (self.root / "results" / "gpu" / "quantize.json").write_text(json.dumps({**common, "schema": "flashcore.bench/1", "rows": []}))
        done = self.run_script()
        self.assertEqual((done.returncode, "gpu/quantize.json is no survey" in done.stderr), (3, True), done.stderr)

    def test_needles_are_a_table_and_a_chart(self):
        (self.root / "docs").mkdir()
        page = self.root / "docs" / "long-context.md"
        page.write_text("# y\n\n<!-- needles: gpu/needles -->\nold\n<!-- /results -->\n")
        self.results(result("b1_h8_s512_d64_fp16", 9.4, 1.2))
        self.run_script()
        self.assertIn("Not measured yet: results/gpu/needles.json", page.read_text())
        usual, never = ("x_fwd:promote_every=1", 1, 112, 0.0035, True), ("x_fwd:promote_every=0", 0, 61, 0.58, False)
        skipped = self.needles(131072) | {"bf16": None, "head_dim": 256}
        document = {"device": {"name": "A GPU"}, "seed": 1, "measured_at": "2026-01-02T03", "source_hash": "abcdef0123456789", "results": [self.needles(4096, usual), self.needles(131072, usual, never), skipped]}
        (self.root / "results" / "gpu" / "needles.json").write_text(json.dumps(document))
        self.assertEqual(self.run_script().returncode, 0)
        text = page.read_text()
        self.assertIn("| `x_fwd` | promote_every=1 (default) | 64 | 112 of 112, 0.0035 | 112 of 112, 0.0035 |", text)
        self.assertIn("| `x_fwd` | promote_every=0 (never) | 64 | – | **61 of 112, 0.58** |", text)
        self.assertIn("](charts/gpu_needles.svg)", text)
        drawn = xml.etree.ElementTree.parse(self.root / "docs" / "charts" / "gpu_needles.svg").getroot()
        dots = list(drawn.iter("{http://www.w3.org/2000/svg}circle"))
        self.assertEqual([dot.get("fill") == "none" for dot in dots], [False, False, True], "hollow where needles are lost")
        heights = [float(dot.get("cy")) for dot in dots]
        self.assertLess(heights[2], heights[1], "more drift is higher")
        (self.root / "results" / "gpu" / "needles.json").unlink()
        self.run_script()
        self.assertFalse((self.root / "docs" / "charts" / "gpu_needles.svg").exists())

    def test_one_mean_is_told_in_parts(self):
        short = [result(f"b1_h8_s{n}_d64_fp16", 9.4, 2.0) for n in (8, 16, 32)]
        long = [result(f"b1_h8_s{n}_d128_fp16", 90.0, 1.5) for n in (512, 1024, 2048)]
        self.results(*short, *long, result("b1_h8_sq1_sk512_d128_fp16", 9.0, 7.0))
        self.assertEqual(self.run_script().returncode, 0)
        self.assertIn("The mean over peer is 2.00× on the 3 shorter than 20 µs, 1.50× on the 3 of 20 µs or more, 1.50× on the 3 of head dim 128.", self.readme())

    def test_what_a_peer_does_otherwise_is_marked_and_sessions_are_told(self):
        rows = [result("b1_h8_s512_d64_fp16", 9.4, 1.2), result("b1_h8_hk2_s2048_d64_fp16", 22.0, 0.9)]
        rows[0]["peers"][0] |= {"notes": ["writes no LSE"], "sessions": 2}
        rows[1]["peers"][0] |= {"notes": ["writes no LSE", "repeats K and V"], "sessions": 1, "ci95": None}
        self.results(*rows)
        self.assertEqual(self.run_script().returncode, 0)
        text = self.readme()
        self.assertIn("| over peer † |", text, "what holds for every problem is in the head")
        self.assertIn("| 1.20× [1.19, 1.21] |", text)
        self.assertIn("| 0.90× § ‡ ¹ |", text)
        self.assertIn("§ no interval: none was recorded.", text)
        self.assertIn("† writes no log-sum-exp", text)
        self.assertIn("‡ knows no groups", text)
        self.assertIn("¹ of one session: its interval does not hold what differs between sessions. Each other speed-up rests on 2 sessions.", text)
        # All cells of one peer: its head has the mark. All of a table: a sentence.
        rows[1]["peers"] = [rows[0]["peers"][0], rows[0]["peers"][0] | {"name": "other", "sessions": 1}]
        self.results(*rows)
        self.run_script()
        self.assertIn("| over peer † | over other † ¹ |", self.readme())
        self.assertIn("| 1.20× [1.19, 1.21] |", self.readme())
        for row in rows:
            for peer in row["peers"]:
                peer["sessions"] = 1
        self.results(*rows)
        self.run_script()
        self.assertNotIn("¹", self.readme())
        self.assertIn("Each speed-up rests on 1 session.", self.readme())

    def test_a_sink_that_is_joined_after_is_marked(self):
        row = result("b1_h8_s512_d64_fp16", 9.4, 1.2)
        row["peers"][0]["notes"] = ["joins the sink after, by its log-sum-exp"]
        self.results(row)
        self.run_script()
        self.assertIn("| over peer # |", self.readme())
        self.assertIn("# knows no sinks", self.readme())

    def test_a_plan_on_the_host_is_marked_and_an_unknown_note_is_an_error(self):
        row = result("b1_h8_s512_d64_fp16", 9.4, 1.2)
        row["peers"][0]["notes"] = ["its plan of the lengths is made on the host before, and not timed"]
        self.results(row)
        self.assertEqual(self.run_script().returncode, 0)
        self.assertIn("| over peer ‖ |", self.readme())
        self.assertIn("‖ plans for the lengths on the host", self.readme())
        before = self.readme()
        row["peers"][0]["notes"].append("skips every other key")
        self.results(row)
        done = self.run_script()
        self.assertEqual(done.returncode, 3)
        self.assertIn("tiny.json: the note 'skips every other key' of peer has no mark", done.stderr)
        self.assertEqual(self.readme(), before)

    def test_a_kernel_that_dispatch_did_not_choose_is_marked(self):
        by_caller, silent = result("b1_h8_s512_d64_fp16", 9.4, 1.2) | {"chosen_by": "caller"}, result("b1_h8_s2048_d64_fp16", 22.0, 0.9)
        del silent["chosen_by"]
        self.results(by_caller, silent, result("b1_h8_s1024_d64_fp16", 12.0, 1.2))
        self.assertEqual(self.run_script().returncode, 0)
        self.assertEqual(self.readme().count("| `sm80_fwd` △ |"), 2)
        self.assertEqual(self.readme().count("| `sm80_fwd` |"), 1)
        self.assertIn("△ the caller chose the kernel, or the file does not say who did: `flashcore verify` does not ask whether dispatch would choose it. Means count the row all the same.", self.readme())
        self.results(by_caller | {"peers": []})
        self.run_script()
        self.assertIn("would choose it.\n", self.readme())

    def test_a_commit_of_another_history_is_marked(self):
        row = result("b1_h8_s512_d64_fp16", 9.4, 1.2)
        row["environment"]["commit"], row["environment"]["dirty"] = "bc3cbf5", True
        self.results(row, result("b1_h8_s2048_d64_fp16", 22.0, 0.9))
        self.run_script()
        self.assertIn("commits bc3cbf5 with changes (not in this repository), 0123456789ab; ", self.readme())

    def test_commits_that_results_name_are_here_or_are_marked(self):
        root = SCRIPT.parents[1]
        git = ["git", "-C", str(root)]
        shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True)
        if shallow.stdout.strip() != "false":
            self.skipTest("a copy without the history of git")
        listed = re.search(r"COMMITS_ELSEWHERE = (\(.*\))", SCRIPT.read_text())[1]
        named = {commit for path in (root / "results").rglob("*.json") for commit in re.findall(r'"commit": ?"(\w+)"', path.read_text())}
        self.assertGreater(len(named), 5)
        missing = {commit for commit in named if subprocess.run([*git, "cat-file", "-e", f"{commit}^{{commit}}"], capture_output=True).returncode}
        self.assertEqual(missing, set(re.findall(r"\w+", listed)))

    def test_a_session_on_a_busy_machine_is_marked(self):
        rows = [result("b1_h8_s512_d64_fp16", 9.4, 1.2), result("b1_h8_s2048_d64_fp16", 22.0, 0.9)]
        for row, busy in zip(rows, (0.26, 0.24)):
            row["measured"] = [{"samples_us": [1.0], "others_busy": 0.0}, {"samples_us": [1.0], "others_busy": busy}]
        self.results(*rows)
        self.run_script()
        self.assertIn("9.40 [8.40, 10.4] ◊ |", self.readme())
        self.assertIn("22.0 [21.0, 23.0] |", self.readme())
        self.assertIn("◊ in one of its sessions other programs kept 0.25 cores or more busy.", self.readme())

    def test_a_mean_says_how_many_are_level_and_a_cpu_has_one_of_decoding(self):
        rows = [result("b1_h8_s512_d64_bf16", 9.4, 1.2), result("b1_h8_s2048_d64_bf16", 22.0, 1.0), result("b1_h8_sq1_sk512_d64_bf16", 9.4, 0.5)]
        self.results(*rows)
        self.run_script()
        self.assertIn("**geometric mean without decode** | | | | | **1.10×** of 2, 1 level |", self.readme())
        self.assertIn("*Level* in a mean: of that many problems the interval holds 1", self.readme())
        self.assertNotIn("of decoding", self.readme())
        for row in rows:
            row["device"]["limits"] = {"kind": "cpu"}
        self.results(*rows)
        self.run_script()
        self.assertIn("**geometric mean of decoding** | | | | | **0.50×** of 1 |", self.readme())

    def test_fewer_than_twelve_rounds_show_no_interval_and_say_so(self):
        few, enough = result("b1_h8_s512_d64_fp16", 9.4, 1.2) | {"samples": 4}, result("b1_h8_s2048_d64_fp16", 22.0, 0.9) | {"samples": 12}
        self.results(few, enough)
        self.verdict(2)
        self.assertEqual(self.run_script().returncode, 0)
        text = self.readme()
        self.assertIn("| 1.20× § |", text)
        self.assertIn("| 0.90× [0.89, 0.91] |", text)
        self.assertIn("§ no interval: a session had 4 rounds, and at least 12 make one.", text)
        self.assertIn("keeps no raw samples", text)
        few["peers"][0]["samples_us"], enough["peers"][0]["samples_us"] = [[1.0] * 12, None, [1.0] * 11], [[1.0] * 12, None]
        self.results(few | {"samples": 23}, enough)
        self.run_script()
        self.assertIn("a session had 11 rounds", self.readme())
        self.assertNotIn("keeps no raw samples", self.readme())

    def test_times_of_bench_say_whether_samples_are_kept(self):
        one, two = (result(f"b1_h8_s{n}_d64_fp16", 9.4, 1.2) | {"peers": []} for n in (512, 1024))
        kept = {"samples_us": [9.3, 9.4, 9.5]}
        for rows, sentence in (((one, two), "no raw samples are kept, so that nothing confirms these times"),
                               ((one | kept, two), "no raw samples are kept of 1 of these 2 results, so that nothing confirms their times"),
                               ((one | kept, two | kept), None)):  # fmt: skip
            with self.subTest(sentence):
                self.results(*rows)
                self.assertEqual(self.run_script().returncode, 0)
                self.assertIn(sentence or "9.40", self.readme())
                if not sentence:
                    self.assertNotIn("no raw samples", self.readme())

    def test_only_what_is_right_is_shown(self):
        wrong = result("b1_h8_s512_d64_fp16", 9.4, 1.2) | {"ended": "incorrect"}
        beside = result("b1_h8_s2048_d64_fp16", 22.0, 0.9) | {"ended": "passed"}
        beside["peers"].append(beside["peers"][0] | {"name": "liar", "correct": False, "speedup": 5.0})
        self.results(wrong, beside)
        self.assertEqual(self.run_script().returncode, 0)
        text = self.readme()
        self.assertIn("not timed: incorrect", text)
        for left_out in ("9.40", "1.20×", "liar", "5.00"):
            self.assertNotIn(left_out, text)
        self.assertIn("**0.90×** of 1", text)

    def test_the_sessions_of_all_rows_are_told(self):
        one, two = result("b1_h8_s512_d64_fp16", 9.4, 1.2), result("b1_h8_s2048_d64_fp16", 22.0, 0.9)
        session = {"began_at": "2026-11-20T08:00:00.000Z", "commit": "aaaaaaaaaaaaaaaa", "driver": "580", "samples_us": [1.0]}
        one["measured"] = [session, session | {"commit": "bbbb", "began_at": "2026-11-23T08:00:00.000Z"}]
        two["measured"] = [session | {"driver": "581"}, {"began_at": "2026-11-24T08:00:00.000Z", "commit": "failed", "ended": "crashed"}]
        self.results(one, two)
        self.assertEqual(self.run_script().returncode, 0)
        text = self.readme()
        self.assertIn("drivers 580, 581", text)
        self.assertIn("commits aaaaaaaaaaaa, bbbb; measured on 2026-11-20, 2026-11-23. Peers", text)
        self.assertIn("of 2026-11-20, 2026-11-23.", text)
        self.assertNotIn("failed", text)
        one["measured"][1]["dirty"] = True
        self.results(one, two)
        self.run_script()
        self.assertIn("commits aaaaaaaaaaaa, bbbb with changes; measured", self.readme())

    def test_sessions_of_one_day_or_one_machine_are_told(self):
        first = {"began_at": "2026-11-20T08:00:00.000Z", "boot": "a", "samples_us": [1.0]}
        apart = [first, first | {"began_at": "2026-11-21T08:00:00.000Z", "boot": "b"}]
        one_day = [first, first | {"began_at": "2026-11-20T09:00:00.000Z", "boot": "b"}]
        no_boot = [apart[0], {key: value for key, value in apart[1].items() if key != "boot"}]
        told = {"": (apart, apart), "The sessions of each result are of one day.": (one_day, one_day), "The sessions of 1 of the 2 results are of one day.": (one_day, apart),
                "The sessions of each result are of one day and those of 1 of the 2 results may have had one machine": (one_day, [first, one_day[1] | {"boot": "a"}]),
                "The sessions of 1 of the 2 results may have had one machine (the same boot, or none recorded).": (apart, no_boot)}  # fmt: skip
        for sentence, sessions in told.items():
            with self.subTest(sentence):
                self.results(*(result(f"b1_h8_s{n}_d64_fp16", 9.4, 1.2) | {"measured": of} for n, of in zip((512, 1024), sessions)))
                self.assertEqual(self.run_script().returncode, 0)
                self.assertIn(sentence or "Each speed-up rests on", self.readme())
                if not sentence:
                    self.assertNotIn("The sessions of", self.readme())

    def test_evidence_says_where_and_when_it_was_measured(self):
        folder = self.root / "results" / "experiments" / "one"
        folder.mkdir(parents=True)
        (self.root / "docs" / "cookbook").mkdir(parents=True)
        page = self.root / "docs" / "cookbook" / "one.md"
        page.write_text("# y\n\n<!-- evidence: one -->\nold\n<!-- /results -->\n")
        self.results(result("b1_h8_s512_d64_fp16", 9.4, 1.2))
        self.run_script()
        self.assertIn("Not measured yet: `results/experiments/one`", page.read_text())
        (folder / "verdict.md").write_text("## Evidence\n\n| candidate | problem | detectable | verdict | speed-up [95%] | median time |\n| --- | --- | --- | --- | --- | --- |\n"
                                           "| x | p | 1% | SAME | 1.0 \\[0.9, 1.1\\] | 2 µs |\n\nA GPU, margin 3.0%, 3 processes, 9 samples\n")  # fmt: skip
        (folder / "verdict.json").write_text(json.dumps({"device": {"name": "A GPU", "driver": "580"}, "regime": "graph", "condition": "burst",
                                                         "created_at": "2026-11-21T18:25:18.696Z", "source_hash": "abcdef0123456789"}))  # fmt: skip
        self.run_script()
        self.assertIn("| x | p | SAME | 1.0 [0.9, 1.1] | 2 µs |\n\nA GPU; driver 580; graph, burst; one session of 3 processes, measured on 2026-11-21; "
                      "source abcdef012345. From `results/experiments/one`.", page.read_text())  # fmt: skip
        (folder / "verdict.md").write_text("nothing")
        self.assertEqual(self.run_script().returncode, 3)

    def test_results_that_do_not_say_whether_they_decode_are_asked_for(self):
        rows = [result("b1_h8_s512_d64_fp16", 9.4, 1.2), result("b1_h32_hk8_sq1_sk32768_d128_bf16", 40.0, 3.0)]
        for row in rows:
            del row["decode"]
        self.results(*rows)
        program = self.root / "flashcore"
        answer = json.dumps({"results": [{"decode": False}, {"decode": True}]})
        fresh = json.dumps({"results": [{"stale": [], "wrong": []}]})
        program.write_text(f"#!/bin/sh\n[ $1 = verify ] && echo '{fresh}' && exit 0\n[ \"$*\" = 'problem {rows[0]['problem']} {rows[1]['problem']} --json - --quiet' ] && echo '{answer}'\n")
        self.assertEqual(self.run_script().returncode, 0)
        self.assertIn("9.40 [8.40, 10.4] | 57.2 TFLOP/s", self.readme())
        self.assertIn("40.0 [39.0, 41.0] | 3,609 GB/s", self.readme())

    def test_a_changed_number_is_noticed(self):
        self.results(result("b1_h8_s512_d64_fp16", 9.4, 1.2))
        self.run_script()
        (self.root / "README.md").write_text(self.readme().replace("57.2", "67.2"))
        done = self.run_script("--check")
        self.assertEqual(done.returncode, 1)
        self.assertIn("67.2", done.stdout)

    def test_a_problem_that_was_not_timed_says_why(self):
        untimed = result("b1_h8_s512_d64_fp16", 9.4, 1.2) | {"time_us": None, "ended": "incorrect", "peers": []}
        self.results(untimed, result("b1_h8_s2048_d64_fp16", 22.0, 0.9))
        self.assertEqual(self.run_script().returncode, 0)
        self.assertIn("not timed: incorrect", self.readme())

    def test_stale_results_show_no_number(self):
        self.results(result("b1_h8_s512_d64_fp16", 9.4, 1.2))
        self.verdict(1, stale=[0])
        self.run_script()
        self.assertIn("is stale", self.readme())
        self.assertNotIn("57.2", self.readme())

    def test_rows_of_unknown_age_leave_the_documents_as_they_are(self):
        self.results(result("b1_h8_s512_d64_fp16", 9.4, 1.2))
        self.verdict(2, unknown=[0])
        done = self.run_script()
        self.assertEqual(done.returncode, 4)
        self.assertIn("it has changed. Use the NVRTC", done.stderr)
        self.assertEqual(self.readme(), README)

    def test_a_stale_row_leaves_the_others_as_they_are(self):
        self.results(result("b1_h8_s512_d64_fp16", 9.4, 1.2), result("b1_h8_s2048_d64_fp16", 22.0, 3.0), result("b1_h8_s1024_d64_fp16", 12.0, 1.2))
        self.verdict(1, stale=[1])
        self.run_script()
        self.assertIn("9.40 [8.40, 10.4]", self.readme())
        self.assertIn("`b1_h8_s2048_d64_fp16` | `sm80_fwd` | stale | – |", self.readme())
        self.assertNotIn("22.0", self.readme())
        self.assertIn("**geometric mean of the 2 that are fresh** | | | | | **1.20×**", self.readme())
        self.assertIn("1 stale: it has changed.", self.readme())

    def test_figures_that_contradict_each_other_are_not_shown(self):
        self.results(result("b1_h8_s512_d64_fp16", 9.4, 1.2))
        self.verdict(1, wrong=["one: 57 is no throughput of 9"])
        self.run_script()
        self.assertIn("57 is no throughput of 9", self.readme())
        self.assertNotIn("57.2", self.readme())

    def test_a_verdict_that_could_not_be_had_is_an_error_and_writes_nothing(self):
        self.results(result("b1_h8_s512_d64_fp16", 9.4, 1.2))
        self.verdict(3)
        self.assertEqual(self.run_script().returncode, 4)
        self.assertEqual(self.readme(), README)

    def test_what_scripts_peers_writes(self):
        """Its own decode flag, and entries that never ran: no family, no time, no peers."""
        device = {"name": "A GPU", "key": "gpu", "id": "cuda:0", "driver": "1.2", "source_hash": "abcdef0123456789", "ceilings": {}}
        peers = [{"name": name, "version": version, "time_us": {"p10": 9, "p50": 10, "p90": 11}, "speedup": 1.5, "ci95": [1.4, 1.6], "rel_error": 3e-4}
                 for name, version in (("cudnn", "PyTorch 2, cuDNN 9"), ("flash", "PyTorch 2"))]
        whole = result("b1_h8_s512_d64_fp16", 9.4, 1.0) | {
            "device": device, "config": "block_m=64", "decode": False, "peers": peers, "refused": {}, "environment": {"driver": "1.2", "commit": ""}}
        alone = whole | {"problem": "b1_h8_s2048_d64_fp16", "peers": [], "refused": {"cudnn": "no"}}
        decode = whole | {"problem": "b1_h8_s2047_d64_fp16", "decode": True, "peers": [peer | {"speedup": 9.0} for peer in peers]}
        ended = {"problem": "b1_h8_s7_d64_fp16", "name": "odd", "ended": "incorrect", "message": "wrong", "schema": "flashcore.bench/1",
                 "device": device, "source_hash": "abcdef0123456789", "environment": {"driver": "1.2", "commit": ""}}
        self.results(ended, whole, alone, decode)
        done = self.run_script()
        self.assertEqual(done.returncode, 0, done.stderr)
        text = self.readme()
        self.assertIn("odd<br>`b1_h8_s7_d64_fp16` | – | not timed: incorrect | – | – | – | – |", text)
        self.assertIn("57.2 TFLOP/s | 2.00× | – | – |", text)
        self.assertIn("3,609 GB/s | 2.00× | 9.00×", text)
        self.assertIn("**geometric mean without decode** | | | | | **1.50×** of 1 | **1.50×** of 1 |", text)
        self.assertIn("A GPU; driver 1.2; graph, burst; the file says no day; one session of each. Peers", text)
        self.verdict(1, stale=range(4))
        self.run_script()
        self.assertIn("`python -m flashcore.peers --suite suites/tiny.yaml --json results/gpu/tiny.json` measures them again", self.readme())

    def test_a_stale_file_of_sustained_samples_is_measured_again_as_such(self):
        self.results({**result("b1_h8_s512_d64_fp16", 4.0, 2.0), "condition": "sustained"})
        self.verdict(1, stale=[0])
        self.run_script()
        self.assertIn("suites/tiny.yaml --condition sustained --json results/gpu/tiny.json` measures them again", self.readme())

    def test_nothing_timed_is_still_a_table(self):
        self.results({"problem": "b1_h8_s7_d64_fp16", "name": "odd", "ended": "crashed", "source_hash": "abcdef0123456789"})
        self.assertEqual(self.run_script().returncode, 0)
        self.assertIn("not timed: crashed", self.readme())

    def family_readme(self, family, text=README):
        path = self.root / "src" / "kernels" / family / "README.md"
        path.parent.mkdir(parents=True)
        path.write_text(text)
        return path

    def test_a_family_shows_what_it_ran(self):
        ours, idle, unmarked = self.family_readme("sm80_fwd"), self.family_readme("ref_fwd"), self.family_readme("cpu_fwd", "no block\n")
        self.results(result("b1_h8_s512_d64_fp16", 9.4, 1.2), result("b1_h8_s2048_d64_fp16", 22.0, 0.9) | {"family": "sm90_fwd"})
        self.assertEqual(self.run_script("--check").returncode, 1)
        self.assertIn("old", ours.read_text())
        self.assertEqual(self.run_script().returncode, 0)
        self.assertIn("9.40 [8.40, 10.4]", ours.read_text())
        self.assertNotIn("s2048", ours.read_text())
        self.assertIn("s2048", self.readme())
        self.assertIn("None of the problems in `results/gpu/tiny.json` ran `ref_fwd`", idle.read_text())
        self.assertEqual(unmarked.read_text(), "no block\n")
        ours.write_text(ours.read_text().replace("9.40", "8.40"))
        done = self.run_script("--check")
        self.assertEqual(done.returncode, 1)
        self.assertIn("src/kernels/sm80_fwd/README.md is not what results/ say", done.stderr)

    def test_stale_results_leave_no_number_in_a_family(self):
        path = self.family_readme("sm80_fwd")
        self.results(result("b1_h8_s512_d64_fp16", 9.4, 1.2))
        self.run_script()
        self.verdict(1, stale=[0])
        self.run_script()
        self.assertIn("is stale", path.read_text())
        self.assertNotIn("9.40", path.read_text())

    def test_missing_results_say_so(self):
        self.run_script()
        self.assertIn("Not measured yet", self.readme())

    def test_a_document_may_show_some_problems_and_peers_in_brief(self):
        (self.root / "README.md").write_text(README.replace("gpu/tiny", "gpu/tiny problems=two peers=peer"))
        other = {"name": "slow", "version": "1", "speedup": 7.0, "ci95": [6.9, 7.1]}
        one, two = result("b1_h8_s512_d64_fp16", 9.4, 1.2), result("b1_h8_s2048_d64_fp16", 22.0, 0.9) | {"name": "two"}
        one["peers"].append(other)
        two["peers"].append(other)
        self.results(one, two)
        self.assertEqual(self.run_script().returncode, 0)
        text = self.readme()
        self.assertIn("| `b1_h8_s2048_d64_fp16` | `sm80_fwd` | 22.0 | 57.2 TFLOP/s | 2.00× | 0.90× [0.89, 0.91] |", text)
        self.assertIn("**geometric mean of all 2** | | | | | **1.04×** of 2 |", text)  # of those left out too
        for left_out in ("s512", "slow", "7.00", "22.0 ["):
            self.assertNotIn(left_out, text)
        self.assertIn("commit 0123456789ab; the file says no day; one session of each. Peers, measured in the same run: peer 9. From `results/gpu/tiny.json`.", text)
        self.assertEqual(self.run_script("--check").returncode, 0)
        (self.root / "README.md").write_text(README.replace("gpu/tiny", "gpu/tiny problems=gone"))
        done = self.run_script()
        self.assertEqual(done.returncode, 3)
        self.assertIn("no problem named gone", done.stderr)

    def test_docs_results_and_pages_of_folders_are_written_too(self):
        pages = [self.root / "docs" / name for name in ("results.md", "design/one.md", "cookbook/one.md")]
        for page in pages:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(README)
        self.results(result("b1_h8_s512_d64_fp16", 9.4, 1.2))
        self.assertEqual(self.run_script().returncode, 0)
        for page in pages:
            self.assertIn("9.40 [8.40, 10.4]", page.read_text())

    def test_a_chart_has_a_dot_for_each_problem_and_is_fresh_or_gone(self):
        (self.root / "docs").mkdir()
        (self.root / "README.md").write_text(README.replace("results: gpu", "chart: gpu"))
        decode = result("b1_h32_hk8_sq1_sk32768_d128_bf16", 40.0, 3.0)
        self.results(result("b1_h8_s512_d64_fp16", 9.4, 1.25), result("b1_h8_s2048_d64_fp16", 22.0, 0.8), decode)
        self.assertEqual(self.run_script("--check").returncode, 1)
        self.assertEqual(self.run_script().returncode, 0)
        self.assertIn("](docs/charts/gpu_tiny.svg)", self.readme())
        chart = self.root / "docs" / "charts" / "gpu_tiny.svg"
        drawn = xml.etree.ElementTree.parse(chart).getroot()
        dots = [circle for circle in drawn.iter("{http://www.w3.org/2000/svg}circle") if len(circle)]
        self.assertEqual([(dot.get("class"), dot[0].text) for dot in dots], [
            ("dot", "b1_h8_s2048_d64_fp16: 0.80×"), ("dot", "b1_h8_s512_d64_fp16: 1.25×"), ("decode", f"{decode['problem']}: 3.00×")])  # fmt: skip
        across = [float(dot.get("cx")) for dot in dots]
        self.assertEqual(across, sorted(across))
        equal = next(line for line in drawn.iter("{http://www.w3.org/2000/svg}line") if line.get("class") == "equal")
        self.assertTrue(across[0] < float(equal.get("x1")) < across[1])
        self.assertIn("peer 1.00", drawn.find("{http://www.w3.org/2000/svg}desc").text)  # without decoding
        self.assertIn("prefers-color-scheme: dark", chart.read_text())
        self.assertEqual(self.run_script("--check").returncode, 0)
        chart.write_text(chart.read_text().replace("1.25×", "1.35×"))
        self.assertEqual(self.run_script("--check").returncode, 1)
        self.verdict(1, stale=range(3))
        self.assertEqual(self.run_script("--check").returncode, 1)
        self.run_script()
        self.assertIn("is stale", self.readme())
        self.assertFalse(chart.exists())
        self.assertEqual(self.run_script("--check").returncode, 0)

    def test_another_schema_is_bad_input(self):
        (self.root / "results" / "gpu" / "tiny.json").write_text('{"results": [{"problem": "x"}]}')
        self.assertEqual(self.run_script().returncode, 3)


if __name__ == "__main__":
    unittest.main()
