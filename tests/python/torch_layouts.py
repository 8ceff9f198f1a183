"""Calls of scaled_dot_product_attention with tensors that lie in memory in every way, drawn at random. No test by itself."""

import torch

BOUND = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def _tensor(rng, shape, dtype, device):
    """(storage, view): axes in any order, padded, beginning anywhere, some repeated."""
    order = [0, 1, 2, 3] if rng.random() < 0.3 else rng.sample(range(3), 3) + [3]
    if rng.random() < 0.1:
        order = rng.sample(range(4), 4)  # the elements of a row apart
    repeated = {axis for axis in range(3) if rng.random() < 0.12}
    strides, step = [0] * 4, 1
    for axis in reversed(order):
        if axis in repeated:
            continue
        strides[axis] = step
        step *= shape[axis] + (rng.choice([1, 2, 3, 5, 8, 16]) if rng.random() < 0.3 else 0)
    offset = rng.randrange(8) if rng.random() < 0.6 else rng.choice([0, 8, 16])
    storage = torch.randn(step + offset + 8, dtype=torch.float32).to(dtype).to(device)
    return storage, storage.as_strided(shape, strides, offset)


def draw(rng, device="cpu", dtypes=tuple(BOUND), dims=None):
    """(query, key, value, options, storages) of one call. `dims`: pairs of head dims; default: any up to 128, odd ones too."""
    dtype = rng.choice(dtypes)
    batch, heads_kv, group = rng.randint(1, 3), rng.randint(1, 3), rng.choice([1, 1, 2, 3])
    rows, keys = rng.choice([1, 2, 7, 16, 33, 70]), rng.choice([1, 5, 16, 48, 65])
    dim, columns = rng.choice(dims) if dims else (rng.randint(1, 40) if rng.random() < 0.3 else 8 * rng.randint(1, 16) for _ in range(2))
    torch.manual_seed(rng.randrange(1 << 30))
    shapes = (batch, heads_kv * group, rows, dim), (batch, heads_kv, keys, dim), (batch, heads_kv, keys, columns)
    made = [_tensor(rng, shape, dtype, device) for shape in shapes]
    options = {"is_causal": rng.random() < 0.5, "scale": rng.choice([None, None, 0.3]), "enable_gqa": True}
    return (*(view for _, view in made), options, [storage for storage, _ in made])


def reference(query, key, value, is_causal=False, scale=None, enable_gqa=False):
    """The same in float64, from matmul and softmax."""
    q, k, v = (x.detach().cpu().double() for x in (query, key, value))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[2:], dtype=torch.bool).tril(), float("-inf"))
    return scores.softmax(-1) @ v


def distance(out, expected):
    return float((out.detach().cpu().double() - expected).norm() / expected.norm())


def describe(*tensors):
    return "; ".join(f"{role} {x.dtype} {tuple(x.shape)} strides {x.stride()} offset {x.storage_offset()}" for role, x in zip("qkv", tensors))
