"""What CMake is told and what it says: the presets, and the message where a part is missing."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))


class ConfigureTest(unittest.TestCase):
    def test_without_plotly_it_names_the_script_that_fetches_it(self):
        with tempfile.TemporaryDirectory() as folder:
            command = ["cmake", "--preset", "release-unity", "-B", folder, "-DFLASHCORE_PLOTLY=/absent/plotly.min.js"]
            done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.assertNotEqual(done.returncode, 0)
            message = " ".join(done.stdout.split())
            self.assertIn("plotly.min.js was not found", message)
            self.assertIn("Run scripts/install-packages", message)
            cache = (Path(folder) / "CMakeCache.txt").read_text()
            self.assertRegex(cache, r"(?m)^CMAKE_UNITY_BUILD:\w+=ON$")
            self.assertRegex(cache, r"(?m)^CMAKE_BUILD_TYPE:\w+=Release$")

    def test_a_new_folder_is_a_unity_build_and_an_old_one_stays_what_it_is(self):
        presets = {preset["name"] for preset in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]}
        with tempfile.TemporaryDirectory() as folder:
            for preset in ("release", "debug"):
                self.assertIn(f"{preset}-unity", presets)
                self.assertEqual(self.preset_for(preset, folder), f"{preset}-unity")
            (Path(folder) / "CMakeCache.txt").touch()
            self.assertEqual(self.preset_for("release", folder), "release")

    def preset_for(self, preset, folder):
        bash = shutil.which("bash")
        done = subprocess.run([bash, "-c", f'. scripts/common.sh; preset_for {preset} "$1"', "bash", folder], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        return done.stdout.strip()


if __name__ == "__main__":
    unittest.main()
