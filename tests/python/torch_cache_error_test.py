"""python -m flashcore.cache_error on the CPU: errors in the order that types and factors have, figures that a dropped factor moves, and what is refused."""

import contextlib
import io
import json
import math
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
try:
    import torch
except ImportError as error:
    print(f"{error}: skipped")
    sys.exit(77)

from flashcore import _cache_data as data, _cache_stack as stack, cache_error, paged_attention  # noqa: E402

SMALL = ["--device", "cpu", "--keys", "200", "--batch", "2", "--rows", "5"]  # 200: the last page of each sequence is half full
TYPES = ("e4m3", "e5m2", "int8", "int4")
SMALL_DECODER = stack.Sizes(layers=2, hidden=128, heads=4, heads_kv=2, dim=32, vocabulary=256, batch=2, prompt=40)


def run(*arguments):
    """(exit code, what was printed, the file)."""
    out = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        path = Path(folder) / "made" / "errors.json"
        try:
            code = cache_error.main([*SMALL, *arguments, "--json", str(path)])
        except SystemExit as stopped:
            code = stopped.code
        return code, out.getvalue(), json.loads(path.read_text()) if path.exists() else None


class CacheErrorTest(unittest.TestCase):
    def test_help_says_what_the_slacks_are(self):
        _, text, _ = run("--help")
        options = {block.split()[0]: " ".join(block.split()) for block in text.split("\n  --")[1:]}
        self.assertIn("distance ||o - o64|| / ||o64|| of the 16-bit cache", options["slack"])
        self.assertIn("how far a log-sum-exp may be", options["lse-slack"])

    @classmethod
    def setUpClass(cls):
        with mock.patch.object(stack, "SIZES", SMALL_DECODER):
            cls.code, cls.text, cls.made = run("--models", "Qwen2.5-7B,gpt-oss,DeepSeek-V3", "--data", "normal,both", "--tokens", "6")

    def errors(self, model, kind, part="end_to_end", what="o"):
        return {(line["cache"], line["scaling"]): line[part][what] for line in self.made["lines"] if (line["model"], line["data"]) == (model, kind)}

    def test_the_file_says_all(self):
        self.assertEqual((self.code, self.made["schema"], self.made["failed"]), (0, "flashcore.cache_error/1", []), self.text)
        for name in ("device", "key", "source_hash", "measured_at", "pytorch", "dtype", "batch", "rows", "page_size", "seed", "models"):
            self.assertTrue(self.made[name], name)
        self.assertEqual([each["left_out"] for each in self.made["left_out"]], ["DeepSeek-V3"])
        self.assertIn("without DeepSeek-V3: head dim 576", self.text)
        self.assertEqual(len(self.made["lines"]), 2 * 2 * len(cache_error.WAYS))
        for line in self.made["lines"]:
            self.assertEqual(sorted(line), ["bytes_per_key", "cache", "data", "end_to_end", "kernel", "keys", "model", "scaling"])
            for part in ("end_to_end", "kernel"):
                self.assertEqual(sorted(line[part]), ["lse", "o", "worst_row"])
                self.assertGreater(line[part]["worst_row"], line[part]["o"])
            if line["scaling"] is None:
                self.assertEqual(line["end_to_end"], line["kernel"])

    def test_errors_have_the_order_of_types_and_factors(self):
        for model in ("Qwen2.5-7B", "gpt-oss"):
            of = self.errors(model, "normal")
            order = [("16 bits", None), *((kind, "token") for kind in ("int8", "e4m3", "e5m2", "int4"))]
            self.assertEqual(order, sorted(order, key=of.get), (model, of))
            outliers = self.errors(model, "both")
            for kind in ("e4m3", "int8"):
                self.assertLess(outliers["16 bits", None], outliers[kind, "token"])
                self.assertLess(outliers[kind, "token"], outliers[kind, "tensor"])
            self.assertLess(2 * outliers["int8", "token"], outliers["int8", "tensor"])
            for found in (of, outliers):
                for scaling in data.SCALINGS:
                    self.assertEqual(max(TYPES, key=lambda kind: found[kind, scaling]), "int4", scaling)  # noqa: B023
            for kind in ("int8", "int4"):  # no exponents: finer factors are better
                self.assertEqual(list(data.SCALINGS), sorted(data.SCALINGS, key=lambda scaling: -of[kind, scaling]))  # noqa: B023
            # Of e4m3 as docs/fp8.md derives it: roundings of K and of V by 2^-4 x 0.425.
            self.assertAlmostEqual(of["e4m3", "token"], math.sqrt(2) * 2.0**-4 * 0.425, delta=0.004)

    def test_the_kernel_is_as_near_to_its_own_numbers_as_with_16_bits(self):
        for model in ("Qwen2.5-7B", "gpt-oss"):
            for kind in ("normal", "both"):
                of = self.errors(model, kind, "kernel")
                self.assertLess(max(of.values()), 1.5 * of["16 bits", None])
                self.assertLess(max(self.errors(model, kind, "kernel", "lse").values()), 1e-4)

    def test_a_dropped_or_wrong_factor_fails(self):
        def without(role, call):
            def wrong(*arrays, **options):
                if role in options:
                    options[role] = torch.ones_like(options[role])
                return call(*arrays, **options)

            return wrong

        for role in ("descale_k", "descale_v"):
            with self.subTest(role), mock.patch.object(cache_error, "paged_attention", without(role, paged_attention)):
                code, text, made = run("--models", "gpt-oss", "--data", "normal", "--keys", "64", "--tokens", "0")
                self.assertEqual(code, 1)
                for kind in TYPES:
                    for scaling in data.SCALINGS:
                        self.assertIn(f"FAILED gpt-oss, 64 keys, normal, {kind}, {scaling}: the kernel is ", text)
                self.assertNotIn("16 bits: the", text)
        scaled = lambda *arrays, **options: (lambda o, lse: (o, lse + 0.01))(*paged_attention(*arrays, **options))  # noqa: E731
        with mock.patch.object(cache_error, "paged_attention", scaled):
            code, text, made = run("--models", "gpt-oss", "--data", "normal", "--keys", "64", "--tokens", "0")
            self.assertEqual((code, len(made["failed"])), (1, len(cache_error.WAYS)))
            self.assertIn("16 bits: its log-sum-exp is 0.01 from", text)

    def test_a_code_that_is_not_the_nearest_shows_as_cost_not_as_the_kernels(self):
        """Quantising is judged from end to end alone: a quarter of the codes' range makes its cost four times as large and leaves the kernel's part."""
        with mock.patch.dict(data.LARGEST, {"int8": 127.0 / 4}):
            code, _, made = run("--models", "gpt-oss", "--data", "normal", "--keys", "64", "--tokens", "0")
        coarse = next(line for line in made["lines"] if (line["cache"], line["scaling"]) == ("int8", "head"))
        self.assertEqual(code, 0)
        self.assertGreater(coarse["end_to_end"]["o"], 3 * self.errors("gpt-oss", "normal")["int8", "head"])
        self.assertLess(coarse["kernel"]["o"], 0.003)

    def test_a_latent_cache_has_one_tensor(self):
        latent = data.Shape(heads=8, heads_kv=1, dim=96, dim_v=64, rotary_dim=32)
        with mock.patch.dict(data.MODELS, {"latent": latent}):
            code, text, made = run("--models", "latent", "--data", "both", "--tokens", "0")
        self.assertEqual((code, made["failed"]), (0, []), text)
        of = {(line["cache"], line["scaling"]): line for line in made["lines"]}
        self.assertEqual([of[way]["bytes_per_key"] for way in (("16 bits", None), ("int8", "head"), ("int8", "token"), ("int4", "page"))], [192, 96, 100, 52])
        self.assertLess(of["int8", "token"]["end_to_end"]["o"], of["int8", "tensor"]["end_to_end"]["o"])

    def test_bytes_of_keys(self):
        llama = data.MODELS["Llama-3-8B"]
        self.assertEqual([data.bytes_per_key(llama, *way) for way in ((None, None), ("e4m3", "head"), ("int8", "token"), ("int4", "page"), ("int4", "tensor"))],
                         [4096, 2048, 2048 + 64, 1024 + 64, 1024])  # fmt: skip

    def test_the_reference_is_pytorchs(self):
        x = data.make(data.Shape(6, 2, 16, 16, 16), "both", 3, 40, 7, torch.float16, "cpu", 1)
        o, lse = cache_error.reference(*x)
        heads = lambda y: y.double().transpose(0, 1)[None]  # noqa: E731
        for sequence, rows in ((0, slice(0, 1)), (1, slice(1, 2)), (2, slice(2, 9))):
            q, k, v = heads(x.q[rows]), heads(x.k[sequence]), heads(x.v[sequence])
            mask = torch.ones(q.shape[2], 40, dtype=torch.bool).tril(40 - q.shape[2])
            right = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
            torch.testing.assert_close(o[rows].transpose(0, 1)[None], right)
            self.assertEqual(lse[:, rows].shape, (6, q.shape[2]))

    def test_data_is_what_it_says(self):
        shape = data.MODELS["gpt-oss"]
        x = data.make(shape, "channels", 2, 300, 4, torch.float32, "cpu", 1)
        spread = x.k.square().mean((0, 1)).sqrt()  # [heads_kv, dim]
        pairs = spread[:, :32].square() + spread[:, 32:].square()
        self.assertEqual((pairs > 60).sum(1).tolist(), [2] * 8)
        x = data.make(shape, "sink", 2, 300, 4, torch.float32, "cpu", 1)
        q, k = x.q[:1].view(8, 8, 64), x.k[0].permute(1, 2, 0)
        weight = (q @ k / 8).softmax(-1)[..., 0].mean()
        self.assertTrue(0.35 < weight < 0.65, weight)
        self.assertLess(x.v[:, 0].abs().max(), 0.1)
        again = data.make(shape, "sink", 2, 300, 4, torch.float32, "cpu", 1)
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(x, again)))

    def test_the_decoder(self):
        lines = self.made["decoder"]["lines"]
        self.assertEqual(len(lines), 2 * len(stack.WAYS))
        for weights in stack.WEIGHTS:
            of = {(line["cache"], line["scaling"]): line for line in lines if line["weights"] == weights}
            self.assertEqual((of["16 bits", None]["same_tokens"], of["16 bits", None]["tokens"]), (12, 12))
            self.assertLess(of["16 bits", None]["logits"], 0.03)
            order = [("16 bits", None), *((kind, "token") for kind in ("int8", "e4m3", "e5m2", "int4"))]
            self.assertEqual(order, sorted(order, key=lambda way: of[way]["logits"]), (weights, of))  # noqa: B023
        with mock.patch.object(stack, "SIZES", SMALL_DECODER):
            self.assertEqual(list(stack.measure(6, "bfloat16", "cpu", 1)), lines, "by seed")
            unscaled = lambda *arrays, descale_v=None, **options: paged_attention(*arrays, descale_v=descale_v if descale_v is None else 2 * descale_v, **options)  # noqa: E731
            with mock.patch.object(stack, "paged_attention", unscaled):
                wrong = {(line["cache"], line["scaling"]): line["logits"] for line in stack.measure(6, "bfloat16", "cpu", 1) if line["weights"] == "plain"}
            right = {(line["cache"], line["scaling"]): line["logits"] for line in lines if line["weights"] == "plain"}
            self.assertTrue(all(wrong[way] > 3 * right[way] for way in right if way[0] in ("e4m3", "int8")), wrong)

    def test_kernels_of_all_caches_are_compiled_ahead(self):
        with mock.patch.object(cache_error, "attend", mock.Mock(wraps=cache_error.attend)) as attend:
            cache_error.compile_ahead(["gpt-oss"], 32, 2, 2, "bfloat16", "cpu")
        self.assertEqual(attend.call_count, len(cache_error.WAYS))

    def test_what_is_refused(self):
        cases = ((["--models", "GPT-5"], "--models GPT-5: use some of Llama-3-8B,"), (["--data", "odd"], "--data odd: use some of normal,channels"),
                 (["--keys", "8"], "--keys 8: give numbers of keys, at least 16"), (["--keys", "many"], "--keys many"), (["--rows", "0"], "--rows is 0: at least 1"),
                 (["--rows", "300"], "--keys 200: give numbers of keys, at least 300"), (["--batch", "0"], "--batch is 0"), (["--tokens", "-1"], "--tokens is -1"),
                 (["--device", "emulator"], "--device emulator: use cpu, cuda"), (["--dtype", "float32"], "invalid choice"))  # fmt: skip
        for arguments, words in cases:
            code, text, made = run(*arguments)
            self.assertEqual((code, made), (2, None), arguments)
            self.assertIn(words, text)
        with mock.patch.object(cache_error, "filled", side_effect=cache_error._library.Error("no room")):
            code, text, made = run("--models", "gpt-oss", "--data", "normal")
            self.assertEqual((code, made), (4, None))
            self.assertIn("error: no room", text)


if __name__ == "__main__":
    unittest.main()
