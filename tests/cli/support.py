"""Shared by the tests of the command line: runs the built program as a user would, and writes small tensor files.

FLASHCORE_BINARY names the program, FLASHCORE_SOURCE_DIR the checkout.
"""

import json
import os
import random
import re
import shutil
import signal
import sqlite3
import struct
import subprocess
import tempfile
import time
import unittest

SOURCE_DIR = os.environ.get("FLASHCORE_SOURCE_DIR", os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BINARY = os.path.abspath(os.environ.get("FLASHCORE_BINARY", os.path.join(SOURCE_DIR, "build", "flashcore")))

DONE, FAILED, NOT_JUDGED, BAD_USAGE, NO_ENVIRONMENT = range(5)
# The CPU family beside itself with smaller blocks: two arms, a third of a second.
EXPERIMENT = """
name: key_blocks
hypothesis: Blocks of 32 keys are slower than blocks of 256.
mechanism: Each block ends with a pass over the accumulators.
refuted_by: Equal, or faster.
control: {name: 256 keys, candidate: "cpu_fwd:block_m=96,block_n=256"}
candidates:
  - {name: 32 keys, candidate: "cpu_fwd:block_m=96,block_n=32", predicted: [0.70, 0.95]}
problems: [b1_h1_s256_d64_fp32]
acceptance: {processes: 1, seconds: 0.2}
"""
TIMEOUT = 120  # seconds; a hang is a failure, never waited out

_FORMATS = {"F32": ("f", "<f4"), "F16": ("e", "<f2")}


def _pack(values, dtype):
    if dtype == "BF16":  # the upper half of a float32; truncation is fine for test data
        return b"".join(struct.pack("<f", v)[2:] for v in values)
    return struct.pack("<%d%s" % (len(values), _FORMATS[dtype][0]), *values)


def random_values(shape, seed):
    count = 1
    for extent in shape:
        count *= extent
    rng = random.Random(seed)
    return [rng.gauss(0, 1) for _ in range(count)]


def write_safetensors(path, shape, dtype="F32", seed=1, name="x"):
    data = _pack(random_values(shape, seed), dtype)
    header = json.dumps({name: {"dtype": dtype, "shape": list(shape), "data_offsets": [0, len(data)]}}).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + data)


def write_npy(path, shape, dtype="F32", seed=1):
    data = _pack(random_values(shape, seed), dtype)
    header = "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }" % (_FORMATS[dtype][1], ", ".join(map(str, shape)) + ",")
    header += " " * (-(len(header) + 11) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data)


def write_qkv(folder, extension="npy", dtype="F32", shape=(1, 2, 33, 64), kv_shape=None):
    """q, k and v files; returns the flags that name them."""
    flags = []
    for seed, role in enumerate("qkv", start=1):
        path = os.path.join(folder, "%s.%s" % (role, extension))
        its_shape = shape if role == "q" else (kv_shape or shape)
        if extension == "npy":
            write_npy(path, its_shape, dtype, seed)
        else:
            write_safetensors(path, its_shape, dtype, seed)
        flags += ["--" + role, path]
    return flags


def has_gpu():
    return os.path.exists("/dev/nvidia0")


def verbs():
    """As `flashcore --help` lists them, so that a new verb is tested like the others. Hidden ones serve the program itself."""
    text = subprocess.run([BINARY, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return re.findall(r"(?m)^  ([a-z][\w-]*)  ", text[text.index("Subcommands:"):])


def copy_device_sources(tree):
    """What FLASHCORE_SOURCE=tree needs: the kernels and the one header of core that they include."""
    shutil.copytree(os.path.join(SOURCE_DIR, "src", "kernels"), os.path.join(tree, "src", "kernels"))
    os.makedirs(os.path.join(tree, "src", "core"))
    shutil.copy(os.path.join(SOURCE_DIR, "src", "core", "band.h"), os.path.join(tree, "src", "core"))


def refuse_trials(store):
    """From now on the store takes no trial, as on a full disk."""
    connection = sqlite3.connect(store)
    connection.execute("CREATE TRIGGER full BEFORE INSERT ON trials BEGIN SELECT RAISE(ABORT, 'no room left'); END")
    connection.commit()
    connection.close()


def without_digests(document):
    """A copy, as older programs wrote it."""
    rows = [{key: value for key, value in row.items() if key != "digest"} for row in document["results"]]
    return {key: value for key, value in document.items() if key != "digest"} | {"results": rows}



class CliTest(unittest.TestCase):
    """Each test has a fresh folder as working directory, and no state of the user's in reach."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="flashcore-cli-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.environment = dict(os.environ, NO_COLOR="1", FLASHCORE_CACHE=os.path.join(self.folder, "cache"))

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(name)

    def run_flashcore(self, *arguments, timeout=TIMEOUT, **options):
        return subprocess.run([BINARY, *map(str, arguments)], cwd=self.folder, env=self.environment, timeout=timeout,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, **options)

    def start_flashcore(self, *arguments, **options):
        process = subprocess.Popen([BINARY, *map(str, arguments)], cwd=self.folder, env=self.environment,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
        self.addCleanup(self._end, process)
        return process

    @staticmethod
    def _end(process):
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()

    def expect(self, code, *arguments, **options):
        result = self.run_flashcore(*arguments, **options)
        self.assertEqual(result.returncode, code, "flashcore %s\nstdout: %s\nstderr: %s" % (" ".join(map(str, arguments)), result.stdout, result.stderr))
        return result

    def expect_error(self, code, words, *arguments, **options):
        """The exit code, and exactly one message on stderr, which holds all of `words` and looks like no crash."""
        result = self.expect(code, *arguments, **options)
        lines = result.stderr.splitlines()
        self.assertTrue(lines, "no message on stderr")
        self.assertTrue(lines[0].startswith("flashcore: error: "), result.stderr)
        # Further lines only as the indented rest of that message (a list of reasons).
        for line in lines[1:]:
            self.assertTrue(line.startswith("  "), "a second message on stderr: %r" % result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)
        for sign_of_crash in ("terminate called", "what():", "Traceback", "#0 ", "Segmentation", "this is a fault of flashcore"):
            self.assertNotIn(sign_of_crash, result.stderr)
        return result

    def wait_for_file(self, name, process, seconds=TIMEOUT):
        """Until the program, or what it has started, has made that file."""
        until = time.monotonic() + seconds
        while not os.path.exists(self.path(name)):
            if process.poll() is not None or time.monotonic() > until:
                self.fail("no %s: %s" % (name, process.communicate() if process.poll() is not None else "still running"))
            time.sleep(0.05)

    def files(self):
        found = []
        for root, _, names in os.walk(self.folder):
            found += [os.path.relpath(os.path.join(root, name), self.folder) for name in names]
        return sorted(found)


def interrupt(process):
    process.send_signal(signal.SIGINT)
