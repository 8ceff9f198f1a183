"""Score and mask functions of flashcore.attention: texts and arrays beside a float64 computation; what is refused. NumPy and PyTorch where they import."""

import os
import sys
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
import flashcore  # noqa: E402

try:
    import numpy
except ImportError:
    numpy = None
try:
    import torch
except ImportError:
    torch = None

BATCH, HEADS, HEADS_KV, ROWS, KEYS, DIM = 2, 4, 2, 9, 11, 8


@unittest.skipUnless(numpy, "NumPy does not import")
class FunctionsTest(unittest.TestCase):
    def setUp(self):
        self.random = numpy.random.default_rng(1)
        self.q, self.k, self.v = (self.random.standard_normal((BATCH, heads, rows, DIM), dtype="float32")
                                  for heads, rows in ((HEADS, ROWS), (HEADS_KV, KEYS), (HEADS_KV, KEYS)))  # fmt: skip
        self.b, self.h, self.i, self.j = numpy.meshgrid(*(numpy.arange(n) for n in (BATCH, HEADS, ROWS, KEYS)), indexing="ij")

    def expected(self, change=lambda s: s, visible=True):
        """(o, lse) in float64, of scores [batch, heads, rows, keys]."""
        q, k, v = (x.astype("float64") for x in (self.q, self.k, self.v))
        k, v = (numpy.repeat(x, HEADS // HEADS_KV, axis=1) for x in (k, v))
        s = numpy.where(visible, change(q @ k.swapaxes(-1, -2) / DIM**0.5), -numpy.inf)
        top = s.max(-1, keepdims=True)
        p = numpy.exp(s - numpy.where(numpy.isfinite(top), top, 0))
        total = p.sum(-1, keepdims=True)
        with numpy.errstate(divide="ignore"):
            lse = numpy.log(total[..., 0]) + numpy.where(numpy.isfinite(top), top, 0)[..., 0]
        return p @ v / numpy.where(total == 0, 1, total), lse

    def check(self, expected, **arguments):
        o, lse = flashcore.attention(self.q, self.k, self.v, return_lse=True, **arguments)
        numpy.testing.assert_allclose(o, expected[0], atol=3e-6)
        numpy.testing.assert_allclose(lse, expected[1], atol=5e-6)

    def refused(self, pattern, **arguments):
        with self.assertRaisesRegex(flashcore.Error, pattern):
            flashcore.attention(self.q, self.k, self.v, **arguments)

    def test_texts(self):
        slope = self.random.random(HEADS, dtype="float32")
        kinds = numpy.int32(self.random.integers(0, 3, (BATCH, KEYS)))
        self.check(self.expected(lambda s: 2 * numpy.tanh(s / 2) + slope[self.h] * (self.j - self.i), kinds[self.b, self.j] != 1),
                   score="2 * tanh(s / 2) + slope[h] * (j - i)", mask="kind[b, j] != 1", tensors={"kind": kinds, "slope": slope})  # fmt: skip
        self.check(self.expected(lambda s: s * (1 + self.h), self.j <= self.i + KEYS - ROWS), score="s * (1 + h)", causal=True)
        self.check(self.expected(visible=(self.i % 3 != 0) & (self.j > 4)), mask="i % 3 != 0 && j > 4")

    def test_biases_broadcast(self):
        for shape in ((BATCH, HEADS, ROWS, KEYS), (HEADS, ROWS, KEYS), (ROWS, KEYS), (1, HEADS, 1, KEYS), (BATCH, 1, 1, KEYS), (KEYS,), (ROWS, 1), (1, 1, 1, 1)):
            bias = self.random.standard_normal(shape, dtype="float32")
            self.check(self.expected(lambda s, bias=bias: s + bias), bias=bias)
        turned = self.random.standard_normal((KEYS, ROWS), dtype="float32").T
        self.check(self.expected(lambda s: 0.5 * s + turned), bias=turned, score="0.5 * s")
        repeated = numpy.broadcast_to(self.random.standard_normal((ROWS, 1), dtype="float32"), (ROWS, KEYS))
        self.check(self.expected(lambda s: s + repeated), bias=repeated)

    def test_boolean_masks_broadcast(self):
        for shape in ((BATCH, HEADS, ROWS, KEYS), (BATCH, 1, 1, KEYS), (ROWS, KEYS), (HEADS, 1, KEYS), (1,)):
            mask = self.random.random(shape) < 0.6
            self.check(self.expected(visible=mask), mask=mask)
        self.check(self.expected(visible=numpy.zeros((ROWS, KEYS), bool)), mask=numpy.zeros((ROWS, KEYS), bool))

    def test_prefixes_and_documents(self):
        causal = self.j <= self.i + KEYS - ROWS
        self.check(self.expected(visible=(self.j < 5) | causal), prefix=5)
        prefixes = numpy.int32([7, 1])
        self.check(self.expected(visible=(self.j < prefixes[self.b]) | causal), prefix=prefixes)
        rows, keys = (numpy.int32(self.random.integers(0, 3, (BATCH, n))) for n in (ROWS, KEYS))
        same = rows[self.b, self.i] == keys[self.b, self.j]
        self.check(self.expected(visible=same & causal), documents=(rows, keys), causal=True)
        self.check(self.expected(visible=same & (self.j != 3)), documents=(rows, keys), mask="j != 3")
        self.check(self.expected(visible=rows[0][self.i] == keys[0][self.j]), documents=(rows[0], keys[0]))
        named = {"document_q": rows, "document_kv": keys}
        self.check(self.expected(visible=same), mask="document_q[b, i] == document_kv[b, j]", tensors=named)

    def test_text_that_is_a_softcap_is_one(self):
        named = flashcore.plan(self.q, self.k, self.v, softcap=2).info
        self.assertIn("_softcap2", named["problem"])
        for text in ("2 * tanh(s / 2)", "(tanh(s / 2.0) * 2.0)"):
            self.assertEqual(flashcore.plan(self.q, self.k, self.v, score=text).info, named)
            for a, b in zip(*(flashcore.attention(self.q, self.k, self.v, return_lse=True, **given) for given in ({"score": text}, {"softcap": 2}))):
                self.assertTrue((a == b).all())
        bias = self.random.standard_normal((HEADS, ROWS, KEYS), dtype="float32")
        self.check(self.expected(lambda s: 2 * numpy.tanh(s / 2) + bias[self.h, self.i, self.j]), score="2 * tanh(s / 2)", bias=bias)
        for given in ({"softcap": 3}, {"alibi": "head"}):  # they come before a score function
            self.assertIn("_score", flashcore.plan(self.q, self.k, self.v, score="2 * tanh(s / 2)", **given).info["problem"])
        self.check(self.expected(lambda s: 2 * numpy.tanh((s - abs(self.i + KEYS - ROWS - self.j)) / 2)), score="2 * tanh(s / 2)",
                   alibi=numpy.ones(HEADS, "float32"))  # fmt: skip
        self.check(self.expected(lambda s: 2 * numpy.tanh(1.5 * numpy.tanh(s / 1.5) / 2)), score="2 * tanh(s / 2)", softcap=1.5)

    def test_layouts_and_plans(self):
        mask = self.random.random((ROWS, KEYS)) < 0.5
        o = flashcore.attention(*(x.swapaxes(1, 2) for x in (self.q, self.k, self.v)), layout="bshd", mask=mask)
        numpy.testing.assert_allclose(o.swapaxes(1, 2), self.expected(visible=mask)[0], atol=3e-6)
        bias = self.random.standard_normal((HEADS, 1, KEYS), dtype="float32")
        plan = flashcore.plan(self.q, self.k, self.v, bias=bias, mask=mask)
        self.assertEqual(plan.tensors, ("attention_bias", "attention_mask"))
        self.assertEqual(plan.info["expressions"]["mask"], "attention_mask[i, j]")
        out = numpy.empty_like(self.q)
        addresses = [x.ctypes.data for x in (self.q, self.k, self.v, out)]
        plan.launch(*addresses, tensors=(bias.ctypes.data, mask.ctypes.data))
        numpy.testing.assert_allclose(out, self.expected(lambda s: s + bias, mask)[0], atol=3e-6)
        with self.assertRaisesRegex(flashcore.Error, "tensors has 1 addresses, and this plan has 2 tensors: attention_bias, attention_mask"):
            plan.launch(*addresses, tensors=(1,))

    def test_quantised_caches(self):
        """A step of decoding: s and the bias are of what the codes stand for."""
        self.q, bias = self.q[:, :, :1].copy(), self.random.standard_normal((HEADS, KEYS), dtype="float32")
        self.h, self.j = self.h[:, :, :1], self.j[:, :, :1]
        codes = [numpy.int8(self.random.integers(-127, 128, (BATCH, HEADS_KV, KEYS, DIM))) for _ in "kv"]
        for shape in ((), (BATCH, HEADS_KV), (BATCH, HEADS_KV, KEYS)):
            factors = [numpy.float32(0.01 + 0.02 * self.random.random(shape)) for _ in "kv"]
            self.k, self.v = (x * f.reshape(*f.shape, *[1] * (4 - f.ndim)) for x, f in zip(codes, factors))
            expected = self.expected(lambda s: 2 * numpy.tanh(s / 2) + bias[self.h, self.j], self.j % 4 != 1)
            o, lse = flashcore.attention(self.q, *codes, score="2 * tanh(s / 2) + bias[h, j]", mask="j % 4 != 1", tensors={"bias": bias},
                                         descale_k=factors[0], descale_v=factors[1], return_lse=True)  # fmt: skip
            numpy.testing.assert_allclose(o, expected[0], atol=3e-6)
            numpy.testing.assert_allclose(lse, expected[1], atol=5e-6)
        pages = [numpy.ascontiguousarray(x[:1]) for x in codes]  # one of all the keys
        paged = flashcore.decode(self.q[:1, :, 0].copy(), *pages, numpy.int32([[0]]), numpy.int32([KEYS]), layout="HND", bias=bias[None, :, None],
                                 descale_k=0.02, descale_v=0.03)  # fmt: skip
        self.k, self.v = codes[0] * 0.02, codes[1] * 0.03
        numpy.testing.assert_allclose(paged, self.expected(lambda s: s + bias[self.h, self.j])[0][0, :, 0][None], atol=3e-6)

    def test_the_same_text_with_other_arrays(self):
        for _ in range(2):
            bias = self.random.standard_normal((ROWS, KEYS), dtype="float32")
            self.check(self.expected(lambda s, bias=bias: s + bias), bias=bias)

    @unittest.skipUnless(torch, "PyTorch does not import")
    def test_torch(self):
        q, k, v = (torch.from_numpy(x) for x in (self.q, self.k, self.v))
        mask = torch.rand(BATCH, 1, ROWS, KEYS) < 0.6
        bias = torch.randn(HEADS, ROWS, KEYS)
        o = flashcore.attention(q, k, v, mask=mask, bias=bias)
        expected = self.expected(lambda s: s + bias.numpy(), mask.numpy())[0]
        numpy.testing.assert_allclose(o.numpy(), expected, atol=3e-6)

    def test_a_memoryview_is_an_array(self):
        mask = (self.random.random((ROWS, KEYS)) < 0.6).copy()
        self.check(self.expected(visible=mask), mask=memoryview(mask))

    def test_what_does_not_fit(self):
        slope = numpy.ones(HEADS, "float32")
        self.refused("column 1 of the score: 'sin' is no function", score="sin(s)")
        self.refused("column 1 of the mask", mask="s > 0")
        self.refused("score is an empty text", score=" ")
        self.refused("score is a int; give a text, as 's . slope", score=3)
        self.refused("mask is of dtype float32; give bool", mask=numpy.ones((ROWS, KEYS), "float32"))
        self.refused("bias is of dtype float64; give float32", bias=numpy.ones((ROWS, KEYS)))
        self.refused(r"bias has shape \(3, 11\); give one that broadcasts to \(2, 4, 9, 11\)", bias=numpy.ones((3, KEYS), "float32"))
        self.refused("neither the score nor the mask names it", score="s", tensors={"slope": slope})
        self.refused("'slope' is no variable and no tensor", score="s + slope[h]")
        self.refused(r"'slope' has shape \[2\]", score="s + slope[h]", tensors={"slope": slope[:2]})
        self.refused("of dtype int64; give float32 or int32 or bool", score="s + slope[h]", tensors={"slope": numpy.ones(HEADS, "int64")})
        self.refused("negative ones are not read", score="s + slope[h]", tensors={"slope": slope[::-1]})
        self.refused("tensors is a list; give a dict", score="s", tensors=[slope])
        self.refused("the name 'attention_bias' is given twice", score="s + attention_bias[h]", tensors={"attention_bias": slope}, bias=slope[0].reshape(1))
        self.refused("^column 7 of the mask: there is '\\)'", mask="j <= i) || (j > 5", prefix=3)
        self.refused("^column 2 of the score: there is '\\)'", score="s) + (s", bias=numpy.ones((ROWS, KEYS), "float32"))
        self.refused("prefix and causal are given", prefix=3, causal=True)
        self.refused("prefix is -1", prefix=-1)
        self.refused("prefix is True", prefix=True)
        for prefix in (3.0, "3", [3], numpy.float32(3)):
            self.refused(r"prefix is .*3.*; give a number of keys, an int from 0 to 2\^31 - 1, or an array, int32 \[batch\]", prefix=prefix)
        self.refused("prefix is of dtype float32; give int32", prefix=numpy.ones(BATCH, "float32"))
        ids = numpy.zeros(ROWS, "int32")
        for documents, words in (((ids,), "tuple of ndarray"), ([ids] * 3, "list of ndarray, ndarray, ..."), ([0, 1], "list of int, int"), ((), "tuple"), (3, "int")):
            self.refused(f"documents is a {words}; give the ids of documents, int32 .* one array for rows and keys, or a pair of them", documents=documents)
        self.refused("intervals has 3.5 for a start or an end; give the number of a key", intervals=(0, 3.5))
        for intervals in ((True, 5), (0, True), [(0, 1), (None, False)]):
            self.refused("intervals has (True|False) for a start or an end; give the number of a key", intervals=intervals)
        self.refused("documents is of dtype int64; give int32", documents=numpy.zeros(ROWS, "int64"))
        self.refused("may be -8 to 10; min and max keep it in the shape", score="s + slope[j - i]", tensors={"slope": slope})

    def test_columns_are_those_of_the_callers_text(self):
        """Alone, and as a part of the text that is made of it."""
        ids, kinds = numpy.zeros(KEYS, "int32"), numpy.zeros((BATCH, KEYS), "int32")
        parts = {"prefix": 3}, {"documents": (ids[:ROWS], ids)}, {"intervals": (None, KEYS)}
        if torch:
            parts = *parts, {"document_boundaries": (torch.tensor([0, ROWS], dtype=torch.int32), torch.tensor([0, KEYS], dtype=torch.int32))}
        for more in ({}, *parts):
            given = {"tensors": {"kind": kinds}, **more}
            self.refused("^column 25 of the mask: 'k' is no variable", mask="kind[b, j] == 1 && j <= k", **given)
            self.refused("^column 16 of the mask: the text ends", mask="kind[b, j] + i+", **given)
            self.refused("^column 1 of the mask: a mask is a condition .* and this is an int", mask="kind[b, j] + i", **given)
            self.refused("^'i // j' in the mask: '//' may divide by 0", mask="kind[b,  j]==1  && (i)//j < 2", **given)
        for more in ({}, {"bias": numpy.ones((ROWS, KEYS), "float32")}, {"bias": numpy.ones((ROWS, KEYS), "float32"), **parts[0]}):
            self.refused("^column 5 of the score: 'foo' is no variable", score="s + foo", **more)
            self.refused("^column 1 of the score: a score is a number", score="j < i", **more)
            self.refused("^'s / j' in the score: '/' may divide by 0", score="(s)/j", **more)
        self.refused("^column 5 of the score: 'foo'", score="s + foo", mask="j <= i", **parts[0], bias=numpy.ones((ROWS, KEYS), "float32"))

    def test_a_limit_that_parts_pass_together_has_no_column(self):
        """The column would lie behind the end of the caller's text."""
        ids, ones = numpy.zeros(KEYS, "int32"), numpy.ones((ROWS, KEYS), "float32")
        words, nested = " || ".join(["j == i"] * 253), "(" * 64 + "j <= i" + ")" * 64
        documents = {"documents": (ids[:ROWS], ids)}
        for mask in (words, nested, f"{'j <= i':65536}"):
            self.check(self.expected(visible=self.j == self.i if mask == words else self.j <= self.i), mask=mask)
        self.refused("^mask, together with documents, has more than 1024 words and signs; give a shorter or simpler mask$", mask=words, **documents)
        self.refused("^mask, together with documents, has more than 64 levels of nesting; give", mask=nested, **documents)
        self.refused("^mask, together with prefix and documents, has 65[0-9]{3} characters; 65536 are allowed; give", mask=f"{'j <= i':65536}", prefix=3, **documents)
        self.refused("^score, together with bias, has 65[0-9]{3} characters; 65536 are allowed; give a shorter or simpler score$", score=f"{'s':65536}", bias=ones)
        self.refused("^mask, together with documents, has more than 1024", score="s + 1", bias=ones, mask=words, **documents)
        self.refused("^column 65537 of the mask: the text has 65537 characters", mask=f"{'j <= i':65537}", **documents)


if __name__ == "__main__":
    unittest.main()
