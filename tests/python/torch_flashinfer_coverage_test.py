"""What FlashInfer's tests/attention/test_batch_decode_kernels.py and test_batch_prefill_kernels.py cover, through flashcore.flashinfer on the CPU:
page sizes, groups, head dims, layouts, caches in one tensor and two, softcap, ALiBi, dtypes, log-sum-exps, given outputs, CUDA graph mode
(replanned in the same memory), several rows a request, ragged tensors, against fp64. Lengths are smaller: this is a CPU.

Not covered, for flashcore.flashinfer has no such calls: ROPE_LLAMA, NVFP4 caches, multi-item scoring, head dim 512 on a CPU.
torch_flashinfer_masks_test.py has custom masks, torch_flashinfer_quantised_test.py queries of 16 bits with caches of 8. torch_flashinfer_test.py has the sentences that refuse them.
"""

import itertools
import sys
import unittest
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from torch_flashinfer_support import WORKSPACE, Requests, exact, judge  # noqa: E402

import flashcore.flashinfer as flashinfer  # noqa: E402

HEADS_KV, DTYPES = 4, (torch.float16, torch.bfloat16)


def cycle(*axes):
    return itertools.cycle(itertools.product(*axes))


class CoverageTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def decode_cases(self):
        """Every value of every axis, and every pair of those of `kinds`: the product takes hours."""
        kinds = cycle((4, 32), ("NHD", "HND"), (True, False), DTYPES)
        scores = cycle((0.0, 30.0), (-1, 20), (False, True))
        for page_size, dim, keys in itertools.product((1, 5, 8, 16), (64, 128, 256), (54, 97, 512)):
            yield page_size, dim, keys, *next(kinds), *next(scores)

    def prefill_cases(self):
        kinds = cycle((4, 32), ("NHD", "HND"), (True, False), DTYPES)
        scores = cycle((False, True), (0.0, 30.0), (-1, 20), (False, True))
        for page_size, dim, (rows, keys) in itertools.product((1, 5, 16), (64, 128, 256), ((37, 54), (17, 97), (127, 200), (64, 40))):
            causal, *rest = next(scores)
            yield page_size, dim, rows, keys, *next(kinds), causal, *rest

    def test_cases_hold_every_pair_of_kinds(self):
        for cases, first in ((list(self.decode_cases()), 3), (list(self.prefill_cases()), 4)):
            for a, b in itertools.combinations(range(first, first + 4), 2):
                found = {(case[a], case[b]) for case in cases}
                self.assertEqual(found, set(itertools.product({case[a] for case in cases}, {case[b] for case in cases})), (a, b))

    def test_decode(self):
        for page_size, dim, keys, heads, layout, together, dtype, softcap, window, graph in self.decode_cases():
            with self.subTest(page_size=page_size, dim=dim, keys=keys, heads=heads, layout=layout, dtype=dtype, softcap=softcap, graph=graph):
                lengths = [keys, 1, keys - 1, keys // 2]
                requests = Requests(lengths, page_size, HEADS_KV, dim, dtype, layout)
                q = torch.randn(len(lengths), heads, dim).to(dtype)
                options = dict(logits_soft_cap=softcap, window_left=window, q_data_type=dtype, data_type=dtype)
                wrapper = self.decoder(layout, requests, graph)
                if graph:  # what runs first is a shorter batch, in the same memory
                    short = Requests([1] * 4, page_size, HEADS_KV, dim, dtype, layout)
                    wrapper.plan(*short.lists(), heads, HEADS_KV, dim, page_size, **options)
                wrapper.plan(*requests.lists(), heads, HEADS_KV, dim, page_size, **options)
                out, lse = wrapper.run(q, requests.cache(together), return_lse=True)
                for s in range(len(lengths)):
                    wanted = exact(q[s : s + 1], requests.k[s], requests.v[s], causal=True, window_left=window, softcap=softcap)
                    judge(self, out[s : s + 1], lse[s : s + 1], wanted)
                given, given_lse = torch.empty_like(out), torch.empty_like(lse)
                self.assertIs(wrapper.run(q, requests.cache(together), out=given), given)
                wrapper.run(q, requests.cache(together), out=given, lse=given_lse, return_lse=True)
                self.assertTrue(torch.equal(given, out) and torch.equal(given_lse, lse))

    def decoder(self, layout, requests, graph):
        if not graph:
            return flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE, layout)
        return flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(WORKSPACE, *(torch.full_like(x, -1) for x in requests.lists()), layout)

    def test_several_rows_of_each_request(self):
        for batch, rows, heads_kv, group in itertools.product((4, 8), (2, 3), (2, 8), (4, 8)):
            with self.subTest(batch=batch, rows=rows, heads_kv=heads_kv, group=group):
                requests = Requests([rows + 7 * s for s in range(batch)], 16, heads_kv, 128, torch.float16)
                q = torch.randn(batch * rows, heads_kv * group, 128).half()
                wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE, use_tensor_cores=True)
                wrapper.plan(*requests.lists(), heads_kv * group, heads_kv, 128, 16, q_len_per_req=rows)
                out, lse = wrapper.run_return_lse(q, requests.cache(True))
                for s in range(batch):
                    part = slice(s * rows, s * rows + rows)
                    judge(self, out[part], lse[part], exact(q[part], requests.k[s], requests.v[s], causal=True))

    def test_paged_prefill(self):
        for page_size, dim, rows, keys, heads, layout, together, dtype, causal, softcap, window, graph in self.prefill_cases():
            with self.subTest(page_size=page_size, dim=dim, rows=rows, keys=keys, heads=heads, layout=layout, dtype=dtype, causal=causal, graph=graph):
                lengths, count = [keys, keys - 1, rows], [rows, 1, rows]
                requests = Requests(lengths, page_size, HEADS_KV, dim, dtype, layout, rows=count)
                q = torch.randn(sum(count), heads, dim).to(dtype)
                options = dict(causal=causal, logits_soft_cap=softcap, window_left=window, q_data_type=dtype)
                buffers = [torch.full_like(x, -1) for x in (requests.qo_indptr, *requests.lists())] if graph else []
                wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE, layout, graph, *buffers)
                if graph:
                    short = Requests([1] * 3, page_size, HEADS_KV, dim, dtype, layout, rows=[1] * 3)
                    wrapper.plan(short.qo_indptr, *short.lists(), heads, HEADS_KV, dim, page_size, **options)
                wrapper.plan(requests.qo_indptr, *requests.lists(), heads, HEADS_KV, dim, page_size, **options)
                out, lse = wrapper.run(q, requests.cache(together), return_lse=True)
                self.judge_rows(out, lse, q, requests, causal=causal, softcap=softcap, window_left=window)

    def judge_rows(self, out, lse, q, requests, **options):
        for s in range(len(requests.lengths)):
            part = slice(requests.qo_indptr[s], requests.qo_indptr[s + 1])
            judge(self, out[part], lse[part], exact(q[part], requests.k[s], requests.v[s], **options))

    def test_ragged_prefill(self):
        for page_size, dim, rows, keys, heads, layout, alibi, dtype, causal, softcap, window, graph in self.prefill_cases():
            if page_size != 1:
                continue
            alibi = alibi and causal and softcap == 0.0
            with self.subTest(dim=dim, rows=rows, keys=keys, heads=heads, layout=layout, dtype=dtype, causal=causal, alibi=alibi, graph=graph):
                requests = Requests([keys, 3, 0, rows], 1, HEADS_KV, dim, dtype, rows=[rows, 1, 2, rows])
                kv_indptr = torch.tensor([0, *requests.lengths]).cumsum(0).int()
                k, v = torch.cat(requests.k), torch.cat(requests.v)
                q = torch.randn(int(requests.qo_indptr[-1]), heads, dim).to(dtype)
                buffers = [torch.full_like(kv_indptr, -1), torch.full_like(kv_indptr, -1)] if graph else []
                wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(WORKSPACE, layout, graph, *buffers)
                wrapper.plan(requests.qo_indptr, kv_indptr, heads, HEADS_KV, dim, causal=causal, logits_soft_cap=softcap, window_left=window,
                             pos_encoding_mode="ALIBI" if alibi else "NONE", q_data_type=dtype)  # fmt: skip
                axes = (lambda x: x.transpose(0, 1).contiguous()) if layout == "HND" else (lambda x: x)
                out, lse = wrapper.run(q, axes(k), axes(v), return_lse=True)
                slopes = torch.tensor([2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads)]) if alibi else None
                self.judge_rows(out, lse, q, requests, causal=causal, softcap=softcap, window_left=window, slopes=slopes)

    def test_one_request(self):
        for dim, rows, keys, heads, layout, dtype in ((64, 37, 54, 4, "NHD", torch.float16), (128, 17, 97, 32, "HND", torch.bfloat16)):
            q, k, v = torch.randn(rows, heads, dim).to(dtype), torch.randn(keys, HEADS_KV, dim).to(dtype), torch.randn(keys, HEADS_KV, dim).to(dtype)
            axes = (lambda x: x.transpose(0, 1)) if layout == "HND" else (lambda x: x)
            for options in ({}, {"causal": True}, {"causal": True, "window_left": 9}, {"logits_soft_cap": 3.0}, {"sm_scale": 0.2}):
                with self.subTest(dim=dim, layout=layout, **options):
                    out, lse = flashinfer.single_prefill_with_kv_cache(q, axes(k), axes(v), kv_layout=layout, return_lse=True, **options)
                    wanted = {{"logits_soft_cap": "softcap", "sm_scale": "scale"}.get(name, name): value for name, value in options.items()}
                    judge(self, out, lse, exact(q, k, v, **wanted))
                    if "causal" not in options:
                        out, lse = flashinfer.single_decode_with_kv_cache(q[-1], axes(k), axes(v), kv_layout=layout, return_lse=True, **options)
                        judge(self, out[None], lse[None], exact(q[-1:], k, v, causal=True, **wanted))
            mask = torch.rand(rows, keys) < 0.5
            mask[0] = False
            out, lse = flashinfer.single_prefill_with_kv_cache(q, axes(k), axes(v), custom_mask=mask, kv_layout=layout, return_lse=True)
            judge(self, out, lse, exact(q, k, v, mask=mask))


if __name__ == "__main__":
    unittest.main()
