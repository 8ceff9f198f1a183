"""scripts/remove-barriers finds the synchronisation calls of every GPU kernel, and says what goes unnoticed. The whole of it is a test
that runs on demand (ctest -C on_demand): here one call of each kind of end."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
SCRIPT = ROOT / "scripts" / "remove-barriers"
REFILL = "sm90_short_fwd:row_groups=2,key_groups=1,cluster=2,block_n=32,num_stages=1,pack_heads=1,early_launch=0 %s"


def remove_barriers(*arguments):
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=280, check=False)


class RemoveBarriersTest(unittest.TestCase):
    def test_every_call_of_every_file_is_found_and_run(self):
        listed = remove_barriers("--list")
        self.assertEqual(listed.returncode, 0, listed.stderr)
        lines = listed.stdout.splitlines()
        files = {line.split(":")[0] for line in lines}
        kernels = ROOT / "src" / "kernels"
        sources = [*kernels.glob("sm*/**/*.cuh"), *kernels.glob("tile/*.cuh")]
        # By a plainer rule than the script's: the names alone.
        orders = re.compile(r"ptx::(?:bar_\w+|mbarrier_\w+|cp_async_wait|cp_async_commit|bulk_wait\w*|bulk_commit|fence_\w+|wgmma_wait"
                            r"|wgmma_commit|wgmma_fence|cluster_wait|cluster_arrive\w*|griddepcontrol_wait)\b")
        for source in sources:
            text = re.sub(r"//[^\n]*", "", source.read_text(encoding="utf-8"))
            name = str(source.relative_to(kernels))
            found = sum(len(orders.findall(line)) for line in lines if line.startswith(name + ":"))
            self.assertEqual(found, len(orders.findall(text)), name)
        self.assertGreaterEqual(len(files), 12)
        self.assertGreaterEqual(len(lines), 150)
        for line in lines:
            self.assertNotRegex(line, r"run by 0 of", "no run reaches it")

    def test_a_removal_is_noticed_and_one_that_no_run_reaches_is_said(self):
        with tempfile.TemporaryDirectory() as folder:
            report = os.path.join(folder, "table.json")
            # More keys than the ring holds: the barrier of the refill stands between a stage's readers and its next load.
            noticed = remove_barriers("--json", report, "--run", REFILL % "b1_h4_s200_d64_fp16_causal", "bar_sync(kRefillBarrier")
            self.assertEqual(noticed.returncode, 0, noticed.stdout + noticed.stderr)
            self.assertIn("1 removals: 1 noticed, 0 benign, 0 wrong", noticed.stdout)
            with open(report, encoding="utf-8") as file:
                row = json.load(file)[0]
            self.assertIn("race", row["message"])
            # One block of keys: nothing is loaded again, and nobody can tell.
            unnoticed = remove_barriers("--run", REFILL % "b1_h1_sq64_sk20_d64_fp16", "bar_sync(kRefillBarrier")
            self.assertEqual(unnoticed.returncode, 1, unnoticed.stdout + unnoticed.stderr)
            self.assertIn("UNNOTICED  sm90_short_fwd/kernel.cuh:", unnoticed.stdout)

    def test_mistakes_are_named(self):
        for arguments, words in (((["no such call"]), "no call matches"), ((["--run", "nothing"]), "FAMILY:CONFIG PROBLEM")):
            result = remove_barriers(*arguments)
            self.assertEqual(result.returncode, 3)
            self.assertIn(words, result.stderr)


if __name__ == "__main__":
    unittest.main()
