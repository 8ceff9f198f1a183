"""flashcore.quantize beside its definition (quantize_reference.py) bit for bit, on the CPU and, with its checks of races and addresses, on the
emulator; faults planted in the kernels, which the same draws must catch; what is refused.

FLASHCORE_QUANTIZE_DRAWS=CPU,EMULATOR changes how many calls are drawn."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path[:0] = [str(ROOT / "python"), str(Path(__file__).resolve().parent)]
import flashcore  # noqa: E402
from flashcore import _library, _quantize  # noqa: E402

try:
    import ml_dtypes
    import numpy
except ImportError as error:
    print(f"{error}; scripts/install-packages --tests brings it")
    sys.exit(77)

import quantize_reference  # noqa: E402
from append_test import Memory, dtype_of, pick, spread  # noqa: E402

DRAWS_CPU, DRAWS_EMULATOR = (int(x) for x in os.environ.get("FLASHCORE_QUANTIZE_DRAWS", "200,80").split(","))


class Draw:
    """The arguments of a call."""

    def __init__(self, memory, seed):
        self.memory, self.random = memory, numpy.random.default_rng(seed)
        r = self.random
        self.dtype = dtype_of(pick(r, ["float16", "float32", "bfloat16"]))
        batch, heads_kv, group = int(r.integers(1, 4)), int(r.integers(1, 4)), int(r.integers(1, 4))
        rows, keys = int(r.integers(0, 40)), pick(r, [0, 1, 15, 16, 130, int(r.integers(1, 300))])
        hadamard = bool(r.random() < 0.5)
        dim = pick(r, [8, 16, 32, 64, 128, 256] if hadamard else [5, 16, 40, 48, 64, 80, 96, 128])
        dim_v = pick(r, [dim, 16, 64, 72, 7])
        self.options = {"scaling": pick(r, ["tensor", "head", "token"]), "dtype": pick(r, ["e4m3", "e5m2"]), "smooth_k": bool(r.random() < 0.5),
                        "hadamard": hadamard, "seed": int(r.integers(0, 2**62)) * 4 + 3, "layout": pick(r, ["bhsd", "bshd"]),
                        "v_layout": pick(r, ["nd", "dn"])}  # fmt: skip
        swapped = self.options["layout"] == "bshd"
        extra = numpy.random.default_rng((seed, 2))  # apart, so that what was drawn before there were counts stays as it was
        self.is_edge = seed % 6 == 0  # numbers about the first that saturates, with factors of 1
        if self.is_edge:
            self.options.update(scaling="head", hadamard=False, smooth_k=False)
        self.arrays = []
        for heads, length, columns in ((heads_kv * group, rows, dim), (heads_kv, keys, dim), (heads_kv, keys, dim_v)):
            shape = (batch, length, heads, columns) if swapped else (batch, heads, length, columns)
            values = self.numbers(shape)
            self.arrays.append(spread(memory, r, values, 3)[0] if r.random() < 0.5 else memory.place(values))

        self.counts = None
        if self.is_edge or extra.random() < 0.5:
            # A sum beyond 32 bits, where one word carries over to the next.
            self.counts = memory.place(extra.integers(2**32 - 20, 2**32 + 20, 3))
            self.options["saturated"] = self.counts
        if self.options["scaling"] == "token" and extra.random() < 0.5:
            self.options.update(scaling="block", blocks=(pick(extra, [1, 2, 5, 64, 1000]), pick(extra, [1, 3, 16, 64, 128])))
        if self.options["scaling"] in ("tensor", "head") and (self.is_edge or extra.random() < 0.3):
            # Of which some are too small, so that numbers saturate.
            shape = (1,) if self.options["scaling"] == "tensor" else (batch, heads_kv)
            for role in "qkv":
                factors = numpy.ones(shape) if self.is_edge else 2.0 ** extra.integers(-12, 3, shape) * float(extra.random() + 0.5)
                self.options[f"descale_{role}"] = memory.place(factors.astype("float32"))

    def numbers(self, shape):
        r = self.random
        values = (r.standard_normal(shape) * pick(r, [1, 1, 100, 1e-3]) + pick(r, [0, 0, 5])).astype("float32")
        if values.size and r.random() < 0.3:
            places = tuple(r.integers(0, n, 3) for n in shape)
            values[places] = pick(r, [numpy.nan, numpy.inf, -numpy.inf, 0.0, -0.0])
        if r.random() < 0.05:
            values[...] = 0
        if self.is_edge:
            values = r.choice(numpy.float32([448, 464, -464, 464.5, 472, -480, 57344, 61408, 61440, -61440]), shape)
        return values.astype(self.dtype)

    def empty(self, like, shape, dtype):
        kind = numpy.dtype("float32") if dtype == "fp32" else numpy.dtype(getattr(ml_dtypes, _quantize._NAMES[dtype]))
        size = int(numpy.prod(shape))
        array = self.memory.empty(size, kind)
        array.view("uint8")[...] = 0xCC  # whatever is not written shows
        return array[:size].reshape(shape)

    def run(self):
        with self.memory.views(), mock.patch.object(_quantize, "_empty", self.empty), numpy.errstate(all="ignore"):
            before = None if self.counts is None else self.counts.copy()
            self.first_counts = None if before is None else before.copy()
            made = flashcore.quantize(*self.arrays, **self.options)
            if self.memory.device != "cpu":
                _library.check(_library.library().fc_context_synchronize(_library.context(self.memory.device), None))
            options = {**self.options, "saturated": before}
            wanted = quantize_reference.quantize(*self.arrays, **options)
            if wanted.k_mean is not None:
                # Sums of doubles in another order: the same but for what is rounded on the edge between two floats.
                step = numpy.where(numpy.isfinite(wanted.k_mean), numpy.spacing(abs(wanted.k_mean)), 0)
                assert made.k_mean.shape == wanted.k_mean.shape
                near = (abs(made.k_mean - wanted.k_mean) <= step) | (made.k_mean == wanted.k_mean) | numpy.isnan(wanted.k_mean)
                assert (near & (numpy.isnan(made.k_mean) == numpy.isnan(wanted.k_mean))).all(), f"k_mean is {made.k_mean[~near]}, not {wanted.k_mean[~near]}"
                if before is not None:
                    before[...] = self.first_counts
                with mock.patch.object(quantize_reference._Numpy, "mean", lambda *_: made.k_mean):
                    wanted = quantize_reference.quantize(*self.arrays, **options)
            else:
                assert made.k_mean is None
        assert before is None or (self.counts == before).all(), f"{self.counts} saturated, not {before}"
        for role, got, right in zip("qkv", made.arrays, wanted.arrays):
            assert (got.shape, got.dtype) == (right.shape, right.dtype), f"{role} has shape {got.shape} of {got.dtype}"
            numbers = ~numpy.isnan(right.astype("float32"))  # a NaN may have either sign
            wrong = (got.view("uint8") != right.view("uint8")) & numbers
            assert not wrong.any(), f"{role}{self.options}: {wrong.sum()} codes are {got[wrong][:5]}, not {right[wrong][:5]}"
            assert (numpy.isnan(got.astype("float32")) == ~numbers).all(), f"{role}: NaN are lost or made"
        for (role, right), got in zip(wanted.descales.items(), made.descales.values()):
            assert got.shape == right.shape and got.tobytes() == right.tobytes(), f"{role} is {got}, not {right}"
        if self.options["v_layout"] == "dn" and made.v.size:
            keys = made.v.shape[3]
            whole = numpy.lib.stride_tricks.as_strided(made.v.view("uint8"), (*made.v.shape[:3], -(-keys // 16) * 16), made.v.strides)
            assert (whole[..., keys:] == 0).all(), "what lies behind the last key of v is not zero"


def run_draws(device, seeds):
    for seed in seeds:
        memory = Memory(device)
        try:
            Draw(memory, seed).run()
        except Exception as error:
            raise AssertionError(f"draw {seed} on {device}: {type(error).__name__}: {error}") from error
        finally:
            memory.close()


# What the draws must notice: (where, what is there, what takes its place).
FAULTS = {
    "a chunk's last row dropped": ("kernel.cuh", "lane < lanes && row < tile.end", "lane < lanes && row + 1 < tile.end"),
    "infinities raise the factor": ("../tile/values.cuh", "if (bits < kInfinity)", "if (bits <= kInfinity)"),
    "the CTA's own largest": ("kernel.cuh", "largest = ptx::max(largest, ptx::ld_global_f32(of_group + i));", ";"),
    "the last CTA does not wait": ("kernel.cuh", "  ptx::bar_sync();  // all threads have written\n", ""),
    "counters left": ("kernel.cuh", "if (is_last) ptx::st_global_u32(counter, 0);", ";"),
    "one chunk of means": ("kernel.cuh", "for (int i = 0; i < params.mean_chunks; ++i)", "for (int i = 0; i < 1; ++i)"),
    "mean of another head": ("rows.cuh", "static_cast<long long>(place.slab) * dim", "static_cast<long long>(place.head) * dim"),
    "signs of the first columns": ("rows.cuh", ">> part % 2 * kColumns;", ";"),
    "lanes subtract the wrong way": ("rows.cuh", "part & lanes ? other - values[i]", "part & lanes ? values[i] - other"),
    "not normalised": ("rows.cuh", "values[i] *= params.rotation_scale;", ";"),
    "columns of v mixed up": ("transpose.cuh", "words[2] = ptx::prmt(ab_high, cd_high, 0x5410u)", "words[2] = ptx::prmt(ab_high, cd_high, 0x7632u)"),
    "no barrier in the transposition": ("transpose.cuh", "  ptx::bar_sync();\n", ""),
    "a row's largest of half its lanes": ("kernel.cuh", "for (int mask = 1; mask < parts; mask *= 2) largest", "for (int mask = 2; mask < parts; mask *= 2) largest"),
    "a row's largest of its first part": ("kernel.cuh", "i < first + parts && i < kThreads", "i < first + 1 && i < kThreads"),
    "rows meet each other's largest": ("kernel.cuh", "  ptx::bar_sync();  // the rows before have been read\n", ""),
    "a block's factor for its first row alone": ("kernel.cuh", "row < tile.of_group.end; row += kThreads", "row < tile.of_group.first + 1; row += kThreads"),
    "a block reaches into the next head": ("params.h", "return {first, end < last ? end : last};", "return {first, end};"),
    "blocks counted on from head to head": ("params.h", "run * x.run_rows + (group - run * x.blocks)", "run * x.blocks * x.group_rows + (group - run * x.blocks)"),
    "factors of rows by head alone": ("kernel.cuh", "static_cast<long long>(place.slab) * x.seqlen + place.row", "static_cast<long long>(place.head) * x.seqlen + place.row"),
    "counts by one lane alone": ("../tile/saturation.cuh", "for (int mask = 1; mask < 32; mask *= 2) sum", "for (int mask = 1; mask < 1; mask *= 2) sum"),
    "counts without a carry": ("../tile/saturation.cuh", "if (before + all < before)", "if (before + all < before && all == 0)"),
    "a count that takes 464 along": ("../tile/saturation.h", "0x43e80001u", "0x43e80000u"),
    "v's are counted as k's": ("transpose.cuh", "2 * v.number", "2"),
    "strides of heads": ("params.h", "place.head * stride.head", "place.head * stride.row"),
}  # fmt: skip


class QuantizeTest(unittest.TestCase):
    def test_draws_on_the_cpu(self):
        run_draws("cpu", range(DRAWS_CPU))

    def test_draws_on_the_emulator(self):
        run_draws("emulator", range(1000, 1000 + DRAWS_EMULATOR))

    def test_faults_are_noticed(self):
        """The kernels' text with a fault in it, on the emulator; unchanged text passes in the test above."""
        with tempfile.TemporaryDirectory() as folder:
            for name, (file, good, bad) in FAULTS.items():
                root = Path(folder) / name.replace(" ", "_").replace("'", "")
                (root / "src/core").mkdir(parents=True)
                shutil.copytree(ROOT / "src/kernels", root / "src/kernels")
                shutil.copy(ROOT / "src/core/band.h", root / "src/core")
                path = root / "src/kernels/quantise" / file
                text = path.read_text()
                self.assertEqual(text.count(good), 1, f"{name}: {good!r} is no longer in {file} once")
                path.write_text(text.replace(good, bad))
                code = "import sys; sys.path.insert(0, sys.argv[1]); import quantize_test; quantize_test.run_draws('emulator', range(1000, 1080))"
                done = subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent)], capture_output=True, text=True,
                                      env={**os.environ, "FLASHCORE_SOURCE": str(root)})  # fmt: skip
                self.assertNotEqual(done.returncode, 0, f"nobody noticed: {name}")
                self.assertIn("draw 1", done.stderr, f"{name}: {done.stderr[-2000:]}")

    def test_inputs_stay_and_results_repeat(self):
        random = numpy.random.default_rng(5)
        arrays = [random.standard_normal((2, 4, 37, 64)).astype("float16") for _ in range(3)]
        before = [x.tobytes() for x in arrays]
        first, second = (flashcore.quantize(*arrays, smooth_k=True, hadamard=True, v_layout="dn") for _ in range(2))
        self.assertEqual([x.tobytes() for x in arrays], before)
        for a, b in zip(first, second):
            self.assertEqual(a.tobytes(), b.tobytes())

    def test_what_is_refused_is_named(self):
        x = numpy.zeros((1, 2, 8, 16), "float32")
        for pattern, arrays in (
            ("q is of dtype float64; use float32, float16, bfloat16", (x.astype("float64"), x, x)),
            ("v is e4m3; give float32, float16 or bfloat16", (x, x, x.astype(ml_dtypes.float8_e4m3fn))),
            ("k is int8; give float32", (x, x.astype("int8"), x)),
            ("q is fp32 on cpu of numpy and v is fp16 on cpu of numpy; all three must agree", (x, x, x.astype("float16"))),
            ("k has stride 2 along its last axis; the elements of a row must be adjacent: copy it", (x, numpy.zeros((1, 2, 8, 32), "float32")[..., ::2], x)),
            (r"have shapes \(1, 2, 8, 16\), \(1, 2, 8, 16\) and \(1, 2, 9, 16\); batches must agree, rows and heads", (x, x, numpy.zeros((1, 2, 9, 16), "float32"))),
            ("and head_dim of q and k", (numpy.zeros((1, 2, 8, 8), "float32"), x, x)),
            ("head_dim is 4096; 1 to 2048 are allowed", (*[numpy.zeros((1, 2, 8, 4096), "float32")] * 2, x)),
            ("q is a memoryview; quantize takes NumPy arrays and PyTorch tensors", (memoryview(x), x, x)),
        ):  # fmt: skip
            with self.subTest(pattern), self.assertRaisesRegex(flashcore.Error, pattern):
                flashcore.quantize(*arrays)
        factors = {"descale_q": 1, "descale_k": numpy.ones((1,), "float32"), "descale_v": 0.5}
        for pattern, arguments in (
            (r"blocks is \(0, 4\); give \(rows of q, keys\) that have one factor, as \(128, 64\), each at least 1", {"scaling": "block", "blocks": (0, 4)}),
            (r"blocks is \(2, 4\) and scaling 'token'; use scaling='block', or leave it out", {"scaling": "token", "blocks": (2, 4)}),
            ("scaling is 'blocks'; use 'tensor', 'head', 'token' or 'block'", {"scaling": "blocks"}),
            ("descale_v is not given and others are; give all three, or none", {"descale_q": 1, "descale_k": 1}),
            ("scaling is 'token', whose factors are found on the way; use 'tensor' or 'head'", {**factors, "scaling": "token"}),
            (r"descale_q is a number; give float32 \(1, 2\), or scaling='tensor'", {**factors, "scaling": "head"}),
            (r"descale_k has shape \(2,\); give \(1,\), as scaling says", {**factors, "descale_k": numpy.ones(2, "float32")}),
            ("descale_q is 0.0; factors are positive and finite", {**factors, "descale_q": 0}),
            ("descale_k has nan at 0; factors are positive and finite", {**factors, "descale_k": numpy.float32([numpy.nan])}),
            ("saturated is of dtype int32; give int64", {"saturated": numpy.zeros(3, "int32")}),
            (r"saturated has shape \(2,\); give int64 \(3,\), of q, k and v", {"saturated": numpy.zeros(2, "int64")}),
        ):
            with self.subTest(pattern), self.assertRaisesRegex(flashcore.Error, pattern):
                flashcore.quantize(x, x, x, **arguments)
        with self.assertRaisesRegex(flashcore.Error, "head_dim is 1024, and hadamard needs a power of two up to 512; leave it out"):
            flashcore.quantize(*[numpy.zeros((1, 1, 2, 1024), "float32")] * 3, hadamard=True)


if __name__ == "__main__":
    unittest.main()
