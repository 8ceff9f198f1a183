"""The program beside the laboratory that makes Python's attentions ready: a peer of `flashcore peers` (docs/peers.md).

It makes the tensors, calls each implementation as its authors would, captures the calls into a CUDA graph and hands that to
the library's timer. It times nothing itself, judges nothing and has no statistics.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import pathlib
import sys
from typing import Any, Callable

from . import _library
from ._library import TIMED_CALL, Error, TimedWork
from ._peers import available, Call, flashcore_call, peer_call, PEERS, Problem, Refused

PROTOCOL = 1
MAX_LAUNCHES = 200


def replay_handle(graph: Any) -> int:
    """The instantiated graph of a torch.cuda.CUDAGraph. Refused where this PyTorch does not hand it out."""
    found = getattr(graph, "raw_cuda_graph_exec", None)
    if found is None:
        import torch

        raise Refused(f"PyTorch {torch.__version__} does not hand out its captured graphs (CUDAGraph.raw_cuda_graph_exec): use PyTorch 2.11 or newer")
    return int(found())


def negate(x: Any) -> None:
    """In place, by the sign bit where PyTorch cannot negate the type."""
    import torch

    if x.dtype.itemsize == 1:
        x.view(torch.uint8).bitwise_xor_(0x80)
    else:
        x.neg_()


class Prepared:
    """One implementation on one problem, with the library's timer on it."""

    def __init__(self, problem: Problem, call: Call, context: int, sample_us: float) -> None:
        self.problem, self.call, self.context, self.sample_us = problem, call, context, sample_us
        self.timer = ctypes.c_void_p()
        self.graph: Any = None
        self.failure: BaseException | None = None
        for _ in range(3):
            call.run()
        if problem.on_gpu:
            self._capture(2)
            # An even number: both sets of output buffers are written alike.
            wanted = min(MAX_LAUNCHES, max(2, self._launches()))
            self._capture(wanted + wanted % 2)
        else:
            self.run_once = TIMED_CALL(self._run_once)  # kept: the timer has its address
            self._make_timer(TimedWork(call=self.run_once, sample_us=sample_us))

    def _run_once(self, _: int | None) -> int:
        try:
            self.call.run()
            return 0
        except BaseException as error:  # noqa: BLE001: it cannot pass through C
            self.failure = error
            return 1

    def _make_timer(self, work: TimedWork) -> None:
        self.release_timer()
        self.check(_library.library().fc_timer_create(self.context, ctypes.byref(work), ctypes.byref(self.timer)))

    def check(self, status: int) -> None:
        failure, self.failure = self.failure, None
        if status and failure is not None:
            raise failure
        _library.check(status)

    def _launches(self) -> int:
        launches = ctypes.c_int32()
        self.check(_library.library().fc_timer_launches(self.timer, self.sample_us, ctypes.byref(launches)))
        return launches.value

    def _capture(self, launches: int) -> None:
        import torch

        self.release_timer()
        self.graph = None
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(launches):
                self.call.run()
        self.graph, self.launches = graph, launches
        torch.cuda.synchronize()
        self._make_timer(TimedWork(graph=replay_handle(graph), launches=launches))

    def sample(self, warm_up_ms: float, measure_ms: float) -> dict[str, float]:
        time_us, clock = ctypes.c_double(), ctypes.c_double()
        self.check(_library.library().fc_timer_sample(self.timer, warm_up_ms, measure_ms, ctypes.byref(time_us), ctypes.byref(clock)))
        return {"time_us": time_us.value, "clock_mhz": clock.value}

    def launches_per_sample(self) -> int:
        return self.launches if self.problem.on_gpu else self._launches()

    def output(self, folder: pathlib.Path) -> list[dict[str, str]]:
        """What the timed launches leave in buffers that hold the result of other inputs, and before that NaN.

        What is never written stays NaN. Whoever returns where a number already lies keeps the result of q and v negated: other
        numbers in o and in the log-sum-exp.
        """
        changed = self.call.inputs or (self.problem.q, self.problem.v)
        for x in changed:
            negate(x)
        try:
            for o, lse in self.call.outputs():
                o.fill_(math.nan)
                if lse is not None:
                    lse.fill_(math.nan)
            self._sample_alone()
        finally:  # other parties read them too
            for x in changed:
                negate(x)
        self._sample_alone()
        written = []
        for index, (o, lse) in enumerate(self.call.outputs()):
            if o.dtype != self.problem.o_dtype or self.call.o_factor != 1.0:
                o = (o.float() * self.call.o_factor).to(self.problem.o_dtype)
            files = {"o": self._write(folder / f"o{index}.bin", o)}
            if lse is not None:
                files["lse"] = self._write(folder / f"lse{index}.bin", lse)
            written.append(files)
        return written

    def _sample_alone(self) -> None:
        import torch

        if self.problem.on_gpu:
            torch.cuda.synchronize()
        self.sample(0, 0)
        if self.problem.on_gpu:
            torch.cuda.synchronize()

    @staticmethod
    def _write(path: pathlib.Path, tensor: Any) -> str:
        import torch

        path.write_bytes(tensor.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes())
        return str(path)

    def release_timer(self) -> None:
        if self.timer.value:
            timer, self.timer = self.timer, ctypes.c_void_p()
            _library.check(_library.library().fc_timer_destroy(timer))


