"""What a quantised cache costs from end to end, on the shapes of real models: attention on it against fp64 on what was quantised.

    python -m flashcore.cache_error                                              # a GPU if PyTorch sees one, else the CPU with fewer keys
    python -m flashcore.cache_error --device cuda --json results/h200/cache_error.json
    python -m flashcore.cache_error --models Llama-3-8B --data normal,both --keys 2048

K and V of 16 bits are quantised by flashcore.append into HND pages in random order, one line for each shape, length, kind of data, type and
kind of factors. flashcore.paged_attention then runs on the cache: each sequence but the last decodes a row, the last has a chunk of rows under
a causal mask. "end to end" compares with fp64 on the 16-bit q, k and v, "kernel" with fp64 on the cache's codes times their factors: the
difference is what quantising costs. Each has ||o - o64|| / ||o64||, the same of the worst row of a head, and the largest distance of a
log-sum-exp. The 16-bit cache in the same pages is the first line of each group: it is the floor.

Then a small decoder of random weights decodes tokens with each cache, and its logits are compared with those of the same decoder with a cache
and attention in fp64. Random weights show how errors pass through layers and residuals. They do not show what a trained model's text loses.

Exit code 1: on some cache the kernel is further from its own numbers than --slack times the 16-bit cache's distance, or its log-sum-exp by
more than --lse-slack. What quantising costs is told and judged by nobody.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import gc
import json
import math
import os
import pathlib
import re
import sys
from typing import Any, Iterator

from . import _cache_stack, _library, paged_attention
from ._cache_data import DATA, LARGEST, MODELS, PAGE, SCALINGS, Cache, Shape, Tensors, bytes_per_key, dequantised, filled, make

CPU_COLUMNS = 256  # of head dims on a CPU
WAYS: list[tuple[str | None, str | None]] = [(None, None), *((kind, scaling) for kind in LARGEST for scaling in SCALINGS)]


def name_of(line: dict[str, Any]) -> str:
    """Of a line's cache."""
    return f"{line['cache']}, {line['scaling']}" if line["scaling"] else str(line["cache"])


