"""A real model with and without flashcore: logits, latency, torch.compile, CUDA graphs, and generating from padded prompts.

    python -m flashcore.model                       # a GPU if there is one, else a small model on the CPU
    python -m flashcore.model --device cuda --layers 8 --seqlen 8192 --json model.json

A Llama-style transformers model (grouped-query heads, rotary embedding, SwiGLU; random weights) reads a prompt. Its logits
with attn_implementation="flashcore" are compared with those of PyTorch's scaled_dot_product_attention, called in the same
way: without the mask that transformers' own "sdpa" would make under torch.compile and in graph captures. The bound is derived, not guessed: both
are compared with the same model in a wider type (float32 for 16-bit weights, float64 for float32), and flashcore may be at
most FACTOR times as far from it as PyTorch is, and at most twice that far from PyTorch. Exit code 1 if it is not.

Then `generate` continues a batch of prompts of different lengths, padded on the left, with "flashcore" and with transformers'
own "sdpa". The logits of the prompts' rows have the same bounds, and a whole call is timed. Every note that something ran on
PyTorch is told; the exit code is 1 then, too. Greedy tokens may differ where two logits are closer than rounding.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import math
import pathlib
import statistics
import sys
import time
import warnings
from typing import Any, Callable, Iterator

FACTOR = 1.5
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
# On a GPU, and on the CPU. --batch is of the prompts that are not padded.
_SIZES: dict[str, tuple[int, int]] = {
    "layers": (4, 2), "hidden": (4096, 256), "heads": (32, 8), "kv-heads": (8, 2), "seqlen": (4096, 256), "batch": (1, 1), "rounds": (15, 5),
    "padded-batch": (8, 3), "new-tokens": (32, 8),
}  # fmt: skip


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is below 1")
    return number


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m flashcore.model", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="cpu, cuda or cuda:N")
    parser.add_argument("--dtype", choices=sorted(_DTYPES), help="default: bf16 on a GPU, fp32 on the CPU")
    for name, (gpu, cpu) in _SIZES.items():
        parser.add_argument(f"--{name}", type=_positive, metavar="N", help=f"default: {gpu} on a GPU, {cpu} on the CPU")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--json", help="also write the results there")
    options = parser.parse_args(argv)
    import torch

    if options.device is None:
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    on_gpu = options.device.startswith("cuda")
    for name, (gpu, cpu) in {**{name.replace("-", "_"): sizes for name, sizes in _SIZES.items()}, "dtype": ("bf16", "fp32")}.items():
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
        num_key_value_heads=options.kv_heads, vocab_size=2048, max_position_embeddings=max(options.seqlen + options.new_tokens, 64))  # fmt: skip
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config).to(dtype=getattr(torch, _DTYPES[options.dtype]), device=options.device)
    return model.eval()


def _relative(a: Any, b: Any) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def compare_logits(model: Any, ids: Any, mask: Any = None, theirs: str = "pytorch") -> dict[str, Any]:
    """Distances of the logits, of the rows that `mask` shows: flashcore's and PyTorch's to the wider model, and to each other,
    with the bounds."""
    import torch

    wide_dtype = torch.float64 if model.dtype == torch.float32 else torch.float32
    wide = copy.deepcopy(model).to(wide_dtype)
    rows = slice(None) if mask is None else mask.bool()

    def logits_of(of: Any, name: str, **options: Any) -> Any:
        of.set_attn_implementation(name)
        return of(ids, attention_mask=mask, **options).logits[rows]

    pytorch, flashcore = logits_of(model, theirs), logits_of(model, "flashcore")
    # Not "eager" with padding: it gives NaN in rows that see no key, and a layer later these rows are keys of others. The
    # cache of the wide model would only take memory.
    reference = logits_of(wide, "eager" if mask is None else "sdpa", use_cache=False)
    del wide
    of_pytorch, of_flashcore, apart = _relative(pytorch, reference), _relative(flashcore, reference), _relative(flashcore, pytorch)
    return {
        "pytorch_to_wider": of_pytorch, "flashcore_to_wider": of_flashcore, "flashcore_to_pytorch": apart, "bound_to_wider": FACTOR * of_pytorch,
        "bound_to_pytorch": 2 * FACTOR * of_pytorch, "same_next_token": float((pytorch.argmax(-1) == flashcore.argmax(-1)).float().mean()),
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


@contextlib.contextmanager
def _notes() -> Iterator[list[str]]:
    """Every Note of the calls within, those too that this process has had before."""
    from . import Note, _plan

    said, notes = set(_plan._said), []
    _plan._said.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield notes
        finally:
            _plan._said.update(said)
            notes += [str(warning.message) for warning in caught if issubclass(warning.category, Note)]


def padded_prompts(batch: int, seqlen: int, device: Any) -> tuple[Any, Any]:
    """Ids and mask [batch, seqlen]: prompts of seqlen tokens down to a quarter of that, padded on the left."""
    import torch

    lengths = torch.linspace(seqlen, max(1, seqlen // 4), batch).round().long().to(device)
    mask = (torch.arange(seqlen, device=device) >= seqlen - lengths[:, None]).long()
    return torch.randint(1, 2048, (batch, seqlen), device=device) * mask, mask


def measure_generating(model: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Greedy `generate` from padded prompts: what ran on PyTorch all the same, how right the prompts' logits are, and the time."""
    ids, mask = padded_prompts(options.padded_batch, options.seqlen, model.device)

    def generate(name: str) -> Any:
        if model.config._attn_implementation != name:
            model.set_attn_implementation(name)
        return model.generate(ids, attention_mask=mask, max_new_tokens=options.new_tokens, min_new_tokens=options.new_tokens, do_sample=False, pad_token_id=0)

    with _notes() as notes:
        flashcore = generate("flashcore")
        logits = compare_logits(model, ids, mask, "sdpa")
    same = float((flashcore == generate("sdpa"))[:, options.seqlen :].float().mean())
    times = interleave({"pytorch": lambda: generate("sdpa"), "flashcore": lambda: generate("flashcore")}, options.rounds, ids.device.type == "cuda")
    return {"prompt_tokens": int(mask.sum()), "notes": notes, "same_tokens": same, "logits": logits, "latency": times}


