"""Arrays of any framework as an address, a shape and strides: NumPy, CuPy, PyTorch, and whatever speaks DLPack (JAX)."""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import os
import sys
from typing import Any, NamedTuple

from ._library import Error

ITEM_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "e4m3": 1, "e5m2": 1, "int8": 1, "int4": 1, "int32": 4, "int64": 8, "bool": 1}
_NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "int8": "int8"}
_CACHE_ROLES = ("k", "v", "k_cache", "v_cache")  # which may be int8
# Arrays of lengths and pages; all others are of floats.
_INT32_ROLES = ("cu_seqlens_q", "cu_seqlens_kv", "seqused_kv", "seqused_q", "block_table", "indptr", "indices", "last_page_len",
                "cache_seqlens", "cu_seqlens_new", "new_seqlens", "refused", "row_sequences", "row_positions", "table_starts")  # fmt: skip
_WHOLE_ROLES = {**dict.fromkeys(_INT32_ROLES, "int32"), "saturated": "int64"}
_WHOLE_FORMATS = {"int32": "i", "int64": "q"}  # of a memoryview
# Arrays that a score or mask function reads, or that become one; and those that kernels read as they lie.
_FACTOR_ROLES = ("descale_q", "descale_k", "descale_v")  # for which a number will do
_FUNCTION_ROLES = {"bias": ("float32",), "mask": ("bool",), "prefix": ("int32",), "documents": ("int32",), "document_boundaries": ("int32",),
                   "boundaries": ("int32",), "intervals": ("int32",), "alibi": ("float32",),
                   "sink": ("float32",), **dict.fromkeys(_FACTOR_ROLES, ("float32",))}  # fmt: skip
_FUNCTION_NAMES = {"float32": "fp32", "int32": "int32", "bool": "bool"}
_FULL_NAMES = {short: name for name, short in _NAMES.items()}


class View(NamedTuple):
    """One array, as the library sees it. Strides count elements."""

    framework: str  # "torch" | "numpy" | "cupy" | "jax" | "buffer" | "dlpack"
    device: str  # "cpu" | "cuda:N"
    dtype: str  # "fp32" | "fp16" | "bf16" | "e4m3" | "e5m2" | "int8" | "int4" | "int32" | "int64" | "bool"
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int  # of the element whose indices are all 0; a negative stride reaches below it
    keep: Any  # alive as long as the address is used
    writable: bool = True


def _function_dtypes(role: str) -> tuple[str, ...]:
    """Of a role that functions have; else none."""
    return tuple(_FUNCTION_NAMES) if role.startswith("tensors[") else _FUNCTION_ROLES.get(role, ())


def _dtype(name: str, role: str) -> str:
    wanted = _function_dtypes(role)
    if wanted:
        if name.split(".")[-1] not in wanted:
            number = "a number, or an array of " if role in _FACTOR_ROLES else ""
            raise Error(f"{role} is of dtype {name}; give {number}{' or '.join(wanted)}")
        return _FUNCTION_NAMES[name.split(".")[-1]]
    whole = _WHOLE_ROLES.get(role)
    if whole:
        if name.split(".")[-1] != whole:
            raise Error(f"{role} is of dtype {name}; give {whole}")
        return whole
    found = _NAMES.get(name.split(".")[-1])
    if found is None or (found == "int8" and role not in _CACHE_ROLES):
        packed = "; with kv_dtype='int4' it is two int4 a byte" if name == "uint8" and role in _CACHE_ROLES else ""
        raise Error(f"{role} is of dtype {name}; use {_usual_dtypes(role)}{packed}")
    return found


def _usual_dtypes(role: str) -> str:
    return "float32, float16, bfloat16, float8_e4m3fn" + (", float8_e5m2 or int8" if role in _CACHE_ROLES else " or float8_e5m2")


