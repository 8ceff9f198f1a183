"""flashcore.append to quantised caches, on the CPU and the emulated GPU: every code is the nearest to k / descale_k, ties to even, and saturates;
rows that are turned first are within a step; what is refused; attention over what was appended."""

import itertools
import os
import sys
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path[:0] = [str(ROOT / "python"), str(Path(__file__).resolve().parent)]
import flashcore  # noqa: E402

try:
    import numpy
except ImportError:
    print("NumPy does not import")
    sys.exit(77)
try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

from append_test import Memory, dtype_of  # noqa: E402

BATCH, ROWS, HEADS, PAGE, PAGES = 2, 3, 2, 4, 5
TYPES = ["int8"] + (["float8_e4m3fn", "float8_e5m2"] if ml_dtypes else [])


def kind_of(name):
    return numpy.dtype(numpy.int8 if name == "int8" else getattr(ml_dtypes, name))


def largest_of(kind):
    return 127.0 if kind == numpy.int8 else float(ml_dtypes.finfo(kind).max)


def codes_of(values, kind):
    """By the definition: float32 numbers to the nearest of the type, ties to even, which saturates."""
    largest = numpy.float32(largest_of(kind))
    clipped = numpy.clip(values, -largest, largest)
    return numpy.round(clipped).astype(kind) if kind == numpy.int8 else clipped.astype(kind)


