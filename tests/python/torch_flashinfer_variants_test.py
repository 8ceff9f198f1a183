"""What FlashInfer's own tests call besides: sinks by jit_args, scales behind the cache and for each query head, buffers of log-sum-exps, pages
of one key without their axis."""

import sys
import unittest
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from torch_flashinfer_support import WORKSPACE, Requests  # noqa: E402

import flashcore  # noqa: E402
import flashcore.flashinfer as flashinfer  # noqa: E402

HEADS, HEADS_KV, DIM, PAGE = 6, 2, 32, 4
LENGTHS, ROWS = [5, 16, 9], [2, 7, 1]
E4M3 = torch.float8_e4m3fn
SINKS = ("uri", torch.float16, torch.float16, torch.float16, torch.int32, DIM, DIM, ["sink"], ["float"], ["sm_scale"], ["double"], "AttentionSink", "source")


def near(a, b, within=2e-3):
    torch.testing.assert_close(a.double(), b.double(), atol=within, rtol=within)


class VariantsTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        self.requests = Requests(LENGTHS, PAGE, HEADS_KV, DIM, torch.float16, rows=ROWS)
        self.rows = torch.randn(sum(ROWS), HEADS, DIM).half()
        self.k, self.v = (torch.cat(x) for x in (self.requests.k, self.requests.v))
        self.kv_indptr = torch.tensor([0, *LENGTHS]).cumsum(0).int()

    def paged(self, heads_kv=HEADS_KV, **options):
        made = flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE, **{name: options.pop(name) for name in ("jit_args",) if name in options})
        made.plan(self.requests.qo_indptr, *self.requests.lists(), HEADS, heads_kv, DIM, PAGE, causal=True, **options)
        return made

    def ragged(self, heads_kv=HEADS_KV, **options):
        made = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(WORKSPACE, **{name: options.pop(name) for name in ("jit_args",) if name in options})
        made.plan(self.requests.qo_indptr, self.kv_indptr, HEADS, heads_kv, DIM, causal=True, **options)
        return made

    def test_sinks_by_the_variants_name(self):
        sinks, cache = torch.randn(HEADS), self.requests.cache(True)
        wanted = self.paged(sm_scale=0.3).run(self.rows, cache, sinks=sinks)
        self.assertFalse(torch.allclose(wanted, self.paged(sm_scale=0.3).run(self.rows, cache), atol=0.01))
        near(self.paged(jit_args=SINKS).run(self.rows, cache, sinks, 0.3), wanted)
        near(self.ragged(jit_args=list(SINKS)).run(self.rows, self.k, self.v, sinks, 0.3), wanted)
        with self.assertRaisesRegex(flashcore.Error, "run.. is given 1 arguments behind the cache; give the sinks"):
            self.ragged(jit_args=SINKS).run(self.rows, self.k, self.v, sinks)
        for other in ((*SINKS[:11], "FlashSigmoid", ""), SINKS[:5], (*SINKS[:7], ["sink", "bias"], *SINKS[8:])):
            with self.assertRaisesRegex(flashcore.Error, "jit_args is given; .*only AttentionSink"):
                self.ragged(jit_args=other)

    def test_each_query_head_has_a_factor(self):
        """Of 8 bits: as with a key head for each query head, whose factors kernels know."""
        group = HEADS // HEADS_KV
        q, k, v = (x.to(E4M3) for x in (self.rows, self.k, self.v))
        by_q, by_k, by_v = torch.rand(HEADS) + 0.5, torch.rand(HEADS_KV) + 0.5, torch.rand(HEADS_KV) + 0.5
        types = dict(q_data_type=E4M3, kv_data_type=E4M3, o_data_type=torch.float16)
        many = [x.float().repeat_interleave(group, 1).to(E4M3) for x in (k, v)]
        wanted, wanted_lse = self.ragged(HEADS, **types).run(q, *many, by_q, by_k.repeat_interleave(group), by_v.repeat_interleave(group), return_lse=True)
        cache = [pool.nan_to_num().to(E4M3) for pool in self.requests.pools]
        for made in (self.ragged(**types).run(q, k, v, by_q, by_k, by_v, return_lse=True), self.paged(**types).run(q, cache, by_q, by_k, by_v, return_lse=True)):
            near(made[0], wanted)
            near(made[1], wanted_lse)
        rows, keys = slice(ROWS[0], ROWS[0] + ROWS[1]), slice(LENGTHS[0], LENGTHS[0] + LENGTHS[1])
        alone = flashinfer.single_prefill_with_kv_cache(q[rows], k[keys], v[keys], by_q, by_k, by_v, torch.float16, causal=True, return_lse=True)
        near(alone[0], wanted[rows])
        near(alone[1], wanted_lse[rows])
        out, lse = torch.empty_like(wanted), torch.empty_like(wanted_lse)
        self.paged(**types).run(q, cache, by_q, by_k, by_v, out=out, lse=lse)
        near(out, wanted)
        near(lse, wanted_lse)
        with self.assertRaisesRegex(flashcore.Error, r"q_scale is torch.float32 of shape \(4,\); give float32 .heads. = \(6,\)"):
            self.paged(**types).run(q, cache, torch.ones(4), by_k, by_v)
        with self.assertRaisesRegex(flashcore.Error, "q_scale has a factor for each query head, .* beside pos_encoding_mode='ALIBI'"):
            self.paged(pos_encoding_mode="ALIBI", **types).run(q, cache, by_q, by_k, by_v)

    def test_decoding_takes_scales_behind_the_cache(self):
        q = torch.randn(len(LENGTHS), HEADS, DIM).to(E4M3)
        cache = [pool.nan_to_num().to(E4M3) for pool in self.requests.pools]
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
        wrapper.plan(*self.requests.lists(), HEADS, HEADS_KV, DIM, PAGE, q_data_type=E4M3)
        self.assertTrue(torch.equal(wrapper.run(q, cache, 0.5, 2.0, 0.25), wrapper.run(q, cache, q_scale=0.5, k_scale=2.0, v_scale=0.25)))
        self.assertFalse(torch.equal(wrapper.run(q, cache, 0.5, 2.0, 0.25), wrapper.run(q, cache)))

    def test_a_given_lse_is_written(self):
        """Whether return_lse asks for it or not."""
        for wrapper, tensors in ((self.paged(), (self.requests.cache(True),)), (self.ragged(), (self.k, self.v))):
            out, lse = wrapper.run(self.rows, *tensors, return_lse=True)
            buffer = torch.full_like(lse, torch.nan)
            made = wrapper.run(self.rows, *tensors, lse=buffer)
            self.assertTrue(torch.equal(made, out) and torch.equal(buffer, lse))

    def test_pages_of_one_key_may_lack_their_axis(self):
        for layout in ("NHD", "HND"):
            requests = Requests(LENGTHS, 1, HEADS_KV, DIM, torch.float16, layout=layout)
            wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE, layout)
            wrapper.plan(*requests.lists(), HEADS, HEADS_KV, DIM, 1)
            q, axis = torch.randn(len(LENGTHS), HEADS, DIM).half(), 1 if layout == "NHD" else 2
            wanted = wrapper.run(q, requests.cache(True))
            self.assertTrue(torch.equal(wanted, wrapper.run(q, requests.cache(True).squeeze(axis + 1))))
            self.assertTrue(torch.equal(wanted, wrapper.run(q, tuple(x.squeeze(axis) for x in requests.cache(False)))))


if __name__ == "__main__":
    unittest.main()
