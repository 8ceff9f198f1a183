"""Calls that flashcore's modules of FlashAttention's and FlashInfer's names refuse: with what was given, before anything is written."""

import math
import unittest

import torch
import torch_support  # noqa: F401

import flashcore
from flashcore import flash_attn, flash_attn_interface, flashinfer


def ints(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


class RefusalsTest(unittest.TestCase):
    def refused(self, *words):
        return self.assertRaisesRegex(flashcore.Error, ".*".join(words))

    def test_lengths_that_the_gradient_reads(self):
        q, k = torch.randn(5, 4, 16), torch.randn(9, 2, 16)
        cases = {
            ("seqused_k", "is 7", "has 5"): dict(cu_seqlens_k=ints(0, 5, 9), seqused_k=ints(7, 4)),
            ("seqused_k", "is -2"): dict(cu_seqlens_k=ints(0, 5, 9), seqused_k=ints(-2, 4)),
            ("cu_seqlens_k", "5, 12", "9 rows"): dict(cu_seqlens_k=ints(0, 5, 12)),
            ("cu_seqlens_k", "is -4, 5"): dict(cu_seqlens_k=ints(-4, 5, 9)),
            ("cu_seqlens_q", "3, 2"): dict(cu_seqlens_q=ints(0, 3, 2)),
            ("of 2 sequences", "of 1"): dict(cu_seqlens_k=ints(0, 9)),
            ("max_seqlen_k is 3",): dict(max_seqlen_k=3),
            ("seqused_q is of 1 sequences",): dict(seqused_q=ints(3)),
            ("cu_seqlens_q is", "float32"): dict(cu_seqlens_q=torch.tensor([0.0, 3.0, 5.0])),
        }
        usual = dict(cu_seqlens_q=ints(0, 3, 5), cu_seqlens_k=ints(0, 5, 9), max_seqlen_q=5, max_seqlen_k=9)
        for words, case in cases.items():
            with self.subTest(words=words), self.refused(*words):
                flash_attn.flash_attn_varlen_func(q.clone().requires_grad_(), k, k, **{**usual, **case})
        made = flash_attn.flash_attn_varlen_func(q.clone().requires_grad_(), k, k, **usual, seqused_k=ints(3, 4))
        torch.testing.assert_close(made.detach(), flash_attn.flash_attn_varlen_func(q, k, k, **usual, seqused_k=ints(3, 4)))

    def test_a_refused_call_leaves_the_cache_alone(self):
        q, new = torch.randn(2, 1, 4, 16).half(), torch.randn(2, 1, 2, 16).half()
        by_head = torch.ones(2, 2)
        usual = dict(cache_seqlens=ints(3, 4), k_descale=by_head, v_descale=by_head)
        for case in (dict(softcap=math.nan), dict(softmax_scale=-1.0), dict(alibi_slopes=torch.ones(3)), dict(sink=torch.ones(3)),
                     dict(q=torch.randn(2, 1, 3, 16).half()), dict(q=torch.randn(2, 1, 4, 8).half()),
                     dict(q=q.flatten(0, 1), cu_seqlens_q=ints(0, 1, 2)), dict(k_descale=torch.ones(2, 3))):  # fmt: skip
            caches = [torch.zeros(2, 8, 2, 16, dtype=torch.int8) for _ in range(2)]
            given = {**usual, **case}
            with self.subTest(case=case), self.assertRaises(flashcore.Error):
                flash_attn.flash_attn_with_kvcache(given.pop("q", q), *caches, new, new, **given)
            self.assertFalse(any(x.any() for x in caches), case)

    def test_a_dense_cache_may_have_factors_of_each_key(self):
        torch.manual_seed(1)
        q, new = torch.randn(2, 1, 4, 16).half(), torch.randn(2, 1, 2, 16).half()
        made = []
        for table in (None, ints(0, 1)[:, None]):
            caches = [torch.zeros(2, 8, 2, 16, dtype=torch.int8) for _ in range(2)]
            by_key = torch.ones(2, 2, 8)
            made.append(flash_attn.flash_attn_with_kvcache(q, *caches, new, new, cache_seqlens=ints(0, 0), block_table=table, k_descale=by_key.clone(), v_descale=by_key))
        torch.testing.assert_close(*made, rtol=0, atol=0)
        torch.testing.assert_close(made[0][:, :, ::2], new, rtol=0, atol=0.02)

    def test_what_is_no_tensor(self):
        x = torch.randn(1, 3, 2, 16)
        with self.refused("q is a ndarray", "flashcore.attention takes NumPy's"):
            flash_attn.flash_attn_func(x.numpy(), x, x)
        with self.refused("cu_seqlens_k and seqused_k are not"):
            flash_attn.flash_attn_varlen_func(x[0], torch.zeros(2, 4, 2, 16), torch.zeros(2, 4, 2, 16), ints(0, 3), None, 3, 8, block_table=ints(0, 1)[None])
        eight = x.to(torch.float8_e4m3fn)
        torch.testing.assert_close(*(flash_attn_interface.flash_attn_func(eight, eight, eight, q_descale=by, k_descale=by, v_descale=by) for by in (2.0, torch.full((1, 2), 2.0))))

    def test_empty_tensors_of_numpy(self):
        """NumPy gives them strides of 0."""
        empty = torch.randn(4, 2, 16)[:0].as_strided((0, 2, 16), (0, 0, 0))
        rows = torch.randn(3, 2, 16)
        made = flashcore.varlen_attention(rows, empty, empty, ints(0, 3), ints(0, 0), 3, 0)
        self.assertEqual(made.abs().max(), 0)

    def test_an_output_of_other_axes(self):
        q, cache = torch.randn(2, 3, 2, 8), torch.randn(4, 4, 2, 8)
        for shape in ((3, 2, 2, 8), (6, 2, 8), (1, 6, 2, 8)):
            with self.refused("out has shape", r"\(2, 3, 2, 8\)"):
                flashcore.decode(q, cache, cache, ints(0, 1)[:, None], ints(4, 4), out=torch.empty(shape))

    def test_scales_of_flashinfer(self):
        pool = torch.randn(6, 4, 2, 16).half()
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(torch.empty(1))
        wrapper.plan(indptr=ints(0, 2, 3), indices=ints(4, 1, 0), last_page_len=ints(3, 2), num_qo_heads=4, num_kv_heads=2, head_dim=16, page_size=4)
        for name, number in (("q_scale", -1.0), ("k_scale", 0.0), ("v_scale", math.nan), ("v_scale", math.inf)):
            with self.subTest(name=name), self.refused(f"{name} is {number}", "positive"):
                wrapper.run(torch.randn(2, 4, 16).half(), (pool, pool), **{name: number})

    def test_more_keys_than_a_length_holds(self):
        _, used = flashcore.block_table_of_csr(ints(0, 65537), torch.zeros(65537, dtype=torch.int32), ints(7), 65536, 65537)
        self.assertEqual(used.tolist(), [-1])

    def test_words(self):
        q = torch.randn(2, 2, 16).half()
        with self.refused("k is float8_e4m3fn|k is e4m3", "v is", "quantised cache has one type"):
            flashcore.attention(q[None], q[None].to(torch.float8_e4m3fn), q[None].to(torch.float8_e5m2))
        with self.refused("seqused_q has shape"):
            flashcore.paged_attention(q, q[None], q[None], ints(0)[None], ints(2), cu_seqlens_q=ints(0, 2), max_seqlen_q=2, seqused_q=ints(1, 1))
        x = flashcore.quantize(*(torch.randn(1, 2, 40, 16) for _ in range(3)), v_layout="dn")
        with self.refused("v_layout='dn'"):
            flashcore.attention(*x.arrays, **x.descales)


if __name__ == "__main__":
    unittest.main()
