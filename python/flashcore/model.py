"""A real model with and without flashcore: logits, latency, torch.compile and CUDA graphs.

    python -m flashcore.model                       # a GPU if there is one, else a small model on the CPU
    python -m flashcore.model --device cuda --layers 8 --seqlen 8192 --json model.json

A Llama-style transformers model (grouped-query heads, rotary embedding, SwiGLU; random weights) reads a prompt. Its logits
with attn_implementation="flashcore" are compared with those of PyTorch's scaled_dot_product_attention, called in the same
way: without the mask that transformers' own "sdpa" would make under torch.compile and in graph captures. The bound is derived, not guessed: both
are compared with the same model in a wider type (float32 for 16-bit weights, float64 for float32), and flashcore may be at
most FACTOR times as far from it as PyTorch is, and at most twice that far from PyTorch. Exit code 1 if it is not.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import pathlib
import statistics
import sys
import time
from typing import Any, Callable

FACTOR = 1.5
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m flashcore.model", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="cpu, cuda or cuda:N")
    parser.add_argument("--dtype", choices=sorted(_DTYPES), help="default: bf16 on a GPU, fp32 on the CPU")
    for name, gpu, cpu in (("layers", 4, 2), ("hidden", 4096, 256), ("heads", 32, 8), ("kv-heads", 8, 2), ("seqlen", 4096, 256), ("batch", 1, 1), ("rounds", 15, 5)):
        parser.add_argument(f"--{name}", type=int, help=f"default: {gpu} on a GPU, {cpu} on the CPU")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--json", help="also write the results there")
    options = parser.parse_args(argv)
    import torch

    if options.device is None:
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    on_gpu = options.device.startswith("cuda")
    defaults = {"layers": (4, 2), "hidden": (4096, 256), "heads": (32, 8), "kv_heads": (8, 2), "seqlen": (4096, 256), "batch": (1, 1), "rounds": (15, 5), "dtype": ("bf16", "fp32")}
    for name, (gpu, cpu) in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, gpu if on_gpu else cpu)
    return options


def _register_pytorch() -> None:
    """PyTorch's attention under the same rules as ours: what is compared is the attention, not how its mask is made."""
    import torch
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    from . import transformers as ours

    def forward(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, dropout: float = 0.0, scaling: Any = None,
                is_causal: Any = None, **kwargs: Any) -> Any:  # fmt: skip
        is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        attention = torch.nn.functional.scaled_dot_product_attention
        return ours._attend(attention, query, key, value, attention_mask, dropout, scaling, is_causal)

    AttentionInterface.register("pytorch", forward)
    AttentionMaskInterface.register("pytorch", ours.attention_mask_or_none)


def build(options: argparse.Namespace) -> Any:
    """The model, in the dtype asked for, on the device, in inference mode."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=options.hidden, intermediate_size=options.hidden * 7 // 2, num_hidden_layers=options.layers, num_attention_heads=options.heads,
        num_key_value_heads=options.kv_heads, vocab_size=2048, max_position_embeddings=max(options.seqlen, 64))  # fmt: skip
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config).to(dtype=getattr(torch, _DTYPES[options.dtype]), device=options.device)
    return model.eval()


def _relative(a: Any, b: Any) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def compare_logits(model: Any, ids: Any) -> dict[str, Any]:
    """Distances of the logits: flashcore's and PyTorch's to the wider model, and to each other, with the bounds."""
    import torch

    wide_dtype = torch.float64 if model.dtype == torch.float32 else torch.float32
    logits = {}
    for name in ("pytorch", "flashcore"):
        model.set_attn_implementation(name)
        logits[name] = model(ids).logits
    wide = copy.deepcopy(model).to(wide_dtype)
    wide.set_attn_implementation("eager")
    reference = wide(ids, use_cache=False).logits
    del wide
    of_pytorch, of_flashcore = _relative(logits["pytorch"], reference), _relative(logits["flashcore"], reference)
    apart = _relative(logits["flashcore"], logits["pytorch"])
    return {
        "pytorch_to_wider": of_pytorch, "flashcore_to_wider": of_flashcore, "flashcore_to_pytorch": apart, "bound_to_wider": FACTOR * of_pytorch,
        "bound_to_pytorch": 2 * FACTOR * of_pytorch, "same_next_token": float((logits["pytorch"].argmax(-1) == logits["flashcore"].argmax(-1)).float().mean()),
        "within": bool(of_flashcore <= FACTOR * of_pytorch and apart <= 2 * FACTOR * of_pytorch and math.isfinite(of_flashcore)),
    }  # fmt: skip


def _milliseconds(call: Callable[[], Any], on_gpu: bool) -> float:
    import torch

    if not on_gpu:
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e3
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def interleave(calls: dict[str, Callable[[], Any]], rounds: int, on_gpu: bool) -> dict[str, Any]:
    """Median milliseconds of each, taken in turns, and how much faster "flashcore" is, with the spread over rounds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(2):
            _milliseconds(call, on_gpu)
    for turn in range(rounds):
        for name in list(calls)[:: 1 if turn % 2 == 0 else -1]:
            times[name].append(_milliseconds(calls[name], on_gpu))
    ratios = sorted(a / b for a, b in zip(times["pytorch"], times["flashcore"]))
    return {
        **{f"{name}_ms": statistics.median(values) for name, values in times.items()},
        "speedup": statistics.median(ratios), "speedup_range": [ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]], "rounds": rounds,
    }  # fmt: skip


