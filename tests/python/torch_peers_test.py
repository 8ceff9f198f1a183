"""Python's side of a peer run: how its attentions are called and what they answer. Times are the library's, figures the laboratory's."""

import copy
import io
import json
import math
import os
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
import torch  # noqa: E402
import torch._dynamo  # noqa: E402: not for the first time while torch.compile is another function
import torch._inductor.test_operators  # noqa: E402: the same
from flashcore import _library  # noqa: E402
from flashcore import _peers as calls  # noqa: E402
from flashcore import _peer_server as server  # noqa: E402
from flashcore import peers  # noqa: E402

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "python")}


def question(folder, problem="b1_h4_hk2_s32_d16_fp32", seed=1, layout="bhsd", **fields):
    """What the program asks with, its inputs written."""
    described = {"batch": 1, "heads_q": 4, "heads_kv": 2, "seqlen_q": 32, "seqlen_kv": 32, "head_dim": 16, "head_dim_v": 16, "dtype": "fp32", "causal": "none",
                 "window_left": None, "window_right": None, "window_alignment": "bottom_right", "scale": None, "softcap": None, "alibi": "none", "sink": "none", "scaling": "none", "score": None, "mask": None} | fields  # fmt: skip
    tensors = described.pop("tensors", {})
    described.setdefault("o_dtype", described["dtype"])
    dtype = getattr(torch, calls.DTYPES[described["dtype"]])
    torch.manual_seed(seed)
    inputs = {}
    for name, heads, rows, dim in (("q", "heads_q", "seqlen_q", "head_dim"), ("k", "heads_kv", "seqlen_kv", "head_dim"), ("v", "heads_kv", "seqlen_kv", "head_dim_v")):
        x = torch.randn(described["batch"], described[heads], described[rows], described[dim]).to(dtype)
        path = Path(folder, f"{name}.bin")
        path.write_bytes(x.contiguous().view(torch.uint8).numpy().tobytes())
        inputs[name] = {"file": str(path), "dtype": described["dtype"], "shape": list(x.shape)}
    for name in () if described["scaling"] == "none" else ("descale_q", "descale_k", "descale_v"):
        x = torch.rand(1 if described["scaling"] == "tensor" else (described["batch"], described["heads_kv"])) + 0.5
        Path(folder, f"{name}.bin").write_bytes(x.numpy().tobytes())
        inputs[name] = {"file": str(Path(folder, f"{name}.bin")), "dtype": "fp32", "shape": list(x.shape)}
    slopes = [described["heads_q"]] if described["alibi"] == "head" else [described["batch"], described["heads_q"]]
    for name, shape in (("alibi", slopes), ("sink", [described["heads_q"]])):
        if described[name] != "none":
            x = torch.rand(shape)
            Path(folder, f"{name}.bin").write_bytes(x.numpy().tobytes())
            inputs[name] = {"file": str(Path(folder, f"{name}.bin")), "dtype": "fp32", "shape": shape}
    for name, x in tensors.items():
        Path(folder, f"{name}.bin").write_bytes(x.contiguous().view(torch.uint8).numpy().tobytes())
        dtype = {torch.float32: "fp32", torch.int32: "int32", torch.bool: "bool"}[x.dtype]
        inputs.setdefault("tensors", {})[name] = {"file": str(Path(folder, f"{name}.bin")), "dtype": dtype, "shape": list(x.shape)}
    return {"op": "prepare", "problem": problem, "seed": seed, "layout": layout, "fields": described, "inputs": inputs, "candidate": "cpu_fwd", "sample_us": 0.0}


