"""FlashAttention 3's functions: against FlashAttention 2's, and of 8-bit inputs against the definition in fp64."""

import itertools
import os
import sys
import unittest
from pathlib import Path

import torch

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
import flashcore  # noqa: E402
import flashcore.flash_attn as two  # noqa: E402
import flashcore.flash_attn_interface as three  # noqa: E402

BATCH, ROWS, KEYS, HEADS, HEADS_KV, DIM = 2, 7, 20, 4, 2, 32
E4M3 = torch.float8_e4m3fn


def near(a, b, within=1e-4):
    torch.testing.assert_close(a.double(), b.double(), atol=within, rtol=within)


def exact(q, k, v, q_by, k_by, v_by, causal):
    """(out, lse) in fp64, [batch, length, heads, dim] and [batch, heads, length]; the factors are [batch, heads_kv]."""
    group = HEADS // HEADS_KV
    q = q.double() * q_by.double().repeat_interleave(group, 1)[:, None, :, None]
    k, v = ((x.double() * by.double()[:, None, :, None]).repeat_interleave(group, 2) for x, by in ((k, k_by), (v, v_by)))
    scores = torch.einsum("bthd,bshd->bhts", q, k) * DIM**-0.5
    if causal:
        rows, keys = scores.shape[-2:]
        scores = scores.masked_fill(torch.ones(rows, keys, dtype=torch.bool).triu(keys - rows + 1), -torch.inf)
    return torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v), scores.logsumexp(-1)


