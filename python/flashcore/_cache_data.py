"""What flashcore.cache_error measures on: shapes of models, kinds of data, and caches quantised by flashcore.append."""

from __future__ import annotations

import math
from typing import Any, Callable, NamedTuple

from ._append import append

PAGE = 16
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "int8": 127.0, "int4": 7.0}
SCALINGS = ("tensor", "head", "page", "token")
_ROTARY_BASE = 500000.0  # Llama 3's
_SINK_QUERY = 4.0


class Shape(NamedTuple):
    heads: int
    heads_kv: int
    dim: int
    dim_v: int
    rotary_dim: int  # the last columns of a head, which rotary position embedding turns

    @property
    def is_latent(self) -> bool:
        """V is the first columns of K."""
        return self.dim != self.dim_v


MODELS = {
    "Llama-3-8B": Shape(32, 8, 128, 128, 128), "Qwen2.5-7B": Shape(28, 4, 128, 128, 128), "Gemma-2-9B": Shape(16, 8, 256, 256, 256),
    "gpt-oss": Shape(64, 8, 64, 64, 64), "DeepSeek-V3": Shape(128, 1, 576, 512, 64),
}  # fmt: skip


class Tensors(NamedTuple):
    """q: [rows of all sequences, heads, dim]. k, v: [batch, keys, heads_kv, dim]; of a latent shape v is a view of k."""

    q: Any
    k: Any
    v: Any


def _add_large_channels(x: Tensors, shape: Shape, positions: Any) -> None:
    """Two pairs of K's channels that rotary position embedding turns slowly lie 10 and 16 away from zero: real K is so where its projection has a
    bias (Qwen2.5) or learnt one. A pair keeps its distance and turns with the key's position; each key head has pairs of its own."""
    import torch

    half, first = shape.rotary_dim // 2, shape.dim - shape.rotary_dim
    for head in range(shape.heads_kv):
        for i, size in enumerate((10.0, 16.0)):
            pair = half // 2 + (5 * head + 7 * i) % (half // 2 - 1)  # never the last one, which is the sink's
            angles = positions * _ROTARY_BASE ** (-pair / half) + head + i
            x.k[:, :, head, first + pair] += size * torch.cos(angles)
            x.k[:, :, head, first + half + pair] += size * torch.sin(angles)


def _add_sink(x: Tensors, shape: Shape, positions: Any) -> None:
    """The first key takes half of a row's weight on average, from almost none to almost all, and its value is a hundredth of the others'."""
    keys = positions.shape[0]
    x.q[..., -1] += _SINK_QUERY
    x.v[:, 0] *= 0.01
    x.k[:, 0, :, -1] = (math.log(keys) + 0.5) * math.sqrt(shape.dim) / _SINK_QUERY


DATA: dict[str, tuple[Callable[[Tensors, Shape, Any], None], ...]] = {
    "normal": (), "channels": (_add_large_channels,), "sink": (_add_sink,), "both": (_add_large_channels, _add_sink),
}  # fmt: skip


