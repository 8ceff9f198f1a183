#!/usr/bin/env python3
"""Generated files are what their generator writes."""
import os
import pathlib
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class GeneratedFilesTest(unittest.TestCase):
    def test_wgmma_shapes(self):
        done = subprocess.run([ROOT / "scripts/generate-wgmma", "--check"])
        self.assertEqual(done.returncode, 0, "src/kernels/ptx/wgmma_shapes.cuh was edited by hand; run scripts/generate-wgmma")

    def test_what_runs_where(self):
        binary = os.environ.get("FLASHCORE_BINARY", ROOT / "build/flashcore")
        done = subprocess.run([ROOT / "scripts/coverage-table", "--check", "--flashcore", binary])
        self.assertEqual(done.returncode, 0, "docs/limits.md is not what explain says; run scripts/coverage-table")


if __name__ == "__main__":
    unittest.main()
