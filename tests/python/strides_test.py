"""flashcore.attention by value on arrays as slices, permutations, expansions and reversals make them. Needs NumPy.

Inputs lie in memory that is NaN around them, outputs in memory whose every other element must stay as it was. On the CPU; the
same for a GPU is drawn by torch_test.py.
"""

import collections
import math
import os
import sys
import unittest
from pathlib import Path

import numpy as np

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
import flashcore  # noqa: E402

DRAWS = 300


def reference(q, k, v, causal):
    """In float64, [batch, heads, seqlen, head_dim]."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[3])
    rows, keys = scores.shape[2:]
    offset = {False: keys, "top_left": 0, "bottom_right": keys - rows}[causal]
    scores = np.where(np.arange(keys)[None, :] <= np.arange(rows)[:, None] + offset, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.nan_to_num(weights / weights.sum(axis=-1, keepdims=True)) @ v


class Drawer:
    """Views of a shape in ways that are counted."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.seen = collections.Counter()

    def number(self, low, high):
        return int(self.rng.integers(low, high + 1))

    def chance(self, n):
        return self.number(1, n) == 1

    def view(self, shape, dtype, repeat):
        """An array of that shape, every element of its memory NaN: axes in any order, padded, reversed, expanded if `repeat`,
        from any element on. And the memory."""
        extents, flips = list(shape), [1, 1, 1]
        all_three = repeat and self.chance(12)
        for axis in range(3):
            if all_three or (repeat and self.chance(6)):
                extents[axis] = 1
                self.seen["expanded"] += shape[axis] > 1
            elif self.chance(6) and shape[axis] > 1:
                flips[axis] = -1
                self.seen["reversed"] += 1
        order = list(self.rng.permutation(3)) if self.chance(2) else [0, 1, 2]
        self.seen["permuted"] += order != [0, 1, 2]
        # Rows and columns that are not used, before and behind.
        pads = [(self.number(0, 2), self.number(0, 2)) if self.chance(3) else (0, 0) for _ in range(3)]
        before, behind = (self.number(0, 9), self.number(0, 9)) if self.chance(2) else (0, 0)
        self.seen["padded"] += any(map(any, pads)) or bool(behind)
        self.seen["offset"] += before % 4 != 0
        outer = [extents[axis] + sum(pads[axis]) for axis in order] + [shape[3] + before + behind]
        first = self.number(0, 3)
        memory = np.full(first + math.prod(outer), np.nan, dtype)
        whole = memory[first:].reshape(outer).transpose([order.index(0), order.index(1), order.index(2), 3])
        part = whole[tuple(slice(pads[a][0], pads[a][0] + extents[a]) for a in range(3)) + (slice(before, before + shape[3]),)]
        part = part[tuple(slice(None, None, flip) for flip in flips)]
        if tuple(extents) != tuple(shape):
            part = np.lib.stride_tricks.as_strided(part, shape, [0 if n != m else s for n, m, s in zip(extents, shape, part.strides)])
            self.seen["one row for all"] += part.strides[:3] == (0, 0, 0) and min(shape[:3]) > 1
        return part, memory

    def fill(self, part):
        """Random numbers, as few as the memory holds; back comes what the array then is."""
        distinct = part[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in part.strides)]
        distinct[...] = self.rng.standard_normal(distinct.shape).astype(part.dtype)
        return np.array(part)


class StridesTest(unittest.TestCase):
    def test_random_views(self):
        draw = Drawer(20)
        for index in range(DRAWS):
            dtype = np.float32 if draw.chance(2) else np.float16
            batch, heads_kv, group = draw.number(1, 3), draw.number(1, 3), draw.number(1, 3)
            rows, keys, dim, columns = draw.number(1, 20), draw.number(1, 40), draw.number(1, 40), draw.number(1, 40)
            if draw.chance(4):  # so that all three axes can be expanded
                batch, heads_kv = draw.number(2, 3), draw.number(2, 3)
            causal = (False, "top_left", "bottom_right")[draw.number(0, 2)]
            layout = ("bhsd", "bshd")[draw.number(0, 1)]
            views, values = [], []
            for heads, length, width in ((heads_kv * group, rows, dim), (heads_kv, keys, dim), (heads_kv, keys, columns)):
                part, _ = draw.view((batch, heads, length, width), dtype, repeat=True)
                values.append(draw.fill(part))
                views.append(part)
            out, memory = draw.view((batch, heads_kv * group, rows, columns), dtype, repeat=False)
            given = [x.transpose(0, 2, 1, 3) if layout == "bshd" else x for x in (*views, out)]
            with self.subTest(draw=index, layout=layout, strides=[x.strides for x in given], shapes=[x.shape for x in given]):
                flashcore.attention(*given[:3], causal=causal, layout=layout, out=given[3])
                want = reference(*values, causal)
                np.testing.assert_allclose(out.astype(np.float64), want, atol=2e-5 if dtype == np.float32 else 4e-3)
                made = flashcore.attention(*given[:3], causal=causal, layout=layout)
                np.testing.assert_array_equal(made, given[3])
                for part, value in zip(views, values):
                    np.testing.assert_array_equal(part, value)
                out[...] = np.nan
                self.assertTrue(np.isnan(memory).all(), "wrote beside the output")
        # A draw that never came would test nothing.
        for what, least in (("expanded", 80), ("reversed", 80), ("permuted", 80), ("padded", 80), ("offset", 80), ("one row for all", 10)):
            self.assertGreaterEqual(draw.seen[what], least, draw.seen)


if __name__ == "__main__":
    unittest.main()
