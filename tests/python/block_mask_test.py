"""flashcore.BlockMask on NumPy's arrays, on the CPU and on the emulated GPU: results with lists and without, which calls make lists, what a
change without `update` does, and what is refused."""

import os
import sys
import threading
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path[:0] = [str(ROOT / "python"), str(Path(__file__).resolve().parent)]
import flashcore  # noqa: E402
from flashcore import _block_mask  # noqa: E402

try:
    import numpy
except ImportError:
    print("NumPy does not import")
    sys.exit(77)

from append_test import Memory  # noqa: E402

HEADS, ROWS, DIM = 2, 200, 64


class Made:
    """Counts what makes lists: {"made": fc_block_mask_create, "updated": fc_block_mask_update}."""

    def __init__(self, test):
        self.counts = {"made": 0, "updated": 0}
        for name, key in (("__init__", "made"), ("update", "updated")):
            patch = mock.patch.object(_block_mask._Lists, name, self.counting(getattr(_block_mask._Lists, name), key))
            patch.start()
            test.addCleanup(patch.stop)

    def counting(self, function, key):
        def call(*arguments):
            self.counts[key] += 1
            return function(*arguments)

        return call


class BlockMaskTest(unittest.TestCase):
    device = "cpu"

    def setUp(self):
        self.memory, self.made = Memory(self.device), Made(self)
        self.addCleanup(self.memory.close)
        views = self.memory.views()
        views.__enter__()
        self.addCleanup(views.__exit__, None, None, None)
        random = numpy.random.default_rng(3)
        self.q, self.k, self.v = (self.place(random.standard_normal((1, HEADS, ROWS, DIM)).astype("float16")) for _ in range(3))
        self.ids = self.place((numpy.arange(ROWS) // 50).astype("int32"))

    def place(self, x):
        return self.memory.place(x)

    def attention(self, block_mask=None, **options):
        out = self.place(numpy.full(self.q.shape, numpy.nan, "float16"))
        return flashcore.attention(self.q, self.k, self.v, out=out, **{"documents": self.ids, **options}, block_mask=block_mask).copy()

    def varlen(self, cu, block_mask=None, **options):
        packed = [self.place(x[0].transpose(1, 0, 2).copy()) for x in (self.q, self.k, self.v)]
        out = self.place(numpy.full(packed[0].shape, numpy.nan, "float16"))
        return flashcore.varlen_attention(*packed, cu, cu, ROWS, ROWS, out=out, mask="j <= i", block_mask=block_mask, **options).copy()

    @property
    def has_lists(self):
        return self.device != "cpu"

    def expect_made(self, made, updated=0):
        self.assertEqual(self.made.counts, {"made": made, "updated": updated} if self.has_lists else {"made": 0, "updated": 0})

    def test_calls_share_lists_and_have_the_bits_of_those_that_do_not(self):
        expected = self.attention()
        self.expect_made(0)
        blocks = flashcore.BlockMask()
        for _ in range(3):
            numpy.testing.assert_array_equal(self.attention(blocks), expected)
        self.expect_made(1)

    def test_each_problem_has_its_own(self):
        blocks = flashcore.BlockMask()
        for _ in range(2):
            for options in ({}, {"scale": 0.25}, {"documents": None, "mask": "j <= i"}, {"documents": None}):
                numpy.testing.assert_array_equal(self.attention(blocks, **options), self.attention(**options))
        self.expect_made(2)

    def test_a_change_is_seen_after_update_and_not_before(self):
        blocks = flashcore.BlockMask()
        before = self.attention(blocks)
        self.ids[:] = 0
        expected, stale = self.attention(), self.attention(blocks)
        self.assertTrue((expected != before).any())
        self.assertEqual(bool((stale != expected).any()), self.has_lists)
        blocks.update()
        for _ in range(2):
            numpy.testing.assert_array_equal(self.attention(blocks), expected)
        self.expect_made(1, 1)

    def test_arrays_with_the_same_contents_may_be_others(self):
        blocks = flashcore.BlockMask()
        expected = self.attention(blocks)
        numpy.testing.assert_array_equal(self.attention(blocks, documents=self.place(self.ids)), expected)
        self.expect_made(1)

    def test_ragged_batches(self):
        cu = self.place(numpy.array([0, 130, ROWS], "int32"))
        blocks = flashcore.BlockMask()
        for _ in range(2):
            numpy.testing.assert_array_equal(self.varlen(cu, blocks), self.varlen(cu))
        self.expect_made(1)
        cu[1] = 10
        blocks.update()
        numpy.testing.assert_array_equal(self.varlen(cu, blocks), self.varlen(cu))
        self.expect_made(1, 1)

    def test_the_oldest_lists_go(self):
        with mock.patch.object(_block_mask, "_MOST_LISTS", 1):
            blocks = flashcore.BlockMask()
            for _ in range(2):
                for scale in (0.25, 0.5):
                    self.attention(blocks, scale=scale)
        self.expect_made(4)

    def test_lists_that_were_used_last_stay(self):
        with mock.patch.object(_block_mask, "_MOST_LISTS", 2):
            blocks = flashcore.BlockMask()
            for scale in (0.1, 0.2, 0.1, 0.3, 0.1):
                self.attention(blocks, scale=scale)
        self.expect_made(3)

    def test_a_plan_says_what_there_is_to_spare(self):
        spared = flashcore.plan(self.q, self.k, self.v, documents=self.ids).info["block_mask_bytes"]
        self.assertEqual(spared > 0, self.has_lists)
        self.assertEqual(flashcore.plan(self.q, self.k, self.v, mask="j <= i").info["block_mask_bytes"], 0)

    def test_threads_share_one(self):
        blocks, expected, wrong = flashcore.BlockMask(), self.attention(), []
        outs = [self.place(numpy.full(self.q.shape, numpy.nan, "float16")) for _ in range(4)]

        def run(out):
            made = flashcore.attention(self.q, self.k, self.v, documents=self.ids, out=out, block_mask=blocks)
            if (made != expected).any():
                wrong.append(made)

        threads = [threading.Thread(target=run, args=(out,)) for out in outs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.expect_made(1)

    def test_what_is_no_block_mask_is_refused(self):
        cu = self.place(numpy.array([0, ROWS], "int32"))
        for wrong in (3, "blocks", self.ids, flashcore.BlockMask):
            for call in (lambda: self.attention(wrong), lambda: self.varlen(cu, wrong)):  # noqa: B023
                with self.assertRaisesRegex(flashcore.Error, "block_mask is a (int|str|ndarray|type); give a flashcore.BlockMask"):
                    call()


class EmulatedBlockMaskTest(BlockMaskTest):
    device = "emulator"


if __name__ == "__main__":
    unittest.main()
