"""flex_attention with functions of the user's own, beside PyTorch's; what is recorded, and what goes to PyTorch."""

import os
import sys
import types
import unittest
import warnings
from pathlib import Path
from unittest import mock

import torch

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
import flashcore.torch as ft  # noqa: E402
from flashcore import _torch_flex_ints, _torch_trace  # noqa: E402
from flashcore._torch_trace import Untraceable, trace  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, and_masks, create_block_mask, or_masks  # noqa: E402
from torch.nn.attention.flex_attention import flex_attention as pytorch  # noqa: E402

BATCH, HEADS, ROWS, KEYS = 2, 4, 24, 40
FACTOR, CONFIG = 1.0, types.ModuleType("config")
CPU = torch.device("cpu")


def inputs(heads_kv=HEADS, rows=ROWS, keys=KEYS, dtype=torch.float32):
    torch.manual_seed(3)
    make = lambda heads, length: torch.randn(BATCH, heads, length, 16).to(dtype)  # noqa: E731
    return make(HEADS, rows), make(heads_kv, keys), make(heads_kv, keys)


def block_mask(function, batch=None, rows=ROWS, keys=KEYS):
    return create_block_mask(function, batch, None, rows, keys, device="cpu")


torch.manual_seed(1)
SLOPES = torch.rand(HEADS)
BIAS = torch.randn(HEADS, ROWS, KEYS)
RELATIVE = torch.randn(ROWS + KEYS).to(torch.bfloat16)
DOCUMENT_Q = torch.arange(ROWS).div(7, rounding_mode="floor").expand(BATCH, ROWS).contiguous()
DOCUMENT_KV = torch.arange(KEYS).div(9, rounding_mode="floor").expand(BATCH, KEYS).contiguous()
PREFIX = torch.tensor([5, 11])
SHOWN = torch.rand(ROWS, KEYS) < 0.5
ALLOWED, OFFSET = torch.tensor(30), torch.tensor(KEYS - ROWS, dtype=torch.int32)


def causal(b, h, i, j):
    return i >= j


def window(b, h, i, j):
    return (i - j).abs() <= 6


