"""flashcore.attention on 8-bit floats: factors, outputs, what is refused. Arrays are made of bytes; ml_dtypes and PyTorch where they import."""

import array
import ctypes
import fractions
import importlib
import math
import os
import struct
import sys
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
import flashcore  # noqa: E402
from flashcore import _arrays  # noqa: E402

BATCH, HEADS, HEADS_KV, ROWS, KEYS, DIM = 2, 4, 2, 3, 5, 8


def value_of(code, mantissa, bias):
    exponent, fraction = (code & 127) >> mantissa, code & ((1 << mantissa) - 1)
    value = math.ldexp(fraction + (1 << mantissa if exponent else 0), max(exponent, 1) - bias - mantissa)
    return -value if code & 128 else value


E4M3 = {value_of(code, 3, 7): code for code in range(256) if code & 127 != 127}
E5M2 = {value_of(code, 2, 15): code for code in range(256) if code & 127 < 124}


def strides_of(shape):
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def view(memory, dtype, shape):
    return _arrays.View("buffer", "cpu", dtype, tuple(shape), strides_of(shape), ctypes.addressof(memory), memory)


class Tensors:
    """q, k and v of small whole numbers, as 8-bit floats; o in bf16."""

    def __init__(self, dtype="e4m3", output="bf16"):
        codes = {"e4m3": E4M3, "e5m2": E5M2}[dtype]
        self.values, self.views = {}, {}
        for name, step, heads, rows in (("q", 3, HEADS, ROWS), ("k", 5, HEADS_KV, KEYS), ("v", 7, HEADS_KV, KEYS)):
            shape = (BATCH, heads, rows, DIM)
            numbers = [float(i * step % 9 - 4) for i in range(math.prod(shape))]
            memory = (ctypes.c_uint8 * len(numbers))(*(codes[x] for x in numbers))
            self.values[name], self.views[name] = numbers, view(memory, dtype, shape)
        size = BATCH * HEADS * ROWS * DIM
        self.output = output
        self.memory = (ctypes.c_uint16 * size)() if output in ("bf16", "fp16") else (ctypes.c_uint8 * size)()
        self.out = view(self.memory, output, (BATCH, HEADS, ROWS, DIM))

    def attention(self, *descales, **more):
        named = dict(zip(("descale_q", "descale_k", "descale_v"), descales))
        return flashcore.attention(*(self.views[name] for name in "qkv"), out=self.out, **named, **more)

    def result(self, i):
        bits = self.memory[i]
        if self.output == "bf16":
            return ctypes.c_float.from_buffer(ctypes.c_uint32(bits << 16)).value
        if self.output == "fp16":
            return struct.unpack("e", bytes(ctypes.c_uint16(bits)))[0]
        return value_of(bits, *((3, 7) if self.output == "e4m3" else (2, 15)))

    def expected(self, i, dq, dk, dv):
        """By the formula; factors are lists of one, of one for each batch entry and key head, or for each row."""
        column, row, head, batch = i % DIM, i // DIM % ROWS, i // DIM // ROWS % HEADS, i // DIM // ROWS // HEADS
        kv = batch * HEADS_KV + head // (HEADS // HEADS_KV)

        def factor(factors, at):
            return factors[0 if len(factors) == 1 else kv if len(factors) == BATCH * HEADS_KV else at]

        q = self.values["q"][i // DIM * DIM :][:DIM]
        weights, total = 0.0, 0.0
        for j in range(KEYS):
            k = self.values["k"][(kv * KEYS + j) * DIM :][:DIM]
            p = math.exp(sum(a * b for a, b in zip(q, k)) * factor(dq, i // DIM) * factor(dk, kv * KEYS + j) / math.sqrt(DIM))
            weights, total = weights + p, total + p * self.values["v"][(kv * KEYS + j) * DIM + column]
        return factor(dv, kv) * total / weights


def heads(*factors):
    return memoryview(array.array("f", factors)).cast("B").cast("f", (BATCH, HEADS_KV))


def rows(factors, heads, length):
    return memoryview(array.array("f", factors)).cast("B").cast("f", (BATCH, heads, length))


class Fp8Test(unittest.TestCase):
    UNIT = {"bf16": 2**-8, "fp16": 2**-11, "e4m3": 2**-4, "e5m2": 2**-3}

    def assert_right(self, tensors, dq, dk, dv):
        for i in range(len(tensors.memory)):
            right = tensors.expected(i, dq, dk, dv)
            self.assertAlmostEqual(tensors.result(i), right, delta=1.01 * self.UNIT[tensors.output] * abs(right) + 2**-9)

    def test_factors_of_either_kind(self):
        for dtype in ("e4m3", "e5m2"):
            tensors = Tensors(dtype)
            tensors.attention(0.25, 0.5, 3.0)
            self.assert_right(tensors, [0.25], [0.5], [3.0])
            tensors.attention(0.25, memoryview(array.array("f", [0.5])), 2)
            self.assert_right(tensors, [0.25], [0.5], [2.0])
            dq, dk, dv = (0.25, 0.5, 0.125, 1.0), (0.5, 0.25, 1.0, 0.125), (1.0, 2.0, 3.0, 4.0)
            tensors.attention(heads(*dq), heads(*dk), heads(*dv))
            self.assert_right(tensors, dq, dk, dv)
            tensors.attention()
            self.assert_right(tensors, [1.0], [1.0], [1.0])

    def test_factors_of_rows(self):
        dq = [2.0 ** -(i % 5) for i in range(BATCH * HEADS * ROWS)]
        dk = [2.0 ** -(i * 3 % 7) for i in range(BATCH * HEADS_KV * KEYS)]
        dv = [1.0, 2.0, 3.0, 4.0]
        for dtype in ("e4m3", "e5m2"):
            tensors = Tensors(dtype)
            tensors.attention(rows(dq, HEADS, ROWS), rows(dk, HEADS_KV, KEYS), heads(*dv))
            self.assert_right(tensors, dq, dk, dv)
        of_q, of_k = rows(dq, HEADS, ROWS), rows(dk, HEADS_KV, KEYS)
        of_rows = flashcore.plan(*(tensors.views[name] for name in "qkv"), out=tensors.out, scaling="token")
        self.assertIn("pertoken", of_rows.info["problem"])
        right = r"; factors of rows are descale_q \(2, 4, .*\) and descale_k \(2, 2, .*\) beside descale_v \(2, 2\)$"
        self.refused("descale_q has a factor for each row and descale_v one for all" + right, lambda: tensors.attention(of_q, of_k, 1.0))
        self.refused("descale_q has a factor for each row and descale_k a factor for each key head" + right,
                     lambda: tensors.attention(of_q, heads(*dv), heads(*dv)))  # fmt: skip
        self.refused("descale_k has a factor for each key and descale_q one for all" + right, lambda: tensors.attention(1.0, of_k, heads(*dv)))
        self.refused("descale_v has shape .*" + right, lambda: tensors.attention(of_q, of_k, of_k))
        self.refused(r"or of each row \(2, .*\)", lambda: tensors.attention(of_k, of_k, heads(*dv)))
        for bad in (0.0, math.nan, -1.0):
            self.refused(r"descale_k\[3\] is .*positive and finite", lambda: tensors.attention(of_q, rows([1, 1, 1, bad, *dk[4:]], HEADS_KV, KEYS), heads(*dv)))

    def test_largest_magnitudes(self):
        tensors = Tensors("e4m3", "e4m3")
        out, lse, amax = tensors.attention(0.25, 0.5, 300.0, return_lse=True, return_amax=True)
        self.assertEqual((len(lse.shape), amax.shape), (3, (2, HEADS)))
        of_o = [max(abs(tensors.expected(i, [0.25], [0.5], [300.0])) for i in range(len(tensors.memory)) if i // DIM // ROWS % HEADS == h) for h in range(HEADS)]
        for h in range(HEADS):
            self.assertAlmostEqual(amax[1, h], of_o[h], delta=1e-4 * of_o[h])
            self.assertLess(0, amax[0, h])
        # What o is multiplied with before it is rounded, is in the factor of v.
        scaled = 400 / max(of_o)
        _, again = tensors.attention(0.25, 0.5, 300.0 * scaled, return_amax=True)
        self.assertAlmostEqual(max(again[1, h] for h in range(HEADS)), 400, delta=0.1)
        self.refused("return_amax is 1", lambda: tensors.attention(0.25, 0.5, 3.0, return_amax=1))
        half = view((ctypes.c_uint16 * 64)(), "fp16", (1, 1, 8, 8))
        self.refused("return_amax is True and q is fp16", lambda: flashcore.attention(half, half, half, out=half, return_amax=True))

    def test_outputs(self):
        for output in ("bf16", "fp16", "e4m3", "e5m2"):
            tensors = Tensors("e4m3", output)
            tensors.attention(0.25, 0.5, 3.0)
            self.assert_right(tensors, [0.25], [0.5], [3.0])

    def test_a_plan_takes_addresses_of_factors(self):
        tensors = Tensors()
        plan = flashcore.plan(*(tensors.views[name] for name in "qkv"), out=tensors.out)
        cells = [ctypes.c_float(x) for x in (0.25, 0.5, 3.0)]
        plan.launch(*(tensors.views[name].address for name in "qkv"), tensors.out.address, 0, 0, *map(ctypes.addressof, cells))
        self.assert_right(tensors, [0.25], [0.5], [3.0])
        self.assertIn("e4m3", plan.info["problem"])
        by_head = flashcore.plan(*(tensors.views[name] for name in "qkv"), out=tensors.out, scaling="head")
        self.assertIn("perhead", by_head.info["problem"])

    def refused(self, pattern, call):
        with self.assertRaisesRegex(flashcore.Error, pattern):
            call()

    def test_what_is_refused_is_named(self):
        tensors = Tensors()
        for bad in (0.0, -1.0, math.nan, math.inf, 1e-60):
            self.refused("descale_k is .*positive and finite", lambda: tensors.attention(1.0, bad, 1.0))
            self.refused(r"descale_v\[2\] is .*positive and finite",
                         lambda: tensors.attention(heads(1, 1, 1, 1), heads(1, 1, 1, 1), heads(1, 1, bad, 1)))  # fmt: skip
        self.refused("descale_q is given and descale_k is not", lambda: tensors.attention(1.0))
        self.refused(r"descale_q has shape \(3,\); give one element, or \[batch, heads_kv\] = \(2, 2\)",
                     lambda: tensors.attention(memoryview(array.array("f", [1, 1, 1])), 1.0, 1.0))  # fmt: skip
        self.refused("descale_k has a factor for each key head and descale_q one for all", lambda: tensors.attention(1.0, heads(1, 1, 1, 1), 1.0))
        for kind, bad in (("str", "1"), ("bool", True), ("list", [1.0])):
            self.refused(f"descale_v is a {kind}; give a positive number, or a NumPy, CuPy, JAX or PyTorch array",
                         lambda: tensors.attention(1.0, 1.0, bad))  # fmt: skip
        for bad, shown in ((1e-60, "1e-60, 0.0"), (10**39, r"1e\+39, inf"), (-1e39, r"-1e\+39, -inf")):
            self.refused(f"descale_k is {shown} in float32; factors are positive and finite", lambda: tensors.attention(1.0, bad, 1.0))
        for bad in (10**400, -(10**400), fractions.Fraction(10**400, 3), 10**5000):
            self.refused("descale_k is a number beyond 1.8e308.*; factors are positive and finite in float32, up to 3.4e38",
                         lambda: tensors.attention(1.0, bad, 1.0))  # fmt: skip
        self.refused("descale_q is a memoryview of format 'd'; use 'f'", lambda: tensors.attention(memoryview(array.array("d", [1.0])), 1.0, 1.0))
        half = view((ctypes.c_uint16 * 1)(), "fp16", (1,))
        self.refused("descale_q is of fp16; give float32", lambda: tensors.attention(half, 1.0, 1.0))
        self.refused("scaling is 'row'", lambda: flashcore.plan(*(tensors.views[name] for name in "qkv"), out=tensors.out, scaling="row"))
        mixed = [tensors.views["q"], Tensors("e5m2").views["k"], tensors.views["v"]]
        self.refused("q is e4m3 on cpu and k is e5m2 on cpu; all three must agree",
                     lambda: flashcore.attention(*mixed, out=tensors.out, descale_q=1.0, descale_k=1.0, descale_v=1.0))  # fmt: skip
        wide = view((ctypes.c_float * len(tensors.memory))(), "fp32", tensors.out.shape)
        self.refused("out is fp32 .*it must be bf16 or fp16 or e4m3 or e5m2", lambda: flashcore.attention(*(tensors.views[n] for n in "qkv"), out=wide))

    def test_factors_of_other_dtypes_are_refused(self):
        try:
            numpy = importlib.import_module("numpy")
        except ImportError as error:
            self.skipTest(f"numpy does not import here: {error}")
        tensors, q, k = Tensors(), numpy.zeros((1, 1, 1, 8), "float16"), numpy.zeros((1, 1, 1, 8), "int8")
        for dtype in ("float64", "float16", "int64", "bool"):
            for bad in (numpy.ones(1, dtype), numpy.ones((BATCH, HEADS_KV), dtype)):
                message = f"descale_v is of dtype {dtype}; give a number, or an array of float32"
                self.refused(message, lambda: tensors.attention(1.0, 1.0, bad))
                self.refused(message, lambda: flashcore.attention(q, k, k, descale_k=1.0, descale_v=bad))
        self.refused("descale_v is a bool", lambda: tensors.attention(1.0, 1.0, numpy.bool_(True)))
        self.refused("descale_k is a bool", lambda: flashcore.attention(q, k, k, descale_k=True, descale_v=1.0))
        self.refused("descale_k is a number beyond", lambda: flashcore.attention(q, k, k, descale_k=10**400, descale_v=1.0))
        tensors.attention(numpy.float64(0.25), numpy.ones(1, "float32"), numpy.float16(3.0))  # numbers of any type
        self.assert_right(tensors, [0.25], [1.0], [3.0])

    def test_factors_of_wider_arrays_are_refused(self):
        q = memoryview(bytearray(4 * 1 * 1 * 4 * 8)).cast("f", (1, 1, 4, 8))
        self.refused("descale_v is given and q is fp32", lambda: flashcore.attention(q, q, q, descale_v=1.0))
        self.refused("scaling is 'head' and k is fp32", lambda: flashcore.plan(q, q, q, scaling="head"))


class BlocksTest(unittest.TestCase):
    """Factors of blocks: what attention makes of them is what it makes of the same ones for each row, bit for bit."""

    def setUp(self):
        try:
            self.np, self.ml_dtypes = importlib.import_module("numpy"), importlib.import_module("ml_dtypes")
        except ImportError as error:
            self.skipTest(f"{error}")
        self.random = self.np.random.default_rng(11)

    def draw(self, dtype, heads, length):
        return self.random.standard_normal((BATCH, heads, length, 16)).astype("float32").astype(dtype)

    def factors(self, heads, count):
        return (2.0 ** self.random.integers(-6, 3, (BATCH, heads, count))).astype("float32")

    def repeated(self, x, block, length):
        return self.np.ascontiguousarray(x[:, :, self.np.arange(length) // block])

    def test_of_8_bits(self):
        kind = self.ml_dtypes.float8_e4m3fn
        for rows, keys, blocks in ((37, 70, (16, 32)), (8, 64, (8, 64)), (5, 3, (100, 1))):
            q, k, v = self.draw(kind, HEADS, rows), self.draw(kind, HEADS_KV, keys), self.draw(kind, HEADS_KV, keys)
            of_q, of_k, of_v = self.factors(HEADS, -(-rows // blocks[0])), self.factors(HEADS_KV, -(-keys // blocks[1])), self.factors(HEADS_KV, 1)[..., 0]
            wanted = flashcore.attention(q, k, v, descale_q=self.repeated(of_q, blocks[0], rows), descale_k=self.repeated(of_k, blocks[1], keys), descale_v=of_v)
            o = flashcore.attention(q, k, v, descale_q=of_q, descale_k=of_k, descale_v=of_v, descale_blocks=blocks)
            self.assertEqual(o.tobytes(), wanted.tobytes())
            one = flashcore.attention(q, k, v, descale_q=1.0, descale_k=1.0, descale_v=1.0)
            self.assertNotEqual(one.tobytes(), wanted.tobytes())

    def test_of_a_quantised_cache(self):
        q, k, v = self.draw("float16", HEADS, 4), (self.draw("float32", HEADS_KV, 50) * 30).astype("int8"), (self.draw("float32", HEADS_KV, 50) * 30).astype("int8")
        of_k, of_v = self.factors(HEADS_KV, 4) / 64, self.factors(HEADS_KV, 4) / 64
        wanted = flashcore.attention(q, k, v, descale_k=self.repeated(of_k, 16, 50), descale_v=self.repeated(of_v, 16, 50))
        self.assertEqual(flashcore.attention(q, k, v, descale_k=of_k, descale_v=of_v, descale_blocks=(1, 16)).tobytes(), wanted.tobytes())

    def test_torch(self):
        try:
            torch = importlib.import_module("torch")
        except ImportError as error:
            self.skipTest(f"{error}")
        q, k, v = (torch.randn(1, 2, 40, 16).to(torch.float8_e4m3fn) for _ in range(3))
        of_q, of_k, of_v = torch.rand(1, 2, 3) + 0.1, torch.rand(1, 2, 2) + 0.1, torch.ones(1, 2)
        o = flashcore.attention(q, k, v, descale_q=of_q, descale_k=of_k, descale_v=of_v, descale_blocks=(16, 32))
        of_rows = [x[:, :, torch.arange(40) // block].contiguous() for x, block in ((of_q, 16), (of_k, 32))]
        self.assertTrue(torch.equal(o, flashcore.attention(q, k, v, descale_q=of_rows[0], descale_k=of_rows[1], descale_v=of_v)))

    def test_jax(self):
        try:
            jax = importlib.import_module("jax")
        except ImportError as error:
            self.skipTest(f"{error}")
        q, k, v = (self.draw(self.ml_dtypes.float8_e4m3fn, HEADS_KV, 40) for _ in range(3))
        factors = {"descale_q": self.factors(HEADS_KV, 3), "descale_k": self.factors(HEADS_KV, 2), "descale_v": self.factors(HEADS_KV, 1)[..., 0]}
        wanted = flashcore.attention(q, k, v, **factors, descale_blocks=(16, 32))
        o = flashcore.attention(*map(jax.numpy.asarray, (q, k, v)), **{name: jax.numpy.asarray(x) for name, x in factors.items()}, descale_blocks=(16, 32))
        self.assertEqual(self.np.asarray(o).tobytes(), wanted.tobytes())

    def test_whole_numbers_of_numpy_are_taken(self):
        kind, blocks = self.ml_dtypes.float8_e4m3fn, (self.np.int64(16), self.np.uint8(8))
        q, k = self.draw(kind, HEADS, 20), self.draw(kind, HEADS_KV, 20)
        factors = {"descale_q": self.factors(HEADS, 2), "descale_k": self.factors(HEADS_KV, 3), "descale_v": self.factors(HEADS_KV, 1)[..., 0]}
        found = flashcore.attention(q, k, k, **factors, descale_blocks=blocks)
        self.assertEqual(found.tobytes(), flashcore.attention(q, k, k, **factors, descale_blocks=(16, 8)).tobytes())
        x = [self.draw("float32", HEADS_KV, 20)] * 3
        made, same = (flashcore.quantize(*x, scaling="block", blocks=pair) for pair in (blocks, (16, 8)))
        self.assertEqual(made.descale_k.tobytes(), same.descale_k.tobytes())

    def test_quantize_makes_them(self):
        q, k, v = (self.random.standard_normal((1, 2, 300, 32)).astype("float32") for _ in range(3))
        k[:, :, 100] *= 1000  # costs its block its precision and no other
        x = flashcore.quantize(q, k, v, scaling="block", blocks=(128, 64))
        self.assertEqual((x.descale_q.shape, x.descale_k.shape, x.descale_v.shape), ((1, 2, 300), (1, 2, 300), (1, 2)))
        compact = {"descale_q": x.descale_q[..., ::128].copy(), "descale_k": x.descale_k[..., ::64].copy(), "descale_v": x.descale_v}
        self.assertEqual(compact["descale_k"].shape, (1, 2, 5))
        o = flashcore.attention(*x.arrays, **x.descales)
        self.assertEqual(o.tobytes(), flashcore.attention(*x.arrays, **compact, descale_blocks=(128, 64)).tobytes())
        back = x.k.astype("float32") * x.descale_k[..., None]
        elsewhere = self.np.r_[0:64, 128:300]
        self.assertLess(self.np.linalg.norm((back - k)[:, :, elsewhere]), 0.04 * self.np.linalg.norm(k[:, :, elsewhere]))

    def test_what_is_refused_is_named(self):
        kind = self.ml_dtypes.float8_e4m3fn
        q, k = self.draw(kind, HEADS, 20), self.draw(kind, HEADS_KV, 20)
        good = {"descale_q": self.factors(HEADS, 2), "descale_k": self.factors(HEADS_KV, 3), "descale_v": self.factors(HEADS_KV, 1)[..., 0]}
        flashcore.attention(q, k, k, **good, descale_blocks=(16, 8))
        for pattern, arrays, changed in (
            (r"descale_q is 1.0 and descale_blocks is \(16, 8\); give one factor for each block", (q, k, k), {"descale_q": 1.0}),
            (r"descale_blocks is 16; give \(rows of q, keys\) that have one factor", (q, k, k), {"descale_blocks": 16}),
            (r"descale_k has shape \(2, 2, 3\) and descale_blocks is \(16, 16\); give one factor for each block, \(2, 2, 2\)", (q, k, k), {"descale_blocks": (16, 16)}),
            ("descale_q is of dtype float64", (q, k, k), {"descale_q": good["descale_q"].astype("float64")}),
            ("descale_blocks is given and q is fp32; leave it out: only arrays of 8 bits have factors", (q.astype("float32"), *[k.astype("float32")] * 2), {}),
            ("descale_v has shape", (q, k, k), {"descale_v": good["descale_k"]}),
            ("descale_q is a list", (q, k, k), {"descale_q": [1.0]}),
            (r"descale_blocks is \(16, 8\) and no factors are given; give descale_q, descale_k and descale_v, or leave it out", (q, k, k), dict.fromkeys(good)),
            (r"no factors are given; give descale_k and descale_v, or", (q.astype("float16"), k, k), dict.fromkeys(good)),
            *((r"descale_blocks is \(.*\); give \(rows of q, keys\) that have one factor", (q, k, k), {"descale_blocks": blocks})
              for blocks in ((True, 8), (16, self.np.bool_(True)), (16.0, 8), (16, 0), (16, 2**31), (16, "8"), (16, 8, 8))),
        ):
            with self.subTest(pattern), self.assertRaisesRegex(flashcore.Error, pattern):
                flashcore.attention(*arrays, **{**good, "descale_blocks": (16, 8), **changed})


class FrameworkTest(unittest.TestCase):
    """A framework's own 8-bit arrays: the same numbers as from bytes."""

    def module(self, name):
        try:
            return importlib.import_module(name)
        except ImportError as error:
            self.skipTest(f"{name} does not import here: {error}")

    def bytes_of(self, tensors):
        return {name: bytes(v.keep) for name, v in tensors.views.items()}

    def test_ml_dtypes(self):
        numpy, ml_dtypes = self.module("numpy"), self.module("ml_dtypes")
        for dtype, kind in (("e4m3", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2)):
            tensors = Tensors(dtype)
            tensors.attention(0.25, 0.5, 3.0)
            raw = self.bytes_of(tensors)
            q, k, v = (numpy.frombuffer(raw[n], numpy.uint8).view(kind).reshape(tensors.views[n].shape) for n in "qkv")
            o = flashcore.attention(q, k, v, descale_q=0.25, descale_k=numpy.float32([0.5]), descale_v=numpy.float32(3))
            self.assertEqual(o.dtype, ml_dtypes.bfloat16)
            self.assertEqual(o.tobytes(), bytes(tensors.memory))
            by_head = numpy.full((BATCH, HEADS_KV), 1, numpy.float32)
            by_head[1, 1] = -1
            with self.assertRaisesRegex(flashcore.Error, r"descale_q\[3\] is -1"):
                flashcore.attention(q, k, v, descale_q=by_head, descale_k=abs(by_head), descale_v=abs(by_head))

    def test_every_code_is_the_number_that_ml_dtypes_says(self):
        """One key: o is v, read by the library and written as bf16, fp16 and its own type."""
        np, ml_dtypes = self.module("numpy"), self.module("ml_dtypes")
        for kind in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
            codes = np.arange(256, dtype=np.uint8)
            v = codes.view(kind).reshape(1, 1, 1, 256)
            zero = np.zeros((1, 1, 1, 8), kind)
            for output in (ml_dtypes.bfloat16, np.float16, kind):
                out = np.zeros((1, 1, 1, 256), output)
                flashcore.attention(zero, zero, v, out=out)
                known = np.isfinite(v.astype(np.float32))
                np.testing.assert_array_equal(out[known].astype(np.float32), v[known].astype(np.float32))
                self.assertTrue(np.isnan(out.astype(np.float32))[np.isnan(v.astype(np.float32))].all())

    def test_torch(self):
        torch = self.module("torch")
        for dtype, kind in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
            tensors = Tensors(dtype)
            tensors.attention(0.25, 0.5, 3.0)
            raw = self.bytes_of(tensors)
            q, k, v = (torch.frombuffer(bytearray(raw[n]), dtype=torch.uint8).view(kind).reshape(tensors.views[n].shape) for n in "qkv")
            o = flashcore.attention(q, k, v, descale_q=0.25, descale_k=torch.tensor([0.5]), descale_v=torch.tensor(3.0))
            self.assertEqual(o.dtype, torch.bfloat16)
            self.assertEqual(bytes(o.view(torch.uint8).numpy()), bytes(tensors.memory))


def attend(numpy, q, k, v):
    """In float64, [batch, heads, seqlen, head_dim]."""
    k, v = (numpy.repeat(x.astype(numpy.float64), q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = numpy.einsum("bhqd,bhkd->bhqk", q.astype(numpy.float64), k) / math.sqrt(q.shape[3])
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


class QuantizeTest(unittest.TestCase):
    """flashcore.quantize: round trips, factors, and the error from end to end."""

    def setUp(self):
        try:
            import ml_dtypes
            import numpy
        except ImportError as error:
            self.skipTest(f"{error}; scripts/install-packages --tests brings both")
        self.np, self.types = numpy, ml_dtypes
        self.random = numpy.random.default_rng(1)

    def normal(self, *shape):
        return self.random.standard_normal(shape).astype(self.np.float32)

    def test_every_code_is_kept_and_values_are_within_their_rounding(self):
        np = self.np
        for dtype, kind, codes, unit in (("e4m3", self.types.float8_e4m3fn, E4M3, 2**-4), ("e5m2", self.types.float8_e5m2, E5M2, 2**-3)):
            # Whole rows of every finite number: the largest is there, so that the factor is 1.
            values = np.array(sorted(set(codes)), np.float32)
            values = np.resize(values, 256).reshape(1, 1, 16, 16)
            made = flashcore.quantize(values, values, values, dtype=dtype)
            self.assertEqual(float(made.descale_q[0]), 1.0)
            self.assertEqual(made.q.dtype, kind)
            np.testing.assert_array_equal(made.v.astype(np.float32), values)
            q, k, v = self.normal(2, 4, 9, 16), self.normal(2, 2, 7, 16), 300 * self.normal(2, 2, 7, 16)
            for scaling in ("tensor", "head", "token"):
                made = flashcore.quantize(q, k, v, dtype=dtype, scaling=scaling)
                self.assertEqual(made.descale_v.shape, (1,) if scaling == "tensor" else (2, 2))
                self.assertEqual(made.descale_q.shape, {"tensor": (1,), "head": (2, 2), "token": (2, 4, 9)}[scaling])
                for x, stored, factor in ((q, made.q, made.descale_q), (k, made.k, made.descale_k), (v, made.v, made.descale_v)):
                    if factor.ndim == 3:
                        self.assertTrue((abs(stored.astype(np.float32)).max(3) == max(codes)).all())
                        factor = factor[..., None]
                    elif factor.ndim == 2:
                        factor = np.repeat(factor, x.shape[1] // 2, 1)[:, :, None, None]
                    error = abs(stored.astype(np.float32) * factor - x)
                    self.assertTrue((error <= 1.001 * np.maximum(unit * abs(x), factor * 2**-10)).all())
                self.assertEqual(abs(made.v.astype(np.float32)).max(), max(codes))

    def test_layouts_and_nan(self):
        np = self.np
        q, k, v = self.normal(2, 4, 9, 16), self.normal(2, 2, 7, 16), self.normal(2, 2, 7, 16)
        k[0, 0, 1, 2], v[1, 1, 3, 4] = np.nan, np.inf
        plain = flashcore.quantize(q, k, v, scaling="head")
        turned = flashcore.quantize(*(x.swapaxes(1, 2) for x in (q, k, v)), scaling="head", layout="bshd")
        for a, b in zip(plain.arrays, turned.arrays):
            self.assertEqual(a.tobytes(), np.ascontiguousarray(b.swapaxes(1, 2)).tobytes())
        np.testing.assert_array_equal(plain.descale_k, turned.descale_k)
        self.assertEqual(int(np.isnan(plain.k.astype(np.float32)).sum()), 1)
        self.assertTrue(np.isfinite(plain.descale_k).all() and np.isfinite(plain.descale_v).all())
        self.assertEqual(float(plain.v[1, 1, 3, 4]), 448.0)

    def test_v_may_lie_transposed(self):
        np = self.np
        q, k, v = self.normal(2, 4, 9, 16), self.normal(2, 2, 37, 16), self.normal(2, 2, 37, 32)
        plain = flashcore.quantize(q, k, v, scaling="head")
        for layout, arrays in (("bhsd", (q, k, v)), ("bshd", tuple(x.swapaxes(1, 2) for x in (q, k, v)))):
            made = flashcore.quantize(*arrays, scaling="head", layout=layout, v_layout="dn")
            self.assertEqual((made.v.shape, made.v.strides), ((2, 2, 32, 37), (2 * 32 * 48, 32 * 48, 48, 1)))
            self.assertEqual(made.v.swapaxes(2, 3).tobytes(), plain.v.tobytes())
            for v8 in (made.v, np.ascontiguousarray(made.v)):
                o, lse = flashcore.attention(made.q, made.k, v8, **made.descales, layout=layout, v_layout="dn", return_lse=True)
                right, right_lse = flashcore.attention(*plain.arrays, **plain.descales, return_lse=True)
                self.assertEqual((o if layout == "bhsd" else o.swapaxes(1, 2)).tobytes(), right.tobytes())
                self.assertEqual(lse.tobytes(), right_lse.tobytes())
        self.assertIn("_vdn", flashcore.plan(made.q, made.k, made.v, layout=layout, v_layout="dn").info["problem"])
        for pattern, arrays, v_layout in (("v_layout is 'nn'; use 'nd'", plain.arrays, "nn"), ("k has 2 heads of 37 rows and v has 2 of 32", plain.arrays, "dn"),
                                          ("only dense q, k and v of 8 bits may have v transposed", (q, k, v.swapaxes(2, 3).copy()), "dn")):  # fmt: skip
            with self.assertRaisesRegex(flashcore.Error, pattern):
                flashcore.attention(*arrays, v_layout=v_layout)
        with self.assertRaisesRegex(flashcore.Error, "v_layout is 'nn'"):
            flashcore.quantize(q, k, v, v_layout="nn")

    def error(self, q, k, v, **options):
        """Of flashcore.attention on what quantize makes, against fp64 on what it was given."""
        right = attend(self.np, q, k, v)
        made = flashcore.quantize(q, k, v, **options)
        o = flashcore.attention(*made.arrays, **made.descales).astype(self.np.float64)
        return float(self.np.linalg.norm(o - right) / self.np.linalg.norm(right))

    def test_the_error_from_end_to_end(self):
        q, k, v = self.normal(1, 4, 256, 64), self.normal(1, 2, 256, 64), self.normal(1, 2, 256, 64)
        for options in ({}, {"scaling": "head"}, {"scaling": "token"}, {"hadamard": True}, {"smooth_k": True}):
            error = self.error(q, k, v, **options)
            self.assertGreater(error, 0.02, options)
            self.assertLess(error, 0.06, options)
        # Channels of k that lie far from zero for all keys, as models have them: the mean takes them away.
        shifted = k.copy()
        shifted[..., 3] += 30
        shifted[..., 17] -= 20
        plain, smooth = self.error(q, shifted, v), self.error(q, shifted, v, smooth_k=True)
        self.assertGreater(plain, 0.1)
        self.assertLess(smooth, plain / 2)
        self.assertLess(smooth, 0.06)

    def test_rows_far_apart_keep_their_precision_by_factors_of_their_own(self):
        q, k, v = self.normal(1, 4, 256, 64), self.normal(1, 2, 256, 64), self.normal(1, 2, 256, 64)
        # A key that is far from all others along a channel that queries do not use: of the others nothing would be left.
        q[..., 0], k[:, :, 5, 0] = 0, 3e5
        tensor, token = self.error(q, k, v), self.error(q, k, v, scaling="token")
        self.assertGreater(tensor, 0.3)
        self.assertLess(token, 0.06)

    def test_what_smoothing_and_rotating_leave(self):
        np = self.np
        q, k, v = self.normal(1, 2, 8, 32), self.normal(1, 2, 8, 32) + 5, self.normal(1, 2, 8, 32)
        made = flashcore.quantize(q, k, v, smooth_k=True)
        np.testing.assert_allclose(made.k_mean, k.mean(2, keepdims=True), rtol=1e-6)
        self.assertIsNone(flashcore.quantize(q, k, v).k_mean)
        rotated = flashcore.quantize(q, k, v, hadamard=True, seed=3)
        before = np.einsum("bhqd,bhkd->bhqk", q, k)
        wide = [x.astype(np.float32) * factor for x, factor in ((rotated.q, rotated.descale_q), (rotated.k, rotated.descale_k))]
        self.assertLess(np.linalg.norm(np.einsum("bhqd,bhkd->bhqk", *wide) - before), 0.06 * np.linalg.norm(before))
        other = flashcore.quantize(q, k, v, hadamard=True, seed=4)
        self.assertNotEqual(other.q.tobytes(), rotated.q.tobytes())

    def test_what_is_refused_is_named(self):
        q, k, v = self.normal(1, 4, 8, 24), self.normal(1, 2, 8, 24), self.normal(1, 2, 8, 24)
        for pattern, arrays, options in (("scaling is 'row'", (q, k, v), {"scaling": "row"}), ("dtype is 'int8'", (q, k, v), {"dtype": "int8"}),
                                         ("layout is 'sbhd'", (q, k, v), {"layout": "sbhd"}), ("k is a list", (q, [1], v), {}),
                                         (r"q has shape \(24,\)", (q[0, 0, 0], k, v), {}), ("heads of k and v", (q, self.normal(1, 3, 8, 24), v), {}),
                                         ("hadamard is 'no'; use True or False", (q, k, v), {"hadamard": "no"}),
                                         ("smooth_k is 1; use True or False", (q, k, v), {"smooth_k": 1, "hadamard": self.np.bool_(False)}),
                                         ("head_dim is 24, and hadamard needs a power of two", (q, k, v), {"hadamard": True})):  # fmt: skip
            with self.assertRaisesRegex(flashcore.Error, pattern):
                flashcore.quantize(*arrays, **options)

    def test_torch_makes_the_same(self):
        try:
            import torch
        except ImportError as error:
            self.skipTest(f"{error}; scripts/install-packages --torch brings it")
        arrays = self.normal(1, 4, 8, 32), self.normal(1, 2, 8, 32), self.normal(1, 2, 8, 32)
        for v_layout in ("nd", "dn"):
            ours = flashcore.quantize(*arrays, scaling="head", v_layout=v_layout)
            theirs = flashcore.quantize(*(torch.from_numpy(x) for x in arrays), scaling="head", v_layout=v_layout)
            for a, b in zip(ours.arrays, theirs.arrays):
                self.assertEqual(a.tobytes(), b.view(torch.uint8).numpy().tobytes())


if __name__ == "__main__":
    unittest.main()
