"""flashcore.torch in PyTorch's place, on the CPU: values from any layout, enable() and disable(), counters, notes, sdpa_kernel."""

import inspect
import os
import random
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
from torch.nn.attention import SDPBackend, sdpa_kernel

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path[:0] = [str(ROOT / "python"), str(Path(__file__).resolve().parent)]
import flashcore  # noqa: E402
import flashcore.torch as ft  # noqa: E402
import torch_layouts as layouts  # noqa: E402
from flashcore import _plan, _torch_launch  # noqa: E402

PYTORCH = F.scaled_dot_product_attention


def inputs(*shape, dtype=torch.float32):
    torch.manual_seed(1)
    return tuple(torch.randn(*(shape or (2, 4, 9, 16))).to(dtype) for _ in range(3))


def counted(call):
    """(result, calls computed by flashcore, {reason: calls passed on}) of one call."""
    ft.reset_counters()
    result = call()
    found = ft.counters()
    return result, found["computed"], found["passed_on"]


class Quiet(unittest.TestCase):
    def enter(self, context):
        context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)

    def setUp(self):
        self.enter(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        self.addCleanup(ft.disable)
        ft.reset_counters()


class LayoutTest(Quiet):
    def agrees(self, q, k, v, options, storages=()):
        before = [storage.clone() for storage in storages]
        out, computed, passed_on = counted(lambda: ft.scaled_dot_product_attention(q, k, v, **options))
        self.assertEqual(computed, 1, passed_on)
        self.assertLess(layouts.distance(out, layouts.reference(q, k, v, **options)), layouts.BOUND[q.dtype], (layouts.describe(q, k, v), options))
        for was, storage in zip(before, storages):
            self.assertTrue(torch.equal(was, storage))

    def on_rows_of_16_bytes(self):
        """The GPU's rule for what is copied, on the CPU; every launch is asked whether it keeps it."""
        problems, launch, create = {}, _plan.Plan.launch, _plan.Plan.__init__

        def created(plan, device, problem):
            create(plan, device, problem)
            problems[id(plan)] = problem

        def launched(plan, q, k, v, *rest):
            problem = problems.get(id(plan))
            if problem is not None and problem.alignment == 16:
                item = 4 if problem.dtype == 0 else 2
                sizes = {"q": (problem.heads_q, problem.seqlen_q), "k": (problem.heads_kv, problem.seqlen_kv), "v": (problem.heads_kv, problem.seqlen_kv)}
                for role, address in (("q", q), ("k", k), ("v", v)):
                    strides, (heads, rows) = getattr(problem, role), sizes[role]
                    for extent, stride in ((problem.batch, strides.batch), (heads, strides.head), (rows, strides.row)):
                        self.assertTrue(extent == 1 or stride > 0 and stride * item % 16 == 0, (role, extent, stride))
                    self.assertEqual(address % 16, 0, role)
                self.checked += 1
            return launch(plan, q, k, v, *rest)

        self.checked = 0
        _torch_launch.known.clear()
        self.addCleanup(_torch_launch.known.clear)
        self.enter(mock.patch.object(_torch_launch, "_reads_16_bytes", lambda device: True))
        self.enter(mock.patch.object(_plan.Plan, "__init__", created))
        self.enter(mock.patch.object(_plan.Plan, "launch", launched))

    def test_slices_between_16_byte_borders(self):
        for rule in ("cpu", "gpu"):
            if rule == "gpu":
                self.on_rows_of_16_bytes()
            for offset in range(8):
                for role in range(3):
                    tensors = list(inputs(2, 8, 30, 64, dtype=torch.bfloat16))
                    tensors[role] = torch.randn(2, 8, 30, 80).bfloat16()[..., offset : offset + 64]
                    self.agrees(*tensors, {})
        self.assertEqual(self.checked, 24)

    def test_random_layouts(self):
        rng = random.Random(16)
        for _ in range(80):
            q, k, v, options, storages = layouts.draw(rng)
            self.agrees(q, k, v, options, storages)

    def test_random_layouts_copied_by_the_rule_of_gpus(self):
        self.on_rows_of_16_bytes()
        rng = random.Random(17)
        for _ in range(80):
            q, k, v, options, storages = layouts.draw(rng)
            self.agrees(q, k, v, options, storages)
        self.assertGreater(self.checked, 40)

    def test_one_plan_serves_only_calls_that_are_copied_alike(self):
        self.on_rows_of_16_bytes()
        storage = torch.randn(2 * 3 * 20 * 64 + 8).bfloat16()
        for offset in (0, 1, 0, 8, 3, 0):
            x = storage[offset : offset + 2 * 3 * 20 * 64].view(2, 3, 20, 64)
            self.agrees(x, x, x, {})

    def test_expanded(self):
        for shape, strides in (((2, 4, 64, 32), (0, 0, 0, 1)), ((2, 4, 64, 32), (0, 0, 32, 1)), ((2, 4, 64, 32), (2048, 0, 32, 1))):
            x = torch.randn(4096).as_strided(shape, strides)
            other = torch.randn(shape)
            for tensors in ((x, x, x), (other, x, x), (x, other, other), (other, x, other)):
                self.agrees(*tensors, {})

    def test_the_copying_rule(self):
        copy = lambda shape, strides, address=64, unit=16: _torch_launch.must_copy(shape, strides, address, 2, unit)  # noqa: E731
        self.assertFalse(copy((2, 8, 300, 64), (8 * 300 * 64, 300 * 64, 64, 1)))
        self.assertTrue(copy((2, 8, 300, 64), (8 * 300 * 64, 300 * 64, 64, 1), address=66))
        self.assertFalse(copy((2, 8, 300, 64), (8 * 300 * 64, 300 * 64, 64, 1), address=66, unit=2))
        self.assertTrue(copy((2, 8, 300, 64), (8 * 300 * 68, 300 * 68, 68, 1)))
        self.assertFalse(copy((1, 1, 1, 64), (3, 5, 7, 1)))
        self.assertTrue(copy((1, 8, 300, 64), (0, 0, 64, 1)))
        self.assertFalse(copy((1, 8, 300, 64), (0, 0, 64, 1), unit=2))
        self.assertTrue(copy((1, 8, 300, 64), (0, 1, 64, 8), unit=2))

    def test_negated_views_and_zeros_without_memory(self):
        q, k, v = inputs()
        imaginary = torch.view_as_complex(torch.randn(2, 4, 9, 16, 2)).conj().imag
        for x in (torch._neg_view(q), imaginary, torch._efficientzerotensor(q.shape)):
            torch.testing.assert_close(ft.scaled_dot_product_attention(x, k, v), PYTORCH(x.clone(), k, v), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(ft.scaled_dot_product_attention(q, k, x), PYTORCH(q, k, x.clone()), atol=1e-5, rtol=1e-5)


class EnableTest(Quiet):
    def runs_here(self):
        return counted(lambda: F.scaled_dot_product_attention(*inputs()))[1] == 1

    def test_as_a_switch(self):
        ft.enable()
        self.assertTrue(self.runs_here())
        with ft.enable():
            self.assertTrue(self.runs_here())
        self.assertTrue(self.runs_here())
        ft.disable()
        self.assertIs(F.scaled_dot_product_attention, PYTORCH)
        ft.disable()

    def test_any_order_of_exits(self):
        a, b, c = ft.enable(), ft.enable(), ft.enable()
        for context in (a, b, c):
            context.__enter__()
        for context in (b, a):
            context.__exit__(None, None, None)
            context.__exit__(None, None, None)  # twice ends nobody else's
            self.assertTrue(self.runs_here())
        c.__exit__(None, None, None)
        self.assertIs(F.scaled_dot_product_attention, PYTORCH)

    def test_a_block_that_outlives_disable_ends_nothing_of_others(self):
        with ft.enable():
            ft.disable()
            self.assertIs(F.scaled_dot_product_attention, PYTORCH)
            ft.enable()
        self.assertTrue(self.runs_here())

    def test_entered_again_and_as_a_decorator(self):
        again = ft.enable()
        for _ in range(2):
            with again:
                self.assertTrue(self.runs_here())
            self.assertIs(F.scaled_dot_product_attention, PYTORCH)

        @ft.enable()
        def inside():
            return self.runs_here()

        self.assertIs(F.scaled_dot_product_attention, PYTORCH)
        self.assertTrue(inside())
        self.assertIs(F.scaled_dot_product_attention, PYTORCH)

    def test_threads(self):
        wrong, rounds = [], threading.Barrier(4)

        def work(seed):
            rng = random.Random(seed)
            rounds.wait()
            for _ in range(100):
                contexts = [ft.enable() for _ in range(rng.randint(1, 3))]
                rng.shuffle(contexts)
                if F.scaled_dot_product_attention is PYTORCH:
                    wrong.append("not on")
                for context in contexts:
                    context.__exit__(None, None, None)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertIs(F.scaled_dot_product_attention, PYTORCH)

    def test_another_patch_beneath(self):
        seen = []

        def theirs(*args, **options):
            seen.append(1)
            return PYTORCH(*args, **options)

        with mock.patch.object(F, "scaled_dot_product_attention", theirs):
            functions = set()
            for _ in range(3):
                with ft.enable():
                    functions.add(F.scaled_dot_product_attention)
            self.assertEqual(len(functions), 1)  # torch.compile's guards look at it
            with ft.enable():
                self.assertTrue(self.runs_here())
                F.scaled_dot_product_attention(*inputs(), torch.ones(9, 9))
            self.assertEqual(seen, [1])  # what is passed on goes to what was there
            self.assertIs(F.scaled_dot_product_attention, theirs)
        self.assertIs(F.scaled_dot_product_attention, PYTORCH)

    def test_another_patch_above_stays_and_ours_beneath_it_passes_on(self):
        context = ft.enable()
        ours = F.scaled_dot_product_attention
        theirs = lambda *args, **options: ours(*args, **options)  # noqa: E731
        F.scaled_dot_product_attention = theirs
        try:
            _plan._said.clear()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                context.__exit__(None, None, None)
            self.assertIn("replaced by someone else", str(caught[0].message))
            self.assertIs(F.scaled_dot_product_attention, theirs)
            self.assertFalse(self.runs_here())
            with ft.enable():  # over theirs, which calls ours of before: nothing goes in circles
                self.assertTrue(self.runs_here())
                masked = F.scaled_dot_product_attention(*inputs(), torch.ones(9, 9))
            torch.testing.assert_close(masked, PYTORCH(*inputs(), torch.ones(9, 9)))
            self.assertIs(F.scaled_dot_product_attention, theirs)
            F.scaled_dot_product_attention = ours  # they end, and put ours back
            self.assertFalse(self.runs_here())
            torch.testing.assert_close(F.scaled_dot_product_attention(*inputs()), PYTORCH(*inputs()))
            with ft.enable():
                self.assertTrue(self.runs_here())
        finally:
            F.scaled_dot_product_attention = PYTORCH

    def test_another_who_puts_pytorchs_back(self):
        with ft.enable():
            F.scaled_dot_product_attention = PYTORCH
            self.assertFalse(self.runs_here())
            with ft.enable():
                self.assertTrue(self.runs_here())
            self.assertTrue(self.runs_here())
        self.assertIs(F.scaled_dot_product_attention, PYTORCH)

    def test_exceptions(self):
        with self.assertRaises(ZeroDivisionError), ft.enable():
            raise ZeroDivisionError
        self.assertIs(F.scaled_dot_product_attention, PYTORCH)

    def test_sdpa_kernel_is_obeyed(self):
        call = lambda: F.scaled_dot_product_attention(*inputs())  # noqa: E731
        for outside in (False, True):
            with ft.enable():
                for backends in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, [SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION]):
                    with sdpa_kernel(backends):
                        _, computed, passed_on = counted(call)
                        self.assertEqual((computed, list(passed_on.values())), (0, [1]))
                        self.assertIn("sdpa_kernel", next(iter(passed_on)))
                self.assertTrue(self.runs_here())
            with sdpa_kernel(SDPBackend.MATH), ft.enable():  # enabled last: that is the choice
                self.assertTrue(self.runs_here())
        with sdpa_kernel(SDPBackend.MATH):
            self.assertEqual(counted(lambda: ft.scaled_dot_product_attention(*inputs()))[1], 1)

    def test_the_fast_path_of_multihead_attention(self):
        layer, x = torch.nn.MultiheadAttention(32, 2, batch_first=True).eval(), torch.randn(2, 5, 32)
        with torch.no_grad(), ft.enable():
            call = lambda: layer(x, x, x, need_weights=False)[0]  # noqa: E731
            fast, computed, _ = counted(call)
            self.assertEqual(computed, 0)  # as enable() says
            torch.backends.mha.set_fastpath_enabled(False)
            try:
                slow, computed, _ = counted(call)
            finally:
                torch.backends.mha.set_fastpath_enabled(True)
            self.assertEqual(computed, 1)
        torch.testing.assert_close(fast, slow)
        self.assertIn("set_fastpath_enabled(False)", inspect.getdoc(ft.enable))

    def test_script(self):
        class Attend(torch.nn.Module):
            def forward(self, q, k, v):
                return F.scaled_dot_product_attention(q, k, v, None, 0.0, True)

        with ft.enable():
            scripted = torch.jit.script(Attend())
        torch.testing.assert_close(scripted(*inputs()), PYTORCH(*inputs(), is_causal=True))

    def test_compiled_code_follows_the_switch(self):
        compiled = torch.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v) * 2, backend="eager", fullgraph=True)
        for _ in range(2):
            with torch.no_grad():
                self.assertEqual(counted(lambda: compiled(*inputs()))[1], 0)
                with ft.enable():
                    self.assertEqual(counted(lambda: compiled(*inputs()))[1], 1)


