"""Times one launch by the timers that Python imports, for `flashcore crosscheck`, which judges them.

    python -m flashcore.crosscheck --problem b1_h8_s512_d64_fp16 --device cuda:0 --json tools.json

PyTorch's profiler (which asks CUPTI), torch.utils.benchmark, Triton's do_bench and nvbench, where they are there, and matrix
multiplies by PyTorch beside which the engine's ceiling is checked. Nothing is judged here. What is absent is named.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time
from typing import Any, Callable

from . import _library

LAUNCHES = 24
HOST_LAUNCHES = 64
RUNS = 8  # of nvbench, which tells one mean each
MATMUL_SECONDS = 1.0
Reading = dict[str, Any]


def lost(method: str, why: str) -> Reading:
    return {"method": method, "why_not": why}


PLAIN = re.compile(r"b\d+_h\d+(_hk\d+)?_(s\d+|sq\d+_sk\d+)_d\d+(_dv\d+)?_(fp32|fp16|bf16)(_causal(tl)?)?")


def parsed(problem: str) -> _library.Attention:
    p = _library.Attention()
    _library.check(_library.library().fc_problem_parse(problem.encode(), ctypes.byref(p)))
    return p


class Launch:
    """The library's own launch of a problem on PyTorch tensors. `empty`: without a query row, so that it computes nothing."""

    def __init__(self, problem: str, device: str, candidate: str | None, empty: bool = False) -> None:
        import torch

        import flashcore

        p = parsed(problem)
        if empty:
            p.seqlen_q = 0
        kinds = (torch.float32, torch.float16, torch.bfloat16)
        self.dtype = kinds[p.dtype]
        self.on_gpu = device.startswith("cuda")
        self.shape = (p.batch * p.heads_q, p.seqlen_q, p.head_dim, p.seqlen_kv)
        make = lambda heads, rows, dim: torch.randn(p.batch, heads, rows, dim, dtype=self.dtype, device=device)  # noqa: E731
        q = make(p.heads_q, p.seqlen_q, p.head_dim)
        k, v = make(p.heads_kv, p.seqlen_kv, p.head_dim), make(p.heads_kv, p.seqlen_kv, p.head_dim_v or p.head_dim)
        self.tensors = (q, k, v)
        causal = {0: False, 1: "bottom_right", 2: "top_left"}.get(p.causal, False)
        self.plan = flashcore.plan(q, k, v, causal=causal, candidate=candidate)
        self.out = torch.empty(p.batch, p.heads_q, p.seqlen_q, p.head_dim_v or p.head_dim, dtype=self.dtype, device=device)
        self.lse = torch.empty(p.batch, p.heads_q, p.seqlen_q, dtype=torch.float32, device=device)  # as the engine's launches
        self.beside = None if empty or self.on_gpu else Launch(problem, device, candidate, empty=True)
        self.addresses = [x.data_ptr() for x in (*self.tensors, self.out, self.lse)]

    def __call__(self) -> None:
        import torch

        stream = torch.cuda.current_stream().cuda_stream if self.on_gpu else 0
        self.plan.launch(*self.addresses, stream)

    def on(self, stream: int) -> None:
        self.plan.launch(*self.addresses, stream)

    def wait(self) -> None:
        import torch

        if self.on_gpu:
            torch.cuda.synchronize()


def empty_us(launch: Launch, read: Callable[[Launch], Any]) -> float:
    """What a tool tells of a launch that computes nothing: the range that it records, and what Python spends on a call, lie in its times."""
    if launch.beside is None:
        return 0.0
    launch.beside()
    return statistics.median(read(launch.beside))


