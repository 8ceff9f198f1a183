"""flashcore's function in the place of PyTorch's for its own tests: whatever fused kernel they choose is flashcore; the math kernel alone, their
reference, stays PyTorch's.

Nearly all of these tests ask for gradients, with which the function leaves a call to PyTorch. Here it goes to flashcore's operator then:
its forward is the same kernel, its backward PyTorch's on the same inputs."""

import flashcore.torch as ft
import pytest
import torch
from torch.nn.attention.bias import CausalBias, CausalVariant

_PYTORCH = torch.nn.functional.scaled_dot_product_attention


def _function(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    of = torch.backends.cuda
    is_reference = of.math_sdp_enabled() and not (of.flash_sdp_enabled() or of.mem_efficient_sdp_enabled() or of.cudnn_sdp_enabled())
    call = (query, key, value, attn_mask, dropout_p, is_causal)
    if is_reference:
        return _PYTORCH(*call, scale=scale, enable_gqa=enable_gqa)
    if not torch.compiler.is_compiling() and _is_for_gradients_alone(*call, scale, enable_gqa):
        right, mask = -1, attn_mask
        if isinstance(attn_mask, CausalBias):
            at_end, mask = attn_mask.variant == CausalVariant.LOWER_RIGHT, None
            right, is_causal = (0, False) if at_end else (-1, True)
        return torch.ops.flashcore.attention(query, key, value, is_causal, scale, -1, right, None, None, None, mask)
    return ft.scaled_dot_product_attention(*call, scale=scale, enable_gqa=enable_gqa)


def _is_for_gradients_alone(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
    """Whether flashcore would compute the call if nobody asked for a gradient."""
    tensors = [x for x in (query, key, value, attn_mask) if isinstance(x, torch.Tensor)]
    if not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
        return False
    if isinstance(attn_mask, CausalBias):
        if is_causal:
            return False
        attn_mask = None
    with torch.no_grad():
        return ft.why_not(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa) is None


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