def _of_torch(x: Any, role: str) -> View:
    torch = sys.modules["torch"]
    # A subclass may mean more than its numbers (a mask, a placement), or have none (FakeTensor).
    if type(x) is not torch.Tensor and type(x) is not torch.nn.Parameter:
        raise Error(f"{role} is a {type(x).__name__}, a subclass of torch.Tensor; give a plain tensor, as .as_subclass(torch.Tensor) makes")
    if x.is_nested:
        raise Error(f"{role} is a nested tensor; give a dense one, as .to_padded_tensor(0) makes")
    if x.layout is not torch.strided:
        raise Error(f"{role} is a tensor of layout {x.layout}; only dense (strided) tensors are computed: call .to_dense()")
    if x.requires_grad and torch.is_grad_enabled():
        raise Error(
            f"{role} requires a gradient, and flashcore.attention computes the forward pass only: use "
            "flashcore.torch.scaled_dot_product_attention, .detach(), or torch.no_grad()")  # fmt: skip
    kind = x.device.type
    if kind not in ("cpu", "cuda"):
        raise Error(f"{role} is on the device {x.device}; use the CPU or a CUDA device")
    if x.is_neg():
        raise Error(f"{role} is a view whose numbers PyTorch negates when it reads them; give {role}.resolve_neg()")
    device = "cpu" if kind == "cpu" else f"cuda:{x.device.index}"
    try:
        address = x.data_ptr()
    except RuntimeError as error:  # inside vmap, jvp and their kin
        raise Error(f"{role} is a tensor without memory of its own ({error}); call flashcore.attention outside of torch.func") from error
    # NumPy's empty arrays have strides of 0, which PyTorch keeps, and .contiguous() too.
    strides = tuple(x.stride()) if x.numel() else _contiguous(tuple(x.shape))
    return View("torch", device, _dtype(str(x.dtype), role), tuple(x.shape), strides, address, x)


def _in_elements(strides: tuple[int, ...], shape: tuple[int, ...], item: int, role: str) -> tuple[int, ...]:
    if any(stride % item for stride, extent in zip(strides, shape) if extent > 1):
        raise Error(f"{role} has strides {strides} bytes, which are no multiples of its {item}-byte elements: copy the array")
    return tuple(stride // item for stride in strides)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


def _of_interface(x: Any, interface: dict[str, Any], framework: str, device: str, role: str) -> View:
    name = getattr(getattr(x, "dtype", None), "name", None) or interface["typestr"]
    dtype = _dtype(name, role)
    if interface["typestr"][0] == ">":
        raise Error(f"{role} holds big-endian numbers; convert it with .astype({name!r})")
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    elements = _contiguous(shape) if strides is None else _in_elements(tuple(strides), shape, ITEM_BYTES[dtype], role)
    address, readonly = interface["data"]
    return View(framework, device, dtype, shape, elements, address, x, not readonly)


def _of_numpy(x: Any, role: str) -> View:
    numpy = sys.modules["numpy"]
    if type(x) is not numpy.ndarray and type(x) is not numpy.memmap:
        ma = sys.modules.get("numpy.ma")
        if ma is not None and isinstance(x, ma.MaskedArray):
            raise Error(f"{role} is a masked array, and flashcore computes with every element: give {role}.filled(0), or {role}.data")
        raise Error(f"{role} is a {type(x).__name__}, a subclass of numpy.ndarray that may mean more than its numbers; give numpy.asarray({role})")
    return _of_interface(x, x.__array_interface__, "numpy", "cpu", role)


class _Buffer(ctypes.Structure):
    """Py_buffer."""

    _fields_ = [
        ("address", ctypes.c_void_p), ("owner", ctypes.c_void_p), ("bytes", ctypes.c_ssize_t), ("item", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p),
    ]  # fmt: skip


_PYBUF_FULL_RO = 0x11C


def _of_buffer(x: memoryview, role: str) -> View:
    """Python's own arrays: memoryview(array.array("f", ...)).cast("B").cast("f", shape), "e" for float16."""
    try:
        whole = _WHOLE_ROLES.get(role)
        formats = {_WHOLE_FORMATS[whole]: whole} if whole else {"f": "fp32", "e": "fp16"}
        wanted = _function_dtypes(role)
        if wanted:
            formats = {code: _FUNCTION_NAMES[name] for code, name in (("f", "float32"), ("i", "int32"), ("?", "bool")) if name in wanted}
        dtype = formats.get(x.format)
    except ValueError as error:
        raise Error(f"{role} is a memoryview that cannot be read: {error}") from error
    if dtype is None:
        use = f"{_WHOLE_FORMATS[whole]!r} ({whole})" if whole else "'f' (float32) or 'e' (float16)"
        if wanted:
            use = " or ".join(repr(code) for code in formats)
        raise Error(f"{role} is a memoryview of format {x.format!r}; use {use}")
    if x.suboffsets:
        raise Error(f"{role} is a memoryview of rows that lie apart, by pointers; copy it into one block")
    api, buffer = ctypes.pythonapi, _Buffer()
    api.PyObject_GetBuffer(ctypes.py_object(x), ctypes.byref(buffer), _PYBUF_FULL_RO)
    address = buffer.address or 0
    api.PyBuffer_Release(ctypes.byref(buffer))  # x itself holds the memory
    shape = tuple(x.shape)
    return View("buffer", "cpu", dtype, shape, _in_elements(tuple(x.strides), shape, x.itemsize, role), address, x, not x.readonly)


class _Tensor(ctypes.Structure):
    """DLTensor of dlpack.h."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned of dlpack.h."""

    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("tensor", _Tensor)]  # fmt: skip


