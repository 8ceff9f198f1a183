"""flashcore.varlen_attention: each sequence beside flashcore.attention of it alone; what is refused. NumPy and PyTorch where they import."""

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

HEADS, HEADS_KV, DIM, TOTAL_Q, TOTAL_KV = 4, 2, 8, 30, 40
# Of a row, none at all, and one without keys; rows 25 to 29 and keys 30 to 39 are nobody's.
Q, KV = [0, 1, 1, 5, 25], [0, 10, 12, 12, 30]


@unittest.skipUnless(numpy, "NumPy does not import")
class VarlenTest(unittest.TestCase):
    def setUp(self):
        random = numpy.random.default_rng(1)
        self.q = random.standard_normal((TOTAL_Q, HEADS, DIM), dtype="float32")
        self.k = random.standard_normal((TOTAL_KV, HEADS_KV, DIM), dtype="float32")
        self.v = random.standard_normal((TOTAL_KV, HEADS_KV, DIM), dtype="float32")
        self.slopes = random.random((4, HEADS), dtype="float32")
        self.sinks = random.standard_normal(HEADS, dtype="float32")
        self.cu_q, self.cu_kv = numpy.int32(Q), numpy.int32(KV)

    def run_it(self, **arguments):
        given = {"cu_seqlens_q": self.cu_q, "cu_seqlens_kv": self.cu_kv, "max_seqlen_q": 20, "max_seqlen_kv": 18, **arguments}
        return flashcore.varlen_attention(self.q, self.k, self.v, **given)

    def refused(self, pattern, **arguments):
        with self.assertRaisesRegex(flashcore.Error, pattern):
            self.run_it(**arguments)

    def expect_each(self, o, lse, used=None, **arguments):
        """Every sequence is what flashcore.attention makes of it."""
        for s in range(4):
            rows, keys = slice(Q[s], Q[s + 1]), slice(KV[s], KV[s + 1] if used is None else KV[s] + used[s])
            q, k, v = (x[None, part] for x, part in ((self.q, rows), (self.k, keys), (self.v, keys)))
            own = {name: x[s] if name == "alibi" and x.ndim == 2 else x for name, x in arguments.items()}
            wanted, wanted_lse = flashcore.attention(q, k, v, layout="bshd", return_lse=True, **own)
            numpy.testing.assert_allclose(o[rows], wanted[0], atol=1e-5)
            numpy.testing.assert_allclose(lse[:, rows], wanted_lse[0], atol=1e-5)

    def test_each_sequence_by_itself(self):
        for arguments in ({}, {"causal": True}, {"causal": "top_left", "scale": 0.5}, {"window": (3, 2)}, {"softcap": 0.75, "alibi": self.slopes[0]},
                          {"causal": True, "alibi": self.slopes, "sink": self.sinks}):  # fmt: skip
            self.expect_each(*self.run_it(return_lse=True, **arguments), **arguments)

    def test_lengths_that_do_not_fit_are_named(self):
        self.run_it(check_lengths=True)
        self.refused(r"of sequence 3 the lengths do not fit: it has 20 rows; the plan's bound seqlen_q is 19", max_seqlen_q=19, check_lengths=True)
        self.refused(r"of sequence 0 \(and of 1 more: 3\) the lengths do not fit: it has 10 keys", max_seqlen_kv=9, check_lengths=True)
        (plan,) = [plan for key, plan in flashcore._plan._plans.items() if key[:4] == ("varlen", 4, 20, 9)]
        lengths = {"cu_seqlens_q": self.cu_q.ctypes.data, "cu_seqlens_kv": self.cu_kv.ctypes.data}
        self.assertEqual(sorted(plan.status(**lengths)), [0, 3])
        with self.assertRaisesRegex(flashcore.Error, "cu_seqlens_kv is null"):
            plan.status(lengths["cu_seqlens_q"])
        o = self.run_it(max_seqlen_kv=9)
        self.assertTrue(numpy.isnan(o[0]).all() and numpy.isnan(o[5:25]).all() and not numpy.isnan(o[1:5]).any())

    def test_functions_of_each_sequence(self):
        random = numpy.random.default_rng(2)
        bias = random.standard_normal((4, HEADS, 20, 18), dtype="float32")
        keep = random.random((4, 1, 20, 18)) < 0.7
        prefix = numpy.int32([0, 3, 1, 5])
        gain = random.standard_normal(4, dtype="float32")
        score, mask = "s * gain[b] + 0.1 * (seqlen_kv - j)", "(i + j + b) % 4 != 0"
        o, lse = self.run_it(return_lse=True, score=score, mask=mask, tensors={"gain": gain})
        with_bias, bias_lse = self.run_it(return_lse=True, bias=bias, mask=keep, causal=True)
        with_prefix, _ = self.run_it(return_lse=True, prefix=prefix)
        for s in range(4):
            rows, keys = slice(Q[s], Q[s + 1]), slice(KV[s], KV[s + 1])
            q, k, v = self.q[None, rows], self.k[None, keys], self.v[None, keys]
            own = flashcore.attention(q, k, v, layout="bshd", return_lse=True, score=score.replace("[b]", f"[{s}]"), mask=mask.replace("b", str(s)),
                                      tensors={"gain": gain})  # fmt: skip
            numpy.testing.assert_allclose(o[rows], own[0][0], atol=1e-5)
            numpy.testing.assert_allclose(lse[:, rows], own[1][0], atol=1e-5)
            count = (q.shape[1], k.shape[1])
            if count[0] == 0 or count[1] == 0:
                continue
            of_bias, of_keep = bias[s : s + 1, :, : count[0], : count[1]], keep[s : s + 1, :, : count[0], : count[1]]
            own = flashcore.attention(q, k, v, layout="bshd", return_lse=True, bias=of_bias, mask=of_keep, causal=True)
            numpy.testing.assert_allclose(with_bias[rows], own[0][0], atol=1e-5)
            numpy.testing.assert_allclose(bias_lse[:, rows], own[1][0], atol=1e-5)
            own = flashcore.attention(q, k, v, layout="bshd", prefix=int(prefix[s]))
            numpy.testing.assert_allclose(with_prefix[rows], own[0], atol=1e-5)
        self.refused("bias has shape", bias=bias[:, :, :19])
        self.refused("column", score="s + gain[s]", tensors={"gain": gain})

    def test_a_bias_may_be_one_element_repeated(self):
        repeated = numpy.broadcast_to(numpy.float32(0.5), (4, HEADS, 20, 18))  # strides of 0 throughout
        o, lse = self.run_it(return_lse=True, bias=repeated)
        plain, plain_lse = self.run_it(return_lse=True)
        numpy.testing.assert_allclose(o[:25], plain[:25], atol=1e-5)
        numpy.testing.assert_allclose(lse[:, :25], plain_lse[:, :25] + 0.5, atol=1e-5)

    def test_some_keys_and_an_out(self):
        used = [4, 0, 0, 18]
        out = numpy.full_like(self.q, 7)
        o, lse = self.run_it(seqused_kv=numpy.int32(used), out=out, return_lse=True)
        self.assertIs(o, out)
        self.expect_each(o, lse, used)
        self.assertTrue((out[25:] == 7).all(), "rows that no sequence has are not written")

    def test_some_rows_of_a_padded_batch(self):
        """Three entries of ten rows, of which those in the middle count."""
        rows, keys = numpy.int32([4, 10, 1]), numpy.int32([10, 3, 5])
        cu_q, cu_kv = numpy.int32([3, 10, 25, 30]), numpy.int32([0, 15, 21, 40])
        out = numpy.full_like(self.q, 7)
        self.run_it(cu_seqlens_q=cu_q, cu_seqlens_kv=cu_kv, max_seqlen_q=10, max_seqlen_kv=10, seqused_q=rows, seqused_kv=keys, causal=True, out=out)
        written = numpy.zeros(TOTAL_Q, bool)
        for first, n, key, m in zip(cu_q, rows, cu_kv, keys):
            wanted = flashcore.attention(self.q[None, first : first + n], self.k[None, key : key + m], self.v[None, key : key + m], layout="bshd", causal=True)
            numpy.testing.assert_allclose(out[first : first + n], wanted[0], atol=1e-5)
            written[first : first + n] = True
        self.assertTrue((out[~written] == 7).all())
        self.refused(r"seqused_q has shape \(4,\); give how many rows", cu_seqlens_q=cu_q, cu_seqlens_kv=cu_kv, seqused_q=numpy.int32([1, 1, 1, 1]))

    def test_lengths_may_change_under_one_plan(self):
        first = self.run_it()
        self.cu_q[1:4] = 12, 20, 21
        second = self.run_it()
        self.cu_q[:] = Q
        self.assertTrue((first[:25] == self.run_it()[:25]).all())
        self.assertFalse((first[:25] == second[:25]).all())

    def test_boundaries_that_none_has_make_nan(self):
        for name, bad in (("cu_seqlens_q", [0, 1, 1, 22, 25]), ("cu_seqlens_kv", [0, 10, 12, 31, 30]), ("seqused_kv", [4, 0, 1, 18]), ("seqused_q", [1, 0, -1, 20]),
                          ("seqused_q", [1, 0, 5, 20])):  # fmt: skip
            o = self.run_it(**{name: numpy.int32(bad)})
            self.assertTrue(numpy.isnan(o[1:5]).all(), name)
            self.assertTrue(numpy.isfinite(o[:1]).all(), name)

    def test_what_does_not_fit_is_refused(self):
        self.refused("cu_seqlens_q is of dtype int64; give int32", cu_seqlens_q=self.cu_q.astype("int64"))
        self.refused("cu_seqlens_kv is of dtype float32; give int32", cu_seqlens_kv=self.sinks)
        self.refused(r"cu_seqlens_q has shape \(5,\) and cu_seqlens_kv has \(4,\)", cu_seqlens_kv=self.cu_kv[:4])
        self.refused(r"cu_seqlens_q has shape \(1,\) and", cu_seqlens_q=self.cu_q[:1], cu_seqlens_kv=self.cu_kv[:1])
        self.refused(r"cu_seqlens_q has strides \(2,\); give a contiguous array", cu_seqlens_q=numpy.zeros(10, "int32")[::2])
        self.refused(r"seqused_kv has shape \(5,\); give how many keys of each sequence count, \[batch\] = \(4,\)", seqused_kv=self.cu_kv)
        for bound in (-1, 1.5, True, None, 2**31):
            self.refused("max_seqlen_q is .*; give the longest that a sequence may be", max_seqlen_q=bound)
        self.refused(r"alibi has shape \(3, 4\); give slopes", alibi=self.slopes[:3])
        self.refused(r"out is fp32 \(30, 4, 4\) on cpu; it must be fp32 \(30, 4, 8\)", out=numpy.zeros((TOTAL_Q, HEADS, 4), "float32"))
        self.q = self.q[None]
        self.refused(r"q has shape \(1, 30, 4, 8\); give three axes", causal=True)

    @unittest.skipUnless(torch, "PyTorch does not import")
    def test_torch(self):
        q, k, v, cu_q, cu_kv = (torch.from_numpy(x) for x in (self.q, self.k, self.v, self.cu_q, self.cu_kv))
        o, lse = flashcore.varlen_attention(q, k, v, cu_q, cu_kv, 20, 18, causal=True, return_lse=True)
        self.assertEqual((o.shape, lse.shape), (q.shape, (HEADS, TOTAL_Q)))
        self.expect_each(o.numpy(), lse.numpy(), causal=True)


if __name__ == "__main__":
    unittest.main()
