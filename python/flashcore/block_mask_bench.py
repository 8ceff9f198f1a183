"""What a block mask spares: calls of attention that share one, beside calls that list their blocks themselves.

    python -m flashcore.block_mask_bench --json results/h200/block_mask.json

Calls of both kinds are captured into CUDA graphs of several calls; in each round both are replayed once after a replay of their own, in
random order. Before they are timed, both have to give the same bits. On a CPU calls are timed one by one, and no ratio is told: its kernels
list no blocks, so that there is nothing to spare, and both kinds of calls do the same.

A survey: no gates, one process, no calibration of the timer.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import random
import statistics
import sys
from typing import Any, Callable, NamedTuple

from . import BlockMask, _library, attention
from .quantize_bench import samples_on_cpu, samples_on_gpu

_CALLS_OF_SAMPLE = 5


class Problem(NamedTuple):
    """bf16, [batch, heads, rows, dim]."""

    batch: int
    heads: int
    heads_kv: int
    rows: int
    dim: int
    document: int = 0  # rows of each; 0: a boolean mask [rows, rows] of a causal pattern

    def mask(self, device: str) -> dict[str, Any]:
        import torch

        if self.document:
            ids = torch.arange(self.rows, dtype=torch.int32, device=device) // self.document
            return {"documents": ids.expand(self.batch, -1).contiguous(), "causal": True}
        return {"mask": torch.ones(1, 1, self.rows, self.rows, dtype=torch.bool, device=device).tril()}


PROBLEMS = {
    "documents_8k": Problem(1, 32, 8, 8192, 128, document=1000), "documents_2k": Problem(4, 32, 8, 2048, 128, document=300),
    "documents_4k_d64": Problem(4, 16, 16, 4096, 64, document=1000), "boolean_8k": Problem(1, 32, 8, 8192, 128), "boolean_2k": Problem(4, 32, 8, 2048, 128),
}  # fmt: skip


def measure(name: str, problem: Problem, device: str, rounds: int, seed: int) -> dict[str, Any]:
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    normal = lambda heads: torch.randn(problem.batch, heads, problem.rows, problem.dim, device=device, generator=generator).bfloat16()  # noqa: E731
    q, k, v = normal(problem.heads), normal(problem.heads_kv), normal(problem.heads_kv)
    mask, blocks = problem.mask(device), BlockMask()
    calls: dict[str, Callable[[], Any]] = {"own lists": lambda: attention(q, k, v, **mask), "block mask": lambda: attention(q, k, v, **mask, block_mask=blocks)}
    row: dict[str, Any] = {"name": name, "problem": problem._asdict()}
    made = [call() for call in calls.values()]
    if not torch.equal(*made):
        return {**row, "left_out": "a block mask changes bits of o"}
    rng = random.Random(seed)
    samples = samples_on_cpu(calls, rounds, rng) if device == "cpu" else samples_on_gpu(calls, dict.fromkeys(calls, _CALLS_OF_SAMPLE), rounds, rng)
    row["samples_us"] = {party: [round(x, 3) for x in of] for party, of in samples.items()}
    row["us"] = {party: round(statistics.median(of), 3) for party, of in samples.items()}
    if device != "cpu":
        row["speed_up"] = round(statistics.median(own / shared for own, shared in zip(samples["own lists"], samples["block mask"])), 4)
    return row


def line_of(row: dict[str, Any]) -> str:
    if "left_out" in row:
        return f"{row['name']:20} {row['left_out']}"
    ratio = f"x{row['speed_up']:.3f}" if "speed_up" in row else "no ratio: a CPU lists no blocks"
    return f"{row['name']:20} own lists {row['us']['own lists']:9.1f} us, block mask {row['us']['block mask']:9.1f} us, {ratio}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flashcore.block_mask_bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default=None, help='"cuda:0" or "cpu"; default: the GPU if PyTorch sees one')
    parser.add_argument("--problems", type=lambda text: text.split(","), default=list(PROBLEMS), metavar="NAME,...", help=", ".join(PROBLEMS))
    parser.add_argument("--rounds", type=int, default=30, help="samples of each kind of call")
    parser.add_argument("--seed", type=int, default=1, help="of the data and the order of samples (default: %(default)s)")
    parser.add_argument("--json", type=pathlib.Path, help="where the samples go")
    options = parser.parse_args(argv)
    unknown = [name for name in options.problems if name not in PROBLEMS]
    if unknown or options.rounds < 1:
        parser.error(f"'{unknown[0]}' is no problem; use of {', '.join(PROBLEMS)}" if unknown else f"--rounds is {options.rounds}; at least 1")
    try:
        import torch

        device = options.device or ("cuda:0" if torch.cuda.is_available() else "cpu")
        described = json.loads(_library.text_of(_library.library().fc_context_describe, _library.context(device)))
    except (ImportError, _library.Error) as error:
        print(f"flashcore.block_mask_bench: error: {error}", file=sys.stderr)
        return 4
    rows = []
    for name in options.problems:
        rows.append(row := measure(name, PROBLEMS[name], device, options.rounds, options.seed))
        print(line_of(row))
    if options.json:
        from . import __version__

        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({
            "schema": "flashcore.block_mask_bench/1", "what": "a survey (docs/expressions.md), not judged by the gates",
            "measured_at": datetime.datetime.now(datetime.timezone.utc).isoformat(), "device": described["name"], "key": described["key"],
            "driver": described.get("driver"), "flashcore": __version__, "source_hash": described.get("source_hash", ""), "pytorch": torch.__version__,
            "calls_of_sample": 1 if device == "cpu" else _CALLS_OF_SAMPLE, "rounds": options.rounds, "seed": options.seed, "rows": rows,
        }, indent=1) + "\n")  # fmt: skip
    return 1 if any("left_out" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