def make(shape: Shape, kind: str, batch: int, keys: int, rows: int, dtype: Any, device: str, seed: int) -> Tensors:
    """N(0, 1) with what `kind` adds, rounded to `dtype`. Every sequence but the last decodes one row; the last one has a chunk of `rows`."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    normal = lambda *sizes: torch.randn(*sizes, device=device, generator=generator)  # noqa: E731
    k = normal(batch, keys, shape.heads_kv, shape.dim)
    v = k[..., : shape.dim_v] if shape.is_latent else normal(batch, keys, shape.heads_kv, shape.dim_v)
    made = Tensors(normal(batch - 1 + rows, shape.heads, shape.dim), k, v)
    for add in DATA[kind]:
        add(made, shape, torch.arange(keys, device=device).double())
    k = made.k.to(dtype)
    return Tensors(made.q.to(dtype), k, k[..., : shape.dim_v] if shape.is_latent else made.v.to(dtype))


class Cache(NamedTuple):
    """Pages HND, and what the calls of flashcore are given beside them."""

    k: Any
    v: Any
    table: Any
    factors: dict[str, Any]
    kv_dtype: str | None


def new_pages(count: int, heads_kv: int, dims: tuple[int, int], kind: str | None, dtype: Any, device: Any) -> tuple[Any, Any]:
    """Of K and V, HND. They hold what pages of other requests might, on which no result may depend."""
    import torch

    stored = {None: dtype, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "int8": torch.int8, "int4": torch.uint8}[kind]
    per_byte = 2 if kind == "int4" else 1
    new = lambda dim: torch.full((count, heads_kv, PAGE, dim // per_byte * stored.itemsize), 0x55, dtype=torch.uint8, device=device).view(stored)  # noqa: E731
    return new(dims[0]), new(dims[1])


def filled(x: Tensors, shape: Shape, kind: str | None, scaling: str | None, seed: int) -> Cache:
    """A cache of `kind` (None: 16 bits) with all keys of x, in pages in random order, its factors found as their kind says. A latent shape's V is
    a view of K's pages, with K's codes and factors."""
    import torch

    batch, keys, device = x.k.shape[0], x.k.shape[1], x.k.device
    columns = -(-keys // PAGE)
    generator = torch.Generator("cpu").manual_seed(seed)
    table = torch.randperm(batch * columns, generator=generator).to(torch.int32).view(batch, columns).to(device)
    k_pages, v_pages = new_pages(batch * columns, shape.heads_kv, (shape.dim, shape.dim_v), kind, x.k.dtype, device)
    lengths = torch.zeros(batch, dtype=torch.int32, device=device)
    kv_dtype = "int4" if kind == "int4" else None
    given = {"layout": "HND", "kv_dtype": kv_dtype}
    if scaling == "page":
        factors = _append_whole_pages(x, table, (k_pages, v_pages), LARGEST[str(kind)], given)
    else:
        factors = {} if kind is None else _factors(x, str(scaling), LARGEST[kind], batch * columns)
        append(x.k, x.v, k_pages, v_pages, lengths, block_table=table, **given, **factors)
    if shape.is_latent:
        v_pages = k_pages[..., : shape.dim_v // (2 if kind == "int4" else 1)]
        factors = {role: factors["descale_k"] for role in factors}
    return Cache(k_pages, v_pages, table, factors, kv_dtype)


def _factors(x: Tensors, scaling: str, largest: float, pages: int) -> dict[str, Any]:
    """Of keys they are written by flashcore.append."""
    import torch

    made = {}
    for role, of in (("descale_k", x.k), ("descale_v", x.v)):
        if scaling == "token":
            made[role] = torch.empty(pages, of.shape[2], PAGE, device=of.device)
        else:
            made[role] = of.abs().amax((1, 3)).float() / largest if scaling == "head" else of.abs().max().float() / largest
    return made


def _append_whole_pages(x: Tensors, table: Any, pages: tuple[Any, Any], largest: float, given: dict[str, Any]) -> dict[str, Any]:
    """A factor for each page and key head, which its keys repeat: attention takes one for each key. To append, a page is a sequence of its own
    in a dense cache, with a factor for each sequence and key head."""
    import torch

    new, by, held = [], [], torch.argsort(table.flatten().long())
    for of in (x.k, x.v):
        padded = torch.nn.functional.pad(of, (0, 0, 0, 0, 0, -of.shape[1] % PAGE))
        new.append(padded.reshape(-1, PAGE, *of.shape[2:])[held])
        by.append((new[-1].abs().amax((1, 3)).float() / largest).clamp_min(2.0**-126))
    lengths = torch.zeros(len(held), dtype=torch.int32, device=table.device)
    append(*new, *pages, lengths, descale_k=by[0], descale_v=by[1], **given)
    return {role: of[:, :, None].expand(-1, -1, PAGE).contiguous() for role, of in zip(("descale_k", "descale_v"), by)}


def dequantised(cache: Cache, keys: int) -> tuple[Any, Any]:
    """The numbers that attention reads, [batch, keys, heads_kv, dim] in fp64: codes times factors."""
    import torch

    made = []
    for pages, role in ((cache.k, "descale_k"), (cache.v, "descale_v")):
        if cache.kv_dtype == "int4":
            nibbles = torch.stack((pages & 15, pages >> 4), -1).flatten(-2).to(torch.int8)
            pages = torch.where(nibbles > 7, nibbles - 16, nibbles)
        wide, by = pages.double()[cache.table.long()], cache.factors.get(role)  # [batch, columns, heads_kv, page, dim]
        if by is not None:
            of = by.double()
            wide = wide * (of if of.dim() == 0 else of[:, None, :, None, None] if of.dim() == 2 else of[cache.table.long()][..., None])
        made.append(wide.transpose(2, 3).flatten(1, 2)[:, :keys])
    return made[0], made[1]


def bytes_per_key(shape: Shape, kind: str | None, scaling: str | None) -> float:
    """Of one key and its value, all key heads of a layer, with their factors. A factor for each page is stored once for each of its keys."""
    columns, parts = (shape.dim, 1) if shape.is_latent else (shape.dim + shape.dim_v, 2)
    bits = {None: 16, "int4": 4}.get(kind, 8)
    return shape.heads_kv * (columns * bits / 8 + (4 * parts if scaling in ("page", "token") else 0))
