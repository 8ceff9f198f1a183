"""Softcap, ALiBi and attention sinks in PyTorch, against the definition; gradients, vmap, compiling, and models that have them."""

import os
import sys
import unittest
import warnings
from pathlib import Path

import torch

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
import flashcore  # noqa: E402
import flashcore.torch as ft  # noqa: E402


def inputs(rows=9, keys=17, heads_kv=2, grad=False, batch=2, dtype=torch.float32):
    torch.manual_seed(1)
    make = lambda heads, length: (2 * torch.randn(batch, heads, length, 16)).to(dtype).requires_grad_(grad)  # noqa: E731
    return make(4, rows), make(heads_kv, keys), make(heads_kv, keys)


def expected(q, k, v, window=None, is_causal=False, scale=None, softcap=None, alibi_slopes=None, sink=None):
    """In fp64, from the definition."""
    rows, keys, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    s = q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    own, key = torch.arange(rows)[:, None], torch.arange(keys)[None, :]
    if alibi_slopes is not None:
        s = s - alibi_slopes.double()[..., None, None] * (own + keys - rows - key).abs()
    left, right = (10**6 if side is None else side for side in window or (None, None))
    own = own if is_causal else own + keys - rows
    s = s.masked_fill(~((key >= own - left) & (key <= own + (0 if is_causal else right))), -torch.inf)
    if sink is not None:
        s = torch.cat([s, sink.double()[:, None, None].expand(*s.shape[:3], 1)], -1)
    p = torch.softmax(s, -1).nan_to_num(0.0)
    return p[..., :keys] @ v


def near(a, b, tolerance=1e-4):
    torch.testing.assert_close(a.double(), b.double(), atol=tolerance, rtol=tolerance)


SLOPES, SINK = torch.tensor([0.5, 0.25, 0.125, 0.0625]), torch.tensor([1.0, -2.0, 3.0, 0.0])
CASES = [
    dict(softcap=2.0),
    dict(alibi_slopes=SLOPES),
    dict(sink=SINK),
    dict(softcap=2.0, alibi_slopes=torch.stack([SLOPES, 2 * SLOPES]), sink=SINK),
]
MASKS = [dict(), dict(is_causal=True), dict(window=(3, 0)), dict(window=(2, 1), is_causal=False)]


