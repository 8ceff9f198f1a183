"""examples/engine: requests that arrive at any time get what they get alone, pages come back, bad flags are one sentence."""

import json
import os
import subprocess
import tempfile
import unittest

ENGINE = os.environ["FLASHCORE_ENGINE"]
SMALL = ["--requests", "10", "--longest-prompt", "40", "--longest-output", "9", "--pages", "64"]
EMULATED = ["--requests", "3", "--longest-prompt", "12", "--longest-output", "3", "--rows", "8", "--max-requests", "2", "--heads", "2", "--kv-heads", "1",
            "--layers", "1", "--page-size", "4", "--pages", "16"]  # fmt: skip
DONE, FAILED, BAD_USAGE, NO_ENVIRONMENT = 0, 1, 3, 4


class EngineTest(unittest.TestCase):
    def run_engine(self, *flags, expect=DONE):
        ended = subprocess.run([ENGINE, *flags], capture_output=True, text=True, timeout=300)
        self.assertEqual(ended.returncode, expect, ended.stderr)
        return ended

    def summary(self, *flags, expect=DONE):
        return json.loads(self.run_engine(*flags, "--json", "-", "--quiet", expect=expect).stdout)

    def test_every_request_gets_what_it_gets_alone(self):
        for more in ([], ["--page-size", "1", "--pages", "512"], ["--page-size", "7"], ["--dtype", "bf16"], ["--heads", "6", "--kv-heads", "3", "--head-dim", "40"],
                     ["--rows", "8", "--max-requests", "3"], ["--arrivals", "100"], ["--layers", "3", "--seed", "9"]):  # fmt: skip
            with self.subTest(more=more):
                made = self.summary(*SMALL, *more, "--check")
                self.assertTrue(made["check"]["passed"])
                self.assertEqual(made["requests"], 10)
                self.assertEqual(made["pages"]["left"], 0)
                self.assertLessEqual(made["pages"]["peak"], made["pages"]["pool"])
                self.assertGreater(made["tokens"]["generated"], 9)

    def test_requests_wait_for_pages(self):
        """A pool for hardly more than the longest request: the same tokens, in more steps."""
        roomy, tight = self.summary(*SMALL, "--arrivals", "100"), self.summary(*SMALL, "--arrivals", "100", "--pages", "4", "--check")
        self.assertEqual(tight["tokens"], roomy["tokens"])
        self.assertGreater(tight["steps"], roomy["steps"])
        self.assertTrue(tight["check"]["passed"])

    def test_caches_of_more_than_32_bits(self):
        """2^32 elements each, of which few are touched."""
        many = ["--pages", "1048576", "--page-size", "64", "--layers", "1", "--dtype", "bf16", "--requests", "2", "--check"]
        ended = subprocess.run([ENGINE, *many], capture_output=True, text=True, timeout=300)
        self.assertIn(ended.returncode, (DONE, NO_ENVIRONMENT), ended.stderr)  # a small machine has no 8 GiB to promise

    def test_a_shared_page_is_found(self):
        made = self.summary(*SMALL, "--check", "--share-a-page", expect=FAILED)
        self.assertFalse(made["check"]["passed"])

    def test_on_the_emulator(self):
        made = self.summary(*EMULATED, "--device", "emulator", "--check")
        self.assertEqual((made["dtype"], made["check"]["passed"]), ("bf16", True))
        self.summary(*EMULATED, "--device", "emulator", "--check", "--share-a-page", expect=FAILED)

    def test_progress_goes_to_stderr(self):
        ended = self.run_engine(*SMALL)
        self.assertEqual(ended.stdout, "")
        self.assertRegex(ended.stderr, r"step \d+  done 10/10  running 0  waiting 0  pages \[\.{20}\] 0/64  \d+ tokens/s\n10 requests in \d+ steps")
        self.assertEqual(self.run_engine(*SMALL, "--quiet").stderr, "")
        with tempfile.TemporaryDirectory() as folder:
            self.run_engine(*SMALL, "--json", os.path.join(folder, "made.json"))
            with open(os.path.join(folder, "made.json"), encoding="utf-8") as file:
                self.assertEqual(json.load(file)["schema"], "flashcore.engine/1")

    def test_bad_flags(self):
        for words, flags, code in (
            ("--heads is 7 and --kv-heads 2; the second must divide the first", ["--heads", "7"], BAD_USAGE),
            ("--head-dim is 12; give a multiple of 8", ["--head-dim", "12"], BAD_USAGE),
            ("--rows is 4 and --max-requests 8; a step must have a row", ["--rows", "4"], BAD_USAGE),
            ("a request may need 8 pages and --pages is 2; give more pages", ["--pages", "2"], BAD_USAGE),
            ("--frob", ["--frob"], BAD_USAGE),
            ("--requests", ["--requests", "0"], BAD_USAGE),
            ("--dtype", ["--dtype", "fp8"], BAD_USAGE),
            ("'cpux' is not a device", ["--device", "cpux"], BAD_USAGE),
            ("--json is /no/such/folder/x, which cannot be written", [*SMALL, "--json", "/no/such/folder/x"], BAD_USAGE),
            ("--arrivals is nan; give a number", ["--arrivals", "nan"], BAD_USAGE),
            ("a page may have 2147483647", ["--page-size", "65536", "--heads", "1024", "--kv-heads", "1024"], BAD_USAGE),
            ("has more than 2^40 elements", ["--pages", "16777216", "--page-size", "4096"], BAD_USAGE),
            ("cuda:99", ["--device", "cuda:99"], NO_ENVIRONMENT),
        ):
            with self.subTest(words):
                self.assertIn(words, self.run_engine(*flags, expect=code).stderr)


if __name__ == "__main__":
    unittest.main()
