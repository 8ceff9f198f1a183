"""What FlashAttention's hopper/test_flash_attn.py covers, through flashcore.flash_attn on the CPU: head dims, groups, lengths, windows, softcap,
dtypes, ragged batches with unused rows, gradients and log-sum-exps, judged by its rule: at most twice (softcap: three times) the error
that PyTorch makes in the same precision.

Of its switches these are set here, for flashcore.flash_attn has no such calls: FLASH_ATTENTION_DISABLE_FP8 (8-bit inputs are flashcore.attention's),
_SPLIT and _PACKGQA (how a kernel shares its work is not the caller's). Caches have torch_kvcache_test.py. Without a switch there: qv,
attention_chunk, values wider than 256.
"""

import inspect
import itertools
import sys
import unittest
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from torch_flash_attn_test import reference  # noqa: E402

from flashcore.flash_attn import flash_attn_func, flash_attn_varlen_func  # noqa: E402

HEADS, BATCH = 6, 2
DIMS = (64, 96, 128, 192, 256)
LENGTHS = ((1, 1), (3, 130), (64, 128), (239, 1), (113, 203), (180, 64), (127, 128))
LACKING = ("qv", "q_descale", "attention_chunk", "num_splits", "pack_gqa", "page_table", "leftpad_k", "rotary_cos")


