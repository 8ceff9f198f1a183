"""flashcore's function in the place of PyTorch's for its own tests: whatever fused kernel they choose is flashcore; the math kernel alone, their
reference, stays PyTorch's."""

import flashcore.torch as ft
import pytest
import torch

_PYTORCH = torch.nn.functional.scaled_dot_product_attention


def _function(*args, **kwargs):
    of = torch.backends.cuda
    is_reference = of.math_sdp_enabled() and not (of.flash_sdp_enabled() or of.mem_efficient_sdp_enabled() or of.cudnn_sdp_enabled())
    return (_PYTORCH if is_reference else ft.scaled_dot_product_attention)(*args, **kwargs)


def install():
    torch.nn.functional.scaled_dot_product_attention = _function


def begin():
    ft.reset_counters()


def _require_computed(by_pytorch):
    found = ft.counters()
    if not found["computed"]:
        pytest.skip(f"PyTorch {by_pytorch} it: {'; '.join(sorted(found['passed_on'])) or 'no fused kernel is chosen'}")


def require_computed():
    """A test that only PyTorch computed says nothing about flashcore."""
    _require_computed("computed")


def skip_if_refused(error):
    """Nor does one that flashcore passed on and whose fused kernel PyTorch does not have on this device."""
    if isinstance(error, RuntimeError) and str(error).startswith("No available kernel"):
        _require_computed("was asked and has no kernel for")
