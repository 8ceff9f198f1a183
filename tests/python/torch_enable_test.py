"""flashcore.torch in PyTorch's place: enable() and disable() in any order, other patches, sdpa_kernel, pickling."""

import copy
import inspect
import pickle
import random
import subprocess
import sys
import threading
import unittest
import warnings
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).resolve().parent))
from torch_support import PYTORCH, Quiet, counted, inputs  # noqa: E402

import flashcore.torch as ft  # noqa: E402
from flashcore import _plan  # noqa: E402


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
                F.scaled_dot_product_attention(*inputs(), dropout_p=0.5)
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

    def test_a_function_mode_sees_the_call(self):
        # As it sees PyTorch's: modes log and replace attention by this name (and torch.device(...) is one, which must not cost us the call).
        class Replaces(torch.overrides.TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                if getattr(function, "__name__", "") == "scaled_dot_product_attention":
                    return torch.zeros_like(args[0])
                return function(*args, **(kwargs or {}))

        with ft.enable():
            with Replaces():
                self.assertEqual(F.scaled_dot_product_attention(*inputs()).abs().max().item(), 0.0)
            with torch.device("cpu"):
                self.assertTrue(self.runs_here())

    def test_sdpa_kernel_is_obeyed(self):
        def passed_on():
            _, computed, reasons = counted(lambda: F.scaled_dot_product_attention(*inputs()))
            self.assertEqual((computed, list(reasons.values())), (0, [1]))
            self.assertIn("sdpa_kernel", next(iter(reasons)))

        for backends in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, [SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION]):
            with ft.enable():
                self.assertTrue(self.runs_here())
                with sdpa_kernel(backends):
                    passed_on()
                self.assertTrue(self.runs_here())
            with sdpa_kernel(backends), ft.enable():  # chosen before
                passed_on()
                with sdpa_kernel(SDPBackend.MATH):
                    passed_on()
            block = sdpa_kernel(backends)
            block.__enter__()
            with ft.enable():  # left within
                passed_on()
                block.__exit__(None, None, None)
                self.assertTrue(self.runs_here())
        with sdpa_kernel(SDPBackend.MATH):  # by its own name it is flashcore's
            self.assertEqual(counted(lambda: ft.scaled_dot_product_attention(*inputs()))[1], 1)

    def test_a_switch_of_one_backend_is_obeyed(self):
        for name in ("flash", "mem_efficient", "math", "cudnn"):
            switch = getattr(torch.backends.cuda, f"enable_{name}_sdp")
            switch(False)
            try:
                with ft.enable():
                    self.assertFalse(self.runs_here(), name)
                    switch(True)
                    self.assertTrue(self.runs_here(), name)
            finally:
                switch(True)

    def test_compiled_inside_sdpa_kernel(self):
        compiled = torch.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v) * 2, backend="eager", fullgraph=True)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), ft.enable():
            _, computed, reasons = counted(lambda: compiled(*inputs()))
            self.assertEqual((computed, len(reasons)), (0, 1))

    def test_pickled_and_copied(self):
        ft.enable()
        ours, other = F.scaled_dot_product_attention, {"attend": F.scaled_dot_product_attention}
        self.assertIsNot(ours, PYTORCH)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            self.assertIs(pickle.loads(pickle.dumps(ours, protocol)), ours)
        self.assertIs(copy.copy(ours), ours)
        self.assertIs(copy.deepcopy(other)["attend"], ours)
        model = torch.nn.Linear(2, 2)
        model.attend = ours
        self.assertIs(copy.deepcopy(model).attend, ours)
        text = pickle.dumps(model)
        ft.disable()
        self.assertIs(pickle.loads(text).attend, PYTORCH)
        # Where flashcore is missing too.
        script = "import pickle, sys, torch; f = pickle.load(sys.stdin.buffer); assert f is torch.nn.functional.scaled_dot_product_attention"
        ft.enable()
        done = subprocess.run([sys.executable, "-c", script], input=pickle.dumps(ours), capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)

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


if __name__ == "__main__":
    unittest.main()
