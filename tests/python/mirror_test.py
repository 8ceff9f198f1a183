"""Python's mirror of a problem's fields, by value: what flashcore.attention is given for a drawn problem is the problem that the library plans."""

import json
import math
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
from flashcore import _arrays, _factors, _functions, _paged, _plan, _scores, _varlen  # noqa: E402

DRAWS = 200
WHERE_TO_ADD = (
    "add it to Attention._fields_ in python/flashcore/_library.py, to attention, plan and _make_problem in python/flashcore/_plan.py, "
    "and to Call in tests/python/mirror_test.py"
)


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def fields_of(ids):
    """By the program's own parser: {field: value} of each id."""
    answer = json.loads(output_of(os.environ["FLASHCORE_BINARY"], "problem", *ids, "--json", "-", "--quiet"))
    return [result["fields"] for result in answer["results"]]


def view(shape, dtype):
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return _arrays.View("none", "cpu", dtype, tuple(shape), tuple(strides), 0, None)


class Call:
    """The arguments of flashcore.attention that say these fields."""

    def __init__(self, fields):
        f = dict(fields)
        batch, dtype, kv_dtype, o_dtype = (f.pop(name) for name in ("batch", "dtype", "kv_dtype", "o_dtype"))
        self.scaling = {"none": _factors.NONE, "tensor": _factors.TENSOR, "head": _factors.HEAD, "token": _factors.TOKEN}[f.pop("scaling")]
        heads_q, heads_kv, rows, keys = (f.pop(name) for name in ("heads_q", "heads_kv", "seqlen_q", "seqlen_kv"))
        columns, columns_v = f.pop("head_dim"), f.pop("head_dim_v")
        # A ragged call is flashcore.varlen_attention's, which does not say how lengths are drawn.
        self.ragged = f.pop("lengths") != "fixed"
        # And a paged one flashcore.paged_attention's.
        self.page_size = f.pop("page_size")
        self.batch, self.bounds = batch, (rows, keys)
        self.cache = [view((3, self.page_size, heads_kv, size), kv_dtype) for size in (columns, columns_v)]
        self.packed = [view(shape, kind) for kind, shape in zip((dtype, kv_dtype, kv_dtype, o_dtype), ((batch * rows, heads_q, columns), (batch * keys, heads_kv, columns),
                                                        (batch * keys, heads_kv, columns_v), (batch * rows, heads_q, columns_v)))]  # fmt: skip
        self.tensors = [view(shape, kind) for kind, shape in zip((dtype, kv_dtype, kv_dtype, o_dtype), ((batch, heads_q, rows, columns), (batch, heads_kv, keys, columns),
                                                         (batch, heads_kv, keys, columns_v), (batch, heads_q, rows, columns_v)))]  # fmt: skip
        self.v_layout = f.pop("v_layout")
        if self.v_layout == "dn":
            self.tensors[2] = view((batch, heads_kv, columns_v, keys), kv_dtype)
        self.causal, self.window = f.pop("causal"), (f.pop("window_left"), f.pop("window_right"))
        self.window_alignment, self.scale = f.pop("window_alignment"), f.pop("scale")
        self.scores = _scores.of_words(f.pop("softcap"), f.pop("alibi"), f.pop("sink"))
        self.scores = _scores.with_amax(self.scores, f.pop("amax") == "head", dtype)
        # Larger than any index, of one element.
        words = {"float": 0, "int": 1, "bool": 2}
        tensors = re.findall(r"(\w+): (\w+)\[(\d)\]", f.pop("tensors") or "")
        self.functions = _functions.Functions(f.pop("score") or "", f.pop("mask") or "", tuple(
            _functions.Tensor(name, words[word], (4096,) * int(rank), (0,) * int(rank)) for name, word, rank in tensors))  # fmt: skip
        if f:
            raise AssertionError(f"flashcore.attention has nothing for {', '.join(f)}: {WHERE_TO_ADD}")

    def planned(self):
        """What the library understood, as the program reads it."""
        info = self.info()
        return json.dumps({"id": info["problem"], **info["expressions"]}) if "expressions" in info else info["problem"]

    def info(self):
        if self.page_size:
            table = view((self.batch, 7), "int32")
            sizes = _paged._Sizes(self.packed[0], *self.cache, table, self.batch, "NHD")
            sizes.seqlen_q, sizes.seqlen_kv = self.bounds
            return _paged._plan_of(sizes, (self.packed[0], *self.cache, self.packed[3]), self.causal, self.window, self.window_alignment,
                                   self.scale, None, self.scaling, self.scores, self.functions).info  # fmt: skip
        if self.ragged:
            sizes = _varlen._Sizes(*self.packed[:3], self.batch, self.bounds)
            return _varlen._plan_of(sizes, tuple(self.packed), self.causal, self.window, self.window_alignment, self.scale, None,
                                    self.scaling, self.scores, self.functions).info  # fmt: skip
        return _plan._plan_of(*self.tensors, "bhsd", self.causal, self.window, self.window_alignment, self.scale, None, self.scaling, self.scores,
                              self.functions, self.v_layout).info  # fmt: skip


def lost(before, after):
    """Of two lists of fields: what differs, in words."""
    return [f"{name} was {a[name]!r} and became {b[name]!r}: {WHERE_TO_ADD}" for a, b in zip(before, after) for name in a if a[name] != b[name]]


class MirrorTest(unittest.TestCase):
    def test_every_field_survives(self):
        drawn = fields_of(output_of(os.environ["FLASHCORE_RANDOM_PROBLEMS"], str(DRAWS), "23").splitlines())
        self.assertEqual(len(drawn), DRAWS)
        for name in drawn[0]:
            values = {fields[name] for fields in drawn}
            self.assertGreater(len(values), 1, f"{name} had one value in {DRAWS} draws, so nothing is known of its mirror; let the fuzzer draw it")
        for fields in drawn:
            fields["lengths"] = "fixed" if fields["lengths"] == "fixed" else "full"
        found = lost(drawn, fields_of([Call(fields).planned() for fields in drawn]))
        self.assertEqual("\n".join(found[:3]), "")

    def test_a_field_that_is_missing_is_named_with_where_to_add_it(self):
        fields = fields_of(["b1_h2_s3_d8_fp32"])[0]
        with self.assertRaisesRegex(AssertionError, "nothing for experts: add it to .*_library.py"):
            Call({**fields, "experts": 16})
        self.assertRegex(lost([fields], [{**fields, "scale": 2.0}])[0], "scale was None and became 2.0: add it to ")


if __name__ == "__main__":
    unittest.main()
