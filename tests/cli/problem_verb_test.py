"""flashcore problem: ids read by the program, and the table of fields that C, C++, Python and the documents are held against."""

import json
import os
import re
import subprocess
import sys
import unittest

from support import BAD_USAGE, DONE, SOURCE_DIR, CliTest


def text_of(*path):
    with open(os.path.join(SOURCE_DIR, *path), encoding="utf-8") as file:
        return file.read()


def body_of(text, opening):
    """From `opening` to the brace that closes it."""
    start = text.index(opening) + len(opening)
    depth, at = 1, start
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text[start : at - 1], flags=re.DOTALL)


def names_missing(names, text):
    return [name for name in names if not re.search(rf"\b{name}\b", text)]


class ProblemTest(CliTest):
    def ask(self, *ids):
        return json.loads(self.expect(DONE, "problem", *ids, "--json", "-", "--quiet").stdout)

    def test_an_id_says_its_fields_and_what_it_costs(self):
        windowed, plain = self.ask("b1_h8_hk2_sq3_sk70_d64_bf16_causal_wl7_bshd_scale0.5_softcap30_alibi_sink", "b1_h8_s512_d64_fp16")["results"]
        self.assertEqual(windowed["fields"], {
            "batch": 1, "heads_q": 8, "heads_kv": 2, "seqlen_q": 3, "seqlen_kv": 70, "head_dim": 64, "head_dim_v": 64, "dtype": "bf16",
            "o_dtype": "bf16", "scaling": "none", "v_layout": "nd", "causal": "bottom_right", "window_left": 7, "window_right": 0, "window_alignment": "bottom_right", "scale": 0.5,
            "softcap": 30, "alibi": "head", "sink": "head", "amax": "none", "lengths": "fixed", "page_size": 0, "kv_dtype": "bf16", "tensors": None,
            "score": None, "mask": None})  # fmt: skip
        self.assertEqual((windowed["layout"], windowed["pairs"], windowed["keys_read"]), ("bshd", 24, 10))
        self.assertEqual((plain["fields"]["window_left"], plain["pairs"], plain["decode"]), (None, 512 * 512, False))

    def test_functions_of_ones_own_come_as_json(self):
        given = {"id": "b1_h8_s512_d64_fp16_causal", "score": "s*2", "mask": "document[i]==document[j]", "tensors": "document:int[1]"}
        result = self.ask(json.dumps(given))["results"][0]
        self.assertEqual([result["fields"][name] for name in ("score", "mask", "tensors")], ["s * 2.0", "document[i] == document[j]", "document: int[1]"])
        self.assertRegex(result["problem"], r"^b1_h8_s512_d64_fp16_causal_score[0-9a-f]{12}_mask[0-9a-f]{12}$")
        self.assertEqual(result["pairs"], 13 * 37 * 38 // 2 + 31 * 32 // 2)
        self.expect_error(BAD_USAGE, ["was not given before", "as JSON with the text"], "problem", result["problem"])
        self.expect_error(BAD_USAGE, ["column 1 of the score"], "problem", json.dumps({**given, "score": "sin(s)"}))

    def test_for_people(self):
        out = self.expect(DONE, "problem", "b1_h8_s512_d64_fp16_causal_wl3").stdout
        self.assertRegex(out, r"window_left +3\b")
        self.expect_error(BAD_USAGE, ["the form is"], "problem", "b1_nonsense")
        self.expect_error(BAD_USAGE, ["--reference"], "problem")

    def test_a_million_rows_at_once(self):
        result = self.ask("b1_h1_s1048576_d128_bf16_causal_wl1023")["results"][0]
        self.assertEqual(result["pairs"], 1024 * 1025 // 2 + (1048576 - 1024) * 1024)


class MirrorTest(CliTest):
    """Whoever adds a field to the table is told here what lacks it."""

    def fields(self):
        return json.loads(self.expect(DONE, "problem", "b1_h1_s1_d8_fp32", "--json", "-", "--quiet").stdout)["fields"]

    def test_c_cpp_and_python_have_every_field(self):
        names = [field["name"] for field in self.fields()]
        self.assertGreater(len(names), 10)
        self.assertEqual(names_missing(names, body_of(text_of("include", "flashcore", "flashcore.h"), "typedef struct fc_attention {")), [])
        self.assertEqual(names_missing(names, body_of(text_of("include", "flashcore", "flashcore.hpp"), "struct Attention {")), [])
        python = os.path.join(SOURCE_DIR, "python")
        code = "from flashcore import _library; print(*[name for name, _ in _library.Attention._fields_])"
        mirrored = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": python}, capture_output=True, text=True, check=True)
        self.assertEqual(names_missing(names, mirrored.stdout), [])

    def test_attention_in_python_takes_every_field(self):
        signatures = [re.search(rf"\ndef {name}\((.*?)\) -> ", text_of("python", "flashcore", file), re.DOTALL).group(1)
                      for name, file in (("attention", "_plan.py"), ("varlen_attention", "_varlen.py"), ("paged_attention", "_paged.py"))]  # fmt: skip
        self.assertEqual(names_missing({field["python"] for field in self.fields()}, " ".join(signatures)), [])

    def test_a_field_that_is_missing_is_found(self):
        self.assertEqual(names_missing(["batch", "no_such_field"], "int64_t batch, heads_q;"), ["no_such_field"])

    def test_the_reference_page_is_fresh(self):
        page = self.expect(DONE, "problem", "--reference").stdout
        self.assertEqual(page.rstrip("\n"), text_of("docs", "problem.md").rstrip("\n"), "write it anew: flashcore problem --reference > docs/problem.md")


if __name__ == "__main__":
    unittest.main()
