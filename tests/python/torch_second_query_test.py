"""qv of FlashAttention 3's functions, a second query that reads V: beside the definition in fp64; caches that are columns of one tensor; refusals."""

import os
import sys
import unittest
from pathlib import Path
from unittest import mock

import torch

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
import flashcore  # noqa: E402
import flashcore.flash_attn_interface as three  # noqa: E402
from flashcore import _columns  # noqa: E402

BATCH, ROWS, KEYS, HEADS, HEADS_KV, DIM, DIM_V, PAGE = 3, 4, 24, 4, 2, 16, 48, 8
OPTIONS = ({}, {"causal": True}, {"causal": True, "window_size": (6, 0)}, {"softcap": 2.0}, {"softmax_scale": 0.3})


def exact(q, k, v, qv, causal=False, window_size=(-1, -1), softcap=0.0, softmax_scale=None):
    """(out, lse) in fp64 of one sequence: [rows, heads, dim], [heads, rows]."""
    group = q.shape[1] // k.shape[1]
    q, k, v, qv = (x.double().transpose(0, 1) for x in (q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), qv))
    scale = (q.shape[2] + v.shape[2]) ** -0.5 if softmax_scale is None else softmax_scale
    s = scale * (q @ k.transpose(1, 2) + qv @ v.transpose(1, 2))
    s = softcap * torch.tanh(s / softcap) if softcap else s
    own, key = torch.arange(s.shape[1])[:, None] + s.shape[2] - s.shape[1], torch.arange(s.shape[2])
    if causal:
        s = s.masked_fill(key > own, -torch.inf)
    if window_size[0] >= 0:
        s = s.masked_fill(key < own - window_size[0], -torch.inf)
    return (s.softmax(2) @ v).transpose(0, 1), s.logsumexp(2)


def near(a, b):
    torch.testing.assert_close(a.double(), b.double(), atol=1e-4, rtol=1e-4)


class SecondQueryTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(9)
        self.q, self.qv = torch.randn(BATCH, ROWS, HEADS, DIM), torch.randn(BATCH, ROWS, HEADS, DIM_V)
        self.cache = torch.randn(BATCH, KEYS, HEADS_KV, DIM_V + DIM)
        self.used = torch.tensor([7, KEYS, 15], dtype=torch.int32)

    @staticmethod
    def columns(cache):
        """k and v."""
        return cache[..., DIM_V:], cache[..., :DIM_V]

    def judged(self, out, lse, used, cache=None, q=None, **options):
        k, v = self.columns(self.cache if cache is None else cache)
        for s in range(BATCH):
            wanted = exact((self.q if q is None else q)[s], k[s, : used[s]], v[s, : used[s]], self.qv[s], **options)
            near(out[s], wanted[0])
            near(lse[s], wanted[1])

    def test_dense_and_packed(self):
        for options in OPTIONS:
            for apart in (False, True):
                k, v = (x.clone() if apart else x for x in self.columns(self.cache))
                with self.subTest(apart=apart, **options):
                    with mock.patch.object(_columns, "joined", side_effect=None if apart else AssertionError("copied"), wraps=_columns.joined if apart else None):
                        out, lse = three.flash_attn_func(self.q, k, v, qv=self.qv, return_attn_probs=True, **options)
                        cu_q, cu_k = (torch.arange(BATCH + 1, dtype=torch.int32) * n for n in (ROWS, KEYS))
                        packed, packed_lse = three.flash_attn_varlen_func(self.q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), cu_q, cu_k, ROWS, KEYS,
                                                                          seqused_k=self.used, qv=self.qv.flatten(0, 1), return_attn_probs=True,
                                                                          **options)  # fmt: skip
                    self.judged(out, lse, [KEYS] * BATCH, **options)
                    self.judged(packed.view_as(out), packed_lse.view(HEADS, BATCH, ROWS).transpose(0, 1), self.used, **options)

    def test_gradients(self):
        given = [x.clone().requires_grad_() for x in (self.q, *self.columns(self.cache), self.qv)]
        found = torch.autograd.grad(three.flash_attn_func(*given[:3], qv=given[3], causal=True).square().sum(), given)
        outs = [exact(*(x[s] for x in given), causal=True)[0] for s in range(BATCH)]
        for a, b in zip(found, torch.autograd.grad(torch.stack(outs).square().sum(), given)):
            torch.testing.assert_close(a, b, atol=2e-3, rtol=1e-3)

    def in_pages(self, cache):
        order = torch.randperm(BATCH * KEYS // PAGE + 2)
        table = order[: BATCH * KEYS // PAGE].view(BATCH, KEYS // PAGE).int()
        pages = torch.full((len(order), PAGE, HEADS_KV, DIM_V + DIM), torch.nan)
        pages[table.flatten().long()] = cache.view(-1, PAGE, HEADS_KV, DIM_V + DIM)
        return pages, table

    def test_caches(self):
        pages, table = self.in_pages(self.cache)
        for options in OPTIONS:
            for cache, given in ((pages, {"page_table": table}), (self.cache, {})):
                with self.subTest(paged=bool(given), **options):
                    k, v = self.columns(cache)
                    out, lse = three.flash_attn_with_kvcache(self.q, k, v, qv=self.qv, cache_seqlens=self.used, return_softmax_lse=True, **given, **options)
                    self.judged(out, lse, self.used, **options)
        k, v = self.columns(pages)
        starts = torch.arange(BATCH + 1, dtype=torch.int32) * ROWS
        out, lse = three.flash_attn_with_kvcache(self.q.flatten(0, 1), k, v, qv=self.qv.flatten(0, 1), cache_seqlens=self.used, page_table=table,
                                                 cu_seqlens_q=starts, max_seqlen_q=ROWS, return_softmax_lse=True)  # fmt: skip
        self.judged(out.view(BATCH, ROWS, HEADS, DIM_V), lse.view(HEADS, BATCH, ROWS).transpose(0, 1), self.used)

    def test_new_tokens_and_angles(self):
        """Angles turn q and k, and neither qv nor v."""
        angles = torch.rand(KEYS + ROWS, DIM // 2)
        new_k, new_v = torch.randn(BATCH, ROWS, HEADS_KV, DIM), torch.randn(BATCH, ROWS, HEADS_KV, DIM_V)
        used = torch.tensor([7, KEYS - ROWS, 15], dtype=torch.int32)

        def turned(x, s):
            c, d = (f(angles[int(used[s]) :][:ROWS])[:, None] for f in (torch.cos, torch.sin))
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack((a * c - b * d, b * c + a * d), -1).flatten(-2)

        wanted, q = self.cache.clone(), torch.stack([turned(self.q[s], s) for s in range(BATCH)])
        for s in range(BATCH):
            wanted[s, used[s] : used[s] + ROWS] = torch.cat((new_v[s], turned(new_k[s], s)), -1)
        for paged in (False, True):
            cache, table = self.in_pages(self.cache) if paged else (self.cache.clone(), None)
            k, v = self.columns(cache)
            out, lse = three.flash_attn_with_kvcache(self.q, k, v, new_k, new_v, self.qv, angles.cos(), angles.sin(), used, page_table=table, causal=True,
                                                     return_softmax_lse=True)  # fmt: skip
            near(cache[table.long()].flatten(1, 2) if paged else cache, wanted)
            self.judged(out, lse, used + ROWS, wanted, q, causal=True)

    def test_refused(self):
        k, v = self.columns(self.cache)
        before = self.cache.clone()
        swapped = torch.cat((k, v), -1)
        caches = lambda k, v, qv=self.qv, q=self.q, *new, **options: lambda: three.flash_attn_with_kvcache(q, k, v, *new, qv=qv, **options)  # noqa: E731
        apart = r"k_cache and v_cache are not columns of one tensor; .* allocate cache = \[..., heads_kv, 64\] and give cache\[..., 48:\] as k_cache"
        bytes_ = self.cache.to(torch.float8_e4m3fn)
        for words, call in (
            (apart, caches(k.clone(), v.clone())),
            (apart, caches(k, v.clone())),
            (apart, caches(swapped[..., :DIM], swapped[..., DIM:])),
            (r"k is torch.float32 of shape \(3, 5, 2, 16\) and v torch.float32 of shape \(3, 24, 2, 48\); they may differ", caches(k[:, :5], v)),
            (apart, caches(k.clone(), v.clone(), self.qv, self.q, self.q[:, :, :HEADS_KV], self.qv[:, :, :HEADS_KV], cache_seqlens=self.used)),
            (r"qv is torch.float32 of shape \(3, 4, 4, 16\) on cpu; give torch.float32 of shape \(3, 4, 4, 48\)", caches(k, v, self.q)),
            (r"qv is torch.float16 of shape", caches(k, v, self.qv.half())),
            (r"qv is a str; give", caches(k, v, "1")),
            ("qv is given, q is torch.float16 and k torch.float8_e4m3fn; give 16 bits", caches(*self.columns(bytes_), self.qv.half(), self.q.half())),
            (r"qv is torch.float32 of shape", lambda: three.flash_attn_func(self.q, k, v, qv=self.qv[:, :2])),
            (r"they may differ in their last axis only", lambda: three.flash_attn_func(self.q, k[:, :5], v, qv=self.qv)),
        ):  # fmt: skip
            with self.subTest(words), self.assertRaisesRegex(flashcore.Error, words):
                call()
        self.assertTrue(torch.equal(self.cache, before))


if __name__ == "__main__":
    unittest.main()
