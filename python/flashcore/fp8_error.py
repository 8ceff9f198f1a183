"""What 8 bits cost from end to end: flashcore.quantize and flashcore.attention against fp64 on what was quantised.

    python -m flashcore.fp8_error                                  # NumPy and ml_dtypes, on the CPU
    python -m flashcore.fp8_error --device cuda --json fp8_error.json
    python -m flashcore.fp8_error --keys 4096 --data normal,shifted

Each line is one kind of data quantised in one way. "end to end" is ||o - o64|| / ||o64|| with o64 from the unquantised numbers, "kernel" the
same with o64 from the codes times their factors: what quantising costs is the difference. On normal data no way without `hadamard` may be worse
than --slack times what rounding to the type makes of q, k and v. On every other kind some way must reach --slack-of-others times that, or half
of the error of one factor for each tensor. Exit code 1: it is not so.

The cache ways have q as it is, and k and v in fewer bits: of 8 bits with a factor for each key head or each key, of 4 with one for each key.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import sys
from typing import Any, Callable, Iterator

from . import _library, attention, quantize

WAYS: dict[str, dict[str, Any]] = {
    "tensor": {}, "head": {"scaling": "head"}, "token": {"scaling": "token"}, "tensor, smooth_k": {"smooth_k": True}, "tensor, hadamard": {"hadamard": True},
    "head, smooth_k, hadamard": {"scaling": "head", "smooth_k": True, "hadamard": True}, "token, smooth_k": {"scaling": "token", "smooth_k": True},
}  # fmt: skip
CACHES = {"cache e4m3, head": ("e4m3", 2), "cache e4m3, token": ("e4m3", 3), "cache e5m2, head": ("e5m2", 2), "cache int8, head": ("int8", 2), "cache int8, token": ("int8", 3),
          "cache int4, token": ("int4", 3)}  # fmt: skip
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "int8": 127.0, "int4": 7.0}
# rms of rounding to nearest, relative, with 3 bits of mantissa: 2^-4 sqrt(1/3 (1 - 1/4) / (2 ln 2)). Of e5m2 twice that.
ROUNDING = {"e4m3": 2.0**-4 * 0.425, "e5m2": 2.0**-3 * 0.425}


def _normal(np: Any, rng: Any, rows: int, keys: int, dim: int) -> tuple[Any, Any, Any]:
    shape = lambda heads, length: (1, heads, length, dim)  # noqa: E731
    return tuple(rng.standard_normal(shape(*size)).astype(np.float32) for size in ((4, rows), (2, keys), (2, keys)))  # type: ignore[return-value]


def _shifted(np: Any, rng: Any, *sizes: int) -> tuple[Any, Any, Any]:
    """Two channels of K lie far from zero for all keys, as models have them."""
    q, k, v = _normal(np, rng, *sizes)
    k[..., 3] += 30
    k[..., 17] -= 20
    return q, k, v


def _scaled(np: Any, rng: Any, *sizes: int) -> tuple[Any, Any, Any]:
    """Two channels of K are fifteen times as large as the others, and queries use them less."""
    q, k, v = _normal(np, rng, *sizes)
    k[..., [3, 17]] *= 15
    q[..., [3, 17]] /= 15
    return q, k, v


def _far_key(np: Any, rng: Any, *sizes: int) -> tuple[Any, Any, Any]:
    """One key is far from all others along a channel that queries do not use."""
    q, k, v = _normal(np, rng, *sizes)
    q[..., 0], k[:, :, 5, 0] = 0, 3e6
    return q, k, v


def _peaked(np: Any, rng: Any, *sizes: int) -> tuple[Any, Any, Any]:
    """Each row of q is aligned with one key, which gets most of its weight."""
    q, k, v = _normal(np, rng, *sizes)
    group = q.shape[1] // k.shape[1]
    picked = rng.integers(0, k.shape[2], q.shape[2])
    q = 0.5 * q + k.repeat(group, 1)[:, :, picked]
    return q.astype(np.float32), k, v


def _sink(np: Any, rng: Any, *sizes: int) -> tuple[Any, Any, Any]:
    """The first key takes much of every row's weight, and has a small value."""
    q, k, v = _normal(np, rng, *sizes)
    q[..., 7] += 4
    k[:, :, 0, 7] += 2.5 * math.sqrt(q.shape[3])
    v[:, :, 0] *= 0.01
    return q, k, v


