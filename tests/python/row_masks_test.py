"""Masks that rows have for themselves, intervals of keys and documents by ids or borders: dense, packed and paged, beside boolean masks. NumPy, JAX and PyTorch where they import."""

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
try:
    import jax
except ImportError:
    jax = None

BATCH, HEADS, ROWS, KEYS, DIM = 2, 4, 9, 11, 8
# Packed: a sequence of one row, one without rows, one without keys; rows 25 to 29 and keys 30 to 39 are nobody's.
Q, KV, TOTAL_Q, TOTAL_KV = [0, 1, 1, 5, 25], [0, 10, 12, 12, 30], 30, 40


def near(a, b):
    numpy.testing.assert_allclose(numpy.asarray(a), numpy.asarray(b), atol=3e-6)


@unittest.skipUnless(numpy, "NumPy does not import")
class DenseTest(unittest.TestCase):
    def setUp(self):
        self.random = numpy.random.default_rng(1)
        self.q, self.k, self.v = (self.random.standard_normal((BATCH, heads, rows, DIM), dtype="float32") for heads, rows in ((HEADS, ROWS), (2, KEYS), (2, KEYS)))
        self.key = numpy.arange(KEYS)

    def check(self, visible, **arguments):
        for more in ({}, {"causal": True}, {"sink": numpy.float32([0, 1, -1, 2])}):
            ours = flashcore.attention(self.q, self.k, self.v, return_lse=True, **arguments, **more)
            for a, b in zip(ours, flashcore.attention(self.q, self.k, self.v, return_lse=True, mask=visible, **more)):
                near(a, b)

    def refused(self, pattern, **arguments):
        with self.assertRaisesRegex(flashcore.Error, pattern):
            flashcore.attention(self.q, self.k, self.v, **arguments)

    def starts_and_ends(self, shape):
        """Some empty, some outside of the keys."""
        starts = numpy.int32(self.random.integers(-3, KEYS + 3, shape))
        return starts, numpy.int32(starts + self.random.integers(-2, 7, shape))

    def within(self, pair):
        start, end = (numpy.asarray(x)[..., None] if x is not None else None for x in pair)
        return (True if start is None else self.key >= start) & (True if end is None else self.key < end) & numpy.ones((ROWS, KEYS), bool)

    def test_intervals_of_every_shape(self):
        for shape in ((BATCH, HEADS, ROWS), (1, HEADS, ROWS), (HEADS, ROWS), (ROWS,), (BATCH, 1, 1), (1,)):
            with self.subTest(shape=shape):
                pair = self.starts_and_ends(shape)
                self.check(self.within(pair), intervals=pair)

    def test_unions(self):
        a, b = self.starts_and_ends((BATCH, 1, ROWS)), self.starts_and_ends((HEADS, ROWS))
        self.check(self.within(a) | self.within(b), intervals=[a, b])
        # As cuDNN's frontend has them: the first begins at key 0.
        self.check(self.within((None, a[0])) | self.within(b), intervals=[(None, a[0]), b])
        self.check(self.within((3, 5)) | self.within((8, None)) | self.within(b), intervals=[(3, 5), (8, None), b])
        self.check(self.within(a), intervals=[a])

    def test_they_are_a_mask_function(self):
        pair = self.starts_and_ends((ROWS,))
        plan = flashcore.plan(self.q, self.k, self.v, intervals=[pair, (7, None)])
        self.assertEqual(plan.info["expressions"]["mask"], "j >= interval_start[i] && j < interval_end[i] || j >= 7")
        self.assertEqual(plan.tensors, ("interval_start", "interval_end"))
        out = numpy.empty_like(self.q)
        plan.launch(*(x.ctypes.data for x in (self.q, self.k, self.v, out)), tensors=[x.ctypes.data for x in pair])
        near(out, flashcore.attention(self.q, self.k, self.v, mask=self.within(pair) | self.within((7, None))))
        own = self.within(pair) & (self.key % 2 == 0)
        self.check(own, intervals=pair, mask="j % 2 == 0")

    def test_borders_of_documents(self):
        borders = numpy.int32([[0, 3, 3, 9, 9], [2, 4, 5, 7, 8]])
        ids = flashcore.document_ids(borders, ROWS)
        wanted = [[0, 0, 0, 2, 2, 2, 2, 2, 2], [-1, -1, 0, 0, 1, 2, 2, 3, 4]]
        numpy.testing.assert_array_equal(ids, wanted)
        self.assertEqual(ids.dtype, numpy.int32)
        of_keys = flashcore.document_ids(borders[1], KEYS)
        numpy.testing.assert_array_equal(of_keys, [*wanted[1], 4, 4])
        same = (ids[:, :, None] == flashcore.document_ids(borders, KEYS)[:, None, :])[:, None]
        self.check(same, document_boundaries=(borders, borders))
        self.refused("document_boundaries is one array, and there are 9 rows and 11 keys", document_boundaries=borders)
        self.check(ids[:, None, :, None] == of_keys, document_boundaries=(borders, borders[1]))
        numpy.testing.assert_array_equal(flashcore.document_ids(memoryview(borders[1].copy()), ROWS), wanted[1])

    @unittest.skipUnless(torch, "PyTorch does not import")
    def test_torch(self):
        borders = numpy.int32([[0, 3, 3, 9, 9], [2, 4, 5, 7, 8]])
        for x in (borders, borders[0]):
            ids = flashcore.document_ids(torch.from_numpy(x), ROWS)
            self.assertIs(ids.dtype, torch.int32)
            numpy.testing.assert_array_equal(ids.numpy(), flashcore.document_ids(x, ROWS))
        pair = self.starts_and_ends((BATCH, 1, ROWS))
        o = flashcore.attention(*map(torch.from_numpy, (self.q, self.k, self.v)), intervals=tuple(map(torch.from_numpy, pair)), document_boundaries=(torch.from_numpy(borders),) * 2)
        near(o, flashcore.attention(self.q, self.k, self.v, intervals=pair, document_boundaries=(borders, borders)))
        # A tensor of one element is read where it lies.
        for alone in (torch.tensor([3], dtype=torch.int32), torch.tensor(3, dtype=torch.int32)):
            plan = flashcore.plan(*map(torch.from_numpy, (self.q, self.k, self.v)), intervals=(alone, None))
            self.assertEqual(plan.tensors, ("interval_start",))

    @unittest.skipUnless(jax, "JAX does not import")
    def test_jax(self):
        borders = numpy.int32([[0, 3, 3, 9, 9], [2, 4, 5, 7, 8]])
        for x in (borders, borders[0]):
            numpy.testing.assert_array_equal(flashcore.document_ids(jax.numpy.asarray(x), ROWS), flashcore.document_ids(x, ROWS))

    def test_what_does_not_fit(self):
        starts = numpy.zeros(ROWS, "int32")
        self.refused(r"intervals has shape \(8,\); give one that broadcasts to \(2, 4, 9\)", intervals=(starts[:8], None))
        self.refused("intervals is of dtype int64; give int32", intervals=(numpy.zeros(ROWS, "int64"), None))
        for wrong in (starts, (), (starts,), (starts, starts, starts), [(starts, starts)] * 5, [(starts, starts, starts)], 3):
            self.refused("intervals is no pair of starts and ends", intervals=wrong)
        self.refused("a pair of two None", intervals=[(0, 5), (None, None)])
        self.refused("intervals has 2147483648 for a start or an end", intervals=(2**31, None))
        self.refused("document_boundaries is of dtype int64; give int32", document_boundaries=(numpy.zeros(3, "int64"),) * 2)
        self.refused(r"document_boundaries has shape \(1,\); give the borders of one row's documents", document_boundaries=(numpy.int32([0]),) * 2)
        self.refused("document_boundaries has 3 arrays", document_boundaries=(starts, starts, starts))
        self.refused("documents and document_boundaries are given", document_boundaries=starts, documents=starts)
        self.refused("documents has shape", document_boundaries=(numpy.int32([[0, 9]] * 3),) * 2)
        for wrong in (-1, True, 2.5, None):
            with self.assertRaisesRegex(flashcore.Error, "seqlen is"):
                flashcore.document_ids(starts, wrong)