SCORES = {
    "softcap": lambda s, b, h, i, j: 2 * torch.tanh(s / 2),
    "alibi": lambda s, b, h, i, j: s + SLOPES[h] * (j - i),
    "bias": lambda s, b, h, i, j: s + BIAS[h, i, j],
    "relative bias of 16 bits": lambda s, b, h, i, j: s + RELATIVE[i - j + KEYS],
    "a mask by the score": lambda s, b, h, i, j: torch.where(j <= i, s, -float("inf")),
    "a condition as a number": lambda s, b, h, i, j: s * (i % 3 == 0),
    "functions": lambda s, b, h, i, j: torch.sigmoid(s) + torch.exp2(-s.abs()) - s.pow(2).sqrt() + torch.clamp(s, -1.0, 0.5) / torch.maximum(s, s + 1).abs(),
    "a product of conditions": lambda s, b, h, i, j: torch.where((j <= i) * (i - j < 20), s, 0.5 * s) * ((i < 30) * (j > 3)),
    "ints": lambda s, b, h, i, j: s + (i // 4 - j % 5 + 2 * h - b) / 7,
}
MASKS = {
    "causal": causal,
    "window": window,
    "both": and_masks(causal, window),
    "either": or_masks(causal, window),
    "prefix": lambda b, h, i, j: (j < PREFIX[b]) | (j <= i),
    "documents": lambda b, h, i, j: DOCUMENT_Q[b, i] == DOCUMENT_KV[b, j],
    "a tensor": lambda b, h, i, j: SHOWN[i, j],
    "a number in a tensor": lambda b, h, i, j: i + j < ALLOWED,
    "dilated": lambda b, h, i, j: ((i - j) % 2 == 0) & ~(j > 30),
    "decoding": lambda b, h, i, j: i + OFFSET >= j,
    "decoding by batch": lambda b, h, i, j: i + PREFIX[b] >= j,
    "an element": lambda b, h, i, j: i + PREFIX[1] >= j,
    "by head": lambda b, h, i, j: torch.where(h < 2, j <= i, j >= i),
    "a product": lambda b, h, i, j: (j <= i) * (i - j < 20) * SHOWN[i, j],
    "a product with True": lambda b, h, i, j: (j <= i) * True,
    "a sum": lambda b, h, i, j: (j <= i) + (j < 3) + SHOWN[i, j],
    "one of two": lambda b, h, i, j: (j <= i) ^ SHOWN[i, j],
    "one of two by name": lambda b, h, i, j: torch.logical_xor(j <= i, (i + j) % 3),
    "the smaller": lambda b, h, i, j: torch.minimum(j <= i, SHOWN[i, j]),
    "the larger": lambda b, h, i, j: torch.maximum(j <= i, SHOWN[i, j]),
}


class FlexTest(unittest.TestCase):
    def setUp(self):
        ft.reset_counters()

    def assert_same(self, *args, computed_here=True, tolerance=2e-5, **kwargs):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours, theirs = ft.flex_attention(*args, **kwargs), pytorch(*args, **kwargs)
        for a, b in zip(ours if isinstance(ours, tuple) else (ours,), theirs if isinstance(theirs, tuple) else (theirs,)):
            if isinstance(a, torch.Tensor):
                torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)
        self.assertEqual(ft.counters()["computed"] > 0, computed_here, ft.counters())

    def assert_mask(self, function, computed_here=True):
        """Beside the mask that the function gives element by element, outside of vmap."""
        ft.reset_counters()
        shown = [[[bool(function(*map(torch.tensor, (b, 0, i, j)))) for j in range(KEYS)] for i in range(ROWS)] for b in range(BATCH)]
        q, k, v = inputs()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours = ft.flex_attention(q, k, v, block_mask=block_mask(function, BATCH))
        theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=torch.tensor(shown)[:, None])
        torch.testing.assert_close(ours, theirs.nan_to_num(), atol=2e-5, rtol=2e-5)
        self.assertEqual(ft.counters()["computed"] > 0, computed_here, ft.counters())

    def test_scores_are_pytorchs(self):
        for name, function in SCORES.items():
            with self.subTest(name):
                ft.reset_counters()
                self.assert_same(*inputs(), function)

    def test_a_softcap_has_the_kernels_of_one(self):
        q, k, v = inputs()
        made = ft.flex_attention(q, k, v, SCORES["softcap"])
        self.assertTrue(torch.equal(made, ft.attention(q, k, v, softcap=2.0)))

    def test_masks_are_pytorchs(self):
        for name, function in MASKS.items():
            with self.subTest(name):
                ft.reset_counters()
                self.assert_same(*inputs(), block_mask=block_mask(function, BATCH))

    def test_both_with_groups_scale_and_the_log_sum_exp(self):
        mask = block_mask(causal)
        self.assert_same(*inputs(heads_kv=2), SCORES["alibi"], mask, scale=0.3, enable_gqa=True, return_lse=True)
        self.assert_same(*inputs(), SCORES["softcap"], mask, return_aux=AuxRequest(lse=True))
        self.assert_same(*inputs(dtype=torch.bfloat16), SCORES["softcap"], mask, tolerance=2e-2)
        self.assert_same(*inputs())

    def test_a_tensor_that_changed_and_a_closure_that_reads_another_are_seen(self):
        slopes = torch.rand(HEADS)

        def score(s, b, h, i, j):
            return s + slopes[h] * (j - i)

        self.assert_same(*inputs(), score)
        slopes.mul_(3)
        self.assert_same(*inputs(), score)
        slopes = torch.rand(HEADS)
        self.assert_same(*inputs(), score)

    def test_what_a_function_reads_otherwise_is_seen_too(self):
        number = torch.tensor(2.0)
        nested = lambda s, b, h, i, j: (lambda x: x * FACTOR)(s)  # noqa: E731
        for function in (lambda s, b, h, i, j: s * number.item(), lambda s, b, h, i, j: s * float(number), lambda s, b, h, i, j: s * int(number)):
            with self.assertRaisesRegex(Untraceable, "of a tensor"):
                trace(function, True, CPU)
        global FACTOR
        for FACTOR in (1.5, 3.0):
            self.assert_same(*inputs(), nested)
        for CONFIG.factor in (1.5, 3.0):
            self.assert_same(*inputs(), lambda s, b, h, i, j: s * CONFIG.factor)

    def test_numbers_that_ours_would_round_or_wrap_go_to_pytorch(self):
        large, small, narrow = (torch.arange(KEYS) % 3) * 2**32, torch.arange(KEYS), torch.arange(KEYS, dtype=torch.uint8)
        at_the_end = torch.full((KEYS,), 2**31 - 1, dtype=torch.int32)
        half, double = torch.rand(HEADS).half(), torch.rand(HEADS).double()
        for function in (
            lambda s, b, h, i, j: torch.where(large[i] == large[j], s, -1e9),
            lambda s, b, h, i, j: s + (small[j] * 64 > 0),
            lambda s, b, h, i, j: s + (at_the_end[j] + j > 0),
            lambda s, b, h, i, j: s + (narrow[i] - narrow[j]),
            lambda s, b, h, i, j: s + half[h] * half[h],
            lambda s, b, h, i, j: torch.where(double[h] > 0.5, s, -s),
            lambda s, b, h, i, j: (s * 100).to(torch.bfloat16) / 10,
        ):
            ft.reset_counters()
            self.assert_same(*inputs(), function, computed_here=False)
        self.assert_same(*inputs(), lambda s, b, h, i, j: torch.where(small[i] == small[j], s, s + half[h]))

    def test_ints_of_elements_that_leave_32_bits_go_to_pytorch(self):
        of = lambda number, dtype=torch.int64: torch.full((KEYS,), number, dtype=dtype)  # noqa: E731
        some, more, most = of(3_000_000), of(60_000_000), of(67_000_000, torch.int32)
        for function in (
            lambda b, h, i, j: torch.add(i, some[j], alpha=1000) > 0,
            lambda b, h, i, j: torch.sub(i, some[j], alpha=1000) < 0,
            lambda b, h, i, j: torch.rsub(some[j], i, alpha=1000) < 0,
            lambda b, h, i, j: most[j] * 32 + i * 1_000_000 > 0,
            lambda b, h, i, j: more[j] + i * 55_000_000 > 0,
            lambda b, h, i, j: more[j] * more[i] > 0,
            lambda b, h, i, j: torch.where(j > 3, more[j] * 20, 0) - i * 40_000_000 > 0,
            lambda b, h, i, j: (more[j] + i) // 3 * 100 > 0,
            lambda b, h, i, j: most[j].long() * 64 % 1000 > 500,
        ):
            self.assert_mask(function, computed_here=False)
        self.assert_mask(lambda b, h, i, j: most[j] * 64 > 0)  # PyTorch's wraps as well
        with mock.patch.object(_torch_flex_ints, "MOST_OF_INDICES", KEYS - 1):
            self.assert_mask(lambda b, h, i, j: some[j] + i > 3_000_010, computed_here=False)
            self.assertIn(f"one is {KEYS}", next(iter(ft.counters()["passed_on"])))

    def test_small_ints_of_elements_are_computed_here(self):
        ids, offsets, narrow = torch.arange(KEYS) // 3, torch.tensor([2, 5]), torch.arange(KEYS, dtype=torch.int8)
        for function in (
            lambda b, h, i, j: j <= i + offsets[b],
            lambda b, h, i, j: i * 16 + ids[j] - offsets[b] * 4 >= j,
            lambda b, h, i, j: (i // 64 == j // 64) & (ids[i] + 1 >= ids[j]),
            lambda b, h, i, j: torch.add(i, offsets[b], alpha=3) >= j,
            lambda b, h, i, j: (i + offsets[b] - j).abs() * 2 < 14,
            lambda b, h, i, j: torch.clamp(ids[j], 0, 100) % 7 * 1_000_000 > i * 100,
            lambda b, h, i, j: -(ids[j] // -2) + narrow[i] > j,
            lambda b, h, i, j: torch.minimum(ids[j], i) + torch.where(j > 3, torch.maximum(ids[i], j), offsets[b]) > 9,
        ):
            self.assert_mask(function)

    def test_a_number_as_a_tensor_has_its_type(self):
        self.assert_mask(lambda b, h, i, j: j >= torch.scalar_tensor(20.7, dtype=torch.int64), computed_here=False)
        self.assert_mask(lambda b, h, i, j: j >= torch.scalar_tensor(20.7))
        self.assert_mask(lambda b, h, i, j: (j <= i) & torch.scalar_tensor(1, dtype=torch.bool))
        self.assert_same(*inputs(), lambda s, b, h, i, j: s * torch.scalar_tensor(True) + torch.scalar_tensor(7) / 2)

    def test_a_chain_of_conditions_grows_by_what_is_added(self):
        def chain(operation, n):
            def mask(b, h, i, j):
                shown = j <= i
                for x in range(n):
                    shown = operation(shown, j > x)
                return shown

            return mask

        for operation in (lambda a, b: a ^ b, lambda a, b: b ^ a, torch.logical_xor, lambda a, b: a == b, lambda a, b: b != a):
            self.assert_mask(chain(operation, 20))
            lengths = [len(trace(chain(operation, n), False, CPU).text) for n in (10, 20, 30)]
            self.assertLess(lengths[2] - lengths[1], lengths[1] - lengths[0] + 40)

    def test_a_function_whose_text_is_too_long_is_refused_and_not_kept(self):
        def doubles(s, b, h, i, j):
            for _ in range(40):
                s = s * s + s
            return s

        def cubes(s, b, h, i, j):
            for _ in range(40):
                s = s**3
            return s

        for function in (doubles, cubes):
            with self.assertRaisesRegex(Untraceable, "longer than an expression of 65536 characters"):
                trace(function, True, CPU)
            self.assertFalse(_torch_trace._recorded.get(function))
        self.assertIn("longer than an expression", self.reason(ft.flex_attention, *inputs(), cubes))

    def test_hundreds_of_operations_within_each_other(self):
        """More than Python's recursion goes through: the text is written, and the library has fewer levels."""
        places = torch.arange(KEYS)

        def mask(b, h, i, j):
            largest = i
            for _ in range(600):
                largest = torch.minimum(largest, torch.maximum(places[j], j))
            return largest + 1 > j

        self.assertIn("+ 1", trace(mask, False, CPU).text)
        self.assertIn("too long", self.reason(ft.flex_attention, *inputs(), None, block_mask(mask)))

    def test_what_the_writer_does_not_foresee_goes_to_pytorch(self):
        for unforeseen in (RecursionError("too deep"), TypeError("an argument of another PyTorch")):
            with mock.patch.object(_torch_trace._Writer, "write", side_effect=unforeseen):
                self.assertIn(str(unforeseen), self.reason(ft.flex_attention, *inputs(), lambda s, b, h, i, j: s * 2))

    def test_messages_have_no_columns_of_a_text_that_nobody_gave(self):
        for words, functions in {"score_mod as recorded .*1e\\+300 is no fp32 number": (lambda s, b, h, i, j: s + 1e300 * (j > i), None),
                                 "mask_mod as recorded .*'exp' is rounded differently": (None, block_mask(lambda b, h, i, j: torch.exp(j - i) < 3))}.items():  # fmt: skip
            for call in (ft.flex_attention, torch.compile(lambda *x: ft.flex_attention(*x), backend="aot_eager", fullgraph=True)):
                why = self.reason(call, *inputs(), *functions)
                self.assertRegex(why, words)
                self.assertNotIn("column", why)

    def test_numbers_beside_narrow_elements(self):
        signed, unsigned, short = (torch.arange(KEYS, dtype=dtype) for dtype in (torch.int8, torch.uint8, torch.int16))
        one, half, brain = torch.tensor(5, dtype=torch.uint8), torch.full((KEYS,), 0.3333333).half(), torch.full((KEYS,), 0.1).bfloat16()
        for function in (
            lambda b, h, i, j: signed[j] > 200,
            lambda b, h, i, j: (unsigned[j] > -1) & (j <= i),
            lambda b, h, i, j: short[j] > 40000,
            lambda b, h, i, j: (one == 261) & (j <= i),
        ):
            self.assert_mask(function, computed_here=False)
        for function in (
            lambda b, h, i, j: (signed[j] < 20) & (unsigned[j] + i < 60) & (short[j] != -1),
            lambda b, h, i, j: unsigned[j] > 10.5,
            lambda b, h, i, j: (half[j] >= 0.3333333) & (brain[j] == 0.1) & (half[j] < 1e6) & (j <= i),
        ):
            self.assert_mask(function)

    def test_conditions_as_numbers(self):
        for function in (
            lambda b, h, i, j: torch.add(j <= i, j > 30, alpha=2),
            lambda b, h, i, j: torch.add(j <= i, j > 30, alpha=0),
            lambda b, h, i, j: torch.clamp(j, min=(i > 3)) < i,
            lambda b, h, i, j: torch.clamp(j > 3, min=(i > 3)),
            lambda b, h, i, j: torch.clamp(j > 3, 0, 1) < i,
        ):
            self.assert_mask(function)
        self.assert_same(*inputs(), lambda s, b, h, i, j: s + torch.clamp(j, max=(i > j)) * 0.5)

    def test_a_tensor_that_requires_a_gradient_is_not_read(self):
        slopes = torch.rand(HEADS, requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            o = ft.flex_attention(*inputs(), lambda s, b, h, i, j: s + slopes[h] * (j - i))
        self.assertTrue(o.requires_grad)
        self.assertIn("requires a gradient", next(iter(ft.counters()["passed_on"])))

    def test_blocks_without_a_function_go_to_pytorch(self):
        count, index = torch.ones(1, 1, 1, dtype=torch.int32), torch.zeros(1, 1, 1, 1, dtype=torch.int32)
        blocks = BlockMask.from_kv_blocks(count, index, BLOCK_SIZE=128, seq_lengths=(ROWS, KEYS))
        self.assert_same(*inputs(), block_mask=blocks, computed_here=False)

    def test_methods_are_functions(self):
        class Scores:
            slope = torch.rand(HEADS)

            def score(self, s, b, h, i, j):
                return s + self.slope[h] * (j - i)

        self.assert_same(*inputs(), Scores().score)

    def test_the_same_function_is_recorded_once(self):
        runs = []

        def score(s, b, h, i, j):
            runs.append(1)
            return s * 2

        trace(score, True, CPU)
        self.assertEqual(len(runs), 1)
        again = trace(MASKS["documents"], False, CPU)
        self.assertIs(trace(MASKS["documents"], False, CPU), again)

    def test_a_function_is_recorded_again_where_what_it_reads_may_change(self):
        def config(): ...

        numbers, of_list, ids = {"n": 3}, [3], torch.arange(8)
        config.n, ids.n = 3, 3
        get, item = numbers.get, of_list.__getitem__

        def imports(b, h, i, j):
            import string

            return j <= i + len(string.digits)

        of_torch = lambda b, h, i, j: j <= i + torch.flashcore_test_n  # noqa: E731
        cases = {
            "attribute of a function": (lambda b, h, i, j: j <= i + config.n, lambda: setattr(config, "n", 5)),
            "attribute of a tensor": (lambda b, h, i, j: j <= i + ids.n, lambda: setattr(ids, "n", 5)),
            "a dict by its method": (lambda b, h, i, j: j <= i + get("n"), lambda: numbers.update(n=5)),
            "a list by its method": (lambda b, h, i, j: j <= i + item(0), lambda: of_list.__setitem__(0, 5)),
            "globals()": (lambda b, h, i, j: j <= i + globals()["SHIFT_OF_A_TEST"], lambda: globals().update(SHIFT_OF_A_TEST=5)),
            "torch's own": (of_torch, lambda: setattr(torch, "flashcore_test_n", 5)),
        }
        globals()["SHIFT_OF_A_TEST"] = torch.flashcore_test_n = 3
        self.addCleanup(delattr, torch, "flashcore_test_n")
        self.addCleanup(globals().pop, "SHIFT_OF_A_TEST")
        for name, (function, change) in cases.items():
            with self.subTest(name):
                self.assertIn("3", trace(function, False, CPU).text)
                change()
                self.assertIn("5", trace(function, False, CPU).text)
        self.assertIsNot(trace(imports, False, CPU), trace(imports, False, CPU))

    def test_what_has_no_text_goes_to_pytorch_and_says_why(self):
        def branches(s, b, h, i, j):
            return s if i > 3 else s * 2

        q, k, v = inputs()
        bits = [(f, "bits of ints") for f in (lambda s, b, h, i, j: s + (i ^ j), lambda s, b, h, i, j: s + (i & 1), lambda s, b, h, i, j: s + (i >> 2), lambda s, b, h, i, j: s + ~j,
                                              lambda s, b, h, i, j: s + ((i < j) ^ i))]  # fmt: skip
        for function, words in (*bits, (branches, r"__bool__\(\) of a tensor"), (lambda s, b, h, i, j: torch.erf(s), "none of the operations that flashcore records"),
                                (lambda s, b, h, i, j: s + BIAS[h].sum(), "scalar")):  # fmt: skip
            with self.subTest(words), self.assertRaisesRegex(Untraceable, words):
                trace(function, True, CPU)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.assert_same(q, k, v, lambda s, b, h, i, j: torch.erf(s), computed_here=False)
            (why,) = ft.counters()["passed_on"]
            self.assertIn("score_mod cannot be recorded for flashcore: aten.erf", why)
            ft.reset_counters()
            with self.assertRaises(NotImplementedError):  # PyTorch's has no backward on a CPU
                ft.flex_attention(q.requires_grad_(), k, v, SCORES["softcap"])
            self.assertIn("gradient", next(iter(ft.counters()["passed_on"])))

    def compiled(self, *args, backend="aot_eager", dynamic=False, **kwargs):
        """What one graph of torch.compile gives, and PyTorch's own result."""
        torch._dynamo.reset()
        ft.reset_counters()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours = torch.compile(lambda *x: ft.flex_attention(*x, **kwargs), backend=backend, fullgraph=True, dynamic=dynamic)(*args)
            return ours, pytorch(*args, **kwargs)

    def assert_compiled(self, *args, computed_here=True, tolerance=2e-5, backends=("aot_eager",), **kwargs):
        for backend in backends:
            ours, theirs = self.compiled(*args, backend=backend, **kwargs)
            for a, b in zip(ours if isinstance(ours, tuple) else (ours,), theirs if isinstance(theirs, tuple) else (theirs,)):
                torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)
            self.assertEqual(ft.counters()["computed"] > 0, computed_here, ft.counters())

    def test_compiled_scores_and_masks_are_one_graph(self):
        for name, function in SCORES.items():
            with self.subTest(name):
                self.assert_compiled(*inputs(), function)
        for name, function in MASKS.items():
            with self.subTest(name):
                self.assert_compiled(*inputs(), None, block_mask(function, BATCH))

    def test_compiled_with_groups_scale_and_the_log_sum_exp(self):
        mask = block_mask(causal)
        self.assert_compiled(*inputs(heads_kv=2), SCORES["alibi"], mask, scale=0.3, enable_gqa=True, return_lse=True, backends=("eager", "aot_eager"))
        self.assert_compiled(*inputs(), SCORES["softcap"], mask, return_aux=AuxRequest(lse=True))
        self.assert_compiled(*inputs(dtype=torch.bfloat16), SCORES["softcap"], mask, tolerance=2e-2)
        self.assert_compiled(*inputs(), backends=("eager", "aot_eager"))
        self.assert_compiled(*inputs(), SCORES["bias"], block_mask(MASKS["documents"], BATCH), dynamic=True)

    def test_compiled_a_tensor_that_is_given_twice(self):
        q, k, v = inputs(rows=KEYS)
        for args in ((q, k, k), (q, q, v), (q, k, q), (q, q, q)):
            for dynamic in (False, True):
                self.assert_compiled(*args, SCORES["alibi"], dynamic=dynamic)

    def test_full_blocks_and_masks_of_batch_entries_and_heads(self):
        """Blocks of 128 of which some are full, where PyTorch's kernels ask no function."""
        q, k, v = inputs(rows=384, keys=384)
        by_both = lambda b, h, i, j: torch.where(h % 2 == 0, j <= i, j >= i - 7) & (j < 384 - 40 * b)  # noqa: E731
        for function, batch, heads in ((causal, None, None), (window, BATCH, None), (by_both, BATCH, HEADS)):
            mask = create_block_mask(function, batch, heads, 384, 384, device="cpu")
            self.assertEqual(mask.full_kv_num_blocks.sum() > 0, function is not window)
            self.assert_same(q, k, v, SCORES["softcap"], mask, return_lse=True)
            self.assert_compiled(q, k, v, SCORES["softcap"], mask, return_lse=True)

    def test_compiled_code_reads_tensors_anew_and_notices_other_functions(self):
        slopes, factor = torch.rand(HEADS), 1.0

        def score(s, b, h, i, j):
            return s * factor + slopes[h] * (j - i)

        torch._dynamo.reset()
        call = torch.compile(lambda *x: ft.flex_attention(*x), backend="aot_eager", fullgraph=True)
        agrees = lambda: torch.testing.assert_close(call(*inputs(), score), pytorch(*inputs(), score), atol=2e-5, rtol=2e-5)  # noqa: E731
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            agrees()
            slopes.mul_(3)
            agrees()
            slopes = torch.rand(HEADS)
            agrees()
            factor = 2.0
            agrees()
            torch.testing.assert_close(call(*inputs(), SCORES["softcap"]), pytorch(*inputs(), SCORES["softcap"]), atol=2e-5, rtol=2e-5)
        self.assertEqual((ft.counters()["computed"], ft.counters()["passed_on"]), (5, {}))

    def test_compiled_numbers_beyond_32_bits_are_an_error_that_says_what_to_do(self):
        """The graph was recorded before the numbers were there: PyTorch cannot be given the call any more."""
        documents = torch.arange(KEYS) % 3

        def score(s, b, h, i, j):
            return torch.where(documents[i] == documents[j], s, -1e9)

        torch._dynamo.reset()
        call = torch.compile(lambda *x: ft.flex_attention(*x), backend="eager", fullgraph=True)
        torch.testing.assert_close(call(*inputs(), score), pytorch(*inputs(), score))
        documents.mul_(2**32)
        with self.assertRaisesRegex(RuntimeError, "tensor of ints beyond 2147483647.*call it outside of torch.compile") as raised:
            call(*inputs(), score)
        self.assertNotIsInstance(raised.exception, Untraceable)

    def test_compiled_what_has_no_text_or_needs_a_gradient_is_pytorchs(self):
        slopes = torch.rand(HEADS, requires_grad=True)
        q, k, v = inputs()
        self.assert_compiled(q, k, v, lambda s, b, h, i, j: torch.erf(s), computed_here=False)
        self.assertIn("aten.erf", next(iter(ft.counters()["passed_on"])))
        for tensors, score in (((q, k, v), lambda s, b, h, i, j: s + slopes[h] * (j - i)), ((q.clone().requires_grad_(), k, v), SCORES["softcap"])):
            torch._dynamo.reset()
            ft.reset_counters()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:  # PyTorch's own has no gradient on some CPUs
                    self.assertTrue(torch.compile(lambda *x: ft.flex_attention(*x), backend="aot_eager")(*tensors, score).requires_grad)  # noqa: B023
                except (NotImplementedError, RuntimeError, torch._dynamo.exc.TorchDynamoException):
                    pass
            self.assertEqual(ft.counters()["computed"], 0)
            self.assertIn("gradient", next(iter(ft.counters()["passed_on"])))
        with self.assertRaisesRegex(RuntimeError, "requires a gradient"):
            torch.ops.flashcore.flex_attention(q.requires_grad_(), k, v, "s * 2", "", [], [], [])

    def reason(self, call, *args):
        """Why PyTorch computes it."""
        ft.reset_counters()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.testing.assert_close(call(*args), pytorch(*args), atol=2e-5, rtol=2e-5, equal_nan=True)
        self.assertEqual(ft.counters()["computed"], 0)
        (why,) = ft.counters()["passed_on"]
        return why

    def test_compiled_what_the_sizes_refuse_is_pytorchs_for_the_same_reason(self):
        short = torch.rand(ROWS)
        refused = {
            "may divide by 0": (lambda s, b, h, i, j: s + 1 / (i - j), None),
            "keep it in the shape": (lambda s, b, h, i, j: s + short[i * i - i * i + i], None),
            "in the mask": (None, block_mask(lambda b, h, i, j: 1 / (j - i) < 0.5)),
        }
        for words, functions in refused.items():
            for dynamic in (False, True):
                with self.subTest(words, dynamic=dynamic):
                    torch._dynamo.reset()
                    compiled = torch.compile(lambda *x: ft.flex_attention(*x), backend="aot_eager", fullgraph=True, dynamic=dynamic)
                    why = self.reason(compiled, *inputs(), *functions)
                    self.assertIn(words, why)
                    self.assertEqual(why, self.reason(ft.flex_attention, *inputs(), *functions))

    def test_compiled_open_lengths_are_bounded_where_a_function_is(self):
        """Of three compilations one is of fixed lengths, one of open ones, and one of those that the library refuses."""
        behind = torch.rand(HEADS, 300)
        for score, compilations in ((lambda s, b, h, i, j: s + 1 / (i - j - 100), 3), (lambda s, b, h, i, j: s + behind[h, i], 2), (SCORES["softcap"], 2)):
            torch._dynamo.reset()
            ft.reset_counters()
            counted = CompileCounterWithBackend("aot_eager")
            compiled = torch.compile(lambda *x: ft.flex_attention(*x), backend=counted, fullgraph=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for rows in (24, 50, 70, 200, 290):
                    args = *inputs(rows=rows), score
                    torch.testing.assert_close(compiled(*args), pytorch(*args), atol=2e-5, rtol=2e-5, equal_nan=True)
            self.assertEqual((counted.frame_count, ft.counters()["computed"]), (compilations, 3 if compilations == 3 else 5))

    def test_opcheck(self):
        q, k, v = inputs()
        for lse in (False, True):
            torch.library.opcheck(torch.ops.flashcore.flex_attention.default, (q, k, v, "s + x[h]", "j <= i", ["x"], [SLOPES], [False], 0.3, lse),
                                  test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"))  # fmt: skip

    def test_an_index_that_may_leave_the_tensor_is_not_read(self):
        q, k, v = inputs()
        short = torch.rand(ROWS)
        ft.reset_counters()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with self.assertRaises(Exception):
                ft.flex_attention(q, k, v, lambda s, b, h, i, j: s + short[j])
        self.assertEqual(ft.counters()["computed"], 0)


if __name__ == "__main__":
    unittest.main()
