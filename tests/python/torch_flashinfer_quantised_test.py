"""flashcore.flashinfer over quantised caches: rows that append_paged_kv_cache scales, TensorRT-LLM's fused scales, scales as tensors, each beside the
same numbers in q's type; scales that a GPU reads, on the emulated one; refusals."""

import sys
import unittest
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from torch_flashinfer_support import WORKSPACE, EmulatedGpu, Requests  # noqa: E402

import flashcore  # noqa: E402
import flashcore.flashinfer as flashinfer  # noqa: E402

HEADS, HEADS_KV, DIM, PAGE = 6, 2, 32, 8
LENGTHS = [5, 40, 17]
BY_K, BY_V = torch.tensor([0.02, 0.05]), torch.tensor([0.03, 0.01])
E4M3 = torch.float8_e4m3fn
TYPES = [E4M3, torch.float8_e5m2, torch.int8]
SM_SCALE = 0.21


def quantised(x, by, dtype):
    """x / by, by each head's where there are several; saturated."""
    scaled = x.float() / (by[:, None] if torch.is_tensor(by) and by.numel() > 1 else by)
    return scaled.round().clamp(-127, 127).to(dtype) if dtype is torch.int8 else scaled.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max).to(dtype)


def same(a, b):
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


class AppendTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(8)
        self.requests = Requests(LENGTHS, PAGE, HEADS_KV, DIM, torch.float32)
        self.indptr, self.indices, self.last = self.requests.lists()
        self.whose, self.where = flashinfer.get_batch_indices_positions(torch.tensor([0, 3, 4, 4]).int(), torch.tensor(LENGTHS).int(), 6)
        self.new = [torch.randn(6, HEADS_KV, DIM) * 2 for _ in range(2)]
        self.new[0][0, 0, :3] = torch.tensor([1e4, -1e4, 0.0])  # which saturate

    def append(self, new, cache, layout="NHD", **scales):
        flashinfer.append_paged_kv_cache(*new, self.whose, self.where, cache, self.indices, self.indptr, self.last, layout, **scales)

    def caches(self, dtype, fill=7.0):
        return tuple(torch.full(pool.shape, fill).to(dtype) for pool in self.requests.pools)

    def test_rows_are_divided_rounded_and_saturate(self):
        one, by_head = (0.02, 0.03), (BY_K, BY_V)
        for source in (torch.float16, torch.bfloat16, torch.float32):
            new = [x.to(source) for x in self.new]
            for dtype in TYPES:
                for given, meant in ((one, one), (tuple(map(torch.tensor, one)), one), (by_head, by_head), ((0.02, BY_V), (torch.tensor([0.02] * 2), BY_V))):
                    for layout, together in (("NHD", False), ("HND", False), ("NHD", True)):
                        with self.subTest(source=source, dtype=dtype, given=given, layout=layout, together=together):
                            wanted = self.caches(dtype)
                            for cache, x, by in zip(wanted, new, meant):
                                codes = quantised(x, by, dtype)
                                for entry in range(4):
                                    at = int(self.where[entry])
                                    cache[self.requests.pages_of(int(self.whose[entry]))[at // PAGE], at % PAGE] = codes[entry]
                            cache = self.caches(dtype)
                            if layout == "HND":
                                cache = tuple(x.transpose(1, 2).contiguous() for x in cache)
                            whole = torch.stack([x.view(torch.uint8) for x in cache], 1).view(dtype) if together else None
                            self.append(new, cache if whole is None else whole, layout, k_scale=given[0], v_scale=given[1])
                            found = cache if whole is None else whole.unbind(1)
                            for x, y in zip(found, wanted):
                                self.assertTrue(same(x.transpose(1, 2) if layout == "HND" else x, y))

    def test_appended_and_read_with_the_same_scales(self):
        q = torch.randn(len(LENGTHS), HEADS, DIM)
        whose = torch.repeat_interleave(torch.arange(3), torch.tensor(LENGTHS)).int()
        where = torch.cat([torch.arange(length) for length in LENGTHS]).int()
        for dtype in TYPES:
            cache = self.caches(dtype, 0.0)
            flashinfer.append_paged_kv_cache(torch.cat(self.requests.k), torch.cat(self.requests.v), whose, where, cache, self.indices, self.indptr, self.last,
                                             k_scale=BY_K, v_scale=BY_V)  # fmt: skip
            wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
            wrapper.plan(self.indptr, self.indices, self.last, HEADS, HEADS_KV, DIM, PAGE, q_data_type=torch.float32, kv_data_type=dtype)
            out = wrapper.run(q, cache, k_scale=BY_K, v_scale=BY_V)
            plain = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
            plain.plan(self.indptr, self.indices, self.last, HEADS, HEADS_KV, DIM, PAGE, q_data_type=torch.float32)
            values = tuple(x.float() * by[:, None] for x, by in zip(cache, (BY_K, BY_V)))
            torch.testing.assert_close(out, plain.run(q, values), atol=2e-5, rtol=2e-5)

    def test_refused(self):
        half = [x.half() for x in self.new]
        codes, plain = self.caches(E4M3), self.caches(torch.float16)
        append = lambda new, cache, **scales: lambda: self.append(new, cache, **scales)  # noqa: E731
        for words, call in (
            ("append_key is torch.float16, paged_kv_cache is torch.float8_e4m3fn and k_scale is not given; give k_scale and v_scale, 1.0 for values as they are, "
             "or rows of", append(half, codes)),
            ("append_value is torch.float16, .* and v_scale is not given", append(half, codes, k_scale=1.0)),
            ("k_scale is given, append_key is torch.float16 and so is paged_kv_cache; leave it out", append(half, plain, k_scale=1.0, v_scale=1.0)),
            ("v_scale is given, append_value is torch.float8_e4m3fn and so is", append([x.to(E4M3) for x in half], codes, v_scale=1.0)),
            ("append_key is torch.float8_e5m2 and paged_kv_cache torch.float8_e4m3fn; give rows of the cache's type",
             append([x.to(torch.float8_e5m2) for x in half], codes, k_scale=1.0, v_scale=1.0)),
            ("append_key is torch.float16 and paged_kv_cache torch.uint8; give rows", append(half, self.caches(torch.uint8), k_scale=1.0, v_scale=1.0)),
            ("append_value is torch.float16 and paged_kv_cache torch.bfloat16; give", append(half, (plain[0], plain[1].bfloat16()))),
            ("k is fp32 on cpu, v fp16 on cpu", append([self.new[0], half[1]], codes, k_scale=1.0, v_scale=1.0)),
            ("k_scale is 0.0; give a number that is positive and finite", append(half, codes, k_scale=0.0, v_scale=1.0)),
            ("v_scale is nan; give a number that is positive", append(half, codes, k_scale=1.0, v_scale=float("nan"))),
            ("k_scale is torch.float32 of shape .3,.; give float32 .heads. = .2,.", append(half, codes, k_scale=torch.ones(3), v_scale=1.0)),
            ("k_scale is torch.float64 of shape .2,.; give float32", append(half, codes, k_scale=torch.ones(2).double(), v_scale=1.0)),
            (r"k_scale is a tensor of shape \(\) on meta; give a number", append(half, codes, k_scale=torch.ones((), device="meta"), v_scale=1.0)),
            ("k_scale is a str; give a number", append(half, codes, k_scale="1", v_scale=1.0)),
            ("append_key is a NoneType; give a tensor", append((None, half[1]), codes)),
        ):  # fmt: skip
            before = [x.clone() for x in codes]
            with self.subTest(words), self.assertRaisesRegex(flashcore.Error, words):
                call()
            self.assertTrue(all(map(same, codes, before)))  # nothing is written by a call that is refused


class FusedScalesTest(unittest.TestCase):
    """bmm1_scale = q_scale * k_scale * sm_scale and bmm2_scale = v_scale, as FlashInfer documents them."""

    def setUp(self):
        torch.manual_seed(9)
        self.requests = Requests(LENGTHS, PAGE, HEADS_KV, DIM, torch.float32, rows=[2, 7, 1])
        self.q, self.rows = torch.randn(len(LENGTHS), HEADS, DIM), torch.randn(10, HEADS, DIM)
        self.lengths, self.table = torch.tensor(LENGTHS, dtype=torch.int32), self.requests.table()

    def decode(self, q, cache, bmm1, bmm2, **options):
        return flashinfer.trtllm_batch_decode_with_kv_cache(q, cache, None, self.table, self.lengths, 64, bmm1, bmm2, kv_layout="NHD", **options)

    def context(self, q, cache, bmm1, bmm2, **options):
        return flashinfer.trtllm_batch_context_with_kv_cache(q, cache, None, self.table, self.lengths, 7, 64, bmm1, bmm2, 3, self.requests.qo_indptr, None,
                                                             kv_layout="NHD", **options)  # fmt: skip

    def codes(self, dtype, by_k=0.02, by_v=0.03):
        return tuple(quantised(pool.nan_to_num(), by, dtype) for pool, by in zip(self.requests.pools, (by_k, by_v)))

    def test_16_and_32_bit_queries(self):
        q_scale, k_scale, v_scale = 0.5, 0.02, 0.03
        bmm1 = q_scale * k_scale * SM_SCALE
        for dtype in TYPES:
            codes = self.codes(dtype)
            plain = tuple(x.float() * by for x, by in zip(codes, (k_scale, v_scale)))
            for call, q in ((self.decode, self.q), (self.context, self.rows)):
                wanted = call(q, plain, q_scale * SM_SCALE, 1.0, return_lse=True)
                for given in ((bmm1, v_scale), (torch.tensor(bmm1), torch.tensor([v_scale])), (bmm1, torch.tensor(v_scale)), (torch.tensor([bmm1]), v_scale)):
                    with self.subTest(dtype=dtype, call=call.__name__, given=given):
                        for found, right in zip(call(q, codes, *given, return_lse=True), wanted):
                            torch.testing.assert_close(found, right, atol=2e-5, rtol=2e-5)
                        half = call(q.half(), codes, *given)
                        torch.testing.assert_close(half.float(), wanted[0], atol=3e-3, rtol=3e-3)
                        divided = call(q, codes, *given, **({"o_scale": 4.0} if call == self.decode else {}))
                        torch.testing.assert_close(divided * (4.0 if call == self.decode else 1.0), wanted[0], atol=2e-5, rtol=2e-5)

    def test_8_bit_queries(self):
        q_scale, k_scale, v_scale = 0.5, 0.02, 0.03
        codes, bmm1 = self.codes(E4M3), q_scale * k_scale * SM_SCALE
        q = (self.q / q_scale).to(E4M3)
        plain = tuple(x.float() * by for x, by in zip(codes, (k_scale, v_scale)))
        wanted = self.decode(q.float() * q_scale, plain, SM_SCALE, 1.0)
        for given in ((bmm1, v_scale), (torch.tensor(bmm1), torch.tensor(v_scale))):
            out = self.decode(q, codes, *given, out_dtype=torch.float16)
            self.assertLess((out.float() - wanted).norm() / wanted.norm(), 0.04)  # P has 8 bits too
            rounded = self.decode(q, codes, *given, out_dtype=E4M3, o_scale=0.01)
            self.assertLess((rounded.float() * 0.01 - wanted).norm() / wanted.norm(), 0.06)

    def test_wrappers_take_tensors(self):
        for dtype in TYPES:
            codes = self.codes(dtype)
            wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE)
            wrapper.plan(self.requests.qo_indptr, *self.requests.lists(), HEADS, HEADS_KV, DIM, PAGE, causal=True, q_data_type=torch.float32, kv_data_type=dtype)
            wanted = wrapper.run(self.rows, codes, q_scale=0.5, k_scale=0.02, v_scale=0.03)
            for k_scale, v_scale in ((torch.tensor(0.02), torch.tensor(0.03)), (torch.tensor([0.02]).double(), 0.03), (0.02, torch.tensor([0.03, 0.03])),
                                     (torch.tensor(0.02), torch.tensor([0.03, 0.03]))):  # fmt: skip
                found = wrapper.run(self.rows, codes, q_scale=0.5, k_scale=k_scale, v_scale=v_scale)
                torch.testing.assert_close(found, wanted, atol=2e-6, rtol=2e-6)

    def test_refused(self):
        codes, plain = self.codes(E4M3), tuple(x.nan_to_num() for x in self.requests.pools)
        for words, call in (
            (r"bmm1_scale is a tensor of shape \(2,\) on cpu; give a number", lambda: self.decode(self.q, codes, torch.ones(2), 1.0)),
            (r"bmm1_scale is a tensor of shape \(\) on meta; give a number", lambda: self.decode(self.q, codes, torch.ones((), device="meta"), 1.0)),
            (r"v_scale is a tensor of shape \(\) on meta; give a number", lambda: self.decode(self.q, plain, 1.0, torch.ones((), device="meta"))),
            ("bmm1_scale is a str; give a number", lambda: self.decode(self.q, codes, "1", 1.0)),
            ("descale_k has 0 at 0|descale_k.*positive and finite", lambda: self.decode(self.q, codes, torch.zeros(1), 1.0)),
        ):  # fmt: skip
            with self.subTest(words), self.assertRaisesRegex(flashcore.Error, words):
                call()


class EmulatorTest(unittest.TestCase):
    def test_scales_are_read_on_the_gpu(self):
        """A number would be put to memory that the emulated GPU does not have, and a scale that the host read would be one."""
        torch.manual_seed(10)
        requests, by_k, by_v = Requests(LENGTHS, PAGE, HEADS_KV, DIM, torch.float16), torch.tensor(0.02), torch.tensor([0.03])
        q = torch.randn(len(LENGTHS), HEADS, DIM).half()
        new = [torch.cat(x) for x in (requests.k, requests.v)]
        whose = torch.repeat_interleave(torch.arange(3), torch.tensor(LENGTHS)).int()
        where = torch.cat([torch.arange(length) for length in LENGTHS]).int()
        indptr, indices, last = requests.lists()
        table, lengths = requests.table(), torch.tensor(LENGTHS, dtype=torch.int32)
        wanted_cache = [torch.zeros(pool.shape).to(E4M3) for pool in requests.pools]
        flashinfer.append_paged_kv_cache(*new, whose, where, wanted_cache, indices, indptr, last, k_scale=by_k, v_scale=by_v)
        scales = by_k * SM_SCALE, by_v
        wanted = flashinfer.trtllm_batch_decode_with_kv_cache(q, wanted_cache, None, table, lengths, 40, *scales, kv_layout="NHD")
        gpu = EmulatedGpu(self)
        cache = [gpu.place(torch.zeros(pool.shape).to(E4M3)) for pool in requests.pools]
        flashinfer.append_paged_kv_cache(*map(gpu.place, new), gpu.place(whose), gpu.place(where), cache, gpu.place(indices), gpu.place(indptr), last,
                                         k_scale=gpu.place(by_k), v_scale=gpu.place(by_v))  # fmt: skip
        self.assertTrue(all(map(same, cache, wanted_cache)))
        starts = gpu.place(torch.arange(4).int())
        out = flashinfer.trtllm_batch_decode_with_kv_cache(gpu.place(q), cache, None, gpu.place(table), gpu.place(lengths), 40, *map(gpu.place, scales),
                                                           kv_layout="NHD", out=gpu.place(torch.zeros_like(q)), max_q_len=1, cum_seq_lens_q=starts)  # fmt: skip
        torch.testing.assert_close(out, wanted, atol=2e-3, rtol=2e-3)


if __name__ == "__main__":
    unittest.main()