def profiled_us(launch: Launch) -> list[float] | str:
    """Times of each launch, or why there are none."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if launch.on_gpu else [])
    mark = "flashcore.crosscheck"
    with profile(activities=activities) as profiled:
        for _ in range(LAUNCHES):
            with record_function(mark):
                launch()
            launch.wait()
    if launch.on_gpu:
        kernels = [e for e in profiled.events() if e.device_type == torch.autograd.DeviceType.CUDA and e.name != mark]
        if len(kernels) % LAUNCHES:
            return f"it saw {len(kernels)} kernels of {LAUNCHES} launches"
        each = len(kernels) // LAUNCHES
        kernels.sort(key=lambda e: e.time_range.start)
        times = [sum(e.time_range.elapsed_us() for e in kernels[i * each : (i + 1) * each]) for i in range(LAUNCHES)] if each else []
    else:
        times = [e.time_range.elapsed_us() for e in profiled.events() if e.name == mark]
    return times[2:]


def by_profiler(launch: Launch) -> Reading:
    """Device time of each kernel, from CUPTI's activity records; on a CPU a recorded range around each call."""
    import torch

    times = profiled_us(launch)
    if isinstance(times, str):
        return lost("PyTorch's profiler", times)
    return {"method": "PyTorch's profiler", "version": torch.__version__, "times_us": times, "host_launch": not launch.on_gpu,
            "empty_us": empty_us(launch, profiled_us)}  # fmt: skip


