"""The second part of flashcore.cache_error: a small decoder of random weights that decodes with a quantised cache in each layer."""

from __future__ import annotations

import math
from typing import Any, Iterator, NamedTuple

from . import paged_attention
from ._append import append
from ._cache_data import LARGEST, PAGE, new_pages

# A page's factor would change as the page fills, so that page by page is of caches that are full.
WAYS: list[tuple[str | None, str | None]] = [(None, None), *((kind, scaling) for kind in LARGEST for scaling in ("tensor", "head", "token"))]
WEIGHTS = {"plain": 0.0, "biased K": 12.0}  # by how much two pairs of K's channels lie away from zero
_GAIN = 3.0  # scores spread by 3, so that a row's weight lies on few keys as it does in trained heads
_BASE = 10000.0


class Sizes(NamedTuple):
    layers: int = 4
    hidden: int = 256
    heads: int = 8
    heads_kv: int = 2
    dim: int = 64
    vocabulary: int = 1024
    batch: int = 4
    prompt: int = 192


SIZES = Sizes()


class Decoder:
    """Llama's layers (RMSNorm, grouped-query heads, rotary embedding, SwiGLU, residuals) of random weights that keep sizes near 1, in fp32 or fp64.
    Attention is the caller's."""

    def __init__(self, bias: float, dtype: Any, device: str, seed: int) -> None:
        import torch

        # Drawn on the CPU and in fp32: the same for each dtype and device.
        generator = torch.Generator("cpu").manual_seed(seed)
        s = SIZES
        matrix = lambda *sizes: (torch.randn(*sizes, generator=generator) / math.sqrt(sizes[-1])).to(device, dtype)  # noqa: E731
        self.layers = [{"q": matrix(s.heads * s.dim, s.hidden), "k": matrix(s.heads_kv * s.dim, s.hidden), "v": matrix(s.heads_kv * s.dim, s.hidden),
                        "o": matrix(s.hidden, s.heads * s.dim), "gate": matrix(2 * s.hidden, s.hidden), "up": matrix(2 * s.hidden, s.hidden),
                        "down": matrix(s.hidden, 2 * s.hidden)} for _ in range(s.layers)]  # fmt: skip
        self.embedding, self.unembedding = math.sqrt(s.hidden) * matrix(s.vocabulary, s.hidden), matrix(s.vocabulary, s.hidden)
        self.bias = torch.zeros(s.dim, device=device, dtype=dtype)
        self.bias[[s.dim // 2 - 2, s.dim // 2 - 5]] = bias  # the first halves of slow pairs
        self.angles = _BASE ** (-torch.arange(s.dim // 2, device=device, dtype=dtype) / (s.dim // 2))

    def logits(self, tokens: Any, position: int, cache: Any) -> Any:
        """[batch, vocabulary] after the last of `tokens` [batch, rows], the first of which is number `position`."""
        import torch

        s, (batch, rows) = SIZES, tokens.shape
        x = self.embedding[tokens]
        angles = (position + torch.arange(rows, device=tokens.device))[:, None] * self.angles
        heads = lambda y: y.view(batch, rows, -1, s.dim)  # noqa: E731
        for number, w in enumerate(self.layers):
            y = _normed(x)
            q, k = _GAIN * _turned(heads(y @ w["q"].T), angles), _turned(heads(y @ w["k"].T) + self.bias, angles)
            x = x + cache.attend(number, q, k, heads(y @ w["v"].T)).flatten(2) @ w["o"].T
            y = _normed(x)
            x = x + (torch.nn.functional.silu(y @ w["gate"].T) * (y @ w["up"].T)) @ w["down"].T
        return _normed(x[:, -1]) @ self.unembedding.T


def _normed(x: Any) -> Any:
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


def _turned(x: Any, angles: Any) -> Any:
    """[batch, rows, heads, dim] by rotary position embedding, a pair being a column and the one half of dim after it."""
    import torch

    a, b = x.chunk(2, -1)
    c, s = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat((a * c - b * s, b * c + a * s), -1)


class WideCache:
    """As wide as the decoder, and attention as plain formulas."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[Any, Any]] = {}

    def attend(self, layer: int, q: Any, k: Any, v: Any) -> Any:
        import torch

        if layer in self.held:
            k, v = (torch.cat((old, new), 1) for old, new in zip(self.held[layer], (k, v)))
        self.held[layer] = k, v
        group = SIZES.heads // SIZES.heads_kv
        scores = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(group, 2)) / math.sqrt(SIZES.dim)
        rows, keys = scores.shape[2:]
        hidden = torch.ones(rows, keys, dtype=torch.bool, device=q.device).triu(keys - rows + 1)
        return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(hidden, -math.inf).softmax(-1), v.repeat_interleave(group, 2))


class PagedCache:
    """flashcore's: pages of each layer, which flashcore.append quantises into. Factors of tensors and heads are those of the prompt's K and V."""

    def __init__(self, kind: str | None, scaling: str | None, room: int, dtype: Any, device: str) -> None:
        import torch

        self.kind, self.scaling, self.dtype, self.room = kind, scaling, dtype, room
        columns = -(-room // PAGE)
        self.table = torch.arange(SIZES.batch * columns, dtype=torch.int32, device=device).view(SIZES.batch, columns)
        self.layers = [new_pages(SIZES.batch * columns, SIZES.heads_kv, (SIZES.dim, SIZES.dim), kind, dtype, device) for _ in range(SIZES.layers)]
        self.factors: list[dict[str, Any]] = []
        self.lengths = [torch.zeros(SIZES.batch, dtype=torch.int32, device=device) for _ in range(SIZES.layers)]
        self.given = {"layout": "HND", "kv_dtype": "int4" if kind == "int4" else None}

    def attend(self, layer: int, q: Any, k: Any, v: Any) -> Any:
        import torch

        q, k, v = (x.to(self.dtype) for x in (q, k, v))
        if layer == len(self.factors):
            self.factors.append(self._factors_of(k, v))
        pages, by, lengths = self.layers[layer], self.factors[layer], self.lengths[layer]
        append(k, v, *pages, lengths, block_table=self.table, new_seqlens=lengths, **self.given, **by)
        batch, rows = q.shape[:2]
        boundaries = rows * torch.arange(batch + 1, dtype=torch.int32, device=q.device)
        o = paged_attention(q.flatten(0, 1), *pages, self.table, lengths, cu_seqlens_q=boundaries, max_seqlen_q=rows, max_seqlen_kv=self.room, causal=True,
                            **self.given, **by)  # fmt: skip
        return o.view(batch, rows, SIZES.heads, SIZES.dim).float()

    def _factors_of(self, k: Any, v: Any) -> dict[str, Any]:
        import torch

        made = {}
        for role, x in (("descale_k", k), ("descale_v", v)):
            if self.kind is None:
                return {}
            if self.scaling == "token":
                made[role] = torch.empty(self.table.numel(), SIZES.heads_kv, PAGE, device=x.device)
            else:
                largest = x.abs().amax((1, 3)) if self.scaling == "head" else x.abs().max()
                made[role] = largest.float() / LARGEST[self.kind]
        return made


def decode(decoder: Decoder, prompt: Any, count: int, cache: Any, forced: Any = None) -> tuple[Any, Any]:
    """(the tokens that were fed after the prompt [batch, count], the logits that chose each [batch, count, vocabulary]): the likeliest ones, or
    `forced`, so that one token that differs does not make all later ones differ."""
    import torch

    fed, logits, tokens, position = [], [], prompt, 0
    for i in range(count):
        logits.append(decoder.logits(tokens, position, cache))
        position += tokens.shape[1]
        tokens = logits[-1].argmax(-1, keepdim=True) if forced is None else forced[:, i : i + 1]
        fed.append(tokens)
    return torch.cat(fed, 1), torch.stack(logits, 1)


def measure(count: int, dtype: str, device: str, seed: int) -> Iterator[dict[str, Any]]:
    """A line for each kind of weights and cache, the 16-bit cache first: `logits` is the relative distance from the decoder in fp64, and
    `same_tokens` how many of the likeliest tokens are those with the 16-bit cache, after the same text."""
    import torch

    prompt = torch.randint(SIZES.vocabulary, (SIZES.batch, SIZES.prompt), generator=torch.Generator("cpu").manual_seed(seed)).to(device)
    for weights, bias in WEIGHTS.items():
        text, right = decode(Decoder(bias, torch.float64, device, seed), prompt, count, WideCache())
        decoder, usual = Decoder(bias, torch.float32, device, seed), None
        for kind, scaling in WAYS:
            cache = PagedCache(kind, scaling, SIZES.prompt + count, getattr(torch, dtype), device)
            _, logits = decode(decoder, prompt, count, cache, text)
            usual = logits.argmax(-1) if usual is None else usual
            error = float((logits.double() - right).norm() / right.norm())
            yield {"weights": weights, "cache": kind or "16 bits", "scaling": scaling, "logits": float(f"{error:.4g}"),
                   "same_tokens": int((logits.argmax(-1) == usual).sum()), "tokens": usual.numel()}  # fmt: skip
