"""What FlashInfer's tests import: flashcore's wrappers and functions under FlashInfer's names, and the parts of `flashinfer.utils` and
`flashinfer.jit` by which the tests ask what the GPU can do and compile kernels beforehand (nothing is)."""

import sys

import flashcore.flashinfer as _ours
import pytest

from . import _missing, jit, utils

for _name in _ours.__all__:
    globals()[_name] = getattr(_ours, _name)
for _name in ("attention", "cascade", "decode", "mla", "page", "prefill"):
    sys.modules[f"{__name__}.{_name}"] = getattr(_ours, _name)
quantization = _missing.module(f"{__name__}.quantization", "4-bit tensors")
sparse = _missing.module(f"{__name__}.sparse", "block-sparse wrappers")
_missing.module(f"{__name__}.quantization.nvfp4_quantization_utils", "4-bit tensors")
_missing.module(f"{__name__}.fp4_quantization", "4-bit tensors")


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    pytest.skip(f"flashcore.flashinfer has no {name}")