def reference(p):
    group = p.heads // p.heads_kv
    q, k, v = (x.double() for x in (p.q, p.k, p.v))
    if p.descales:
        factor_q, factor_k, factor_v = (x.double().expand(p.batch, p.heads_kv)[..., None, None] for x in p.descales)
        q, k, v = q * factor_q.repeat_interleave(group, dim=1), k * factor_k, v * factor_v
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * (p.scale or 1 / math.sqrt(p.dim))
    scores = p.softcap * torch.tanh(scores / p.softcap) if p.softcap else scores
    if p.slopes is not None:
        away = (torch.arange(p.rows)[:, None] + p.keys - p.rows - torch.arange(p.keys)[None]).abs()
        scores = scores - p.slopes.double()[..., None, None] * away
    own = torch.arange(p.rows)[:, None] + (p.keys - p.rows if p.alignment == "bottom_right" else 0)
    j = torch.arange(p.keys)[None]
    left, right = p.window
    hidden = torch.zeros(p.rows, p.keys, dtype=torch.bool)
    if left is not None:
        hidden |= own - j > left
    if right is not None:
        hidden |= j - own > right
    scores = scores.masked_fill(hidden, -math.inf)
    if p.sink is not None:
        scores = torch.cat([scores, p.sink.double()[:, None, None].expand(*scores.shape[:3], 1)], -1)
    return torch.softmax(scores, dim=-1)[..., : p.keys] @ v


CAUSAL = {"causal": "bottom_right", "window_right": 0}
# Of 7, 1 and 12 rows and as many keys; pages of 4 in a pool with two that nobody has.
RAGGED = {"dtype": "bf16", "batch": 3, "seqlen_q": 12, "seqlen_kv": 12, "lengths": "random", "page_size": 0, "rows": [7, 1, 12]}
KEYS = [7, 1, 12]


