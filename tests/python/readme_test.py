"""The README's blocks run unchanged: each that follows a line `<!-- run: KIND -->`; so do Python's of docs/. Also: docs/api is fresh."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("FLASHCORE_BUILD_DIR", ROOT / "build"))
MARKED = r"<!-- run: (\w+) -->\n```\w+\n(.*?)```"
BLOCKS = dict(re.findall(MARKED, (ROOT / "README.md").read_text(), re.DOTALL))


class ReadmeTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="flashcore-readme-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        path = f"{BUILD}:{os.environ.get('PATH', '')}"
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "FLASHCORE_CACHE": str(self.folder / "cache"), "PATH": path}

    def run_ok(self, *command):
        done = subprocess.run([str(word) for word in command], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}")
        return done.stdout

    def test_there_are_blocks_for_every_way_in(self):
        self.assertEqual(sorted(BLOCKS), ["cmake", "cpp", "python", "sh", "torch"])

    def test_python(self):
        out = self.run_ok(sys.executable, "-c", BLOCKS["python"])
        self.assertIn("(1, 8, 512, 64) default of cpu_fwd", out)

    def test_other_pages(self):
        pages = {path.name: re.findall(MARKED, path.read_text(), re.DOTALL) for path in sorted((ROOT / "docs").glob("*.md"))}
        self.assertIn("serving.md", [name for name, blocks in pages.items() if blocks])
        for name, blocks in pages.items():
            for kind, block in blocks:
                with self.subTest(page=name):
                    self.assertIn(kind, ("python", "torch"))
                    if kind == "python":  # torch_flashinfer_mla_test.py runs the other
                        self.run_ok(sys.executable, "-c", block)

    def test_cpp(self):
        (self.folder / "CMakeLists.txt").write_text(BLOCKS["cmake"])
        (self.folder / "main.cpp").write_text(BLOCKS["cpp"])
        self.run_ok("cmake", "--install", BUILD, "--prefix", self.folder / "prefix")
        self.run_ok("cmake", "-G", "Ninja", "-S", self.folder, "-B", self.folder / "b", f"-DCMAKE_PREFIX_PATH={self.folder / 'prefix'}")
        self.run_ok("cmake", "--build", self.folder / "b")
        self.assertEqual(self.run_ok(self.folder / "b" / "example"), "3\n")

    def test_laboratory(self):
        (self.folder / "block.sh").write_text("set -e\n" + BLOCKS["sh"])
        out = self.run_ok("bash", self.folder / "block.sh")
        for words in ("because   tuned table", "1 compiled", "passed", "timed"):
            self.assertIn(words, out)
        # What tune found is what dispatch takes; if nothing beat that, nothing changes.
        found = "entered into" in out
        self.assertNotEqual(found, "nothing beat what dispatch takes" in out)
        self.assertEqual(found, "to undo it: take the entry out of that file" in out)
        out = self.run_ok("flashcore", "explain", "--device", "cpu", "--problem", "b1_h4_s128_d64_fp32")
        self.assertEqual("because   your tuned table" in out, found)

    def test_the_api_reference_is_fresh(self):
        self.run_ok(sys.executable, ROOT / "scripts" / "api-reference", "--check")


if __name__ == "__main__":
    unittest.main()