def _captured(model: Any, ids: Any, name: str) -> Callable[[], Any]:
    import torch

    model.set_attn_implementation(name)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            model(ids)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graph.output = model(ids).logits  # type: ignore[attr-defined]
    return graph.replay


def measure(model: Any, ids: Any, rounds: int, compile_too: bool) -> dict[str, Any]:
    """Latency of the prefill: eager, from a CUDA graph (on a GPU), and under torch.compile."""
    import torch

    on_gpu = ids.device.type == "cuda"

    def eager(name: str) -> Callable[[], Any]:
        def switched() -> Any:
            if model.config._attn_implementation != name:
                model.set_attn_implementation(name)
            return model(ids)

        return switched

    found: dict[str, Any] = {"eager": interleave({name: eager(name) for name in ("pytorch", "flashcore")}, rounds, on_gpu)}
    if on_gpu:
        found["graph"] = interleave({name: _captured(model, ids, name) for name in ("pytorch", "flashcore")}, rounds, on_gpu)
    if compile_too:
        compiled = {}
        for name in ("pytorch", "flashcore"):
            twin = copy.deepcopy(model)
            twin.set_attn_implementation(name)
            function = torch.compile(twin, fullgraph=True)
            compiled[name] = lambda function=function: function(ids)
        found["compiled"] = interleave(compiled, rounds, on_gpu)
    return found


def graph_breaks(model: Any, ids: Any) -> dict[str, Any]:
    """What torch.compile would break at, with flashcore in the model."""
    import torch

    model.set_attn_implementation("flashcore")
    torch._dynamo.reset()
    explained = torch._dynamo.explain(model)(ids)
    torch._dynamo.reset()
    operators = sum("flashcore.attention" in str(node.target) for graph in explained.graphs for node in graph.graph.nodes)
    return {"count": explained.graph_break_count, "reasons": [str(reason.reason) for reason in explained.break_reasons], "flashcore_operators": operators}


def main(argv: list[str] | None = None) -> int:
    options = _arguments(argv)
    import torch
    import transformers

    import flashcore
    import flashcore.transformers

    torch.backends.cuda.matmul.allow_tf32 = False
    _register_pytorch()
    model = build(options)
    ids = torch.randint(0, 2048, (options.batch, options.seqlen), device=options.device)
    with torch.no_grad():
        logits = compare_logits(model, ids)
        breaks = graph_breaks(model, ids)
        latency = measure(model, ids, options.rounds, not options.no_compile)
    result = {
        "schema": "flashcore.model/1", "problem": {name: value for name, value in vars(options).items() if name != "json"}, "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "flashcore": flashcore.__version__},
        "device": torch.cuda.get_device_name() if options.device.startswith("cuda") else "cpu", "logits": logits, "graph_breaks": breaks, "latency": latency,
    }  # fmt: skip
    print(f"logits: flashcore {logits['flashcore_to_wider']:.2e} from the wider model (bound {logits['bound_to_wider']:.2e}), PyTorch {logits['pytorch_to_wider']:.2e}; "
          f"{logits['flashcore_to_pytorch']:.2e} from each other: {'within' if logits['within'] else 'OUTSIDE'}")  # fmt: skip
    print(f"torch.compile: {breaks['count']} graph breaks, {breaks['flashcore_operators']} flashcore operators")
    for kind, times in latency.items():
        low, high = times["speedup_range"]
        print(f"{kind:8s} pytorch {times['pytorch_ms']:.3f} ms, flashcore {times['flashcore_ms']:.3f} ms: {times['speedup']:.3f} x [{low:.3f}, {high:.3f}]")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    return 0 if logits["within"] and breaks["count"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