_DL_DTYPES = {(2, 32): "fp32", (2, 16): "fp16", (4, 16): "bf16", (10, 8): "e4m3", (12, 8): "e5m2", (0, 8): "int8"}
_DL_READ_ONLY, _DL_COPIED = 1, 2  # flags
_DL_CPU, _DL_CUDA, _DL_CUDA_HOST, _DL_CUDA_MANAGED = 1, 2, 3, 13


def _capsule_pointer(capsule: Any, name: bytes) -> int:
    api = ctypes.pythonapi
    api.PyCapsule_IsValid.argtypes = api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    return int(api.PyCapsule_GetPointer(capsule, name)) if api.PyCapsule_IsValid(capsule, name) else 0


def _of_dlpack(x: Any, role: str, stream: int | None) -> View:
    framework = "jax" if type(x).__module__.split(".")[0] in ("jax", "jaxlib") else "dlpack"
    if framework == "jax":
        x.block_until_ready()
    try:
        kind, index = (int(number) for number in x.__dlpack_device__())
    except Exception as error:
        raise Error(f"{role}, a {type(x).__name__}, does not say by DLPack where it lies: {error}") from error
    if kind not in (_DL_CPU, _DL_CUDA, _DL_CUDA_HOST, _DL_CUDA_MANAGED):
        raise Error(f"{role} is on the DLPack device {kind}:{index}; use the CPU or a CUDA device")
    on_gpu = kind in (_DL_CUDA, _DL_CUDA_MANAGED)
    # 1 is the default stream of CUDA in DLPack's numbering.
    number = (stream or 1) if on_gpu else None
    try:
        try:
            capsule = x.__dlpack__(stream=number, max_version=(1, 0))
        except TypeError:  # from before DLPack 1, which brought flags
            capsule = x.__dlpack__(stream=number)
    except Exception as error:
        raise Error(f"{role}, a {type(x).__name__}, cannot be handed over by DLPack: {error}") from error
    flags, pointer = 0, _capsule_pointer(capsule, b"dltensor")
    if pointer:
        tensor = _Tensor.from_address(pointer)
    else:
        pointer = _capsule_pointer(capsule, b"dltensor_versioned")
        versioned = _Versioned.from_address(pointer) if pointer else None
        if versioned is None or versioned.major != 1:
            raise Error(f"{role}, a {type(x).__name__}, gave a DLPack capsule of an unknown kind: {capsule!r}")
        flags, tensor = versioned.flags, versioned.tensor
    kind_and_bits = (tensor.code, tensor.bits)
    dtype = _DL_DTYPES.get(kind_and_bits)
    wanted = _function_dtypes(role)
    if wanted:
        dtype = {(2, 32): "fp32", (0, 32): "int32", (6, 8): "bool"}.get(kind_and_bits)
        if dtype not in [_FUNCTION_NAMES[name] for name in wanted] or tensor.lanes != 1:
            raise Error(f"{role} is of DLPack dtype ({tensor.code}, {tensor.bits}, {tensor.lanes}); give {' or '.join(wanted)}")
    whole = _WHOLE_ROLES.get(role)
    if whole:
        if kind_and_bits != (0, 8 * ITEM_BYTES[whole]) or tensor.lanes != 1:
            raise Error(f"{role} is of DLPack dtype ({tensor.code}, {tensor.bits}, {tensor.lanes}); give {whole}")
        dtype = whole
    if dtype is None or tensor.lanes != 1 or (dtype == "int8" and role not in _CACHE_ROLES):
        raise Error(f"{role} is of DLPack dtype ({tensor.code}, {tensor.bits}, {tensor.lanes}); use {_usual_dtypes(role)}")
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    strides = tuple(tensor.strides[axis] for axis in range(tensor.ndim)) if tensor.strides else _contiguous(shape)
    address = (tensor.data or 0) + tensor.byte_offset
    writable = framework != "jax" and not flags & (_DL_READ_ONLY | _DL_COPIED)
    return View(framework, f"cuda:{index}" if on_gpu else "cpu", dtype, shape, strides, address, (x, capsule), writable)


