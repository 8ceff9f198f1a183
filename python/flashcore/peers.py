"""flashcore beside every other attention that imports, in one process, interleaved.

    python -m flashcore.peers --suite canonical --json results/h200/canonical.json

The launches of each implementation are captured from PyTorch into a CUDA graph. In each round every graph is replayed
once, in random order, each after the same idle gap (burst condition), so that a drifting clock affects all alike. The GPU
is kept busy until a graph is handed over, so that no host time is counted. The speed-up is the median over rounds of
their time / our time, with a 95% bootstrap interval. flashcore's candidate first passes the laboratory's gates (the
flashcore program's timer-server). The timed outputs of all are compared with fp64: a wrong one of flashcore's is an
error, a wrong one of a peer is marked. The laboratory's own timing of the candidate is taken in the same rounds. Writes
flashcore.bench/1 and, with --store, trials. --condition sustained measures a card at its power cap: every sample follows
100 ms of the same work. Problems with a window are refused: the peers are not told of it.

On the CPU (--device cpu) calls are timed by the wall clock: for trying it out.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import pathlib
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Iterator, NoReturn

from . import _program, _library
from ._library import Error

SAMPLE_US = 500.0  # a sample lasts at least this long, as in the laboratory
MAX_LAUNCHES = 200
GAP_SECONDS = 0.010
HOLD_ATTEMPTS = 8  # the hold doubles each time
SUSTAINED_WARM_UP_US, SUSTAINED_SAMPLE_US = 100_000.0, 200_000.0
SPIN_CYCLES_PER_US = 2000  # a little above the highest clock
MARGIN = 0.03
PEER_FACTOR = 4.0  # a peer may round more than flashcore's bound allows (it is judged, not gated): beyond this it is wrong
JUDGE_SECONDS = {"prepare": 900.0}  # the laboratory's gates with their fp64 reference; anything else takes 180 at most
MAX_ANSWER_BYTES = 64 << 20
MAX_SCORE_BYTES = 12e9  # of an implementation that forms all scores


class Judge:
    """`flashcore timer-server` as a child: gates before, the device's facts, the store of trials."""

    def __init__(self, device: str) -> None:
        command = [str(_program.program_path()), "timer-server", "--device", device]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self.child.stdin and self.child.stdout
        self.to, self.come = self.child.stdin.fileno(), self.child.stdout.fileno()
        os.set_blocking(self.to, False)
        self.read = bytearray()  # of an answer whose end has not come

    def ask(self, **request: Any) -> dict[str, Any]:
        """Every wait has a deadline: a kernel that hangs takes the server with it, not this process."""
        deadline = time.monotonic() + JUDGE_SECONDS.get(request["op"], 180.0)
        out = json.dumps(request).encode() + b"\n"
        while not self.read.endswith(b"\n"):  # one answer a question, so nothing follows its end
            left = deadline - time.monotonic()
            if left <= 0:
                self._give_up(f"gave no answer to {request['op']} in time and was ended")
            if len(self.read) > MAX_ANSWER_BYTES:
                self._give_up(f"answered {request['op']} without end and was ended")
            readable, writable, _ = select.select([self.come], [self.to] if out else [], [], left)
            try:
                if writable:
                    out = out[os.write(self.to, out) :]
            except OSError:
                out = b""  # it has ended: the other pipe says so
            if readable:
                chunk = os.read(self.come, 1 << 16)
                if not chunk:
                    self._give_up(f"ended while asked for {request['op']}")
                self.read += chunk
        line, self.read = self.read, bytearray()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer and "trial" not in answer:
            raise Error(answer["error"])
        return answer

    def _give_up(self, what: str) -> NoReturn:
        code = self.close(seconds=1)
        raise Error(f"flashcore timer-server {what} (exit code {code})", "internal")

    def close(self, seconds: float = 30) -> int:
        """Its stdin ends, so it does; or it is ended."""
        assert self.child.stdin
        self.child.stdin.close()
        try:
            return self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.child.kill()
            return self.child.wait()


