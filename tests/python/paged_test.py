"""flashcore.paged_attention and flashcore.decode: each sequence beside flashcore.attention of its gathered keys; CSR tables; what is refused."""

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
    import ml_dtypes
except ImportError:
    ml_dtypes = None
try:
    import torch
except ImportError:
    torch = None

HEADS, HEADS_KV, DIM, PAGE, PAGES = 4, 2, 8, 4, 11
Q = [0, 1, 1, 5, 10]  # of a row, none at all, four and five; rows 10 and 11 are nobody's
USED = [9, 4, 0, 14]
TABLE = [[8, 2, 5, -1], [0, -1, 99, -1], [-1, -1, -1, -1], [8, 2, 1, 10]]  # the first and the last share their beginning


@unittest.skipUnless(numpy, "NumPy does not import")
class PagedTest(unittest.TestCase):
    def setUp(self):
        random = numpy.random.default_rng(1)
        self.q = random.standard_normal((12, HEADS, DIM), dtype="float32")
        # K and V in one array.
        self.cache = random.standard_normal((PAGES, 2, PAGE, HEADS_KV, DIM), dtype="float32")
        self.k, self.v = self.cache[:, 0], self.cache[:, 1]
        self.k[10, 2:] = self.v[10, 2:] = numpy.nan  # behind the last key
        self.slopes = random.random((4, HEADS), dtype="float32")
        self.sinks = random.standard_normal(HEADS, dtype="float32")
        self.table, self.used, self.cu_q = numpy.int32(TABLE), numpy.int32(USED), numpy.int32(Q)

    def run_it(self, **arguments):
        given = {"block_table": self.table, "seqused_kv": self.used, "cu_seqlens_q": self.cu_q, "max_seqlen_q": 5, **arguments}
        return flashcore.paged_attention(given.pop("q", self.q), given.pop("k", self.k), given.pop("v", self.v), **given)

    def refused(self, pattern, **arguments):
        with self.assertRaisesRegex(flashcore.Error, pattern):
            self.run_it(**arguments)

    def keys_of(self, s, cache):
        return numpy.stack([cache[self.table[s, j // PAGE], j % PAGE] for j in range(self.used[s])] or numpy.zeros((0, HEADS_KV, DIM), "float32"))[None] \
            if self.used[s] else numpy.zeros((1, 0, HEADS_KV, DIM), "float32")  # fmt: skip

    def expect_each(self, o, lse, **arguments):
        """Every sequence is what flashcore.attention makes of its keys."""
        for s in range(4):
            rows = slice(Q[s], Q[s + 1])
            own = {name: x[s] if name == "alibi" and x.ndim == 2 else x for name, x in arguments.items()}
            wanted, wanted_lse = flashcore.attention(self.q[None, rows], self.keys_of(s, self.k), self.keys_of(s, self.v), layout="bshd", return_lse=True, **own)
            numpy.testing.assert_allclose(o[rows], wanted[0], atol=1e-5)
            numpy.testing.assert_allclose(lse[:, rows], wanted_lse[0], atol=1e-5)

    def test_each_sequence_by_itself(self):
        for arguments in ({}, {"causal": True}, {"causal": "top_left", "scale": 0.5}, {"window": (3, 2)}, {"softcap": 0.75, "alibi": self.slopes[0]},
                          {"causal": True, "alibi": self.slopes, "sink": self.sinks}):  # fmt: skip
            self.expect_each(*self.run_it(return_lse=True, **arguments), **arguments)

    def test_heads_before_keys_and_an_out(self):
        out = numpy.full_like(self.q, 7)
        k, v = (numpy.ascontiguousarray(x.swapaxes(1, 2)) for x in (self.k, self.v))
        o, lse = self.run_it(k=k, v=v, layout="HND", out=out, return_lse=True, max_seqlen_kv=14)
        self.assertIs(o, out)
        self.expect_each(o, lse)
        self.assertTrue((out[10:] == 7).all(), "rows that no sequence has are not written")

    def test_a_cache_that_grows(self):
        """The same plan: only what lies on the device changes."""
        for _ in range(3):
            self.expect_each(*self.run_it(return_lse=True, causal=True), causal=True)
            self.used[0] += 1
            self.used[1] = max(1, self.used[1] - 1)
            self.table[0, :3] = self.table[0, [1, 2, 0]]

    def test_a_part_of_a_larger_table(self):
        large = numpy.full((4, 9), -5, "int32")
        large[:, 2:6] = self.table
        self.expect_each(*self.run_it(return_lse=True, block_table=large[:, 2:6]))

    def test_bad_tables_make_nan(self):
        self.table[3, 3] = PAGES
        o = self.run_it(causal=True)
        # Keys 12 and 13 are on no page: the last two rows of five see them.
        self.assertEqual(numpy.isnan(o[5:10]).all(axis=(1, 2)).tolist(), [False, False, False, True, True])
        self.assertFalse(numpy.isnan(o[:5]).any())
        for length in (-1, 17, 2**31 - 1):
            self.used[3] = length
            o, lse = self.run_it(return_lse=True)
            self.assertTrue(numpy.isnan(o[5:10]).all() and numpy.isnan(lse[:, 5:10]).all(), length)
            self.assertFalse(numpy.isnan(o[:5]).any())

    def test_quantised_caches(self):
        """8-bit pages beside q of float32: what their numbers are with their factors."""
        for dtype in ("int8", *(("float8_e4m3fn", "float8_e5m2") if ml_dtypes else ())):
            kind = numpy.int8 if dtype == "int8" else getattr(ml_dtypes, dtype)
            largest = 127 if dtype == "int8" else float(ml_dtypes.finfo(kind).max)
            plain_k, plain_v = numpy.nan_to_num(self.k), numpy.nan_to_num(self.v)
            factor_k, factor_v = (numpy.float32(numpy.abs(x).max() / largest) for x in (plain_k, plain_v))
            k, v = ((x / by).round() if dtype == "int8" else x / by for x, by in ((plain_k, factor_k), (plain_v, factor_v)))
            k, v = k.astype(kind), v.astype(kind)
            o, lse = self.run_it(k=k, v=v, descale_k=float(factor_k), descale_v=float(factor_v), causal=True, return_lse=True)
            wanted = [self.run_it(k=k.astype("float32") * factor_k, v=v.astype("float32") * factor_v, causal=True, return_lse=True)]
            per_head_k, per_head_v = (numpy.full((4, HEADS_KV), by, "float32") for by in (factor_k, factor_v))
            wanted.append(self.run_it(k=k, v=v, descale_k=per_head_k, descale_v=per_head_v, causal=True, return_lse=True))
            wanted.append(self.run_it(k=k, v=(v.astype("float32") * factor_v).astype(kind), causal=True, return_lse=True, scale=float(factor_k) / DIM**0.5))
            for other, other_lse in wanted[:2]:
                numpy.testing.assert_allclose(o[:10], other[:10], atol=1e-5)
                numpy.testing.assert_allclose(lse[:, :10], other_lse[:, :10], atol=1e-5)
            numpy.testing.assert_allclose(lse[:, :10], wanted[2][1][:, :10], atol=1e-5)
            self.table[3, 3] = PAGES
            bad = self.run_it(k=k, v=v, descale_k=float(factor_k), descale_v=float(factor_v), causal=True)
            self.assertEqual(numpy.isnan(bad[5:10]).all(axis=(1, 2)).tolist(), [False, False, False, True, True])
            self.table[3, 3] = TABLE[3][3]
        # At an odd address, where only 8 bits may lie.
        odd = [numpy.zeros(self.k.size + 1, "int8")[1:].reshape(self.k.shape) for _ in range(2)]
        self.assertTrue((self.run_it(k=odd[0], v=odd[1])[:10] == 0).all())
        k = numpy.zeros_like(self.k, dtype="int8")
        self.refused("descale_q is given and q is fp32 beside a cache of int8", k=k, v=k, descale_q=1.0, descale_k=1.0, descale_v=1.0)
        self.refused("descale_k is given and descale_v is not; give both, or none", k=k, v=k, descale_k=1.0)
        self.refused("all three must agree, but for the type of a quantised cache", k=k)
        self.refused("give one element", k=k, v=k, descale_k=numpy.ones((1, 2), "float32"), descale_v=1.0)
        self.refused("descale_v is 0.0; factors are positive", k=k, v=k, descale_k=1.0, descale_v=0.0)
        self.refused("q is of dtype int8; use float32", q=numpy.zeros_like(self.q, dtype="int8"), k=k, v=k)

    def test_decode(self):
        """Of a row each, and of two; the last row sees every key."""
        one = self.q[:4]
        o, lse = flashcore.decode(one, self.k, self.v, self.table, self.used, return_lse=True)
        self.assertEqual((o.shape, lse.shape), (one.shape, (4, HEADS)))
        wanted, wanted_lse = self.run_it(q=one, cu_seqlens_q=numpy.int32([0, 1, 2, 3, 4]), max_seqlen_q=1, return_lse=True)
        numpy.testing.assert_array_equal(o, wanted)
        numpy.testing.assert_array_equal(lse, wanted_lse.T)
        two = self.q[:8].reshape(4, 2, HEADS, DIM)
        o, lse = flashcore.decode(two, self.k, self.v, self.table, self.used, return_lse=True, window=(5, 0), max_seqlen_kv=14)
        wanted, wanted_lse = self.run_it(q=self.q[:8], cu_seqlens_q=numpy.int32([0, 2, 4, 6, 8]), return_lse=True, causal=True, window=(5, 0))
        numpy.testing.assert_allclose(o.reshape(8, HEADS, DIM), wanted, atol=1e-6)
        numpy.testing.assert_allclose(lse.transpose(1, 0, 2).reshape(HEADS, 8), wanted_lse, atol=1e-6)
        with self.assertRaisesRegex(flashcore.Error, "must lie one after another"):
            flashcore.decode(self.q[:9].reshape(3, 3, HEADS, DIM)[:, :2], self.k, self.v, self.table[:3], self.used[:3])
        with self.assertRaisesRegex(flashcore.Error, r"give \[batch, rows, heads, head_dim\]"):
            flashcore.decode(self.q[0], self.k, self.v, self.table, self.used)

    def csr(self):
        counts = [-(-used // PAGE) for used in USED]
        indices = [page for row, count in zip(TABLE, counts) for page in row[:count]]
        last = [used - (count - 1) * PAGE if count else 0 for used, count in zip(USED, counts)]
        return numpy.int32([0, *numpy.cumsum(counts)]), numpy.int32(indices), numpy.int32(last)

    def expect_table(self, table, used, bad=()):
        for s in range(4):
            if s in bad:
                self.assertEqual(used[s], -1)
                continue
            self.assertEqual(used[s], USED[s])
            pages = -(-USED[s] // PAGE)
            self.assertEqual(list(table[s][:pages]), TABLE[s][:pages])
            self.assertTrue(all(page == -1 for page in table[s][pages:]))

    def test_csr(self):
        indptr, indices, last = self.csr()
        table, used = flashcore.block_table_of_csr(indptr, indices, last, PAGE, 4)
        self.assertEqual((table.dtype, used.dtype, table.shape), (numpy.int32, numpy.int32, (4, 4)))
        self.expect_table(table, used)
        self.expect_each(*self.run_it(block_table=table, seqused_kv=used, return_lse=True))
        last[0], last[3] = 5, -1
        self.expect_table(*flashcore.block_table_of_csr(indptr, indices, last, PAGE, 4), bad=(0, 3))
        self.expect_table(*flashcore.block_table_of_csr(indptr, indices, self.csr()[2], PAGE, 3), bad=(3,))
        indptr[4] = 2**31 - 1
        self.assertEqual(flashcore.block_table_of_csr(indptr, indices, last, PAGE, 4)[1][3], -1)
        self.assertEqual(flashcore.block_table_of_csr(indptr[:2] * 0, indices[:0], last[:1] * 0, PAGE, 2)[0].tolist(), [[-1, -1]])
        with self.assertRaisesRegex(flashcore.Error, "indptr is of dtype int64; give int32"):
            flashcore.block_table_of_csr(indptr.astype("int64"), indices, last, PAGE, 4)
        with self.assertRaisesRegex(flashcore.Error, "page_size is 0"):
            flashcore.block_table_of_csr(indptr, indices, last, 0, 4)
        with self.assertRaisesRegex(flashcore.Error, "last_page_len"):
            flashcore.block_table_of_csr(indptr, indices, last[:3], PAGE, 4)

    def test_refused(self):
        self.refused("layout is 'nhd'; use 'NHD'", layout="nhd")
        self.refused("k_cache has shape .* give four axes", k=self.k[0])
        self.refused("pages, page size and heads must agree", v=self.v[:, :2])
        self.refused("q has head_dim 8 and k_cache has 4", k=self.k[..., :4])
        self.refused("block_table is of dtype int64; give int32", block_table=self.table.astype("int64"))
        self.refused(r"give \[batch, max_pages\] with batch = 4", block_table=self.table[:3])
        self.refused("the entries of a row must be adjacent", block_table=self.table[:, ::2])
        self.refused("seqused_kv has", seqused_kv=self.used[:3])
        self.refused("max_seqlen_q is -1", max_seqlen_q=-1)
        self.refused("max_seqlen_kv is 'x'", max_seqlen_kv="x")
        self.refused("out is fp32", out=numpy.zeros((3, HEADS, DIM), "float32"))
        self.refused("overlaps", out=self.q)

    @unittest.skipUnless(torch, "PyTorch does not import")
    def test_torch(self):
        q, k, v, table, used, cu_q = (torch.from_numpy(x) for x in (self.q, self.k, self.v, self.table, self.used, self.cu_q))
        o, lse = flashcore.paged_attention(q, k, v, table, used, cu_seqlens_q=cu_q, max_seqlen_q=5, causal=True, return_lse=True)
        self.expect_each(o.numpy(), lse.numpy(), causal=True)
        one = flashcore.decode(q[:4], k, v, table, used)
        self.assertEqual(one.shape, (4, HEADS, DIM))
        made = flashcore.block_table_of_csr(*(torch.from_numpy(x) for x in self.csr()), PAGE, 4)
        self.assertEqual([x.dtype for x in made], [torch.int32, torch.int32])
        self.expect_table(*(x.numpy() for x in made))


if __name__ == "__main__":
    unittest.main()
