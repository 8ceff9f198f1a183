"""flashcore.torch's counters and notes, and what is passed on to PyTorch."""

import inspect
import os
import subprocess
import sys
import tempfile
import threading
import unittest
import warnings
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent))
from torch_support import PYTORCH, ROOT, Quiet, counted, inputs  # noqa: E402

import flashcore  # noqa: E402
import flashcore.torch as ft  # noqa: E402
from flashcore import _plan, _torch_counters  # noqa: E402


class CounterTest(Quiet):
    def test_counters(self):
        q, k, v = inputs()
        with ft.enable():
            for _ in range(3):
                F.scaled_dot_product_attention(q, k, v)
            for _ in range(2):
                F.scaled_dot_product_attention(q, k, v, torch.ones(9, 9), is_causal=True)
            ft.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
            torch.ops.flashcore.attention(q, k, v)
        for _ in range(2):  # reading changes nothing
            found = ft.counters()
            self.assertEqual(found["computed"], 4)
            self.assertEqual(sorted(found["passed_on"].values()), [1, 2])
            self.assertTrue(any("attn_mask" in why for why in found["passed_on"]))
        ft.reset_counters()
        self.assertEqual(ft.counters(), {"computed": 0, "passed_on": {}})

    def test_threads(self):
        q, k, v = inputs(1, 1, 2, 8)
        def work():
            for _ in range(200):
                ft.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
                ft.counters()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sum(ft.counters()["passed_on"].values()), 800)

    def test_reasons_are_bounded(self):
        with mock.patch.object(_torch_counters, "_MAX_REASONS", 3):
            for scale in range(8):
                ft.scaled_dot_product_attention(*inputs(1, 1, 2, 8), scale=-1.5 - scale)
        found = ft.counters()["passed_on"]
        self.assertEqual(len(found), 4)
        self.assertEqual(sum(found.values()), 8)


class NoteTest(Quiet):
    def note(self, call):
        _plan._said.clear()
        ft.reset_counters()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        (note,) = [w for w in caught if issubclass(w.category, flashcore.Note)]
        return note

    def test_notes_point_at_the_callers_line(self):
        q, k, v = inputs()
        layer = torch.nn.MultiheadAttention(32, 2, batch_first=True)
        x = torch.randn(2, 5, 32)
        here = inspect.currentframe().f_lineno
        calls = [
            lambda: ft.scaled_dot_product_attention(q, k, v, torch.ones(9, 9), is_causal=True),
            lambda: ft.scaled_dot_product_attention(q, k, v, dropout_p=0.5),
            lambda: ft.scaled_dot_product_attention(q[0], k[0], v[0]),
            lambda: ft.scaled_dot_product_attention(q[..., :0], k[..., :0], v),
            lambda: layer(x, x, x, need_weights=False),  # through PyTorch
        ]
        for offset, call in enumerate(calls):
            with ft.enable():
                note = self.note(call)
            self.assertEqual((note.filename, note.lineno), (__file__, here + 2 + offset), note.message)

    def test_a_plans_notes_do_too(self):
        with mock.patch.object(_plan.json, "loads", lambda text: {"notes": ["a slow kernel"], "problem": "", "candidate": "", "block_mask_bytes": 0}):
            here = inspect.currentframe().f_lineno
            note = self.note(lambda: flashcore.attention(*inputs(1, 1, 3, 24)))
        self.assertEqual((note.filename, note.lineno), (__file__, here + 1))

    def test_notes_of_a_script(self):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "script.py")
            script.write_text("import torch, flashcore.torch\nx = torch.randn(1, 1, 4, 8)\nwith flashcore.torch.enable():\n"
                              "    torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)\n")  # fmt: skip
            done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True,
                                  env={**os.environ, "PYTHONPATH": str(ROOT / "python")})  # fmt: skip
        self.assertIn("script.py:4: Note: flashcore.torch: PyTorch computes this attention: dropout_p is above 0", done.stderr)


