"""Caches of int4, two elements a byte (kv_dtype="int4"): attention reads the same numbers as of an int8 cache with the same codes; append, on
the CPU and the emulated GPU, writes the nearest code, ties to even, which saturates; what is refused."""

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

from append_test import Memory  # noqa: E402

BATCH, ROWS, HEADS, PAGE, PAGES = 2, 3, 2, 4, 5


def packed(codes):
    """int8 codes [..., columns] as uint8 [..., columns / 2]: the even column in the lower half."""
    bits = codes.astype("int8").view("uint8") & 0xF
    return numpy.ascontiguousarray(bits[..., 0::2] | bits[..., 1::2] << 4)


def codes_of(values):
    return numpy.clip(numpy.round(values), -7, 7).astype("int8")


class Int4AttentionTest(unittest.TestCase):
    """Beside an int8 cache of the same codes."""

    def setUp(self):
        self.random = numpy.random.default_rng(4)

    def codes(self, *shape):
        return self.random.integers(-8, 8, shape).astype("int8")  # -8 is read, too

    def test_dense(self):
        for layout, columns, values in (("bhsd", 64, 32), ("bshd", 6, 2)):
            heads_first = layout == "bhsd"
            q = self.random.standard_normal((2, 4, 3, columns) if heads_first else (2, 3, 4, columns)).astype("float32")
            k, v = (self.codes(*((2, 2, 9) if heads_first else (2, 9, 2)), size) for size in (columns, values))
            for factor in (0.1, numpy.float32([[0.1, 0.2], [0.3, 0.4]]), self.random.random((2, 2, 9)).astype("float32")):
                options = {"layout": layout, "causal": True, "descale_k": factor, "descale_v": factor, "return_lse": True}
                found = flashcore.attention(q, packed(k), packed(v), kv_dtype="int4", **options)
                for a, b in zip(found, flashcore.attention(q, k, v, **options)):
                    numpy.testing.assert_array_equal(a, b)

    def test_a_part_of_a_larger_array(self):
        q, k = self.random.standard_normal((1, 4, 1, 32)).astype("float16"), self.codes(1, 2, 8, 96)
        part = packed(k)[:, :, ::2, 16:32]
        found = flashcore.attention(q, part, part, kv_dtype="int4", descale_k=0.2, descale_v=0.2)
        dense = numpy.ascontiguousarray(k[:, :, ::2, 32:64])
        numpy.testing.assert_array_equal(found, flashcore.attention(q, dense, dense, descale_k=0.2, descale_v=0.2))

    def test_negative_strides(self):
        q, k = self.random.standard_normal((2, 4, 3, 32)).astype("float16"), packed(self.codes(2, 2, 9, 32))
        for back in (k[:, :, ::-1], k[:, ::-1], k[::-1]):
            found = flashcore.attention(q, back, back, kv_dtype="int4")
            copy = numpy.ascontiguousarray(back)
            numpy.testing.assert_array_equal(found, flashcore.attention(q, copy, copy, kv_dtype="int4"))

    def test_packed_and_paged(self):
        q = self.random.standard_normal((BATCH, HEADS, 32)).astype("float16")
        k, v = (self.codes(PAGES, PAGE, HEADS, 32) for _ in range(2))
        table, used = numpy.int32([[3, 1], [0, 2]]), numpy.int32([7, 5])
        factors = {role: self.random.random((PAGES, HEADS, PAGE)).astype("float32") for role in ("descale_k", "descale_v")}
        found = flashcore.decode(q, packed(k), packed(v), table, used, kv_dtype="int4", **factors)
        numpy.testing.assert_array_equal(found, flashcore.decode(q, k, v, table, used, **factors))
        rows, boundaries = [x[:3].reshape(-1, HEADS, 32) for x in (k, v)], (numpy.int32([0, 1, 2]), numpy.int32([0, 7, 12]))
        found = flashcore.varlen_attention(q, *(packed(x) for x in rows), *boundaries, 1, 7, kv_dtype="int4", descale_k=0.1, descale_v=0.1)
        numpy.testing.assert_array_equal(found, flashcore.varlen_attention(q, *rows, *boundaries, 1, 7, descale_k=0.1, descale_v=0.1))

    def test_rows_of_one_byte_may_be_far_apart(self):
        q, wide = self.random.standard_normal((1, HEADS, 3, 2)).astype("float16"), self.codes(1, HEADS, 9, 8)
        k = packed(wide)[..., ::4]
        self.assertEqual(k.shape[-1], 1)
        found = flashcore.attention(q, k, k, kv_dtype="int4")
        numpy.testing.assert_array_equal(found, flashcore.attention(q, wide[..., :2].copy(), wide[..., :2].copy()))

    def test_plan(self):
        q, k = numpy.zeros((1, 2, 1, 64), "float16"), numpy.zeros((1, 2, 8, 32), "uint8")
        info = flashcore.plan(q, k, k, kv_dtype="int4", scaling="head").info
        self.assertEqual(info["problem"], "b1_h2_sq1_sk8_d64_fp16_kvint4_perhead")

    def test_what_is_refused(self):
        q, k = numpy.zeros((1, 2, 1, 64), "float16"), numpy.zeros((1, 2, 8, 32), "uint8")
        for pattern, arguments in (
            ("k is of dtype uint8.*; with kv_dtype='int4' it is two int4 a byte", {}),
            ("k is a memoryview and kv_dtype is 'int4'; give a NumPy", {"kv_dtype": "int4", "k": memoryview(k)}),
            ("v_layout is 'dn', q is fp16 and v int4; only dense q, k and v of 8 bits", {"kv_dtype": "int4", "v_layout": "dn"}),
            ("kv_dtype is 'int8'; use 'int4'", {"kv_dtype": "int8"}),
            ("k is of dtype int8 and kv_dtype is 'int4'; give", {"kv_dtype": "int4", "k": k.view("int8")}),
            ("q has head_dim 64 and k has 32", {"kv_dtype": "int4", "k": k[..., :16]}),
            ("k has stride 2 along its last axis; the elements of a row must be adjacent: copy it", {"kv_dtype": "int4", "k": k.repeat(2, -1)[..., ::2]}),
            ("k has stride -1 along its last axis", {"kv_dtype": "int4", "k": k[..., ::-1]}),
        ):
            with self.assertRaisesRegex(flashcore.Error, pattern):
                flashcore.attention(q, arguments.pop("k", k), k, **arguments)
        rows, cache = q[:, :, 0], k.swapaxes(1, 2).repeat(2, -1)[..., ::2]
        table, used, boundaries = numpy.int32([[0]]), numpy.int32([8]), numpy.int32([0, 1])
        with self.assertRaisesRegex(flashcore.Error, "k_cache has stride 2 along its last axis"):
            flashcore.decode(rows, cache, cache, table, used, kv_dtype="int4")
        with self.assertRaisesRegex(flashcore.Error, "k has stride 2 along its last axis"):
            flashcore.varlen_attention(rows, cache[0], cache[0], boundaries, 8 * boundaries, 1, 8, kv_dtype="int4")