DATA: dict[str, Callable[..., tuple[Any, Any, Any]]] = {
    "normal": _normal, "shifted": _shifted, "scaled": _scaled, "far_key": _far_key, "peaked": _peaked, "sink": _sink,
}  # fmt: skip


def _attend(np: Any, q: Any, k: Any, v: Any) -> Any:
    """[1, heads, rows, dim], in fp64."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.astype(np.float64), k.astype(np.float64).repeat(group, 1), v.astype(np.float64).repeat(group, 1)
    scores = q @ k.swapaxes(2, 3) / math.sqrt(q.shape[3])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)) @ v


def _computed(np: Any, device: str, q: Any, k: Any, v: Any, dtype: str, options: dict[str, Any]) -> tuple[Any, tuple[Any, Any, Any]]:
    """o, and q, k and v as the kernel reads them: codes times factors, in fp64. q and k may be rotated together."""
    if device == "cpu":
        made = quantize(q, k, v, dtype=dtype, **options)
        wide = tuple(np.asarray(x).astype(np.float64) for x in made.arrays)
        return np.asarray(attention(*made.arrays, **made.descales)).astype(np.float64), _times(np, wide, made.descales, np.asarray)
    import torch

    made = quantize(*(torch.from_numpy(x).to(device).bfloat16() for x in (q, k, v)), dtype=dtype, **options)
    host = lambda x: x.double().cpu().numpy() if isinstance(x, torch.Tensor) else x  # noqa: E731
    return host(attention(*made.arrays, **made.descales)), _times(np, tuple(map(host, made.arrays)), made.descales, host)


def _cached(np: Any, q: Any, k: Any, v: Any, kind: str, axes: int) -> tuple[Any, tuple[Any, Any, Any]]:
    """o beside a quantised cache on the CPU, and q, k and v as the kernel reads them. `axes`: of a factor's array."""
    import ml_dtypes

    stored, wide, factors = [], [], []
    for x in (k, v):
        over = (-1,) if axes == 3 else (-2, -1)
        by = np.maximum(np.abs(x).max(over, keepdims=True) / LARGEST[kind], 2.0**-126).astype(np.float32)
        codes = x / by
        if kind in ("int8", "int4"):
            codes = np.clip(np.rint(codes), -LARGEST[kind], LARGEST[kind]).astype(np.int8)
        else:
            codes = np.clip(codes, -LARGEST[kind], LARGEST[kind]).astype(getattr(ml_dtypes, "float8_e4m3fn" if kind == "e4m3" else "float8_e5m2"))
        wide.append(codes.astype(np.float64) * by)
        stored.append((codes[..., 0::2].view(np.uint8) & 15) | (codes[..., 1::2].view(np.uint8) << 4) if kind == "int4" else codes)
        factors.append(np.ascontiguousarray(by[..., 0] if axes == 3 else by[..., 0, 0]))
    o = attention(q, *stored, descale_k=factors[0], descale_v=factors[1], kv_dtype="int4" if kind == "int4" else None)
    return np.asarray(o).astype(np.float64), (q, *wide)  # type: ignore[return-value]


