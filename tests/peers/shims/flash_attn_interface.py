"""What FlashAttention 3's tests import: flashcore's functions."""

from flashcore.flash_attn_interface import *  # noqa: F403