class Server:
    def __init__(self, device: str, names: list[str], beside_ours: bool = True) -> None:
        self.device, self.names, self.beside_ours = device, names, beside_ours
        self.prepared: dict[int, Prepared] = {}
        self.next = 0
        self.problem: Problem | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        op = request["op"]
        if op == "hello":
            return self.hello(request)
        if op == "prepare":
            return self.prepare(request)
        if op == "end":
            return {}
        prepared = self.prepared.get(request["handle"])
        if prepared is None:
            raise Error(f"no handle {request['handle']}; 'prepare' gives one")
        if op == "sample":
            return prepared.sample(request.get("warm_up_ms", 0.0), request.get("measure_ms", 0.0))
        if op == "output":
            return {"outputs": prepared.output(pathlib.Path(request["folder"]))}
        if op == "release":
            return self.release(request["handle"])
        raise Error(f"unknown op {op!r}; known: hello, prepare, sample, output, release, end")

    def hello(self, request: dict[str, Any]) -> dict[str, Any]:
        import torch

        if request.get("protocol") != PROTOCOL:
            raise Error(f"this program speaks protocol {PROTOCOL}, and was asked in protocol {request.get('protocol')}")
        on_gpu = self.device.startswith("cuda")
        if on_gpu and not torch.cuda.is_available():
            raise Error("PyTorch sees no GPU; --device cpu tries it out on the CPU", "environment")
        versions, absent = available(self.names, on_gpu)
        ours = [{"name": "flashcore", "version": f"flashcore {_library.__version__}", "notes": [], "source_hash": self.source_hash()}] if self.beside_ours else []
        offered = [{"name": name, "version": version, "notes": PEERS[name].notes} for name, version in versions.items()]
        return {"protocol": PROTOCOL, "name": "flashcore._peer_server", "parties": ours + offered, "absent": absent}

    def source_hash(self) -> str:
        """Of the library that is called here. The laboratory gates its own, and refuses to time another."""
        described: dict[str, Any] = json.loads(_library.text_of(_library.library().fc_context_describe, _library.context(self.device)))
        return str(described["source_hash"])

    def prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        import torch

        if self.problem is None or self.problem.key != (request["problem"], request["seed"]):
            self.problem = None  # its memory first
            try:
                self.problem = Problem(request, self.device)
            except Refused as refused:
                return {"refused": str(refused)}
        try:
            with torch.no_grad():
                call = flashcore_call(self.problem, request["candidate"]) if request["party"] == "flashcore" else peer_call(request["party"], self.problem)
                made = Prepared(self.problem, call, _library.context(self.device), request.get("sample_us") or 0.0)
        except Refused as refused:
            return {"refused": str(refused)}
        except Exception as error:  # noqa: BLE001: compilers of peers raise types of their own
            lines = [line for line in str(error).splitlines() if line.strip()]
            if self.problem.on_gpu:
                torch.cuda.synchronize()  # a lost context ends this process, which says who lost it
                torch.cuda.empty_cache()
            return {"refused": f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:300]}
        handle, self.next = self.next, self.next + 1
        self.prepared[handle] = made
        answer = {"handle": handle, "launches": made.launches_per_sample(), "notes": call.notes}
        return answer | ({"code_hash": call.code_hash} if call.code_hash else {})

    def release(self, handle: int) -> dict[str, Any]:
        self.prepared.pop(handle).release_timer()
        if not self.prepared and self.device.startswith("cuda"):
            import torch

            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        return {"released": handle}


def serve(server: Server, lines: Any, out: Any) -> int:
    for line in lines:
        try:
            request = json.loads(line)
            answer = server.answer(request)
        except Exception as error:  # noqa: BLE001: the one who asked decides
            answer = {"error": f"{type(error).__name__}: {error}"}
            if "CUDA error" in str(error) or "context is lost" in str(error):
                print(answer["error"], file=sys.stderr, flush=True)
                os._exit(4)  # nothing more comes of this process
            request = {}
        out.write((json.dumps(answer) + "\n").encode())
        out.flush()
        if request.get("op") == "end":
            break
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flashcore._peer_server", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--peers", default=",".join(PEERS))
    options = parser.parse_args(argv)
    # The protocol keeps stdout to itself: what libraries print goes to stderr.
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    return serve(Server(options.device, [name for name in options.peers.split(",") if name]), sys.stdin, out)


if __name__ == "__main__":
    sys.exit(main())
