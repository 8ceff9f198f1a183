"""What the attacks on the program share: tests/cli's harness, a compiler that misbehaves, and waiting without sleeping blindly."""

import os
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "cli"))
from support import CliTest  # noqa: E402

PATIENCE = 90  # seconds on a loaded machine for what takes none

# The emulator's compiler for what is under attack: the first `good` calls are real, the others do `bad`.
COMPILER = """#!/bin/sh
case "$*" in *--version*) {version}; exit 0;; esac
n=0
while [ $n -lt {good} ]; do
  n=$((n+1))
  mkdir "{state}/good.$n" 2>/dev/null && exec c++ "$@"
done
echo $$ >> "{state}/pids"
{bad}
"""

SUITE = """name: two
problems:
  - {name: first, batch_size: 1, num_heads: 1, seq_len: 16, head_dim: 64, dtype: fp16}
  - {name: second, batch_size: 1, num_heads: 1, seq_len: 16, head_dim: 64, dtype: bf16}
"""


def wait_for(what, condition, patience=PATIENCE):
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError("waited %d s for %s" % (patience, what))


def runs(pid):
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as file:
            return ") Z " not in file.read()
    except OSError:
        return False


class AttackTest(CliTest):
    def compiler(self, bad, good=0, version="echo 'c++ 12, hostile'"):
        """Sets the emulator's compiler to a script; returns nothing, pids() has who ran the bad part."""
        self.write("two.yaml", SUITE)
        os.makedirs(self.path("state"), exist_ok=True)
        script = self.write("compiler", COMPILER.format(version=version, good=good, state=self.path("state"), bad=bad))
        os.chmod(script, 0o755)
        self.environment["FLASHCORE_CXX"] = script

    def pids(self, name="state/pids"):
        try:
            with open(self.path(name), encoding="ascii") as file:
                return [int(line) for line in file.read().split("\n")[:-1]]
        except OSError:
            return []

    def stop(self, process, number=signal.SIGTERM):
        """One signal must do. The exit code, and what was said."""
        process.send_signal(number)
        start = time.monotonic()
        stdout, stderr = process.communicate(timeout=PATIENCE)
        self.said = stdout + stderr
        self.took = time.monotonic() - start
        return process.returncode

    def assert_nobody_is_left(self, pids):
        self.assertTrue(pids)
        for pid in pids:
            wait_for("process %d to be gone" % pid, lambda pid=pid: not runs(pid))
