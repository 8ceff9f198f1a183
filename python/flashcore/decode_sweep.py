"""Decoding from paged caches beside its peers, over many batches, lengths and groups: where is flashcore slower.

    python -m flashcore.decode_sweep --json results/h100/decode_sweep.json

One query row a sequence, bf16, pages of 16 keys in random order, equal lengths. Each party is captured into a CUDA graph of several
calls; in each round every graph is replayed once after a replay of its own, in random order, so that small caches lie in L2 for all
of them. Before it is timed, an output has to agree with fp32 arithmetic of PyTorch on the first and the last sequence.

A survey: no gates, one process, no calibration of the timer, hundreds of problems a minute. `python -m flashcore.peers` is for
results of single problems.
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
from typing import Any, Callable, Iterator

from . import _library, explain, paged_attention
from ._peers.problem import Problem
from ._peers.registry import available, peer_call

PAGE = 16
MOST_CACHE_BYTES = 17e9
ERROR_BOUND = 5e-3  # of o against fp32: twice the 2.4e-3 that rounding P and o to bf16 comes to


class Decoding(Problem):
    """As a peer's problem of the laboratory, with tensors made here."""

    def __init__(self, batch: int, keys: int, group: int, heads_kv: int, dim: int, seed: int) -> None:
        import torch

        generator = torch.Generator("cuda").manual_seed(seed)
        normal = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16, generator=generator)  # noqa: E731
        of_sequence = -(-keys // PAGE)
        pages = of_sequence * batch
        self.batch, self.heads, self.heads_kv, self.rows, self.keys, self.dim, self.dim_v = batch, group * heads_kv, heads_kv, 1, keys, dim, dim
        self.scale, self.left, self.right, self.softcap, self.slopes, self.sink = None, None, None, None, None, None
        self.scaling, self.score_text, self.mask_text, self.layout, self.alignment = "none", "", "", "bshd", "bottom_right"
        self.device, self.on_gpu, self.descales, self.tensors = "cuda:0", True, (), {}
        self.dtype = self.o_dtype = self.kv_dtype = torch.bfloat16
        self.ragged = self.paged = True
        self.page_size, self.total_q = PAGE, batch
        self.k_cache, self.v_cache = normal(pages, PAGE, heads_kv, dim), normal(pages, PAGE, heads_kv, dim)
        self.k, self.v = self.k_cache.transpose(1, 2), self.v_cache.transpose(1, 2)
        self.rows_of_q = normal(batch, self.heads, dim)
        self.q = self.rows_of_q.transpose(0, 1).unsqueeze(0)
        self.cu_seqlens_q = torch.arange(batch + 1, dtype=torch.int32, device="cuda")
        self.seqused_kv = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
        self.block_table = torch.randperm(pages, device="cuda", generator=generator).to(torch.int32).view(batch, of_sequence)
        torch.cuda.synchronize()  # graphs run on streams of their own

    def reference(self, sequence: int) -> Any:
        """[heads, dim], in fp32."""
        import torch

        pages = self.block_table[sequence].long()
        k, v = (x[pages].flatten(0, 1)[: self.keys].float() for x in (self.k_cache, self.v_cache))
        q = self.rows_of_q[sequence].float().view(self.heads_kv, -1, self.dim)
        p = (torch.einsum("hgd,khd->hgk", q, k) / math.sqrt(self.dim)).softmax(-1)
        return torch.einsum("hgk,khd->hgd", p, v).reshape(self.heads, self.dim)

    def error_of(self, out: Any) -> float:
        """The largest relative error of the sequences looked at; `out` is [batch, heads, dim]."""
        of = lambda s, want: ((out[s].float() - want).norm() / want.norm()).item()  # noqa: E731
        return max(of(s, self.reference(s)) for s in {0, self.batch - 1})


def parties_of(p: Decoding, peers: list[str]) -> Iterator[tuple[str, Callable[[], tuple[Callable[[], Any], Callable[[], Any]]]]]:
    """By name: what makes a call and the [batch, heads, dim] that it wrote last."""
    import torch

    def ours() -> tuple[Callable[[], Any], Callable[[], Any]]:
        out = torch.empty_like(p.rows_of_q)
        call = lambda: paged_attention(p.rows_of_q, p.k_cache, p.v_cache, p.block_table, p.seqused_kv, cu_seqlens_q=p.cu_seqlens_q, max_seqlen_q=1,  # noqa: E731
                                       max_seqlen_kv=p.keys, out=out, stream=torch.cuda.current_stream().cuda_stream)  # fmt: skip
        return call, lambda: out

    def theirs(name: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
        call = peer_call(name, p)
        return call.run, lambda: call.outputs()[0][0].reshape(p.heads, p.batch, p.dim).transpose(0, 1)

    yield "flashcore", ours
    for peer in peers:
        yield peer, lambda peer=peer: theirs(peer)


def captured(call: Callable[[], Any], calls: int) -> Any:
    import torch

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        call()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(calls):
                call()
    return graph


def measure(p: Decoding, peers: list[str], rounds: int, rng: random.Random) -> dict[str, Any]:
    import torch

    bytes_read = 2 * p.batch * p.keys * p.heads_kv * p.dim * 2
    calls = max(2, min(30, int(300 / (bytes_read / 3e6 + 4))))
    row: dict[str, Any] = {"batch": p.batch, "keys": p.keys, "group": p.heads // p.heads_kv, "calls_of_sample": calls, "samples_us": {}, "errors": {}, "refused": {}}
    row["candidate"] = explain(f"b{p.batch}_h{p.heads}_hk{p.heads_kv}_sq1_sk{p.keys}_d{p.dim}_bf16_bshd_raggedfull_page{PAGE}", device=p.device)["candidate"]
    graphs: dict[str, Any] = {}
    for name, make in parties_of(p, peers):
        try:
            call, output = make()
            graph = captured(call, calls)
            error = p.error_of(output())
        except Exception as failure:  # of whatever kind, a peer's
            row["refused"][name] = f"{type(failure).__name__}: {failure}"[:200]
            continue
        row["errors"][name] = float(f"{error:.3g}")
        if not error < ERROR_BOUND:
            row["refused"][name] = f"its error is {error:.3g}, and {ERROR_BOUND} is allowed"
            continue
        graphs[name], row["samples_us"][name] = (graph, call, output), []
    for _ in range(rounds):
        for name in rng.sample(sorted(graphs), len(graphs)):
            graph = graphs[name][0]
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            graph.replay()
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            row["samples_us"][name].append(round(start.elapsed_time(end) * 1e3 / calls, 3))
    for name in list(graphs):  # what was timed, not only the call before it
        error = p.error_of(graphs[name][2]())
        if not error < ERROR_BOUND:
            row["refused"][name] = f"its error after the last replay is {error:.3g}, and {ERROR_BOUND} is allowed"
            del row["samples_us"][name]
    row["us"] = {name: round(statistics.median(samples), 3) for name, samples in row["samples_us"].items()}
    others = [us for name, us in row["us"].items() if name != "flashcore"]
    if others and "flashcore" in row["us"]:
        row["speedup"] = round(min(others) / row["us"]["flashcore"], 4)
    return row


def print_summary(rows: list[dict[str, Any]]) -> None:
    timed = [row for row in rows if "speedup" in row]
    if not timed:
        print("nothing was timed beside a peer")
        return
    mean = math.exp(statistics.fmean(math.log(row["speedup"]) for row in timed))
    behind = sorted((row for row in timed if row["speedup"] < 0.98), key=lambda row: row["speedup"])
    for row in behind:
        print(f"batch {row['batch']:4} keys {row['keys']:6} group {row['group']:3}  x{row['speedup']:.3f}  " + "  ".join(f"{k} {v} us" for k, v in row["us"].items()))
    print(f"{len(timed)} problems, {mean:.3f} times the faster peer (geometric mean), slower by more than 2% on {len(behind)}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flashcore.decode_sweep", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(word) for word in text.split(",")]  # noqa: E731
    parser.add_argument("--batches", type=numbers, default=[1, 2, 3, 5, 8, 17, 33, 64, 128, 256], help="numbers of sequences (default: %(default)s)")
    parser.add_argument("--keys", type=numbers, default=[128, 1000, 4096, 16384, 65536], help="of each sequence (default: %(default)s)")
    parser.add_argument("--groups", type=numbers, default=[1, 4, 7, 8, 16], help="query heads of a key head (default: %(default)s)")
    parser.add_argument("--heads-kv", type=int, default=8, help="key heads (default: %(default)s)")
    parser.add_argument("--head-dim", type=int, default=128, help="columns of q, k and v (default: %(default)s)")
    parser.add_argument("--peers", default="cudnn_frontend,flashinfer", help="what is measured beside flashcore, as of flashcore.peers (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=8, help="samples of each party (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the data and the order of samples (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=600, metavar="SECONDS", help="no further problem after so long")
    parser.add_argument("--json", type=pathlib.Path, help="where the samples go")
    options = parser.parse_args(argv)
    try:
        import torch

        if not torch.cuda.is_available():
            raise _library.Error("this needs a GPU that PyTorch sees")
        peers, absent = available([name for name in options.peers.split(",") if name], True)
    except (ImportError, _library.Error) as error:
        print(f"flashcore.decode_sweep: error: {error}", file=sys.stderr)
        return 4
    for name, why in absent.items():
        print(f"without {name}: {why}")
    begun, rng, rows, left_out = time.monotonic(), random.Random(options.seed), [], []
    for group in options.groups:
        for batch in options.batches:
            for keys in options.keys:
                what = {"batch": batch, "keys": keys, "group": group}
                if batch * keys * options.heads_kv * options.head_dim * 4 > MOST_CACHE_BYTES:
                    left_out.append(what | {"why": f"a cache of more than {MOST_CACHE_BYTES / 1e9:.0f} GB"})
                elif time.monotonic() - begun > options.limit:
                    left_out.append(what | {"why": f"{options.limit:.0f} s were over"})
                else:
                    gc.collect()  # a graph that is freed while another is captured breaks that
                    torch.cuda.empty_cache()
                    rows.append(measure(Decoding(batch, keys, group, options.heads_kv, options.head_dim, options.seed), list(peers), options.rounds, rng))
    print_summary(rows)
    print(f"{len(left_out)} left out")
    if options.json:
        from . import __version__

        described = json.loads(_library.text_of(_library.library().fc_context_describe, _library.context("cuda:0")))
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({
            "schema": "flashcore.decode_sweep/1", "what": "a survey (docs/peers.md), not judged by the gates", "measured_at": datetime.datetime.now(datetime.timezone.utc).isoformat(),
            "device": torch.cuda.get_device_name(), "flashcore": __version__, "source_hash": described.get("source_hash", ""), "pytorch": torch.__version__, "peers": peers, "dtype": "bf16",
            "heads_kv": options.heads_kv, "head_dim": options.head_dim, "page_size": PAGE, "seed": options.seed, "rows": rows, "left_out": left_out,
        }) + "\n")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
