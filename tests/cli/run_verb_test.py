"""flashcore run: the user's own tensors, good and bad."""

import json
import math
import os
import resource
import struct
import subprocess
import unittest

from support import BAD_USAGE, BINARY, DONE, NO_ENVIRONMENT, CliTest, write_npy, write_qkv, write_safetensors


def write_elements(path, shape, kind, values):
    """A tensor of floats ("f"), int32 ("i"), int64 ("q") or bytes ("?"); safetensors by the path's extension, else .npy."""
    data = struct.pack("<%d%s" % (len(values), kind), *values)
    if path.endswith(".safetensors"):
        dtype = {"f": "F32", "i": "I32", "q": "I64", "?": "BOOL"}[kind]
        header = json.dumps({"x": {"dtype": dtype, "shape": list(shape), "data_offsets": [0, len(data)]}}).encode()
        content = struct.pack("<Q", len(header)) + header + data
    else:
        descr = {"f": "<f4", "i": "<i4", "q": "<i8", "?": "|b1"}[kind]
        header = ("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }" % (descr, "".join("%d," % x for x in shape))).encode().ljust(117) + b"\n"
        content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data
    with open(path, "wb") as file:
        file.write(content)


class RunTest(CliTest):
    def test_npy_and_safetensors_agree_with_fp64(self):
        for extension, dtype in (("npy", "F32"), ("npy", "F16"), ("safetensors", "BF16"), ("safetensors", "F32")):
            with self.subTest(extension=extension, dtype=dtype):
                flags = write_qkv(self.folder, extension, dtype, (2, 4, 17, 64), (2, 2, 33, 64))
                out = self.path("o." + extension)
                result = self.expect(DONE, "run", "--device", "cpu", *flags, "--causal", "--out", out, "--lse", self.path("lse.npy"), "--check")
                self.assertIn("correct", result.stdout)
                self.assertEqual(self.shape_of_npy("lse.npy"), "(2, 4, 17)")
                if extension == "npy":
                    self.assertEqual(self.shape_of_npy("o.npy"), "(2, 4, 17, 64)")

    def test_what_became_of_the_output_is_said(self):
        flags = write_qkv(self.folder)
        for more in ([], ["--quiet"]):
            self.assertIn("the output was not kept; --out", self.expect(DONE, "run", "--device", "cpu", *flags, *more).stdout)
        text = self.expect(DONE, "run", "--device", "cpu", *flags, "--out", self.path("o.npy")).stdout
        self.assertIn("written: " + self.path("o.npy"), text)
        self.assertNotIn("not kept", text)

    def test_a_time_is_told_only_after_the_comparison_with_fp64(self):
        flags = write_qkv(self.folder)
        text = self.expect(DONE, "run", "--device", "cpu", *flags, "--json", "r.json").stdout
        self.assertNotIn("one launch took", text)
        self.assertIsNone(self.only_result("r.json")["time_us"])
        text = self.expect(DONE, "run", "--device", "cpu", *flags, "--check", "--json", "r.json").stdout
        self.assertLess(text.index("correct: "), text.index("one launch took"))
        result = self.only_result("r.json")
        self.assertTrue(result["correct"]["passed"])
        self.assertGreater(result["time_us"], 0)

    def only_result(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            (result,) = json.load(file)["results"]
        return result

    def shape_of_npy(self, name):
        with open(self.path(name), "rb") as file:
            header = file.read(200).decode("latin-1")
        return header[header.index("("):header.index(")") + 1]

    def test_on_an_emulated_gpu_there_is_a_result_and_no_time(self):
        flags = write_qkv(self.folder, "npy", "F16", (1, 2, 17, 16), (1, 2, 19, 16))
        result = self.expect(DONE, "run", "--device", "emulator", *flags, "--out", self.path("o.npy"), "--check", "--json", self.path("r.json"))
        self.assertIn("correct", result.stdout)
        self.assertNotIn("one launch took", result.stdout)
        self.assertEqual(self.shape_of_npy("o.npy"), "(1, 2, 17, 16)")
        with open(self.path("r.json"), encoding="utf-8") as file:
            self.assertIsNone(json.load(file)["results"][0]["time_us"])

    def test_three_dimensions_are_a_batch_of_one_and_layouts_name_the_axes(self):
        flags = write_qkv(self.folder, shape=(2, 33, 64))
        self.expect(DONE, "run", "--device", "cpu", *flags, "--out", self.path("o.npy"), "--check")
        self.assertEqual(self.shape_of_npy("o.npy"), "(2, 33, 64)")
        flags = write_qkv(self.folder, shape=(1, 33, 2, 64))
        result = self.expect(DONE, "run", "--device", "cpu", *flags, "--layout", "bshd", "--out", self.path("o.npy"), "--check", "--json", "-")
        self.assertIn("b1_h2_s33_d64_fp32_bshd", result.stdout)
        self.assertEqual(self.shape_of_npy("o.npy"), "(1, 33, 2, 64)")

    def test_causal_takes_its_kind_or_none(self):
        flags = write_qkv(self.folder)
        for words, expected in ((["--causal"], "_causal"), (["--causal", "top_left"], "_causaltl"), (["--causal", "bottom_right"], "_causal"), ([], "_fp32")):
            result = self.expect(DONE, "run", "--device", "cpu", *flags, *words, "--json", "-", "--quiet")
            self.assertIn(expected + '"', result.stdout)
        self.expect_error(BAD_USAGE, ["sideways", "top_left"], "run", "--device", "cpu", *flags, "--causal", "sideways")

    def test_softcap_slopes_and_sinks(self):
        flags = ["run", "--device", "cpu", *write_qkv(self.folder, shape=(2, 4, 20, 16), kv_shape=(2, 2, 33, 16))]
        heads, batch, short, halves = (self.path(name) for name in ("heads.npy", "batch.npy", "short.npy", "halves.npy"))
        write_npy(heads, (4,))
        write_npy(batch, (2, 4))
        write_npy(short, (3,))
        write_npy(halves, (4,), "F16")
        for words, expected in ((["--softcap", "5"], "_softcap5"), (["--alibi", heads], "_alibi"), (["--sink", heads], "_sink"),
                                (["--softcap", "0.5", "--alibi", batch, "--sink", heads], "_softcap0.5_alibibatch_sink")):  # fmt: skip
            with self.subTest(words=words):
                self.assertIn(expected + '"', self.expect(DONE, *flags, *words, "--check", "--json", "-", "--quiet").stdout)
        self.expect_error(BAD_USAGE, ["softcap is 0", "1e-06"], *flags, "--softcap", "0")
        self.expect_error(BAD_USAGE, ["sink", "[3]", "[heads] = [4]"], *flags, "--sink", short)
        self.expect_error(BAD_USAGE, ["alibi", "[3]", "[batch, heads] = [2, 4]"], *flags, "--alibi", short)
        self.expect_error(BAD_USAGE, ["sink", "fp16", "must be fp32"], *flags, "--sink", halves)

    def test_slopes_and_sinks_that_are_no_numbers_to_compute_with(self):
        run = ["run", *write_qkv(self.folder, shape=(1, 2, 8, 16)), "--check"]
        for role, values, words in (("alibi", (1, math.nan), ["element 1 is nan", "slopes are finite"]), ("alibi", (math.inf, 1), ["element 0 is inf", "slopes are finite"]),
                                    ("alibi", (1, -2e38), ["element 1 is -2e+38", "overflows"]), ("sink", (1, math.inf), ["element 1 is inf", "sinks are finite"]),
                                    ("sink", (math.nan, 1), ["element 0 is nan", "sinks are finite"])):  # fmt: skip
            with open(self.path("bad.npy"), "wb") as file:
                header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }".ljust(117) + b"\n"
                file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + struct.pack("<2f", *values))
            for device in ("cpu", "emulator"):  # the second one asks for a compiler only after this
                with self.subTest(role=role, values=values, device=device):
                    self.expect_error(BAD_USAGE, ["bad.npy", *words], *run, "--device", device, "--" + role, "bad.npy")
            self.assertEqual(self.files(), ["bad.npy", "k.npy", "q.npy", "v.npy"])
        with open(self.path("none.npy"), "wb") as file:
            file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + struct.pack("<2f", -math.inf, 1))
        self.expect(DONE, *run, "--device", "cpu", "--sink", "none.npy")

    def outputs(self, *words):
        """The output of a call that fp64 agrees with."""
        self.expect(DONE, *words, "--check", "--out", self.path("o.npy"), "--quiet")
        with open(self.path("o.npy"), "rb") as file:
            return file.read()

    def test_functions_of_scores_and_masks(self):
        flags = ["run", "--device", "cpu", *write_qkv(self.folder, shape=(2, 4, 20, 16), kv_shape=(2, 2, 20, 16))]
        self.assertEqual(self.outputs(*flags, "--mask", "j <= i"), self.outputs(*flags, "--causal"))
        self.assertNotEqual(self.outputs(*flags, "--score", "2 * tanh(s / 2)"), self.outputs(*flags))
        self.assertEqual(self.outputs(*flags, "--score", "tanh(s / 2) * 2"), self.outputs(*flags, "--softcap", "2"))
        for extension in ("npy", "safetensors"):
            slope, doc, wide, shown = (self.path(name + "." + extension) for name in ("slope", "doc", "wide", "shown"))
            write_elements(slope, (4,), "f", [0.5, 0.25, 0.125, 0.0625])
            write_elements(doc, (20,), "i", [i // 7 for i in range(20)])
            write_elements(wide, (2, 33), "q", [i // 7 for i in range(33)] * 2)
            write_elements(shown, (20, 20), "?", [j // 7 == i // 7 for i in range(20) for j in range(20)])
            with self.subTest(extension=extension):
                score = ["--score", "s + slope[h] * (j - i)"]
                by_hand = [*score[:1], "s + where(h == 0, 0.5, where(h == 1, 0.25, where(h == 2, 0.125, 0.0625))) * (j - i)"]
                self.assertEqual(self.outputs(*flags, *score, "--tensors", "slope=" + slope), self.outputs(*flags, *by_hand))
                documents = self.outputs(*flags, "--mask", "i // 7 == j // 7")
                self.assertEqual(self.outputs(*flags, "--mask", "doc[i] == doc[j]", "--tensors", "doc=" + doc), documents)
                self.assertEqual(self.outputs(*flags, "--mask", "wide[b, i] == wide[b, j]", "--tensors", "wide=" + wide), documents)
                self.assertEqual(self.outputs(*flags, "--mask", "shown[i, j]", "--tensors", "shown=" + shown), documents)
                both = self.expect(DONE, *flags, *score, "--mask", "shown[i, j]", "--tensors", "shown=%s,slope=%s" % (shown, slope), "--check", "--json", "-", "--quiet")
                self.assertIn("_score", both.stdout)
                self.assertIn("_mask", both.stdout)

    def test_a_function_without_a_value_is_said(self):
        flags = ["run", "--device", "cpu", *write_qkv(self.folder, shape=(1, 2, 20, 16)), "--out", self.path("o.npy"), "--check"]
        self.assertIn("by the definition 40 of the rows are not finite", self.expect(DONE, *flags, "--score", "s / (s - s)").stdout)
        self.assertNotIn("by the definition", self.expect(DONE, *flags).stdout)

    def test_functions_that_do_not_fit(self):
        flags = ["run", "--device", "cpu", *write_qkv(self.folder, shape=(1, 2, 20, 16)), "--out", self.path("o.npy")]
        short, large, deep = (self.path(name + ".npy") for name in ("short", "large", "deep"))
        write_elements(short, (7,), "f", [0.0] * 7)
        write_elements(large, (20,), "q", [2**31] * 20)
        write_elements(deep, (1, 1, 1, 1, 1), "f", [0.0])
        for words, message in (
            (["--score", "s + sin(i)"], ["column 5 of the score", "'sin' is no function"]),
            (["--mask", "s < 0"], ["column 1 of the mask"]),
            (["--mask", "i + j"], ["mask", "condition"]),
            (["--mask", "doc[i] == doc[j]"], ["doc"]),
            (["--score", ""], ["--score"]),
            (["--score", "s + x[j]", "--tensors", "x=" + short], ["'x'", "short.npy", "[7]", "[20]", "give a larger one"]),
            (["--score", "s + x[h, j]", "--tensors", "x=" + short], ["x", "1"]),
            (["--score", "s + x[j]", "--tensors", "x=" + large], ["large.npy", "element 0 is 2147483648", "32 bits"]),
            (["--score", "s + x[j]", "--tensors", "x=" + deep], ["[1, 1, 1, 1, 1]", "one to 4 axes"]),
            (["--score", "s + x[j]", "--tensors", "x"], ["NAME=FILE"]),
            (["--score", "s + x[j]", "--tensors", "x=%s,x=%s" % (short, short)], ["'x' twice"]),
            (["--score", "s * 2", "--tensors", "x=" + short], ["x"]),
            (["--tensors", "x=" + short], ["without --score and --mask"]),
            (["--score", "s + x[j]", "--tensors", "x=absent.npy"], ["absent.npy"]),
            (["--score", "s + x[j]", "--tensors", "x=" + self.path("o.npy")], ["--out", "--tensors"]),
        ):  # fmt: skip
            with self.subTest(words=words):
                self.expect_error(BAD_USAGE, message, *flags, *words)
        write_npy(short, (20,), "F16")
        self.expect_error(BAD_USAGE, ["short.npy", "'<f2'", "'<i4' (int32)"], *flags, "--score", "s + x[j]", "--tensors", "x=" + short)
        self.assertNotIn("o.npy", self.files())

    def test_windows(self):
        flags = ["run", "--device", "cpu", *write_qkv(self.folder, shape=(1, 2, 20, 16), kv_shape=(1, 1, 33, 16))]
        for words, expected in ((["--window", "4,2"], "_wl4_wr2"), (["--window=-1,3"], "_wr3"), (["--causal", "--window", "4,-1"], "_causal_wl4"),
                                (["--window", "9,0", "--window-alignment", "top_left"], "_causaltl_wl9"), (["--causal", "--window", "0,0"], "_causal_wl0")):  # fmt: skip
            with self.subTest(words=words):
                result = self.expect(DONE, *flags, *words, "--check", "--json", "-", "--quiet")
                self.assertIn(expected + '"', result.stdout)
        for words in (["--window", "4"], ["--window", "4,5,6"], ["--window", "-2,0"], ["--window=x,0"], ["--window", ""]):
            self.expect_error(BAD_USAGE, ["--window"], *flags, *words)
        self.expect_error(BAD_USAGE, ["causal is given and window_right is 3"], *flags, "--causal", "--window", "4,3")
        self.expect_error(BAD_USAGE, ["bottom_right or top_left"], *flags, "--window", "4,3", "--window-alignment", "middle")

    def test_mismatched_shapes_and_dtypes_name_the_files(self):
        q, k, v = (self.path(name + ".npy") for name in "qkv")
        flags = ["--device", "cpu", "--q", q, "--k", k, "--v", v, "--out", self.path("o.npy")]
        cases = {
            "head_dim": ((1, 2, 8, 64), (1, 2, 8, 32), (1, 2, 8, 32)),
            "seqlen": ((1, 2, 8, 64), (1, 2, 9, 64), (1, 2, 8, 64)),
            "batch": ((2, 2, 8, 64), (1, 2, 8, 64), (1, 2, 8, 64)),
            "heads": ((1, 3, 8, 64), (1, 2, 8, 64), (1, 2, 8, 64)),
            "dimensions": ((8, 64), (8, 64), (8, 64)),
        }
        for word, shapes in cases.items():
            with self.subTest(word=word):
                for path, shape in zip((q, k, v), shapes):
                    write_npy(path, shape)
                self.expect_error(BAD_USAGE, ["k.npy" if word == "seqlen" else "q.npy", word], "run", *flags)
        for path, dtype in ((q, "F32"), (k, "F16"), (v, "F32")):
            write_npy(path, (1, 2, 8, 64), dtype)
        self.expect_error(BAD_USAGE, ["q.npy", "k.npy", "fp32", "fp16"], "run", *flags)
        self.assertEqual(self.files(), ["k.npy", "q.npy", "v.npy"])

    def test_head_dim_no_family_supports(self):
        flags = write_qkv(self.folder, shape=(1, 1, 4, 1000))
        self.expect_error(BAD_USAGE, ["1000", "cpu_fwd"], "run", "--device", "cpu", *flags, "--out", self.path("o.npy"))
        self.assertNotIn("o.npy", self.files())

    def test_damaged_files(self):
        flags = ["run", "--device", "cpu", *write_qkv(self.folder), "--out", self.path("o.npy")]
        q = self.path("q.npy")
        with open(q, "rb") as file:
            whole = file.read()
        for name, damaged in {
            "truncated data": whole[:-5],
            "truncated header": whole[:40],
            "empty": b"",
            "not npy": b"hello, this is no tensor",
            "more data than the header says": whole + b"\0" * 8,
            "absurd shape": whole.replace(b"(1, 2, 33, 64,)", b"(9,9,999,9999,)"),
            "fortran order": whole.replace(b"False", b"True "),
            "unsupported dtype": whole.replace(b"<f4", b"<i4"),
        }.items():
            with self.subTest(name=name):
                with open(q, "wb") as file:
                    file.write(damaged)
                self.expect_error(BAD_USAGE, ["q.npy"], *flags)
        os.remove(q)
        self.expect_error(BAD_USAGE, ["q.npy"], *flags)
        self.assertNotIn("o.npy", self.files())

    def test_damaged_safetensors(self):
        flags = ["run", "--device", "cpu", *write_qkv(self.folder, "safetensors"), "--out", self.path("o.safetensors")]
        q = self.path("q.safetensors")
        with open(q, "rb") as file:
            whole = file.read()
        header_size = struct.unpack("<Q", whole[:8])[0]
        for name, damaged in {
            "truncated data": whole[:-5],
            "truncated header": whole[:20],
            "shorter than its length field": whole[:5],
            "header length absurd": struct.pack("<Q", 2**62) + whole[8:],
            "header not JSON": whole[:8] + b"{" * header_size + whole[8 + header_size:],
            "offsets beyond the end": whole.replace(b"[0, ", b"[9, ", 1),
            "unknown dtype": whole.replace(b'"F32"', b'"F99"'),
        }.items():
            with self.subTest(name=name):
                with open(q, "wb") as file:
                    file.write(damaged)
                self.expect_error(BAD_USAGE, ["q.safetensors"], *flags)
        write_safetensors(q, (1, 2, 33, 64))
        self.expect_error(BAD_USAGE, ["q.safetensors", "nobody"], *[f if f != q else q + ":nobody" for f in flags])
        self.assertNotIn("o.safetensors", self.files())

    def test_outputs_that_cannot_be_written(self):
        flags = ["run", "--device", "cpu", *write_qkv(self.folder), "--out"]
        self.expect_error(BAD_USAGE, ["o.txt", ".npy"], *flags, self.path("o.txt"))
        self.expect_error(NO_ENVIRONMENT, ["absent"], *flags, self.path("absent", "o.npy"))
        self.expect_error(NO_ENVIRONMENT, ["nowhere"], *flags, self.path("o.npy"), "--json", "/nowhere/r.json")
        bf16 = ["run", "--device", "cpu", *write_qkv(self.folder, "safetensors", "BF16"), "--out", self.path("o.npy")]
        self.expect_error(BAD_USAGE, ["bf", ".safetensors"], *bf16)
        self.assertNotIn("o.npy", self.files())

    def test_a_write_that_fails_half_way_leaves_the_good_file(self):
        # A file-size limit makes write() fail in the middle, as a full disk does, with no need for root.
        flags = write_qkv(self.folder)
        out = self.path("o.npy")
        with open(out, "wb") as file:
            file.write(b"the good one")

        def small_files_only():
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

        before = self.files()
        self.expect_error(NO_ENVIRONMENT, ["o.npy"], "run", "--device", "cpu", *flags, "--out", out, preexec_fn=small_files_only)
        self.assertEqual(self.files(), before)
        with open(out, "rb") as file:
            self.assertEqual(file.read(), b"the good one")

    def test_a_full_disk(self):
        mount = self.path("full")
        os.mkdir(mount)
        flags = write_qkv(self.folder)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", mount], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        if mounted.returncode != 0:
            self.skipTest("mounting a small file system is not allowed here; a write that fails half way is tested above")
        self.addCleanup(subprocess.run, ["umount", "-l", mount], check=False)
        self.expect_error(NO_ENVIRONMENT, ["o.npy", "space"], "run", "--device", "cpu", *flags, "--out", os.path.join(mount, "o.npy"))
        self.assertEqual(os.listdir(mount), [])
        self.expect_error(NO_ENVIRONMENT, [mount], "tune", "--device", "cpu", "--problem", "b1_h1_s32_d64_fp32", "--budget", "2", "--store", os.path.join(mount, "t.db"))

    def test_a_full_standard_output(self):
        flags = write_qkv(self.folder)
        with open("/dev/full", "w", encoding="ascii") as full:
            result = subprocess.run([BINARY, "run", "--device", "cpu", *flags, "--json", "-"], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
        self.assertEqual(result.returncode, NO_ENVIRONMENT)
        self.assertIn("standard output", result.stderr)


if __name__ == "__main__":
    unittest.main()