class Case:
    def __init__(self, memory, name, dtype, columns, by_head, seed=1, heads=HEADS):
        random = numpy.random.default_rng(seed)
        self.memory, self.kind, place = memory, kind_of(name), memory.place
        self.dtype = dtype_of(dtype)
        draw = (random.standard_normal((2, BATCH, ROWS, heads, columns)) * 3).astype("float32")
        draw[0, 0, 0, 0, :4] = [1e4, -1e4, 0, 2.5]  # which saturate, and a tie of int8 with a factor of 1
        self.k, self.v = (place(x.astype(self.dtype)) for x in draw)
        self.k_cache, self.v_cache = (place(numpy.full((PAGES, PAGE, heads, columns), 7, "float32").astype(self.kind)) for _ in range(2))
        self.lengths = place(numpy.int32([2, 5]))
        self.table = place(numpy.int32([[3, 1, -1], [0, 2, 9]]))
        shape = (BATCH, heads) if by_head else (1,)
        self.by_k, self.by_v = (place((random.random(shape) * 0.1 + 0.01).astype("float32")) for _ in range(2))

    def append(self, **arguments):
        given = {"descale_k": self.by_k, "descale_v": self.by_v, "block_table": self.table, **arguments}
        with self.memory.views():
            flashcore.append(given.pop("k", self.k), given.pop("v", self.v), self.k_cache, self.v_cache, self.lengths, **given)

    def append_turned(self, precision):
        """Appends with rotary embedding; the rows of k, turned in that precision."""
        half = self.k.shape[-1] // 4
        angles = numpy.arange(16)[:, None] / 10.0 ** numpy.linspace(0, 2, half)
        cos, sin = (self.memory.place(x.astype("float32")) for x in (numpy.cos(angles), numpy.sin(angles)))
        self.append(rotary_cos=cos, rotary_sin=sin)
        turned = precision(self.k)
        for s in range(BATCH):
            for i in range(ROWS):
                p, a, b = int(self.lengths[s]) + i, turned[s, i, :, :half].copy(), turned[s, i, :, half : 2 * half].copy()
                turned[s, i, :, :half], turned[s, i, :, half : 2 * half] = a * cos[p] - b * sin[p], b * cos[p] + a * sin[p]
        return turned

    def expected(self, rows, by):
        """The cache after rows [batch, rows, heads, columns] were written to it."""
        cache = numpy.full(self.k_cache.shape, 7, "float32").astype(self.kind)
        for s in range(BATCH):
            for i in range(ROWS):
                position = int(self.lengths[s]) + i
                factors = by[s][:, None] if by.ndim == 2 else by
                cache[self.table[s, position // PAGE], position % PAGE] = codes_of(numpy.float32(rows[s, i]) / factors, self.kind)
        return cache


class AppendQuantisedTest(unittest.TestCase):
    def each(self, body):
        for device in ("cpu", "emulator"):
            for name in TYPES:
                for dtype, columns in (("float16", 32), ("float32", 16), ("float16", 20), *((("bfloat16", 64),) if ml_dtypes else ())):
                    for by_head in (False, True):
                        memory = Memory(device)
                        try:
                            with self.subTest(device=device, cache=name, dtype=dtype, columns=columns, by_head=by_head):
                                body(Case(memory, name, dtype, columns, by_head))
                        finally:
                            memory.close()

    def test_codes_are_the_nearest(self):
        def body(case):
            case.append()
            for cache, rows, by in ((case.k_cache, case.k, case.by_k), (case.v_cache, case.v, case.by_v)):
                numpy.testing.assert_array_equal(cache.view("uint8"), case.expected(rows, by).view("uint8"))

        self.each(body)

    def test_what_saturates_is_counted(self):
        """Beside what a conversion that does not saturate makes of it; past 32 bits; refused rows count nothing."""

        def overflows(rows, by, kind):
            quotients = rows.astype("float32") / (by[:, None, :, None] if by.ndim == 2 else by)
            if kind == numpy.int8:
                return int((abs(numpy.round(quotients)) > 127).sum())
            return int((~numpy.isfinite(quotients.astype(kind).astype("float32"))).sum())

        def body(case):
            first = numpy.array([2**32 - 5, 7])
            counts = case.memory.place(first)
            for by in (case.by_k, case.by_v):
                by[...] = numpy.float32(2.0**-5 if case.kind == numpy.int8 else 2.0**-7)
            case.v[0, 0, 0, :3] = [numpy.inf, -numpy.inf, 3.625 if case.kind != numpy.int8 else 3.984375]  # the last: 464, and 127.5
            case.append(saturated=counts)
            wanted = [overflows(rows, by, case.kind) for rows, by in ((case.k, case.by_k), (case.v, case.by_v))]
            self.assertEqual((counts - first).tolist(), wanted)
            self.assertGreaterEqual(wanted[1], 2)
            refused = case.memory.place(numpy.int32([0]))
            case.table[...] = -1
            case.append(saturated=counts, refused=refused)
            self.assertEqual(((counts - first).tolist(), refused[0]), (wanted, BATCH * ROWS))

        self.each(body)

        def with_factors_of_keys(case):
            counts = case.memory.place(numpy.array([0, 0]))
            case.k[0, 0, 0, :2] = [numpy.inf, numpy.nan]
            case.append(saturated=counts)
            self.assertEqual(counts.tolist(), [1, 0])

        self.each_with_factors_of_keys(with_factors_of_keys)

    def test_counts_of_turned_rows(self):
        memory = Memory("emulator")
        case = Case(memory, "int8", "float32", 16, False)
        counts, of_cpu = memory.place(numpy.array([0, 0])), numpy.array([0, 0])
        angles = numpy.ones((16, 4), "float32") * 0.7
        cos, sin = memory.place(numpy.cos(angles)), memory.place(numpy.sin(angles))
        case.append(rotary_cos=cos, rotary_sin=sin, saturated=counts)
        host = Case(Memory("cpu"), "int8", "float32", 16, False)
        host.append(rotary_cos=numpy.cos(angles), rotary_sin=numpy.sin(angles), saturated=of_cpu)
        self.assertEqual(counts.tolist(), of_cpu.tolist())
        self.assertGreater(counts[0], 0)
        memory.close()

    def test_without_factors(self):
        def body(case):
            case.append(descale_k=None, descale_v=None)
            numpy.testing.assert_array_equal(case.k_cache.view("uint8"), case.expected(case.k, numpy.float32([1])).view("uint8"))

        self.each(body)

    def each_with_factors_of_keys(self, body):
        """More heads than a CTA has warps, and rows of more parts than a warp has lanes."""
        for device in ("cpu", "emulator"):
            for name in TYPES:
                for dtype, columns, heads in (("float16", 32, 6), ("float32", 160, 2), ("float16", 68, 5)):
                    memory = Memory(device)
                    try:
                        with self.subTest(device=device, cache=name, dtype=dtype, columns=columns):
                            case = Case(memory, name, dtype, columns, False, heads=heads)
                            of_keys = numpy.full((PAGES, heads, PAGE), numpy.nan, "float32")
                            case.by_k, case.by_v = memory.place(of_keys), memory.place(of_keys.copy())
                            body(case)
                    finally:
                        memory.close()

    def expect_rows(self, case, cache, rows, found, step):
        """Codes and factors by the definition, within `step` of a code; elsewhere nothing is written."""
        factors, codes = numpy.full_like(found, numpy.nan), numpy.full(cache.shape, 7, "float32").astype(case.kind)
        for s in range(BATCH):
            for i in range(ROWS):
                position = int(case.lengths[s]) + i
                page, at = case.table[s, position // PAGE], position % PAGE
                magnitude = numpy.abs(rows[s, i]).max(axis=-1)
                factors[page, :, at] = numpy.maximum(magnitude / numpy.float32(largest_of(case.kind)), numpy.float32(2.0**-126))
                codes[page, at] = codes_of(rows[s, i] / factors[page, :, at][:, None], case.kind)
        numpy.testing.assert_allclose(found, factors, rtol=0 if step == 0 else 1e-5)
        wide, wanted = numpy.float64(cache.astype("float32")), numpy.float64(codes.astype("float32"))
        self.assertTrue((numpy.abs(wide - wanted) <= step * numpy.maximum(1, numpy.abs(wanted) / 8)).all())

    def test_factors_of_keys(self):
        """The largest of each row and head becomes the type's largest number: nothing saturates. Zeros have the least factor, so that
        they take nothing from rows with numbers."""

        def body(case):
            case.v[1, 2, 1] = 0
            case.append()
            self.expect_rows(case, case.k_cache, numpy.float32(case.k), case.by_k, 0)
            self.expect_rows(case, case.v_cache, numpy.float32(case.v), case.by_v, 0)
            self.assertEqual(case.by_v[case.table[1, 1], 1, 3], numpy.float32(2.0**-126))

        self.each_with_factors_of_keys(body)

    def test_factors_of_rows_that_are_no_numbers(self):
        for device in ("cpu", "emulator"):
            memory = Memory(device)
            case = Case(memory, "int8", "float32", 32, False)
            case.by_k, case.by_v = (memory.place(numpy.full((PAGES, HEADS, PAGE), numpy.nan, "float32")) for _ in range(2))
            case.k[0, 0, 0], case.k[0, 0, 1, 5], case.v[0, 0, 0] = numpy.nan, numpy.inf, 1e-42
            case.append()
            largest = numpy.abs(numpy.where(numpy.isfinite(case.k[0, 0, 1]), case.k[0, 0, 1], 0)).max()
            self.assertEqual(case.by_k[3, :, 2].tolist(), [1, numpy.float32(largest) / numpy.float32(127)])
            self.assertEqual(case.k_cache[3, 2, 1, 5], 127)
            self.assertEqual(case.by_v[3, 0, 2], numpy.float32(2.0**-126))
            memory.close()

    def test_no_keys_at_all(self):
        q, k = numpy.ones((2, 4, 3, 64), "float32"), numpy.zeros((2, 2, 0, 64), "int8")
        factors = numpy.ones((2, 2, 0), "float32")
        self.assertTrue((flashcore.attention(q, k, k, descale_k=factors, descale_v=factors) == 0).all())

    def test_factors_of_turned_keys(self):
        def body(case):
            turned = case.append_turned(numpy.float32)
            self.expect_rows(case, case.k_cache, turned, case.by_k, 1)
            self.expect_rows(case, case.v_cache, numpy.float32(case.v), case.by_v, 0)

        self.each_with_factors_of_keys(body)

    def test_attention_with_factors_of_keys(self):
        """Pages of either layout, and dense caches; what no key has is NaN and reaches nothing."""
        random = numpy.random.default_rng(3)
        for paged in (True, False):
            case = Case(Memory("cpu"), "int8", "float32", 32, True)
            shape = (PAGES, HEADS, PAGE) if paged else (BATCH, HEADS, 8)
            case.by_k, case.by_v = (numpy.full(shape, numpy.nan, "float32") for _ in range(2))
            case.lengths[...] = 0
            if not paged:
                case.k_cache, case.v_cache, case.table = (numpy.zeros((BATCH, 8, HEADS, 32), "int8") for _ in range(2)), None, None
                case.k_cache, case.v_cache = case.k_cache
            case.append(new_seqlens=case.lengths)
            q = random.standard_normal((BATCH, HEADS, 32)).astype("float32")
            if paged:
                o = flashcore.decode(q, case.k_cache, case.v_cache, case.table, case.lengths, descale_k=case.by_k, descale_v=case.by_v)
            else:
                keys, values = (x[:, :ROWS] for x in (case.k_cache, case.v_cache))
                factors = {f"descale_{role}": numpy.ascontiguousarray(x[:, :, :ROWS]) for role, x in (("k", case.by_k), ("v", case.by_v))}
                o = flashcore.attention(q[:, None], keys, values, layout="bshd", **factors)[:, 0]
            for s in range(BATCH):
                wanted = flashcore.attention(q[s][None, None], case.k[s][None], case.v[s][None], layout="bshd")
                numpy.testing.assert_allclose(o[s], wanted[0, 0], atol=0.1)
                self.assertGreater(numpy.abs(wanted).max(), 1)

    def test_turned_rows(self):
        """In fp32, divided and rounded once: within a step of the type."""

        def body(case):
            turned = case.append_turned(numpy.float64)
            found, wanted = numpy.float64(case.k_cache.astype("float32")), numpy.float64(case.expected(turned, case.by_k).astype("float32"))
            step = 1.0 if case.kind == numpy.int8 else numpy.maximum(numpy.abs(wanted) * 2.0 * float(ml_dtypes.finfo(case.kind).eps), 2.0**-9)
            self.assertTrue((numpy.abs(found - wanted) <= step).all())
            self.assertGreater((found == wanted).mean(), 0.99)
            numpy.testing.assert_array_equal(case.v_cache.view("uint8"), case.expected(case.v, case.by_v).view("uint8"))

        self.each(body)

    def test_not_a_number(self):
        for device, name in itertools.product(("cpu", "emulator"), TYPES):
            memory = Memory(device)
            case = Case(memory, name, "float16", 32, False)
            case.k[0, 0, 0, 3] = numpy.nan
            case.append()
            stored = case.k_cache[3, 2, 0, 3].astype("float32")
            self.assertTrue(numpy.isnan(stored) if case.kind != numpy.int8 else stored == 0)
            memory.close()

    def test_attention_over_what_was_appended(self):
        case = Case(Memory("cpu"), "int8", "float32", 32, True)
        case.k_cache[...] = 0
        case.v_cache[...] = 0
        lengths = case.lengths.copy()
        case.append(new_seqlens=case.lengths)
        numpy.testing.assert_array_equal(case.lengths, lengths + ROWS)
        q = numpy.random.default_rng(2).standard_normal((BATCH, HEADS, 32)).astype("float32")
        o = flashcore.decode(q, case.k_cache, case.v_cache, case.table, case.lengths, descale_k=case.by_k, descale_v=case.by_v)
        for s in range(BATCH):
            rows = [(case.table[s, j // PAGE], j % PAGE) for j in range(case.lengths[s])]
            k, v = (numpy.stack([cache[at].astype("float32") for at in rows]) * by[s][None, :, None] for cache, by in
                    ((case.k_cache, case.by_k), (case.v_cache, case.by_v)))  # fmt: skip
            wanted = flashcore.attention(q[s][None, None], k[None], v[None], layout="bshd")
            numpy.testing.assert_allclose(o[s], wanted[0, 0], atol=1e-5)

    def test_rows_of_the_caches_type_are_copied(self):
        def body(case):
            case.k, case.v = (case.memory.place(codes_of(numpy.float32(x), case.kind)) for x in (case.k, case.v))
            case.append(descale_k=None, descale_v=None)
            numpy.testing.assert_array_equal(case.k_cache.view("uint8"), case.expected(case.k.astype("float32"), numpy.float32([1])).view("uint8"))
            with self.assertRaisesRegex(flashcore.Error, "descale_k is given and k is .* as its cache; leave it out"):
                case.append()

        self.each(body)

    def test_what_is_refused(self):
        def refused(pattern, case, **arguments):
            with self.assertRaisesRegex(flashcore.Error, pattern):
                case.append(**arguments)

        case = Case(Memory("cpu"), "int8", "float16", 32, False)
        refused("descale_k is given and descale_v is not; give both", case, descale_v=None)
        refused("descale_k is -1.0; factors are positive", case, descale_k=-1.0)
        refused("descale_k has -1 at 0; factors are positive and finite", case, descale_k=numpy.float32([-1]))
        refused("give one element, or .batch, heads_kv.", case, descale_k=numpy.ones(3, "float32"))
        refused("all must agree, but for the type of a quantised cache", case, v=case.v.astype("float32"))
        of_keys = numpy.ones((PAGES, HEADS, PAGE), "float32")
        refused("descale_k has a factor for each key and descale_v one for all; give all alike", case, descale_k=of_keys, descale_v=1.0)
        refused(r"or of each key \(5, 2, 4\)", case, descale_k=numpy.ones((PAGES, PAGE, HEADS), "float32"))
        of_keys.flags.writeable = False
        refused("read-only|written", case, descale_k=of_keys, descale_v=of_keys)
        refused("overlaps", case, descale_k=(same := numpy.ones((PAGES, HEADS, PAGE), "float32")), descale_v=same)
        plain = Case(Memory("cpu"), "int8", "float16", 32, False)
        plain.k_cache, plain.v_cache = plain.k_cache.astype("float16"), plain.v_cache.astype("float16")
        refused("descale_k is given and k is fp16 as its cache; leave it out", plain)


if __name__ == "__main__":
    unittest.main(verbosity=2)