def ragged_question(folder, layout, fields):
    fields = dict(fields)
    rows, page = fields.pop("rows"), fields["page_size"]
    asked = question(folder, layout=layout, **fields)
    ends = lambda lengths: torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).int()  # noqa: E731

    def write(name, x, dtype):
        path = Path(folder, f"{name}.bin")
        path.write_bytes(x.contiguous().view(torch.uint8).numpy().tobytes())
        asked["inputs"][name] = {"file": str(path), "dtype": dtype, "shape": list(x.shape)}

    torch.manual_seed(5)
    write("q", torch.randn(1, 4, sum(rows), 16).bfloat16(), "bf16")
    write("cu_seqlens_q", ends(rows), "int32")
    if not page:
        write("cu_seqlens_kv", ends(KEYS), "int32")
        for name in "kv":
            write(name, torch.randn(1, 2, sum(KEYS), 16).bfloat16(), "bf16")
        return asked
    table = torch.tensor([[3, 0, 1], [6, 5, 5], [2, 7, 4]], dtype=torch.int32)
    write("block_table", table, "int32")
    write("seqused_kv", torch.tensor(KEYS, dtype=torch.int32), "int32")
    for name in "kv":
        pool = torch.full((9, 2, page, 16), math.nan).bfloat16()
        for s, length in enumerate(KEYS):
            for key in range(length):
                pool[table[s, key // page], :, key % page] = torch.randn(2, 16).bfloat16()
        write(name, pool, "bf16")
    return asked


def quantised(asked):
    """The same with K and V as e4m3 and a factor each; and what they stand for."""
    plain, folder = [], Path(asked["inputs"]["k"]["file"]).parent
    for name, factor in (("k", 0.25), ("v", 0.5)):
        given = asked["inputs"][name]
        x = torch.from_file(given["file"], size=math.prod(given["shape"]), dtype=torch.bfloat16).view(given["shape"])
        codes = (x.float() / factor).to(torch.float8_e4m3fn)
        plain.append((codes.float() * factor).bfloat16())
        path, of_factor = folder / f"{name}_codes.bin", folder / f"descale_{name}.bin"
        path.write_bytes(codes.view(torch.uint8).numpy().tobytes())
        of_factor.write_bytes(torch.tensor([factor]).numpy().tobytes())
        asked["inputs"][name] = {"file": str(path), "dtype": "e4m3", "shape": given["shape"]}
        asked["inputs"][f"descale_{name}"] = {"file": str(of_factor), "dtype": "fp32", "shape": [1]}
    asked["fields"] |= {"kv_dtype": "e4m3", "scaling": "tensor"}
    return asked, plain


def ragged_reference(p):
    """[1, heads, total_q, dim]: each sequence by itself."""
    ends, wanted = p.cu_seqlens_q.tolist(), []
    for s, length in enumerate(KEYS):
        if p.paged:
            k, v = (torch.stack([x[p.block_table[s, key // p.page_size], :, key % p.page_size] for key in range(length)], 1)[None] for x in (p.k, p.v))
        else:
            begin = sum(KEYS[:s])
            k, v = (x[:, :, begin : begin + length] for x in (p.k, p.v))
        one = types.SimpleNamespace(**{name: getattr(p, name) for name in ("heads", "heads_kv", "dim", "scale", "softcap", "slopes", "sink", "alignment", "window", "descales")})
        one.q, one.k, one.v, one.batch, one.rows, one.keys = p.q[:, :, ends[s] : ends[s + 1]], k, v, 1, ends[s + 1] - ends[s], length
        wanted.append(reference(one))
    return torch.cat(wanted, 2)


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)


class CallsTest(Folder):
    def problem(self, **fields):
        return calls.Problem(question(self.folder, **fields), "cpu")

    def assert_right(self, call, p):
        for _ in range(3):
            call.run()
        for o, _ in call.outputs():
            torch.testing.assert_close(o.double(), reference(p), atol=1e-5, rtol=1e-4)

    def test_ours_and_pytorchs_compute_the_problem(self):
        for fields in ({}, CAUSAL, {"seqlen_q": 1, **CAUSAL}, {"scale": 0.3}, {"head_dim_v": 24}):
            with self.subTest(fields):
                p = self.problem(**fields)
                self.assert_right(calls.flashcore_call(p, "cpu_fwd"), p)
                for name in ("math", "flash"):
                    if name == "math" or "head_dim_v" not in fields:
                        self.assert_right(calls.PEERS[name].make(p), p)

    def test_scores_are_of_the_same_slopes_and_sinks(self):
        for fields in ({"softcap": 2.0}, {"alibi": "head", **CAUSAL}, {"alibi": "batch", "batch": 2}, {"sink": "head"},
                       {"softcap": 2.0, "alibi": "head", "sink": "head", **CAUSAL}):  # fmt: skip
            with self.subTest(fields), mock.patch.object(torch, "compile", lambda f, **k: f):
                p = self.problem(**fields)
                self.assert_right(calls.flashcore_call(p, "cpu_fwd"), p)
                self.assert_right(calls.peer_call("flex", p), p)
                with self.assertRaisesRegex(calls.Refused, "no softcap"):
                    calls.peer_call("math", p)

    def test_functions_are_those_of_the_problem_s_text(self):
        torch.manual_seed(2)
        document = torch.arange(32, dtype=torch.int32).div(5, rounding_mode="floor").expand(1, 32).contiguous()
        shown = torch.rand(32, 32) < 0.6
        for fields in ({"score": "1.1 * s + 0.01 * (j - i) - 0.5 * max(s, 0.1 * s) + 0.001 * j"}, {"score": "s + slope[h] * (j - i)", "tensors": {"slope": torch.rand(4)}},
                       {"mask": "document[b, i] == document[b, j]", "tensors": {"document": document}, **CAUSAL}, {"mask": "shown[i, j]", "tensors": {"shown": shown}},
                       {"mask": "i // 5 == j // 5 || !(j < 20) && h != 2", "score": "where(hk == 1, min(s, 0.5), tanh(s))"}):  # fmt: skip
            with self.subTest(fields), mock.patch.object(torch, "compile", lambda f, **k: f):
                p = self.problem(**fields)
                made = [calls.flashcore_call(p, "cpu_fwd"), calls.peer_call("flex", p)]
                if "shown" in p.tensors:
                    made.append(calls.peer_call("math", p))
                for call in made:
                    call.run()
                    call.run()
                    for o, _ in call.outputs():
                        torch.testing.assert_close(o, made[0].outputs()[0][0], atol=1e-5, rtol=1e-4)
                if "shown" not in p.tensors:
                    with self.assertRaisesRegex(calls.Refused, "functions of scores|masks but bands|one tensor"):
                        calls.peer_call("math", p)

    def test_8_bits_come_with_their_factors_and_leave_in_the_output_s_type(self):
        for fields in ({"scaling": "tensor"}, {"scaling": "head", "batch": 2}, {"scaling": "none", **CAUSAL}):
            with self.subTest(fields):
                p = self.problem(dtype="e4m3", o_dtype="bf16", **fields)
                call = calls.flashcore_call(p, "cpu_fwd")
                call.run()
                self.assertEqual(call.outputs()[0][0].dtype, torch.bfloat16)
                torch.testing.assert_close(call.outputs()[0][0].double(), reference(p), atol=0.02, rtol=0.02)
                with self.assertRaisesRegex(calls.Refused, "8-bit"):
                    calls.peer_call("math", p)

    def test_an_output_of_other_type_and_factor_is_handed_over_as_the_problem_s(self):
        p = self.problem(dtype="e4m3", o_dtype="bf16", scaling="tensor")
        stored = (reference(p) * 16).to(torch.float8_e4m3fn)
        outs = [torch.empty_like(stored) for _ in range(2)]
        of_true_inputs = p.q.float().sum()
        call = calls.TwoBufferCall(lambda i: outs[i].copy_(stored if p.q.float().sum() == of_true_inputs else -stored.float()), [(x, None) for x in outs])
        call.o_factor = 1 / 16
        prepared = server.Prepared(p, call, _library.context("cpu"), 0.0)
        self.addCleanup(prepared.release_timer)
        for written in prepared.output(self.folder):
            o = torch.frombuffer(bytearray(Path(written["o"]).read_bytes()), dtype=torch.bfloat16).view(reference(p).shape)
            self.assertTrue(torch.equal(o, (stored.float() / 16).bfloat16()))
        self.assertTrue(torch.equal(p.q.float().sum(), of_true_inputs))

    def test_ours_lies_as_the_problem_says(self):
        for layout in ("bhsd", "bshd", "strided"):
            p = self.problem(layout=layout, **CAUSAL)
            self.assertEqual(p.placed(p.q).stride(1) < p.placed(p.q).stride(2), layout != "bhsd")
            self.assert_right(calls.flashcore_call(p, "cpu_fwd"), p)

    def test_two_outputs_are_written_in_turn(self):
        p = self.problem()
        call = calls.flashcore_call(p, "cpu_fwd")
        call.run()
        self.assertEqual(len(call.outputs()), 1)
        call.run()
        (a, lse_a), (b, lse_b) = call.outputs()
        self.assertNotEqual(a.data_ptr(), b.data_ptr())
        self.assertNotEqual(lse_a.data_ptr(), lse_b.data_ptr())
        self.assertTrue(torch.equal(a, b))

    def test_a_bound_that_cuts_nothing_off_is_none(self):
        self.assertFalse(self.problem(seqlen_q=1, **CAUSAL).masked)
        self.assertFalse(self.problem(window_left=40).masked)
        p = self.problem(window_left=7, **CAUSAL)
        self.assertEqual((p.left, p.right), (7, 0))

    def test_what_a_peer_cannot_compute_is_refused_not_computed_wrong(self):
        for name, fields, words in (
            ("flash", {"window_left": 7, **CAUSAL}, "no window"),
            ("math", {"seqlen_q": 16, **CAUSAL}, "top-left"),
        ):
            with self.subTest(name), self.assertRaisesRegex(calls.Refused, words):
                calls.PEERS[name].make(self.problem(**fields))
        top_left = self.problem(seqlen_q=16, causal="top_left", window_right=0, window_alignment="top_left")
        self.assert_right(calls.PEERS["math"].make(top_left), top_left)
        with self.assertRaisesRegex(calls.Refused, "bottom-right"):
            top_left.need_bottom_right("its")

    def test_other_work_than_ours_is_noted(self):
        p = self.problem()
        self.assertEqual(calls.PEERS["math"].make(p).notes, ["writes no LSE", "repeats K and V"])
        self.assertEqual(calls.PEERS["flash"].make(p).notes, [])
        with mock.patch.object(torch, "compile", lambda f, **k: f):
            self.assertEqual(calls.PEERS["flex"].make(p).notes, ["writes no LSE"])
            self.assertEqual(calls.PEERS["flex"].make(self.problem(sink="head")).notes, ["joins the sink after, by its log-sum-exp"])
        self.assertEqual([calls.PEERS[name].notes for name in ("flex", "flex_autotune")], [[], []], "with a sink it returns its LSE")

    def test_flex_gets_a_block_mask_for_masks_and_for_decoding(self):
        made = []
        flex = types.ModuleType("flex_attention")
        flex.flex_attention = lambda *a, **k: None
        flex.create_block_mask = lambda visible, *a, **k: made.append(visible) or "mask"
        with mock.patch.dict(sys.modules, {"torch.nn.attention.flex_attention": flex}), mock.patch.object(torch, "compile", lambda f, **k: f):
            for fields, expected in (({"seqlen_q": 256, "seqlen_kv": 256}, 0), ({"seqlen_q": 1}, 1), (CAUSAL, 1), ({"window_left": 3, **CAUSAL}, 1)):
                made.clear()
                calls.PEERS["flex"].make(self.problem(**fields))
                self.assertEqual(len(made), expected, fields)
        i, j = torch.arange(32)[:, None], torch.arange(32)[None]
        self.assertTrue(torch.equal(made[0](0, 0, i, j), (j <= i) & (i - j <= 3)))

    def test_ragged_batches_and_pages_are_called_as_their_authors_say(self):
        """FlashInfer by flashcore.flashinfer, which has its signatures and runs on a CPU."""
        import flashcore.flashinfer

        for fields in (RAGGED, RAGGED | CAUSAL, RAGGED | CAUSAL | {"window_left": 5}, RAGGED | {"page_size": 4}, RAGGED | CAUSAL | {"page_size": 4},
                       {**RAGGED, **CAUSAL, "page_size": 4, "seqlen_q": 1, "rows": [1, 1, 1]}):  # fmt: skip
            for layout in ("bhsd", "bshd"):
                with self.subTest(fields=fields, layout=layout):
                    p = calls.Problem(ragged_question(self.folder, layout, dict(fields)), "cpu")
                    ours = calls.flashcore_call(p, "cpu_fwd")
                    with mock.patch.dict(sys.modules, {"flashinfer": flashcore.flashinfer}):
                        theirs = calls.peer_call("flashinfer", p)
                    parties = [ours, theirs]
                    if not p.paged and "window_left" not in fields:
                        parties += [calls.peer_call(name, p) for name in ("math", "flash")]
                    wanted = ragged_reference(p)
                    for call in parties:
                        for _ in range(2):
                            call.run()
                        for o, lse in call.outputs():
                            torch.testing.assert_close(o.double(), wanted, atol=2e-2, rtol=2e-2)
                            self.assertTrue(lse is None or lse.shape == (p.heads, p.total_q))
        asked, plain = quantised(ragged_question(self.folder, "bhsd", RAGGED | CAUSAL | {"page_size": 4}))
        p = calls.Problem(asked, "cpu")
        with mock.patch.dict(sys.modules, {"flashinfer": flashcore.flashinfer}):
            parties = [calls.flashcore_call(p, "cpu_fwd"), calls.peer_call("flashinfer", p)]
        of_numbers = copy.copy(p)
        of_numbers.k, of_numbers.v, of_numbers.kv_dtype, of_numbers.descales = *plain, p.dtype, ()
        wanted = ragged_reference(of_numbers)
        for call in parties:
            call.run()
            torch.testing.assert_close(call.outputs()[0][0].double(), wanted, atol=2e-2, rtol=2e-2)
        with self.assertRaisesRegex(calls.Refused, "no quantised caches"):
            calls.peer_call("math", p)
        p = calls.Problem(ragged_question(self.folder, "bhsd", RAGGED | {"page_size": 4}), "cpu")
        for name, why in (("math", "pages"), ("varlen", "pages"), ("efficient", "ragged"), ("cudnn_frontend", "No module")):
            with self.assertRaisesRegex((calls.Refused, ImportError), why):
                calls.peer_call(name, p)

    def test_names_are_offered_with_versions_or_with_reasons(self):
        versions, absent = calls.available(["flash", "cudnn", "flashinfer"], on_gpu=False)
        self.assertIn("PyTorch", versions["flash"])
        self.assertEqual(sorted(absent), ["cudnn", "flashinfer"])


class ServerTest(Folder):
    def answers(self, *questions):
        made, out = server.Server("cpu", ["math", "flash"]), io.BytesIO()
        server.serve(made, [json.dumps(q) + "\n" for q in questions], out)
        return [json.loads(line) for line in out.getvalue().splitlines()]

    def test_a_party_is_prepared_sampled_judged_and_released(self):
        ask = question(self.folder, **CAUSAL)
        hello, ours, math_, sample, output, wrong, released = self.answers(
            {"op": "hello", "protocol": 1, "device": "cpu"}, {**ask, "party": "flashcore"}, {**ask, "party": "math"}, {"op": "sample", "handle": 0},
            {"op": "output", "handle": 0, "folder": str(self.folder)}, {"op": "sample", "handle": 7}, {"op": "release", "handle": 0})  # fmt: skip
        self.assertEqual([party["name"] for party in hello["parties"]], ["flashcore", "math", "flash"])
        self.assertEqual((ours["handle"], math_["handle"]), (0, 1))
        self.assertGreaterEqual(ours["launches"], 1)
        self.assertTrue(ours["code_hash"], "which machine code is timed here")
        self.assertNotIn("code_hash", math_)
        self.assertGreater(sample["time_us"], 0)
        self.assertEqual(len(output["outputs"]), 2, "both buffers")
        o = torch.frombuffer(bytearray(Path(output["outputs"][1]["o"]).read_bytes()), dtype=torch.float32).view(1, 4, 32, 16)
        torch.testing.assert_close(o.double(), reference(calls.Problem(ask, "cpu")), atol=1e-5, rtol=1e-4)
        self.assertEqual(len(Path(output["outputs"][0]["lse"]).read_bytes()), 4 * 4 * 32)
        self.assertIn("no handle 7", wrong["error"])
        self.assertEqual(released, {"released": 0})

    def test_what_cannot_be_prepared_is_refused_with_the_reason(self):
        ask = question(self.folder, window_left=3, **CAUSAL)
        (answer,) = self.answers({**ask, "party": "flash"})
        self.assertIn("no window", answer["refused"])
        (answer,) = self.answers({**question(self.folder), "candidate": "no_such_family", "party": "flashcore"})
        self.assertIn("no_such_family", answer["refused"])

    def test_an_exception_in_a_timed_call_is_what_is_told(self):
        ask = question(self.folder)
        problem = calls.Problem(ask, "cpu")
        calls_left = [3]

        def compute():
            calls_left[0] -= 1
            if calls_left[0] < 0:
                raise ValueError("broken in the middle")
            return problem.q

        with self.assertRaisesRegex(ValueError, "broken in the middle"):
            server.Prepared(problem, calls.Call(compute), server._library.context("cpu"), 0.0)

    def test_who_returns_where_a_result_lies_has_written_that_of_other_inputs(self):
        problem = calls.Problem(question(self.folder), "cpu")
        before = problem.q.clone(), problem.v.clone()
        honest = calls.PEERS["math"].make(problem)

        def judged(spares_itself):
            outs = [torch.full((1, 4, 32, 16), math.nan) for _ in range(2)]

            def compute(i):
                if spares_itself and not outs[i].isnan().any():
                    return
                honest.run()
                outs[i].copy_(honest.out)

            made = server.Prepared(problem, calls.TwoBufferCall(compute, [(out, None) for out in outs]), server._library.context("cpu"), 0.0)
            written = made.output(Path(self.folder))
            made.release_timer()
            return [torch.frombuffer(bytearray(Path(files["o"]).read_bytes()), dtype=torch.float32).view(1, 4, 32, 16) for files in written]

        for out in judged(spares_itself=False):
            torch.testing.assert_close(out.double(), reference(problem), atol=1e-5, rtol=1e-4)
        for out in judged(spares_itself=True):
            self.assertGreater((out.double() - reference(problem)).abs().max(), 0.1)
        self.assertTrue(torch.equal(problem.q, before[0]) and torch.equal(problem.v, before[1]), "the inputs are restored")

    def test_a_pytorch_that_hands_out_no_graph_is_refused_clearly(self):
        with self.assertRaisesRegex(calls.Refused, "raw_cuda_graph_exec"):
            server.replay_handle(object())
        self.assertEqual(server.replay_handle(types.SimpleNamespace(raw_cuda_graph_exec=lambda: 42)), 42)

    def test_what_libraries_print_does_not_reach_the_protocol(self):
        code = "import sys, flashcore._peer_server as s; s.available = lambda *a: (print('noise') or {}, {}); sys.exit(s.main(['--device', 'cpu', '--peers', 'math']))"
        done = subprocess.run([sys.executable, "-c", code], input='{"op": "hello", "protocol": 1}\n', capture_output=True, text=True, env=ENVIRONMENT, timeout=300, check=True)
        self.assertEqual(json.loads(done.stdout)["protocol"], 1)
        self.assertIn("noise", done.stderr)


class CpuPeersTest(Folder):
    def compare(self, name, module, **fields):
        try:
            __import__(module)
        except ImportError as error:
            self.skipTest(f"{module} does not import: {error}")
        for described in ({}, CAUSAL | {"dtype": "fp16"}, {"heads_kv": 4, "seqlen_q": 1, "scale": 0.3}):
            p = calls.Problem(question(self.folder, **(described | fields)), "cpu")
            call = calls.PEERS[name].make(p)
            for _ in range(2):
                call.run()
            for out, _ in call.outputs():
                self.assertLess((out.double() - reference(p)).abs().max(), 2e-2 if p.dtype != torch.float32 else 1e-5, described)

    def test_openvino(self):
        self.compare("openvino", "openvino")

    def test_onnxruntime(self):
        self.compare("onnxruntime", "onnxruntime")


class CommandTest(Folder):
    def test_flags_are_handed_to_the_program(self):
        words = peers.command(["--suite", "quick", "--problem", "a", "--problem", "b", "--device", "cpu", "--peers", "math", "--rounds", "14", "--append", "--json", "x.json"])
        self.assertEqual(words[1:6], ["peers", "--suite", "quick", "--device", "cpu"])
        program = json.loads(words[words.index("--peer") + 1])
        self.assertEqual(program[1:], ["-m", "flashcore._peer_server", "--device", "cpu", "--peers", "math"])
        self.assertEqual([words[i + 1] for i, word in enumerate(words) if word == "--problem"], ["a", "b"])
        self.assertEqual(words[-5:], ["--rounds", "14", "--append", "--json", "x.json"])
        with self.assertRaises(SystemExit), mock.patch("sys.stderr", io.StringIO()):
            peers.command(["--peers", "nobody"])

    def test_each_device_is_offered_its_own_peers(self):
        def names(words):
            program = json.loads(words[words.index("--peer") + 1])
            return program[program.index("--peers") + 1].split(",")

        self.assertNotIn("openvino", names(peers.command([])))
        self.assertLessEqual({"flash", "openvino", "onnxruntime"}, set(names(peers.command(["--device", "cpu"]))))
        self.assertEqual(calls.available(["openvino"], True)[1], {"openvino": "it runs on a CPU only here"})

    def test_threads_are_those_of_every_party(self):
        with mock.patch.dict(os.environ):
            peers.command(["--device", "cpu", "--threads", "1"])
            self.assertEqual((os.environ["OMP_NUM_THREADS"], os.environ["FLASHCORE_THREADS"]), ("1", "1"))
        for wrong in (["--device", "cpu", "--threads", "0"], ["--threads", "1"]):
            with self.assertRaises(SystemExit), mock.patch("sys.stderr", io.StringIO()):
                peers.command(wrong)

    def test_a_whole_run_on_the_cpu(self):
        path = self.folder / "peers.json"
        command = [sys.executable, "-m", "flashcore.peers", "--device", "cpu", "--problem", "b1_h4_hk2_s64_d32_fp32_causal", "--peers", "math,flash,cudnn", "--rounds", "12", "--json", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=500, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        (row,) = json.loads(path.read_text())["results"]
        self.assertEqual([peer["name"] for peer in row["peers"]], ["math", "flash"])
        self.assertEqual(row["refused"], {"cudnn": "it runs on a GPU only"})
        self.assertEqual(row["measured"][0]["timed_in"], "the peers' process")
        self.assertEqual(len(row["measured"][0]["laboratory_us"]), 12)
        for peer in row["peers"]:
            self.assertTrue(peer["correct"] and peer["ci95"][0] <= peer["speedup"] <= peer["ci95"][1])


if __name__ == "__main__":
    unittest.main()
