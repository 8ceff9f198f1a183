"""First calls inside a CUDA graph capture, each in a fresh process: the capture survives, its replays are right, and so is
PyTorch's generator afterwards. Needs PyTorch and a GPU; what the library asks of the driver is tested by tests/api/plan_test.cpp.

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


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        found = capture(*sys.argv[2:])
        print("\n".join(found))
        sys.exit(bool(found))
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU")
        sys.exit(77)
    unittest.main()