class Int4AppendTest(unittest.TestCase):
    def each(self, body):
        # 16 bytes of new rows at once, and two elements at once.
        for device in ("cpu", "emulator"):
            for dtype, columns in (("float16", 64), ("float32", 32), ("float16", 20), ("float32", 6)):
                memory = Memory(device)
                try:
                    with self.subTest(device=device, dtype=dtype, columns=columns):
                        body(memory, dtype, columns)
                finally:
                    memory.close()

    def setUp(self):
        self.random = numpy.random.default_rng(5)
        self.table, self.lengths = numpy.int32([[3, 1, -1], [0, 2, 9]]), numpy.int32([2, 5])

    def append(self, memory, dtype, columns, by, **options):
        """New rows, and the caches and factors after they were appended. by: "token", or the factors of K and V."""
        place = memory.place
        rows = [place((self.random.standard_normal((BATCH, ROWS, HEADS, columns)) * 3).astype(dtype)) for _ in range(2)]
        caches = [place(numpy.full((PAGES, PAGE, HEADS, columns // 2), 0x5A, "uint8")) for _ in range(2)]
        if isinstance(by, str):
            factors = [place(numpy.full((PAGES, HEADS, PAGE), numpy.nan, "float32")) for _ in range(2)]
        else:
            factors = [place(by) for _ in range(2)]
        options = {name: place(x) if isinstance(x, numpy.ndarray) else x for name, x in options.items()}
        with memory.views():
            flashcore.append(*rows, *caches, place(self.lengths), block_table=place(self.table), kv_dtype="int4", descale_k=factors[0],
                             descale_v=factors[1], **options)  # fmt: skip
        return rows, caches, factors

    def places(self):
        for s in range(BATCH):
            for i in range(ROWS):
                position = int(self.lengths[s]) + i
                yield s, i, position, (self.table[s, position // PAGE], position % PAGE)

    def expect(self, cache, rows, factors):
        wanted = numpy.full(cache.shape, 0x5A, "uint8")
        for s, i, _, (page, at) in self.places():
            by = factors if factors.ndim == 1 else factors[s] if factors.ndim == 2 else factors[page, :, at]
            wanted[page, at] = packed(codes_of(numpy.float32(rows[s, i]) / by[:, None]))
        numpy.testing.assert_array_equal(cache, wanted)

    def test_codes_are_the_nearest(self):
        def body(memory, dtype, columns):
            for by in (numpy.float32([0.5]), numpy.float32([[0.3, 0.6], [0.9, 1.2]])):
                rows, caches, factors = self.append(memory, dtype, columns, by)
                for x, cache, of in zip(rows, caches, factors):
                    self.expect(cache, x, of)

        self.each(body)

    def test_into_a_cache_with_a_negative_stride(self):
        k = self.random.standard_normal((1, ROWS, HEADS, 16)).astype("float16") * 5
        pages, begin, count = numpy.int32([[0]]), numpy.int32([0]), numpy.int32([ROWS])
        caches = [numpy.full((1, PAGE, HEADS, 8), 0x5A, "uint8") for _ in range(4)]
        flashcore.append(k, k, *caches[:2], begin, block_table=pages, new_seqlens=count, kv_dtype="int4")
        flashcore.append(k, k, *(x[:, ::-1] for x in caches[2:]), begin, block_table=pages, new_seqlens=count, kv_dtype="int4")
        numpy.testing.assert_array_equal(caches[2][:, ::-1], caches[0])

    def test_factors_of_keys(self):
        """A row's largest magnitude becomes 7."""

        def body(memory, dtype, columns):
            rows, caches, factors = self.append(memory, dtype, columns, "token")
            for x, cache, of in zip(rows, caches, factors):
                for s, i, _, (page, at) in self.places():
                    numpy.testing.assert_array_equal(of[page, :, at], numpy.abs(numpy.float32(x[s, i])).max(axis=-1) / numpy.float32(7))
                self.expect(cache, x, of)

        self.each(body)

    def test_turned_rows(self):
        """Codes of rows that are turned first, in float64, but for the few that lie at a tie."""

        def body(memory, dtype, columns):
            half = columns // 2 // 2
            angles = numpy.arange(16)[:, None] / 10.0 ** numpy.linspace(0, 2, half)
            cos, sin = numpy.cos(angles).astype("float32"), numpy.sin(angles).astype("float32")
            for interleaved in (False, True):
                if not interleaved and half % 2:
                    with self.assertRaisesRegex(flashcore.Error, "give a multiple of 4: two columns share a byte"):
                        self.append(memory, dtype, columns, numpy.float32([0.5]), rotary_cos=cos, rotary_sin=sin)
                    continue
                rows, caches, _ = self.append(memory, dtype, columns, numpy.float32([0.5]), rotary_cos=cos, rotary_sin=sin, rotary_interleaved=interleaved)
                first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
                equal = []
                for s, i, p, at in self.places():
                    x = numpy.float64(rows[0][s, i])
                    a, b = x[:, first].copy(), x[:, second].copy()
                    x[:, first], x[:, second] = a * cos[p] - b * sin[p], b * cos[p] + a * sin[p]
                    equal.append(caches[0][at] == packed(codes_of(x / 0.5)))
                self.assertGreater(numpy.mean(equal), 0.99)
                self.expect(caches[1], rows[1], numpy.float32([0.5]))

        self.each(body)

    def test_attention_over_what_was_appended(self):
        memory = Memory("cpu")
        self.lengths = numpy.zeros(BATCH, "int32")
        rows, caches, factors = self.append(memory, "float32", 32, "token")
        q = self.random.standard_normal((BATCH, HEADS, 32)).astype("float32")
        o = flashcore.decode(q, *caches, self.table, self.lengths + ROWS, kv_dtype="int4", descale_k=factors[0], descale_v=factors[1])
        for s in range(BATCH):
            codes = [codes_of(x[s] / (numpy.abs(x[s]).max(axis=-1, keepdims=True) / numpy.float32(7))) for x in rows]
            k, v = (c * (numpy.abs(x[s]).max(axis=-1, keepdims=True) / numpy.float32(7)) for c, x in zip(codes, rows))
            wanted = flashcore.attention(q[s][None, None], k[None], v[None], layout="bshd")
            numpy.testing.assert_allclose(o[s], wanted[0, 0], atol=1e-5)


if __name__ == "__main__":
    unittest.main()