def _say_logits(of: str, logits: dict[str, Any]) -> None:
    print(f"{of}: flashcore {logits['flashcore_to_wider']:.2e} from the wider model (bound {logits['bound_to_wider']:.2e}), PyTorch {logits['pytorch_to_wider']:.2e}; "
          f"{logits['flashcore_to_pytorch']:.2e} from each other: {'within' if logits['within'] else 'OUTSIDE'}")  # fmt: skip


def _say_latency(of: str, times: dict[str, Any]) -> None:
    low, high = times["speedup_range"]
    print(f"{of:8s} pytorch {times['pytorch_ms']:.3f} ms, flashcore {times['flashcore_ms']:.3f} ms: PyTorch's time over flashcore's {times['speedup']:.3f} [{low:.3f}, {high:.3f}]")


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
        generating = measure_generating(model, options)
    result = {
        "schema": "flashcore.model/1", "problem": {name: value for name, value in vars(options).items() if name != "json"}, "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "flashcore": flashcore.__version__},
        "device": torch.cuda.get_device_name() if options.device.startswith("cuda") else "cpu", "logits": logits, "graph_breaks": breaks, "latency": latency,
        "generate": generating,
    }  # fmt: skip
    _say_logits("logits", logits)
    print(f"torch.compile: {breaks['count']} graph breaks, {breaks['flashcore_operators']} flashcore operators")
    for kind, times in latency.items():
        _say_latency(kind, times)
    print(f"generate: {options.new_tokens} tokens for each of {options.padded_batch} padded prompts, {generating['prompt_tokens']} tokens together; {generating['same_tokens']:.1%} of the new tokens are the same")
    _say_logits("prompts", generating["logits"])
    _say_latency("generate", generating["latency"])
    for note in generating["notes"]:
        print(f"not on flashcore: {note}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    return 0 if logits["within"] and breaks["count"] == 0 and generating["logits"]["within"] and not generating["notes"] else 1


if __name__ == "__main__":
    sys.exit(main())
