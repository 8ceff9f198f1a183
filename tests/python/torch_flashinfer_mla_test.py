"""flashcore.flashinfer's BatchMLAPagedAttentionWrapper and append_paged_mla_kv_cache: two caches as columns of one tensor and apart, lengths and
spare pages, CUDA graph mode, quantised caches with a factor each, 576 and 512 columns on the emulated GPU, refusals."""

import dataclasses
import math
import re
import sys
import unittest
import warnings
from pathlib import Path
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from torch_flashinfer_support import ROOT, WORKSPACE, EmulatedGpu, Requests, exact, judge  # noqa: E402

import flashcore  # noqa: E402
import flashcore.flashinfer as flashinfer  # noqa: E402
from flashcore import _columns, _plan  # noqa: E402

HEADS, PAGE = 5, 4
LENGTHS, ROWS = [5, 40, 17], [2, 7, 1]
SCALE = 0.09  # not 1/sqrt of the columns: that of the head dim before the projections were absorbed
SPLIT_CACHES = "mla_caches_apart"


@dataclasses.dataclass
class Case:
    """Requests whose latent keys are the rows of one pool."""

    dtype: torch.dtype = torch.float16
    ckv: int = 96
    kpe: int = 32
    page: int = PAGE

    def __post_init__(self):
        self.requests = Requests(LENGTHS, self.page, 1, self.ckv + self.kpe, self.dtype, rows=ROWS)
        self.pool = self.requests.pools[0].squeeze(2)
        self.q = torch.randn(sum(ROWS), HEADS, self.ckv + self.kpe).to(self.dtype)
        self.lengths = torch.tensor(LENGTHS, dtype=torch.int32)

    def split(self, x):
        return x[..., : self.ckv], x[..., self.ckv :]

    def plan(self, wrapper=None, causal=True, lists=None, lengths=None, kv_dtype=None, **options):
        wrapper = flashinfer.BatchMLAPagedAttentionWrapper(WORKSPACE) if wrapper is None else wrapper
        indptr, indices = self.requests.lists()[:2] if lists is None else lists
        wrapper.plan(self.requests.qo_indptr, indptr, indices, self.lengths if lengths is None else lengths, HEADS, self.ckv, self.kpe, self.page, causal, SCALE,
                     self.dtype, self.dtype if kv_dtype is None else kv_dtype, **options)  # fmt: skip
        return wrapper

    def judge(self, test, out, lse=None, causal=True, keys=None, allow=1.0):
        for s, latent in enumerate(self.requests.k if keys is None else keys):
            part = slice(*self.requests.qo_indptr[s : s + 2].tolist())
            wanted = exact(self.q[part], latent, latent[..., : self.ckv], causal=causal, scale=SCALE)
            judge(test, out[part], None if lse is None else lse[part], (wanted[0], wanted[1], wanted[2] * allow))


def apart(views):
    return tuple(x.clone() for x in views)


class MlaTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(6)
        _plan._said.discard(SPLIT_CACHES)
        self.addCleanup(_plan._said.add, SPLIT_CACHES)

    def test_columns_of_one_tensor_are_read_where_they_are(self):
        for case in (Case(), Case(torch.bfloat16, page=1), Case(torch.float32, 48, 16), Case(ckv=192, kpe=64), Case(ckv=64, kpe=0)):
            for causal in (True, False):
                with self.subTest(case=case, causal=causal), mock.patch.object(_columns, "joined", side_effect=AssertionError("copied")):
                    wrapper = case.plan(causal=causal)
                    out, lse = wrapper.run(*case.split(case.q), *case.split(case.pool), return_lse=True)
                    self.assertEqual((out.shape, lse.shape), ((sum(ROWS), HEADS, case.ckv), (sum(ROWS), HEADS)))
                    case.judge(self, out, lse, causal)

    def test_given_outputs_and_both_bases(self):
        case = Case()
        wrapper, given = case.plan(), (*case.split(case.q), *case.split(case.pool))
        wanted, base_2 = wrapper.run_return_lse(*given)
        out, lse = torch.empty_like(wanted), torch.empty_like(base_2)
        made = wrapper.run(*given, out=out, lse=lse, return_lse=True, return_lse_base_on_e=True)
        self.assertTrue(made[0] is out and made[1] is lse and torch.equal(out, wanted))
        torch.testing.assert_close(lse, base_2 * math.log(2))
        self.assertIs(wrapper.run(*given, out=out), out)
        for natural, wanted_lse in ((False, base_2), (True, base_2 * math.log(2))):
            buffer = torch.full_like(lse, torch.nan)
            self.assertTrue(torch.equal(wrapper.run(*given, lse=buffer, return_lse_base_on_e=natural), wanted))
            torch.testing.assert_close(buffer, wanted_lse)

    def test_boundaries_behind_the_last_request_are_not_looked_at(self):
        case = Case()
        indptr, indices = case.requests.lists()[:2]
        given = (*case.split(case.q), *case.split(case.pool))
        longer = torch.cat((indptr, torch.tensor([0, 10**6]).int()))
        self.assertTrue(torch.equal(case.plan(lists=(longer, indices)).run(*given), case.plan().run(*given)))

    def test_caches_apart_are_copied_and_that_is_said_once(self):
        case = Case()
        wanted = case.plan().run(*case.split(case.q), *case.split(case.pool))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(2):
                self.assertTrue(torch.equal(case.plan().run(*case.split(case.q), *apart(case.split(case.pool))), wanted))
                larger = case.pool.repeat(100, 1, 1)  # other bytes, the same thing to say
                self.assertTrue(torch.equal(case.plan().run(*apart(case.split(case.q)), *apart(case.split(larger))), wanted))
        self.assertEqual([note.category for note in said], [flashcore.Note])
        megabytes = case.pool.nbytes / 2**20
        self.assertRegex(str(said[0].message), rf"every run\(\) copies all of their pages .* {megabytes:.1f} MiB .* \[pages, page_size, 128\] .*\[\.\.\., :96\]")
        self.assertEqual(said[0].filename, __file__)

    def test_what_is_one_tensor(self):
        pool, other = torch.randn(3, 4, 48), torch.randn(3, 4, 48)
        ckv, kpe = pool[..., :32], pool[..., 32:]
        found = _columns.adjoined(ckv, kpe)
        self.assertTrue(torch.equal(found, pool) and found.data_ptr() == pool.data_ptr())
        self.assertEqual(_columns.adjoined(ckv[:1, :1], kpe[:1, :1]).shape, (1, 1, 48))
        swapped = pool.transpose(0, 1)
        self.assertTrue(torch.equal(_columns.adjoined(swapped[..., :32], swapped[..., 32:]), swapped))
        for a, b in ((kpe, ckv), (ckv, other[..., 32:]), (ckv, pool[..., 33:]), (ckv, kpe.contiguous()), (ckv[::2], pool[:2, :, 32:]),
                     (pool[..., :32:2], pool[..., 32:])):  # fmt: skip
            self.assertIsNone(_columns.adjoined(a, b))
        # Two allocations that are neighbours by chance: a view of the first may not reach into the second.
        whole = bytearray(48 * 4)
        first, second = (torch.frombuffer(whole, dtype=torch.float32, count=count, offset=4 * at) for count, at in ((32, 0), (16, 32)))
        self.assertEqual(second.data_ptr(), first.data_ptr() + 128)
        self.assertIsNone(_columns.adjoined(first.view(1, 1, 32), second.view(1, 1, 16)))

    def test_lengths_and_spare_pages(self):
        case = Case()
        indptr, indices, _ = case.requests.lists()
        # Two more pages for each request, whose rows hold NaN.
        spare = torch.cat([torch.cat((indices[indptr[s] : indptr[s + 1]], torch.tensor([999, -3]).int())) for s in range(len(LENGTHS))])
        roomy = (indptr + 2 * torch.arange(len(LENGTHS) + 1)).int(), spare
        out = case.plan(lists=roomy).run(*case.split(case.q), *case.split(case.pool))
        case.judge(self, out)
        case.judge(self, case.plan(lists=roomy, max_sequence_kv=40, max_token_per_sequence=7).run(*case.split(case.q), *case.split(case.pool)))
        for wrong in (-1, 45, 2**40):  # the second request has ten pages of four keys
            lengths = torch.tensor([5, wrong, 17])
            out = case.plan(lengths=lengths).run(*case.split(case.q), *case.split(case.pool))
            self.assertEqual(out.isnan().flatten(1).any(1).tolist(), [False] * 2 + [True] * 7 + [False])
        out = case.plan(lengths=torch.tensor([9, 40, 17])).run(*case.split(case.q), *case.split(case.pool.nan_to_num()))  # its first row sees eight
        self.assertEqual(out.isnan().flatten(1).any(1).tolist(), [True] * 2 + [False] * 8)
        none = case.plan(lengths=torch.zeros(3).int()).run(*case.split(case.q), *case.split(case.pool))
        self.assertTrue((none == 0).all())

    def test_graph_mode(self):
        case = Case()
        buffers = [torch.full_like(x, -1) for x in (case.requests.qo_indptr, *case.requests.lists()[:2], case.lengths)]
        wrapper = flashinfer.BatchMLAPagedAttentionWrapper(WORKSPACE, True, *buffers)
        self.assertTrue(wrapper.is_cuda_graph_enabled and wrapper.device == WORKSPACE.device)
        case.plan(wrapper, lists=(torch.arange(4).int(), case.requests.indices[:3]), lengths=torch.ones(3).int())
        before = wrapper._planner.made.table.data_ptr()
        case.plan(wrapper)
        self.assertEqual((wrapper._planner.made.table.data_ptr(), wrapper._rows.cu.data_ptr()), (before, buffers[0].data_ptr()))
        case.judge(self, wrapper.run(*case.split(case.q), *case.split(case.pool)))
        with self.assertRaisesRegex(flashcore.Error, "kv_len_arr has shape .2,"):
            case.plan(wrapper, lengths=case.lengths[:2])

    def test_quantised_caches(self):
        case = Case(torch.float32)
        for kind in (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8):
            for by_ckv, by_kpe in ((0.02, 0.02), (0.02, 0.05), (0.5, 0.03)):
                largest = 127.0 if kind is torch.int8 else torch.finfo(kind).max
                by = torch.tensor([by_ckv] * case.ckv + [by_kpe] * case.kpe)
                codes = (case.pool.nan_to_num() / by).clamp(-largest, largest)
                pool = (codes.round() if kind is torch.int8 else codes).to(kind)
                keys = [(k / by).clamp(-largest, largest) for k in case.requests.k]
                keys = [(k.round() if kind is torch.int8 else k).to(kind).float() * by for k in keys]
                wrapper = case.plan(kv_dtype=kind)
                for views in (case.split(pool), apart(case.split(pool))):
                    with self.subTest(kind=kind, by=(by_ckv, by_kpe)), warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        out, lse = wrapper.run(*case.split(case.q), *views, return_lse=True, ckv_scale=by_ckv, kpe_scale=by_kpe)
                        case.judge(self, out, lse, keys=keys, allow=4.0)

    def test_the_larger_factor_is_the_caches(self):
        """In 16 bits q times 1e4 would be infinite."""
        case = Case()
        for by_ckv, by_kpe in ((1e-4, 1.0), (1.0, 1e-4)):
            by = torch.tensor([by_ckv] * case.ckv + [by_kpe] * case.kpe)
            pool = case.pool.float().nan_to_num().clamp(-1, 1).to(torch.float8_e5m2)
            keys = [k.float().clamp(-1, 1).to(torch.float8_e5m2).float() * by for k in case.requests.k]
            q = case.q
            case.q = q * 60
            out = case.plan(kv_dtype=torch.float8_e5m2).run(*case.split(case.q), *case.split(pool), ckv_scale=by_ckv, kpe_scale=by_kpe)
            self.assertTrue(out.isfinite().all())
            wanted = [exact(case.q[a:b].double(), k.double(), k[..., : case.ckv].double(), causal=True, scale=SCALE)[0]
                      for k, a, b in zip(keys, case.requests.qo_indptr[:-1], case.requests.qo_indptr[1:])]  # fmt: skip
            wanted = torch.cat(wanted)
            self.assertLess((out.double() - wanted).norm() / wanted.norm(), 0.01)
            case.q = q

    def test_appending(self):
        case = Case()
        indptr, indices, last = case.requests.lists()
        whose, where = flashinfer.get_batch_indices_positions(torch.tensor([0, 2, 3, 3]).int(), case.lengths, 5)
        new = torch.randn(5, case.ckv + case.kpe).half()
        wanted = case.pool.clone()
        for entry in range(3):
            page = case.requests.pages_of(int(whose[entry]))[int(where[entry]) // PAGE]
            wanted[page, int(where[entry]) % PAGE] = new[entry]
        for one in (True, False):
            pool = case.pool.clone()
            views = case.split(pool) if one else apart(case.split(pool))
            flashinfer.append_paged_mla_kv_cache(*case.split(new), whose, where, *views, indices, indptr, last)
            torch.testing.assert_close(torch.cat(views, -1), wanted, equal_nan=True, rtol=0, atol=0)
        pool = torch.zeros(case.pool.shape).to(torch.int8)
        flashinfer.append_paged_mla_kv_cache(*case.split(new), whose, where, *case.split(pool), indices, indptr, last, ckv_scale=0.02, kpe_scale=torch.tensor(0.05))
        for entry in range(3):
            page = case.requests.pages_of(int(whose[entry]))[int(where[entry]) // PAGE]
            by = torch.tensor([0.02] * case.ckv + [0.05] * case.kpe)
            codes = (new[entry].float() / by).round().clamp(-127, 127).to(torch.int8)
            self.assertTrue(torch.equal(pool[page, int(where[entry]) % PAGE], codes))
        self.assertEqual(int((pool != 0).flatten(2).any(2).sum()), 3)

    def test_refused(self):
        case, bf16 = Case(), torch.bfloat16
        q, caches, wrapper = case.split(case.q), case.split(case.pool), case.plan()
        make, table = flashinfer.BatchMLAPagedAttentionWrapper, torch.zeros(3, 4).int()
        int8 = Case(torch.float32).plan(kv_dtype=torch.int8)
        codes = case.split(torch.zeros(case.pool.shape).to(torch.int8))
        whole = case.split(case.q.float())
        lists, new = case.requests.lists(), torch.zeros(3, 96).half()

        def plan(*changes, **options):
            """plan() with the arguments of these numbers changed."""
            given = [case.requests.qo_indptr, *lists[:2], case.lengths, HEADS, 96, 32, PAGE, True, SCALE, torch.float16, torch.float16]
            for at, value in changes:
                given[at] = value
            return lambda: make(WORKSPACE).plan(*given, **options)

        def append(ckv=new, kpe=new[:, :32], into=caches, **options):
            return lambda: flashinfer.append_paged_mla_kv_cache(ckv, kpe, case.lengths, case.lengths, *into, lists[1], lists[0], lists[2], **options)

        for words, call in (
            ("backend is 'cutlass', .*; give 'auto' and call plan", lambda: make(WORKSPACE, backend="cutlass")),
            ("use_cuda_graph is True and kv_indptr is not given; give the buffers qo_indptr, kv_indptr", lambda: make(WORKSPACE, True, case.lengths)),
            ("the workspace is a NoneType; give a tensor", lambda: make(None)),
            (r"run\(\) is called before plan\(\)", lambda: make(WORKSPACE).run(*q, *caches)),
            ("num_heads is 0; give 1 to", plan((4, 0))),
            ("head_dim_ckv is None; give 1 to", plan((5, None))),
            ("head_dim_kpe is -1; give 0 to", plan((6, -1))),
            ("page_size is 0; give 1 to 65536 keys", plan((7, 0))),
            ("sm_scale is None; give 1/sqrt of the head dim before", plan((9, None))),
            ("q_data_type is torch.float8_e4m3fn; give float16 or bfloat16", plan((10, torch.float8_e4m3fn))),
            ("q_data_type is torch.float16 and kv_data_type torch.bfloat16; give both alike", plan((11, bf16))),
            ("use_profiler is given; .*no kernel writes a profile", plan(use_profiler=True)),
            ("kv_indices is torch.float32", plan((2, lists[1].float()))),
            ("kv_indptr is .0, 2, 99, 5.; give boundaries", plan((1, torch.tensor([0, 2, 99, 5]).int()))),
            ("kv_len_arr has shape .2,. and kv_indptr .4,.; give", plan((3, case.lengths[:2]))),
            ("kv_len_arr has shape .3,. and kv_indptr .3,.; give", plan((1, lists[0][:3]))),
            ("qo_indptr has 3 elements and kv_len_arr 3; give", plan((0, case.requests.qo_indptr[:3]))),
            ("q_nope has 9 rows and plan.. was told 10", lambda: wrapper.run(*(x[:9] for x in q), *caches)),
            (r"q_nope.dtype is torch.float16, its shape \(10, 5, 128\); plan\(\) was told torch.float16 \[rows, 5, 96\]", lambda: wrapper.run(case.q, q[1], *caches)),
            ("q_pe.dtype is torch.float32, its shape", lambda: wrapper.run(q[0], q[1].float(), *caches)),
            ("q_pe is a NoneType; plan", lambda: wrapper.run(q[0], None, *caches)),
            (r"q_pe has shape \(9, 5, 32\) on cpu and q_nope \(10, 5, 96\) on cpu; give as many", lambda: wrapper.run(q[0], q[1][:9], *caches)),
            (r"ckv_cache.dtype is torch.float16, its shape .*; plan\(\) was told torch.float16 \[pages, 4, 96\]", lambda: wrapper.run(*q, caches[0].unsqueeze(2), caches[1])),
            ("kpe_cache has shape .* and ckv_cache .*; give as many", lambda: wrapper.run(*q, caches[0], caches[1][1:])),
            ("ckv_scale is given and kv_data_type is torch.float16; leave it out", lambda: wrapper.run(*q, *caches, ckv_scale=1.0)),
            ("kpe_scale is not given and kv_data_type is torch.int8; give .*1.0 for none", lambda: int8.run(*whole, *codes, ckv_scale=1.0)),
            ("kpe_scale is 0; give a number that is positive", lambda: int8.run(*whole, *codes, ckv_scale=1.0, kpe_scale=0)),
            ("ckv_scale is a str; give a number", lambda: int8.run(*whole, *codes, ckv_scale="1", kpe_scale=1)),
            ("ckv_scale_arr is given; .*give ckv_scale", lambda: int8.run(*whole, *codes, ckv_scale_arr=table, kpe_scale=1)),
            ("kv_len is given; .*kv_len_arr", lambda: wrapper.run(*q, *caches, kv_len=case.lengths)),
            ("page_table is given; .*page lists", lambda: wrapper.run(*q, *caches, page_table=table)),
            ("o_scale is given", lambda: wrapper.run(*q, *caches, o_scale=1.0)),
            ("profiler_buffer is given", lambda: wrapper.run(*q, *caches, profiler_buffer=table)),
            ("out is torch.float32", lambda: wrapper.run(*q, *caches, out=torch.zeros(10, HEADS, 96))),
            (r"lse is torch.float32 of shape \(5, 10\)", lambda: wrapper.run(*q, *caches, lse=torch.zeros(5, 10), return_lse=True)),
            (r"append_ckv has shape \(3, 1, 96\); give \[nnz, dim\]", append(new[:, None])),
            ("append_kpe is a NoneType; give .nnz, dim.", append(kpe=None)),
            (r"ckv_cache has shape .* give \[pages, page_size, dim\]", append(into=(case.pool[..., None], caches[1]))),
            ("append_ckv is torch.float16, ckv_cache is torch.int8 and ckv_scale is not given; give ckv_scale and kpe_scale, 1.0 for", append(into=codes)),
            ("kpe_scale is given, append_kpe is torch.float16 and so is kpe_cache; leave it out", append(kpe_scale=1.0)),
            ("ckv_scale is -1; give a number that is positive", append(into=codes, ckv_scale=-1, kpe_scale=1)),
        ):  # fmt: skip
            with self.subTest(words), self.assertRaisesRegex(flashcore.Error, words) as raised:
                call()
            self.assertIsInstance(raised.exception, ValueError)  # as FlashInfer's are

    def test_example(self):
        (block,) = re.findall(r"<!-- run: torch -->\n```python\n(.*?)```", (ROOT / "docs/serving.md").read_text(), re.DOTALL)
        made = {}
        exec(block, made)
        for s, rows in enumerate((slice(0, 40), slice(40, 49))):
            keys = made["new"][rows, None]
            judge(self, made["out"][s : s + 1], None, exact(made["q"][s : s + 1], keys, keys[..., :192], scale=192**-0.5))

    def test_a_refused_plan_is_none(self):
        case = Case()
        wrapper = case.plan()
        with self.assertRaises(flashcore.Error):
            case.plan(wrapper, lengths=case.lengths[:2])
        with self.assertRaisesRegex(flashcore.Error, r"before plan\(\)"):
            wrapper.run(*case.split(case.q), *case.split(case.pool))


class EmulatorTest(unittest.TestCase):
    def test_576_and_512_columns(self):
        """DeepSeek's, appended and attended where they lie, by the GPU's kernels."""
        torch.manual_seed(7)
        gpu, case = EmulatedGpu(self), Case(torch.bfloat16, 512, 64)
        indptr, indices, last = (gpu.place(x) for x in case.requests.lists())
        pool, q = gpu.place(torch.full_like(case.pool, torch.nan)), gpu.place(case.q)
        starts = torch.tensor([0, *LENGTHS]).cumsum(0).int()
        whose, where = flashinfer.get_batch_indices_positions(starts, case.lengths, sum(LENGTHS))
        new = gpu.place(torch.cat(case.requests.k).squeeze(1))
        flashinfer.append_paged_mla_kv_cache(*case.split(new), gpu.place(whose), gpu.place(where), *case.split(pool), indices, indptr, last)
        torch.testing.assert_close(pool, case.pool, equal_nan=True, rtol=0, atol=0)
        wrapper = case.plan()
        made, rows = wrapper._planner.made, wrapper._rows
        wrapper._planner.made = made._replace(table=gpu.place(made.table), used=gpu.place(made.used))
        rows.cu = gpu.place(rows.cu)
        with mock.patch.object(_columns, "joined", side_effect=AssertionError("copied")):
            out, lse = wrapper.run(*case.split(q), *case.split(pool), out=gpu.place(case.q[..., :512]), return_lse=True)
        self.assertEqual(next(reversed(_plan._plans.values())).info["family"], "sm90_wide_fwd")
        case.judge(self, out, lse, allow=2.0)  # P has 16 bits too


if __name__ == "__main__":
    unittest.main()
