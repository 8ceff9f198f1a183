"""How much memory flashcore.quantize moves in a second, beside a copy on the device of as many bytes.

    python -m flashcore.quantize_bench --json results/h200/quantize.json

Each way of quantising is captured into a CUDA graph of several calls, and so is the copy: in each round both are replayed once after a
replay of their own, in random order. Bytes are counted as docs/fp8.md does: what the launches read and write, though L2 may spare DRAM
some of it. Before it is timed, q, k and v have to be within rounding of what was read. On a CPU calls are timed one by one.

A survey: no gates, one process, no calibration of the timer.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import math
import pathlib
import random
import statistics
import sys
import time
from typing import Any, Callable, NamedTuple

from . import _library, quantize

WAYS: dict[str, dict[str, Any]] = {
    "tensor": {}, "head": {"scaling": "head"}, "token": {"scaling": "token"}, "block": {"scaling": "block", "blocks": (128, 64)},
    "e5m2": {"dtype": "e5m2"}, "v transposed": {"v_layout": "dn"}, "smooth_k": {"smooth_k": True}, "smooth_k, hadamard": {"smooth_k": True, "hadamard": True},
    "token, smooth_k": {"scaling": "token", "smooth_k": True}, "factors given": {"given": True}, "counted": {"counted": True},
}  # fmt: skip
# Half a step at the top of the type, over its largest number.
HALF_STEPS = {"e4m3": 16 / 448, "e5m2": 4096 / 57344}


class Shape(NamedTuple):
    batch: int
    heads: int
    heads_kv: int
    keys: int
    dim: int

    def __str__(self) -> str:
        return f"b{self.batch}_h{self.heads}_hk{self.heads_kv}_s{self.keys}_d{self.dim}"


def shape_of(text: str) -> Shape:
    try:
        words = [int(part.lstrip("bhskd")) for part in text.split("_")]
        shape = Shape(*words)
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(f"'{text}' is no shape; give one as b8_h16_hk16_s2048_d128") from None
    if str(shape) != text or min(shape) < 1 or shape.heads % shape.heads_kv:
        raise argparse.ArgumentTypeError(f"'{text}' is no shape; give one as b8_h16_hk16_s2048_d128, where hk divides h")
    return shape


def moved_bytes(shape: Shape, item: int, way: dict[str, Any]) -> int:
    """What all launches of a call read and write, factors and means left out, which are little."""
    of_k = shape.batch * shape.heads_kv * shape.keys * shape.dim
    of_q = of_k * (shape.heads // shape.heads_kv)
    elements = of_q + 2 * of_k
    moved = elements * (item + 1)  # codes
    if way.get("scaling") == "token":
        moved += of_k * item  # magnitudes of v alone
    elif not way.get("given"):
        moved += elements * item
    return moved + (of_k * item if way.get("smooth_k") else 0)


def prepared(arrays: tuple[Any, ...], way: dict[str, Any]) -> tuple[Callable[[], Any], Any]:
    """The call, and what it counts saturated elements in, if it does."""
    import torch

    options = {name: value for name, value in way.items() if name not in ("given", "counted")}
    if way.get("given"):
        options |= quantize(*arrays, **options).descales
    if way.get("counted"):
        options["saturated"] = torch.zeros(3, dtype=torch.int64, device=arrays[0].device)
    return lambda: quantize(*arrays, **options), options.get("saturated")


def error_of(arrays: tuple[Any, ...], made: Any, way: dict[str, Any]) -> float:
    """The largest distance of an element from what was written, over the largest magnitude of those that share its factor. Rotated q and k are
    judged by their products with each other, which a rotation leaves as they are."""
    q, k, v = (x.float() for x in arrays)
    if way.get("smooth_k"):
        k = k - k.mean(dim=2, keepdim=True)
    codes = [made.q.float(), made.k.float(), made.v.float().transpose(2, 3) if way.get("v_layout") == "dn" else made.v.float()]
    factors = [spread(by, x) for by, x in zip((made.descale_q, made.descale_k, made.descale_v), (q, k, v))]
    written = [x * by for x, by in zip(codes, factors)]
    shared: list[Any] = [way.get("scaling")] * 3
    if shared[0] in ("token", "block"):
        shared = [*way.get("blocks", (1, 1)), "head"]
    checked = [(v, written[2], shared[2])] if way.get("hadamard") else list(zip((q, k, v), written, shared))
    worst = max(float(((x - as_written).abs() / largest_of(x, of, k.shape[1])).max()) for x, as_written, of in checked)
    if way.get("hadamard"):
        worst = max(worst, error_of_products(q, k, *written[:2], way))
    return worst


def spread(by: Any, x: Any) -> Any:
    """Factors as x has its axes: one, one for each key head, or one for each row."""
    if by.numel() == 1:
        return by.reshape(1, 1, 1, 1)
    return by[..., None] if by.dim() == 3 else by.repeat_interleave(x.shape[1] // by.shape[1], dim=1)[..., None, None]


def largest_of(x: Any, shared: Any, heads_kv: int) -> Any:
    """The largest magnitude of those that share a factor: of all (None), of a key head ("head"), or of so many rows."""
    if shared == "head":
        of_heads = x.abs().amax(dim=(2, 3)).reshape(x.shape[0], heads_kv, -1).amax(dim=2)
        return of_heads.repeat_interleave(x.shape[1] // heads_kv, dim=1)[..., None, None]
    if shared is None:
        return x.abs().max()
    of_rows = x.abs().amax(dim=3)
    blocks = [block.amax(dim=2, keepdim=True).expand_as(block) for block in of_rows.split(shared, dim=2)]
    import torch

    return torch.cat(blocks, dim=2)[..., None]


def error_of_products(q: Any, k: Any, written_q: Any, written_k: Any, way: dict[str, Any]) -> float:
    """As error_of: HALF_STEPS of it is what independent roundings of half a step make of products at most, relative to all of them: each
    number is off by no more than 2^-4 (e4m3) or 2^-3 of itself, uniformly, and a product by both of its numbers."""
    kind, group = way.get("dtype", "e4m3"), q.shape[1] // k.shape[1]
    product = lambda a, b: a[:, :, :64] @ b[:, :, :256].repeat_interleave(group, dim=1).transpose(2, 3)  # noqa: E731
    exact = product(q, k)
    allowed = {"e4m3": 2.0**-4, "e5m2": 2.0**-3}[kind] * (2 / 3) ** 0.5
    return float((product(written_q, written_k) - exact).norm() / exact.norm()) / allowed * HALF_STEPS[kind]


def samples_on_gpu(calls: dict[str, Callable[[], Any]], repeats: dict[str, int], rounds: int, rng: random.Random) -> dict[str, list[float]]:
    import torch

    graphs: dict[str, Any] = {}
    for name, call in calls.items():
        stream, graphs[name] = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            call()
            stream.synchronize()
            with torch.cuda.graph(graphs[name], stream=stream):
                for _ in range(repeats[name]):
                    call()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name in rng.sample(sorted(graphs), len(graphs)):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            graphs[name].replay()
            start.record()
            graphs[name].replay()
            end.record()
            end.synchronize()
            samples[name].append(start.elapsed_time(end) * 1e3 / repeats[name])
    return samples


def samples_on_cpu(calls: dict[str, Callable[[], Any]], rounds: int, rng: random.Random) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name in rng.sample(sorted(calls), len(calls)):
            calls[name]()
            begun = time.perf_counter()
            calls[name]()
            samples[name].append((time.perf_counter() - begun) * 1e6)
    return samples


def measure(shape: Shape, device: str, dtype: str, ways: list[str], rounds: int, seed: int) -> list[dict[str, Any]]:
    """A row for each way, with the copy that was timed in the same rounds."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    normal = lambda heads: torch.randn(shape.batch, heads, shape.keys, shape.dim, device=device, generator=generator).to(getattr(torch, dtype))  # noqa: E731
    arrays, rng, rows = (normal(shape.heads), normal(shape.heads_kv), normal(shape.heads_kv)), random.Random(seed), []
    for name in ways:
        way = WAYS[name]
        row: dict[str, Any] = {"shape": str(shape), "dtype": dtype, "way": name, "options": {key: value for key, value in way.items()}}
        rows.append(row)
        if way.get("hadamard") and (shape.dim & (shape.dim - 1) or shape.dim > 512):
            row["left_out"] = "a head dim of no Hadamard transform"
            continue
        call, saturated = prepared(arrays, way)
        row["error"] = float(f"{error_of(arrays, call(), way):.3g}")
        row["error_bound"] = 1.01 * HALF_STEPS[way.get("dtype", "e4m3")]
        if not row["error"] <= row["error_bound"]:
            row["left_out"] = "what was written is not what was read"
            continue
        if saturated is not None and saturated.any():
            row["left_out"] = "elements are counted as saturated whose factors are of the largest"
            continue
        moved = moved_bytes(shape, arrays[0].element_size(), way)
        source = torch.zeros(moved // 2, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        calls: dict[str, Callable[[], Any]] = {"flashcore": call, "copy": lambda target=target, source=source: target.copy_(source)}
        if device == "cpu":
            samples = samples_on_cpu(calls, rounds, rng)
        else:
            repeats = max(2, min(50, int(400 / (moved / 3e6 + 4))))
            row["calls_of_sample"] = repeats
            samples = samples_on_gpu(calls, dict.fromkeys(calls, repeats), rounds, rng)
        row["moved_bytes"] = moved
        row["samples_us"] = {party: [round(x, 3) for x in of] for party, of in samples.items()}
        row["us"] = {party: round(statistics.median(of), 3) for party, of in samples.items()}
        row["gbps"] = {party: float(f"{moved / us / 1e3:.4g}") for party, us in row["us"].items()}
        row["share_of_copy"] = round(statistics.median(c / f for c, f in zip(samples["copy"], samples["flashcore"])), 4)
        gc.collect()
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flashcore.quantize_bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default=None, help='"cuda:0" or "cpu"; default: the GPU if PyTorch sees one')
    parser.add_argument("--shapes", type=lambda text: [shape_of(word) for word in text.split(",")], metavar="SHAPE,...",
                        default=[Shape(8, 16, 16, 2048, 128), Shape(1, 32, 8, 16384, 128), Shape(1, 32, 32, 16384, 64), Shape(1, 8, 8, 16384, 256)],
                        help="as b8_h16_hk16_s2048_d128")  # fmt: skip
    parser.add_argument("--ways", type=lambda text: text.split(";"), default=list(WAYS), metavar="WAY;...", help="; ".join(WAYS))
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16", help="of what is quantised (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="samples of each party")
    parser.add_argument("--seed", type=int, default=1, help="of the data and the order of samples (default: %(default)s)")
    parser.add_argument("--json", type=pathlib.Path, help="where the samples go")
    options = parser.parse_args(argv)
    unknown = [way for way in options.ways if way not in WAYS]
    if unknown or options.rounds < 1:
        parser.error(f"'{unknown[0]}' is no way; use of {'; '.join(WAYS)}" if unknown else f"--rounds is {options.rounds}; at least 1")
    try:
        import torch

        device = options.device or ("cuda:0" if torch.cuda.is_available() else "cpu")
        described = json.loads(_library.text_of(_library.library().fc_context_describe, _library.context(device)))
    except (ImportError, _library.Error) as error:
        print(f"flashcore.quantize_bench: error: {error}", file=sys.stderr)
        return 4
    rows = []
    for shape in options.shapes:
        for row in measure(shape, device, options.dtype, options.ways, options.rounds, options.seed):
            rows.append(row)
            print(f"{row['shape']:28} {row['way']:20} " + (row.get("left_out") or f"{row['us']['flashcore']:10.1f} us {row['gbps']['flashcore']:8.1f} GB/s, "
                  f"{row['share_of_copy']:.3f} of the copy's speed"))  # fmt: skip
    timed = [row["share_of_copy"] for row in rows if "share_of_copy" in row]
    if timed:
        print(f"{len(timed)} rows, {math.exp(statistics.fmean(math.log(share) for share in timed)):.3f} of the copy's speed (geometric mean)")
    if options.json:
        from . import __version__

        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({
            "schema": "flashcore.quantize_bench/1", "what": "a survey (docs/fp8.md), not judged by the gates", "measured_at": datetime.datetime.now(datetime.timezone.utc).isoformat(),
            "device": described["name"], "key": described["key"], "driver": described.get("driver"), "flashcore": __version__,
            "source_hash": described.get("source_hash", ""), "pytorch": torch.__version__, "dtype": options.dtype, "rounds": options.rounds, "seed": options.seed, "rows": rows,
        }, indent=1) + "\n")  # fmt: skip
    return 1 if any("not what was read" in row.get("left_out", "") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