def host_us(launch: Launch) -> float:
    """What one launch takes the host, whatever the device does meanwhile: fewer than a stream's queue holds."""
    times = []
    for _ in range(LAUNCHES):
        launch.wait()
        start = time.perf_counter()
        for _ in range(HOST_LAUNCHES):
            launch()
        times.append((time.perf_counter() - start) / HOST_LAUNCHES * 1e6)
    launch.wait()
    return sorted(times)[len(times) // 2]


def benchmarked_us(launch: Launch) -> list[float]:
    import torch
    from torch.utils import benchmark

    timer = benchmark.Timer("launch()", globals={"launch": launch}, num_threads=torch.get_num_threads())
    block = max(1, int(2e-3 / max(1e-7, timer.timeit(4).median)))
    return [timer.timeit(block).median * 1e6 for _ in range(LAUNCHES)]


def by_torch_benchmark(launch: Launch) -> Reading:
    """torch.utils.benchmark: on a GPU it waits for the device around each block, so launches lie inside."""
    import torch

    return {"method": "torch.utils.benchmark", "version": torch.__version__, "times_us": benchmarked_us(launch), "host_launch": True,
            "host_us": host_us(launch) if launch.on_gpu else 0.0, "empty_us": empty_us(launch, benchmarked_us)}  # fmt: skip


def by_do_bench(launch: Launch) -> Reading:
    """Triton clears the L2 before each launch. With its own short warm-up: it pauses nowhere, and after a longer one a card lowers its clock."""
    if not launch.on_gpu:
        return lost("Triton's do_bench", "it runs on a GPU only")
    import torch
    import triton
    import triton.testing

    times = triton.testing.do_bench(launch, return_mode="all")
    empty = triton.testing.do_bench(lambda: torch.cuda._sleep(0), return_mode="median")
    return {"method": "Triton's do_bench", "version": triton.__version__, "times_us": [t * 1e3 for t in times], "empty_us": empty * 1e3, "cold": True}


def by_nvbench(launch: Launch) -> Reading:
    """nvbench's cold measurement, by its Python package: L2 flushed, one launch at a time. It tells a mean of each run."""
    if not launch.on_gpu:
        return lost("nvbench", "it runs on a GPU only")
    from cuda import bench

    def body(state: Any) -> None:
        state.exec(lambda each: launch.on(each.get_stream().addressof()))

    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "nvbench.json"
        bench.register(body).add_int64_axis("run", list(range(RUNS)))
        bench.run_all_benchmarks(["crosscheck", "--json", str(file), "--quiet"])
        return read_nvbench(json.loads(file.read_text(encoding="utf-8")), getattr(bench, "__version__", ""))


def read_nvbench(document: dict[str, Any], version: str) -> Reading:
    """The mean device time of each run."""
    summaries = [s for b in document["benchmarks"] for state in b["states"] for s in state["summaries"] or []]
    means = [float(d["value"]) * 1e6 for s in summaries if s.get("tag") == "nv/cold/time/gpu/mean" for d in s["data"] if d["name"] == "value"]
    if not means:
        return lost("nvbench", "it reported no mean of the device's time")
    return {"method": "nvbench", "version": version, "times_us": means, "cold": True}


METHODS: dict[str, Callable[[Launch], Reading]] = {
    "PyTorch's profiler": by_profiler, "torch.utils.benchmark": by_torch_benchmark, "Triton's do_bench": by_do_bench, "nvbench": by_nvbench,
}  # fmt: skip


def best_tflops(call: Callable[[], Any], wait: Callable[[], None], flops: float) -> float:
    """Of the best of many, because a ceiling is what can be reached."""
    call()
    wait()
    best, until = float("inf"), time.perf_counter() + MATMUL_SECONDS
    while time.perf_counter() < until:
        start = time.perf_counter()
        call()
        wait()
        best = min(best, time.perf_counter() - start)
    return flops / best * 1e-12


def matmuls(launch: Launch) -> list[Reading]:
    """A large square one, which comes near the ceiling, and the problem's own Q·Kᵀ, which must not exceed it."""
    import torch

    size = 8192 if launch.on_gpu else 1024
    device = launch.tensors[0].device
    library = "cuBLAS" if launch.on_gpu else "its CPU library"
    is_16bit = launch.dtype != torch.float32
    name = str(launch.dtype).removeprefix("torch.")
    a, b = (torch.randn(size, size, dtype=launch.dtype, device=device) for _ in range(2))
    out: list[Reading] = [{"what": f"{name} {size} x {size} x {size}, PyTorch {torch.__version__} ({library})", "is_16bit": is_16bit, "large": True,
                           "tflops": best_tflops(lambda: torch.matmul(a, b), launch.wait, 2.0 * size**3)}]  # fmt: skip
    batch, rows, dim, keys = launch.shape
    if batch * rows * keys > 0 and batch * rows * keys * 4 < 4e9:
        q = torch.randn(batch, rows, dim, dtype=launch.dtype, device=device)
        k = torch.randn(batch, dim, keys, dtype=launch.dtype, device=device)
        out.append({"what": f"{name} {batch} times {rows} x {dim} x {keys}, PyTorch {torch.__version__} ({library})", "is_16bit": is_16bit, "large": False,
                    "tflops": best_tflops(lambda: torch.bmm(q, k), launch.wait, 2.0 * batch * rows * dim * keys)})  # fmt: skip
    return out


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def nothing(why: str) -> dict[str, Any]:
    return {"schema": "flashcore.crosscheck_tools/1", "methods": [lost(name, why) for name in METHODS], "matmuls": [{"what": "PyTorch's matmul", "why_not": why}]}


def measure(problem: str, device: str, candidate: str | None) -> dict[str, Any]:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        return nothing(f"PyTorch does not import: {error}")
    parsed(problem)
    if not PLAIN.fullmatch(problem):
        return nothing(f"tensors of {problem} are not made here: it has more than sizes, a type of 16 or 32 bits and a causal mask")
    launch = Launch(problem, device, candidate)
    launch()
    launch.wait()
    methods = []
    for name, method in METHODS.items():
        try:
            methods.append(method(launch))
        except Exception as error:  # noqa: BLE001: a tool that is absent or broken raises anything
            methods.append(lost(name, first_line(error)))
    try:
        products = matmuls(launch)
    except Exception as error:  # noqa: BLE001
        products = [{"what": "PyTorch's matmul", "why_not": first_line(error)}]
    return {"schema": "flashcore.crosscheck_tools/1", "methods": methods, "matmuls": products}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flashcore.crosscheck", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", required=True, help="an id, as b1_h8_s512_d64_fp16")
    parser.add_argument("--device", default="cuda:0", help="cuda, cuda:N, or cpu")
    parser.add_argument("--candidate", help="family or family:k=v,... instead of what dispatch picks")
    parser.add_argument("--json", default="-", help="the file to write; - is standard output")
    options = parser.parse_args(argv)
    try:
        answer = json.dumps(measure(options.problem, options.device, options.candidate))
    except (_library.Error, ValueError, OSError, RuntimeError) as error:
        print(f"flashcore.crosscheck: error: {first_line(error)}", file=sys.stderr)
        return 4
    if options.json == "-":
        print(answer)
    else:
        partial = pathlib.Path(options.json + ".partial")
        partial.write_text(answer, encoding="utf-8")
        os.replace(partial, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
