"""The Python package on the CPU: results, every kind of array, and what is said about bad input. Needs NumPy."""

import ctypes
import math
import os
import subprocess
import sys
import tempfile
import threading
import unittest
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
import flashcore  # noqa: E402


def reference(q, k, v, causal=None, scale=None, window=None):
    """In float64, [batch, heads, seqlen, head_dim]; output and log-sum-exp."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) * (scale or 1 / math.sqrt(q.shape[3]))
    rows, keys = scores.shape[2:]
    offset = {None: keys, "top_left": 0, "bottom_right": keys - rows}[causal]
    scores = np.where(np.arange(keys)[None, :] <= np.arange(rows)[:, None] + offset, scores, -np.inf)
    if window is not None:
        left, right = (keys + rows if side in (None, -1) else side for side in window)
        own = np.arange(rows)[:, None] + (0 if causal == "top_left" else keys - rows)
        scores = np.where((np.arange(keys)[None, :] >= own - left) & (np.arange(keys)[None, :] <= own + right), scores, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = np.exp(scores)
        total = weights.sum(axis=-1, keepdims=True)
        return np.nan_to_num(weights / total) @ v, np.log(total[..., 0])


def arrays(shape_q=(2, 4, 9, 24), shape_k=(2, 2, 17, 24), dtype=np.float32, columns=None):
    rng = np.random.default_rng(1)
    shape_v = (*shape_k[:3], columns or shape_k[3])
    return [rng.standard_normal(shape).astype(dtype) for shape in (shape_q, shape_k, shape_v)]


class ResultTest(unittest.TestCase):
    def test_every_mask_scale_and_dtype(self):
        for dtype, tolerance in ((np.float32, 1e-5), (np.float16, 2e-3)):
            for causal in (None, "top_left", "bottom_right"):
                q, k, v = arrays(dtype=dtype, columns=40)
                o, lse = flashcore.attention(q, k, v, causal=causal or False, scale=0.3, return_lse=True)
                want, want_lse = reference(q, k, v, causal, 0.3)
                self.assertEqual((o.dtype, lse.dtype), (dtype, np.float32))
                np.testing.assert_allclose(o.astype(np.float64), want, atol=tolerance)
                np.testing.assert_allclose(lse, want_lse, atol=1e-3)

    def test_windows(self):
        q, k, v = arrays()
        for causal, window in ((None, (3, 2)), (None, (0, None)), (None, (-1, 4)), ("bottom_right", (5, None)), ("bottom_right", (0, 0)),
                               ("top_left", (2, -1)), (None, (100, 100)), (None, [np.int64(1), 0])):  # fmt: skip
            with self.subTest(causal=causal, window=window):
                o, lse = flashcore.attention(q, k, v, causal=causal or False, window=window, return_lse=True)
                want, want_lse = reference(q, k, v, causal, window=window)
                np.testing.assert_allclose(o, want, atol=1e-5)
                np.testing.assert_allclose(lse, want_lse, atol=1e-4)
        top_left = flashcore.attention(q, k, v, window=(2, 0), window_alignment="top_left")
        np.testing.assert_array_equal(top_left, flashcore.attention(q, k, v, causal="top_left", window=(2, None)))

    def test_a_window_that_leaves_rows_without_keys(self):
        q, k, v = arrays(shape_q=(1, 2, 17, 8), shape_k=(1, 2, 5, 8))
        o, lse = flashcore.attention(q, k, v, window=(1, 1), window_alignment="top_left", return_lse=True)
        self.assertTrue((o[:, :, 6:] == 0).all() and np.isneginf(lse[:, :, 6:]).all() and np.isfinite(lse[:, :, :6]).all())

    def test_a_plan_has_its_window(self):
        q, k, v = arrays()
        plan = flashcore.plan(q, k, v, causal=True, window=(4, None))
        self.assertIn("_causal_wl4", plan.info["problem"])
        self.assertIs(flashcore.plan(q, k, v, causal=True, window=(4, -1)), plan)
        self.assertIsNot(flashcore.plan(q, k, v, causal=True, window=(5, -1)), plan)
        self.assertNotIn("_w", flashcore.plan(q, k, v, causal=True).info["problem"])

    def test_true_is_bottom_right(self):
        q, k, v = arrays()
        np.testing.assert_array_equal(flashcore.attention(q, k, v, causal=True), flashcore.attention(q, k, v, causal="bottom_right"))

    def test_rows_without_keys(self):
        q, k, v = arrays(shape_q=(1, 2, 17, 8), shape_k=(1, 2, 5, 8))
        o, lse = flashcore.attention(q, k, v, causal="bottom_right", return_lse=True)
        self.assertTrue((o[:, :, :12] == 0).all() and np.isneginf(lse[:, :, :12]).all())
        o, lse = flashcore.attention(q, k[:, :, :0], v[:, :, :0], return_lse=True)
        self.assertTrue((o == 0).all() and np.isneginf(lse).all())
        self.assertEqual(flashcore.attention(q[:, :, :0], k, v).shape, (1, 2, 0, 8))

    def test_layout_strides_and_out(self):
        q, k, v = arrays()
        want = flashcore.attention(q, k, v)
        bshd = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (q, k, v)]
        np.testing.assert_allclose(flashcore.attention(*bshd, layout="bshd").transpose(0, 2, 1, 3), want, atol=1e-6)
        wide = np.full((2, 4, 9, 30), np.nan, np.float32)
        out = wide[..., 3:27]
        self.assertIs(flashcore.attention(bshd[0].transpose(0, 2, 1, 3), k, v, out=out), out)
        np.testing.assert_allclose(out, want, atol=1e-6)
        self.assertTrue(np.isnan(wide[..., :3]).all() and np.isnan(wide[..., 27:]).all())
        repeated = np.broadcast_to(k[:1, :1], k.shape)
        np.testing.assert_allclose(flashcore.attention(q, repeated, v), flashcore.attention(q, repeated.copy(), v), atol=1e-6)

    def test_broadcasts_of_one_row(self):
        """All three strides 0 are no contiguous tensor."""
        q, k, v = arrays()
        row = k[:1, :1, :1]
        for shape in (k.shape, (2, 1, 17, 24), (2, 2, 1, 24)):
            repeated, values = np.broadcast_to(row, shape), v[:, : shape[1], : shape[2]]
            np.testing.assert_allclose(flashcore.attention(q, repeated, values), reference(q, repeated, values)[0], atol=1e-5)
            np.testing.assert_allclose(flashcore.attention(q, repeated, repeated), reference(q, repeated, repeated)[0], atol=1e-5)
        repeated = np.broadcast_to(row, q.shape)
        np.testing.assert_allclose(flashcore.attention(repeated, k, v), reference(repeated, k, v)[0], atol=1e-5)

    def test_arrays_of_plain_python_and_dlpack(self):
        q, k, v = arrays()
        want = flashcore.attention(q, k, v)
        plain = [memoryview(bytearray(x.tobytes())).cast("f", x.shape) for x in (q, k, v)]
        np.testing.assert_array_equal(np.asarray(flashcore.attention(*plain)), want)

        class Foreign:
            """Known by nothing but DLPack."""

            def __init__(self, x):
                self.x = x

            def __dlpack__(self, *, stream=None):
                assert stream is None
                return self.x.__dlpack__()

            def __dlpack_device__(self):
                return self.x.__dlpack_device__()

        out = np.empty_like(want)
        flashcore.attention(Foreign(q), Foreign(k), Foreign(v), out=out)
        np.testing.assert_array_equal(out, want)
        with self.assertRaisesRegex(flashcore.Error, "give one as out="):
            flashcore.attention(Foreign(q), Foreign(k), Foreign(v))

    def test_plans(self):
        q, k, v = arrays()
        plan = flashcore.plan(q, k, v, causal="top_left", candidate="cpu_fwd:block_m=24")
        self.assertEqual((plan.device, plan.info["family"], plan.info["config"]["block_m"]), ("cpu", "cpu_fwd", 24))
        self.assertIs(flashcore.plan(q, k, v, causal="top_left", candidate="cpu_fwd:block_m=24"), plan)
        out = np.empty_like(q)
        plan.launch(q.ctypes.data, k.ctypes.data, v.ctypes.data, out.ctypes.data)
        np.testing.assert_allclose(out, reference(q, k, v, "top_left")[0], atol=1e-5)

    def test_threads(self):
        wrong = []

        def work(rows):
            q, k, v = arrays(shape_q=(1, 2, rows, 16), shape_k=(1, 1, 12, 16))
            for _ in range(5):
                if abs(flashcore.attention(q, k, v) - reference(q, k, v)[0]).max() > 1e-5:
                    wrong.append(rows)

        threads = [threading.Thread(target=work, args=(rows,)) for rows in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])


class ProgramTest(unittest.TestCase):
    def test_explain(self):
        found = flashcore.explain("b1_h8_s512_d64_fp16", device="cpu")
        self.assertEqual(found["family"], "cpu_fwd")
        self.assertTrue(any("needs an NVIDIA GPU" in reason for reason in found["refused"]), found)

    @unittest.skipUnless(os.environ.get("FLASHCORE_BINARY"), "FLASHCORE_BINARY is not set")
    def test_bench(self):
        with tempfile.TemporaryDirectory() as folder:
            results = flashcore.bench("b1_h2_s64_d32_fp32", device="cpu", store=os.path.join(folder, "t.db"))
        self.assertEqual(results[0]["ended"], "passed")
        self.assertGreater(results[0]["time_us"]["p50"], 0)

    @unittest.skipUnless(os.environ.get("FLASHCORE_BINARY"), "FLASHCORE_BINARY is not set")
    def test_errors_of_the_program(self):
        with self.assertRaisesRegex(flashcore.Error, "problem id 'nonsense'") as caught:
            flashcore.bench("nonsense", device="cpu")
        self.assertEqual(caught.exception.kind, "bad input")

    def test_no_program(self):
        before = os.environ.get("FLASHCORE_BINARY")
        os.environ["FLASHCORE_BINARY"] = "/nonexistent/flashcore"
        try:
            with self.assertRaisesRegex(flashcore.Error, "is not at /nonexistent/flashcore"):
                flashcore.bench("b1_h1_s8_d8_fp32")
            words = [sys.executable, "-m", "flashcore.peers", "--device", "cpu"]
            ended = subprocess.run(words, cwd=ROOT / "python", capture_output=True, text=True, check=False)
            self.assertEqual((ended.returncode, ended.stderr.count("Traceback")), (4, 0), ended.stderr)
        finally:
            del os.environ["FLASHCORE_BINARY"]
            if before:
                os.environ["FLASHCORE_BINARY"] = before


class BadInputTest(unittest.TestCase):
    def refused(self, words, *args, **options):
        with self.assertRaisesRegex(flashcore.Error, words) as caught:
            flashcore.attention(*args, **options)
        return caught.exception

    def test_what_is_given(self):
        q, k, v = arrays()
        self.refused("q is of dtype float64; use", q.astype(np.float64), k, v)
        self.refused("q is of dtype int32; use", q.astype(np.int32), k, v)
        self.refused("q is fp32 on cpu and k is fp16", q, k.astype(np.float16), v)
        self.refused("stride 2 along its last axis", q[..., ::2], k[..., ::2], v)
        self.refused("q has shape", q[0], k, v)
        self.refused("heads_kv is 3, which does not divide", q, np.repeat(k[:, :1], 3, 1), np.repeat(v[:, :1], 3, 1))
        self.refused("2, 1 and 2 batch entries", q, k[:1], v)
        self.refused("k has 2 heads of 17 rows and v has 2 of 16", q, k, v[:, :, :16])
        self.refused("head_dim 24 and k has 20", q, k[..., :20], v)
        self.refused("batch is 0", q[:0], k[:0], v[:0])
        self.refused("no family runs", *arrays((1, 1, 2, 300), (1, 1, 2, 300)))
        self.refused("q is a list; give", [1, 2], k, v)
        released = memoryview(bytearray(q.tobytes())).cast("f", q.shape)
        released.release()
        self.refused("cannot be read", released, k, v)
        self.refused("causal is 'left'", q, k, v, causal="left")
        self.refused("causal is \\[", q, k, v, causal=[1])
        for window in (3, (3,), (1, 2, 3), (-2, 0), (0, -5), ("1", 0), (True, 0), (1.0, 0), {}, (2**31, 0)):
            self.refused("window is", q, k, v, window=window)
        self.refused("causal is given and window_right is 3", q, k, v, causal=True, window=(1, 3))
        self.refused("window_alignment is 'left'", q, k, v, window=(1, 3), window_alignment="left")
        self.refused("causal is aligned otherwise", q, k, v, causal=True, window=(1, 0), window_alignment="top_left")
        self.refused("layout is 'sbhd'", q, k, v, layout="sbhd")
        self.refused("scale is 0", q, k, v, scale=0.0)
        self.refused("scale is -1", q, k, v, scale=-1.0)
        self.refused("scale is nan", q, k, v, scale=math.nan)
        self.refused("out is fp32", q, k, v, out=np.empty((2, 4, 9, 25), np.float32))
        out = np.empty_like(q)
        self.refused("outputs would overlap", q, k, v, out=np.lib.stride_tricks.as_strided(out, strides=(out.strides[0], 0, *out.strides[2:])))
        self.refused("unknown family", q, k, v, candidate="nonsense")
        self.refused("a stream was given", q, k, v, stream=7)
        self.refused("big-endian", q.astype(">f4"), k, v)
        self.refused("dtype object", q.astype(object), k, v)
        self.refused("q has shape \\(\\)", np.array(1, np.float32), k, v)
        self.refused("head_dim is 0", q[..., :0], k[..., :0], v)
        self.refused("heads_kv is 0", q, k[:, :0], v[:, :0])
        self.refused("cannot be made|batch|seqlen_q", np.broadcast_to(q[:1, :1, :1], (1, 2**33, 2**10, 24)), k[:1], v[:1])

    def test_one_exception_for_arguments_of_another_type(self):
        q, k, v = arrays()
        out = np.empty_like(q)
        for layout in ([], {}, 1, None, b"bhsd", np.array(["bhsd"])):
            self.refused("layout is", q, k, v, layout=layout)
            self.refused("layout is", q, k, v, layout=layout, out=out)
        for candidate in (1, [], b"cpu_fwd", True, {"family": "cpu_fwd"}):
            self.refused("candidate is", q, k, v, candidate=candidate)
        self.refused("zero character", q, k, v, candidate="cpu_fwd\0:block_m=24")
        self.refused("unknown family", q, k, v, candidate="\udc80")
        for causal in ([], {}, np.array([True]), 2, "True"):
            self.refused("causal is", q, k, v, causal=causal)
        for scale in ("0.5", [], True, np.bool_(True), 1j, np.array(0.5), 10**400, -(10**400), math.inf, np.float32(0)):
            self.refused("scale is", q, k, v, scale=scale)
        for stream in ("0", [], 1.0, -1, 2**64, True, object()):
            self.refused("stream is", q, k, v, stream=stream)
        for scale in (1, np.float32(0.25), np.float16(0.5), Fraction(1, 3)):
            np.testing.assert_allclose(flashcore.attention(q, k, v, scale=scale), reference(q, k, v, scale=float(scale))[0], atol=1e-5)
        plan = flashcore.plan(q, k, v)
        for address in ("q", 1.5, q):
            with self.assertRaisesRegex(flashcore.Error, "is no number"):
                plan.launch(address, k.ctypes.data, v.ctypes.data, out.ctypes.data)
        for problem, device in ((1, "cpu"), ([], "cpu"), ("b1_h1_s8_d8_fp32", 0), ("b1_h1_s8_d8_fp32", []), ("b1\0", "cpu")):
            with self.assertRaisesRegex(flashcore.Error, "give a str|zero character"):
                flashcore.explain(problem, device=device)

    def test_outputs_that_cannot_be_written(self):
        q, k, v = arrays()
        want = flashcore.attention(q, k, v)
        locked = np.zeros_like(q)
        locked.flags.writeable = False
        data = bytes(q.nbytes)
        for out in (locked, np.frombuffer(data, np.float32).reshape(q.shape), memoryview(data).cast("f", q.shape)):
            self.refused("out, a .*, cannot be written", q, k, v, out=out)
            with self.assertRaisesRegex(flashcore.Error, "cannot be written"):
                flashcore.plan(q, k, v, out=out)
        self.assertEqual((data, locked.any()), (bytes(q.nbytes), False))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "o")
            Path(path).write_bytes(data)
            self.refused("cannot be written", q, k, v, out=np.memmap(path, np.float32, "r", shape=q.shape))
            self.assertEqual(Path(path).read_bytes(), data)
            out = np.memmap(path, np.float32, "r+", shape=q.shape)
            self.assertIs(flashcore.attention(q, k, v, out=out), out)
            np.testing.assert_array_equal(out, want)
            # As inputs they are as good as any.
            read_only = np.memmap(path, np.float32, "r", shape=q.shape)
            np.testing.assert_array_equal(flashcore.attention(read_only, k, v), flashcore.attention(want, k, v))
            del out, read_only
        np.testing.assert_array_equal(np.asarray(flashcore.attention(memoryview(q.tobytes()).cast("f", q.shape), k, v)), want)

    def test_outputs_on_top_of_inputs(self):
        q, k, v = arrays(shape_k=(2, 4, 9, 24))
        before = [x.copy() for x in (q, k, v)]
        for out in (q, k, v):
            self.refused("overlaps", q, k, v, out=out)
        block = np.zeros(2 * q.size, np.float32)
        view = block[: q.size].reshape(q.shape)
        view[...] = q
        self.refused("o at .* overlaps q", view, k, v, out=block[q.size - 1 : -1].reshape(q.shape))
        for x, y in zip((q, k, v), before):
            np.testing.assert_array_equal(x, y)
        want = flashcore.attention(q, k, v)
        np.testing.assert_array_equal(flashcore.attention(view, k, v, out=block[q.size :].reshape(q.shape)), want)
        # Interleaved views of one packed block share its range of addresses, and no element.
        packed = np.zeros((2, 9, 4, 4, 24), np.float32)  # batch, row, (q, k, v, o), head, column
        pq, pk, pv, po = (packed[:, :, i].transpose(0, 2, 1, 3) for i in range(4))
        pq[...], pk[...], pv[...] = q, k, v
        np.testing.assert_allclose(flashcore.attention(pq, pk, pv, out=po), want, atol=1e-6)
        np.testing.assert_array_equal(pv, v)

    def test_arrays_that_mean_more_than_their_numbers(self):
        q, k, v = arrays()
        self.refused("k is a masked array", q, np.ma.masked_array(k, mask=k > 1), v)
        self.refused("out is a masked array", q, k, v, out=np.ma.masked_array(np.empty_like(q)))

        class Meters(np.ndarray):
            pass

        self.refused("v is a Meters, a subclass of numpy.ndarray", q, k, v.view(Meters))

    def test_dlpack_flags(self):
        q, k, v = arrays()
        want = flashcore.attention(q, k, v)

        class Flagged:
            """A producer of DLPack 1, or of before where `old`."""

            def __init__(self, x, old=False):
                self.x, self.old = x, old

            def __dlpack__(self, *, stream=None, **more):
                if self.old and more:
                    raise TypeError("unexpected argument")
                return self.x.__dlpack__(**more)

            def __dlpack_device__(self):
                return self.x.__dlpack_device__()

        if np.lib.NumpyVersion(np.__version__) < "2.1.0":
            self.skipTest("NumPy before 2.1 exports no flags by DLPack")
        locked = np.zeros_like(q)
        locked.flags.writeable = False
        self.refused("out, a Flagged, cannot be written", q, k, v, out=Flagged(locked))
        self.assertFalse(locked.any())
        for old in (False, True):
            out = np.zeros_like(q)
            flashcore.attention(Flagged(q), Flagged(k), Flagged(v), out=Flagged(out, old))
            np.testing.assert_array_equal(out, want)
        locked_q = q.copy()
        locked_q.flags.writeable = False
        flashcore.attention(Flagged(locked_q), k, v, out=out)
        np.testing.assert_array_equal(out, want)

        class Broken:
            def __dlpack_device__(self):
                raise KeyError("no device")

            def __dlpack__(self, **more):
                return None

        self.refused("does not say by DLPack where it lies", Broken(), k, v)

    def test_addresses_between_elements(self):
        q, k, v = arrays()
        data = bytearray(q.nbytes + 4)
        odd = np.frombuffer(memoryview(data)[1 : 1 + q.nbytes], np.float32).reshape(q.shape)
        self.refused("q is at 0x.*no multiple of its 4-byte", odd, k, v)
        self.refused("out is at 0x.*no multiple of its 4-byte", q, k, v, out=odd)
        fields = np.zeros(q.shape, np.dtype([("x", np.float32), ("y", np.uint8)]))
        self.refused("q has strides .* no multiples of its 4-byte", fields["x"], k, v)

    def test_no_gpu(self):
        if os.path.exists("/dev/nvidia0"):
            self.skipTest("there is a GPU here")
        with self.assertRaises(flashcore.Error) as caught:
            flashcore.explain("b1_h8_s512_d64_fp16", device="cuda")
        self.assertEqual(caught.exception.kind, "environment")
        self.assertIn("needs an NVIDIA driver", str(caught.exception))

    def run_python(self, code, **environment):
        done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT / "python"), **environment},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
        return done.stdout

    def test_a_library_that_is_missing_or_of_another_version(self):
        code = "import flashcore\ntry: flashcore.explain('b1_h1_s8_d8_fp32', device='cpu')\nexcept flashcore.Error as e: print('ERROR', e)"
        self.assertIn("ERROR the shared library /nonexistent", self.run_python(code, FLASHCORE_LIBRARY="/nonexistent"))
        with tempfile.TemporaryDirectory() as folder:
            source, stale, other = (os.path.join(folder, name) for name in ("stale.c", "stale.so", "other.so"))
            Path(source).write_text('const char* fc_version(void) { return "0.0.9"; } unsigned fc_abi_version(void) { return 1; }\n'
                                    'const char* fc_last_error(void) { return ""; }\n')  # fmt: skip
            subprocess.run(["cc", "-shared", "-fPIC", source, "-o", stale], check=True)
            self.assertIn("is flashcore 0.0.9 (ABI 1), and these Python files are", self.run_python(code, FLASHCORE_LIBRARY=stale))
            Path(source).write_text("int unrelated;\n")
            subprocess.run(["cc", "-shared", "-fPIC", source, "-o", other], check=True)
            self.assertIn("is no libflashcore.so", self.run_python(code, FLASHCORE_LIBRARY=other))

    def test_notes_are_said_once(self):
        from flashcore import _plan

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                _plan.say_once("a note of the test")
        self.assertEqual([str(w.message) for w in caught], ["a note of the test"])
        self.assertTrue(issubclass(caught[0].category, flashcore.Note))

    def test_the_struct_is_that_of_the_header(self):
        """ctypes and C must see the same bytes: the fields come back from an id as they were parsed."""
        from flashcore import _library

        parsed = _library.Attention()
        _library.check(_library.library().fc_problem_parse(b"b2_h8_hk4_sq3_sk5_d64_dv32_bf16_causaltl_scale0.5", ctypes.byref(parsed)))
        self.assertEqual(
            [getattr(parsed, name) for name, _ in _library.Attention._fields_[:12]],
            [ctypes.sizeof(_library.Attention), 2, 2, 8, 4, 3, 5, 64, 32, 2, 0, 0.5],
        )
        self.assertEqual((parsed.o.batch, parsed.o.head, parsed.o.row, parsed.candidate), (8 * 3 * 32, 3 * 32, 32, None))
        self.assertEqual((parsed.given, ctypes.sizeof(_library.Attention)), (0, 336))
        _library.check(_library.library().fc_problem_parse(b"b1_h1_s9_d8_fp32_wl3_wr5_tl", ctypes.byref(parsed)))
        self.assertEqual((parsed.given, parsed.window_left, parsed.window_right, parsed.window_alignment), (_library.GIVEN_WINDOW, 3, 5, 1))


if __name__ == "__main__":
    unittest.main()
