"""Quantised caches in PyTorch's wrappers: flash_attn_with_kvcache with k_descale and v_descale, dense and in pages, with new tokens; FlashInfer's
wrappers with kv_data_type; each beside the same numbers in q's type."""

import os
import sys
import unittest
from pathlib import Path

import torch

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
import flashcore  # noqa: E402
import flashcore.flashinfer as flashinfer  # noqa: E402
from flashcore.flash_attn import flash_attn_with_kvcache  # noqa: E402

BATCH, HEADS, HEADS_KV, DIM, PAGE, COLUMNS = 3, 4, 2, 16, 8, 4
TYPES = [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8]


def quantised(x, by, dtype):
    """x / by for each head (the last axis but one), saturated."""
    scaled = x / by[:, None]
    return scaled.round().clamp(-127, 127).to(dtype) if dtype is torch.int8 else scaled.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max).to(dtype)


class QuantisedCacheTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(4)
        self.q = torch.randn(BATCH, 2, HEADS, DIM)
        self.used = torch.tensor([5, PAGE * COLUMNS - 2, 17], dtype=torch.int32)
        self.table = torch.randperm(BATCH * COLUMNS).view(BATCH, COLUMNS).int()
        self.by_k, self.by_v = torch.tensor([0.02, 0.05]), torch.tensor([0.03, 0.01])

    def caches(self, dtype, shape=(BATCH * COLUMNS, PAGE, HEADS_KV, DIM)):
        k, v = (quantised(torch.randn(shape), by, dtype) for by in (self.by_k, self.by_v))
        return k, v, *(x.float() * by[:, None] for x, by in ((k, self.by_k), (v, self.by_v)))

    def descales(self):
        return {"k_descale": self.by_k.expand(BATCH, -1).contiguous(), "v_descale": self.by_v.expand(BATCH, -1).contiguous()}

    def test_flash_attn(self):
        for dtype in TYPES:
            k, v, plain_k, plain_v = self.caches(dtype)
            for options in ({"causal": True}, {"causal": True, "window_size": (6, 0)}, {"softcap": 3.0}):
                given = {"cache_seqlens": self.used, "block_table": self.table, "return_softmax_lse": True, **options}
                out, lse = flash_attn_with_kvcache(self.q, k, v, **given, **self.descales())
                wanted, wanted_lse = flash_attn_with_kvcache(self.q, plain_k, plain_v, **given)
                torch.testing.assert_close(out, wanted, atol=2e-5, rtol=2e-5)
                torch.testing.assert_close(lse, wanted_lse, atol=2e-5, rtol=2e-5)
            dense = self.caches(dtype, (BATCH, PAGE * COLUMNS, HEADS_KV, DIM))
            out = flash_attn_with_kvcache(self.q, *dense[:2], cache_seqlens=self.used, causal=True, **self.descales())
            torch.testing.assert_close(out, flash_attn_with_kvcache(self.q, *dense[2:], cache_seqlens=self.used, causal=True), atol=2e-5, rtol=2e-5)

    def test_new_tokens_are_quantised(self):
        for dtype in TYPES:
            k, v, plain_k, plain_v = self.caches(dtype)
            new_k, new_v = torch.randn(BATCH, 2, HEADS_KV, DIM), torch.randn(BATCH, 2, HEADS_KV, DIM)
            out = flash_attn_with_kvcache(self.q, k, v, new_k, new_v, cache_seqlens=self.used, block_table=self.table, causal=True, **self.descales())
            for new, cache, plain, by in ((new_k, k, plain_k, self.by_k), (new_v, v, plain_v, self.by_v)):
                for s in range(BATCH):
                    for i in range(2):
                        j = int(self.used[s]) + i
                        at = (int(self.table[s, j // PAGE]), j % PAGE)
                        wanted = quantised(new[s, i], by, dtype)
                        self.assertTrue(torch.equal(cache[at].view(torch.uint8), wanted.view(torch.uint8)), dtype)
                        plain[at] = wanted.float() * by[:, None]
            wanted = flash_attn_with_kvcache(self.q, plain_k, plain_v, cache_seqlens=self.used + 2, block_table=self.table, causal=True)
            torch.testing.assert_close(out, wanted, atol=2e-5, rtol=2e-5)

    def test_factors_of_keys_are_found_and_kept(self):
        """Of new tokens they are written to the caller's tensors, from where the next call reads them."""
        shape = (BATCH * COLUMNS, PAGE, HEADS_KV, DIM)
        plain = [torch.randn(shape) for _ in range(2)]
        factors = [x.abs().amax(-1).transpose(1, 2).contiguous() / 127 for x in plain]  # [pages, heads_kv, page_size]
        caches = [(x / by.transpose(1, 2)[..., None]).round().to(torch.int8) for x, by in zip(plain, factors)]
        new = [20 * torch.randn(BATCH, 2, HEADS_KV, DIM) for _ in range(2)]  # larger than all before
        used, given = self.used.clone(), {"block_table": self.table, "causal": True}
        named = dict(zip(("k_descale", "v_descale"), factors))
        out = flash_attn_with_kvcache(self.q, *caches, *new, cache_seqlens=used, **given, **named)
        again = flash_attn_with_kvcache(self.q, *caches, cache_seqlens=self.used + 2, **given, **named)
        torch.testing.assert_close(out, again, atol=0, rtol=0)
        wanted = flash_attn_with_kvcache(self.q, *plain, *new, cache_seqlens=self.used.clone(), **given)
        torch.testing.assert_close(out, wanted, atol=0.6, rtol=0.05)
        apart = torch.stack(factors, 1)  # of K and V in one tensor
        with self.assertRaisesRegex(flashcore.Error, "k_descale has a factor for each key and is not contiguous"):
            flash_attn_with_kvcache(self.q, *caches, *new, cache_seqlens=used, **given, k_descale=apart[:, 0], v_descale=apart[:, 1])

    def test_nothing_is_appended_by_a_call_that_is_refused(self):
        k, v, *_ = self.caches(torch.int8)
        before, new = k.clone(), torch.ones(BATCH, 1, HEADS_KV, DIM)
        for given in ({"q_descale": self.descales()["k_descale"], **self.descales()}, {"k_descale": self.descales()["k_descale"]}):
            with self.assertRaisesRegex(flashcore.Error, "_descale is given"):
                flash_attn_with_kvcache(self.q, k, v, new, new, cache_seqlens=self.used, block_table=self.table, **given)
        self.assertTrue(torch.equal(k, before))
        expanded = {name: torch.tensor(0.1).expand(BATCH, HEADS_KV) for name in ("k_descale", "v_descale")}
        flash_attn_with_kvcache(self.q, k, v, cache_seqlens=self.used, block_table=self.table, **expanded)

    def test_flashinfer(self):
        workspace = torch.empty(1 << 20, dtype=torch.uint8)
        pages = (self.used + PAGE - 1) // PAGE
        indptr = torch.cat([torch.zeros(1, dtype=torch.int32), pages.cumsum(0).int()])
        indices = torch.cat([self.table[s, : pages[s]] for s in range(BATCH)])
        last = (self.used - 1) % PAGE + 1
        for dtype in TYPES:
            k, v, plain_k, plain_v = self.caches(dtype)
            made = []
            for kind, cache, options in (
                (dtype, (k, v), {"k_scale": self.by_k, "v_scale": self.by_v}),
                (torch.float32, (plain_k, plain_v), {}),
                (dtype, (k, v), {"k_scale": 0.02, "v_scale": 0.03}),
                (torch.float32, (k.float() * 0.02, v.float() * 0.03), {}),
            ):
                wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
                wrapper.plan(indptr, indices, last, HEADS, HEADS_KV, DIM, PAGE, q_data_type=torch.float32, kv_data_type=kind)
                made.append(wrapper.run(self.q[:, 0], cache, return_lse=True, **options))
            for ours, wanted in (made[:2], made[2:]):
                for a, b in zip(ours, wanted):
                    torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5)

    def test_what_is_refused(self):
        k, v, *_ = self.caches(torch.int8)
        with self.assertRaisesRegex(flashcore.Error, "give one type, or caches of 8 bits beside q of 16"):
            flash_attn_with_kvcache(self.q, k, v.float(), cache_seqlens=self.used, block_table=self.table)
        with self.assertRaisesRegex(flashcore.Error, "k_cache is torch.float16 and q torch.float32"):
            flash_attn_with_kvcache(self.q, k.half(), v.half(), cache_seqlens=self.used, block_table=self.table)
        with self.assertRaisesRegex(flashcore.Error, "k_descale is given and v_descale is not"):
            flash_attn_with_kvcache(self.q, k, v, cache_seqlens=self.used, block_table=self.table, k_descale=self.descales()["k_descale"])
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(torch.empty(1, dtype=torch.uint8))
        with self.assertRaisesRegex(ValueError, "keys and values of 8 bits beside queries of 16"):
            wrapper.plan(torch.tensor([0, 1]), torch.tensor([0]), torch.tensor([1]), HEADS, HEADS_KV, DIM, PAGE, q_data_type=torch.float16,
                         kv_data_type=torch.bfloat16)  # fmt: skip


if __name__ == "__main__":
    unittest.main(verbosity=2)
