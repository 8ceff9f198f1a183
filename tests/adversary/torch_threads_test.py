"""The PyTorch drop-in follows torch.set_num_threads, and works in a DataLoader's forked workers."""

import os
import sys
import threading
import unittest
from pathlib import Path

import torch

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
import flashcore  # noqa: E402
import flashcore.torch  # noqa: E402

CORES = len(os.sched_getaffinity(0))
X = torch.randn(1, 4, 192, 32, generator=torch.Generator().manual_seed(1))


class Calls(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return flashcore.torch.scaled_dot_product_attention(X[:, :, index:], X, X).sum()


class TorchThreadsTest(unittest.TestCase):
    def setUp(self):
        self.before = torch.get_num_threads()

    def tearDown(self):
        torch.set_num_threads(self.before)
        flashcore.set_num_threads(0)

    def test_the_number_of_threads_is_followed(self):
        for asked, own, expected in ((1, 0, 1), (2, 0, min(2, CORES)), (2, 1, 1), (1, 2, 1), (100, 0, None), (2, 0, min(2, CORES))):
            torch.set_num_threads(asked)
            flashcore.set_num_threads(own)
            flashcore.torch.scaled_dot_product_attention(X, X, X)
            self.assertLessEqual(flashcore.num_threads(), expected or CORES, (asked, own))
            if expected == 1:
                self.assertEqual(flashcore.num_threads(), 1, (asked, own))

    def test_forked_workers_of_a_loader_compute(self):
        want = [Calls()[i] for i in range(4)]
        stop = threading.Event()

        def launch():
            while not stop.is_set():
                flashcore.torch.scaled_dot_product_attention(X, X, X)
                flashcore.torch.counters()

        thread = threading.Thread(target=launch)
        thread.start()
        try:
            loader = torch.utils.data.DataLoader(Calls(), num_workers=2, multiprocessing_context="fork", timeout=60)
            got = [batch[0] for batch in loader]
        finally:
            stop.set()
            thread.join()
        self.assertEqual([float(x) for x in got], [float(x) for x in want])


if __name__ == "__main__":
    unittest.main()
