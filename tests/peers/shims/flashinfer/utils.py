"""What FlashInfer's tests ask of a GPU, answered for flashcore: a backend by name is ignored, so that each one counts as there."""

import re

import torch


class GPUArchitectureError(Exception):
    pass


def get_compute_capability(device):
    return torch.cuda.get_device_capability(device)


def has_flashinfer_jit_cache():
    return True


def is_fa3_backend_supported(*args, **kwargs):
    return True


def is_fa3_prefill_head_dim_supported(*args, **kwargs):
    return True


def determine_attention_backend(*args, **kwargs):
    return "fa2"


def __getattr__(name):
    """is_sm90a_supported and the like: of the GPU as it is."""
    found = re.fullmatch(r"is_sm(\d+)\d[a-z]?_supported", name)
    if not found:
        raise AttributeError(name)
    return lambda device: torch.cuda.get_device_capability(device)[0] == int(found[1])
