"""The codec of 8-bit floats beside ml_dtypes, saturating and not: each code and what lies around it, ties, and random bits of fp32."""

import os
import subprocess
import sys
import unittest

try:
    import ml_dtypes
    import numpy
except ImportError as error:
    print(f"{error}; scripts/install-packages --tests brings it")
    sys.exit(77)

CODEC = os.environ.get("FLASHCORE_FP8_CODEC")
if not CODEC:
    print("FLASHCORE_FP8_CODEC does not say where tests/fp8_codec is; ctest does")
    sys.exit(77)
KINDS = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def converted(values, kind, overflow):
    done = subprocess.run([CODEC, kind, overflow], input=values.astype("float32").tobytes(), stdout=subprocess.PIPE, check=True)
    return numpy.frombuffer(done.stdout, numpy.uint8)


def numbers(kind):
    """Every finite code, what is half way to the next one and a bit of fp32 to either side; past the range; bits at random."""
    finite = numpy.arange(256, dtype=numpy.uint8).view(kind).astype("float32")
    finite = numpy.unique(finite[numpy.isfinite(finite)])
    largest = finite[-1]
    past = largest * numpy.float32([1.03, 1.0625, 1.0714285, 1.125, 1.2, 2, 1e3, 1e30])
    ties = numpy.concatenate(((finite[1:] + finite[:-1]) / 2, numpy.float32([464, -464, 480, 61440, -61440, 65536])))
    near = numpy.concatenate((finite, ties, past, -past))
    around = [numpy.nextafter(near, numpy.float32(way)) for way in (-numpy.inf, numpy.inf)]
    special = numpy.float32([0.0, -0.0, numpy.inf, -numpy.inf, numpy.nan, 1e-45, -1e-45, 3.4028235e38])
    bits = numpy.random.default_rng(7).integers(0, 2**32, 400_000, dtype=numpy.uint64).astype(numpy.uint32).view("float32")
    usual = numpy.random.default_rng(8).standard_normal(200_000).astype("float32") * numpy.float32(2.0) ** numpy.random.default_rng(9).integers(-20, 18, 200_000).astype("float32")
    return numpy.concatenate((near, *around, special, bits, usual)).astype("float32")


class Fp8CodecTest(unittest.TestCase):
    def expect_same(self, values, got, wanted, kind):
        # Of NaN there are several codes, and ml_dtypes keeps the sign; ours is 0x7f, as the hardware's.
        is_nan = numpy.isnan(wanted.astype("float32"))
        wrong = (got != wanted.view("uint8")) & ~is_nan
        self.assertFalse(wrong.any(), f"{values[wrong][:5]} became {got[wrong][:5]}, not {wanted.view('uint8')[wrong][:5]}")
        self.assertTrue((got[is_nan] & 0x7F == 0x7F).all() if kind == "e4m3" else numpy.isnan(got[is_nan].view(KINDS[kind]).astype("float32")).all())

    def test_not_saturating(self):
        for kind, dtype in KINDS.items():
            with self.subTest(kind), numpy.errstate(all="ignore"):
                values = numbers(dtype)
                wanted = values.astype(dtype)
                self.expect_same(values, converted(values, kind, "non_finite"), wanted, kind)
                # Past the range e4m3 has NaN alone, and e5m2 infinities of either sign.
                self.assertEqual(numpy.isinf(wanted.astype("float32")).any(), kind == "e5m2")

    def test_saturating(self):
        for kind, dtype in KINDS.items():
            with self.subTest(kind), numpy.errstate(all="ignore"):
                values = numbers(dtype)
                largest = float(ml_dtypes.finfo(dtype).max)
                self.expect_same(values, converted(values, kind, "saturate"), numpy.clip(values, -largest, largest).astype(dtype), kind)

    def test_every_code_comes_back(self):
        codes = numpy.arange(256, dtype=numpy.uint8)
        for kind, dtype in KINDS.items():
            values = codes.view(dtype).astype("float32")
            for overflow in ("saturate", "non_finite"):
                got, known = converted(values, kind, overflow), numpy.isfinite(values) if overflow == "saturate" else ~numpy.isnan(values)
                self.assertTrue((got[known] == codes[known]).all())
                self.assertTrue((got[numpy.isnan(values)] == 0x7F).all())


if __name__ == "__main__":
    unittest.main()
