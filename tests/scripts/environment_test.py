"""docs/environment.md names every environment variable that the program, the library and the Python package read."""

import os
import re
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
READS = re.compile(r'(?:getenv|environ\.get|environment|variable|environ)\s*[(\[]\s*"(FLASHCORE_[A-Z_]+)"')


class EnvironmentTest(unittest.TestCase):
    def test_what_is_read_is_documented_and_the_other_way_round(self):
        files = [path for folder in ("src", "python/flashcore") for suffix in ("*.cpp", "*.h", "*.py") for path in (ROOT / folder).rglob(suffix)]
        read = {name for path in files for name in READS.findall(path.read_text(encoding="utf-8"))}
        self.assertGreaterEqual(len(read), 6)
        documented = set(re.findall(r"`(FLASHCORE_[A-Z_]+)`", (ROOT / "docs/environment.md").read_text(encoding="utf-8")))
        self.assertEqual(read, documented)


if __name__ == "__main__":
    unittest.main()
