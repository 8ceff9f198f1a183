"""What FlashAttention 2's tests import: flashcore's functions."""

from flashcore.flash_attn import *  # noqa: F403