def view(x: Any, role: str, stream: int | None = None) -> View:
    """Error, naming the argument `role`, for what is no array of a supported dtype, device or layout."""
    if isinstance(x, View):
        return x
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _of_torch(x, role)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(x, numpy.ndarray):
        return _of_numpy(x, role)
    gpu = getattr(x, "__cuda_array_interface__", None)
    if gpu is not None and type(x).__module__.split(".")[0] == "cupy":
        return _of_interface(x, gpu, "cupy", f"cuda:{x.device.id}", role)
    if isinstance(x, memoryview):
        return _of_buffer(x, role)
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        return _of_dlpack(x, role, stream)
    number = "a positive number, or " if role in _FACTOR_ROLES else ""
    raise Error(f"{role} is a {type(x).__name__}; give {number}a NumPy, CuPy, JAX or PyTorch array, a memoryview, or any that has __dlpack__")


def cache_view(x: Any, role: str, stream: int | None, kv_dtype: Any, *, written: bool = False) -> View:
    """`view` of k or v, or `output` of a cache. With "int4" of an array of uint8, two elements a byte, as if each had a place of its own."""
    if kv_dtype is None or isinstance(x, View):
        return (output if written else view)(x, role, stream)
    if kv_dtype != "int4":
        raise Error(f"kv_dtype is {kv_dtype!r}; use 'int4' for arrays of uint8 with two elements a byte, and None for others, whose dtype says it")
    name = str(getattr(x, "dtype", "")).split(".")[-1]
    if name != "uint8" or not hasattr(x, "view"):
        found = f"of dtype {name}" if name else f"a {type(x).__name__}"
        raise Error(f"{role} is {found} and kv_dtype is 'int4'; give a NumPy, CuPy, JAX or PyTorch array of uint8, two elements a byte")
    torch = sys.modules.get("torch")
    read = output if written else view
    found = read(x.view(torch.int8 if torch is not None and isinstance(x, torch.Tensor) else "int8"), role, stream)
    if not found.shape:
        return found
    column = 1 if found.strides[-1] == 1 or found.shape[-1] == 1 else 2 * found.strides[-1]
    return found._replace(dtype="int4", shape=(*found.shape[:-1], 2 * found.shape[-1]), strides=(*(2 * s for s in found.strides[:-1]), column))


def require_adjacent(role: str, x: View) -> None:
    if x.shape[-1] > 1 and x.strides[-1] != 1:
        # `cache_view` counts elements, of which two lie in one of the caller's bytes.
        stride = x.strides[-1] // 2 if x.dtype == "int4" else x.strides[-1]
        raise Error(f"{role} has stride {stride} along its last axis; the elements of a row must be adjacent: copy it with .contiguous() or "
                    "numpy.ascontiguousarray")  # fmt: skip