def _times(np: Any, wide: tuple[Any, ...], descales: dict[str, Any], host: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
    q, k, v = wide
    made = []
    for x, name in ((q, "descale_q"), (k, "descale_k"), (v, "descale_v")):
        by = np.asarray(host(descales[name]), dtype=np.float64)
        if by.size > 1:  # [batch, heads_kv], or a factor for each row
            if by.ndim == 2:
                by = by.repeat(x.shape[1] // by.shape[1], 1)[:, :, None, None]
            else:
                by = by[..., None]
        made.append(x * by)
    return tuple(made)  # type: ignore[return-value]


def measure(data: list[str], rows: int, keys: int, dim: int, dtype: str, device: str, seed: int) -> Iterator[dict[str, Any]]:
    """A line for each kind of data and way."""
    import numpy as np

    for kind in data:
        q, k, v = DATA[kind](np, np.random.default_rng(seed), rows, keys, dim)
        if device != "cpu":  # what 16-bit tensors hold is what is quantised
            import torch

            q, k, v = (torch.from_numpy(x).bfloat16().float().numpy() for x in (q, k, v))
        right = _attend(np, q, k, v)
        for way, options in WAYS.items():
            if options.get("hadamard") and dim & (dim - 1):
                continue
            o, held = _computed(np, device, q, k, v, dtype, options)
            yield {"data": kind, "way": way, "end_to_end": _distance(np, o, right), "kernel": _distance(np, o, _attend(np, *held))}
        for way, (cache, axes) in CACHES.items():
            if device == "cpu":
                o, held = _cached(np, q, k, v, cache, axes)
                yield {"data": kind, "way": way, "end_to_end": _distance(np, o, right), "kernel": _distance(np, o, _attend(np, *held))}


def _distance(np: Any, o: Any, right: Any) -> float:
    return float(np.linalg.norm(o - right) / np.linalg.norm(right))


def failures(lines: list[dict[str, Any]], dtype: str, most_of_plain: float, slack: float, slack_of_others: float) -> list[str]:
    """What the gates say, in words."""
    found = []
    by_data: dict[str, dict[str, float]] = {}
    for line in lines:
        by_data.setdefault(line["data"], {})[line["way"]] = line["end_to_end"]
    # Scores of N(0, 1): q's and k's roundings move them by sqrt(2) of it, which moves o as much as v's own rounding does by one.
    rounding = math.sqrt(3) * ROUNDING[dtype]
    allowed = slack * rounding
    for way, error in by_data.get("normal", {}).items():
        if way in WAYS and not WAYS[way].get("hadamard") and not error <= allowed:
            found.append(f"normal: {way} has {error:.3g}, and {allowed:.3g} is allowed")
    for kind, errors in by_data.items():
        way = min((way for way in errors if way in WAYS), key=lambda way: errors[way])
        least = max((slack if kind == "normal" else slack_of_others) * rounding, most_of_plain * errors["tensor"])
        if not errors[way] <= least:
            found.append(f"{kind}: the best way, {way}, has {errors[way]:.3g}, and {least:.3g} is allowed")
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flashcore.fp8_error", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--dtype", choices=sorted(ROUNDING), default="e4m3", help="of the codes of q, k and v (default: %(default)s)")
    parser.add_argument("--data", default=",".join(DATA), help="of %(default)s")
    parser.add_argument("--rows", type=int, default=256, help="of q (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=2048, help="that each row sees (default: %(default)s)")
    parser.add_argument("--head-dim", type=int, default=128, help="columns of q, k and v (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of all random numbers (default: %(default)s)")
    parser.add_argument("--most-of-plain", type=float, default=0.5, help="which share of the error by tensor is good enough for data that is not normal (default: %(default)s)")
    parser.add_argument("--slack", type=float, default=1.15, help="how many times the rounding of q, k and v to the type may cost on normal data; beyond it the exit code is 1 (default: %(default)s)")
    parser.add_argument("--slack-of-others", type=float, default=1.25, help="the same of the best way on each other kind of data (default: %(default)s)")
    parser.add_argument("--json", type=pathlib.Path, help="also write the numbers there")
    options = parser.parse_args(argv)
    data = options.data.split(",")
    if unknown := [kind for kind in data if kind not in DATA]:
        parser.error(f"--data {unknown[0]}: use some of {','.join(DATA)}")
    for name, least in (("rows", 1), ("keys", 16), ("head_dim", 32)):
        if getattr(options, name) < least:
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}: at least {least}")
    try:
        lines = list(measure(data, options.rows, options.keys, options.head_dim, options.dtype, options.device, options.seed))
    except (ImportError, _library.Error) as error:
        print(f"flashcore.fp8_error: error: {error}", file=sys.stderr)
        return 4
    print(f"{'data':10} {'quantised by':26} {'end to end':>10} {'kernel':>10}")
    for line in lines:
        print(f"{line['data']:10} {line['way']:26} {line['end_to_end']:10.4f} {line['kernel']:10.4f}")
    failed = failures(lines, options.dtype, options.most_of_plain, options.slack, options.slack_of_others)
    for text in failed:
        print(f"FAILED {text}")
    if options.json:
        options.json.write_text(json.dumps({
            "schema": "flashcore.fp8_error/1", "device": options.device, "dtype": options.dtype, "rows": options.rows, "keys": options.keys, "head_dim": options.head_dim,
            "seed": options.seed, "most_of_plain": options.most_of_plain, "slack": options.slack, "slack_of_others": options.slack_of_others, "failed": failed, "lines": lines}, indent=1) + "\n")  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
