"""Custom masks of FlashInfer's wrappers, plain and in bits, and ALiBi without causal: values beside a plain computation, and what is refused."""

import contextlib
import unittest
from unittest import mock

import torch
from torch_flashinfer_support import WORKSPACE, EmulatedGpu, Requests, exact, judge

import flashcore
from flashcore import flashinfer
from flashcore.flashinfer import _masks

HEADS, HEADS_KV, DIM, PAGE = 6, 2, 64, 8
LENGTHS, ROWS = [13, 0, 21, 5, 40], [3, 2, 7, 0, 17]  # a request without keys, and one without rows
SLOPES = torch.tensor([2**-2.0, 2**-4.0, 2**-6.0, 2**-8.0, 2**-1.0, 2**-3.0])  # of six heads, by ALiBi's paper
FORMS = ("plain", "packed", "both")


def packed_by(masks):
    """As FlashInfer's segment_packbits with the lowest bit first: each mask in whole bytes."""
    parts = []
    for flags in (mask.flatten().int() for mask in masks):
        padded = torch.cat((flags, flags.new_zeros(-flags.shape[0] % 8))).view(-1, 8)
        parts.append((padded << torch.arange(8)).sum(1).to(torch.uint8))
    return torch.cat(parts)


class MasksTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(11)
        self.requests = Requests(LENGTHS, PAGE, HEADS_KV, DIM, torch.float16, rows=ROWS)
        self.q = torch.randn(sum(ROWS), HEADS, DIM).half()
        self.masks = [torch.rand(rows, keys) < 0.6 for rows, keys in zip(ROWS, LENGTHS)]
        self.masks[2][4] = False  # a row that sees nothing
        self.flat, self.packed = torch.cat([mask.flatten() for mask in self.masks]), packed_by(self.masks)

    def given(self, form):
        """`both`: the packed one counts, as in FlashInfer."""
        return {"plain": {"custom_mask": self.flat}, "packed": {"packed_custom_mask": self.packed},
                "both": {"custom_mask": ~self.flat, "packed_custom_mask": self.packed}}[form]  # fmt: skip

    def paged(self, *graph, **options):
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE, "NHD", *graph)
        self.plan_paged(wrapper, **options)
        return wrapper

    def plan_paged(self, wrapper, **options):
        wrapper.plan(self.requests.qo_indptr, *self.requests.lists(), HEADS, HEADS_KV, DIM, PAGE, **options)

    def ragged(self, *graph, **options):
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(WORKSPACE, "NHD", *graph)
        wrapper.plan(self.requests.qo_indptr, self.boundaries(), HEADS, HEADS_KV, DIM, **options)
        return wrapper

    def boundaries(self):
        return torch.tensor([0, *LENGTHS]).cumsum(0).int()

    def results(self, **options):
        """Of both wrappers."""
        yield self.paged(**options).run(self.q, self.requests.cache(True), return_lse=True)
        yield self.ragged(**options).run(self.q, torch.cat(self.requests.k), torch.cat(self.requests.v), return_lse=True)

    def judge_rows(self, out, lse, masks=None, **options):
        for s in (at for at in range(len(ROWS)) if ROWS[at]):
            part = slice(self.requests.qo_indptr[s], self.requests.qo_indptr[s + 1])
            mask = {} if masks is None else {"mask": masks[s]}
            judge(self, out[part], lse[part], exact(self.q[part], self.requests.k[s], self.requests.v[s], **mask, **options))

    def test_values(self):
        for form in FORMS:
            for options, wanted in (({}, {}), ({"causal": True}, {}), ({"window_left": 6}, {"window_left": 6}),
                                    ({"logits_soft_cap": 1.5, "sm_scale": 0.3}, {"softcap": 1.5, "scale": 0.3}),
                                    ({"pos_encoding_mode": "ALIBI", "causal": True}, {"slopes": SLOPES, "signed": True})):  # fmt: skip
                for of, made in zip(("paged", "ragged"), self.results(**self.given(form), **options)):
                    with self.subTest(form, of=of, **options):
                        self.judge_rows(*made, masks=self.masks, **wanted)

    def test_alike_in_bits(self):
        for of in range(2):
            made = [list(self.results(**self.given(form)))[of][0] for form in FORMS]
            self.assertTrue(torch.equal(made[0], made[1]) and torch.equal(made[0], made[2]))

    def test_masks_of_other_types_and_shapes(self):
        for flat in (self.flat.byte(), self.flat.long(), self.flat[None]):
            for made in self.results(custom_mask=flat):
                self.judge_rows(*made, masks=self.masks)

    def test_sinks_scales_and_older_names(self):
        cache, sinks = self.requests.cache(True), torch.randn(HEADS)
        wrapper = self.paged(**self.given("plain"))
        self.judge_rows(*wrapper.run(self.q, cache, return_lse=True, sinks=sinks), masks=self.masks, sinks=sinks)
        self.judge_rows(*wrapper.forward_return_lse(self.q, cache, causal=True, sm_scale=0.2), masks=self.masks, scale=0.2)
        sink_wrapper = flashinfer.BatchAttentionWithAttentionSinkWrapper(WORKSPACE)
        self.plan_paged(sink_wrapper, **self.given("packed"))
        self.judge_rows(*sink_wrapper.run(self.q, cache, sinks, 0.4, return_lse=True), masks=self.masks, sinks=sinks, scale=0.4)

    def test_each_plan_has_its_own(self):
        cache, wrapper = self.requests.cache(False), self.paged(**self.given("plain"))
        self.plan_paged(wrapper, custom_mask=~self.flat)
        self.judge_rows(*wrapper.run(self.q, cache, return_lse=True), masks=[~mask for mask in self.masks])
        self.plan_paged(wrapper, causal=True)
        self.judge_rows(*wrapper.run(self.q, cache, return_lse=True), causal=True)

    def test_one_request(self):
        q, k, v = self.q[:7], self.requests.k[2], self.requests.v[2]
        for options in ({"custom_mask": self.masks[2]}, {"packed_custom_mask": packed_by(self.masks[2:3])},
                        {"custom_mask": ~self.masks[2], "packed_custom_mask": packed_by(self.masks[2:3]), "causal": True}):  # fmt: skip
            with self.subTest(list(options)):
                judge(self, *flashinfer.single_prefill_with_kv_cache(q, k, v, return_lse=True, **options), exact(q, k, v, mask=self.masks[2]))
        made = flashinfer.single_prefill_with_kv_cache(q, k[:0], v[:0], packed_custom_mask=torch.empty(0, dtype=torch.uint8))
        self.assertTrue((made == 0).all())

    def test_memory_that_stays(self):
        """With CUDA graphs: what a captured run reads is where it was, and a wrapper holds as many pairs as its buffer bits."""
        buffers = [x.clone() for x in (self.requests.qo_indptr, *self.requests.lists())]
        bits = torch.empty(-(-self.flat.shape[0] // 8) + 2, dtype=torch.uint8)
        wrapper, cache = self.paged(True, *buffers, bits, buffers[0].clone(), custom_mask=~self.flat), self.requests.cache(True)
        addresses = [x.data_ptr() for x in wrapper._of.mask.tensors.values()]
        text = wrapper._of.mask.text
        self.plan_paged(wrapper, **self.given("plain"))
        self.assertEqual([x.data_ptr() for x in wrapper._of.mask.tensors.values()], addresses)
        self.assertEqual(wrapper._of.mask.text, text)
        self.judge_rows(*wrapper.run(self.q, cache, return_lse=True), masks=self.masks)
        ragged = self.ragged(True, buffers[0].clone(), buffers[1].clone(), bits, buffers[0].clone(), **self.given("plain"))
        self.judge_rows(*ragged.run(self.q, torch.cat(self.requests.k), torch.cat(self.requests.v), return_lse=True), masks=self.masks)
        for words, made, options in (
            ("plan\\(\\) no mask; give custom_mask", bits, {}),
            ("has no custom_mask_buf; give it one of as many bits", None, self.given("plain")),
            (f"{self.flat.shape[0]} pairs of a row and a key; at most 16 fit, the bits of custom_mask_buf", bits[:2], self.given("plain")),
        ):
            with self.subTest(words), self.assertRaisesRegex(flashcore.Error, words):
                self.paged(True, *buffers, made, None, **options)

    def test_few_kernels(self):
        """A mask function's text, and so a kernel, is of few sizes."""
        size = lambda n: _masks.Masks(torch.device("cpu"), False, None).plan(  # noqa: E731
            torch.ones(n, dtype=torch.bool), None, torch.tensor([n]), torch.tensor([1])).text  # fmt: skip
        self.assertEqual(size(3), size(1 << 20))
        self.assertEqual(size((1 << 20) + 1), size(1 << 22))
        self.assertNotEqual(size(3), size((1 << 20) + 1))

    def test_boundaries_that_change_lead_to_no_other_memory(self):
        """Boundaries may be written to on the device, after plan() looked at them."""
        flags = torch.ones(4, dtype=torch.bool)
        mask = _masks.of_batch(flags, torch.tensor([-(2**31), 2**31 - 1]).int(), torch.tensor([2**31 - 1, 77]).int())
        q, starts = torch.randn(6, 1, 16), torch.tensor([0, 3, 6]).int()
        made = flashcore.varlen_attention(q, q, q, starts, starts, 3, 3, mask=mask.text, tensors=mask.tensors)
        self.assertTrue(torch.equal(made, flashcore.varlen_attention(q, q, q, starts, starts, 3, 3)))

    def test_alibi_without_causal(self):
        for options in ({}, {"window_left": 9}):
            for of, made in zip(("paged", "ragged"), self.results(pos_encoding_mode="ALIBI", **options)):
                with self.subTest(of, **options):
                    self.judge_rows(*made, slopes=SLOPES, signed=True, **options)
        q, k, v = self.q[:7], self.requests.k[2], self.requests.v[2]
        made = flashinfer.single_prefill_with_kv_cache(q, k, v, pos_encoding_mode="ALIBI", return_lse=True)
        judge(self, *made, exact(q, k, v, slopes=SLOPES, signed=True))

    def test_refused(self):
        paged = lambda **options: lambda: self.paged(**options)  # noqa: E731
        ragged = lambda **options: lambda: self.ragged(**options)  # noqa: E731
        q, k, v = self.q[:7], self.requests.k[2], self.requests.v[2]
        single = lambda **options: lambda: flashinfer.single_prefill_with_kv_cache(q, k, v, **options)  # noqa: E731
        pairs = self.flat.shape[0]
        for words, call in (
            (f"custom_mask has {pairs - 1} elements and the requests {pairs} pairs .*; give {pairs}, one for each", paged(custom_mask=self.flat[:-1])),
            (f"custom_mask has {pairs + 1} elements", ragged(custom_mask=torch.cat((self.flat, self.flat[:1])))),
            (f"packed_custom_mask has {self.packed.shape[0] - 1} elements .*; give {self.packed.shape[0]}, whole bytes for each",
             paged(packed_custom_mask=self.packed[1:])),
            ("custom_mask is torch.float32; give a bool tensor, True where", ragged(custom_mask=self.flat.float())),
            ("custom_mask is a list; give a bool", paged(custom_mask=[True])),
            (f"packed_custom_mask is torch.bool of shape .{pairs},.; give uint8", paged(packed_custom_mask=self.flat)),
            ("packed_custom_mask is a str; give uint8", ragged(packed_custom_mask="1")),
            (r"custom_mask has shape \(21, 7\); give bool .rows, keys. = .7, 21.", single(custom_mask=self.masks[2].t())),
            ("custom_mask is torch.float16; give a bool", single(custom_mask=self.masks[2].half())),
            ("packed_custom_mask has 3 elements and the requests 147 pairs .*; give 19, eight pairs a byte", single(packed_custom_mask=self.packed[:3])),
            ("equal bits in every batch are asked for, and .* has a score or mask function",
             lambda: self.paged(fixed_split_size=64, **self.given("plain")).run(self.q, self.requests.cache(True))),
            ("ALIBI' and logits_soft_cap are both given", paged(pos_encoding_mode="ALIBI", logits_soft_cap=2.0)),
        ):  # fmt: skip
            with self.subTest(words), self.assertRaisesRegex(flashcore.Error, words):
                call()
        with mock.patch.object(_masks, "_MOST", 100), self.assertRaisesRegex(flashcore.Error, f"masks have {pairs} pairs .*; at most 100 fit: plan fewer requests"):
            self.paged(**self.given("plain"))
        wrapper = self.paged()
        with contextlib.suppress(flashcore.Error):
            self.plan_paged(wrapper, custom_mask=self.flat[:-1])
        with self.assertRaisesRegex(flashcore.Error, r"before plan\(\)"):
            wrapper.run(self.q, self.requests.cache(True))


class MasksOnAnEmulatedGpuTest(unittest.TestCase):
    def test_values(self):
        torch.manual_seed(5)
        gpu, lengths, rows = EmulatedGpu(self), [9, 0, 50], [20, 1, 3]
        requests = Requests(lengths, 16, 1, 16, torch.float16, rows=rows)
        masks = [torch.rand(n, keys) < 0.5 for n, keys in zip(rows, lengths)]
        q = gpu.place(torch.randn(sum(rows), 2, 16).half())
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE)
        wrapper.plan(requests.qo_indptr, *requests.lists(), 2, 1, 16, 16, packed_custom_mask=packed_by(masks), pos_encoding_mode="ALIBI")
        # What plan() made lies outside of the emulated GPU's memory.
        pages, mask = wrapper._planner.made, wrapper._of.mask
        wrapper._planner.made = pages._replace(table=gpu.place(pages.table), used=gpu.place(pages.used))
        wrapper._rows.cu = gpu.place(wrapper._rows.cu)
        wrapper._of = wrapper._of._replace(mask=mask._replace(tensors={name: gpu.place(x) for name, x in mask.tensors.items()}))
        slopes = gpu.place(torch.tensor([2**-4.0, 2**-8.0]))
        with mock.patch.object(flashinfer.prefill._options, "slopes", lambda heads, device: slopes):
            out, lse = wrapper.run(q, gpu.place(requests.cache(True)), out=gpu.place(torch.empty_like(q)), return_lse=True)
        for s in range(len(rows)):
            part = slice(requests.qo_indptr[s], requests.qo_indptr[s + 1])
            judge(self, out[part], lse[part], exact(q[part], requests.k[s], requests.v[s], mask=masks[s], slopes=slopes, signed=True))


if __name__ == "__main__":
    unittest.main()