@unittest.skipUnless(numpy, "NumPy does not import")
class PackedTest(unittest.TestCase):
    def setUp(self):
        self.random = numpy.random.default_rng(2)
        self.q, self.k, self.v = (self.random.standard_normal((total, heads, DIM), dtype="float32") for total, heads in ((TOTAL_Q, HEADS), (TOTAL_KV, 2), (TOTAL_KV, 2)))
        self.cu_q, self.cu_kv = numpy.int32(Q), numpy.int32(KV)
        self.ids = numpy.int32(numpy.cumsum(self.random.random(TOTAL_Q) < 0.3) % 3), numpy.int32(numpy.cumsum(self.random.random(TOTAL_KV) < 0.3) % 3)
        self.starts = numpy.int32(self.random.integers(0, 8, (HEADS, TOTAL_Q)))

    def run_it(self, **arguments):
        return flashcore.varlen_attention(self.q, self.k, self.v, self.cu_q, self.cu_kv, 20, 18, **arguments)

    def expect_each(self, o, visible, **arguments):
        """Every sequence is what flashcore.attention makes of it with the mask that `visible` gives of its rows and keys."""
        seen = 0
        for s in range(4):
            rows, keys = numpy.arange(Q[s], Q[s + 1]), numpy.arange(KV[s], KV[s + 1])
            if len(rows) == 0 or len(keys) == 0:
                continue
            mask = numpy.broadcast_to(visible(rows, keys), (HEADS, len(rows), len(keys)))
            seen += mask.sum()
            q, k, v = (x[None, part] for x, part in ((self.q, rows), (self.k, keys), (self.v, keys)))
            near(o[rows], flashcore.attention(q, k, v, layout="bshd", mask=mask, **arguments)[0])
        self.assertGreater(seen, 0)

    def same(self, of_rows, of_keys):
        return lambda rows, keys: of_rows[rows][:, None] == of_keys[keys]

    def test_documents(self):
        self.expect_each(self.run_it(documents=self.ids, causal=True), self.same(*self.ids), causal=True)
        one = self.ids[1]
        by_bound = numpy.int32(self.random.integers(0, 2, (4, 20))), numpy.int32(self.random.integers(0, 2, (4, 18)))
        o = self.run_it(documents=by_bound)
        numbers = numpy.zeros(TOTAL_Q, "int32"), numpy.zeros(TOTAL_KV, "int32")
        for packed, x, borders in zip(numbers, by_bound, (Q, KV)):
            for s in range(4):
                packed[borders[s] : borders[s + 1]] = x[s, : borders[s + 1] - borders[s]]
        self.expect_each(o, self.same(*numbers))
        self.q = self.random.standard_normal((TOTAL_KV, HEADS, DIM), dtype="float32")  # one array for both
        self.expect_each(self.run_it(documents=one), self.same(one, one))

    def test_borders_of_documents(self):
        borders = numpy.int32([0, 3, 8, 13, 25]), numpy.int32([0, 11, 14, 20, 30])
        ids = flashcore.document_ids(borders[0], TOTAL_Q), flashcore.document_ids(borders[1], TOTAL_KV)
        self.expect_each(self.run_it(document_boundaries=borders), self.same(*ids))

    def test_intervals(self):
        ends = self.starts + 5
        within = lambda rows, keys: (lambda j: (j >= self.starts[:, rows, None]) & (j < ends[:, rows, None]))(keys - keys[0])  # noqa: E731
        self.expect_each(self.run_it(intervals=(self.starts, ends)), within)
        one = self.starts[2]
        self.expect_each(self.run_it(intervals=(one, None)), lambda rows, keys: keys - keys[0] >= one[rows, None])
        by_bound = numpy.int32(self.random.integers(0, 8, (4, 1, 20)))
        packed = numpy.concatenate([by_bound[s, 0, : Q[s + 1] - Q[s]] for s in range(4)] + [numpy.zeros(5, "int32")])
        self.expect_each(self.run_it(intervals=(by_bound, None)), lambda rows, keys: keys - keys[0] >= packed[rows, None])

    def test_boundaries_are_read_when_the_work_runs(self):
        """None of the plan: other lengths need no other one."""
        count = len(flashcore._plan._plans)
        self.run_it(documents=self.ids, scale=0.375)
        made = len(flashcore._plan._plans)
        self.cu_q = numpy.int32([0, 2, 3, 4, 20])
        self.run_it(documents=self.ids, scale=0.375)
        self.assertEqual((made, len(flashcore._plan._plans)), (count + 1, count + 1))

    def test_nothing_is_packed(self):
        self.q, self.cu_q = self.q[:0], self.cu_q * 0
        self.assertEqual(self.run_it(documents=(self.ids[0][:0], self.ids[1]), intervals=(self.starts[:, :0], None)).shape, (0, HEADS, DIM))

    @unittest.skipUnless(torch, "PyTorch does not import")
    def test_torch(self):
        tensors = [torch.from_numpy(x) for x in (self.q, self.k, self.v, self.cu_q, self.cu_kv)]
        o = flashcore.varlen_attention(*tensors, 20, 18, documents=tuple(map(torch.from_numpy, self.ids)), intervals=(torch.from_numpy(self.starts), None), out=torch.zeros(30, 4, 8))
        wanted = self.run_it(documents=self.ids, intervals=(self.starts, None), out=numpy.zeros((30, 4, 8), "float32"))
        near(o, wanted)

    def test_pages(self):
        """One page holds all keys of a sequence; one row each, whose interval is its own."""
        pages_k, pages_v = (numpy.ascontiguousarray(x[:36].reshape(2, 18, 2, DIM)) for x in (self.k, self.v))
        q, table, used, starts = self.q[:2].copy(), numpy.int32([[1], [0]]), numpy.int32([18, 7]), numpy.int32([4, 3])
        o = flashcore.decode(q, pages_k, pages_v, table, used, intervals=(starts, None))
        for s in range(2):
            k, v = (x[None, table[s, 0], : used[s]] for x in (pages_k, pages_v))
            near(o[s], flashcore.attention(q[None, s : s + 1], k, v, layout="bshd", mask=f"j >= {starts[s]}")[0, 0])

    def test_what_does_not_fit(self):
        for arguments, pattern in (({"documents": self.ids[0]}, r"documents has shape \(30,\); give one for each of the 40 packed keys, or for each batch entry up to the bound, 18"),
                                   ({"intervals": (self.starts[:, :29], None)}, r"intervals has shape \(4, 29\); give one for each of the 30 packed rows"),
                                   ({"documents": self.ids, "stream": 0}, "documents is given for packed rows, and stream as well"),
                                   ({"document_boundaries": self.cu_q, "stream": 0}, "document_boundaries and stream are given")):  # fmt: skip
            with self.subTest(pattern=pattern), self.assertRaisesRegex(flashcore.Error, pattern):
                self.run_it(**arguments)


if __name__ == "__main__":
    unittest.main()
