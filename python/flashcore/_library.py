"""The shared library: found, checked to be of this package's version, and its functions declared."""

from __future__ import annotations

import ctypes
import os
import pathlib
import sys
import threading
from typing import Any

from . import _trust

__version__ = "0.1.0"
ABI_VERSION = 15

_FOLDER = pathlib.Path(__file__).resolve().parent
_STATUS = {1: "bad input", 2: "environment", 3: "device lost", 4: "internal"}


class Error(RuntimeError):
    """What every function of flashcore raises. The message says what was given, what is allowed and what to do.

    `kind` says who has to act: "bad input" (the caller), "environment" (the machine: no driver, no NVRTC, no memory),
    "device lost" (the GPU reported a fault; the process cannot use it any more) or "internal" (flashcore).
    """

    def __init__(self, message: str, kind: str = "bad input") -> None:
        super().__init__(message)
        self.kind = kind


class Note(UserWarning):
    """Something worth knowing that is no error: a slower kernel or PyTorch runs, and why. Each is said once."""


class Strides(ctypes.Structure):
    """fc_strides."""

    _fields_ = [("batch", ctypes.c_int64), ("head", ctypes.c_int64), ("row", ctypes.c_int64)]


# fc_given: without its bit, a tensor whose strides are all 0 is contiguous, a scale of 0 is 1/sqrt(head_dim), and a side
# of the window that is 0 has no bound; without GIVEN_O_DTYPE the output has q's dtype, or bf16 where that has 8 bits.
GIVEN_STRIDES = 15
GIVEN_SCALE = 16
GIVEN_WINDOW = 32
GIVEN_O_DTYPE = 64
GIVEN_SOFTCAP = 128
GIVEN_TENSOR_STRIDES = 256
GIVEN_KV_DTYPE = 512


class Tensor(ctypes.Structure):
    """fc_tensor."""

    _fields_ = [("name", ctypes.c_char_p), ("element", ctypes.c_int32), ("rank", ctypes.c_int32), ("sizes", ctypes.c_int64 * 4),
                ("strides", ctypes.c_int64 * 4)]  # fmt: skip