def _fields(ident: str) -> _library.Attention:
    """Of a problem id. Refuses what the peers are not told: they would compute another problem."""
    parsed = _library.Attention()
    _library.check(_library.library().fc_problem_parse(ident.encode(), parsed))
    if parsed.given & _library.GIVEN_WINDOW:
        raise Error(f"{ident} has a window, which flashcore.peers does not tell the peers; leave the problem out, or time it with `flashcore bench`")
    return parsed


class Problem:
    """Tensors of one problem, [batch, heads, seqlen, head_dim], the same for every contestant."""

    def __init__(self, ident: str, name: str, device: str) -> None:
        import torch

        self.id, self.name = ident, name
        parsed = _fields(ident)
        self.batch, self.heads, self.heads_kv = parsed.batch, parsed.heads_q, parsed.heads_kv
        self.rows, self.keys, self.dim, self.dim_v = parsed.seqlen_q, parsed.seqlen_kv, parsed.head_dim, parsed.head_dim_v
        self.causal = {0: False, 1: "bottom_right", 2: "top_left"}[parsed.causal]
        self.scale = parsed.scale or None
        dtype = (torch.float32, torch.float16, torch.bfloat16)[parsed.dtype]
        torch.manual_seed(1)
        make = lambda heads, rows, dim: torch.randn(self.batch, heads, rows, dim, device=device, dtype=dtype)  # noqa: E731
        self.q, self.k, self.v = make(self.heads, self.rows, self.dim), make(self.heads_kv, self.keys, self.dim), make(self.heads_kv, self.keys, self.dim_v)

    @property
    def grouped(self) -> bool:
        return self.heads != self.heads_kv

    def same_masks(self) -> bool:
        """Both ways to align a causal mask agree."""
        return not self.causal or self.rows == self.keys

    def rel_error(self, out: Any) -> float:
        """Of [batch, heads, rows, dim_v] against fp64, on two heads of different batch entries."""
        import torch

        error = norm = 0.0
        offset = self.keys - self.rows if self.causal == "bottom_right" else 0
        for index in range(2):
            b, h = index % self.batch, (index * 5) % self.heads
            group = self.heads // self.heads_kv
            q, k, v = self.q[b, h].double(), self.k[b, h // group].double(), self.v[b, h // group].double()
            for begin in range(0, self.rows, 2048):
                scores = q[begin : begin + 2048] @ k.T * (self.scale or 1 / math.sqrt(self.dim))
                if self.causal:
                    i = torch.arange(begin, begin + scores.shape[0], device=q.device)[:, None] + offset
                    scores.masked_fill_(torch.arange(self.keys, device=q.device)[None, :] > i, -math.inf)
                reference = torch.softmax(scores, dim=-1) @ v
                error += float((out[b, h, begin : begin + 2048].double() - reference).square().sum())
                norm += float(reference.square().sum())
        return math.sqrt(error / norm)


# --- contestants: name -> (version, a call that computes the problem and returns [batch, heads, rows, dim_v]) ---------


class Refused(RuntimeError):
    """A peer does not compute such a problem; the message says why."""


def _flashcore(p: Problem, candidate: str | None) -> Callable[[], Any]:
    import torch

    import flashcore

    out = torch.empty(p.batch, p.heads, p.rows, p.dim_v, dtype=p.q.dtype, device=p.q.device)
    lse = torch.empty(p.batch, p.heads, p.rows, dtype=torch.float32, device=p.q.device)
    plan = flashcore.plan(p.q, p.k, p.v, out=out, causal=p.causal, scale=p.scale, candidate=candidate)
    addresses = [x.data_ptr() for x in (p.q, p.k, p.v, out, lse)]
    on_gpu = p.q.device.type == "cuda"

    def call(keep: Any = (p, out, lse)) -> Any:  # addresses do not keep memory alive
        plan.launch(*addresses, torch.cuda.current_stream().cuda_stream if on_gpu else 0)
        return out

    return call


def _pytorch(backend: str) -> Callable[[Problem], Callable[[], Any]]:
    def make(p: Problem) -> Callable[[], Any]:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        if not p.same_masks():
            raise Refused("PyTorch's is_causal aligns the mask top-left, this problem's is bottom-right")
        if backend == "math" and p.batch * p.heads * p.rows * p.keys * 4 > MAX_SCORE_BYTES:
            raise Refused(f"it forms all scores, {p.batch * p.heads * p.rows * p.keys * 4 / 1e9:.0f} GB of them")
        which = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}[backend]
        k, v = p.k, p.v
        if backend == "efficient" and p.grouped:  # it knows no groups; repeating is part of its price, but not of its kernel
            k, v = (x.repeat_interleave(p.heads // p.heads_kv, dim=1) for x in (k, v))

        def call() -> Any:
            with sdpa_kernel(which):
                return torch.nn.functional.scaled_dot_product_attention(p.q, k, v, is_causal=bool(p.causal), scale=p.scale, enable_gqa=k.shape[1] != p.heads)

        return call

    return make


def _flex(p: Problem) -> Callable[[], Any]:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()  # it counts every problem as a recompilation of one function, and allows eight
    offset = p.keys - p.rows if p.causal == "bottom_right" else 0
    mask = create_block_mask(lambda b, h, i, j: j <= i + offset, None, None, p.rows, p.keys, device=p.q.device) if p.causal else None
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    return lambda: compiled(p.q, p.k, p.v, block_mask=mask, scale=p.scale, enable_gqa=p.grouped)


def _rows_first(p: Problem) -> list[Any]:
    """[batch, seqlen, heads, head_dim], contiguous: what FlashAttention's packages take."""
    return [x.transpose(1, 2).contiguous() for x in (p.q, p.k, p.v)]


def _flash_attn(p: Problem) -> Callable[[], Any]:
    from flash_attn import flash_attn_func

    if p.causal == "top_left" and not p.same_masks():
        raise Refused("its causal mask is bottom-right")
    q, k, v = _rows_first(p)
    return lambda: flash_attn_func(q, k, v, causal=bool(p.causal), softmax_scale=p.scale).transpose(1, 2)


def _flash_attn_3(p: Problem) -> Callable[[], Any]:
    from flash_attn_interface import flash_attn_func

    if p.causal == "top_left" and not p.same_masks():
        raise Refused("its causal mask is bottom-right")
    q, k, v = _rows_first(p)

    def call() -> Any:
        out = flash_attn_func(q, k, v, causal=bool(p.causal), softmax_scale=p.scale)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return call


def _flashinfer(p: Problem) -> Callable[[], Any]:
    import flashinfer
    import torch

    if p.causal == "top_left" and not p.same_masks():
        raise Refused("its causal mask is bottom-right")
    q, k, v = (x.flatten(0, 1) for x in _rows_first(p))
    ends = lambda rows: torch.arange(0, (p.batch + 1) * rows, rows, dtype=torch.int32, device=q.device)  # noqa: E731
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(torch.empty(256 << 20, dtype=torch.uint8, device=q.device))
    wrapper.plan(ends(p.rows), ends(p.keys), p.heads, p.heads_kv, p.dim, head_dim_vo=p.dim_v, causal=bool(p.causal), sm_scale=p.scale, q_data_type=q.dtype)
    return lambda: wrapper.run(q, k, v).view(p.batch, p.rows, p.heads, p.dim_v).transpose(1, 2)


def _xformers(p: Problem) -> Callable[[], Any]:
    import xformers.ops as ops

    if not p.same_masks():
        raise Refused("its lower-triangular mask aligns top-left")
    q, k, v = _rows_first(p)
    group = p.heads // p.heads_kv
    if p.grouped:
        q = q.unflatten(2, (p.heads_kv, group))
        k, v = (x[:, :, :, None].expand(-1, -1, -1, group, -1) for x in (k, v))
    bias = ops.LowerTriangularMask() if p.causal else None

    def call() -> Any:
        out = ops.memory_efficient_attention(q, k, v, attn_bias=bias, scale=p.scale)
        return (out.flatten(2, 3) if p.grouped else out).transpose(1, 2)

    return call


PEERS: dict[str, Callable[[Problem], Callable[[], Any]]] = {
    **{name: _pytorch(name) for name in ("cudnn", "flash", "efficient", "math")},
    "flex": _flex, "flash_attn": _flash_attn, "flash_attn_3": _flash_attn_3, "flashinfer": _flashinfer, "xformers": _xformers,
}  # fmt: skip
_PACKAGES = {"flash_attn": "flash_attn", "flash_attn_3": "flash_attn_interface", "flashinfer": "flashinfer", "xformers": "xformers"}


def available(names: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """name -> version of those that import, and name -> why not of the others."""
    import importlib

    import torch

    versions, absent = {}, {}
    for name in names:
        package = _PACKAGES.get(name)
        if package is None:
            cudnn = f", cuDNN {torch.backends.cudnn.version()}" if name == "cudnn" else ""
            triton = f", Triton {importlib.import_module('triton').__version__}" if name == "flex" and torch.cuda.is_available() else ""
            versions[name] = f"PyTorch {torch.__version__}{cudnn}{triton}"
            continue
        try:
            module = importlib.import_module(package)
            versions[name] = f"{package} {getattr(module, '__version__', 'of unknown version')}"
        except Exception as error:  # noqa: BLE001: a broken installation raises anything
            absent[name] = f"{package} does not import: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return versions, absent


# --- timing ----------------------------------------------------------------------------------------------------------


class Contestant:
    """One implementation on one problem: a captured graph of many launches (on the CPU: calls)."""

    def __init__(self, name: str, call: Callable[[], Any], on_gpu: bool, sustained: bool = False) -> None:
        self.name, self.call, self.on_gpu, self.launches = name, call, on_gpu, 1
        self.hold_us, self.warm_ups, self.replays = 50.0, 0, 1
        self.times: list[float] = []
        for _ in range(3):
            self.out = call()
        if on_gpu:
            self._capture()
        once = min(self.sample() for _ in range(3))
        self.launches = max(1, min(MAX_LAUNCHES, math.ceil(SAMPLE_US / max(once, 0.5))))
        if on_gpu:
            self._capture()
        replay_us = self.sample() * self.launches
        if sustained:
            self.warm_ups, self.replays = (math.ceil(us / replay_us) for us in (SUSTAINED_WARM_UP_US, SUSTAINED_SAMPLE_US))

    def _capture(self) -> None:
        import torch

        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for _ in range(self.launches):
                self.out = self.call()
        self.graph.replay()
        torch.cuda.synchronize()

    def sample(self) -> float:
        """Microseconds of one launch."""
        if not self.on_gpu:
            start = time.perf_counter()
            for _ in range(self.launches):
                self.out = self.call()
            return (time.perf_counter() - start) * 1e6 / self.launches
        return self._sustained() if self.warm_ups else self._held()

    def _held(self) -> float:
        import torch

        for _ in range(HOLD_ATTEMPTS):
            start_event, end_event = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            # The GPU spins until the graph is handed over. Otherwise the first event passes at once, and the host's time
            # for the replay, up to 10% of a sample, is counted as the contestant's.
            torch.cuda._sleep(int(self.hold_us * SPIN_CYCLES_PER_US))
            start_event.record()
            self.graph.replay()
            end_event.record()
            hidden = not start_event.query()
            end_event.synchronize()
            if hidden:
                return float(start_event.elapsed_time(end_event)) * 1000.0 / self.launches
            self.hold_us *= 2
        raise Error(f"{self.name}: the host took more than {self.hold_us / 2:.0f} us to hand over a graph of {self.launches} launches; use an idle machine", "environment")

    def _sustained(self) -> float:
        """The GPU's queue does not hold so many replays: the host stays ahead of it instead, one replay at least."""
        import torch

        for _ in range(HOLD_ATTEMPTS):
            start_event, end_event = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            for _ in range(self.warm_ups):
                self.graph.replay()
            start_event.record()
            before, ahead = start_event, True
            for _ in range(self.replays):
                self.graph.replay()
                ahead = ahead and not before.query()  # the GPU was still at what came before this replay
                before = torch.cuda.Event()
                before.record()
            end_event.record()
            end_event.synchronize()
            if ahead:
                return float(start_event.elapsed_time(end_event)) * 1000.0 / (self.launches * self.replays)
        raise Error(f"{self.name}: the host did not keep ahead of the GPU with graphs of {self.launches} launches; use an idle machine", "environment")


class Laboratory:
    """The same candidate as the laboratory times it, in a process of its own: the two must agree. Knows the clock."""

    def __init__(self, judge: Judge, handle: int) -> None:
        self.judge, self.handle = judge, handle
        self.times: list[float] = []
        self.clocks: list[float] = []

    def sample(self) -> float:
        taken = self.judge.ask(op="sample", handle=self.handle)
        self.clocks.append(taken["clock_mhz"])
        return float(taken["time_us"])

    def result(self) -> dict[str, Any]:
        times, clock = quantiles(self.times), statistics.median(self.clocks)
        return {"time_us": times, "clock_mhz": round(clock, 1), "kcycles": round(times["p50"] * clock / 1000, 2)}


def quantiles(times: list[float]) -> dict[str, float]:
    tenths = statistics.quantiles(times, n=10, method="inclusive")
    return {"p10": round(tenths[0], 4), "p50": round(statistics.median(times), 4), "p90": round(tenths[-1], 4)}


def speedup(ours: list[float], theirs: list[float]) -> tuple[float, list[float]]:
    """Median of their time / our time over rounds, and its 95% bootstrap interval."""
    rng = random.Random(1)
    ratios = [math.log(b / a) for a, b in zip(ours, theirs)]
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(1000))
    return math.exp(statistics.median(ratios)), [round(math.exp(medians[25]), 4), round(math.exp(medians[974]), 4)]


def verdict(interval: list[float]) -> str:
    low, high = interval
    if low > 1 + MARGIN:
        return "FASTER"
    if high < 1 - MARGIN:
        return "SLOWER"
    return "SAME" if low > 1 - MARGIN and high < 1 + MARGIN else "INCONCLUSIVE"


def _short(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:300]


class Session:
    """One run over a suite."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        self.options, self.torch = options, torch
        self.on_gpu = options.device.startswith("cuda")
        self.sustained = options.condition == "sustained"
        self.started = time.monotonic()
        self.judge = Judge(options.device)
        self.device = self.judge.ask(op="device")
        self.versions, self.absent = available(options.peers)
        self.seconds: dict[str, float] = {}  # spent on setting each peer up
        self.run = "peers-" + datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%d-%H%M%S")

    def left(self) -> float:
        return float(self.options.budget) - (time.monotonic() - self.started)

    def _peers(self, p: Problem, problems_left: int) -> Iterator[tuple[str, Contestant | str]]:
        """Contestants, or why there is none."""
        for name in self.versions:
            spent = self.seconds.get(name, 0.0)
            if self.left() < 8.0 * problems_left and spent > 20.0:
                yield name, f"left out here: setting it up took {spent:.0f} s before, and the budget of {self.options.budget} s would not last"
                continue
            begin = time.monotonic()
            try:
                yield name, Contestant(name, PEERS[name](p), self.on_gpu, self.sustained)
            except (self.torch.cuda.OutOfMemoryError, Refused, RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError, ImportError, KeyError, OSError) as error:
                yield name, str(error) if isinstance(error, Refused) else _short(error)
                if self.on_gpu:
                    self.torch.cuda.synchronize()
            except Exception as error:  # noqa: BLE001: compilers of peers raise types of their own
                yield name, _short(error)
            self.seconds[name] = spent + time.monotonic() - begin

    def measure(self, ident: str, name: str, problems_left: int) -> dict[str, Any]:
        """One entry of flashcore.bench/1."""
        judged = self.judge.ask(op="prepare", problem=ident, candidate=self.options.candidate, regime="graph" if self.on_gpu else "warm")
        trial = judged["trial"]
        base = {"schema": "flashcore.bench/1", "problem": ident, "name": name, "family": trial["family"], "config": trial["config"], "why": judged["why"],
                "device": self.device, "source_hash": trial["source_hash"], "chosen_by": trial["chosen_by"], "ended": trial["ended"]}  # fmt: skip
        if "handle" not in judged:
            return {**base, "message": trial.get("message", ""), "time_us": None, "peers": []}
        p = Problem(ident, name, self.options.device)
        ours = Contestant("flashcore", _flashcore(p, f"{trial['family']}:{trial['config']}"), self.on_gpu, self.sustained)
        contestants, refused = [ours], dict(self.absent)
        for peer, made in self._peers(p, problems_left):
            if isinstance(made, Contestant):
                contestants.append(made)
            else:
                refused[peer] = made
        laboratory = Laboratory(self.judge, judged["handle"])
        order = list(contestants) if self.sustained else [laboratory, *contestants]  # its samples are of the burst condition
        rng = random.Random(ident)
        for _ in range(self.options.rounds):
            rng.shuffle(order)
            for contestant in order:
                time.sleep(GAP_SECONDS if self.on_gpu else 0)
                contestant.times.append(contestant.sample())
        environment = self.judge.ask(op="environment")
        self.judge.ask(op="release", handle=judged["handle"])
        if self.on_gpu:
            self.torch.cuda.synchronize()
        bound = trial["bound"]["rel"]
        own_error = p.rel_error(ours.out)
        if not own_error <= 2 * bound:  # two heads scatter more than the rows that the gate saw
            raise Error(f"{ident}: the timed output of {trial['family']}:{trial['config']} is wrong: relative error {own_error:.2e}, bound {bound:.2e}", "internal")
        times = quantiles(ours.times)
        entry = {
            **base, "time_us": times, "tflops": round(judged["flops"] / times["p50"] * 1e-6, 3 if self.on_gpu else 6), "gbps": round(judged["bytes"] / times["p50"] * 1e-3, 2),
            "decode": judged["decode"], "floor_us": round(judged["floor_us"], 4), "regime": "graph" if self.on_gpu else "warm", "condition": self.options.condition,
            "samples": len(ours.times), "laboratory": laboratory.result() if laboratory.times else None,
            "correct": {"rel_error": trial["error"]["rel"], "bound": bound, "timed_rel_error": own_error},
            "registers": trial["artifact"]["registers"] if trial.get("artifact") else None, "peers": [], "refused": refused,
            "environment": {**environment, "driver": self.device["driver"], "commit": self.options.commit},
        }  # fmt: skip
        for contestant in contestants[1:]:
            entry["peers"].append(self._compare(p, ours, contestant, bound, judged, trial, times))
        return entry

    def _compare(self, p: Problem, ours: Contestant, theirs: Contestant, bound: float, judged: dict[str, Any], trial: dict[str, Any], times: dict[str, float]) -> dict[str, Any]:
        ratio, interval = speedup(ours.times, theirs.times)
        error = p.rel_error(theirs.out)
        found = {"name": theirs.name, "version": self.versions[theirs.name], "time_us": quantiles(theirs.times), "speedup": round(ratio, 4), "ci95": interval,
                 "verdict": verdict(interval), "rel_error": error, "correct": bool(error <= PEER_FACTOR * bound)}  # fmt: skip
        if self.options.store:
            comparison = {"against": f"{theirs.name} ({self.versions[theirs.name]})", "speedup": ratio, "ci95": interval, "verdict": found["verdict"],
                          "blocks": len(ours.times), "margin": MARGIN, "p_value": 1.0, "detectable": 0.0}  # fmt: skip
            self.judge.ask(op="record", store=str(self.options.store), run=self.run, trial=trial, times_us=ours.times, launches=ours.launches,
                           regime="graph" if self.on_gpu else "warm", condition=self.options.condition, floor_us=judged["floor_us"], comparison=comparison)  # fmt: skip
        return found


def _problems(options: argparse.Namespace) -> list[tuple[str, str]]:
    """(id, name) of the suite's problems, as the program reads them."""
    flags = ["--suite", options.suite] if options.suite else []
    listed = _program.run_program("explain", *flags, "--arch", "sm_90")["results"]
    found = [(entry["problem"], entry["name"]) for entry in listed]
    if options.problem:
        wanted = set(options.problem)
        found = [pair for pair in found if wanted & set(pair)] or [(ident, ident) for ident in options.problem]
    for ident, _ in found:
        _fields(ident)  # before the first is measured
    return found


def _printable(text: str) -> str:
    """Names and messages may hold anything; escape sequences in them must not act on a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _throughput(tflops: float) -> str:
    return f"{tflops:7.1f} TFLOP/s" if tflops >= 1 else f"{1000 * tflops:7.1f} GFLOP/s"


def _print(entry: dict[str, Any]) -> None:
    name = _printable(entry["name"])
    if not entry.get("time_us"):
        print(f"{name:18s} {entry['ended']}: {_printable(entry.get('message', ''))}", flush=True)
        return
    peers = "  ".join(f"{peer['name']} {peer['time_us']['p50']:.1f} us x{peer['speedup']:.3f}{'' if peer['correct'] else ' WRONG'}" for peer in entry["peers"])
    print(f"{name:18s} {entry['time_us']['p50']:10.2f} us  {_throughput(entry['tflops'])}  {peers}  {entry['family']}:{entry['config']}", flush=True)


def _try_target(path: pathlib.Path) -> None:
    """OSError if nothing can be written there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError("it is a folder")
    with tempfile.TemporaryFile(dir=path.parent):
        pass


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flashcore.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="canonical", help="a suite that ships, or a .yaml file")
    parser.add_argument("--problem", action="append", help="only this problem, by id or name; may be repeated")
    parser.add_argument("--candidate", help="family or family:config instead of what dispatch picks")
    parser.add_argument("--peers", default=",".join(PEERS), help="of %(default)s")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--condition", choices=("burst", "sustained"), default="burst", help="sustained: 100 ms of a contestant's own work before each of its samples, which then last 200 ms")
    parser.add_argument("--budget", type=float, default=440, help="seconds; peers that are slow to set up are left out when it runs short (default: 440)")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu to try it out")
    parser.add_argument("--commit", default="", help="recorded with the results")
    parser.add_argument("--store", help="also append trials to this file")
    parser.add_argument("--json", help="write flashcore.bench/1 there")
    options = parser.parse_args(argv)
    options.peers = [name for name in options.peers.split(",") if name]
    for name in options.peers:
        if name not in PEERS:
            parser.error(f"unknown peer '{name}'; known: {', '.join(PEERS)}")
    if options.rounds < 2:
        parser.error("--rounds must be at least 2: an interval needs more than one round")
    import torch

    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("flashcore.peers: error: PyTorch sees no GPU; --device cpu tries it out on the CPU", file=sys.stderr)
        return 4
    problems = _problems(options)
    if options.json:  # before the work: hours of it end there
        try:
            _try_target(pathlib.Path(options.json))
        except OSError as error:
            print(f"flashcore.peers: error: --json {options.json} cannot be written: {error}", file=sys.stderr)
            return 4
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    session = Session(options)
    entries: list[dict[str, Any]] = []
    interrupted = False
    try:
        with torch.no_grad():
            for index, (ident, name) in enumerate(problems):
                entry = session.measure(ident, name, len(problems) - index)
                entries.append(entry)
                _print(entry)
                if session.on_gpu:
                    torch.cuda.empty_cache()
    except KeyboardInterrupt:
        interrupted = True
        print("stopped; what was measured is kept", file=sys.stderr)
    session.judge.close(seconds=5)
    document = {"schema": "flashcore.bench/1", "suite": pathlib.Path(options.suite).stem, "measured_at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "source_hash": session.device["source_hash"], "seconds": round(time.monotonic() - session.started, 1), "interrupted": interrupted, "results": entries}  # fmt: skip
    if options.json:
        path = pathlib.Path(options.json)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(document, indent=1) + "\n")
        temporary.replace(path)
    for name in session.versions:
        ratios = [peer["speedup"] for entry in entries if not entry.get("decode") for peer in entry["peers"] if peer["name"] == name]
        if ratios:
            print(f"geomean speed-up over {name} on {len(ratios)} non-decode problem{'s' if len(ratios) != 1 else ''}: {math.exp(statistics.fmean(map(math.log, ratios))):.3f}")
    print(f"{len(entries)} problem{'s' if len(entries) != 1 else ''} in {document['seconds']:.0f} s")
    if not all(entry.get("time_us") for entry in entries):
        return 1
    return 2 if interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
