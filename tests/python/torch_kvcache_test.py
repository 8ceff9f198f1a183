"""flash_attn_with_kvcache and paged flash_attn_varlen_func against the definition: caches in pages and dense, new tokens, hostile tables."""

import os
import sys
import unittest
from pathlib import Path

import torch

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
import flashcore  # noqa: E402
from flashcore.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache  # noqa: E402

BATCH, HEADS, HEADS_KV, DIM, PAGE, COLUMNS = 3, 4, 2, 16, 8, 4
ROOM = PAGE * COLUMNS
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
OPTIONS = [{}, {"causal": True}, {"causal": True, "window_size": (6, 0)}, {"softcap": 3.0}, {"alibi_slopes": SLOPES, "causal": True}, {"softmax_scale": 0.2},
           {"sink": SLOPES, "causal": True}]  # fmt: skip


def near(a, b):
    torch.testing.assert_close(a.double(), b.double(), atol=1e-4, rtol=1e-4)


class KvCacheTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(5)
        self.q = torch.randn(BATCH, 3, HEADS, DIM)
        self.k, self.v = torch.randn(BATCH, ROOM, HEADS_KV, DIM), torch.randn(BATCH, ROOM, HEADS_KV, DIM)
        self.used = torch.tensor([5, ROOM, 17], dtype=torch.int32)
        order = torch.randperm(BATCH * COLUMNS + 2)
        self.table = order[: BATCH * COLUMNS].view(BATCH, COLUMNS).int()
        self.k_pages, self.v_pages = (self.in_pages(x) for x in (self.k, self.v))

    def in_pages(self, dense):
        pages = torch.full((BATCH * COLUMNS + 2, PAGE, HEADS_KV, DIM), torch.nan)
        pages[self.table.flatten().long()] = dense.view(BATCH * COLUMNS, PAGE, HEADS_KV, DIM)
        return pages

    def wanted(self, q, used, k=None, v=None, **options):
        k, v = (self.k if k is None else k), (self.v if v is None else v)
        parts = [flash_attn_func(q[s : s + 1], k[s : s + 1, : used[s]], v[s : s + 1, : used[s]], return_attn_probs=True, **options) for s in range(BATCH)]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def test_pages_and_dense_caches(self):
        for options in OPTIONS:
            wanted = self.wanted(self.q, self.used.tolist(), **options)
            for call in ({"k_cache": self.k_pages, "v_cache": self.v_pages, "block_table": self.table},
                         {"k_cache": self.k_pages, "v_cache": self.v_pages, "page_table": self.table}, {"k_cache": self.k, "v_cache": self.v}):  # fmt: skip
                out, lse = flash_attn_with_kvcache(self.q, **call, cache_seqlens=self.used, return_softmax_lse=True, **options)
                near(out, wanted[0])
                near(lse, wanted[1])

    def test_a_number_of_keys_and_all(self):
        for length, given in ((9, {"cache_seqlens": 9}), (ROOM, {})):
            near(flash_attn_with_kvcache(self.q, self.k_pages, self.v_pages, block_table=self.table, **given), self.wanted(self.q, [length] * 3)[0])

    def test_left_padding(self):
        """As caches that begin behind it; a sequence that is padding alone sees no key."""
        pad, used = [2, 9, 17], self.used.tolist()
        k, v = self.k.clone(), self.v.clone()
        for s in range(BATCH):
            k[s, : pad[s]], v[s, : pad[s]] = 50, 50
        caches = {"k_cache": self.in_pages(k), "v_cache": self.in_pages(v), "block_table": self.table}, {"k_cache": k, "v_cache": v}
        for options in OPTIONS:
            parts = [flash_attn_func(self.q[s : s + 1], k[s : s + 1, pad[s] : used[s]], v[s : s + 1, pad[s] : used[s]], return_attn_probs=True, **options)
                     for s in range(BATCH - 1)]  # fmt: skip
            for call in caches:
                out, lse = flash_attn_with_kvcache(self.q, **call, cache_seqlens=self.used, cache_leftpad=torch.tensor(pad).int(), return_softmax_lse=True, **options)
                near(out[:2], torch.cat([part[0] for part in parts]))
                near(lse[:2], torch.cat([part[1] for part in parts]))
                self.assertFalse(out[2].any())

    def test_new_tokens_behind_left_padding(self):
        """They go where they go without it, turned by their places in the cache; and rows of different sequences by boundaries."""
        fresh_k, fresh_v = torch.randn(BATCH, 3, HEADS_KV, DIM), torch.randn(BATCH, 3, HEADS_KV, DIM)
        used, pad = torch.tensor([6, 29, 3], dtype=torch.int32), torch.tensor([6, 11, 2], dtype=torch.int32)
        angles = torch.rand(ROOM, DIM // 2) * 6
        options = dict(cache_seqlens=used, causal=True, rotary_cos=angles.cos(), rotary_sin=angles.sin())
        plain = [x.clone() for x in (self.k, self.v)]
        flash_attn_with_kvcache(self.q, *plain, fresh_k, fresh_v, **options)
        padded = [x.clone() for x in (self.k, self.v)]
        out = flash_attn_with_kvcache(self.q, *padded, fresh_k, fresh_v, cache_leftpad=pad, **options)
        for a, b in zip(plain, padded):
            torch.testing.assert_close(a, b)
        for s in range(BATCH):  # a cache without the padding, whose angles begin behind it
            first = int(pad[s])
            shifted = dict(cache_seqlens=used[s : s + 1] - first, causal=True, rotary_cos=angles.cos()[first:], rotary_sin=angles.sin()[first:])
            alone = [x[s : s + 1, first:].clone() for x in (self.k, self.v)]
            near(out[s], flash_attn_with_kvcache(self.q[s : s + 1], *alone, fresh_k[s : s + 1], fresh_v[s : s + 1], **shifted)[0])

    def test_entries_of_a_larger_dense_cache(self):
        larger_k, larger_v = torch.randn(5, ROOM, HEADS_KV, DIM), torch.randn(5, ROOM, HEADS_KV, DIM)
        places = torch.tensor([4, 0, 2], dtype=torch.int32)
        larger_k[places.long()], larger_v[places.long()] = self.k, self.v
        out = flash_attn_with_kvcache(self.q, larger_k, larger_v, cache_seqlens=self.used, cache_batch_idx=places, causal=True)
        near(out, self.wanted(self.q, self.used.tolist(), causal=True)[0])
        apart = torch.randn(BATCH, 2 * ROOM, HEADS_KV, DIM)[:, :ROOM]
        near(flash_attn_with_kvcache(self.q, apart, apart, cache_seqlens=self.used), self.wanted(self.q, self.used.tolist(), apart, apart)[0])

    def test_errors_name_what_was_given(self):
        fresh = torch.randn(BATCH, 1, HEADS_KV, DIM)
        shared = torch.randn(1, ROOM, HEADS_KV, DIM).expand(BATCH, -1, -1, -1)
        for words, change in (
            ("share memory", {"k_cache": shared, "v_cache": shared, "k": fresh, "v": fresh}),
            ("k is given alone", {"k": fresh}),
            ("cache_seqlens is not", {"k": fresh, "v": fresh, "cache_seqlens": None}),
            ("give int32", {"cache_seqlens": self.used.long()}),
            ("k_cache is torch.float16", {"k_cache": self.k.half()}),
            ("k_cache has shape", {"k_cache": self.k[0]}),
            ("softcap is -1.0; give a positive", {"softcap": -1.0}),
            ("window_size is 3; give", {"window_size": 3}),
            ("v_cache is a ndarray", {"v_cache": self.v.numpy()}),
        ):
            with self.subTest(words), self.assertRaisesRegex(flashcore.Error, words):
                flash_attn_with_kvcache(self.q, **{"k_cache": self.k, "v_cache": self.v, "cache_seqlens": self.used, **change})
        with self.assertRaisesRegex(flashcore.Error, r"seqused_kv has shape \(2,\) and q 3 sequences"):
            flashcore.decode(self.q, self.k_pages, self.v_pages, self.table, self.used[:2])
        with self.assertRaisesRegex(TypeError, "decode.* 'foo'; it takes"):
            flashcore.decode(self.q, self.k_pages, self.v_pages, self.table, self.used, foo=1)

    def test_new_tokens_are_written_first(self):
        fresh_k, fresh_v = torch.randn(BATCH, 3, HEADS_KV, DIM), torch.randn(BATCH, 3, HEADS_KV, DIM)
        used = torch.tensor([6, 29, 0], dtype=torch.int32)  # over the border of a page, to the end, from the beginning
        k, v = self.k.clone(), self.v.clone()
        for s in range(BATCH):
            k[s, used[s] : used[s] + 3], v[s, used[s] : used[s] + 3] = fresh_k[s], fresh_v[s]
        wanted = self.wanted(self.q, (used + 3).tolist(), k, v, causal=True)[0]
        out = flash_attn_with_kvcache(self.q, self.k_pages, self.v_pages, fresh_k, fresh_v, cache_seqlens=used, block_table=self.table, causal=True)
        near(out, wanted)
        torch.testing.assert_close(self.k_pages, self.in_pages(k), equal_nan=True)
        torch.testing.assert_close(self.v_pages, self.in_pages(v), equal_nan=True)
        dense_k, dense_v = self.k.clone(), self.v.clone()
        near(flash_attn_with_kvcache(self.q, dense_k, dense_v, fresh_k, fresh_v, cache_seqlens=used, causal=True), wanted)
        torch.testing.assert_close(dense_k, k)

    def test_what_has_no_place_is_not_written(self):
        fresh = torch.randn(BATCH, 3, HEADS_KV, DIM)
        used = torch.tensor([4, ROOM - 1, 2**31 - 9], dtype=torch.int32)
        table = self.table.clone()
        k, v = self.k_pages.clone(), self.v_pages.clone()
        out = flash_attn_with_kvcache(self.q, k, v, fresh, fresh, cache_seqlens=used, block_table=table)
        self.assertFalse(out[0].isnan().any())
        self.assertTrue(out[1:].isnan().all())
        wanted = self.k.clone()
        wanted[0, 4:7], wanted[1, ROOM - 1] = fresh[0], fresh[1, 0]
        torch.testing.assert_close(k, self.in_pages(wanted), equal_nan=True)
        # A length less than 0 is none, behind new keys too.
        k, v = self.k_pages.clone(), self.v_pages.clone()
        out = flash_attn_with_kvcache(self.q, k, v, fresh, fresh, cache_seqlens=torch.full_like(used, -2), block_table=table)
        self.assertTrue(out.isnan().all())
        torch.testing.assert_close(k, self.k_pages, equal_nan=True)
        # Of nobody a place.
        table[:] = -1
        k, v = self.k_pages.clone(), self.v_pages.clone()
        out = flash_attn_with_kvcache(self.q, k, v, fresh, fresh, cache_seqlens=used, block_table=table)
        self.assertTrue(out.isnan().all())
        torch.testing.assert_close(k, self.k_pages, equal_nan=True)

    def test_rows_of_a_block_table(self):
        """cache_batch_idx chooses them; a number that is no row gives NaN, never another sequence's keys."""
        chosen = torch.tensor([2, 0, 1], dtype=torch.int32)
        out = flash_attn_with_kvcache(self.q, self.k_pages, self.v_pages, block_table=self.table, cache_batch_idx=chosen, cache_seqlens=self.used)
        near(out, flash_attn_with_kvcache(self.q, self.k_pages, self.v_pages, block_table=self.table[chosen.long()], cache_seqlens=self.used))
        for wrong in (-1, 3, 2**31 - 1):
            chosen[1] = wrong
            made = flash_attn_with_kvcache(self.q, self.k_pages, self.v_pages, block_table=self.table, cache_batch_idx=chosen, cache_seqlens=self.used)
            self.assertTrue(made[1].isnan().all())
            near(made[::2], out[::2])

    def test_new_tokens_of_different_counts(self):
        """As one call for each sequence, with rotary position embedding: rows and new keys of all sequences one after another."""
        cu_q, cu_new, used = [0, 2, 3, 6], [0, 3, 4, 6], torch.tensor([5, 9, 17], dtype=torch.int32)
        q, new_k, new_v = torch.randn(6, HEADS, DIM), torch.randn(6, HEADS_KV, DIM), torch.randn(6, HEADS_KV, DIM)
        angles = torch.rand(ROOM, DIM // 4) * 6
        for causal in (False, True):
            options = dict(rotary_cos=angles.cos(), rotary_sin=angles.sin(), rotary_interleaved=False, causal=causal)
            caches, alone = [x.clone() for x in (self.k_pages, self.v_pages)], [x.clone() for x in (self.k, self.v)]
            out, lse = flash_attn_with_kvcache(q, *caches, new_k, new_v, block_table=self.table, cache_seqlens=used, max_seqlen_q=3, return_softmax_lse=True,
                                               cu_seqlens_q=torch.tensor(cu_q).int(), cu_seqlens_k_new=torch.tensor(cu_new).int(), **options)  # fmt: skip
            for s in range(BATCH):
                rows, new = slice(cu_q[s], cu_q[s + 1]), slice(cu_new[s], cu_new[s + 1])
                wanted = flash_attn_with_kvcache(q[None, rows], *(x[s : s + 1] for x in alone), new_k[None, new], new_v[None, new],
                                                 cache_seqlens=used[s : s + 1], return_softmax_lse=True, **options)  # fmt: skip
                near(out[rows], wanted[0][0])
                near(lse[:, rows], wanted[1][0])
            for pages, dense in zip(caches, alone):
                torch.testing.assert_close(pages[self.table.long()].flatten(1, 2), dense)

    def test_sequences_of_different_rows(self):
        q, cu_q = self.q.flatten(0, 1)[:8], torch.tensor([0, 1, 6, 8], dtype=torch.int32)
        out, lse = flash_attn_with_kvcache(q, self.k_pages, self.v_pages, cache_seqlens=self.used, page_table=self.table, cu_seqlens_q=cu_q, max_seqlen_q=5,
                                           causal=True, return_softmax_lse=True)  # fmt: skip
        self.assertEqual(lse.shape, (HEADS, 8))
        cu_k = torch.tensor([0, 5, 5 + ROOM, 22 + ROOM], dtype=torch.int32)
        varlen = flash_attn_varlen_func(q, self.k_pages, self.v_pages, cu_q, cu_k, 5, ROOM, causal=True, block_table=self.table)
        for s in range(BATCH):
            rows, keys = slice(cu_q[s], cu_q[s + 1]), self.used[s]
            wanted = flash_attn_func(q[None, rows], self.k[s : s + 1, :keys], self.v[s : s + 1, :keys], causal=True)[0]
            near(out[rows], wanted)
            near(varlen[rows], wanted)

    def test_refused(self):
        def refused(words, *tensors, **arguments):
            with self.assertRaisesRegex(flashcore.Error, words):
                flash_attn_with_kvcache(self.q, self.k_pages, self.v_pages, *tensors, **{"block_table": self.table, **arguments})

        refused("rotary_cos is given alone; give both", rotary_cos=self.q)
        refused("cache_leftpad is torch.int64 of shape", cache_leftpad=self.used.long())
        refused("cache_leftpad has shape .2,.; give the first key", cache_leftpad=self.used[:2])
        refused("both given", page_table=self.table)
        refused("cache_seqlens is a float", cache_seqlens=2.5)
        refused("k and v have shapes", self.k[:2, :1], self.v[:2, :1], cache_seqlens=3)
        refused("cache_batch_idx has shape .2,.; give the row of block_table", cache_batch_idx=self.used[:2])
        refused("cu_seqlens_k_new is given and k is not", cu_seqlens_k_new=self.used)
        refused("give .new rows of all sequences, heads_kv, dim.", self.k[:, :1], self.v[:, :1], cache_seqlens=3, cu_seqlens_k_new=torch.arange(4).int())
        refused("give .batch, length, heads_kv, dim., or a block_table", block_table=None)
        refused("max_seqlen_q is not", cu_seqlens_q=self.used)
        refused("cache_seqlens is -1; give", cache_seqlens=-1)
        refused("cache_seqlens is 4294967296; give", cache_seqlens=2**32)
        refused("block_table is a list; give int32", block_table=[[0]])
        refused(r"block_table is torch.int32 of shape \(12,\); give", block_table=self.table.flatten())
        refused("cache_batch_idx is torch.float32", block_table=None, cache_batch_idx=self.used.float())
        fresh, before = torch.randn(BATCH, 1, HEADS_KV, DIM), self.k_pages.clone()
        refused("k and v are torch.float16", fresh.half(), fresh.half(), cache_seqlens=3)
        # Nothing is appended by a call that is refused.
        refused("block_table is torch.int64 of shape", fresh, fresh, cache_seqlens=3, block_table=self.table.long())
        torch.testing.assert_close(self.k_pages, before, equal_nan=True)


if __name__ == "__main__":
    unittest.main()