class Attention(ctypes.Structure):
    """fc_attention, field by field as in flashcore.h."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32), ("dtype", ctypes.c_int32), ("batch", ctypes.c_int64), ("heads_q", ctypes.c_int64),
        ("heads_kv", ctypes.c_int64), ("seqlen_q", ctypes.c_int64), ("seqlen_kv", ctypes.c_int64), ("head_dim", ctypes.c_int64),
        ("head_dim_v", ctypes.c_int64), ("causal", ctypes.c_int32), ("alignment", ctypes.c_int32), ("scale", ctypes.c_double),
        ("q", Strides), ("k", Strides), ("v", Strides), ("o", Strides), ("candidate", ctypes.c_char_p), ("given", ctypes.c_uint32),
        ("window_left", ctypes.c_int64), ("window_right", ctypes.c_int64), ("window_alignment", ctypes.c_int32),
        ("unused", ctypes.c_int32), ("o_dtype", ctypes.c_int32), ("scaling", ctypes.c_int32), ("softcap", ctypes.c_double),
        ("alibi", ctypes.c_int32), ("sink", ctypes.c_int32), ("lengths", ctypes.c_int32), ("deterministic_batch", ctypes.c_int32),
        ("total_q", ctypes.c_int64), ("total_kv", ctypes.c_int64), ("score", ctypes.c_char_p), ("mask", ctypes.c_char_p),
        ("tensors", ctypes.POINTER(Tensor)), ("tensor_count", ctypes.c_int32), ("kv_dtype", ctypes.c_int32),
        ("page_size", ctypes.c_int64), ("pages", ctypes.c_int64), ("max_pages", ctypes.c_int64), ("table_stride", ctypes.c_int64),
        ("v_layout", ctypes.c_int32), ("amax", ctypes.c_int32),
    ]  # fmt: skip

    def __init__(self, **fields: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(Attention), **fields)


class Operands(ctypes.Structure):
    """fc_operands, field by field as in flashcore.h. Addresses; 0 is null."""

    _fields_ = [("struct_size", ctypes.c_uint32), ("unused", ctypes.c_uint32)] + [
        (name, ctypes.c_size_t) for name in ("q", "k", "v", "o", "lse", "descale_q", "descale_k", "descale_v", "alibi", "sink",
                                             "cu_seqlens_q", "cu_seqlens_kv", "seqused_kv", "seqused_q", "tensors", "block_table", "amax", "block_mask")]  # fmt: skip

    def __init__(self, **fields: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(Operands), **fields)


class AppendKind(ctypes.Structure):
    """fc_append_kind, field by field as in flashcore.h."""

    _fields_ = [("struct_size", ctypes.c_uint32), ("dtype", ctypes.c_int32), ("rotary", ctypes.c_int32), ("rotary_dtype", ctypes.c_int32),
                ("cache_dtype", ctypes.c_int32), ("counts_saturated", ctypes.c_int32)]  # fmt: skip

    def __init__(self, **fields: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(AppendKind), **fields)


class AppendOperands(ctypes.Structure):
    """fc_append_operands, field by field as in flashcore.h. Addresses; 0 is null."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32), ("q_at_length", ctypes.c_int32), ("batch", ctypes.c_int64), ("heads_kv", ctypes.c_int64),
        ("head_dim", ctypes.c_int64), ("head_dim_v", ctypes.c_int64), ("rows_new", ctypes.c_int64), ("k", ctypes.c_size_t), ("v", ctypes.c_size_t),
        ("k_strides", Strides), ("v_strides", Strides), ("pages", ctypes.c_int64), ("page_size", ctypes.c_int64), ("k_cache", ctypes.c_size_t),
        ("v_cache", ctypes.c_size_t), ("k_cache_strides", Strides), ("v_cache_strides", Strides), ("cache_seqlens", ctypes.c_size_t),
        ("cu_seqlens_new", ctypes.c_size_t), ("block_table", ctypes.c_size_t), ("max_pages", ctypes.c_int64), ("table_stride", ctypes.c_int64),
        ("row_sequences", ctypes.c_size_t), ("row_positions", ctypes.c_size_t), ("table_starts", ctypes.c_size_t), ("rotary_dim", ctypes.c_int64),
        ("rotary_rows", ctypes.c_int64), ("rotary_stride", ctypes.c_int64), ("cos", ctypes.c_size_t), ("sin", ctypes.c_size_t),
        ("heads_q", ctypes.c_int64), ("rows_q", ctypes.c_int64), ("q", ctypes.c_size_t), ("q_out", ctypes.c_size_t), ("q_strides", Strides),
        ("q_out_strides", Strides), ("cu_seqlens_q", ctypes.c_size_t), ("new_seqlens", ctypes.c_size_t), ("refused", ctypes.c_size_t),
        ("descale_k", ctypes.c_size_t), ("descale_v", ctypes.c_size_t), ("scaling", ctypes.c_int32), ("unused_scaling", ctypes.c_int32),
        ("new_descale_k", ctypes.c_size_t), ("new_descale_v", ctypes.c_size_t), ("saturated", ctypes.c_size_t),
    ]  # fmt: skip

    def __init__(self, **fields: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(AppendOperands), **fields)

    @property
    def shape_of_keys(self) -> tuple[int, int, int]:
        return (self.pages, self.heads_kv, self.page_size)


class QuantizeKind(ctypes.Structure):
    """fc_quantize_kind, field by field as in flashcore.h."""

    _fields_ = [("struct_size", ctypes.c_uint32), ("dtype", ctypes.c_int32), ("code_dtype", ctypes.c_int32), ("counts_saturated", ctypes.c_int32)]

    def __init__(self, **fields: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(QuantizeKind), **fields)


class QuantizeOperands(ctypes.Structure):
    """fc_quantize_operands, field by field as in flashcore.h. Addresses; 0 is null."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32), ("scaling", ctypes.c_int32), ("batch", ctypes.c_int64), ("heads_q", ctypes.c_int64),
        ("heads_kv", ctypes.c_int64), ("seqlen_q", ctypes.c_int64), ("seqlen_kv", ctypes.c_int64), ("head_dim", ctypes.c_int64),
        ("head_dim_v", ctypes.c_int64), ("q", ctypes.c_size_t), ("k", ctypes.c_size_t), ("v", ctypes.c_size_t), ("q_strides", Strides),
        ("k_strides", Strides), ("v_strides", Strides), ("q_codes", ctypes.c_size_t), ("k_codes", ctypes.c_size_t), ("v_codes", ctypes.c_size_t),
        ("q_codes_strides", Strides), ("k_codes_strides", Strides), ("v_codes_strides", Strides), ("descale_q", ctypes.c_size_t),
        ("descale_k", ctypes.c_size_t), ("descale_v", ctypes.c_size_t), ("k_mean", ctypes.c_size_t), ("hadamard", ctypes.c_int32),
        ("v_layout", ctypes.c_int32), ("seed", ctypes.c_uint64), ("has_factors", ctypes.c_int32), ("block_q", ctypes.c_int32), ("block_kv", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("saturated", ctypes.c_size_t),
    ]  # fmt: skip

    def __init__(self, **fields: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(QuantizeOperands), **fields)


TIMED_CALL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


class TimedWork(ctypes.Structure):
    """fc_timed_work, field by field as in flashcore.h."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32), ("launches", ctypes.c_int32), ("graph", ctypes.c_void_p), ("call", TIMED_CALL),
        ("user", ctypes.c_void_p), ("sample_us", ctypes.c_double),
    ]  # fmt: skip

    def __init__(self, **fields: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(TimedWork), **{"launches": 1, **fields})


