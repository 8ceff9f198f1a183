"""The wheel as a user meets it: built by `pip wheel .`, installed into an empty environment where no compiler can be found."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
import venv
import zipfile
from pathlib import Path

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))

# No NumPy either: arrays are Python's own.
COMPUTE = """
import math, random, sys, flashcore
assert "site-packages" in flashcore.__file__, flashcore.__file__
rows, dim = 5, 8
def array():
    x = memoryview(bytearray(rows * dim * 4)).cast("f", (1, 1, rows, dim))
    for r in range(rows):
        for c in range(dim): x[0, 0, r, c] = random.gauss(0, 1)
    return x
q, k, v = array(), array(), array()
o = flashcore.attention(q, k, v, causal=True)
for r in range(rows):
    weights = [math.exp(sum(q[0, 0, r, c] * k[0, 0, j, c] for c in range(dim)) / math.sqrt(dim)) for j in range(r + 1)]
    for c in range(dim):
        want = sum(w * v[0, 0, j, c] for j, w in enumerate(weights)) / sum(weights)
        assert abs(o[0, 0, r, c] - want) < 1e-5, (r, c)
print("right", flashcore.explain("b1_h1_s5_d8_fp32", device="cpu")["family"])
"""


class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        root = Path(cls.folder.name)
        cls.python = root / "venv" / "bin" / "python"
        venv.create(root / "venv", with_pip=True)
        cls.run_ok([cls.python, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--no-index", "-q", "-w", str(root / "dist")], env=os.environ)
        (cls.wheel,) = (root / "dist").glob("*.whl")
        # No PATH: nothing but the environment's own Python can be called.
        cls.bare = {"PATH": "", "HOME": str(root), "FLASHCORE_CACHE": str(root / "cache")}
        cls.run_ok([cls.python, "-m", "pip", "install", "--no-index", "--no-cache-dir", "-q", str(cls.wheel)], env=cls.bare)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @staticmethod
    def run_ok(command, env):
        done = subprocess.run([str(word) for word in command], env=env, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def test_one_small_wheel_for_every_python(self):
        self.assertLess(self.wheel.stat().st_size, 15_000_000)
        self.assertRegex(self.wheel.name, r"^flashcore-[\d.]+-py3-none-manylinux_2_\d+_x86_64\.whl$")
        names = zipfile.ZipFile(self.wheel).namelist()
        for name in ("flashcore/__init__.py", "flashcore/torch.py", "flashcore/py.typed", "flashcore/_lib/libflashcore.so", "flashcore/_lib/flashcore"):
            self.assertIn(name, names)
        archive = zipfile.ZipFile(self.wheel)
        (licence,) = [name for name in names if name.endswith(".dist-info/LICENSE")]
        self.assertEqual(archive.read(licence), (ROOT / "LICENSE").read_bytes())
        self.assertIn(b"\nLicense-File: LICENSE\n", archive.read(licence.replace("LICENSE", "METADATA")))
        self.assertFalse([name for name in names if "__pycache__" in name or name.endswith(".pyc")])

    def test_the_tag_is_honest(self):
        """No symbol of a newer glibc than the tag names, and only libraries that every such system has."""
        minor = int(self.wheel.name.split("manylinux_2_")[1].split("_")[0])
        lib = self.python.parents[1] / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "flashcore" / "_lib"
        files = [path for path in lib.iterdir()]
        self.assertEqual(len(files), 3, files)
        own = {path.name for path in files}
        for path in files:
            text = subprocess.run(["readelf", "-W", "-d", "--version-info", str(path)], stdout=subprocess.PIPE, text=True, check=True).stdout
            self.assertLessEqual(max(int(number) for number in re.findall(r"GLIBC_2\.(\d+)", text)), minor)
            needed = {line.split("[")[1].rstrip("]") for line in text.splitlines() if "(NEEDED)" in line}
            self.assertLessEqual(needed, own | {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "libstdc++.so.6", "libgcc_s.so.1"})

    def test_it_computes_without_compiler_and_numpy(self):
        self.assertIn("right cpu_fwd", self.run_ok([self.python, "-c", COMPUTE], env=self.bare))

    def test_without_what_the_build_needs_it_says_what_to_install(self):
        command = [self.python, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--no-index", "-w", str(Path(self.folder.name) / "none")]
        done = subprocess.run([str(word) for word in command], env=self.bare, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertNotEqual(done.returncode, 0)
        for word in ("cmake, ninja, c++, readelf are missing", "scripts/install-packages", "cmake ninja-build g++ binutils"):
            self.assertIn(word, done.stdout)
        self.assertNotIn("FileNotFoundError", done.stdout)

    def test_the_program_comes_along(self):
        self.assertIn("flashcore 0.", self.run_ok([self.python.parent / "flashcore", "--version"], env=self.bare))


if __name__ == "__main__":
    unittest.main()
