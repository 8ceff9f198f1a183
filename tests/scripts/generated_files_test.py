#!/usr/bin/env python3
"""Generated files are what their generator writes."""
import pathlib
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class GeneratedFilesTest(unittest.TestCase):
    def test_wgmma_shapes(self):
        done = subprocess.run([ROOT / "scripts/generate-wgmma", "--check"])
        self.assertEqual(done.returncode, 0, "src/kernels/ptx/wgmma_shapes.cuh was edited by hand; run scripts/generate-wgmma")


if __name__ == "__main__":
    unittest.main()