_P = ctypes.c_void_p
_ADDRESS = ctypes.c_size_t  # a number and nothing else; a void pointer would take the address of a str
_TEXT = [ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]
_FUNCTIONS = {
    "fc_set_cpu_threads": [ctypes.c_int32],
    "fc_cpu_threads": [],
    "fc_context_create": [ctypes.c_char_p, ctypes.POINTER(_P)],
    "fc_context_destroy": [_P],
    "fc_context_describe": [_P, *_TEXT],
    "fc_context_synchronize": [_P, _P],
    "fc_plan_create": [_P, ctypes.POINTER(Attention), ctypes.POINTER(_P)],
    "fc_plan_destroy": [_P],
    "fc_plan_describe": [_P, *_TEXT],
    "fc_plan_launch": [_P, *[_ADDRESS] * 6],
    "fc_append_create": [_P, ctypes.POINTER(AppendKind), ctypes.POINTER(_P)],
    "fc_append_destroy": [_P],
    "fc_append_launch": [_P, ctypes.POINTER(AppendOperands), _ADDRESS],
    "fc_quantize_create": [_P, ctypes.POINTER(QuantizeKind), ctypes.POINTER(_P)],
    "fc_quantize_destroy": [_P],
    "fc_quantize_launch": [_P, ctypes.POINTER(QuantizeOperands), _ADDRESS],
    "fc_timer_create": [_P, ctypes.POINTER(TimedWork), ctypes.POINTER(_P)],
    "fc_timer_destroy": [_P],
    "fc_timer_sample": [_P, ctypes.c_double, ctypes.c_double, ctypes.POINTER(ctypes.c_double), ctypes.POINTER(ctypes.c_double)],
    "fc_timer_launches": [_P, ctypes.c_double, ctypes.POINTER(ctypes.c_int32)],
    "fc_plan_launch_scaled": [_P, *[_ADDRESS] * 9],
    "fc_plan_launch_operands": [_P, ctypes.POINTER(Operands), _ADDRESS],
    "fc_plan_status": [_P, ctypes.POINTER(Operands), _ADDRESS, *_TEXT],
    "fc_block_mask_create": [_P, ctypes.POINTER(Operands), _ADDRESS, ctypes.POINTER(_P)],
    "fc_block_mask_update": [_P, ctypes.POINTER(Operands), _ADDRESS],
    "fc_block_mask_destroy": [_P],
    "fc_explain": [_P, ctypes.POINTER(Attention), *_TEXT],
    "fc_problem_parse": [ctypes.c_char_p, ctypes.POINTER(Attention)],
}


def find_bundled(name: str) -> pathlib.Path:
    """A file that travels in the wheel."""
    return _FOLDER / "_lib" / name


def library_path() -> pathlib.Path:
    """$FLASHCORE_LIBRARY, else the library that came with this package."""
    chosen = os.environ.get("FLASHCORE_LIBRARY")
    return pathlib.Path(chosen) if chosen else find_bundled("libflashcore.so")


def _package_folders() -> list[str]:
    """Where Python finds packages, but for the current directory."""
    try:
        here = os.getcwd()
    except OSError:  # removed
        here = ""
    return [folder for folder in sys.path if os.path.isabs(folder) and os.path.realpath(folder) != here]


def _find_nvrtc() -> str | None:
    """libnvrtc of the nvidia wheels (nvidia-cuda-nvrtc, which PyTorch brings) or of a toolkit, the newest first.

    Not from the current directory, and not what somebody else could have put there. A file that is known by its path lets
    the library find compiled kernels without opening it."""
    for name in ("libnvrtc.so.13", "libnvrtc.so.12"):
        for folder in _package_folders():
            for wheel in ("nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"):
                path = pathlib.Path(folder) / wheel / name
                if path.is_file() and _trust.is_ours(path):
                    return str(path)
        toolkit = pathlib.Path("/usr/local/cuda/lib64") / name
        if toolkit.is_file() and _trust.is_ours(toolkit):
            return str(toolkit)
    return None


