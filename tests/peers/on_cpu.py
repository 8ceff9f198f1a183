"""A dry run of tests that name "cuda" everywhere: whatever they make is made on the CPU, and the few functions of torch.cuda that they call
answer as an H100. Only for finding wrong signatures and definitions where there is no GPU; CUDA graphs are skipped."""

import contextlib
import types

import pytest
import torch
import torch._dynamo  # before torch.Generator is replaced, of which its modules name the type
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


def _moved(x):
    if isinstance(x, torch.device):
        return CPU if x.type == "cuda" else x
    return CPU if isinstance(x, str) and x.split(":")[0] == "cuda" else x


class _OnCpu(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = {name: _moved(x) if name == "device" and not isinstance(x, int) else CPU if name == "device" else x for name, x in (kwargs or {}).items()}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to:
            args = (args[0], *(CPU if type(x) is int else _moved(x) for x in args[1:]))
        return func(*args, **kwargs)


def _no_graphs(*args, **kwargs):
    pytest.skip("TIME: a CUDA graph needs a GPU")


def install():
    _OnCpu().__enter__()
    cuda = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.get_device_capability = lambda device=None: (9, 0)
    cuda.get_device_name = lambda device=None: "the CPU"
    cuda.current_device = lambda: 0
    for name in ("synchronize", "empty_cache", "manual_seed", "manual_seed_all", "set_device", "ipc_collect"):
        setattr(cuda, name, lambda *args, **kwargs: None)
    cuda.get_device_properties = lambda device=None: types.SimpleNamespace(total_memory=80 << 30, multi_processor_count=132, major=9, minor=0)
    cuda.mem_get_info = lambda device=None: (70 << 30, 80 << 30)
    cuda.memory_reserved = lambda device=None: 0
    cuda.device = lambda *args: contextlib.nullcontext()
    cuda.CUDAGraph = cuda.Stream = cuda.graph = _no_graphs
    generator = torch.Generator
    torch.Generator = lambda device="cpu": generator(CPU)
