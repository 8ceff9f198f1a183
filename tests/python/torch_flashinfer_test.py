"""flashcore.flashinfer beside its coverage test: sinks, ALiBi, 8 bits, calls without a plan, appending, merging, refusals."""

import sys
import unittest
from pathlib import Path
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from torch_flashinfer_support import WORKSPACE, Requests, exact, judge  # noqa: E402

import flashcore  # noqa: E402
import flashcore.flashinfer as flashinfer  # noqa: E402
import flashcore.torch as ft  # noqa: E402
from flashcore import _plan  # noqa: E402
from flashcore.flashinfer import _tables  # noqa: E402

HEADS, HEADS_KV, DIM, PAGE = 6, 2, 64, 8
LENGTHS = [5, 40, 17]
SLOPES = torch.tensor([2**-2.0, 2**-4.0, 2**-6.0, 2**-8.0, 2**-1.0, 2**-3.0])  # of six heads, by ALiBi's paper
E4M3 = torch.float8_e4m3fn


class FlashInferTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        self.requests = Requests(LENGTHS, PAGE, HEADS_KV, DIM, torch.float16, rows=[2, 7, 1])
        self.q = torch.randn(len(LENGTHS), HEADS, DIM).half()
        self.rows = torch.randn(10, HEADS, DIM).half()
        self.sinks = torch.randn(HEADS)

    def decoder(self, **options):
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
        wrapper.plan(*self.requests.lists(), HEADS, HEADS_KV, DIM, PAGE, **options)
        return wrapper

    def prefiller(self, of=flashinfer.BatchPrefillWithPagedKVCacheWrapper, **options):
        wrapper = of(WORKSPACE)
        wrapper.plan(self.requests.qo_indptr, *self.requests.lists(), HEADS, HEADS_KV, DIM, PAGE, **options)
        return wrapper

    def judge_decode(self, out, lse, scale_v=1.0, **options):
        for s in range(len(LENGTHS)):
            wanted = exact(self.q[s : s + 1], self.requests.k[s], self.requests.v[s], causal=True, scale_v=scale_v, **options)
            judge(self, out[s : s + 1], None if lse is None else lse[s : s + 1], wanted)

    def judge_rows(self, out, lse, **options):
        for s in range(len(LENGTHS)):
            part = slice(self.requests.qo_indptr[s], self.requests.qo_indptr[s + 1])
            judge(self, out[part], None if lse is None else lse[part], exact(self.rows[part], self.requests.k[s], self.requests.v[s], **options))

    def test_scores(self):
        cache = self.requests.cache(True)
        self.judge_decode(*self.decoder(pos_encoding_mode="ALIBI").run(self.q, cache, return_lse=True), slopes=SLOPES)
        self.judge_decode(*self.decoder(sm_scale=0.3).run(self.q, cache, return_lse=True, sinks=self.sinks), sinks=self.sinks, scale=0.3)
        out, lse = self.decoder().run(self.q, cache, q_scale=0.5, k_scale=1.5, v_scale=2.0, return_lse=True, window_left=4)
        self.judge_decode(out, lse, scale=0.75 / 8, scale_v=2.0, window_left=4)
        self.judge_rows(*self.prefiller(causal=True, pos_encoding_mode="ALIBI").run(self.rows, cache, return_lse=True), causal=True, slopes=SLOPES)

    def test_sink_wrapper(self):
        wrapper = self.prefiller(flashinfer.BatchAttentionWithAttentionSinkWrapper, causal=True, window_left=9)
        out = wrapper.run(self.rows, self.requests.cache(False), self.sinks, 0.2)
        self.judge_rows(out, None, causal=True, sinks=self.sinks, scale=0.2, window_left=9)
        # The next layer's scale is its own.
        self.judge_rows(wrapper.run(self.rows, self.requests.cache(False), self.sinks), None, causal=True, sinks=self.sinks, window_left=9)

    def test_older_names(self):
        cache = self.requests.cache(True)
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
        wrapper.begin_forward(*self.requests.lists(), HEADS, HEADS_KV, DIM, PAGE, "NONE", -1, None, "float16")
        self.judge_decode(wrapper.forward(self.q, cache, window_left=3), None, window_left=3)
        self.judge_decode(*wrapper.forward_return_lse(self.q, cache, sm_scale=0.3), scale=0.3)
        wrapper.end_forward()
        prefill = self.prefiller()
        self.judge_rows(prefill.forward(self.rows, cache, causal=True), None, causal=True)
        self.judge_rows(*prefill.forward_return_lse(self.rows, cache, logits_soft_cap=2.0), softcap=2.0)
        flashinfer.fast_decode_plan(wrapper, *self.requests.lists(), HEADS, HEADS_KV, DIM, PAGE)
        self.judge_decode(wrapper.run(self.q, cache), None)
        self.assertIs(flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper, flashinfer.BatchDecodeWithPagedKVCacheWrapper)

    def test_v_of_another_head_dim(self):
        self.requests = Requests(LENGTHS, PAGE, HEADS_KV, DIM, torch.float16, dim_v=32, rows=[2, 7, 1])
        self.judge_rows(*self.prefiller(head_dim_vo=32, causal=True).run(self.rows, self.requests.cache(False), return_lse=True), causal=True)

    def test_bounds_and_tables_in_the_place_of_lists(self):
        cache = self.requests.cache(True)
        lengths = torch.tensor(LENGTHS, dtype=torch.int32)
        self.judge_decode(self.decoder(block_tables=self.requests.table(), seq_lens=lengths).run(self.q, cache), None)
        self.judge_decode(self.decoder(max_sequence_kv=64).run(self.q, cache), None)
        self.judge_rows(self.prefiller(max_sequence_kv=64, max_token_per_sequence=9).run(self.rows, cache), None)
        # A bound that is none is nobody's data.
        out = self.decoder(max_sequence_kv=16).run(self.q, cache)
        self.assertTrue(out[1:].isnan().all() and not out[0].isnan().any())

    def test_numbers_that_32_bits_do_not_hold_are_nobodys_pages(self):
        cache, table, lengths = self.requests.cache(True), self.requests.table().long(), torch.tensor(LENGTHS)
        indptr, indices, last = (x.long() for x in self.requests.lists())

        def run(*lists, **options):
            wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
            wrapper.plan(*lists, HEADS, HEADS_KV, DIM, PAGE, **options)
            return wrapper.run(self.q, cache)

        def direct(table, lengths):
            return flashinfer.trtllm_batch_decode_with_kv_cache(self.q, cache, None, table, lengths, 64, DIM**-0.5, kv_layout="NHD")

        for out in (run(indptr, indices, last), run(indptr, indices, last, block_tables=table, seq_lens=lengths), direct(table, lengths[:, None])):
            self.judge_decode(out, None)
        wrapped = 1 << 32
        for out in (run(indptr, indices + wrapped, last), run(indptr, indices, last - wrapped), direct(table + wrapped, lengths), direct(table, lengths + wrapped),
                    run(indptr, indices, last, block_tables=table - wrapped, seq_lens=lengths)):  # fmt: skip
            self.assertTrue(out.isnan().all())

    def test_rows_of_no_request_are_not_scaled(self):
        q, out = torch.cat((self.rows, self.rows[:3])), torch.full((13, HEADS, DIM), 7.0).half()
        self.judge_rows(self.prefiller(causal=True).run(q, self.requests.cache(True), out=out, v_scale=2.0)[:10], None, causal=True, scale_v=2.0)
        self.assertTrue((out[10:] == 7).all())

    def test_calls_without_a_plan(self):
        lengths, table = torch.tensor(LENGTHS, dtype=torch.int32), self.requests.table()
        for layout in ("NHD", "HND"):
            self.requests.layout = layout
            cache = self.requests.cache(layout == "NHD")
            out = flashinfer.trtllm_batch_decode_with_kv_cache(self.q, cache, WORKSPACE, table, lengths, 64, 0.2, 2.0, 6, sinks=[self.sinks], kv_layout=layout)
            self.judge_decode(out, None, scale=0.2, scale_v=2.0, window_left=6, sinks=self.sinks)
            out, lse = flashinfer.trtllm_batch_context_with_kv_cache(self.rows, cache, WORKSPACE, table, lengths, 7, 64, 0.1, 1.0, 3, self.requests.qo_indptr,
                                                                     None, kv_layout=layout, return_lse=True)  # fmt: skip
            self.judge_rows(out, lse, causal=True, scale=0.1)
            out = flashinfer.decode.trtllm_batch_decode_with_kv_cache(self.rows, cache, WORKSPACE, table, lengths, 64, 0.1, kv_layout=layout, max_q_len=7,
                                                                      cum_seq_lens_q=self.requests.qo_indptr)  # fmt: skip
            self.judge_rows(out, None, causal=True, scale=0.1)

    def test_8_bits(self):
        q, (k, v) = self.rows.to(E4M3), self.requests.cache(False)
        wrapper = self.prefiller(causal=True, q_data_type=E4M3, o_data_type=torch.float16)
        cache = (k.nan_to_num().to(E4M3), v.nan_to_num().to(E4M3))
        whole = wrapper.run(q, cache, q_scale=0.5, k_scale=2.0, v_scale=3.0)
        per_head = wrapper.run(q, cache, 0.5, torch.tensor([2.0, 2.0]), torch.tensor([3.0, 1.5]))
        self.assertEqual((whole.dtype, per_head.dtype), (torch.float16, torch.float16))
        torch.testing.assert_close(per_head, whole * torch.tensor([1.0, 0.5]).half().repeat_interleave(3)[:, None], atol=2e-3, rtol=2e-3)
        for s in range(len(LENGTHS)):
            part = slice(self.requests.qo_indptr[s], self.requests.qo_indptr[s + 1])
            values = [x[s].to(E4M3).half() for x in (self.requests.k, self.requests.v)]
            wanted = exact(q[part].half(), *values, causal=True, scale_v=3.0)[0]
            # P has 8 bits too.
            self.assertLess((whole[part].double() - wanted).norm() / wanted.norm(), 0.04)

    def test_outputs_of_8_bits_are_scaled_before_they_are_rounded(self):
        q, cache = self.q.to(E4M3), self.requests.cache(True).to(E4M3)
        plan = dict(q_data_type=E4M3, o_data_type=E4M3)
        out = self.decoder(**plan).run(q, cache, v_scale=512.0)
        wanted = self.decoder(**{**plan, "o_data_type": torch.float16}).run(q, cache, v_scale=512.0).clamp(-448, 448)
        torch.testing.assert_close(out.half(), wanted, atol=2.0, rtol=2**-4)
        table, lengths = self.requests.table(), torch.tensor(LENGTHS, dtype=torch.int32)
        again = flashinfer.trtllm_batch_decode_with_kv_cache(q, cache, None, table, lengths, 64, DIM**-0.5, 256.0, out_dtype=E4M3, o_scale=0.5, kv_layout="NHD")
        self.assertTrue(torch.equal(again.float(), out.float()))

    def test_appending(self):
        fresh = [3, 1, 0]
        starts = torch.tensor([0, *fresh]).cumsum(0).int()
        for layout in ("NHD", "HND"):
            for dtype in (torch.float16, E4M3):
                with self.subTest(layout=layout, dtype=dtype):
                    self.requests.layout = layout
                    lists, pools = self.requests.lists(), [pool.clone().to(dtype) for pool in self.requests.pools]
                    lengths = flashinfer.get_seq_lens(lists[0], lists[2], PAGE)
                    self.assertEqual(lengths.tolist(), LENGTHS)
                    whose, where = flashinfer.get_batch_indices_positions(starts, lengths, 6)
                    self.assertEqual(whose.tolist(), [0, 0, 0, 1, -1, -1])
                    self.assertEqual(where[:4].tolist(), [2, 3, 4, 39])
                    k, v = torch.randn(6, HEADS_KV, DIM).to(dtype), torch.randn(6, HEADS_KV, DIM).to(dtype)
                    cache = tuple(x.transpose(1, 2).contiguous() if layout == "HND" else x.clone() for x in pools)
                    flashinfer.append_paged_kv_cache(k, v, whose, where, cache, lists[1], lists[0], lists[2], layout)
                    for pool, new in zip(pools, (k, v)):
                        for entry in range(4):
                            at = int(where[entry])
                            pool[self.requests.pages_of(int(whose[entry]))[at // PAGE], at % PAGE] = new[entry]
                    for found, pool in zip(cache, pools):
                        found = found.transpose(1, 2) if layout == "HND" else found
                        self.assertTrue(torch.equal(found.contiguous().view(torch.uint8), pool.view(torch.uint8)))

    def test_what_has_no_page_is_not_appended(self):
        lists = list(self.requests.lists())
        k = torch.randn(4, HEADS_KV, DIM).half()
        for whose, where, pages in (([9, -2, 0, 1], [0, 0, 8, 44], lists[1]), ([0, 1, 2, 2], [-1, 1, 2, 3], torch.full_like(lists[1], 999))):
            cache = self.requests.cache(True)
            flashinfer.append_paged_kv_cache(k, k, torch.tensor(whose).int(), torch.tensor(where).int(), cache, pages, lists[0], lists[2])
            torch.testing.assert_close(cache, self.requests.cache(True), equal_nan=True)

    def test_merging(self):
        k, v = torch.randn(30, HEADS_KV, DIM).half(), torch.randn(30, HEADS_KV, DIM).half()
        whole = exact(self.rows, k, v)
        parts = [flashinfer.single_prefill_with_kv_cache(self.rows, k[a:b], v[a:b], return_lse=True) for a, b in ((0, 7), (7, 8), (8, 30))]
        out, lse = flashinfer.merge_states(torch.stack([part[0] for part in parts], 1), torch.stack([part[1] for part in parts], 1))
        judge(self, out, lse, whole)
        first = flashinfer.merge_state(*parts[0], *parts[1])
        judge(self, *flashinfer.merge_state(*first, *parts[2]), whole)
        # A part without keys counts nothing, whatever it holds.
        none = torch.full_like(out, torch.nan), torch.full_like(lse, -torch.inf)
        self.assertTrue(torch.equal(flashinfer.merge_state(*none, out, lse)[0], out))
        empty = flashinfer.merge_state(*none, *none)
        self.assertTrue((empty[0] == 0).all() and empty[1].isneginf().all())
        chosen = torch.arange(10) < 4
        v_now, s_now = parts[2][0].clone(), parts[2][1].clone()
        flashinfer.merge_state_in_place(v_now, s_now, *first, chosen)
        judge(self, v_now[:4], s_now[:4], tuple(x[:4] for x in whole))
        self.assertTrue(torch.equal(v_now[4:], parts[2][0][4:]))

    def test_cascade(self):
        """All requests share the pages of a prompt; each has its own keys behind it."""
        shared = Requests([24], PAGE, HEADS_KV, DIM, torch.float16)
        own, prompt = self.requests.pools, shared.pools
        cache = tuple(torch.cat((a, b)) for a, b in zip(own, prompt))
        indptr, indices, last = self.requests.lists()
        wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, WORKSPACE)
        wrapper.plan([torch.tensor([0, 10]).int(), self.requests.qo_indptr], [shared.indptr, indptr], [shared.indices + own[0].shape[0], indices],
                     [shared.last, last], HEADS, HEADS_KV, DIM, PAGE, causal=True)  # fmt: skip
        out = wrapper.run(self.rows, cache)
        for s in range(len(LENGTHS)):
            part = slice(self.requests.qo_indptr[s], self.requests.qo_indptr[s + 1])
            keys = [torch.cat((a[0], b[s])) for a, b in ((shared.k, self.requests.k), (shared.v, self.requests.v))]
            wanted = exact(self.rows[part], *keys, causal=True)
            judge(self, out[part], None, (wanted[0], wanted[1], 2 * wanted[2]))  # parts are rounded before they are merged

    def test_calls_are_counted(self):
        wrapper, cache = self.decoder(), self.requests.cache(True)
        ft.reset_counters()
        wrapper.run(self.q, cache)
        self.assertEqual(ft.counters(), {"computed": 1, "passed_on": {}})

    def test_refused(self):
        cache, lists, lengths = self.requests.cache(True), self.requests.lists(), torch.tensor(LENGTHS, dtype=torch.int32)
        plan = lambda **options: lambda: self.decoder(**options)  # noqa: E731
        prefill = lambda **options: lambda: self.prefiller(**options)  # noqa: E731
        run = lambda q=self.q, c=cache, *a, **options: lambda: self.decoder().run(q, c, *a, **options)  # noqa: E731
        make = flashinfer.BatchDecodeWithPagedKVCacheWrapper
        graph = make(WORKSPACE, "NHD", True, False, *(x.clone() for x in lists))
        decode = flashinfer.trtllm_batch_decode_with_kv_cache
        for words, call in (
            ("pos_encoding_mode is 'ROPE_LLAMA'; give 'NONE' or 'ALIBI': rotate q", plan(pos_encoding_mode="ROPE_LLAMA")),
            ("ALIBI' and logits_soft_cap are both given", plan(pos_encoding_mode="ALIBI", logits_soft_cap=2.0)),
            ("q_data_type is torch.float8_e4m3fn and kv_data_type torch.float16", plan(q_data_type=E4M3, kv_data_type=torch.float16)),
            ("q_data_type is 'int4'; give", plan(q_data_type="int4")),
            ("o_data_type is torch.bfloat16 and q_data_type torch.float16", plan(o_data_type="bfloat16")),
            ("prefix_len_ptr is given; .*multi-item", prefill(prefix_len_ptr=lengths)),
            ("kv_layout is 'DHN'; give 'NHD'", lambda: make(WORKSPACE, "DHN")),
            ("a buffer is not given", lambda: make(WORKSPACE, use_cuda_graph=True)),
            (r"before plan\(\)", lambda: make(WORKSPACE).run(self.q, cache)),
            ("kv_cache_sf is given; .*4-bit", run(kv_cache_sf=cache)),
            (r"q is torch.float32 of shape \(3, 6, 64\); plan\(\) was told torch.float16 \[batch . q_len_per_req = 3, 6, 64\]", run(self.q.float())),
            (r"paged_kv_cache has shape \(3, 6, 64\); give .pages, 2", run(self.q, self.q)),
            ("the cache is torch.float16 with K .*pages of 8 keys", run(self.q, cache.transpose(2, 3))),
            ("out is torch.float32", run(out=self.q.float())),
            ("1 arguments behind the cache", run(self.q, cache, self.sinks)),
            ("lse is torch.float16", run(lse=self.q[..., 0], return_lse=True)),
            (r"sinks has shape \(3, 6, 64\); give", run(sinks=self.q)),
            ("v_scale is a tensor of shape .3,. on cpu; give a number|a scale for each head is given", run(v_scale=torch.ones(3))),
            (r"q_len_per_req is 0; give", plan(q_len_per_req=0)),
            ("the workspace is a NoneType; give a tensor", lambda: make(None)),
            ("page_size is None; give 1 to 65536 keys", lambda: make(WORKSPACE).plan(*lists, HEADS, HEADS_KV, DIM, None)),
            ("num_kv_heads is '2'; give 1 to", lambda: make(WORKSPACE).plan(*lists, HEADS, "2", DIM, PAGE)),
            ("max_sequence_kv is -1; give 0 to", plan(max_sequence_kv=-1)),
            ("block_tables is torch.float32 of shape .3, 6.; give an int32 tensor of 2 axes",
             lambda: decode(self.q, cache, None, self.requests.table().float(), lengths, 64)),
            ("block_tables is a NoneType", lambda: decode(self.q, cache, None, None, lengths, 64)),
            ("the most keys of a request is None; give 0 to", lambda: decode(self.q, cache, None, self.requests.table(), lengths, None)),
            ("o_scale is 0; give what outputs are divided by", lambda: decode(self.q, cache, None, self.requests.table(), lengths, 64, o_scale=0, kv_layout="NHD")),
            ("last_page_len has shape .1,.", lambda: make(WORKSPACE).plan(lists[0], lists[1], lists[2][:1], HEADS, HEADS_KV, DIM, PAGE)),
            ("indptr is .0, 9, 3.; give boundaries", lambda: make(WORKSPACE).plan(torch.tensor([0, 9, 3]).int(), lists[1], lists[2][:2], HEADS, HEADS_KV, DIM, PAGE)),
            ("indptr is torch.float32", lambda: make(WORKSPACE).plan(lists[0].float(), *lists[1:], HEADS, HEADS_KV, DIM, PAGE)),
            ("num_qo_heads is 6 and num_kv_heads 4", lambda: make(WORKSPACE).plan(*lists, 6, 4, DIM, PAGE)),
            ("page_size is 0; give 1 to 65536", lambda: make(WORKSPACE).plan(*lists, HEADS, HEADS_KV, DIM, 0)),
            ("indptr has 2 elements and the wrapper's buffer 4", lambda: graph.plan(lists[0][:2], lists[1], lists[2][:1], HEADS, HEADS_KV, DIM, PAGE)),
            ("bmm1_scale is a tensor of shape .2,.", lambda: decode(self.q, cache, None, self.requests.table(), lengths, 64, torch.ones(2), kv_layout="NHD")),
            ("uses_shared_paged_kv_idx is False", lambda: decode(self.q, cache, None, self.requests.table(), lengths, 64, uses_shared_paged_kv_idx=False)),
            ("query has 10 rows and block_tables 3 requests of 1", lambda: decode(self.rows, cache, None, self.requests.table(), lengths, 64)),
            ("append_key has shape", lambda: flashinfer.append_paged_kv_cache(self.q, self.q, lengths, lengths, cache, lists[1], lists[0], lists[2])),
            ("its pages share memory", lambda: flashinfer.append_paged_kv_cache(self.q[:, :2], self.q[:, :2], lengths, lengths, cache[:1].expand(5, -1, -1, -1, -1),
                                                                                 lists[1], lists[0], lists[2])),  # fmt: skip
            ("v has shape .3, 6, 64.", lambda: flashinfer.merge_states(self.q, self.sinks)),
            ("window_left is 3 and there are 2 levels", lambda: flashinfer.MultiLevelCascadeAttentionWrapper(2, WORKSPACE).plan(*[[None] * 2] * 4, 1, 1, 8, 8, window_left=3)),
            ("paged_kv_indptr_arr has 1 elements and there are 2 levels", lambda: flashinfer.MultiLevelCascadeAttentionWrapper(2, WORKSPACE).plan([0, 0], [0], [], [], 1, 1, 8, 8)),
            (r"mask has shape \(4,\); give bool .rows. = .3,", lambda: flashinfer.merge_state_in_place(self.q, self.q[..., 0], self.q, self.q[..., 0], torch.ones(4))),
            ("v has shape .3, 0, 6, 64.", lambda: flashinfer.merge_states(torch.zeros(3, 0, HEADS, DIM), torch.zeros(3, 0, HEADS))),
            ("append_key is torch.float32 and paged_kv_cache torch.float16; give rows of the cache's type", lambda: flashinfer.append_paged_kv_cache(
                self.q[:, :2].float(), self.q[:, :2], lengths, lengths, cache, lists[1], lists[0], lists[2])),
            ("positions is torch.float32", lambda: flashinfer.append_paged_kv_cache(self.q[:, :2], self.q[:, :2], lengths, lengths.float(), cache, *lists)),
        ):  # fmt: skip
            with self.subTest(words), self.assertRaisesRegex(flashcore.Error, words) as raised:
                call()
            self.assertIsInstance(raised.exception, ValueError)  # as FlashInfer's are

    def test_a_refused_plan_is_none(self):
        cache, lists = self.requests.cache(True), self.requests.lists()
        prefill, decode = self.prefiller(), self.decoder()
        ragged = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(WORKSPACE)
        ragged.plan(self.requests.qo_indptr, lists[0], HEADS, HEADS_KV, DIM)
        keys = torch.zeros(int(lists[0][-1]), HEADS_KV, DIM).half()
        for plan, run in (
            (lambda: prefill.plan(self.requests.qo_indptr[:2], *lists, HEADS, HEADS_KV, DIM, PAGE), lambda: prefill.run(self.rows, cache)),
            (lambda: decode.plan(lists[0], lists[1][:1], lists[2], HEADS, HEADS_KV, DIM, PAGE), lambda: decode.run(self.q, cache)),
            (lambda: ragged.plan(self.requests.qo_indptr, lists[0] - 1, HEADS, HEADS_KV, DIM), lambda: ragged.run(self.rows, keys, keys)),
        ):
            run()
            with self.assertRaises(flashcore.Error):
                plan()
            with self.assertRaisesRegex(flashcore.Error, r"run\(\) is called before plan\(\)"):
                run()

    def test_graph_mode_knows_its_bounds(self):
        """The buffers say what a later plan may have; an explicit bound makes the table small."""
        lists = self.requests.lists()
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE, "NHD", True, False, *(x.clone() for x in lists))
        short = Requests([1, 1, 1], PAGE, HEADS_KV, DIM, torch.float16)
        wrapper.plan(*short.lists(), HEADS, HEADS_KV, DIM, PAGE, max_sequence_kv=16)
        with self.assertRaisesRegex(flashcore.Error, "a request has 5 pages and the first plan had room for 2; .*max_sequence_kv"):
            wrapper.plan(*lists, HEADS, HEADS_KV, DIM, PAGE)

    def test_a_table_for_large_buffers_is_bounded(self):
        """A note says the bound once; requests beyond it are refused."""
        lists = self.requests.lists()
        for most, columns in ((60, 20), (9, 3)):  # the longest request has 5 pages
            buffers = lists[0].clone(), torch.zeros(1000, dtype=torch.int32), lists[2].clone()
            wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE, "NHD", True, False, *buffers)
            with mock.patch.object(_tables, "_MOST_ENTRIES", most), mock.patch.object(_plan, "say_once") as said:
                if columns < 5:
                    with self.assertRaisesRegex(flashcore.Error, "a request has 5 pages and the block table room for 3; give plan.. max_sequence_kv"):
                        wrapper.plan(*lists, HEADS, HEADS_KV, DIM, PAGE)
                else:
                    wrapper.plan(*lists, HEADS, HEADS_KV, DIM, PAGE)
                    self.assertEqual(wrapper._planner.made.table.shape, (3, columns))
                self.assertIn("the buffer of page indices has 1000 entries and the batch 3 requests", said.call_args.args[0])


if __name__ == "__main__":
    unittest.main()
