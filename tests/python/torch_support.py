"""Shared by the tests of flashcore.torch. No test by itself."""

import os
import sys
import unittest
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
import flashcore.torch as ft  # noqa: E402

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