class CounterTest(Quiet):
    def test_counters(self):
        q, k, v = inputs()
        with ft.enable():
            for _ in range(3):
                F.scaled_dot_product_attention(q, k, v)
            for _ in range(2):
                F.scaled_dot_product_attention(q, k, v, torch.ones(9, 9))
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
        mask = torch.ones(2, 2)

        def work():
            for _ in range(200):
                ft.scaled_dot_product_attention(q, k, v, mask)
                ft.counters()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sum(ft.counters()["passed_on"].values()), 800)

    def test_reasons_are_bounded(self):
        with mock.patch.object(ft, "_MAX_REASONS", 3):
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
            lambda: ft.scaled_dot_product_attention(q, k, v, torch.ones(9, 9)),
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
        with mock.patch.object(_plan.json, "loads", lambda text: {"notes": ["a slow kernel"], "problem": "", "candidate": ""}):
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
        cases = [((q, k, v), {"attn_mask": torch.randn(9, 9)}), ((q[0], k[0], v[0]), {}), ((q.double(), k.double(), v.double()), {}),
                 ((q, k, v), {"scale": 0.0}), ((q, k, v), {"scale": torch.tensor(0.3)}), ((q[:, :, :0], k, v), {}),
                 ((q, k[:, :, :0], v[:, :, :0]), {}), ((q.to("meta"), k.to("meta"), v.to("meta")), {}), ((q[:, :1], k, v), {}),
                 ((*half[:2], half[2]), {"attn_mask": torch.ones(9, 9, dtype=torch.bool)})]  # fmt: skip
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
        flashcore.torch.reset_counters()
        out = flashcore.torch.scaled_dot_product_attention(q, q, q)
        for ours, theirs in zip(out.unbind(), PYTORCH(q, q, q).unbind()):
            torch.testing.assert_close(ours, theirs)
        self.assertEqual(flashcore.torch.counters()["passed_on"], {"an input is a nested tensor": 1})

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
        """Function calls instead of time, which other programs share: each is some 0.1 us."""
        q, k, v = inputs()
        lengths = {}
        for name, options in {"mask": {"attn_mask": torch.ones(9, 9)}, "dropout": {"dropout_p": 0.5}}.items():
            with ft.enable():
                F.scaled_dot_product_attention(q, k, v, **options)
                calls = []
                sys.setprofile(lambda frame, event, argument: calls.append(event) if event in ("call", "c_call") else None)  # noqa: B023
                try:
                    F.scaled_dot_product_attention(q, k, v, **options)
                finally:
                    sys.setprofile(None)
            lengths[name] = len(calls)
        self.assertLessEqual(max(lengths.values()), 8, lengths)


if __name__ == "__main__":
    unittest.main()