class ScoresTest(unittest.TestCase):
    def test_agrees_with_the_definition(self):
        for case in CASES:
            for mask in MASKS:
                for rows, keys in ((9, 17), (17, 17), (1, 33), (20, 7)):
                    with self.subTest(case=list(case), mask=mask, rows=rows, keys=keys):
                        tensors = inputs(rows, keys)
                        near(ft.attention(*tensors, **case, **mask), expected(*tensors, **case, **mask))
                        near(ft.attention(*tensors, **case, **mask), expected(*tensors, **case, **mask))  # by the plan that is kept

    def test_types_of_slopes_and_sinks(self):
        q, k, v = inputs(dtype=torch.bfloat16)
        near(ft.attention(q, k, v, sink=SINK.bfloat16(), alibi_slopes=SLOPES.double()), expected(q, k, v, sink=SINK, alibi_slopes=SLOPES), 3e-2)
        wide = torch.stack([SINK, SINK], 1)[:, 0]  # not contiguous
        near(ft.attention(*inputs(), sink=wide), expected(*inputs(), sink=SINK))

    def test_gradients_of_all_inputs(self):
        for case in CASES:
            for mask in MASKS:
                with self.subTest(case=list(case), mask=mask):
                    results = []
                    for function in (ft.attention, expected):
                        leaves = [*inputs(grad=True)] + [x.clone().requires_grad_() for x in case.values() if isinstance(x, torch.Tensor)]
                        extra = iter(leaves[3:])
                        given = {name: next(extra) if isinstance(x, torch.Tensor) else x for name, x in case.items()}
                        function(*leaves[:3], **given, **mask).square().sum().backward()
                        results.append([x.grad for x in leaves])
                    for ours, theirs in zip(*results):
                        near(ours, theirs, 1e-3)

    def test_no_keys_give_zeros_and_gradients_of_zero(self):
        q, sink = inputs(grad=True)[0], SINK.clone().requires_grad_()
        empty = torch.randn(2, 2, 0, 16)
        out = ft.attention(q, empty, empty, sink=sink, softcap=2.0)
        out.sum().backward()
        self.assertEqual((out.abs().max().item(), q.grad.abs().max().item(), sink.grad.abs().max().item()), (0, 0, 0))

    def test_every_kind_of_derivative(self):
        tensors = inputs()
        attend = lambda *x: ft.attention(*x, softcap=3.0, sink=SINK, window=(4, 0))  # noqa: E731
        out = expected(*tensors, softcap=3.0, sink=SINK, window=(4, 0))
        near(torch.func.vjp(attend, *tensors)[0], out)
        near(torch.func.jvp(attend, tensors, tensors)[0], out)
        leaves = inputs(grad=True)
        again = torch.autograd.grad(attend(*leaves).square().sum(), leaves, create_graph=True)
        self.assertTrue(all(torch.isfinite(x).all() for x in torch.autograd.grad(sum(x.square().sum() for x in again), leaves)))

    def test_vmap_maps_the_inputs(self):
        q, k, v = inputs(batch=3)
        slopes = SLOPES[None]  # [batch, heads] of a batch of one
        each = torch.vmap(lambda a, b, c: ft.attention(a[None], b[None], c[None], alibi_slopes=slopes, sink=SINK)[0])(q, k, v)
        near(each, expected(q, k, v, alibi_slopes=SLOPES, sink=SINK))
        with self.assertRaisesRegex(RuntimeError, "vmap over"):
            torch.vmap(lambda s: ft.attention(q, k, v, sink=s))(torch.stack([SINK, SINK]))

    def test_compiles_without_a_break(self):
        q, k, v = inputs()
        compiled = torch.compile(lambda *x: ft.attention(*x, softcap=2.0, sink=SINK), fullgraph=True, backend="aot_eager")
        near(compiled(q, k, v), expected(q, k, v, softcap=2.0, sink=SINK))

    def test_a_slope_without_axes_is_refused_after_a_call_without_slopes_too(self):
        q, k, v = inputs()
        ft.attention(q, k, v)
        for _ in range(2):
            with self.assertRaisesRegex(RuntimeError, r"alibi_slopes has shape \(\)"):
                ft.attention(q, k, v, alibi_slopes=torch.tensor(1.0))

    def test_true_is_no_number(self):
        q, k, v = inputs()
        for given in (dict(softcap=True), dict(softcap=False), dict(scale=True)):
            with self.subTest(given=given), self.assertRaisesRegex(flashcore.Error, "is (True|False); use a number from 1e-6 to 1e6"):
                ft.attention(q, k, v, **given)

    def test_bad_input_is_named(self):
        q, k, v = inputs()
        for bad, words in ((dict(softcap=0.0), "softcap is 0"), (dict(softcap=float("nan")), "softcap is nan"), (dict(sink=SINK[:3]), "sink has shape"),
                           (dict(alibi_slopes=SLOPES[None].repeat(3, 1)), "alibi_slopes has shape"), (dict(sink=SINK.int()), "int32")):  # fmt: skip
            with self.subTest(bad=bad), self.assertRaisesRegex(RuntimeError, words):
                ft.attention(q, k, v, **bad)
            with self.subTest(bad=bad, meta=True), self.assertRaisesRegex(RuntimeError, words):
                ft.attention(*(x.to("meta") for x in (q, k, v)), **{n: x.to("meta") if isinstance(x, torch.Tensor) else x for n, x in bad.items()})


class ModelsTest(unittest.TestCase):
    """Gemma 2 (softcap and windows), Gemma 3 (local layers with windows, global ones without) and gpt-oss (sinks and windows), small ones, against the models' own eager attention."""

    def models(self):
        import transformers

        import flashcore.transformers  # noqa: F401

        shape = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                     vocab_size=100, max_position_embeddings=128, sliding_window=8, pad_token_id=0)  # fmt: skip
        gemma = transformers.Gemma2Config(**shape, attn_logit_softcapping=2.0, query_pre_attn_scalar=16)
        gemma3 = transformers.Gemma3TextConfig(**shape, query_pre_attn_scalar=16, layer_types=["sliding_attention", "full_attention"])
        oss = transformers.GptOssConfig(**shape, num_local_experts=2, num_experts_per_tok=1)
        for config in (gemma, gemma3, oss):
            torch.manual_seed(0)
            yield transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()

    def test_prefill_generation_and_padding(self):
        torch.manual_seed(0)
        ids = torch.randint(1, 100, (2, 21))
        padding = torch.ones_like(ids)
        padding[0, :5] = 0
        for model in self.models():
            calls = [
                (True, lambda m=model: m(ids).logits),
                (True, lambda m=model: m.generate(ids, max_new_tokens=4, do_sample=False, output_logits=True, return_dict_in_generate=True).logits[-1]),
                (True, lambda m=model: m(ids, attention_mask=padding).logits[:, 5:]),
                (True, lambda m=model: m(ids, attention_mask=torch.zeros(2, 1, 21, 21).masked_fill(torch.ones(21, 21).triu(1).bool(), -1e9)).logits),
            ]
            for computed, call in calls:
                with self.subTest(model=type(model).__name__, computed=computed), torch.no_grad():
                    model.set_attn_implementation("eager")
                    theirs = call()
                    model.set_attn_implementation("flashcore")
                    ft.reset_counters()
                    with warnings.catch_warnings():
                        warnings.simplefilter("error" if computed else "ignore", flashcore.Note)
                        ours = call()
                    near(ours, theirs, 1e-3)
                    self.assertEqual(ft.counters()["computed"] > 0, computed, ft.counters())


if __name__ == "__main__":
    unittest.main()
