"""flashcore.flash_attn: FlashAttention's signatures, against the definition."""

import os
import sys
import unittest
from pathlib import Path

import torch

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
import flashcore  # noqa: E402
from flashcore.flash_attn import (  # noqa: E402
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)


def reference(q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None):
    """In fp64, [batch, length, heads, dim]; and the log-sum-exp."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.double().transpose(1, 2) for x in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)))
    rows, keys = q.shape[2], k.shape[2]
    s = q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale)
    s = softcap * torch.tanh(s / softcap) if softcap else s
    own, key = torch.arange(rows)[:, None] + keys - rows, torch.arange(keys)[None, :]
    if alibi_slopes is not None:
        s = s - alibi_slopes.double()[..., None, None] * (own - key).abs()
    left, right = window_size[0], 0 if causal else window_size[1]
    seen = torch.ones(rows, keys, dtype=torch.bool)
    seen = seen & (key >= own - left) if left >= 0 else seen
    seen = seen & (key <= own + right) if right >= 0 else seen
    s = s.masked_fill(~seen, -torch.inf)
    return (torch.softmax(s, -1).nan_to_num(0.0) @ v).transpose(1, 2), torch.logsumexp(s, -1)


def inputs(rows=11, keys=19, heads=4, heads_kv=2, dim=16, grad=False, dtype=torch.float32):
    torch.manual_seed(3)
    return tuple(torch.randn(2, n, h, dim).to(dtype).requires_grad_(grad) for n, h in ((rows, heads), (keys, heads_kv), (keys, heads_kv)))


def near(a, b, tolerance=1e-4):
    torch.testing.assert_close(a.double(), b.double(), atol=tolerance, rtol=tolerance)


SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
OPTIONS = [
    {}, {"causal": True}, {"window_size": (3, 0)}, {"window_size": (2, 4)}, {"window_size": (-1, 2)}, {"causal": True, "window_size": (4, 4)},
    {"softcap": 3.0, "causal": True}, {"alibi_slopes": SLOPES, "causal": True}, {"alibi_slopes": torch.stack([SLOPES, 2 * SLOPES])},
    {"softmax_scale": 0.2},
]  # fmt: skip


class FlashAttnTest(unittest.TestCase):
    def test_every_option(self):
        for options in OPTIONS:
            for rows, keys in ((11, 19), (19, 19), (1, 30), (25, 9)):
                with self.subTest(options=list(options), rows=rows, keys=keys):
                    q, k, v = inputs(rows, keys)
                    out, lse = reference(q, k, v, **options)
                    ours = flash_attn_func(q, k, v, **options)
                    self.assertTrue(ours.is_contiguous())
                    near(ours, out)
                    with_lse = flash_attn_func(q, k, v, **options, return_attn_probs=True)
                    near(with_lse[0], out)
                    near(with_lse[1], lse)
                    self.assertIsNone(with_lse[2])
                    self.assertTrue(with_lse[0].is_contiguous())

    def test_autocast_and_strides_hold_for_the_log_sum_exp_too(self):
        wide = [torch.stack([x, x], -1)[..., 0] for x in inputs()]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            self.assertEqual({flash_attn_func(*wide).dtype, flash_attn_func(*wide, return_attn_probs=True)[0].dtype}, {torch.bfloat16})

    def test_packed(self):
        q, k, v = inputs(13, 13, heads_kv=4)
        near(flash_attn_qkvpacked_func(torch.stack([q, k, v], 2), causal=True), reference(q, k, v, causal=True)[0])
        near(flash_attn_kvpacked_func(q, torch.stack([k, v], 2), window_size=(3, 1)), reference(q, k, v, window_size=(3, 1))[0])

    def test_gradients(self):
        for options in OPTIONS:
            with self.subTest(options=list(options)):
                ours, theirs = inputs(grad=True), inputs(grad=True)
                flash_attn_func(*ours, **options).square().sum().backward()
                reference(*theirs, **options)[0].square().sum().backward()
                for a, b in zip(ours, theirs):
                    near(a.grad, b.grad, 1e-3)

    def test_bfloat16(self):
        q, k, v = inputs(dtype=torch.bfloat16)
        near(flash_attn_func(q, k, v, causal=True), reference(q, k, v, causal=True)[0], 3e-2)

    def test_the_log_sum_exp_changes_nothing_of_what_is_refused(self):
        q, k, v = inputs()
        for given, words in (((q, k, v, dict(alibi_slopes=SLOPES.cfloat())), "alibi_slopes is torch.complex64"), ((q, k, v, dict(alibi_slopes=SLOPES.long())), "torch.int64"),
                             ((q, k, v, dict(alibi_slopes=[1.0, 2, 3, 4])), "alibi_slopes is a list"), ((q, k, v, dict(alibi_slopes=SLOPES[:3])), "has shape"),
                             ((q, k, v, dict(alibi_slopes=torch.tensor(1.0))), r"has shape \(\)"), ((q, k, v, dict(sink=SLOPES.long())), "sink is torch.int64"),
                             ((q, k, v, dict(sink=[1.0])), "sink is a list"), ((q[0], k[0], v[0], {}), "3 axes"), ((q[0, 0], k[0, 0], v[0, 0], {}), "2 axes"),
                             ((q.double(), k.double(), v.double(), {}), "q is torch.float64; give float32, float16 or bfloat16"), ((q[:0], k, v, {}), "0 batch entries and k 2"),
                             ((q, k.half(), v, {}), "k is torch.float16 and q is torch.float32"), ((q, k, v, dict(softcap=-1.0)), "softcap is -1"),
                             ((q, k, v, dict(softcap=True)), "softcap is True"), ((q, k, v, dict(softmax_scale=1e9)), "scale is"),
                             ((q, k, v, dict(softmax_scale=True)), "scale is True")):  # fmt: skip
            for probs in (False, True):
                with self.subTest(words=words, probs=probs), self.assertRaisesRegex(RuntimeError, words):
                    flash_attn_func(*given[:3], return_attn_probs=probs, **given[3])

    def test_nothing_to_compute(self):
        q, k, v = inputs()
        for some in ((q[:0], k[:0], v[:0]), (q[:, :0], k, v), (q[:, :, :0], k, v)):
            want = flash_attn_func(*some)
            out, lse, _ = flash_attn_func(*some, return_attn_probs=True)
            self.assertEqual((out.shape, out.dtype, lse.dtype), (want.shape, want.dtype, torch.float32))
            self.assertEqual(lse.shape, (want.shape[0], want.shape[2], want.shape[1]))
        out, lse, _ = flash_attn_func(q, k[:, :0], v[:, :0], return_attn_probs=True)
        self.assertTrue((out == 0).all() and torch.isneginf(lse).all())

    def test_what_it_does_not_have_is_named(self):
        q, k, v = inputs()
        with self.assertRaisesRegex(flashcore.Error, "dropout_p is 0.1"):
            flash_attn_func(q, k, v, 0.1)
        with self.assertRaisesRegex(flashcore.Error, "kv has shape"):
            flash_attn_kvpacked_func(q, k)
        with self.assertRaisesRegex(flashcore.Error, "requires a gradient"):
            flash_attn_func(*inputs(grad=True), return_attn_probs=True)
        with self.assertRaisesRegex(flashcore.Error, "window"):
            flash_attn_func(q, k, v, window_size=(-2, 0))


class VarlenTest(unittest.TestCase):
    """Sequences of 3, 0, 11 and 5 rows with 7, 4, 11 and 0 keys, one after another."""

    ROWS, KEYS = [0, 3, 3, 14, 19], [0, 7, 11, 22, 22]

    def tensors(self, grad=False, dtype=torch.float32):
        torch.manual_seed(5)
        shapes = ((self.ROWS[-1], 4, 16), (self.KEYS[-1], 2, 16), (self.KEYS[-1], 2, 16))
        return [torch.randn(shape).to(dtype).requires_grad_(grad) for shape in shapes]

    def boundaries(self):
        return torch.tensor(self.ROWS, dtype=torch.int32), torch.tensor(self.KEYS, dtype=torch.int32)

    def expected(self, q, k, v, **options):
        out, lse = torch.zeros(q.shape, dtype=torch.float64), torch.full((q.shape[1], q.shape[0]), -torch.inf, dtype=torch.float64)
        for s in range(4):
            rows, keys = slice(self.ROWS[s], self.ROWS[s + 1]), slice(self.KEYS[s], self.KEYS[s + 1])
            if rows.start == rows.stop or keys.start == keys.stop:
                continue
            one, of = reference(q[None, rows], k[None, keys], v[None, keys], **options)
            out[rows], lse[:, rows] = one[0], of[0]
        return out, lse

    def test_every_option(self):
        q, k, v = self.tensors()
        for options in (of for of in OPTIONS if of.get("alibi_slopes", SLOPES).dim() == 1):
            with self.subTest(**options):
                out, lse, nothing = flash_attn_varlen_func(q, k, v, *self.boundaries(), 11, 11, return_attn_probs=True, **options)
                wanted, wanted_lse = self.expected(q, k, v, **options)
                near(out, wanted)
                near(lse, wanted_lse)
                self.assertIsNone(nothing)
                near(flash_attn_varlen_func(q, k, v, *self.boundaries(), 11, 11, **options), wanted)

    def test_slopes_of_each_sequence_and_gradients(self):
        q, k, v = self.tensors(grad=True)
        slopes = torch.rand(4, 4)
        out = flash_attn_varlen_func(q, k, v, *self.boundaries(), 11, 11, causal=True, alibi_slopes=slopes)
        with torch.no_grad():
            near(out, flash_attn_varlen_func(q, k, v, *self.boundaries(), 11, 11, causal=True, alibi_slopes=slopes))
        out.square().sum().backward()
        for s in (0, 2):
            rows, keys = slice(self.ROWS[s], self.ROWS[s + 1]), slice(self.KEYS[s], self.KEYS[s + 1])
            own = [x.detach()[part].unsqueeze(0).requires_grad_() for x, part in ((q, rows), (k, keys), (v, keys))]
            reference(*own, causal=True, alibi_slopes=slopes[s])[0].square().sum().backward()
            for x, one, part in zip((q, k, v), own, (rows, keys, keys)):
                near(x.grad[part], one.grad[0])

    def test_packed_arguments_and_some_rows(self):
        q, k, v = self.tensors()
        cu_q, cu_k = self.boundaries()
        out = flash_attn_varlen_func(q, k, v, cu_q, cu_k, 11, 11)
        near(flash_attn_varlen_kvpacked_func(q, torch.stack((k, v), 1), cu_q, cu_k, 11, 11), out)
        same = flash_attn_varlen_qkvpacked_func(torch.stack((q, q, q), 1), cu_q, 11)
        near(same, flash_attn_varlen_func(q, q, q, cu_q, cu_q, 11, 11))
        used = torch.tensor([2, 0, 11, 1], dtype=torch.int32)
        some = flash_attn_varlen_func(q, k, v, cu_q, cu_k, 11, 11, seqused_q=used)
        near(some[:2], out[:2])
        near(some[3:15], out[3:15])

    def test_what_is_refused(self):
        q, k, v = self.tensors()
        cu_q, cu_k = self.boundaries()
        for slopes, words in (([1.0, 2, 3, 4], "alibi_slopes is a list"), (SLOPES.cfloat(), "alibi_slopes is torch.complex64"), (SLOPES.long(), "alibi_slopes is torch.int64")):
            with self.assertRaisesRegex(flashcore.Error, words):
                flash_attn_varlen_func(q, k, v, cu_q, cu_k, 11, 11, alibi_slopes=slopes)
        with self.assertRaisesRegex(flashcore.Error, "k_cache has shape .* give four axes"):
            flash_attn_varlen_func(q, k, v, cu_q, cu_k, 11, 11, block_table=cu_q[:2, None])
        with self.assertRaisesRegex(flashcore.Error, "no dropout"):
            flash_attn_varlen_func(q, k, v, cu_q, cu_k, 11, 11, 0.1)
        with self.assertRaisesRegex(flashcore.Error, "cu_seqlens_q is of dtype .*int64; give int32"):
            flash_attn_varlen_func(q, k, v, cu_q.long(), cu_k, 11, 11)
        with self.assertRaisesRegex(flashcore.Error, r"kv has shape .*; give \[keys of all sequences, 2, heads, dim\]"):
            flash_attn_varlen_kvpacked_func(q, k, cu_q, cu_k, 11, 11)


if __name__ == "__main__":
    unittest.main()
