"""flashcore.attention with softcap, ALiBi and sinks: results beside a plain computation, what is refused. NumPy and PyTorch where they import."""

import math
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

BATCH, HEADS, ROWS, KEYS, DIM = 2, 3, 6, 5, 8


def expected(q, k, v, softcap=None, alibi=None, sink=None):
    """By the formula, in float64, causal; (o, lse)."""
    q, k, v = (x.astype("float64") for x in (q, k, v))
    s = q @ k.swapaxes(-1, -2) / math.sqrt(DIM)
    if softcap is not None:
        s = softcap * numpy.tanh(s / softcap)
    own = numpy.arange(ROWS)[:, None] + KEYS - ROWS
    keys = numpy.arange(KEYS)[None]
    if alibi is not None:
        slopes = numpy.broadcast_to(alibi.astype("float64"), (BATCH, HEADS))
        s = s - slopes[..., None, None] * abs(own - keys)
    weights = numpy.where(keys <= own, numpy.exp(s), 0.0)
    total = weights.sum(-1)
    if sink is not None:
        total = total + numpy.exp(sink.astype("float64"))[None, :, None]
    with numpy.errstate(divide="ignore", invalid="ignore"):
        return numpy.nan_to_num(weights @ v / total[..., None]), numpy.log(total)


@unittest.skipUnless(numpy, "NumPy does not import")
class ScoresTest(unittest.TestCase):
    def setUp(self):
        random = numpy.random.default_rng(1)
        self.q = random.standard_normal((BATCH, HEADS, ROWS, DIM), dtype="float32")
        self.k = random.standard_normal((BATCH, HEADS, KEYS, DIM), dtype="float32")
        self.v = random.standard_normal((BATCH, HEADS, KEYS, DIM), dtype="float32")
        self.slopes = random.random((BATCH, HEADS), dtype="float32")
        self.sinks = random.standard_normal(HEADS, dtype="float32")

    def refused(self, pattern, **arguments):
        with self.assertRaisesRegex(flashcore.Error, pattern):
            flashcore.attention(self.q, self.k, self.v, **arguments)

    def test_every_combination(self):
        for softcap in (None, 0.75):
            for alibi in (None, self.slopes[0], self.slopes):
                for sink in (None, self.sinks):
                    given = {"softcap": softcap, "alibi": alibi, "sink": sink}
                    o, lse = flashcore.attention(self.q, self.k, self.v, causal=True, return_lse=True, **given)
                    wanted_o, wanted_lse = expected(self.q, self.k, self.v, **given)
                    self.assertLess(abs(o - wanted_o).max(), 1e-5)
                    self.assertTrue((numpy.isneginf(lse) == numpy.isneginf(wanted_lse)).all())
                    finite = numpy.isfinite(wanted_lse)
                    self.assertLess(abs(lse[finite] - wanted_lse[finite]).max(), 1e-5)
                    self.assertEqual(finite.all(), sink is not None)  # row 0 sees no key

    def test_a_plan_of_words(self):
        plan = flashcore.plan(self.q, self.k, self.v, softcap=30, alibi="batch", sink=True)
        self.assertEqual(plan.info["problem"], f"b{BATCH}_h{HEADS}_sq{ROWS}_sk{KEYS}_d{DIM}_fp32_softcap30_alibibatch_sink")
        out = numpy.empty_like(self.q)
        plan.launch(*(x.ctypes.data for x in (self.q, self.k, self.v, out)), alibi=self.slopes.ctypes.data, sink=self.sinks.ctypes.data)
        self.assertTrue((out == flashcore.attention(self.q, self.k, self.v, softcap=30, alibi=self.slopes, sink=self.sinks)).all())
        with self.assertRaisesRegex(flashcore.Error, "sink is null; give the address of its 3 logits"):
            plan.launch(*(x.ctypes.data for x in (self.q, self.k, self.v, out)), alibi=self.slopes.ctypes.data)
        for given, pattern in (({"alibi": "row"}, "alibi is 'row'; use 'head'"), ({"sink": "all"}, "sink is 'all'; use True")):
            with self.assertRaisesRegex(flashcore.Error, pattern):
                flashcore.plan(self.q, self.k, self.v, **given)

    def test_what_does_not_fit_is_refused(self):
        for softcap in (0, 0.0, -1, math.inf, math.nan, 1e7, True, "30"):
            self.refused("softcap is .*; use a number from 1e-6 to 1e6, or None for none", softcap=softcap)
        self.refused(r"sink has shape \(2,\); give a logit for each query head, \[heads\] = \(3,\)", sink=self.sinks[:2].copy())
        self.refused(r"sink has shape \(2, 3\)", sink=self.slopes)
        self.refused("sink is of dtype float16; give float32", sink=self.sinks.astype("float16"))
        self.refused(r"alibi has shape \(2,\); give slopes of shape \[heads\] = \(3,\), or \[batch, heads\] = \(2, 3\)", alibi=self.sinks[:2].copy())
        self.refused("alibi is of dtype float16; give float32", alibi=self.slopes.astype("float16"))
        self.refused(r"alibi has strides \(2,\); give a contiguous array", alibi=numpy.zeros(6, "float32")[::2])
        self.refused(r"sink\[1\] is nan; sinks are finite, or -infinity for none", sink=numpy.float32([0, math.nan, 0]))
        self.refused(r"alibi\[0\] is inf; slopes are finite", alibi=numpy.float32([math.inf, 0, 0]))
        for slope in (2e38, -2e38):
            self.refused(r"alibi\[1\] is -?2e\+38; slopes of this problem are from -", alibi=numpy.float32([0, slope, 0]))
        self.refused("sink is a (list|float)", sink=1.0)

    def test_large_slopes_leave_no_nan(self):
        for scale, softcap in ((None, None), (1e6, None), (1e-6, None), (None, 1e-6), (None, 1e6)):
            for slope in (1e27, -1e27):
                o = flashcore.attention(self.q, self.k, self.v, scale=scale, softcap=softcap, alibi=numpy.float32([slope, 1, slope / 3]))
                self.assertTrue(numpy.isfinite(o).all(), (scale, softcap, slope))

    @unittest.skipUnless(torch, "PyTorch does not import")
    def test_torch(self):
        tensors = [torch.from_numpy(x) for x in (self.q, self.k, self.v)]
        given = {"softcap": 2.0, "alibi": self.slopes, "sink": self.sinks}
        named = {name: torch.from_numpy(x) if name != "softcap" else x for name, x in given.items()}
        o, lse = flashcore.attention(*tensors, causal=True, return_lse=True, **named)
        wanted_o, wanted_lse = expected(self.q, self.k, self.v, **given)
        self.assertLess(abs(o.numpy() - wanted_o).max(), 1e-5)
        self.assertLess(abs(lse.numpy() - wanted_lse).max(), 1e-5)


if __name__ == "__main__":
    unittest.main()
