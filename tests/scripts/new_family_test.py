"""scripts/new-family: what it accepts and refuses. That what it writes compiles and is right: new_family_test.cpp."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))


class NewFamilyTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.kernels = Path(self.folder.name) / "src" / "kernels"

    def tearDown(self):
        self.folder.cleanup()

    def new_family(self, *arguments, root=True):
        command = [str(ROOT / "scripts" / "new-family"), *(["--root", self.folder.name] if root else []), *arguments]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def test_it_writes_what_a_family_needs_and_says_what_is_next(self):
        done = self.new_family("sm90_wide_fwd")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("--family sm90_wide_fwd", done.stdout)
        files = {path.name: path.read_text() for path in (self.kernels / "sm90_wide_fwd").iterdir()}
        self.assertEqual(set(files), {"config.h", "kernel.cuh", "family.cpp", "README.md"})
        for name, text in files.items():
            self.assertNotIn("@", text.replace("@example", ""), name)
            self.assertIn("sm90_wide_fwd", text, name)
        self.assertIn("class Sm90WideFwd", files["family.cpp"])
        # The headings that HACKING.md asks for, in their order.
        headings = [line[3:] for line in files["README.md"].splitlines() if line.startswith("## ")]
        self.assertEqual(headings, ["Computes", "Chosen when", "Schedule", "Parameters", "Shared-memory plan", "Measured"])

    def test_it_overwrites_nothing(self):
        self.assertEqual(self.new_family("sm90_wide_fwd").returncode, 0)
        (self.kernels / "sm90_wide_fwd" / "config.h").write_text("mine")
        done = self.new_family("sm90_wide_fwd")
        self.assertEqual(done.returncode, 3)
        self.assertIn("is there already", done.stdout)
        self.assertEqual((self.kernels / "sm90_wide_fwd" / "config.h").read_text(), "mine")

    def test_bad_names_are_refused_with_an_example(self):
        for name in ("wide", "sm90", "SM90_wide", "sm90_wide-fwd", "sm90_../evil", "/tmp/sm90_x", "sm90_", "sm91_fwd", "--help2"):
            done = self.new_family(name)
            self.assertEqual(done.returncode, 3, name)
            self.assertTrue("sm90_wide_fwd" in done.stdout or "architectures are" in done.stdout, done.stdout)
        self.assertFalse(self.kernels.exists())
        self.assertEqual(self.new_family().returncode, 3)
        self.assertEqual(self.new_family("--help", root=False).returncode, 0)


if __name__ == "__main__":
    unittest.main()
