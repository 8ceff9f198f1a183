"""flashcore.append beside a plain reference that writes key by key and turns in fp64: on the CPU and, with its checks of races and addresses, on the
emulator; hostile lengths, tables and boundaries; faults planted in the kernel, which the same draws must catch; what is refused.

FLASHCORE_APPEND_DRAWS=CPU,EMULATOR changes how many calls are drawn."""

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
import flashcore  # noqa: E402
from flashcore import _append, _arrays, _library  # noqa: E402

try:
    import numpy
except ImportError:
    print("NumPy does not import")
    sys.exit(77)
try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

DRAWS_CPU, DRAWS_EMULATOR = (int(x) for x in os.environ.get("FLASHCORE_APPEND_DRAWS", "200,50").split(","))
LARGEST = 2**31 - 1
# Of one rounding to the type, relative; and the least step between its numbers.
ROUNDINGS = {"float32": (2.0**-24, 2.0**-149), "float16": (2.0**-11, 2.0**-24), "bfloat16": (2.0**-8, 2.0**-133)}


def dtype_of(name):
    return numpy.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name)


DTYPES = ["float16", "float32"] + (["bfloat16"] if ml_dtypes else [])


class Memory:
    """Where a call's arrays lie: on the emulated GPU each in an allocation of its own, whose ends the emulator watches."""

    def __init__(self, device):
        self.device, self.addresses = device, []
        self.library = _library.library()
        self.library.fc_memory_allocate.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)]
        self.library.fc_memory_free.argtypes = [ctypes.c_void_p, ctypes.c_void_p]

    def empty(self, elements, dtype):
        elements = max(elements, 1)
        if self.device == "cpu":
            return numpy.zeros(elements, dtype)
        address = ctypes.c_void_p()
        _library.check(self.library.fc_memory_allocate(_library.context(self.device), elements * dtype.itemsize, ctypes.byref(address)))
        self.addresses.append(address)
        array = numpy.frombuffer((ctypes.c_uint8 * (elements * dtype.itemsize)).from_address(address.value), dtype=numpy.uint8).view(dtype)
        array[:] = 0
        return array

    def place(self, values):
        array = self.empty(values.size, values.dtype)[: values.size].reshape(values.shape)
        array[...] = values
        return array

    @contextlib.contextmanager
    def views(self):
        """flashcore takes NumPy's arrays for the emulator's."""
        if self.device == "cpu":
            yield
            return
        view = _arrays.view

        def on_device(x, role, stream=None):
            return view(x, role, stream)._replace(device=self.device)

        with mock.patch.object(_arrays, "view", on_device):
            yield

    def close(self):
        for address in self.addresses:
            _library.check(self.library.fc_memory_free(_library.context(self.device), address))


def pick(random, values):
    return values[int(random.integers(len(values)))]


def spread(memory, random, values, axes):
    """The same values with the axes in another order in memory, rows that are longer, and at times an odd address."""
    order = list(random.permutation(axes)) if random.random() < 0.5 else list(range(axes))
    shape = [values.shape[a] for a in order]
    item = 16 // values.dtype.itemsize
    columns = values.shape[-1] + pick(random, [0, 0, item, 1, 3])
    first = pick(random, [0, 0, 0, 1, item])
    base = memory.empty(first + int(numpy.prod(shape)) * columns, values.dtype)
    base[:] = numpy.asarray(random.standard_normal(base.shape), "float32").astype(values.dtype)
    whole = base[first : first + int(numpy.prod(shape)) * columns].reshape(*shape, columns)
    array = whole[..., : values.shape[-1]].transpose(*numpy.argsort(order), axes)
    array[...] = values
    return array, base


