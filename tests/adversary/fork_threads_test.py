"""Processes that fork while the library is at work, and how many threads a launch on the CPU uses."""

import multiprocessing
import os
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

import numpy as np

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
import flashcore  # noqa: E402

RNG = np.random.default_rng(1)
SMALL = [RNG.standard_normal((1, 2, rows, 32)).astype(np.float32) for rows in (1, 64, 64)]
LARGE = [RNG.standard_normal((1, 4, 256, 32)).astype(np.float32) for _ in range(3)]
PATIENCE_SECONDS = 60


def in_child(queue):
    try:
        queue.put([flashcore.attention(*arrays) for arrays in (SMALL, LARGE)] + [flashcore.attention(*LARGE, causal=True)])
    except BaseException as error:
        queue.put(repr(error))


class ForkTest(unittest.TestCase):
    def test_a_forked_worker_computes_while_the_parent_launches_and_plans(self):
        want = [flashcore.attention(*arrays) for arrays in (SMALL, LARGE)] + [flashcore.attention(*LARGE, causal=True)]
        stop = threading.Event()

        def launch(arrays):
            rows = 0
            while not stop.is_set():
                flashcore.attention(*arrays)
                rows = rows % 200 + 1
                flashcore.plan(arrays[0][:, :, :1], arrays[1][:, :, :rows], arrays[2][:, :, :rows])

        threads = [threading.Thread(target=launch, args=(arrays,)) for arrays in (SMALL, LARGE)]
        for thread in threads:
            thread.start()
        try:
            fork = multiprocessing.get_context("fork")
            for _ in range(5):
                queue = fork.Queue()
                process = fork.Process(target=in_child, args=(queue,), daemon=True)
                process.start()
                try:
                    got = queue.get(timeout=PATIENCE_SECONDS)
                finally:
                    if process.is_alive():
                        process.join(5)
                    process.kill()
                self.assertIsInstance(got, list, got)
                for a, b in zip(got, want, strict=True):
                    np.testing.assert_array_equal(a, b)
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def test_a_lock_that_another_thread_holds_is_not_inherited(self):
        from flashcore import _library, _plan

        held, release = threading.Event(), threading.Event()

        def hold():
            with _library._lock, _plan._plans_lock:
                held.set()
                release.wait(PATIENCE_SECONDS)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        child = os.fork()
        if child == 0:
            threading.Timer(PATIENCE_SECONDS, os._exit, (3,)).start()
            flashcore.attention(LARGE[0][:, :, :7], *LARGE[1:])  # a new plan
            os._exit(0)
        release.set()
        thread.join()
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)


PROGRAM = """
import os, sys
sys.path.insert(0, {path!r})
import numpy as np, flashcore
def tasks(): return len(os.listdir("/proc/self/task"))
x = np.ones((1, 4, 1, 64), np.float32); y = np.ones((1, 4, 16, 64), np.float32)
flashcore.attention(x, y, y)
decoded = tasks()
before = flashcore.num_threads()
{setting}
z = np.ones((1, 8, 512, 64), np.float32)
flashcore.attention(z, z, z)
print(decoded, before, flashcore.num_threads(), tasks())
"""


CLOSE = """
import sys, ctypes, _ctypes, os, time
sys.path.insert(0, {path!r})
import numpy as np, flashcore
from flashcore import _library
z = np.ones((1, 8, 512, 64), np.float32)
flashcore.attention(z, z, z)
_ctypes.dlclose(_library.library()._handle)
time.sleep(0.2)
assert os.fork() or os._exit(0) is None
assert "libflashcore" in open("/proc/self/maps").read(), "unloaded"
"""


class CloseTest(unittest.TestCase):
    def test_a_library_that_is_closed_leaves_no_thread_without_its_code(self):
        done = subprocess.run([sys.executable, "-c", CLOSE.format(path=str(ROOT / "python"))], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)


class ThreadsTest(unittest.TestCase):
    def run_with(self, setting="", command=(), **environment):
        clean = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "FLASHCORE_THREADS")}
        # NumPy's own threads are none of this.
        clean |= {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        program = PROGRAM.format(path=str(ROOT / "python"), setting=setting)
        return subprocess.run([*command, sys.executable, "-c", program], env=clean | environment, capture_output=True, text=True)

    def counts(self, *args, **kwargs):
        done = self.run_with(*args, **kwargs)
        self.assertEqual(done.returncode, 0, done.stderr)
        decoded, before, after, tasks = map(int, done.stdout.split())
        self.assertEqual(decoded, 1, "a decode step woke another thread")
        return before, after, tasks

    def setUp(self):
        self.cores = len(os.sched_getaffinity(0))

    def test_the_default_uses_every_core(self):
        before, _, tasks = self.counts()
        self.assertGreaterEqual(before, 1)
        self.assertLessEqual(before, self.cores)
        self.assertEqual(tasks, before)

    def test_settings_are_honoured(self):
        for setting, environment in (("", {"OMP_NUM_THREADS": "1"}), ("", {"FLASHCORE_THREADS": "1"}), ("", {"OMP_NUM_THREADS": "1,2"}),
                                     ("flashcore.set_num_threads(1)", {})):  # fmt: skip
            _, after, tasks = self.counts(setting, **environment)
            self.assertEqual((after, tasks), (1, 1), (setting, environment))

    def test_the_own_setting_goes_first_and_never_beyond_the_cores(self):
        before, after, _ = self.counts("flashcore.set_num_threads(10000)", OMP_NUM_THREADS="1", FLASHCORE_THREADS="10000")
        self.assertLessEqual(before, self.cores)
        self.assertEqual(before, after)

    def test_affinity_is_honoured(self):
        one = next(iter(os.sched_getaffinity(0)))
        self.assertEqual(self.counts(command=("taskset", "-c", str(one)))[1:], (1, 1))

    def test_a_bad_setting_is_named(self):
        done = self.run_with(FLASHCORE_THREADS="many")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("FLASHCORE_THREADS is 'many'; give a number of threads from 1 on, or unset it", done.stderr)
        for bad in (-1, 1.5, True, 1 << 40, None):
            with self.assertRaisesRegex(flashcore.Error, "threads"):
                flashcore.set_num_threads(bad)

    def test_launches_of_several_threads_give_the_results_of_one(self):
        want = flashcore.attention(*LARGE)
        wrong = []

        def launch():
            for _ in range(20):
                if not np.array_equal(flashcore.attention(*LARGE), want):
                    wrong.append(1)

        threads = [threading.Thread(target=launch) for _ in range(4)]
        started = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertLess(time.monotonic() - started, PATIENCE_SECONDS)


if __name__ == "__main__":
    unittest.main()
