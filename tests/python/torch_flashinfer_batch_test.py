"""fixed_split_size and disable_split_kv of FlashInfer's wrappers: on the emulated GPU, whose kernels split keys, a request's results have the
same bits alone and beside others; and the kernel that deterministic_batch chooses."""

import ctypes
import json
import unittest

import torch
from torch_flashinfer_support import EmulatedGpu, Requests

import flashcore
from flashcore import _library, flashinfer

HEADS, HEADS_KV, DIM, PAGE = 4, 1, 16, 32
LENGTHS, ROWS = [2200, 70, 45], [2, 1, 20]  # of the first three parts of 1024 keys
LIMITED = 700  # keys of the prefill's first request: the emulator takes a while for each


def chosen(device, text):
    made = _library.Attention()
    _library.check(_library.library().fc_problem_parse(text.encode(), ctypes.byref(made)))
    made.deterministic_batch = 1
    return json.loads(_library.text_of(_library.library().fc_explain, _library.context(device), ctypes.byref(made)))["candidate"]


class BatchTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(7)

    def alone_and_beside(self, run):
        """The first request's output and log-sum-exp, of a batch of one and of one of three."""
        return [torch.cat([x.float().flatten() for x in run(count)]) for count in (1, 3)]

    def decoding(self, **options):
        gpu, requests = EmulatedGpu(self), Requests(LENGTHS, PAGE, HEADS_KV, DIM, torch.float16)
        q, cache = gpu.place(torch.randn(3, HEADS, DIM).half()), gpu.place(requests.cache(True))
        workspace = gpu.place(torch.empty(1))

        def run(count):
            wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
            wrapper.plan(requests.indptr[: count + 1], requests.indices, requests.last[:count], HEADS, HEADS_KV, DIM, PAGE, **options)
            return self.ran(gpu, wrapper, q[:count], (cache,), 1)

        return run

    def prefill(self, **options):
        gpu, requests = EmulatedGpu(self), Requests([LIMITED, *LENGTHS[1:]], PAGE, HEADS_KV, DIM, torch.float16, rows=ROWS)
        q, cache = gpu.place(torch.randn(sum(ROWS), HEADS, DIM).half()), gpu.place(requests.cache(True))
        workspace = gpu.place(torch.empty(1))

        def run(count):
            wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace)
            wrapper.plan(requests.qo_indptr[: count + 1], requests.indptr[: count + 1], requests.indices, requests.last[:count], HEADS, HEADS_KV, DIM, PAGE,
                         causal=True, **options)  # fmt: skip
            return self.ran(gpu, wrapper, q[: sum(ROWS[:count])], (cache,), ROWS[0])

        return run

    def ragged(self, **options):
        gpu, starts = EmulatedGpu(self), torch.tensor([0, LIMITED, *LENGTHS[1:]]).cumsum(0).int()
        rows = torch.tensor([0, *ROWS]).cumsum(0).int()
        q, k, v = (gpu.place(torch.randn(n, heads, DIM).half()) for n, heads in ((sum(ROWS), HEADS), (starts[-1], HEADS_KV), (starts[-1], HEADS_KV)))
        workspace = gpu.place(torch.empty(1))

        def run(count):
            wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace)
            wrapper.plan(rows[: count + 1], starts[: count + 1], HEADS, HEADS_KV, DIM, causal=True, **options)
            keys = starts[count]
            return self.ran(gpu, wrapper, q[: rows[count]], (k[:keys], v[:keys]), ROWS[0])

        return run

    def ran(self, gpu, wrapper, q, keys, rows):
        # What plan() made lies outside of the emulated GPU's memory.
        if hasattr(wrapper, "_planner"):
            made = wrapper._planner.made
            wrapper._planner.made = made._replace(table=gpu.place(made.table), used=gpu.place(made.used))
        for holder, name in ((wrapper, "_cu_q"), (getattr(wrapper, "_rows", None), "cu"), (getattr(wrapper, "_keys", None), "cu")):
            if isinstance(getattr(holder, name, None), torch.Tensor):
                setattr(holder, name, gpu.place(getattr(holder, name)))
        out, lse = wrapper.run(q, *keys, out=gpu.place(torch.empty_like(q)), return_lse=True)
        return out[:rows].clone(), lse[:rows].clone()

    def test_a_request_keeps_its_bits(self):
        for make in (self.decoding, self.prefill, self.ragged):
            for options in ({"fixed_split_size": 64}, {"disable_split_kv": True}):
                with self.subTest(make.__name__, **options):
                    alone, beside = self.alone_and_beside(make(**options))
                    self.assertTrue(torch.equal(alone, beside))
            for options in ({}, {"fixed_split_size": -1}):
                with self.subTest(make.__name__, **options):
                    alone, beside = self.alone_and_beside(make(**options))
                    torch.testing.assert_close(alone, beside, atol=2e-3, rtol=2e-3)
                    self.assertFalse(torch.equal(alone, beside), "without them bits differ here, or this test shows nothing")

    def test_the_kernel_does_not_depend_on_the_batch(self):
        gpu = "emulator:sm_90"
        for device, family, needed, form, batches in (
            (gpu, "sm80_decode_fwd", "min_blocks=1,split_keys=1024", "{}_sk{}_d128_fp16_raggedfull_page16", ("b1_h16_hk4_sq1", "b64_h16_hk4_sq1")),
            (gpu, "sm80_decode_fwd", "min_blocks=1,split_keys=1024", "{}_sk{}_d64_bf16_raggedrandom", ("b1_h16_hk4_sq5", "b64_h16_hk4_sq5")),
            (gpu, "sm90_fwd", "", "{}_sk{}_d128_fp16_raggedfull_page16", ("b1_h16_hk4_sq17", "b64_h16_hk4_sq700")),
            (gpu, "sm90_wide_fwd", "num_splits=1", "{}_sk{}_d576_dv512_bf16_raggedfull_page64", ("b1_h16_hk1_sq1", "b64_h16_hk1_sq1")),
            (gpu, "sm80_wide_fwd", "num_splits=1", "{}_sk{}_d576_dv512_bf16_kve4m3_raggedfull_page64", ("b1_h16_hk1_sq1", "b64_h16_hk1_sq1")),
            (gpu, "ref_fwd", "", "{}_sk{}_d64_fp32_raggedfull_page16", ("b1_h1_sq1", "b5_h1_sq1")),
            ("cpu", "cpu_fwd", "kv_split=1", "{}_sk{}_d64_fp32_raggedfull_page16", ("b1_h2_hk1_sq1", "b64_h2_hk1_sq1")),
        ):
            with self.subTest(family, form=form):
                made = {chosen(device, form.format(batch, keys)) for batch in batches for keys in (100, 5000)}
                self.assertEqual(len(made), 1, made)
                self.assertTrue(made.copy().pop().startswith(f"{family}:"))
                self.assertIn(needed, made.pop())

    def test_what_does_not_go_with_it_is_refused(self):
        requests = Requests(LENGTHS, PAGE, HEADS_KV, DIM, torch.float16)
        q, starts = torch.randn(3, HEADS, DIM).half(), torch.arange(4).int()
        used = torch.tensor(LENGTHS).int()
        for words, options in (("deterministic_batch is 1 and candidate is 'cpu_fwd'; leave one out", {"candidate": "cpu_fwd"}),
                               ("has a score or mask function; leave one out", {"score": "s * 2"})):  # fmt: skip
            with self.subTest(words), self.assertRaisesRegex(flashcore.Error, words):
                flashcore.paged_attention(q, *requests.pools, requests.table(), used, cu_seqlens_q=starts, max_seqlen_q=1, deterministic_batch=True, **options)
            with self.subTest(words, packed=True), self.assertRaisesRegex(flashcore.Error, words):
                flashcore.varlen_attention(q, q[:, :1], q[:, :1], starts, starts, 1, 1, deterministic_batch=True, **options)
        for rows in (q, q[:, None]):
            alike = [flashcore.decode(rows, *requests.pools, requests.table(), used, deterministic_batch=same) for same in (False, True)]
            torch.testing.assert_close(*alike, atol=2e-3, rtol=2e-3)
        made = flashcore.varlen_attention(q, q[:, :1], q[:, :1], starts, starts, 1, 1, deterministic_batch=True)
        self.assertTrue(torch.equal(made, q[:, :1].expand_as(made)))


if __name__ == "__main__":
    unittest.main()
