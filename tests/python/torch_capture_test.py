"""First calls inside a CUDA graph capture, each in a fresh process: the capture survives, its replays are right, and so is
PyTorch's generator afterwards. And captured calls with a BlockMask. Needs PyTorch and a GPU; what the library asks of the driver is tested by tests/api/plan_test.cpp.

On a GPU machine: PYTHONPATH=<the unpacked wheel> python3 tests/python/torch_capture_test.py
"""

import math
import os
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import torch

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
if "FLASHCORE_LIBRARY" in os.environ:  # else the package on PYTHONPATH, which has its own
    sys.path.insert(0, str(ROOT / "python"))

# batch, heads, heads_kv, rows, keys, dim, dtype, causal: short, long, decoding (a workspace of its own), ragged.
PROBLEMS = [
    (2, 8, 8, 512, 512, 64, torch.float16, False),
    (1, 8, 8, 2048, 2048, 128, torch.bfloat16, True),
    (4, 32, 8, 1, 4096, 128, torch.float16, False),
    (1, 4, 4, 100, 77, 80, torch.bfloat16, True),
]
BOUND = {torch.float16: 2e-3, torch.bfloat16: 1.5e-2}  # relative, of a whole output


def error_of(out, q, k, v, causal):
    q, k, v = (x.double() for x in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])
    return ((out.double() - expected).norm() / expected.norm()).item()


def capture(api, mode):
    """What went wrong, in a process that has not called flashcore before."""
    import flashcore
    import flashcore.torch
    from flashcore import _library

    def call(q, k, v, causal):
        if api == "attention":
            return flashcore.attention(q, k, v, causal="top_left" if causal else False)
        with torch.no_grad():
            return flashcore.torch.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])

    wrong, inputs = [], []
    for batch, heads, heads_kv, rows, keys, dim, dtype, causal in PROBLEMS:
        shapes = ((batch, heads, rows, dim), (batch, heads_kv, keys, dim), (batch, heads_kv, keys, dim))
        inputs.append((*(torch.randn(shape, device="cuda", dtype=dtype) for shape in shapes), causal))

    def plan_elsewhere():
        try:
            problem = _library.Attention()
            _library.check(_library.library().fc_problem_parse(b"b1_h2_s300_d96_fp16", problem))
            flashcore.Plan("cuda:0", problem)
        except Exception as error:  # noqa: BLE001
            wrong.append(f"another thread, planning meanwhile: {error}")

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        outs = [call(*each) for each in inputs]
        stream = torch.cuda.current_stream().cuda_stream
        if _library.library().fc_context_synchronize(_library.context("cuda:0"), stream) == 0:
            wrong.append("waiting for the captured stream was not refused")
        other = threading.Thread(target=plan_elsewhere)
        other.start()
        other.join()
    for replay in range(2):
        for (q, k, v, causal), out in zip(inputs, outs):
            for x in (q, k, v):
                x.copy_(torch.randn(x.shape, device="cuda"))
            out.fill_(math.nan)
        graph.replay()
        for (q, k, v, causal), out in zip(inputs, outs):
            if not error_of(out, q, k, v, causal) <= BOUND[q.dtype]:
                wrong.append(f"{tuple(q.shape)} {q.dtype}, replay {replay}: relative error {error_of(out, q, k, v, causal)}")
    for q, k, v, causal in inputs:
        if not error_of(call(q, k, v, causal), q, k, v, causal) <= BOUND[q.dtype]:
            wrong.append(f"{tuple(q.shape)} {q.dtype}, after the capture")
    if not 0.9 < torch.randn(10000, device="cuda").std().item() < 1.1:
        wrong.append("PyTorch's generator is broken")
    return wrong


class CaptureTest(unittest.TestCase):
    def test_first_calls(self):
        for api in ("attention", "drop-in"):
            for mode in ("global", "thread_local", "relaxed"):
                # An empty cache: the first call compiles.
                with self.subTest(api=api, mode=mode), tempfile.TemporaryDirectory() as cache:
                    done = subprocess.run([sys.executable, __file__, "--child", api, mode], env={**os.environ, "FLASHCORE_CACHE": cache},
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)  # fmt: skip
                    self.assertEqual(done.returncode, 0, done.stdout)


class BlockMaskTest(unittest.TestCase):
    """Documents of 100 to 400 rows, whose ids change between replays."""

    def setUp(self):
        import flashcore

        make = torch.Generator("cuda").manual_seed(1)
        self.q, self.k, self.v = (torch.randn(1, 4, 1024, 64, device="cuda", dtype=torch.bfloat16, generator=make) for _ in range(3))
        self.ids, self.stream = torch.zeros(1, 1024, device="cuda", dtype=torch.int32), torch.cuda.Stream()
        self.flashcore, self.blocks = flashcore, flashcore.BlockMask()

    def draw(self, length):
        self.ids.copy_(torch.arange(1024, device="cuda") // length)

    def call(self):
        return self.flashcore.attention(self.q, self.k, self.v, documents=self.ids, block_mask=self.blocks, stream=torch.cuda.current_stream().cuda_stream)

    def assert_right(self, out, ids):
        same = ids[:, None, :, None] == ids[:, None, None, :]
        q, k, v = (x.double() for x in (self.q, self.k, self.v))
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=same)
        self.assertLess(((out.double() - expected).norm() / expected.norm()).item(), BOUND[torch.bfloat16])

    def captured(self, updates):
        graph = torch.cuda.CUDAGraph()
        self.draw(100)
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            self.call()  # makes the lists of this stream
        torch.cuda.synchronize()
        if updates:
            self.blocks.update()
        with torch.cuda.graph(graph, stream=self.stream):
            first, second = self.call(), self.call()
        return graph, first, second

    def test_lists_are_made_at_each_replay_after_update(self):
        graph, first, second = self.captured(updates=True)
        for length in (100, 250, 400):
            self.draw(length)
            graph.replay()
            torch.cuda.synchronize()
            self.assert_right(first, self.ids)
            self.assertTrue(torch.equal(first, second))

    def test_without_update_a_graph_reads_the_lists_as_they_are(self):
        graph, first, _ = self.captured(updates=False)
        graph.replay()
        torch.cuda.synchronize()
        self.assert_right(first, self.ids)
        self.draw(1024)  # one document, of which the lists show parts alone
        graph.replay()
        torch.cuda.synchronize()
        with self.assertRaises(AssertionError):
            self.assert_right(first, self.ids)

    def test_a_capture_before_the_first_call_is_refused(self):
        graph = torch.cuda.CUDAGraph()
        with self.assertRaisesRegex(self.flashcore.Error, "captur"), torch.cuda.graph(graph, stream=self.stream):
            self.call()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        found = capture(*sys.argv[2:])
        print("\n".join(found))
        sys.exit(bool(found))
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU")
        sys.exit(77)
    unittest.main()
