"""The reference of FlashAttention's cache tests for rotary position embedding, in PyTorch: none of flashcore's code computes it."""

import torch


def apply_rotary_emb(x, cos, sin, interleaved=False, inplace=False, seqlen_offsets=0, cu_seqlens=None, max_seqlen=None):
    """x: [batch, length, heads, dim]; cos, sin: [positions, rotary_dim / 2]; row i of entry b has position seqlen_offsets[b] + i."""
    assert not inplace and cu_seqlens is None
    batch, length = x.shape[:2]
    offsets = torch.as_tensor(seqlen_offsets, device=x.device).long().expand(batch)
    positions = offsets[:, None] + torch.arange(length, device=x.device)
    c, s = (table.float()[positions][:, :, None] for table in (cos, sin))
    half = cos.shape[1]
    turned, rest = x[..., : 2 * half].float(), x[..., 2 * half :]
    if interleaved:
        a, b = turned[..., ::2], turned[..., 1::2]
        made = torch.stack((a * c - b * s, b * c + a * s), -1).flatten(-2)
    else:
        a, b = turned[..., :half], turned[..., half:]
        made = torch.cat((a * c - b * s, b * c + a * s), -1)
    return torch.cat((made.to(x.dtype), rest), -1)