def low(q, k, v, **options):
    """In the inputs' precision with PyTorch's own operations, as a yardstick."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)))
    rows, keys = q.shape[2], k.shape[2]
    s = (q * q.shape[3] ** -0.5) @ k.transpose(2, 3)
    s = torch.tanh(s / options["softcap"]) * options["softcap"] if options["softcap"] else s
    own, key = torch.arange(rows)[:, None] + keys - rows, torch.arange(keys)[None, :]
    left, right = options["window_size"]
    right = 0 if options["causal"] else right
    hidden = (key < own - left if left >= 0 else key < 0) | (key > own + right if right >= 0 else key < 0)
    p = torch.softmax(s.float().masked_fill(hidden, -torch.inf), -1).nan_to_num(0.0).to(q.dtype)
    return (p @ v).transpose(1, 2)


class CoverageTest(unittest.TestCase):
    def judged(self, ours, exact, yardstick, softcap, slack=0.0):
        exact = exact.to(ours.dtype)  # as its reference returns them
        atol = 2 * (exact + 0.3 - 0.3 - exact).abs().max().item() + slack
        error, allowed = (ours - exact).abs().max().item(), (yardstick - exact).abs().max().item()
        self.assertLessEqual(error, (2 if softcap == 0.0 else 3) * allowed + atol)

    def cases(self):
        """Every value of every axis, and each pair of those that could meet: the whole product takes hours."""
        kinds = itertools.cycle(itertools.product((6, 2, 1), (torch.bfloat16, torch.float16)))
        masks = itertools.cycle(itertools.product((False, True), (False, True), (0.0, 15.0)))
        for dim in DIMS:
            for rows, keys in LENGTHS:
                for _ in range(2):
                    (heads_kv, dtype), (causal, local, softcap) = next(kinds), next(masks)
                    yield dim, rows, keys, heads_kv, dtype, causal, local, softcap
                next(masks)

    def tensors(self, rows, keys, heads_kv, dim, columns, dtype, softcap):
        q, k, v = torch.randn(BATCH, rows, HEADS, dim), torch.randn(BATCH, keys, heads_kv, dim), torch.randn(BATCH, keys, heads_kv, columns)
        return (q * softcap / 4 if softcap else q).to(dtype), k.to(dtype), v.to(dtype)

    def test_cases_hold_every_value_and_pair(self):
        cases = list(self.cases())
        for a, b in itertools.combinations(range(3, 8), 2):
            found = {(case[a], case[b]) for case in cases}
            self.assertEqual(found, set(itertools.product({case[a] for case in cases}, {case[b] for case in cases})), (a, b))

    def test_output_and_log_sum_exp(self):
        torch.manual_seed(0)
        for dim, rows, keys, heads_kv, dtype, causal, local, softcap in self.cases():
            for columns in {64: (64, 256), 192: (128, 192)}.get(dim, (dim,)):
                window = tuple(torch.randint(0, keys, (2,)).tolist()) if local else (-1, -1)
                options = {"causal": causal, "window_size": window, "softcap": softcap}
                with self.subTest(dim=dim, columns=columns, rows=rows, keys=keys, heads_kv=heads_kv, dtype=dtype, **options):
                    q, k, v = self.tensors(rows, keys, heads_kv, dim, columns, dtype, softcap)
                    exact, exact_lse = reference(q, k, v, **options)
                    out, lse, _ = flash_attn_func(q, k, v, **options, return_attn_probs=True)
                    self.assertEqual((out.dtype, out.shape), (dtype, exact.shape))
                    self.judged(out, exact, low(q, k, v, **options), softcap)
                    torch.testing.assert_close(lse.double(), exact_lse, atol=1e-4, rtol=1e-4)

    def test_gradients(self):
        torch.manual_seed(1)
        for at, (dim, rows, keys, heads_kv, dtype, causal, local, softcap) in enumerate(self.cases()):
            if at % 7 != 0:
                continue
            options = {"causal": causal, "window_size": (rows // 2, keys // 3) if local else (-1, -1), "softcap": softcap}
            with self.subTest(dim=dim, rows=rows, keys=keys, heads_kv=heads_kv, dtype=dtype, **options):
                given = self.tensors(rows, keys, heads_kv, dim, dim, dtype, softcap)
                weights = torch.randn(BATCH, rows, HEADS, dim).to(dtype)
                found = []
                for function, kind in ((flash_attn_func, dtype), (lambda *x, **y: reference(*x, **y)[0], torch.float64), (low, dtype)):
                    own = [x.detach().to(kind).requires_grad_() for x in given]
                    found.append(torch.autograd.grad(function(*own, **options), own, weights.to(kind)))
                for ours, exact, yardstick in zip(*found):
                    # Of a row with one key the gradient is 0, and the difference of two equal sums in fp32 remains.
                    # And PyTorch, which computes the backward pass, rounds the part of each query head before it sums over a group.
                    rounded = torch.finfo(dtype).eps * exact.abs().max().item() if heads_kv < HEADS else 0.0
                    self.judged(ours, exact, yardstick, softcap, rounded + (1e-5 if softcap == 0.0 else 3e-4))

    def test_ragged_batches_with_rows_that_do_not_count(self):
        torch.manual_seed(2)
        for at, (dim, rows, keys, heads_kv, dtype, causal, local, softcap) in enumerate(self.cases()):
            if at % 3 != 0:
                continue
            for unused in (False, True):
                options = {"causal": causal, "window_size": (keys // 2, 3) if local else (-1, -1), "softcap": softcap}
                with self.subTest(dim=dim, rows=rows, keys=keys, heads_kv=heads_kv, dtype=dtype, unused=unused, **options):
                    q, k, v = self.tensors(rows, keys, heads_kv, dim, dim, dtype, softcap)
                    lengths_q = torch.randint(1, rows + 1, (BATCH,))
                    lengths_k = torch.randint(0, keys + 1, (BATCH,))  # none at all too
                    used_q = torch.minimum(torch.randint(1, rows + 1, (BATCH,)), lengths_q) if unused else lengths_q
                    used_k = torch.minimum(torch.randint(0, keys + 1, (BATCH,)), lengths_k) if unused else lengths_k
                    packed = [torch.cat([x[s, : lengths[s]] for s in range(BATCH)]) for x, lengths in ((q, lengths_q), (k, lengths_k), (v, lengths_k))]
                    if packed[1].shape[0] == 0:
                        packed[1:] = [k[0, :1], v[0, :1]]
                    cu_q, cu_k = (torch.cat((torch.zeros(1), lengths.cumsum(0))).int() for lengths in (lengths_q, lengths_k))
                    extra = {"seqused_q": used_q.int(), "seqused_k": used_k.int()} if unused else {}
                    out, lse, _ = flash_attn_varlen_func(*packed, cu_q, cu_k, rows, keys, return_attn_probs=True, **extra, **options)
                    for s in range(BATCH):
                        one = q[s : s + 1, : used_q[s]], k[s : s + 1, : used_k[s]], v[s : s + 1, : used_k[s]]
                        part = slice(int(cu_q[s]), int(cu_q[s]) + int(used_q[s]))
                        if used_k[s] == 0:
                            self.assertTrue((out[part] == 0).all() and torch.isneginf(lse[:, part]).all())
                            continue
                        exact, exact_lse = reference(*one, **options)
                        self.judged(out[part], exact[0], low(*one, **options)[0], softcap)
                        torch.testing.assert_close(lse[:, part].double(), exact_lse[0], atol=1e-4, rtol=1e-4)

    def test_what_is_not_here_is_refused_by_name(self):
        q, k, v = self.tensors(8, 8, 2, 64, 64, torch.bfloat16, 0.0)
        for function in (flash_attn_func, flash_attn_varlen_func):
            self.assertFalse(set(LACKING) & set(inspect.signature(function).parameters), "this list and the text above are out of date")
        with self.assertRaisesRegex(TypeError, "attention_chunk"):
            flash_attn_func(q, k, v, attention_chunk=4)
        with self.assertRaisesRegex(RuntimeError, "rows of 512 elements"):
            flash_attn_func(q, k, torch.randn(BATCH, 8, 2, 512).bfloat16())
        with self.assertRaisesRegex(RuntimeError, "float8_e4m3fn; give float32, float16 or bfloat16"):
            flash_attn_func(*(x.to(torch.float8_e4m3fn) for x in (q, k, v)))


if __name__ == "__main__":
    unittest.main()
