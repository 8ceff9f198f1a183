"""NaN and infinity in memory that no row may see: beyond the last key, before the first, between rows, in the heads and batches
around, in K and in V; and at keys that are masked for some rows. The CPU family and every GPU family on the emulated GPU,
through the C API. What is asserted of masked keys is what docs/correctness.md says."""

import ctypes
import json
import os
import re
import sys
import unittest
from pathlib import Path

import numpy as np

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
from flashcore._library import Attention, Strides, check, library, text_of  # noqa: E402

DTYPES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1}
CAUSAL = {"none": 0, "bottom_right": 1, "top_left": 2}
GPU_FAMILIES = ("sm90_fwd", "sm90_short_fwd", "sm80_fwd", "sm80_short_fwd", "ref_fwd")
BAD = (np.nan, np.inf, -np.inf)
ROWS_AROUND, COLUMNS_BETWEEN = 3, 8  # 8 elements of 2 bytes keep rows 16-byte aligned


class Inside:
    """A tensor within a larger one. `around` fills what is not the tensor's."""

    def __init__(self, values, around=None):
        batch, heads, rows, columns = values.shape
        self.whole = np.zeros((batch + 2, heads + 2, rows + 2 * ROWS_AROUND, columns + COLUMNS_BETWEEN), values.dtype)
        if around is not None:
            self.whole[...] = np.resize(np.array(around, values.dtype), self.whole.shape)
        self.part = self.whole[1:-1, 1:-1, ROWS_AROUND:-ROWS_AROUND, :columns]
        self.part[...] = values
        item = values.itemsize
        self.offset = self.part.__array_interface__["data"][0] - self.whole.__array_interface__["data"][0]
        self.strides = [s // item for s in self.part.strides[:3]]
        assert self.offset % 16 == 0


class Device:
    def __init__(self, name):
        self.library = library()
        self.context = ctypes.c_void_p()
        check(self.library.fc_context_create(name.encode(), ctypes.byref(self.context)))
        for function in ("fc_memory_allocate", "fc_memory_free", "fc_memory_upload", "fc_memory_download"):
            getattr(self.library, function).restype = ctypes.c_int
        self.plans = {}

    def plan(self, q, k, v, o, causal, candidate):
        strides = [tuple(x.strides) for x in (q, k, v, o)]
        shapes = [x.part.shape for x in (q, k, v)]
        key = (str(strides), str(shapes), causal, candidate, q.part.dtype)
        if key not in self.plans:
            batch, heads, rows, columns = q.part.shape
            problem = Attention(dtype=DTYPES[q.part.dtype], batch=batch, heads_q=heads, heads_kv=k.part.shape[1], seqlen_q=rows,
                                seqlen_kv=k.part.shape[2], head_dim=columns, head_dim_v=v.part.shape[3], causal=CAUSAL[causal],
                                alignment=16, scale=0.0, q=Strides(*strides[0]), k=Strides(*strides[1]), v=Strides(*strides[2]),
                                o=Strides(*strides[3]), candidate=candidate.encode())  # fmt: skip
            made = ctypes.c_void_p()
            check(self.library.fc_plan_create(self.context, ctypes.byref(problem), ctypes.byref(made)))
            self.plans[key] = made
        return self.plans[key]

    def attention(self, q, k, v, causal="none", candidate="cpu_fwd"):
        """Of Insides; o and lse as arrays."""
        batch, heads, rows, _ = q.part.shape
        o = Inside(np.full((batch, heads, rows, v.part.shape[3]), -1, q.part.dtype))
        plan = self.plan(q, k, v, o, causal, candidate)
        lse = np.full((batch, heads, rows), -1, np.float32)
        memory = []

        def upload(array):
            address = ctypes.c_void_p()
            check(self.library.fc_memory_allocate(self.context, ctypes.c_size_t(array.nbytes), ctypes.byref(address)))
            memory.append(address)
            check(self.library.fc_memory_upload(self.context, address, array.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(array.nbytes)))
            return address.value

        try:
            at = [upload(x.whole) + x.offset for x in (q, k, v, o)]
            at_lse = upload(lse)
            check(self.library.fc_plan_launch(plan, *at, at_lse, 0))
            check(self.library.fc_context_synchronize(self.context, None))
            for array, address in ((o.whole, at[3] - o.offset), (lse, at_lse)):
                check(self.library.fc_memory_download(self.context, array.ctypes.data_as(ctypes.c_void_p), ctypes.c_void_p(address), ctypes.c_size_t(array.nbytes)))
            return o.part.copy(), lse
        finally:
            for address in memory:
                check(self.library.fc_memory_free(self.context, address))

    def full_name(self, candidate, shapes, dtype, causal):
        """With every parameter of its default, so that other lengths need no other code."""
        q, k, v = (Inside(np.zeros(shape, dtype)) for shape in shapes)
        o = Inside(np.zeros((*shapes[0][:3], shapes[2][3]), dtype))
        return json.loads(text_of(self.library.fc_plan_describe, self.plan(q, k, v, o, causal, candidate)))["candidate"]


def tensors(rows, keys, columns, dtype, heads=(2, 1), seed=1):
    rng = np.random.default_rng(seed)
    shapes = (1, heads[0], rows, columns), (1, heads[1], keys, columns), (1, heads[1], keys, columns)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def visible(row, rows, keys, causal):
    return {"none": keys, "top_left": min(row + 1, keys), "bottom_right": min(max(row + 1 + keys - rows, 0), keys)}[causal]


CLEAN = {}  # results without NaN, of the cases of rows_reached


class LeakCase:
    """Shared by the CPU and the emulator; `device`, `candidate_for` and `dtype` are theirs."""

    def same_bits(self, a, b, what):
        for x, y, name in zip(a, b, ("o", "lse"), strict=True):
            self.assertEqual(x.tobytes(), y.tobytes(), f"{name} changed: {what}")

    def outside_never_shows(self, candidate, dtype, columns, rows, keys, causal):
        arrays = tensors(rows, keys, columns, dtype)
        clean = self.device.attention(*map(Inside, arrays), causal, candidate)
        self.assertTrue(np.isfinite(clean[0]).all())
        for row in range(rows):
            if visible(row, rows, keys, causal) == 0:
                self.assertTrue((clean[0][:, :, row] == 0).all() and np.isneginf(clean[1][:, :, row]).all(), f"row {row} sees no key")
        dirty = self.device.attention(*(Inside(x, BAD) for x in arrays), causal, candidate)
        self.same_bits(dirty, clean, f"{candidate} {dtype.__name__} d={columns} sq={rows} sk={keys} {causal}: NaN and infinity around q, k, v")

    def rows_reached(self, candidate, dtype, columns, rows, keys, causal, key, poison_k=False, value=np.nan):
        """Rows that do not see `key`, and whose results differ once it is `value`; their numbers, of head 0."""
        q, k, v = tensors(rows, keys, columns, dtype, heads=(1, 1))
        case = (self.device, candidate, dtype, columns, rows, keys, causal)
        clean = CLEAN[case] = CLEAN.get(case) or self.device.attention(*map(Inside, (q, k, v)), causal, candidate)
        (k if poison_k else v)[:, :, key] = value
        dirty = self.device.attention(*map(Inside, (q, k, v)), causal, candidate)
        blind = [row for row in range(rows) if visible(row, rows, keys, causal) <= key]
        for row in range(rows):
            if row not in blind and np.isnan(value):
                self.assertTrue(np.isnan(dirty[0][0, 0, row]).all(), f"row {row} sees key {key}, which is NaN")
        return [row for row in blind if dirty[0][0, 0, row].tobytes() != clean[0][0, 0, row].tobytes()
                or dirty[1][0, 0, row] != clean[1][0, 0, row] and not (np.isneginf(dirty[1][0, 0, row]) and np.isneginf(clean[1][0, 0, row]))]  # fmt: skip

    def a_nan_row_of_q_stays_there(self, candidate, dtype, columns, causal):
        q, k, v = tensors(70, 90, columns, dtype, heads=(1, 1))
        clean = self.device.attention(*map(Inside, (q, k, v)), causal, candidate)
        q[:, :, 33, columns // 2] = np.nan
        dirty = self.device.attention(*map(Inside, (q, k, v)), causal, candidate)
        for row in range(70):
            if row == 33:
                self.assertTrue(np.isnan(dirty[0][0, 0, row]).all() and np.isnan(dirty[1][0, 0, row]))
            else:
                self.same_bits([x[0, 0, row] for x in dirty], [x[0, 0, row] for x in clean], f"{candidate}: NaN in row 33 of q, row {row}")


# Rows that are computed together, and keys; by the parameters of the config.
TILES = {"sm90_fwd": ("64", "block_n"), "sm90_short_fwd": ("64*row_groups", "block_n"), "sm80_fwd": ("block_m", "block_n"),
         "sm80_short_fwd": ("16*row_blocks", "block_n"), "ref_fwd": ("1", "1"), "cpu_fwd": ("1", "1")}  # fmt: skip


def tile_of(family, candidate):
    config = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", candidate)}
    return tuple(eval(size, {}, config) for size in TILES[family])


def documented_reach():
    """{family: ((M, N), rows reached for each key)} of the table in docs/correctness.md, and the keys."""
    text = (ROOT / "docs" / "correctness.md").read_text(encoding="utf-8")
    keys = re.search(r"rows reached by NaN in V, causal, 256 rows and keys, head dim 64: at key ([\d, ]+) \|", text)[1]
    found = {}
    for cells in re.findall(r"(?m)^\| ((?:`\w+`(?:, )?)+) \| (.+?) \| (.+?) \| ([\d, ]+) \|$", text):
        tile = tuple(int(re.search(r"(\d+)$", cell)[1]) for cell in cells[1:3])
        for family in re.findall(r"`(\w+)`", cells[0]):
            found[family] = tile, [int(number) for number in cells[3].split(",")]
    return found, [int(key) for key in keys.split(",")]


LENGTHS = ((37, 71), (71, 37), (1, 130), (130, 130))


class CpuTest(LeakCase, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.device = Device("cpu")

    def test_what_no_row_may_see_never_shows(self):
        for dtype in (np.float32, np.float16):
            for columns in (8, 40, 64):
                for rows, keys in LENGTHS:
                    for causal in CAUSAL:
                        with self.subTest(dtype=dtype.__name__, columns=columns, rows=rows, keys=keys, causal=causal):
                            self.outside_never_shows("cpu_fwd", dtype, columns, rows, keys, causal)
                            # Split over the keys that are read: with one block of them there is nothing to split.
                            if visible(rows - 1, rows, keys, causal) > 32:
                                self.outside_never_shows("cpu_fwd:kv_split=2,block_n=32", dtype, columns, rows, keys, causal)

    def test_this_test_would_notice(self):
        q, k, v = tensors(37, 71, 64, np.float32)
        inputs = [Inside(x, BAD) for x in (q, k, v)]
        for x in inputs[1:]:
            x.part = x.whole[1:-1, 1:-1, ROWS_AROUND : 1 - ROWS_AROUND, :64]  # one key too many
        self.assertFalse(np.isfinite(self.device.attention(*inputs)[0]).any())

    def test_a_masked_key_reaches_no_row(self):
        for value in BAD:
            for causal in ("top_left", "bottom_right"):
                for rows, keys in ((130, 130), (70, 90), (90, 70)):
                    for key in (keys - 1, keys // 2, keys // 3):
                        for poison_k in (False, True):
                            reached = self.rows_reached("cpu_fwd", np.float32, 64, rows, keys, causal, key, poison_k, value)
                            self.assertEqual(reached, [], (value, causal, rows, keys, key, poison_k))

    def test_a_nan_row_of_q_stays_there(self):
        for causal in CAUSAL:
            self.a_nan_row_of_q_stays_there("cpu_fwd", np.float32, 40, causal)


class EmulatorTest(LeakCase, unittest.TestCase):
    COLUMNS = 64

    @classmethod
    def setUpClass(cls):
        cls.device = Device("emulator")

    def candidate(self, family, causal):
        shape = (1, 1, 130, self.COLUMNS)
        keys = (1, 1, 130, self.COLUMNS)
        return self.device.full_name(family, (shape, keys, keys), np.float16, causal)

    def each(self, body):
        for family in GPU_FAMILIES:
            for causal in ("none", "bottom_right"):
                with self.subTest(family=family, causal=causal):
                    body(family, self.candidate(family, causal), causal)

    def test_what_no_row_may_see_never_shows(self):
        def body(family, candidate, causal):
            for rows, keys in LENGTHS:
                self.outside_never_shows(candidate, np.float16, self.COLUMNS, rows, keys, causal)

        self.each(body)

    def test_a_masked_key_reaches_no_further_than_its_tiles(self):
        for family in TILES:
            if family == "cpu_fwd":
                continue
            candidate = self.candidate(family, "bottom_right")
            block_m, block_n = tile_of(family, candidate)
            for key in (40, 100, 129):
                with self.subTest(candidate=candidate, key=key):
                    # A tile of rows computes the key's block if its last row sees the block's first key.
                    near = [row for row in range(key) if row // block_m * block_m + block_m - 1 >= key // block_n * block_n]
                    for value in (np.nan, -np.inf):
                        reached = self.rows_reached(candidate, np.float16, self.COLUMNS, 130, 130, "bottom_right", key, value=value)
                        self.assertLessEqual(set(reached), set(near) if family != "ref_fwd" else set())
                    reached = self.rows_reached(candidate, np.float16, self.COLUMNS, 130, 130, "bottom_right", key, poison_k=True)
                    self.assertEqual(reached, [], "NaN in K at a masked key")

    def test_the_documents_table_is_what_is_measured(self):
        documented, keys = documented_reach()
        self.assertEqual(set(documented), set(TILES))
        for family, (tile, reached) in documented.items():
            with self.subTest(family=family):
                self.device = self.__class__.device if family != "cpu_fwd" else Device("cpu")
                shape = (1, 1, 256, self.COLUMNS)
                candidate = self.device.full_name(family, (shape, shape, shape), np.float16, "bottom_right")
                self.assertEqual(tile_of(family, candidate), tile, candidate)
                measured = [len(self.rows_reached(candidate, np.float16, self.COLUMNS, 256, 256, "bottom_right", key)) for key in keys]
                self.assertEqual(measured, reached, "docs/correctness.md, the table of rows that NaN in V reaches")

    def test_a_nan_row_of_q_stays_there(self):
        self.each(lambda family, candidate, causal: self.a_nan_row_of_q_stays_there(candidate, np.float16, self.COLUMNS, causal))


if __name__ == "__main__":
    unittest.main()
