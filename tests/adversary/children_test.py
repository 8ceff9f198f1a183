"""Compilers that flood, hang, close their streams or leave somebody behind: the program keeps its deadlines and ends them."""

import os
import shutil
import signal
import time
import unittest

from cli_attack import PATIENCE, AttackTest, wait_for
from support import FAILED, NO_ENVIRONMENT

ONE = ["check", "--device", "emulator", "--problem", "b1_h1_s16_d64_fp16", "--family", "ref_fwd", "--patterns", "normal"]


class ChildrenTest(AttackTest):
    def test_a_flood_is_cut_and_ends_the_compiler_not_us(self):
        for name, bad in (("stdout without a newline", "exec cat /dev/zero"), ("stderr", "exec yes mistake >&2")):
            with self.subTest(name):
                self.compiler(bad)
                result = self.expect(FAILED, *ONE, timeout=PATIENCE)
                self.assertIn("wrote more than", result.stdout)
                self.assertLess(len(result.stdout), 100_000)
                self.assert_nobody_is_left(self.pids())

    def test_a_version_without_end(self):
        self.compiler("exit 1", version="exec yes")
        self.expect_error(NO_ENVIRONMENT, ["wrote more than", "FLASHCORE_CXX"], *ONE, timeout=PATIENCE)

    def test_whoever_a_compiler_leaves_behind_is_ended(self):
        # It holds the compiler's output open, in a session of its own.
        self.compiler("setsid sh -c 'echo $$ >> \"%s\"; exec sleep 1000' &\n while [ ! -s \"%s\" ]; do sleep 0.02; done; exit 1"
                      % (self.path("left"), self.path("left")))  # fmt: skip
        start = time.monotonic()
        self.expect(FAILED, *ONE, timeout=PATIENCE)
        self.assertLess(time.monotonic() - start, PATIENCE)
        self.assert_nobody_is_left(self.pids("left"))

    def test_a_hanging_compiler_does_not_outlive_us_however_we_end(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
            with self.subTest(signal.Signals(number).name):
                shutil.rmtree(self.path("state"), ignore_errors=True)
                self.compiler("trap '' TERM INT HUP\nsleep 1000 &\necho $! >> \"%s\"\nwait; wait" % self.path("state", "pids"))
                process = self.start_flashcore(*ONE)
                wait_for("the compiler and its child", lambda: len(self.pids()) == 2)
                self.assertNotEqual(self.stop(process, number), 0)
                self.assertLess(self.took, 30)
                self.assert_nobody_is_left(self.pids())

    def test_a_compiler_that_closes_its_streams_and_lives_is_interrupted_too(self):
        self.compiler("exec sleep 1000 >&- 2>&- <&-")
        process = self.start_flashcore(*ONE)
        wait_for("the compiler", self.pids)
        self.assertNotEqual(self.stop(process), 0)
        self.assert_nobody_is_left(self.pids())


if __name__ == "__main__":
    if shutil.which("c++") is None or not os.path.isdir("/proc/self"):
        print("skipped: needs a C++ compiler and /proc")
        raise SystemExit(77)
    unittest.main()
