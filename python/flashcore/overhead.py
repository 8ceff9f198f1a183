"""The host time of a call: of a planned launch from C and from Python, and of the functions above it.

    python -m flashcore.overhead --json overhead.json --c build/overhead

Microseconds from call to return, without waiting for the device, in batches after which it is waited for; the median and the
10th and 90th percentile over batches. On a GPU these are overheads; on the CPU a call is the computation itself.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any, Callable

from . import _library


def timed(call: Callable[[], Any], wait: Callable[[], Any], batches: int = 50, calls: int = 100) -> dict[str, float]:
    """Microseconds per call."""
    times = []
    for batch in range(-2, batches):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        elapsed = (time.perf_counter() - start) * 1e6 / calls
        wait()
        if batch >= 0:
            times.append(elapsed)
    tenths = statistics.quantiles(times, n=10, method="inclusive")
    return {"p10": round(tenths[0], 3), "p50": round(statistics.median(times), 3), "p90": round(tenths[-1], 3)}


def measure(device: str, problem: str, batches: int) -> dict[str, Any]:
    """Each way in, from Python, on PyTorch tensors."""
    import torch

    import flashcore
    import flashcore.torch

    parsed = _library.Attention()
    _library.check(_library.library().fc_problem_parse(problem.encode(), parsed))
    dtype = (torch.float32, torch.float16, torch.bfloat16)[parsed.dtype]
    make = lambda heads, rows: torch.randn(parsed.batch, heads, rows, parsed.head_dim, dtype=dtype, device=device)  # noqa: E731
    q, k, v = make(parsed.heads_q, parsed.seqlen_q), make(parsed.heads_kv, parsed.seqlen_kv), make(parsed.heads_kv, parsed.seqlen_kv)
    out = torch.empty_like(q)
    grouped, causal = parsed.heads_q != parsed.heads_kv, parsed.causal != 0
    on_gpu = device.startswith("cuda")
    wait = torch.cuda.synchronize if on_gpu else (lambda: None)
    plan = flashcore.plan(q, k, v, out=out, causal="top_left" if causal else False)
    addresses = (q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr())
    stream = torch.cuda.current_stream().cuda_stream if on_gpu else 0
    attention = torch.nn.functional.scaled_dot_product_attention
    ways: dict[str, Callable[[], Any]] = {
        "Plan.launch": lambda: plan.launch(*addresses, 0, stream),
        "flashcore.attention, out given": lambda: flashcore.attention(q, k, v, causal="top_left" if causal else False, out=out),
        "flashcore.torch.scaled_dot_product_attention": lambda: flashcore.torch.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped),
        "torch.ops.flashcore.attention": lambda: torch.ops.flashcore.attention(q, k, v, causal, None),
        "PyTorch's scaled_dot_product_attention": lambda: attention(q, k, v, is_causal=causal, enable_gqa=grouped),
    }
    with torch.no_grad():
        return {name: timed(call, wait, batches) for name, call in ways.items()}


def what_is_measured(device: str, name: str, problem: str, batches: int) -> str:
    """The first line of the output: a column of microseconds says nothing of itself."""
    if device == "cpu":
        return f"Time of one call on the CPU, the computation of {problem} included: a launch there returns when it is done. Median [p10, p90] of {batches} batches of 100 calls."
    return f"Time that one call holds the host up, on {device} ({name}), {problem}; the device is not waited for. Median [p10, p90] of {batches} batches of 100 calls."


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flashcore.overhead", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="cpu, cuda or cuda:N; default: a GPU if there is one")
    parser.add_argument("--problem", default="b1_h8_s512_d64_fp16", help="default: %(default)s")
    parser.add_argument("--batches", type=int, default=50, help="samples of each way of calling, of many calls each (default: %(default)s)")
    parser.add_argument("--c", metavar="PROGRAM", help="examples/overhead.c, built: measures from C too")
    parser.add_argument("--json", help="also write the results there")
    options = parser.parse_args(argv)
    try:
        import torch
    except ImportError:
        print("flashcore.overhead: error: it compares with PyTorch, which is not installed here; `overhead` of examples/overhead.c measures without it", file=sys.stderr)
        return 4

    device = options.device or ("cuda:0" if torch.cuda.is_available() else "cpu")
    device = "cuda:0" if device == "cuda" else device
    result: dict[str, Any] = {"schema": "flashcore.overhead/1", "device": device, "name": torch.cuda.get_device_name(device) if device != "cpu" else "cpu",
                              "problem": options.problem, "versions": {"python": sys.version.split()[0], "torch": torch.__version__}}  # fmt: skip
    print(what_is_measured(device, result["name"], options.problem, options.batches))
    if options.c:
        _library.library()
        done = subprocess.run([options.c, str(_library.library_path()), device, options.problem, str(options.batches)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"flashcore.overhead: {options.c} ended with {done.returncode}: {done.stderr.strip()}", file=sys.stderr)
            return done.returncode
        result["c"] = json.loads(done.stdout)
        for key, name in (("driver_us", "the driver's own launch"), ("repeated_us", "C, repeated addresses"), ("changing_us", "C, changing addresses")):
            if key in result["c"]:
                times = result["c"][key]
                print(f"{name:48s} {times['p50']:9.2f} us  [{times['p10']:.2f}, {times['p90']:.2f}]")
    result["python_us"] = measure(device, options.problem, options.batches)
    for name, times in result["python_us"].items():
        print(f"{name:48s} {times['p50']:9.2f} us  [{times['p10']:.2f}, {times['p90']:.2f}]")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