def _load() -> ctypes.CDLL:
    path = library_path()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise Error(
            f"the shared library {path} cannot be loaded: {error}. Install the flashcore wheel, or set FLASHCORE_LIBRARY "
            "to a libflashcore.so (build/libflashcore.so of a checkout)", "environment") from error  # fmt: skip
    try:
        library.fc_version.restype = ctypes.c_char_p
        library.fc_last_error.restype = ctypes.c_char_p
        library.fc_abi_version.restype = ctypes.c_uint32
        abi, version = library.fc_abi_version(), library.fc_version().decode()
        if abi != ABI_VERSION or version != __version__:
            raise Error(
                f"{path} is flashcore {version} (ABI {abi}), and these Python files are {__version__} (ABI {ABI_VERSION}): "
                "they must be of one build. Reinstall the wheel, or unset FLASHCORE_LIBRARY", "environment")  # fmt: skip
        for name, arguments in _FUNCTIONS.items():
            function = getattr(library, name)
            function.argtypes = arguments
            function.restype = ctypes.c_int
    except AttributeError as error:
        raise Error(f"{path} is no libflashcore.so of version {__version__}: {error}. Reinstall the wheel, or unset "
                    "FLASHCORE_LIBRARY", "environment") from error  # fmt: skip
    # The library looks beside the program and in the system; only Python knows where its packages lie. Child processes
    # (bench, tune) inherit it.
    if "FLASHCORE_NVRTC" not in os.environ:
        nvrtc = _find_nvrtc()
        if nvrtc:
            os.environ["FLASHCORE_NVRTC"] = nvrtc
    return library


_lock = threading.RLock()


def _renew_lock() -> None:
    # Another thread of the parent may have held it when this process was forked, and is not here to give it back.
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)
_library: ctypes.CDLL | None = None
_contexts: dict[str, int] = {}


def library() -> ctypes.CDLL:
    """The loaded library. Error if it is missing or of another version."""
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                _library = _load()
    return _library


def raise_last_error(status: int) -> None:
    raise Error(library().fc_last_error().decode(errors="replace"), _STATUS.get(status, "internal"))


def check(status: int) -> None:
    if status:
        raise_last_error(status)


def encoded(value: Any, name: str) -> bytes:
    """A str as C takes it. Error, naming the argument, for anything else."""
    if not isinstance(value, str):
        raise Error(f"{name} is {value!r}, a {type(value).__name__}; give a str")
    if "\0" in value:
        raise Error(f"{name} is {value!r}, with a zero character in it; leave that away")
    return value.encode(errors="replace")


def text_of(function: Any, *arguments: Any) -> str:
    """What a function with a text buffer at its end says."""
    size, needed = 0, ctypes.c_size_t(1)
    while needed.value > size:  # what is said may grow meanwhile
        size = needed.value
        buffer = ctypes.create_string_buffer(size)
        check(function(*arguments, buffer, size, ctypes.byref(needed)))
    return buffer.value.decode()


def context(device: str) -> int:
    """The process's one context on a device, "" for the best there is. Never closed: captured graphs may still use its kernels at exit."""
    name = encoded(device, "device")
    found = _contexts.get(device)
    if found is not None:
        return found
    with _lock:
        if device not in _contexts:
            handle = ctypes.c_void_p()
            check(library().fc_context_create(name, ctypes.byref(handle)))
            assert handle.value is not None
            _contexts[device] = handle.value
        return _contexts[device]


_own_threads = 0
_followed = 0


def set_num_threads(threads: int) -> None:
    """How many threads a launch on the CPU uses at most, for the whole process and from the next launch on.

    Args:
        threads: from 1 on; 0 for the default: FLASHCORE_THREADS, else OMP_NUM_THREADS, else the cores that affinity and the
            container's quota leave, which are never exceeded. Launches that another thread would not make faster use one.
            Calls through `flashcore.torch` use no more than torch.get_num_threads() besides.
    """
    global _own_threads
    # ctypes would cut a larger number down to 32 bits.
    if not isinstance(threads, int) or isinstance(threads, bool) or not 0 <= threads < 1 << 31:
        raise Error(f"threads is {threads!r}; give a whole number from 1 on, or 0 for the default")
    _own_threads = threads
    _apply_threads()


def follow_threads(threads: int) -> None:
    """No more than a framework's own setting from here on. For every launch: a comparison unless it has changed."""
    global _followed
    if threads != _followed:
        _followed = threads
        _apply_threads()


def _apply_threads() -> None:
    check(library().fc_set_cpu_threads(_own_threads))
    if 0 < _followed < num_threads():
        check(library().fc_set_cpu_threads(_followed))


def num_threads() -> int:
    """How many threads a launch on the CPU uses at most."""
    threads = library().fc_cpu_threads()
    if threads < 1:
        raise_last_error(1)
    return threads