def reference(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    """(o [rows of all sequences, heads, dim_v], lse [heads, rows of all sequences]) in fp64: rows as `make` deals them out."""
    import torch

    batch, keys, heads_kv = k.shape[:3]
    outs, lses = [], []
    for sequence in range(batch):
        rows = q[sequence : sequence + 1] if sequence < batch - 1 else q[sequence:]
        count, heads, dim = rows.shape
        grouped = rows.double().transpose(0, 1).reshape(heads_kv, -1, dim)  # [heads_kv, heads of a group x rows, dim]
        scores = grouped @ k[sequence].double().permute(1, 2, 0) / math.sqrt(dim)
        hidden = torch.arange(keys, device=q.device) > torch.arange(keys - count, keys, device=q.device)[:, None]
        scores = scores.view(heads_kv, -1, count, keys).masked_fill(hidden, -math.inf).flatten(1, 2)
        outs.append((scores.softmax(-1) @ v[sequence].double().transpose(0, 1)).view(heads, count, -1).transpose(0, 1))
        lses.append(scores.logsumexp(-1).view(heads, count))
    return torch.cat(outs), torch.cat(lses, 1)


def attend(q: Any, cache: Cache, keys: int) -> tuple[Any, Any]:
    """flashcore's (o, lse), of rows as `make` deals them out."""
    import torch

    batch = cache.table.shape[0]
    boundaries = torch.tensor([*range(batch), q.shape[0]], dtype=torch.int32, device=q.device)
    lengths = torch.full((batch,), keys, dtype=torch.int32, device=q.device)
    return paged_attention(q, cache.k, cache.v, cache.table, lengths, cu_seqlens_q=boundaries, max_seqlen_q=q.shape[0] - batch + 1, max_seqlen_kv=keys,
                           layout="HND", causal=True, return_lse=True, kv_dtype=cache.kv_dtype, **cache.factors)  # type: ignore[no-any-return]  # fmt: skip


def distances(found: tuple[Any, Any], right: tuple[Any, Any]) -> dict[str, float]:
    (o, lse), (right_o, right_lse) = found, right
    apart, size = (o.double() - right_o).norm(dim=-1), right_o.norm(dim=-1)
    return {"o": _rounded(apart.norm() / size.norm()), "worst_row": _rounded((apart / size).max()), "lse": _rounded((lse.double() - right_lse).abs().max())}


def _rounded(x: Any) -> float:
    return float(f"{float(x):.4g}")


def compile_ahead(models: list[str], keys: int, batch: int, rows: int, dtype: str, device: str) -> None:
    """Each model and cache has a kernel of its own: on a GPU they are compiled on all cores at once, since one after another would take the most
    time of all."""
    import torch

    def run(task: tuple[Tensors, Shape, tuple[str | None, str | None]]) -> None:
        x, shape, way = task
        attend(x.q, filled(x, shape, *way, seed=1), keys)

    given = [(make(MODELS[model], "normal", batch, keys, rows, getattr(torch, dtype), device, seed=1), MODELS[model]) for model in models]
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        list(pool.map(run, [(x, shape, way) for x, shape in given for way in WAYS]))


def measure(models: list[str], data: list[str], lengths: list[int], batch: int, rows: int, dtype: str, device: str, seed: int) -> Iterator[dict[str, Any]]:
    """A line for each model, length, kind of data and cache, the 16-bit cache first; or {"left_out", "why"}."""
    import torch

    if device != "cpu":
        compile_ahead(models, min(lengths), batch, rows, dtype, device)
    for model in models:
        shape = MODELS[model]
        if device == "cpu" and shape.dim > CPU_COLUMNS:
            yield {"left_out": model, "why": f"head dim {shape.dim}: a CPU has them up to {CPU_COLUMNS}"}
            continue
        for keys in lengths:
            for kind in data:
                x = make(shape, kind, batch, keys, rows, getattr(torch, dtype), device, seed)
                right = reference(*x)
                for way in WAYS:
                    yield {"model": model, "keys": keys, "data": kind, **_line(x, shape, way, right, seed)}
                del x, right
                gc.collect()


def _line(x: Tensors, shape: Shape, way: tuple[str | None, str | None], right: tuple[Any, Any], seed: int) -> dict[str, Any]:
    keys = x.k.shape[1]
    cache = filled(x, shape, *way, seed)
    found = attend(x.q, cache, keys)
    own = right if way[0] is None else reference(x.q, *dequantised(cache, keys))
    return {"cache": way[0] or "16 bits", "scaling": way[1], "bytes_per_key": bytes_per_key(shape, *way), "end_to_end": distances(found, right), "kernel": distances(found, own)}


def failures(lines: list[dict[str, Any]], slack: float, lse_slack: float) -> list[str]:
    """What the gates say, in words."""
    found, floor = [], math.nan
    for line in lines:
        what = f"{line['model']}, {line['keys']} keys, {line['data']}, {name_of(line)}"
        if line["scaling"] is None:
            floor = line["kernel"]["o"]
        if not line["kernel"]["o"] <= slack * floor:
            found.append(f"{what}: the kernel is {line['kernel']['o']:.3g} from the cache's own numbers, and {slack * floor:.3g} is allowed")
        if not line["kernel"]["lse"] <= lse_slack:
            found.append(f"{what}: its log-sum-exp is {line['kernel']['lse']:.3g} from that of the cache's own numbers, and {lse_slack:.3g} is allowed")
    return found


def print_tables(lines: list[dict[str, Any]], decoded: list[dict[str, Any]]) -> None:
    print(f"{'model':12} {'keys':>6} {'data':9} {'cache':13} {'bytes/key':>9} {'end to end':>10} {'worst row':>9} {'lse':>9} {'kernel':>9} {'its lse':>9}")
    for line in lines:
        whole, own = line["end_to_end"], line["kernel"]
        print(f"{line['model']:12} {line['keys']:6} {line['data']:9} {name_of(line):13} {line['bytes_per_key']:9.0f} {whole['o']:10.4f} {whole['worst_row']:9.4f} {whole['lse']:9.2g} "
              f"{own['o']:9.4f} {own['lse']:9.2g}")  # fmt: skip
    for line in decoded:
        print(f"decoder, {line['weights']:14} {name_of(line):13} logits {line['logits']:8.4f}, tokens as with 16 bits: {line['same_tokens']} of {line['tokens']}")


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    words = lambda text: text.split(",")  # noqa: E731
    parser = argparse.ArgumentParser(prog="python -m flashcore.cache_error", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="cpu, cuda or cuda:N; default: the GPU if PyTorch sees one")
    parser.add_argument("--models", type=words, default=list(MODELS), help=f"of {','.join(MODELS)}")
    parser.add_argument("--data", type=words, default=list(DATA), help=f"of {','.join(DATA)}")
    parser.add_argument("--keys", type=words, help="lengths of the caches; default: 4096,32768 on a GPU, 1024 on a CPU")
    parser.add_argument("--batch", type=int, default=3, help="sequences; all but the last decode one row (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=16, help="of the last sequence (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=32, help="that the decoder decodes for each of four sequences; 0: no decoder (default: %(default)s)")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16", help="of q, and of K and V before (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of all random numbers (default: %(default)s)")
    parser.add_argument("--slack", type=float, default=2.0, help="how many times the distance ||o - o64|| / ||o64|| of the 16-bit cache that of another cache may be, each "
                        "from fp64 on what the cache itself holds; beyond it the exit code is 1 (default: %(default)s)")  # fmt: skip
    parser.add_argument("--lse-slack", type=float, default=1e-3, help="how far a log-sum-exp may be from the one in fp64 of what the cache itself holds; beyond it the exit code "
                        "is 1 (default: %(default)s)")  # fmt: skip
    parser.add_argument("--json", type=pathlib.Path, help="also write the numbers there")
    options = parser.parse_args(argv)
    if options.device and not re.fullmatch(r"cpu|cuda(:\d+)?", options.device):
        parser.error(f"--device {options.device}: use cpu, cuda or cuda:N")
    for name, known in (("models", MODELS), ("data", DATA)):
        if unknown := [word for word in getattr(options, name) if word not in known]:
            parser.error(f"--{name} {unknown[0]}: use some of {','.join(known)}")
    for name, least in (("batch", 1), ("rows", 1), ("tokens", 0)):
        if getattr(options, name) < least:
            parser.error(f"--{name} is {getattr(options, name)}: at least {least}")
    if options.keys is not None:
        if unknown := [word for word in options.keys if not word.isdigit() or int(word) < max(16, options.rows)]:
            parser.error(f"--keys {unknown[0]}: give numbers of keys, at least {max(16, options.rows)}, as 4096,32768")
        options.keys = [int(word) for word in options.keys]
    return options


def main(argv: list[str] | None = None) -> int:
    options = _arguments(argv)
    try:
        import torch

        device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
        device = "cuda:0" if device == "cuda" else device
        described = json.loads(_library.text_of(_library.library().fc_context_describe, _library.context(device)))
        options.keys = options.keys or ([1024] if device == "cpu" else [4096, 32768])
        made = list(measure(options.models, options.data, options.keys, options.batch, options.rows, options.dtype, device, options.seed))
        decoded = list(_cache_stack.measure(options.tokens, options.dtype, device, options.seed)) if options.tokens else []
    except (ImportError, _library.Error) as error:
        print(f"flashcore.cache_error: error: {error}", file=sys.stderr)
        return 4
    lines, left_out = [line for line in made if "left_out" not in line], [line for line in made if "left_out" in line]
    print_tables(lines, decoded)
    for line in left_out:
        print(f"without {line['left_out']}: {line['why']}")
    failed = failures(lines, options.slack, options.lse_slack)
    for text in failed:
        print(f"FAILED {text}")
    if options.json:
        from . import __version__

        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({
            "schema": "flashcore.cache_error/1", "what": "errors of quantised caches (docs/serving.md), not judged by verify", "measured_at": datetime.datetime.now(datetime.timezone.utc).isoformat(),
            "device": described["name"], "key": described["key"], "driver": described.get("driver"), "flashcore": __version__, "source_hash": described.get("source_hash", ""),
            "pytorch": torch.__version__, "dtype": options.dtype, "batch": options.batch, "rows": options.rows, "page_size": PAGE, "seed": options.seed, "slack": options.slack,
            "lse_slack": options.lse_slack, "models": {model: MODELS[model]._asdict() for model in options.models}, "failed": failed, "left_out": left_out,
            "lines": lines, "decoder": {"sizes": _cache_stack.SIZES._asdict(), "lines": decoded}}) + "\n")  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
