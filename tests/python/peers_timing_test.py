"""How flashcore.peers times a contestant, on a simulated GPU whose queue holds only so much work at once."""

import contextlib
import io
import os
import sys
import tempfile
import types
import unittest
from collections import deque
from pathlib import Path
from unittest import mock

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
from flashcore import peers  # noqa: E402


class JudgeTest(unittest.TestCase):
    """A timer-server that hangs, floods or ends keeps nobody waiting."""

    def ask(self, script):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "flashcore")
            program.write_text("#!/bin/sh\n" + script)
            program.chmod(0o755)
            with mock.patch.dict(os.environ, FLASHCORE_BINARY=str(program)), mock.patch.dict(peers.JUDGE_SECONDS, device=1.0, prepare=60.0):
                judge = peers.Judge("cpu")
                try:
                    return judge.ask(op="device"), judge.ask(op="prepare", text="x" * 1_000_000)
                finally:
                    judge.close(seconds=0.1)
                    judge.child.stdout.close()

    def test_an_answer_comes_back_and_a_large_question_arrives(self):
        self.assertEqual(self.ask("read -r x; echo '{\"a\": 1}'; read -r x; echo '{\"b\": 2}'"), ({"a": 1}, {"b": 2}))

    def test_hangs_floods_and_ends_are_errors(self):
        for script, words in (
            ("exec sleep 1000", "gave no answer to device in time"),
            ("exec sleep 1000 >&-", "ended while asked for device"),
            ("exit 3", "exit code 3"),
            ("read -r x; echo '{}'; exec cat /dev/zero", "without end"),
            ("read -r x; echo '{\"error\": \"no GPU\"}'", "no GPU"),
        ):
            with self.subTest(script), self.assertRaisesRegex(peers.Error, words):
                self.ask(script)


class SimulatedGpu:
    """A host clock and a GPU that works off a queue in order. Handing over to a full queue waits, as a driver's does."""

    def __init__(self, replay_us, host_us, queue=64):
        self.replay_us, self.host_us, self.queue = replay_us, host_us, queue
        self.now = self.gpu_done = 0.0
        self.pending = deque()  # when each replay ends

    def hand_over(self, gpu_us, host_us):
        self.now += host_us
        while self.pending and self.pending[0] <= self.now:
            self.pending.popleft()
        if len(self.pending) >= self.queue:
            self.now = max(self.now, self.pending.popleft())
        self.gpu_done = max(self.gpu_done, self.now) + gpu_us
        self.pending.append(self.gpu_done)

    def torch(self):
        gpu = self

        class Event:
            def __init__(self, enable_timing=False):
                self.at = None

            def record(self):
                self.at = max(gpu.gpu_done, gpu.now)

            def query(self):
                return self.at <= gpu.now

            def synchronize(self):
                gpu.now = max(gpu.now, self.at)

            def elapsed_time(self, end):
                return (end.at - self.at) / 1000.0

        class Graph:
            def replay(self):
                gpu.hand_over(gpu.replay_us, gpu.host_us)

        class Capture:
            def __init__(self, graph):
                pass

            def __enter__(self):
                return self

            def __exit__(self, *_):
                return False

        def synchronize():
            gpu.now = max(gpu.now, gpu.gpu_done)

        def sleep(cycles):
            gpu.hand_over(cycles / peers.SPIN_CYCLES_PER_US, 0.0)

        cuda = types.SimpleNamespace(Event=Event, CUDAGraph=Graph, graph=Capture, synchronize=synchronize, _sleep=sleep)
        return types.SimpleNamespace(cuda=cuda)


def contestant(gpu, sustained):
    with mock.patch.dict(sys.modules, {"torch": gpu.torch()}):
        made = peers.Contestant("simulated", lambda: None, True, sustained)
        return made, made.sample()


class PeersTimingTest(unittest.TestCase):
    def test_the_hosts_time_is_not_counted(self):
        made, us = contestant(SimulatedGpu(replay_us=500.0, host_us=80.0), sustained=False)
        self.assertAlmostEqual(us * made.launches, 500.0, delta=0.5)

    def test_sustained_needs_no_more_room_than_the_queue_has(self):
        made, us = contestant(SimulatedGpu(replay_us=500.0, host_us=20.0, queue=8), sustained=True)
        self.assertGreaterEqual(made.replays * 500.0, peers.SUSTAINED_SAMPLE_US)
        self.assertAlmostEqual(us * made.launches, 500.0, delta=0.5)

    def test_a_host_that_falls_behind_is_an_error(self):
        gpu = SimulatedGpu(replay_us=500.0, host_us=20.0)
        with mock.patch.dict(sys.modules, {"torch": gpu.torch()}):
            made = peers.Contestant("simulated", lambda: None, True, True)
            gpu.host_us = 600.0
            with self.assertRaisesRegex(peers.Error, "did not keep ahead"):
                made.sample()


class ProblemsTest(unittest.TestCase):
    def listed(self, ident):
        return peers._problems(types.SimpleNamespace(suite=None, problem=[ident]))

    def test_what_the_peers_are_not_told_is_refused(self):
        self.assertEqual(self.listed("b1_h2_s64_d64_fp16_causal"), [("b1_h2_s64_d64_fp16_causal",) * 2])
        for ident in ("b1_h2_s64_d64_fp16_causal_wl9", "b1_h2_s64_d64_fp16_wr9_tl"):
            with self.assertRaisesRegex(peers.Error, f"{ident} has a window"):
                self.listed(ident)


class PrintedTest(unittest.TestCase):
    def line(self, **fields):
        entry = {"name": "p", "time_us": {"p50": 10.0}, "tflops": 0.0123, "peers": [], "family": "cpu_fwd", "config": "", **fields}
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            peers._print(entry)
        return out.getvalue()

    def test_a_cpus_rate_is_in_gflops(self):
        self.assertIn("12.3 GFLOP/s", self.line())
        self.assertIn("123.4 TFLOP/s", self.line(tflops=123.4))

    def test_names_and_messages_do_not_act_on_a_terminal(self):
        for line in (self.line(name="p\x1b[2J\u202e\nx"), self.line(name="\x1b]0;x\x07", time_us=None, ended="error", message="m\x9b31m\nflashcore: error")):
            self.assertEqual([c for c in line[:-1] if not c.isprintable()], [], ascii(line))

    def test_overhead_says_what_its_figures_are(self):
        from flashcore import overhead

        self.assertIn("the computation of b1_h1_s8_d16_fp32 included", overhead.what_is_measured("cpu", "cpu", "b1_h1_s8_d16_fp32", 5))
        self.assertIn("the device is not waited for", overhead.what_is_measured("cuda:0", "GPU", "b1_h8_s512_d64_fp16", 5))


if __name__ == "__main__":
    unittest.main()