class FlashAttention3Test(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(4)
        self.q = torch.randn(BATCH, ROWS, HEADS, DIM)
        self.k, self.v = (torch.randn(BATCH, KEYS, HEADS_KV, DIM) for _ in range(2))
        self.by = [torch.rand(BATCH, HEADS_KV) + 0.5 for _ in range(3)]

    def named(self):
        return dict(zip(("q_descale", "k_descale", "v_descale"), self.by))

    def test_16_and_32_bits_are_those_of_flash_attention_2(self):
        q = self.q.clone().requires_grad_()
        out = three.flash_attn_func(q, self.k, self.v, 0.2, True, window_size=torch.tensor([5, 3]), softcap=8.0, num_splits=3, pack_gqa=True)
        wanted = two.flash_attn_func(self.q, self.k, self.v, softmax_scale=0.2, causal=True, window_size=(5, 3), softcap=8.0)
        near(out, wanted)
        self.assertEqual(torch.autograd.grad(out.sum(), q)[0].shape, q.shape)
        made = three.flash_attn_func(self.q, self.k, self.v, return_attn_probs=True)
        self.assertEqual(len(made), 2)
        near(made[1], two.flash_attn_func(self.q, self.k, self.v, return_attn_probs=True)[1])

    def test_sequences_of_different_lengths(self):
        q, k, v = self.q.flatten(0, 1), self.k.flatten(0, 1), self.v.flatten(0, 1)
        cu_q, cu_k = (torch.tensor([0, n, 2 * n]).int() for n in (ROWS, KEYS))
        used = torch.tensor([ROWS, ROWS - 2]).int(), torch.tensor([KEYS - 3, KEYS]).int()
        out, lse = three.flash_attn_varlen_func(q, k, v, cu_q, cu_k, ROWS, KEYS, *used, causal=True, window_size=[4, -1], return_attn_probs=True)
        wanted = two.flash_attn_varlen_func(q, k, v, cu_q, cu_k, ROWS, KEYS, causal=True, window_size=(4, -1), return_attn_probs=True,
                                            seqused_q=used[0], seqused_k=used[1])  # fmt: skip
        for a, b in ((out, wanted[0]), (lse.t(), wanted[1].t())):
            near(a[: 2 * ROWS - 2], b[: 2 * ROWS - 2])

    def test_8_bits_have_factors(self):
        q, k, v = (x.to(E4M3).requires_grad_() for x in (self.q, self.k, self.v))
        for causal in (False, True):
            wanted, wanted_lse = exact(*(x.detach().float() for x in (q, k, v)), *self.by, causal)
            out, lse = three.flash_attn_func(q, k, v, causal=causal, return_attn_probs=True, **self.named())
            self.assertIs(out.dtype, torch.bfloat16)
            self.assertFalse(out.requires_grad)
            near(out, wanted, 0.05)  # P is rounded to 8 bits
            near(lse, wanted_lse, 1e-3)
            cu_q, cu_k = (torch.tensor([0, n, 2 * n]).int() for n in (ROWS, KEYS))
            packed = three.flash_attn_varlen_func(*(x.flatten(0, 1) for x in (q, k, v)), cu_q, cu_k, ROWS, KEYS, causal=causal, **self.named())
            near(packed.view_as(wanted), wanted, 0.05)
        near(three.flash_attn_func(q, k, v), exact(*(x.detach().float() for x in (q, k, v)), *[torch.ones(BATCH, HEADS_KV)] * 3, False)[0], 0.05)

    def test_caches(self):
        used, order = torch.tensor([9, 15]).int(), torch.randperm(10)
        pages = [torch.zeros(10, 4, HEADS_KV, DIM) for _ in range(2)]
        table = order.view(2, 5).int()
        for x, dense in zip(pages, (self.k, self.v)):
            x[order] = dense.reshape(10, 4, HEADS_KV, DIM)
        plan = three.get_scheduler_metadata(BATCH, ROWS, KEYS, HEADS, HEADS_KV, DIM, used, torch.float32, causal=True)
        out, lse = three.flash_attn_with_kvcache(self.q, *pages, cache_seqlens=used, page_table=table, rotary_seqlens=used, causal=True,
                                                 scheduler_metadata=plan, return_softmax_lse=True)  # fmt: skip
        wanted = two.flash_attn_with_kvcache(self.q, self.k, self.v, cache_seqlens=used, causal=True, return_softmax_lse=True)
        near(out, wanted[0])
        near(lse, wanted[1])
        angles = torch.rand(KEYS, 4)
        with self.assertRaisesRegex(flashcore.Error, "rotary_seqlens is given"):
            three.flash_attn_with_kvcache(self.q, *pages, self.k[:, :1], self.v[:, :1], rotary_cos=angles, rotary_sin=angles, cache_seqlens=used,
                                          page_table=table, rotary_seqlens=used // 2)  # fmt: skip

    def test_rotary_of_8_bits(self):
        """As of the same numbers in 32 bits, whose turned rows are rounded to e4m3."""
        new, columns, most = 3, 8, torch.finfo(E4M3).max
        q, k, v, added_k, added_v = (x.to(E4M3) for x in (self.q, self.k, self.v, 3 * self.k[:, :new], self.v[:, :new]))
        # Beyond its largest number a turned row saturates.
        added_k[0, 0, 0, 0] = added_k[0, 0, 0, 1] = added_k[0, 0, 0, columns] = most
        angle = torch.rand(KEYS, columns)
        cos, sin = (x.to(E4M3) for x in (angle.cos(), angle.sin()))
        used = torch.tensor([5, 11]).int()
        cu_q, cu_new = torch.tensor([0, 7, 9]).int(), torch.tensor([0, 3, 4]).int()
        for causal, interleaved, packed in itertools.product((False, True), repeat=3):
            rows, of_k, of_v = (x.flatten(0, 1) if packed else x for x in (q, added_k, added_v))
            options = dict(cache_seqlens=used, causal=causal, rotary_interleaved=interleaved)
            if packed:
                rows, of_k, of_v = rows[:9], of_k[:4], of_v[:4]
                options |= dict(cu_seqlens_q=cu_q, max_seqlen_q=7, cu_seqlens_k_new=cu_new)
            caches, wide = [k.clone(), v.clone()], [k.float(), v.float()]
            with self.subTest(causal=causal, interleaved=interleaved, packed=packed):
                out = three.flash_attn_with_kvcache(rows, *caches, of_k, of_v, rotary_cos=cos, rotary_sin=sin, **self.named(), **options)
                two.flash_attn_with_kvcache(rows.float(), *wide, of_k.float(), of_v.float(), rotary_cos=cos.float(), rotary_sin=sin.float(), **options)
                self.assertTrue(torch.equal(caches[1].float(), wide[1]))
                # One number of 256 may be rounded the other way: sums of two products differ by the last bit of 32.
                differ = caches[0].float() != wide[0].clamp(-most, most).to(E4M3).float()
                self.assertLess(differ.float().mean(), 1 / 256)
                near(caches[0].float(), wide[0].clamp(-most, most), 1 / 15)
                by = [x[:, None, :, None] for x in self.by]
                group = HEADS // HEADS_KV
                q_by = self.by[0].repeat_interleave(group, 1)
                q_by = torch.cat((q_by[:1].expand(7, -1), q_by[1:].expand(2, -1)))[..., None] if packed else q_by[:, None, :, None]
                of_new = (torch.cat((by[1][0].expand(3, -1, -1), by[1][1].expand(1, -1, -1))) if packed else by[1])
                of_new_v = (torch.cat((by[2][0].expand(3, -1, -1), by[2][1].expand(1, -1, -1))) if packed else by[2])
                exact = two.flash_attn_with_kvcache(rows.float() * q_by, k.float() * by[1], v.float() * by[2], of_k.float() * of_new, of_v.float() * of_new_v,
                                                    rotary_cos=cos.float(), rotary_sin=sin.float(), **options)  # fmt: skip
                self.assertLess((out.float() - exact).abs().mean(), 0.05 * exact.abs().mean())
        # The second sequence's last new key has no angle: none of its rows is written, and it gets NaN.
        cache = k.clone()
        out = three.flash_attn_with_kvcache(q, cache, v.clone(), added_k, added_v, rotary_cos=cos[:13], rotary_sin=sin[:13], cache_seqlens=used)
        self.assertTrue(out[0].isfinite().all() and out[1].isnan().all())
        self.assertTrue(torch.equal(cache[1].view(torch.uint8), k[1].view(torch.uint8)) and not torch.equal(cache[0].float(), k[0].float()))
        # Rows of q behind the new keys have none.
        out = three.flash_attn_with_kvcache(q, k.clone(), v.clone(), added_k, added_v, rotary_cos=cos[:14], rotary_sin=sin[:14], cache_seqlens=used, causal=True)
        self.assertTrue(out[1, :3].isfinite().all() and out[1, 3:].isnan().all())
        with self.assertRaisesRegex(flashcore.Error, "rotary_cos has shape"):
            three.flash_attn_with_kvcache(q, cache, v.clone(), added_k, added_v, rotary_cos=cos, rotary_sin=sin[1:], cache_seqlens=used)

    def test_parts_are_combined(self):
        cuts = [(0, 6), (6, 13), (13, KEYS)]
        parts = [two.flash_attn_func(self.q, self.k[:, a:b], self.v[:, a:b], return_attn_probs=True) for a, b in cuts]
        outs, lses = torch.stack([part[0] for part in parts]), torch.stack([part[1].transpose(1, 2) for part in parts])
        empty = torch.full_like(outs[:1], torch.nan), torch.full_like(lses[:1], -torch.inf)
        wanted = two.flash_attn_func(self.q, self.k, self.v, return_attn_probs=True)
        for added in (False, True):
            given = [torch.cat((x, y)) if added else x for x, y in zip((outs, lses), empty)]
            out, lse = three.flash_attn_combine(*given)
            near(out, wanted[0])
            near(lse, wanted[1].transpose(1, 2))
        buffer = torch.empty_like(wanted[0], dtype=torch.bfloat16)
        self.assertIs(three.flash_attn_combine(outs, lses, buffer)[0], buffer)
        self.assertTrue(torch.equal(buffer, three.flash_attn_combine(outs, lses, out_dtype=torch.bfloat16)[0]))
        none, of_none = three.flash_attn_combine(*empty)
        self.assertTrue((none == 0).all() and of_none.isneginf().all())
        with self.assertRaisesRegex(flashcore.Error, "out_partial has shape .* and lse_partial"):
            three.flash_attn_combine(outs, lses[1:])

    def test_refused(self):
        bytes_ = [x.to(E4M3) for x in (self.q, self.k, self.v)]
        for words, tensors, options in (
            ("attention_chunk is given", (self.q, self.k, self.v), {"attention_chunk": 4}),
            ("k_descale is given and q is torch.float32; leave it out", (self.q, self.k, self.v), {"k_descale": self.by[1]}),
            ("q_descale is given and k_descale is not; give all three", bytes_, {"q_descale": self.by[0]}),
            ("window is", (self.q, self.k, self.v), {"window_size": torch.tensor([1.5, 2.0])}),
        ):
            with self.subTest(words), self.assertRaisesRegex(flashcore.Error, words):
                three.flash_attn_func(*tensors, **options)


if __name__ == "__main__":
    unittest.main()
