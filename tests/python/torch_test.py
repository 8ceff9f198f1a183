"""flashcore.torch on the CPU: PyTorch's semantics, notes, gradients, torch.compile, torch.export, transformers."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
import flashcore  # noqa: E402
import flashcore.torch as ft  # noqa: E402
from flashcore import _plan  # noqa: E402

PYTORCH = F.scaled_dot_product_attention


def inputs(heads=4, heads_kv=None, rows=9, keys=None, dim=16, dtype=torch.float32, columns=None, grad=False):
    torch.manual_seed(1)
    make = lambda *shape: torch.randn(*shape, dtype=torch.float32).to(dtype).requires_grad_(grad)  # noqa: E731
    heads_kv, keys = heads_kv or heads, keys or rows
    return make(2, heads, rows, dim), make(2, heads_kv, keys, dim), make(2, heads_kv, keys, columns or dim)


class Calls:
    """How many calls flashcore computed within."""

    def __enter__(self):
        self.before = ft.counters()["computed"]
        return self

    def __exit__(self, *error):
        self.count = ft.counters()["computed"] - self.before


class DropInTest(unittest.TestCase):
    def agree(self, q, k, v, tolerance=1e-5, **options):
        with Calls() as calls:
            ours = [ft.scaled_dot_product_attention(q, k, v, **options) for _ in range(2)]
        self.assertEqual(calls.count, 2, ft.why_not(q, k, v, **options))
        theirs = PYTORCH(q, k, v, **options)
        self.assertEqual((ours[0].shape, ours[0].dtype), (theirs.shape, theirs.dtype))
        for out in ours:
            torch.testing.assert_close(out, theirs, atol=tolerance, rtol=tolerance)

    def test_semantics(self):
        self.agree(*inputs())
        self.agree(*inputs(), is_causal=True)
        self.agree(*inputs(rows=5, keys=12), is_causal=True)  # top-left, where FlashAttention is bottom-right
        self.agree(*inputs(rows=12, keys=5), is_causal=True)
        self.agree(*inputs(rows=1, keys=33, columns=24), scale=0.7)
        self.agree(*inputs(heads=6, heads_kv=2), enable_gqa=True, is_causal=True)
        self.agree(*inputs(dtype=torch.bfloat16), tolerance=2e-2)
        self.agree(*inputs(dtype=torch.float16), tolerance=2e-3)

    def test_strides(self):
        q, k, v = inputs(rows=8)
        self.agree(q.transpose(1, 2).contiguous().transpose(1, 2), k, v)
        self.agree(torch.randn(2, 4, 16, 8).transpose(2, 3), k, v)  # last axis not adjacent: copied
        packed = torch.randn(2, 8, 3, 4, 16)
        self.agree(*(packed[:, :, i].transpose(1, 2) for i in range(3)), is_causal=True)
        self.agree(q, k[:, :1].expand(2, 4, 8, 16), v)

    def test_output_memory_is_as_models_want_it(self):
        out = ft.scaled_dot_product_attention(*inputs())
        self.assertTrue(out.transpose(1, 2).is_contiguous())

    def test_what_goes_to_pytorch_says_why_once(self):
        q, k, v = inputs()
        cases = [
            ("attn_mask", (q, k, v), {"attn_mask": torch.ones(9, 9, dtype=torch.bool), "is_causal": True}),
            ("gradient", inputs(grad=True), {}),
            ("axes", (q[0], k[0], v[0]), {}),
            ("dtype", tuple(x.double() for x in (q, k, v)), {}),
            ("head dims 300", inputs(dim=300), {}),
            ("broadcasting", (q, k[:1], v[:1]), {}),
            ("scale", (q, k, v), {"scale": 0.0}),
            ("empty", (q[:, :, :0], k, v), {}),
        ]
        for words, args, options in cases:
            _plan._said.clear()
            ft.reset_counters()
            with Calls() as calls, warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                ours = [ft.scaled_dot_product_attention(*args, **options) for _ in range(2)]
            notes = [str(w.message) for w in caught if issubclass(w.category, flashcore.Note)]
            self.assertEqual(calls.count, 0, words)
            self.assertEqual(len(notes), 1, (words, notes))
            self.assertIn(words, notes[0])
            torch.testing.assert_close(ours[0], PYTORCH(*args, **options), equal_nan=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.assertEqual(ft.scaled_dot_product_attention(q, k, v, dropout_p=1.0).abs().max(), 0)

    def test_shapes_that_fit_once_do_not_excuse_missing_gqa(self):
        q, k, v = inputs(heads=4, heads_kv=2)
        ft.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with self.assertRaises(RuntimeError):
                ft.scaled_dot_product_attention(q, k, v)

    def test_gradients(self):
        for operator in (False, True):
            ours, theirs = inputs(heads=4, heads_kv=2, grad=True), inputs(heads=4, heads_kv=2, grad=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                out = torch.ops.flashcore.attention(*ours, True, None) if operator else ft.scaled_dot_product_attention(*ours, is_causal=True, enable_gqa=True)
            out.square().sum().backward()
            PYTORCH(*theirs, is_causal=True, enable_gqa=True).square().sum().backward()
            for a, b in zip(ours, theirs):
                torch.testing.assert_close(a.grad, b.grad, atol=1e-4, rtol=1e-4)

    def test_enable(self):
        q, k, v = inputs()
        with ft.enable(), Calls() as calls:
            F.scaled_dot_product_attention(q, k, v)
            layer = torch.nn.MultiheadAttention(32, 2, batch_first=True).eval()
            x = torch.randn(2, 5, 32)
            with torch.no_grad():
                torch.backends.mha.set_fastpath_enabled(False)
                inside = layer(x, x, x, need_weights=False)[0]
        self.assertEqual(calls.count, 2)
        self.assertIs(F.scaled_dot_product_attention, PYTORCH)
        with torch.no_grad():
            torch.testing.assert_close(inside, layer(x, x, x, need_weights=False)[0])
        torch.backends.mha.set_fastpath_enabled(True)
        with self.assertRaises(ZeroDivisionError), ft.enable():
            raise ZeroDivisionError
        self.assertIs(F.scaled_dot_product_attention, PYTORCH)

    def test_flashcore_attention_takes_tensors(self):
        q, k, v = inputs()
        torch.testing.assert_close(flashcore.attention(q, k, v, causal="top_left"), PYTORCH(q, k, v, is_causal=True), atol=1e-5, rtol=1e-5)
        with self.assertRaisesRegex(flashcore.Error, "requires a gradient"):
            flashcore.attention(*inputs(grad=True))
        with self.assertRaisesRegex(flashcore.Error, "to_dense"):
            flashcore.attention(q.to_sparse(), k, v)


class Attend(torch.nn.Module):
    def forward(self, q, k, v):
        return ft.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True) * 2


class CompilerTest(unittest.TestCase):
    def test_the_operator_keeps_pytorchs_rules(self):
        torch.library.opcheck(torch.ops.flashcore.attention.default, (*inputs(heads=4, heads_kv=2, grad=True), True, None))
        torch.library.opcheck(torch.ops.flashcore.attention.default, (*inputs(columns=8), False, 0.3))

    def test_compile_breaks_no_graph(self):
        model, (q, k, v) = Attend(), inputs(heads_kv=2)
        explained = torch._dynamo.explain(model)(q, k, v)
        self.assertEqual(explained.graph_break_count, 0, explained.break_reasons)
        compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
        for rows in (9, 17, 33):
            args = inputs(heads_kv=2, rows=rows)
            torch.testing.assert_close(compiled(*args), model(*args))

    def test_compile_breaks_no_graph_where_pytorch_computes(self):
        def masked(q, k, v, mask):
            return ft.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=True)

        args = (*inputs(), torch.ones(9, 9, dtype=torch.bool))
        _plan._said.clear()
        ft.reset_counters()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            out = torch.compile(masked, fullgraph=True, backend="eager")(*args)
        torch.testing.assert_close(out, PYTORCH(*args, is_causal=True))
        self.assertTrue(any("attn_mask" in str(w.message) for w in caught))

    def test_export(self):
        rows = torch.export.Dim("rows", min=2, max=512)
        program = torch.export.export(Attend(), inputs(heads_kv=2), dynamic_shapes=[{2: rows}] * 3)
        self.assertTrue(any("flashcore.attention" in str(node.target) for node in program.graph.nodes))
        args = inputs(heads_kv=2, rows=40)
        torch.testing.assert_close(program.module()(*args), Attend()(*args))


class PeersTest(unittest.TestCase):
    @unittest.skipUnless(os.environ.get("FLASHCORE_BINARY"), "FLASHCORE_BINARY is not set")
    def test_on_the_cpu(self):
        with tempfile.TemporaryDirectory() as folder:
            path, store = os.path.join(folder, "peers.json"), os.path.join(folder, "trials.db")
            # A process of its own: it becomes the program. The engine refuses the row of a busy machine, as it should; one
            # thread needs one quiet core only, and three times in a row the machine is hardly busy at the wrong moment.
            words = [sys.executable, "-m", "flashcore.peers", "--device", "cpu", "--suite", "smoke", "--problem", "tiny_gqa", "--threads", "1",
                     "--peers", "flash,math,efficient,xformers", "--rounds", "12", "--json", path, "--store", store]  # fmt: skip
            for _ in range(3):
                done = subprocess.run(words, env={**os.environ, "PYTHONPATH": str(ROOT / "python")}, capture_output=True, text=True, check=False)
                if done.returncode == 0:
                    break
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            (entry,) = json.loads(Path(path).read_text())["results"]
            self.assertTrue(os.path.exists(store))
        self.assertEqual(entry["schema"], "flashcore.bench/1")
        self.assertLess(entry["correct"]["timed_rel_error"], 0.01)
        self.assertTrue({"flash", "math"} <= {peer["name"] for peer in entry["peers"]})
        for peer in entry["peers"]:
            self.assertTrue(peer["correct"], peer)
            self.assertLessEqual(peer["ci95"][0], peer["speedup"])
            self.assertLessEqual(peer["speedup"], peer["ci95"][1])
        self.assertIn("xformers", entry["refused"])


class ReadmeTest(unittest.TestCase):
    def test_the_block_runs(self):
        (block,) = re.findall(r"<!-- run: torch -->\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        with Calls() as calls:
            exec(block, {})  # noqa: S102
        self.assertEqual(calls.count, 1)


class TransformersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import transformers

        import flashcore.transformers  # noqa: F401

        config = transformers.LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                          vocab_size=100, max_position_embeddings=128, pad_token_id=0)  # fmt: skip
        torch.manual_seed(0)
        cls.model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="flashcore").eval()
        cls.ids = torch.randint(1, 100, (2, 21))

    def both(self, call):
        results = []
        for name in ("flashcore", "sdpa"):
            self.model.set_attn_implementation(name)
            with torch.no_grad(), Calls() as calls:
                results.append(call())
            if name == "flashcore":
                self.calls = calls.count
        return results

    def test_prefill(self):
        ours, theirs = self.both(lambda: self.model(self.ids).logits)
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
        self.assertEqual(self.calls, 2)

    def test_generation(self):
        ours, theirs = self.both(lambda: self.model.generate(self.ids, attention_mask=torch.ones_like(self.ids), max_new_tokens=6, do_sample=False))
        self.assertTrue(torch.equal(ours, theirs))
        self.assertGreaterEqual(self.calls, 12)

    def test_a_mask_with_a_hole_runs_here_with_the_model_s_own_key_heads(self):
        """What counts is not in one piece, so it is no padding: a mask. Dropout goes the way of "sdpa", which repeats the heads."""
        mask = torch.ones_like(self.ids)
        mask[0, 2:4] = 0
        self.model.set_attn_implementation("flashcore")
        with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ft.reset_counters()
            self.model.generate(self.ids, attention_mask=mask, max_new_tokens=3, do_sample=False)
        self.assertEqual((ft.counters()["computed"], ft.counters()["passed_on"]), (6, {}))
        self.assertEqual([w for w in caught if issubclass(w.category, flashcore.Note)], [])
        calls = []

        def spy(query, key, value, attn_mask=None, dropout_p=0.0, **options):
            calls.append((query.shape[1], key.shape[1], dropout_p))
            return PYTORCH(query, key, value, attn_mask, dropout_p, **options)

        self.addCleanup(setattr, self.model.config, "attention_dropout", 0.0)
        self.addCleanup(self.model.eval)
        layers = [layer.self_attn for layer in self.model.model.layers]
        for layer in layers:
            layer.attention_dropout = 0.5
            self.addCleanup(setattr, layer, "attention_dropout", 0.0)
        self.model.train()
        with torch.no_grad(), warnings.catch_warnings(record=True) as caught, mock.patch.object(F, "scaled_dot_product_attention", spy):
            warnings.simplefilter("always")
            _plan._said.clear()
            ft.reset_counters()
            self.model(self.ids, attention_mask=mask)
            notes = [w for w in caught if issubclass(w.category, flashcore.Note)]
            self.assertEqual([note.filename for note in notes], [__file__])  # not a line of transformers
        self.assertEqual(calls, [(4, 4, 0.5)] * 2)
        self.assertEqual(list(ft.counters()["passed_on"].values()), [2])

    def test_a_mask_with_a_hole_gives_what_sdpa_gives(self):
        mask = torch.ones_like(self.ids)
        mask[0, 2:4] = 0
        ft.reset_counters()
        ours, theirs = self.both(lambda: self.model(self.ids, attention_mask=mask).logits)
        self.assertEqual((ft.counters()["computed"], ft.counters()["passed_on"]), (2, {}))
        with ft.enable(), torch.no_grad():  # counted once, not by both
            self.model.set_attn_implementation("flashcore")
            ft.reset_counters()
            self.model(self.ids, attention_mask=mask)
            self.assertEqual((ft.counters()["computed"], ft.counters()["passed_on"]), (2, {}))
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)

    def test_a_mask_is_not_lost_beside_a_softcap_and_sinks(self):
        from flashcore.transformers import attention_forward

        q, k, v = inputs(heads_kv=2)
        mask = torch.rand(2, 1, 9, 9) < 0.6
        module = torch.nn.Module()
        for softcap, sink in ((2.0, None), (None, torch.randn(4)), (2.0, torch.randn(4))):
            ft.reset_counters()
            out, _ = attention_forward(module, q, k, v, mask, softcap=softcap, s_aux=sink)
            self.assertEqual(ft.counters()["computed"], 1)
            expected = flashcore._torch_operator.by_formula_of_scores(q, k, v, False, None, mask, softcap, None, sink)
            torch.testing.assert_close(out.transpose(1, 2), expected, atol=1e-5, rtol=1e-5)

    def test_sliding_windows(self):
        """Prefill longer than the window, then decoding past it, and a mask with a hole."""
        import transformers

        llama, TransformersTest.model = self.model, transformers.AutoModelForCausalLM.from_config(
            transformers.MistralConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                       vocab_size=100, max_position_embeddings=128, sliding_window=8, pad_token_id=0),
            attn_implementation="flashcore").eval()  # fmt: skip
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", flashcore.Note)
                ours, theirs = self.both(lambda: self.model(self.ids).logits)
                torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
                self.assertEqual(self.calls, 2)
                for how in ({}, {"cache_implementation": "dynamic"}):
                    ours, theirs = self.both(lambda how=how: self.model.generate(self.ids, max_new_tokens=6, do_sample=False, **how))
                    self.assertTrue(torch.equal(ours, theirs))
                    self.assertEqual(self.calls, 12)
                # This cache keeps every key: decoding needs the window.
                ours, theirs = self.both(lambda: (full := transformers.DynamicCache(), self.model(self.ids, past_key_values=full),
                                                  self.model(self.ids[:, :1], past_key_values=full).logits)[2])  # fmt: skip
                torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
                self.assertEqual(self.calls, 4)
            mask = torch.ones_like(self.ids)
            mask[0, 2:4] = 0
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ours, theirs = self.both(lambda: self.model(self.ids, attention_mask=mask).logits)
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
            self.assertEqual(self.calls, 2)
            # What requires a gradient goes to PyTorch, with the mask that the window stands for.
            results = []
            for name in ("flashcore", "sdpa"):
                self.model.set_attn_implementation(name)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    results.append(self.model(self.ids).logits)
            torch.testing.assert_close(*results)
        finally:
            TransformersTest.model = llama

    def test_a_mask_of_a_window_is_the_mask_it_stands_for(self):
        from transformers import masking_utils

        from flashcore.transformers import LazyMask, _is_causal_window, attention_mask_or_none

        options = dict(batch_size=2, q_length=13, kv_length=13, mask_function=masking_utils.sliding_window_causal_mask_function(4), local_size=4)
        ours, theirs = attention_mask_or_none(**options), masking_utils.sdpa_mask(**options)
        self.assertIsInstance(ours, LazyMask)
        self.assertEqual(ours.shape[2:], theirs.shape[2:])
        self.assertTrue(torch.equal(ours[:, :, 3:, :7], theirs[:, :, 3:, :7]))
        self.assertTrue(torch.equal(ours & torch.ones(2, 1, 13, 13, dtype=torch.bool), theirs))
        self.assertTrue(torch.equal(ours.to(torch.float32), theirs.to(torch.float32)))
        kept = torch.ones(2, 13, dtype=torch.bool)
        self.assertIsInstance(attention_mask_or_none(**options, attention_mask=kept), LazyMask)
        kept[1, 3] = False
        self.assertTrue(torch.equal(attention_mask_or_none(**options, attention_mask=kept), masking_utils.sdpa_mask(**options, attention_mask=kept)))
        self.assertEqual(ours.shape, theirs.shape)
        # Once it was looked at, the mask that was made counts, with all that is written to it.
        options["batch_size"] = 1  # those of a batch share their memory, and cannot be written to
        written, theirs = attention_mask_or_none(**options), masking_utils.sdpa_mask(**options)
        written[..., 1] = False
        theirs[..., 1] = False
        self.assertTrue(torch.equal(written.clone(), theirs))
        self.assertIsNotNone(written.made)
        import copy

        for other in (copy.deepcopy(written), torch.from_dlpack(written), torch.tensor(written.tolist()), torch.from_numpy(written.numpy())):
            self.assertTrue(torch.equal(other, theirs))
        for size in (1, 2, 3, 5):
            # One row, as many keys as a chunk: they need not be of one chunk.
            row = dict(batch_size=1, q_length=1, kv_length=size, q_offset=size + 1, kv_offset=2, local_size=size)
            for function in (masking_utils.chunked_causal_mask_function(size, torch.zeros(1, dtype=int)), masking_utils.sliding_window_causal_mask_function(size)):
                mask = attention_mask_or_none(**row, mask_function=function)
                expected = masking_utils.sdpa_mask(**row, mask_function=function, allow_is_causal_skip=False)
                self.assertTrue(torch.equal(torch.ones_like(expected) if mask is None else mask.clone(), expected), (size, mask))
            chunks = masking_utils.chunked_causal_mask_function(size, torch.zeros(2, dtype=int))
            self.assertEqual(_is_causal_window(chunks, size), size == 1)  # a chunk of one key is a window of one
            self.assertTrue(_is_causal_window(masking_utils.sliding_window_causal_mask_function(size), size))
            self.assertFalse(_is_causal_window(masking_utils.sliding_window_bidirectional_mask_function(size), size))

    def test_compile_breaks_no_graph(self):
        from flashcore.model import graph_breaks

        with torch.no_grad():
            breaks = graph_breaks(self.model, self.ids)
        self.assertEqual((breaks["count"], breaks["flashcore_operators"]), (0, 2), breaks)

    def test_the_model_script(self):
        from flashcore import model

        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.json")
            code = model.main(["--device", "cpu", "--layers", "1", "--hidden", "128", "--heads", "4", "--kv-heads", "2", "--seqlen", "64",
                               "--rounds", "2", "--padded-batch", "4", "--new-tokens", "3", "--no-compile", "--json", path])  # fmt: skip
            self.assertEqual(code, 0)
            result = json.loads(Path(path).read_text())
        self.assertEqual(result["schema"], "flashcore.model/1")
        generated = result["generate"]
        self.assertEqual((generated["prompt_tokens"], generated["notes"], generated["logits"]["within"]), (16 + 32 + 48 + 64, [], True))
        self.assertGreater(generated["same_tokens"], 0.9)

    def test_the_model_script_tells_what_ran_on_pytorch(self):
        from flashcore import Note, _plan, model

        with model._notes() as notes:
            _plan.say_once("runs on PyTorch")
            warnings.warn("of somebody else", UserWarning)
        self.assertEqual(notes, ["runs on PyTorch"])
        with model._notes() as notes:  # said before, and told again
            _plan.say_once("runs on PyTorch")
        self.assertEqual(notes, ["runs on PyTorch"])
        with warnings.catch_warnings():
            warnings.simplefilter("error", Note)
            _plan.say_once("runs on PyTorch")  # outside once is enough


if __name__ == "__main__":
    unittest.main()