class _Iovec(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


_libc = ctypes.CDLL(None, use_errno=True)
_copies = [getattr(_libc, name, None) for name in ("process_vm_writev", "process_vm_readv")]
for _copy in _copies:
    if _copy is not None:
        _copy.argtypes = (ctypes.c_int, ctypes.POINTER(_Iovec), ctypes.c_ulong, ctypes.POINTER(_Iovec), ctypes.c_ulong, ctypes.c_ulong)
        _copy.restype = ctypes.c_ssize_t


def _faults_when_written(address: int) -> bool:
    """Whether a program would die of writing to `address`. The kernel reads the byte there and writes it as it was, and answers
    EFAULT where it cannot. False where the kernel has no such calls or forbids them."""
    byte = ctypes.c_char()
    there, here = _Iovec(address, 1), _Iovec(ctypes.addressof(byte), 1)
    for copy in _copies:
        if copy is None:
            return False
        if copy(os.getpid(), there, 1, here, 1, 0) != 1:
            return ctypes.get_errno() == errno.EFAULT
    return False


_madvise = getattr(_libc, "madvise", None)
if _madvise is not None:
    _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, from Linux 5.14: pages become writable, and their bytes stay
_POPULATED_BYTES = 4 << 20  # at most: up to here it takes less time than reading the list of mappings, half a millisecond


def _span(found: View) -> tuple[int, int]:
    """The addresses of the first byte, and behind the last one."""
    item = ITEM_BYTES[found.dtype]
    reaches = [(extent - 1) * stride * item for extent, stride in zip(found.shape, found.strides)]
    return found.address + sum(min(0, reach) for reach in reaches), found.address + sum(max(0, reach) for reach in reaches) + item


def _has_page_to_read_only(low: int, high: int) -> bool:
    """Whether any page from `low` to `high` is mapped read-only or not at all. The page of one element may be known already."""
    first = low - low % mmap.PAGESIZE
    if high - first <= mmap.PAGESIZE:
        return False
    if high - first <= _POPULATED_BYTES and _madvise is not None and _madvise(first, high - first, _POPULATE_WRITE) == 0:
        return False
    try:
        with open("/proc/self/maps", "rb") as file:
            mappings = file.readlines()
    except OSError:
        return False
    for mapping in mappings:
        addresses, flags = mapping.split(maxsplit=2)[:2]
        begin, end = (int(address, 16) for address in addresses.split(b"-"))
        if end <= low:
            continue
        if begin > low or b"w" not in flags:
            return True
        low = end
        if low >= high:
            return False
    return True


def output(x: Any, role: str, stream: int | None = None) -> View:
    """As view(), of an array that is to be written."""
    found = view(x, role, stream)
    # PyTorch keeps no flag for a tensor over a read-only mapping (torch.from_numpy of a memmap), and NumPy none for its view of one.
    if found.writable and found.device == "cpu" and 0 not in found.shape and (
            _faults_when_written(found.address) or _has_page_to_read_only(*_span(found))):  # fmt: skip
        raise Error(f"{role}, a {type(x).__name__}, lies in memory that is mapped read-only, all or a part of it; give an array that can be "
                    f"written, or leave {role}= away")  # fmt: skip
    if not found.writable:
        raise Error(f"{role}, a {type(x).__name__}, cannot be written (it is read-only, or DLPack hands out a copy); give an array that can, "
                    f"or leave {role}= away")  # fmt: skip
    return found


def empty_like(like: View, shape: tuple[int, ...], dtype: str) -> Any:
    """A new contiguous array of the framework and on the device of `like`."""
    name = _FULL_NAMES[dtype]
    if like.framework == "torch":
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, name), device=like.keep.device)
    if like.framework == "cupy":
        cupy = sys.modules["cupy"]
        with like.keep.device:
            return cupy.empty(shape, dtype=like.keep.dtype if dtype == like.dtype else name)
    if like.framework == "jax":
        jax = sys.modules["jax"]
        with jax.default_device(next(iter(like.keep[0].devices()))):
            return jax.numpy.zeros(shape, dtype=getattr(jax.numpy, name)).block_until_ready()
    try:
        if like.framework == "numpy":
            kind = like.keep.dtype if dtype == like.dtype else name
            if kind == "bfloat16":  # whoever has arrays of 8-bit floats has ml_dtypes
                kind = sys.modules["ml_dtypes"].bfloat16
            return sys.modules["numpy"].empty(shape, dtype=kind)
        if like.framework == "buffer":
            elements = math.prod(shape)
            return memoryview(bytearray(elements * ITEM_BYTES[dtype])).cast({"fp32": "f", "fp16": "e"}[dtype], shape)
    except (MemoryError, OverflowError, TypeError, ValueError) as error:
        raise Error(f"a result of shape {shape} cannot be made: {error}", "environment") from error
    raise Error(f"there is no way known to make a result for a {type(like.keep[0]).__name__}; give one as out=")


def current_stream(like: View) -> int:
    """The CUstream on which the framework of `like` enqueues its work, as a number; 0 is the default stream."""
    if like.device == "cpu":
        return 0
    if like.framework == "torch":
        return int(sys.modules["torch"].cuda.current_stream(like.keep.device).cuda_stream)
    if like.framework == "cupy":
        with like.keep.device:
            return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    return 0


def must_wait(like: View) -> bool:
    """JAX has streams of its own that it does not tell: its arrays are good to others only after waiting."""
    return like.framework in ("jax", "dlpack") and like.device != "cpu"


def note_written(x: Any) -> None:
    """Autograd must know: what saved a tensor for its backward pass would otherwise compute with the new values."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor) and not torch.is_inference(x):
        torch.autograd.graph.increment_version(x)