class FallBackTest(Quiet):
    def test_every_way_on_gives_what_pytorch_gives(self):
        q, k, v = inputs()
        half = tuple(x.half() for x in (q, k, v))
        cases = [((q, k, v), {"attn_mask": torch.randn(9, 9), "is_causal": True}), ((q[0], k[0], v[0]), {}), ((q.double(), k.double(), v.double()), {}),
                 ((q, k, v), {"scale": 0.0}), ((q, k, v), {"scale": torch.tensor(0.3)}), ((q[:, :, :0], k, v), {}),
                 ((q, k[:, :, :0], v[:, :, :0]), {}), ((q.to("meta"), k.to("meta"), v.to("meta")), {}), ((q[:, :1], k, v), {}),
                 (half, {"attn_mask": torch.ones(9, 9, dtype=torch.bool), "is_causal": True})]  # fmt: skip
        for tensors, options in cases:
            ours, computed, passed_on = counted(lambda: ft.scaled_dot_product_attention(*tensors, **options))  # noqa: B023
            theirs = PYTORCH(*tensors, **options)
            self.assertEqual((computed, sum(passed_on.values())), (0, 1), options)
            self.assertEqual((ours.shape, ours.dtype, ours.device), (theirs.shape, theirs.dtype, theirs.device))
            if ours.device.type != "meta":
                self.assertTrue(torch.equal(ours.nan_to_num(), theirs.nan_to_num()))

    def test_a_scale_that_is_a_tensor_is_read_at_each_call(self):
        scale, q = torch.tensor(0.3), inputs()
        for number in (0.3, 0.7):
            scale.fill_(number)
            torch.testing.assert_close(ft.scaled_dot_product_attention(*q, scale=scale), PYTORCH(*q, scale=number))

    def test_nested_tensors_are_passed_on(self):
        q = torch.nested.nested_tensor([torch.randn(2, 5, 16), torch.randn(2, 7, 16)])
        ft.reset_counters()
        out = ft.scaled_dot_product_attention(q, q, q)
        for ours, theirs in zip(out.unbind(), PYTORCH(q, q, q).unbind()):
            torch.testing.assert_close(ours, theirs)
        self.assertEqual(ft.counters()["passed_on"], {"an input is a nested tensor": 1})

    def test_subclasses_and_modes(self):
        class Special(torch.Tensor):
            pass

        q, k, v = inputs()
        for tensors in ((q.as_subclass(Special), k, v), (q, k, v.as_subclass(Special))):
            ours, computed, passed_on = counted(lambda: ft.scaled_dot_product_attention(*tensors))  # noqa: B023
            self.assertIs(type(ours), Special)
            self.assertEqual(computed, 0)
            self.assertIn("Special", str(passed_on))
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.utils.flop_counter import FlopCounterMode

        with FakeTensorMode() as mode:
            out = ft.scaled_dot_product_attention(*(mode.from_tensor(x) for x in (q, k, v)))
        self.assertEqual((type(out).__name__, out.shape), ("FakeTensor", q.shape))
        with FlopCounterMode(display=False):
            torch.testing.assert_close(ft.scaled_dot_product_attention(q, k, v), PYTORCH(q, k, v), atol=1e-5, rtol=1e-5)
        with torch.inference_mode():
            self.assertEqual(counted(lambda: ft.scaled_dot_product_attention(q.clone().requires_grad_(), k, v))[1], 1)

    def test_what_pytorch_refuses(self):
        q, k, v = inputs()
        for error, tensors, options in [(TypeError, (q, None, v), {}), (TypeError, (q, k.numpy(), v), {}), (TypeError, (q, k, v), {"is_causal": 1}),
                                        (TypeError, (q, k, v), {"scale": "x"}), (RuntimeError, (q, k.double(), v), {}), (RuntimeError, (q, k[..., :8], v), {}),
                                        (RuntimeError, (q, k[:, :2], v[:, :2]), {})]:  # fmt: skip
            for function in (PYTORCH, ft.scaled_dot_product_attention):
                with self.assertRaises(error, msg=str(options)):
                    function(*tensors, **options)

    def test_autocast(self):
        q, k, v = inputs()
        for dtype in (torch.bfloat16, torch.float16):
            for tensors in ((q, k, v), (q.bfloat16(), k, v.half()), (q.half(), k.half(), v.half())):
                with torch.autocast("cpu", dtype=dtype):
                    ours, computed, _ = counted(lambda: ft.scaled_dot_product_attention(*tensors))  # noqa: B023
                    theirs = PYTORCH(*tensors)
                    with torch.autocast("cpu", enabled=False):
                        self.assertEqual(ft.scaled_dot_product_attention(q, k, v).dtype, torch.float32)
                self.assertEqual((ours.dtype, theirs.dtype, computed), (dtype, dtype, 1))
                torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=2e-2)
            compiled = torch.compile(ft.scaled_dot_product_attention, backend="eager", fullgraph=True)
            with torch.autocast("cpu", dtype=dtype):
                self.assertEqual(compiled(q, k, v).dtype, dtype)

    def test_a_call_that_is_passed_on_costs_next_to_nothing(self):
        """Function calls instead of time, which other programs share: each is some 0.1 us. Before calls were counted, a gradient
        took 13 and a third axis too few 17."""
        q, k, v = inputs()
        ways = {
            # One of them asks for function modes, as every function of torch.nn.functional does.
            "mask": ((q, k, v), {"attn_mask": torch.ones(9, 9), "dropout_p": 0.5}, 9),
            "dropout": ((q, k, v), {"dropout_p": 0.5}, 6),
            "gradient": ((q.clone().requires_grad_(), k, v), {}, 9),
            "axes": ((q[0], k[0], v[0]), {}, 12),
            "dtype": ((q.double(), k.double(), v.double()), {}, 12),
        }
        for name, (tensors, options, most) in ways.items():
            with ft.enable(), self.subTest(name):
                F.scaled_dot_product_attention(*tensors, **options)
                calls = []
                sys.setprofile(lambda frame, event, argument: calls.append(  # noqa: B023
                    argument.__name__ if event == "c_call" else frame.f_code.co_name) if event in ("call", "c_call") else None)  # fmt: skip
                try:
                    F.scaled_dot_product_attention(*tensors, **options)
                finally:
                    sys.setprofile(None)
                calls.remove("setprofile")
                self.assertLessEqual(len(calls), most, calls)

    def test_a_call_that_is_passed_on_runs_the_operators_that_pytorch_alone_runs(self):
        class Operators(torch.utils._python_dispatch.TorchDispatchMode):
            def __init__(self):
                super().__init__()
                self.seen = []

            def __torch_dispatch__(self, operator, types, arguments=(), options=None):
                self.seen.append(str(operator))
                return operator(*arguments, **(options or {}))

        def operators(function, tensors, options):
            with Operators() as mode:
                function(*tensors, **options)
            return mode.seen

        q, k, v = inputs(1, 4, 9, 16)
        ways = [((q, k, v), {"attn_mask": torch.ones(9, 9), "is_causal": True}), ((q, k, v), {"dropout_p": 0.5}), ((q.clone().requires_grad_(), k, v), {"is_causal": True}),
                ((q[0], k[0], v[0]), {}), ((q.double(), k.double(), v.double()), {}), ((q, k[:, :2], v[:, :2]), {"attn_mask": torch.ones(9, 9), "enable_gqa": True, "dropout_p": 0.5}),
                ((q.half(), k.half(), v.half()), {"attn_mask": torch.ones(9, 9, dtype=torch.bool), "is_causal": True})]  # fmt: skip
        for tensors, options in ways:
            alone = operators(PYTORCH, tensors, options)
            self.assertTrue(alone)
            with ft.enable():
                self.assertEqual(operators(F.scaled_dot_product_attention, tensors, options), alone)


if __name__ == "__main__":
    unittest.main()