class Draw:
    """The arguments of a call, and what they come to by the definition."""

    def __init__(self, memory, seed):
        self.memory, self.random, self.aliases = memory, numpy.random.default_rng(seed), numpy.random.default_rng([seed, 1])
        r = self.random
        self.dtype = dtype_of(pick(r, DTYPES))
        self.batch, self.heads, self.group = int(r.integers(1, 6)), int(r.integers(1, 4)), int(r.integers(1, 4))
        self.dim, self.dim_v = pick(r, [8, 16, 32, 40, 64, 128, 6, 5]), pick(r, [8, 16, 64, 24, 7])
        self.form = pick(r, ["table", "table", "dense", "rows"])
        self.packed = self.form == "rows" or r.random() < 0.5
        self.page_size = int(pick(r, [1, 2, 3, 7, 16, 64, 128, int(r.integers(1, 129))]))
        self.columns = 1 if self.form == "dense" else int(r.integers(1, 5))
        self.pages = self.batch * self.columns + int(r.integers(0, 3))
        self.hostile = r.random() < 0.5
        self.make_rows()
        self.make_cache()
        self.make_rotary()

    def numbers(self, *shape):
        return (self.random.standard_normal(shape) * 2).astype("float32").astype(self.dtype)

    def make_rows(self):
        r, room = self.random, self.page_size * self.columns
        self.lengths = r.integers(0, room + 1, self.batch).astype("int32")
        if self.hostile:
            for s in range(self.batch):
                if r.random() < 0.3:
                    self.lengths[s] = pick(r, [-1, -(2**31), LARGEST, LARGEST - 1, room, room + 1])
        self.each = int(r.integers(0, 6))
        counts = r.integers(0, 7, self.batch) if self.packed else numpy.full(self.batch, self.each)
        first = int(r.integers(0, 3)) if self.packed else 0  # rows that are nobody's, before and behind
        self.boundaries = numpy.concatenate([[first], first + numpy.cumsum(counts)]).astype("int32")
        self.rows = int(self.boundaries[-1]) + (int(r.integers(0, 3)) if self.packed else 0)
        if self.packed and self.hostile and r.random() < 0.3:
            self.boundaries[-1] += pick(r, [5, LARGEST - int(self.boundaries[-1])])
        if self.packed and self.hostile and r.random() < 0.3:
            self.boundaries[0] = pick(r, [-1, -(2**31)])
        owners = self.owners()
        self.row_sequences = numpy.int32([-1 if owner is None else owner[0] for owner in owners])
        self.row_positions = numpy.int32([0 if owner is None else min(int(self.lengths[owner[0]]) + owner[1], LARGEST) for owner in owners])
        if self.form == "rows" and self.hostile and self.rows:
            self.row_sequences[int(r.integers(self.rows))] = pick(r, [-2, self.batch, LARGEST])
            self.row_positions[int(r.integers(self.rows))] = pick(r, [-1, LARGEST])
        shape = (self.rows,) if self.packed else (self.batch, self.each)
        axes = len(shape) + 1
        self.k, _ = spread(self.memory, r, self.numbers(*shape, self.heads, self.dim), axes)
        self.v, _ = spread(self.memory, r, self.numbers(*shape, self.heads, self.dim_v), axes)

    def owners(self):
        """(sequence, row of it) of each row of k; None for nobody's."""
        if not self.packed:
            return [(s, i) for s in range(self.batch) for i in range(self.each)]
        found = []
        for row in range(self.rows):
            of = [(s, row - int(self.boundaries[s])) for s in range(self.batch) if self.boundaries[s] <= row < self.boundaries[s + 1]]
            found.append(of[0] if of else None)
        return found

    def make_cache(self):
        r = self.random
        self.layout = pick(r, ["NHD", "HND"]) if self.form != "dense" else "NHD"
        middle = (self.page_size, self.heads) if self.layout == "NHD" else (self.heads, self.page_size)
        if self.dim == self.dim_v and r.random() < 0.5:  # K and V in one tensor
            both, self.base_k = spread(self.memory, r, self.numbers(self.pages, 2, *middle, self.dim), 4)
            self.k_cache, self.v_cache, self.base_v = both[:, 0], both[:, 1], self.base_k
        else:
            self.k_cache, self.base_k = spread(self.memory, r, self.numbers(self.pages, *middle, self.dim), 3)
            self.v_cache, self.base_v = spread(self.memory, r, self.numbers(self.pages, *middle, self.dim_v), 3)
        table = r.permutation(self.pages)[: self.batch * self.columns].reshape(self.batch, self.columns).astype("int32")
        if self.form == "dense":
            table = r.permutation(self.pages)[: self.batch].reshape(self.batch, 1).astype("int32") if r.random() < 0.5 else None
        if table is not None and self.hostile:
            for bad in (-1, self.pages, LARGEST, -(2**31)):
                if r.random() < 0.3:
                    table[int(r.integers(self.batch)), int(r.integers(self.columns))] = bad
        self.table = table
        self.starts = numpy.int32([s * self.columns for s in range(self.batch + 1)])
        if self.form == "rows" and self.hostile and r.random() < 0.3:
            self.starts[-1] = pick(r, [LARGEST, -1])
        if self.form == "rows" and self.hostile and r.random() < 0.3:
            self.starts[0] = pick(r, [-1, -(2**31)])

    def make_rotary(self):
        r = self.random
        self.style = "none" if self.form == "rows" else pick(r, ["none", "half", "interleaved"])
        self.q = None
        if self.style == "none":
            return
        self.rotary_dim = 2 * int(r.integers(1, self.dim // 2 + 1))
        if r.random() < 0.5:
            self.rotary_dim = self.dim // 2 * 2
        positions = self.page_size * self.columns - int(r.integers(0, 3)) if self.hostile else self.page_size * self.columns + 8
        angles = r.uniform(0, 7, (max(positions, 0), self.rotary_dim // 2))
        self.table_dtype = dtype_of(pick(r, DTYPES))
        both = self.memory.place(numpy.concatenate([numpy.cos(angles), numpy.sin(angles)], 1).astype("float32").astype(self.table_dtype))
        self.cos, self.sin = both[:, : self.rotary_dim // 2], both[:, self.rotary_dim // 2 :]
        if r.random() < 0.3:
            return
        self.q_packed, self.q_at_length = r.random() < 0.5, bool(r.random() < 0.3)
        counts = r.integers(0, 4, self.batch) if self.q_packed else numpy.full(self.batch, int(r.integers(0, 4)))
        self.boundaries_q = numpy.concatenate([[0], numpy.cumsum(counts)]).astype("int32")
        rows = int(self.boundaries_q[-1]) + (int(r.integers(0, 2)) if self.q_packed else 0)
        shape = (rows,) if self.q_packed else (self.batch, int(counts[0]))
        heads = self.heads * self.group
        self.q, self.base_q = spread(self.memory, r, self.numbers(*shape, heads, self.dim), len(shape) + 1)
        self.q_out, self.base_out = (self.q, self.base_q) if r.random() < 0.5 else spread(self.memory, r, self.numbers(*self.q.shape), len(shape) + 1)

    # --- by the definition ---

    def turned(self, row, position):
        """A head's row in fp64, and how far from it fp32 and one rounding may be."""
        x = row.astype("float64")
        out, spare = x.copy(), numpy.zeros_like(x)
        if self.style != "none":
            half = self.rotary_dim // 2
            c, s = self.cos[position].astype("float64"), self.sin[position].astype("float64")
            first, second = (slice(0, half), slice(half, 2 * half)) if self.style == "half" else (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
            a, b = x[..., first], x[..., second]
            out[..., first], out[..., second] = a * c - b * s, a * s + b * c
            rounding, step = ROUNDINGS[self.dtype.name]
            # A product and a fused sum in fp32, then the type's own rounding.
            for side, value in ((first, out[..., first]), (second, out[..., second])):
                fp32 = 2.0**-23 * (abs(a * c) + abs(b * s) + abs(a * s) + abs(b * c)) + 2.0**-149
                spare[..., side] = fp32 + rounding * (abs(value) + fp32) + step
        return out, spare

    def page_and_row(self, sequence, position):
        column = position // self.page_size
        if self.form == "rows":
            begin, end = int(self.starts[sequence]), int(self.starts[sequence + 1])
            flat = self.table.reshape(-1)
            if begin < 0 or begin + column >= min(end, flat.size):
                return None
            page = int(flat[begin + column])
        elif column >= self.columns:
            return None
        else:
            page = sequence if self.table is None else int(self.table[sequence, column])
        return (page, position % self.page_size) if 0 <= page < self.pages else None

    def expected(self):
        """{(page, row): (position, number of the row of k)} and how many rows are refused."""
        places, refused, writers = {}, 0, {}
        for row, owner in enumerate(self.owners()):
            if self.form == "rows":
                sequence, position = int(self.row_sequences[row]), int(self.row_positions[row])
                if sequence == -1:
                    continue
                good = 0 <= sequence < self.batch and position >= 0
            else:
                if owner is None:
                    continue
                sequence = owner[0]
                position = int(self.lengths[sequence]) + owner[1]
                good = self.lengths[sequence] >= 0
                if self.packed:
                    good = good and self.boundaries[sequence] >= 0 and self.boundaries[sequence + 1] <= self.rows
            place = self.page_and_row(sequence, position) if good else None
            if place is not None:
                writers.setdefault(place[0], set()).add((sequence, position // self.page_size))
            if place is None or (self.style != "none" and position >= len(self.cos)):
                refused += 1
            else:
                places.setdefault(place, []).append((position, row))
        aliased = {page for page, of in writers.items() if len(of) > 1 and self.table is not None}
        refused += sum(len(rows) for (page, _), rows in places.items() if page in aliased)
        self.aliased += len(aliased)
        return {place: rows[-1] for place, rows in places.items() if place[0] not in aliased}, refused

    def alias(self):
        """Two places of the table get one page. Without a word for the count a GPU does not look, and its result would be a race's."""
        r = self.aliases
        places = [(s, c) for s in range(self.batch) for c in range(self.columns)]
        for _ in range(int(r.integers(1, 4))):
            one, other = pick(r, places), pick(r, places)
            self.table[one] = self.table[other]

    def expected_lengths(self):
        found = []
        for s in range(self.batch):
            begin, end = (int(self.boundaries[s]), int(self.boundaries[s + 1])) if self.packed else (0, self.each)
            bad = self.lengths[s] < 0 or begin < 0 or end < begin or (self.packed and end > self.rows)
            found.append(-1 if bad else min(int(self.lengths[s]) + end - begin, LARGEST))
        return found

    # --- the call ---

    def run(self):
        r = self.random
        place = self.memory.place
        bases = {id(x): x for x in (self.base_k, self.base_v)}
        before = {key: x.copy() for key, x in bases.items()}
        refused = place(numpy.int32([1000])) if self.form != "rows" and r.random() < 0.7 else None
        self.aliased = 0
        if self.table is not None and (refused is not None or self.memory.device == "cpu") and self.aliases.random() < 0.6:
            self.alias()
        lengths = place(self.lengths)
        new = pick(r, [None, place(numpy.int32([77] * self.batch)), lengths])
        q_before = None if self.q is None else self.q.copy()
        with self.memory.views():
            if self.form == "rows":
                _append.append_rows(self.k, self.v, self.k_cache, self.v_cache, place(self.row_sequences), place(self.row_positions),
                                    place(self.table.reshape(-1)), place(self.starts), self.layout)  # fmt: skip
            else:
                options = {}
                if self.style != "none":
                    options.update(rotary_cos=self.cos, rotary_sin=self.sin, rotary_interleaved=self.style == "interleaved")
                if self.q is not None:
                    options.update(q=self.q, q_out=self.q_out, q_at_length=self.q_at_length, cu_seqlens_q=place(self.boundaries_q) if self.q_packed else None)
                caches = [x if self.table is not None else x[: self.batch] for x in (self.k_cache, self.v_cache)]
                flashcore.append(self.k, self.v, *caches, lengths, layout=self.layout,
                                 block_table=None if self.table is None else place(self.table), cu_seqlens_new=place(self.boundaries) if self.packed else None,
                                 new_seqlens=new, refused=refused, **options)  # fmt: skip
            if self.memory.device != "cpu":
                _library.check(_library.library().fc_context_synchronize(_library.context(self.memory.device), None))
        places, count = self.expected()
        if refused is not None:
            assert refused[0] == 1000 + count, f"{refused[0] - 1000} rows are refused, not {count}"
        if self.form != "rows" and new is not None:
            assert list(new) == self.expected_lengths(), f"new lengths are {list(new)}, not {self.expected_lengths()}"
        if new is not lengths or self.form == "rows":
            assert list(lengths) == list(self.lengths), "the lengths were written"
        self.check_caches(places, bases, before)
        if self.q is not None:
            self.check_queries(q_before)

    def check_caches(self, places, bases, before):
        """Each place by value, then all bytes that are no place's: they are what they were."""
        flat = lambda x: x.reshape(-1, *x.shape[-2:])  # noqa: E731
        k, v = flat(self.k), flat(self.v)
        natural = lambda cache: cache if self.layout == "NHD" else cache.swapaxes(1, 2)  # noqa: E731
        k_cache, v_cache = natural(self.k_cache), natural(self.v_cache)
        bits = f"u{self.dtype.itemsize}"
        for (page, row), (position, number) in places.items():
            wanted, spare = self.turned(k[number], position)
            far = abs(k_cache[page, row].astype("float64") - wanted) > spare
            assert not far.any(), f"k of row {number}, key {position} in page {page}: {k_cache[page, row][far]} and not {wanted[far]}"
            assert (numpy.ascontiguousarray(v_cache[page, row]).view(bits) == numpy.ascontiguousarray(v[number]).view(bits)).all(), \
                f"v of row {number} in page {page} is {v_cache[page, row]}, not {v[number]}"  # fmt: skip
            k_cache[page, row], v_cache[page, row] = 0, 0
        for key, x in bases.items():
            was = before[key].copy()
            now = x.copy()
            address = x.__array_interface__["data"][0]
            for cache in (k_cache, v_cache):
                start = cache.__array_interface__["data"][0] - address
                if not 0 <= start < x.nbytes:
                    continue
                there = numpy.ndarray(cache.shape, cache.dtype, was, start, cache.strides)
                for place in places:
                    there[place] = 0
            assert (now.view(bits) == was.view(bits)).all(), "something is written that is no new key's place"

    def check_queries(self, q_before):
        flat = lambda x: x.reshape(-1, *x.shape[-2:])  # noqa: E731
        source, result = flat(q_before), flat(self.q_out)
        for s in range(self.batch):
            rows = range(int(self.boundaries_q[s]), int(self.boundaries_q[s + 1])) if self.q_packed else range(s * self.q.shape[1], (s + 1) * self.q.shape[1])
            for i, row in enumerate(rows):
                position = int(self.lengths[s]) + (0 if self.q_at_length else i)
                got = result[row].astype("float64")
                if self.lengths[s] < 0 or position >= len(self.cos):
                    assert numpy.isnan(got).all(), f"row {row} of q has no position and is {got}"
                    continue
                wanted, spare = self.turned(source[row], position)
                assert (abs(got - wanted) <= spare).all(), f"row {row} of q, position {position}: {got} and not {wanted}"


def run_draws(device, seeds):
    """How many of them wrote to a page from two places."""
    aliased = 0
    for seed in seeds:
        memory = Memory(device)
        try:
            draw = Draw(memory, seed)
            draw.run()
            aliased += draw.aliased > 0
        except Exception as error:
            raise AssertionError(f"draw {seed} on {device}: {error}") from error
        finally:
            memory.close()
    return aliased


# What the draws must notice: (where, what is there, what takes its place).
FAULTS = {
    "off by one": ("params.h", "return start < 0 ? -1 : start + (moves ? owner.row : 0);", "return start < 0 ? -1 : start + (moves ? owner.row + 1 : 0);"),
    "stride of pages": ("kernel.cuh", "place.page * x.to_stride.batch", "place.page * x.to_stride.head"),
    "halves swapped": ("kernel.cuh", "ptx::fma(a, cos, -(b * sin))", "ptx::fma(a, cos, b * sin)"),
    "page not checked": ("params.h", "return page >= 0 && page < params.pages ? page : -1;", "return page;"),
    "length not checked": ("params.h", "return start < 0 ? -1 : start +", "return start +"),
    "angles not checked": ("params.h", "(is_rotary && place.position >= params.angle_rows)", "false"),
    "room not checked": ("params.h", "if (column >= params.max_pages) return -1;", ""),
    "boundaries not checked": ("params.h", "const bool good = first >= 0 && end <= rows.count;", "const bool good = true;"),
    "refused rows not counted": ("kernel.cuh", "ptx::atomic_add_global(params.refused, 1)", "ptx::atomic_add_global(params.refused, 0)"),
    "pages written twice": ("kernel.cuh", "if (is_aliased(params, place)) place.state = State::kRefused;", ""),
    "one sequence's page twice": ("params.h", "if (sequence == mine.sequence && column == mine.column) continue;", "if (sequence == mine.sequence) continue;"),
    "the first column alone": ("params.h", "column <= last; column += together", "column <= keys.first / params.page_size; column += together"),
    "interleaved taken for halves": ("kernel.cuh", "const bool is_half = K.rotary == Rotary::kHalf;", "const bool is_half = true;"),
    "rest not copied": ("kernel.cuh", "const int parts = turned + (operand.dim - kept_from) / kW;", "const int parts = turned;"),
    "lengths of full sequences wrap": ("params.h", "return length > kMostKeys - (end - first) ? kMostKeys : length + (end - first);", "return length + (end - first);"),
}  # fmt: skip


class AppendTest(unittest.TestCase):
    def test_draws_on_the_cpu(self):
        self.assertGreater(run_draws("cpu", range(DRAWS_CPU)), DRAWS_CPU // 20)

    def test_draws_on_the_emulator(self):
        self.assertGreater(run_draws("emulator", range(1000, 1000 + DRAWS_EMULATOR)), 0)

    def test_faults_are_noticed(self):
        """The kernel's text with a fault in it, on the emulator; unchanged text passes in the test above."""
        processes = []
        with tempfile.TemporaryDirectory() as folder:
            for name, (file, good, bad) in FAULTS.items():
                root = Path(folder) / name.replace(" ", "_")
                (root / "src/core").mkdir(parents=True)
                shutil.copytree(ROOT / "src/kernels", root / "src/kernels")
                shutil.copy(ROOT / "src/core/band.h", root / "src/core")
                path = root / "src/kernels/append" / file
                text = path.read_text()
                self.assertEqual(text.count(good), 1, f"{name}: {good!r} is no longer in {file} once")
                path.write_text(text.replace(good, bad))
                code = "import sys; sys.path.insert(0, sys.argv[1]); import append_test; append_test.run_draws('emulator', range(1000, 1100))"
                done = subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent)], capture_output=True, text=True,
                                      env={**os.environ, "FLASHCORE_SOURCE": str(root)})  # fmt: skip
                processes.append((name, done))
        for name, done in processes:
            self.assertNotEqual(done.returncode, 0, f"nobody noticed: {name}")
            self.assertIn("draw 1", done.stderr, f"{name}: {done.stderr[-2000:]}")

    def test_boundaries_that_descend_touch_no_other_sequence(self):
        for device in ("cpu", "emulator"):
            memory = Memory(device)
            k = memory.place(numpy.full((12, 1, 8), 5, "float16"))
            cache = memory.place(numpy.zeros((3, 16, 1, 8), "float16"))
            other = memory.place(numpy.zeros((3, 16, 1, 8), "float16"))
            table, lengths = memory.place(numpy.int32([[0], [2], [0]])), memory.place(numpy.int32([0, 0, -1]))
            with memory.views():
                flashcore.append(k, k, cache, other, lengths, block_table=table, cu_seqlens_new=memory.place(numpy.int32([0, 9, 4, 12])))
            self.assertFalse(cache[1].any(), f"{device}: page 1 is nobody's")
            self.assertLessEqual(int((cache == 5).sum()), 12 * 8)
            memory.close()

    def test_a_page_that_two_sequences_write_to_keeps_what_it_held(self):
        """Of four sequences the first two name one page, for different rows of it; a chunk names one page in two of its columns."""
        for device in ("cpu", "emulator"):
            memory = Memory(device)
            for rows, pages, lengths, kept in ((1, [[1, 9], [1, 9], [2, 9], [3, 9]], [2, 3, 1, 0], {2: 1, 3: 1}),
                                               (6, [[4, 4, 9], [5, 6, 9], [7, 8, 9], [1, 2, 9]], [2, 2, 0, 1], {5: 2, 6: 4, 7: 4, 8: 2, 1: 3, 2: 3})):  # fmt: skip
                k = memory.place(numpy.full((4, rows, 1, 8), 5, "float16"))
                cache, other = (memory.place(numpy.zeros((10, 4, 1, 8), "float16")) for _ in range(2))
                refused = memory.place(numpy.int32([0]))
                with memory.views():
                    flashcore.append(k, k, cache, other, memory.place(numpy.int32(lengths)), block_table=memory.place(numpy.int32(pages)), refused=refused)
                written = {page: int((cache[page, :, 0, 0] == 5).sum()) for page in range(10) if cache[page].any()}
                self.assertEqual(written, kept, device)
                self.assertEqual(int(refused[0]), 4 * rows - sum(kept.values()), device)
            memory.close()

    def test_no_rows_and_no_pages(self):
        for device in ("cpu", "emulator"):
            memory = Memory(device)
            for rows, pages in ((0, 3), (2, 0), (0, 0)):
                k = memory.place(numpy.ones((2, rows, 1, 8), "float16"))
                cache = memory.place(numpy.zeros((pages, 4, 1, 8), "float16"))
                other = memory.place(numpy.zeros((pages, 4, 1, 8), "float16"))
                lengths, refused = memory.place(numpy.int32([1, 2])), memory.place(numpy.int32([0]))
                with memory.views():
                    flashcore.append(k, k, cache, other, lengths, block_table=memory.place(numpy.int32([[0], [1]])), new_seqlens=lengths, refused=refused)
                self.assertEqual(list(lengths), [1 + rows, 2 + rows])
                self.assertEqual(int(refused[0]), 2 * rows if pages == 0 else 0)
            memory.close()

    def test_decoding_after_appending(self):
        """append, then decode with its new lengths: what attention makes of the keys together."""
        random = numpy.random.default_rng(3)
        keys, new, page = [5, 0, 9], 2, 4
        whole = [random.standard_normal((n + new, 2, 16), dtype="float32") for n in keys]
        cache = numpy.zeros((12, 2, page, 2, 16), "float32")
        table = random.permutation(12)[:9].reshape(3, 3).astype("int32")
        for s, n in enumerate(keys):
            for j in range(n):
                cache[table[s, j // page], :, j % page] = whole[s][j]
        fresh = numpy.stack([x[-new:] for x in whole])
        q, lengths = random.standard_normal((3, new, 4, 16), dtype="float32"), numpy.int32(keys)
        flashcore.append(fresh, fresh, cache[:, 0], cache[:, 1], lengths, block_table=table, new_seqlens=lengths)
        o = flashcore.decode(q, cache[:, 0], cache[:, 1], table, lengths)
        for s in range(3):
            wanted = flashcore.attention(q[s : s + 1], whole[s][None], whole[s][None], layout="bshd", causal=True)
            numpy.testing.assert_allclose(o[s], wanted[0], atol=1e-5)

    def test_what_is_refused(self):
        k, cache = numpy.ones((2, 1, 2, 8), "float16"), numpy.zeros((3, 4, 2, 8), "float16")
        other, lengths, table = cache.copy(), numpy.zeros(2, "int32"), numpy.int32([[0], [1]])
        angles = numpy.ones((4, 4), "float32")
        given = {"k": k, "v": k, "k_cache": cache, "v_cache": other, "cache_seqlens": lengths, "block_table": table}
        for pattern, change in (
            ("k has shape", {"k": k[0]}),
            ("v has shape", {"v": numpy.ones((2, 2, 2, 8), "float16")}),
            ("all must agree", {"v_cache": other.astype("float32")}),
            ("k_cache at .* overlaps v_cache|v_cache at .* overlaps k_cache", {"v_cache": cache}),
            ("overlaps", {"k": cache[:2, :1]}),
            ("overlaps", {"new_seqlens": table[:, 0].copy(), "refused": lengths[:1]}),
            ("share memory", {"k_cache": numpy.lib.stride_tricks.as_strided(cache, (3, 4, 2, 8), (64, 32, 16, 2))}),
            ("cache_seqlens has shape", {"cache_seqlens": lengths[:1]}),
            ("block_table has shape", {"block_table": table[:1]}),
            ("there are 2 sequences; give the block_table", {"block_table": None}),
            ("layout is 'BHND'", {"layout": "BHND"}),
            ("dtype int64; give int32", {"cache_seqlens": lengths.astype("int64")}),
            ("rotary_sin is given alone", {"rotary_sin": angles}),
            ("rotary_cos has 8 columns", {"rotary_cos": numpy.ones((4, 8), "float32"), "rotary_sin": numpy.ones((4, 8), "float32")}),
            ("give cos and sin", {"rotary_cos": angles, "rotary_sin": angles[:2]}),
            ("q is given and rotary_cos is not", {"q": k}),
            ("q_out is given and q is not", {"q_out": k}),
            ("q_out is float32|q_out is fp32", {"rotary_cos": angles, "rotary_sin": angles, "q": k, "q_out": k.astype("float32")}),
            ("q_out at .* overlaps q ", {"rotary_cos": angles, "rotary_sin": angles, "q": k[:, :, :1], "q_out": k[:, :, :1, :][:, :, ::-1][:, :, ::-1], "k": k.copy()}),
        ):  # fmt: skip
            with self.subTest(pattern), self.assertRaisesRegex(flashcore.Error, pattern):
                if "q_out at" in pattern:  # the same memory, rows the other way round
                    rows = numpy.ones((2, 2, 2, 8), "float16")
                    change = {**change, "q": rows, "q_out": rows[:, ::-1]}
                flashcore.append(**{**given, **change})
        self.assertFalse(cache.any() or other.any(), "a refused call wrote")

    def test_c_structs_are_those_of_the_header(self):
        """By the compiler: the sizes of both structs."""
        code = '#include <flashcore/flashcore.h>\n#include <stdio.h>\nint main(void) { fc_append_kind k = FC_APPEND_KIND_INIT; fc_append_operands o = ' \
               'FC_APPEND_OPERANDS_INIT; printf("%u %u %zu", k.struct_size, o.struct_size, offsetof(fc_append_operands, refused)); return 0; }\n'  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "a.c").write_text(code)
            if not shutil.which("gcc"):
                self.skipTest("no gcc")
            subprocess.run(["gcc", "-std=c99", "-Wall", "-Werror", "-I", str(ROOT / "include"), "a.c", "-o", "a"], cwd=folder, check=True)
            said = subprocess.run([str(Path(folder, "a"))], capture_output=True, text=True, check=True).stdout
        o = _library.AppendOperands
        self.assertEqual(said, f"{ctypes.sizeof(_library.AppendKind)} {ctypes.sizeof(o)} {o.refused.offset}")


if __name__ == "__main__":
    unittest.main()
