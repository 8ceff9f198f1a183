"""Lists of blocks that calls of flex_attention with one BlockMask share, on the emulated GPU: which calls make them, and that no call reads
those of other tensors or of other contents."""

import contextlib
import ctypes
import gc
import os
import sys
import threading
import unittest
from pathlib import Path
from unittest import mock

import torch

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path[:0] = [str(ROOT / "python"), str(Path(__file__).resolve().parent)]
import flashcore.torch as ft  # noqa: E402
from block_mask_test import Made  # noqa: E402
from flashcore import _arrays, _library, _torch_flex_lists  # noqa: E402
from torch.nn.attention.flex_attention import create_block_mask  # noqa: E402
from torch.nn.attention.flex_attention import flex_attention as pytorch  # noqa: E402

HEADS, ROWS, DIM = 2, 200, 64


class FlexListsTest(unittest.TestCase):
    def setUp(self):
        ft.reset_counters()
        self.made, of_torch = Made(self), _arrays._of_torch
        for owner, name, value in (
            (_arrays, "_of_torch", lambda x, role: of_torch(x, role)._replace(device="emulator")),
            (_arrays, "current_stream", lambda like: 0),
            (_arrays, "empty_like", lambda like, shape, dtype: self.place(torch.full(shape, float("nan"), dtype=torch.float16))),
            (_torch_flex_lists, "_has_lists", lambda device: True),
            (_torch_flex_lists, "_is_captured", lambda device: self.captured),
        ):
            patch = mock.patch.object(owner, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        _torch_flex_lists._free.clear()
        self.captured = False
        torch.manual_seed(5)
        self.q, self.k, self.v = (self.place(torch.randn(1, HEADS, ROWS, DIM).half()) for _ in range(3))
        self.ids = self.place((torch.arange(ROWS) // 50).int())

    def place(self, x):
        library, address = _library.library(), ctypes.c_void_p()
        library.fc_memory_allocate.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)]
        library.fc_memory_free.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        _library.check(library.fc_memory_allocate(_library.context("emulator"), x.nbytes, ctypes.byref(address)))
        self.addCleanup(library.fc_memory_free, _library.context("emulator"), address)
        placed = torch.frombuffer((ctypes.c_uint8 * x.nbytes).from_address(address.value), dtype=torch.uint8).view(x.dtype).view(x.shape)
        return placed.copy_(x)

    def block_mask(self, ids=None):
        read = self.ids if ids is None else ids
        return create_block_mask(lambda b, h, i, j: read[i] == read[j], None, None, ROWS, ROWS, device="cpu")

    def agrees(self, block_mask, **options):
        """The call beside PyTorch's, uncompiled, which asks mask_mod of each pair."""
        out = ft.flex_attention(self.q, self.k, self.v, block_mask=block_mask, **options)
        wanted = pytorch(*(x.float() for x in (self.q, self.k, self.v)), block_mask=block_mask, **options)
        torch.testing.assert_close(out.float(), wanted, atol=4e-3, rtol=4e-3)

    def expect_made(self, made, updated=0):
        self.assertEqual(self.made.counts, {"made": made, "updated": updated})
        self.assertEqual(ft.counters()["passed_on"], {})

    def test_calls_with_one_block_mask_make_them_once(self):
        block_mask = self.block_mask()
        for _ in range(3):
            self.agrees(block_mask)
        self.expect_made(1)

    def test_a_write_is_seen(self):
        block_mask = self.block_mask()
        self.agrees(block_mask)
        for write in (lambda: self.ids.zero_(), lambda: self.ids[100:].fill_(7), lambda: self.ids.view(2, 100)[0].add_(3)):
            for mode in (torch.no_grad, torch.inference_mode):
                with mode():
                    write()
                self.agrees(block_mask)
        self.expect_made(1, 6)

    def test_each_problem_has_its_own_and_all_follow_a_write(self):
        block_mask = self.block_mask()
        for _ in range(2):
            for scale in (0.1, 0.2):
                self.agrees(block_mask, scale=scale)
        self.expect_made(2)
        self.ids.zero_()
        for scale in (0.1, 0.2, 0.1):
            self.agrees(block_mask, scale=scale)
        self.expect_made(2, 2)

    def test_another_tensor_is_seen(self):
        held = [self.ids]
        block_mask = create_block_mask(lambda b, h, i, j: held[0][i] == held[0][j], None, None, ROWS, ROWS, device="cpu")
        self.agrees(block_mask)
        held[0] = self.place(torch.zeros(ROWS).int())
        self.agrees(block_mask)
        held[0] = self.ids
        self.agrees(block_mask)
        self.expect_made(1, 2)

    def test_the_memory_of_what_was_read_is_kept(self):
        ids = self.ids.clone()
        block_mask = self.block_mask()
        kept = _torch_flex_lists._kept_of(block_mask)
        kept.follow(_torch_flex_lists._state_of((ids,)), (ids,))
        address = ids.data_ptr()
        del ids
        gc.collect()
        self.assertEqual(kept.memory[0].data_ptr(), address)

    def test_another_function_is_seen(self):
        block_mask = self.block_mask()
        self.agrees(block_mask)
        block_mask.mask_mod = lambda b, h, i, j: self.ids[i] <= self.ids[j]
        self.agrees(block_mask)
        self.expect_made(2)

    def test_a_later_block_mask_takes_the_memory_of_one_that_is_gone(self):
        for ids in (self.ids, self.place(torch.zeros(ROWS).int()), self.ids):
            block_mask = self.block_mask(ids)
            for _ in range(2):
                self.agrees(block_mask)
            del block_mask
            gc.collect()
        self.expect_made(1, 2)
        self.assertEqual([kept.memory for kept in _torch_flex_lists._free], [()])

    def test_in_a_capture_each_call_makes_its_own(self):
        block_mask = self.block_mask()
        self.agrees(block_mask)
        self.captured = True
        self.ids.zero_()
        self.agrees(block_mask)
        self.expect_made(1)

    def test_tensors_without_a_version_have_no_lists_kept(self):
        with torch.inference_mode():
            block_mask = self.block_mask(self.place(self.ids))
            for _ in range(2):
                self.agrees(block_mask)
        self.expect_made(0)

    def test_threads_with_other_tensors_wait_for_each_other(self):
        block_mask, others, entered = self.block_mask(), (self.place(torch.zeros(ROWS).int()),), threading.Event()

        def run():
            with _torch_flex_lists.lists_of(block_mask, others, torch.device("cpu")):
                entered.set()

        thread = threading.Thread(target=run)
        with _torch_flex_lists.lists_of(block_mask, (self.ids,), torch.device("cpu")):
            thread.start()
            self.assertFalse(entered.wait(0.5), "between another call's lists and its launch")
        thread.join()
        self.assertTrue(entered.is_set())


class IsCapturedTest(unittest.TestCase):
    """`_is_captured` on a stand-in for two GPUs, of which each has a current stream."""

    def setUp(self):
        self.current, self.capturing = 0, set()

        @contextlib.contextmanager
        def device(of):
            before, self.current = self.current, torch.device(of).index
            try:
                yield
            finally:
                self.current = before

        for name, value in (("device", device), ("is_current_stream_capturing", lambda: self.current in self.capturing)):
            patch = mock.patch.object(torch.cuda, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def test_the_stream_of_the_calls_own_device_is_asked(self):
        for self.current in (0, 1):
            for self.capturing in (set(), {0}, {1}, {0, 1}):
                for index in (0, 1):
                    with self.subTest(current=self.current, capturing=self.capturing, index=index):
                        self.assertEqual(_torch_flex_lists._is_captured(torch.device("cuda", index)), index in self.capturing)

    def test_a_call_whose_own_stream_is_captured_keeps_no_lists(self):
        block_mask = create_block_mask(lambda b, h, i, j: j <= i, None, None, ROWS, ROWS, device="cpu")
        for self.capturing, keeps in (({0}, True), ({1}, False)):
            with _torch_flex_lists.lists_of(block_mask, (torch.zeros(3),), torch.device("cuda", 1)) as lists:
                self.assertEqual(lists is not None, keeps)


if __name__ == "__main__":
    unittest.main()
