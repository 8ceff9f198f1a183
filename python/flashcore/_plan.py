"""Plans (a problem made ready on a device) and flashcore.attention, which keeps them."""

from __future__ import annotations

import collections
import ctypes
import json
import numbers
import operator
import os
import sys
import threading
import warnings
import weakref
from typing import Any, Sequence

from . import _arrays, _library
from ._arrays import View
from . import _block_mask, _factors, _functions, _scores
from ._block_mask import BlockMask
from ._library import GIVEN_KV_DTYPE, GIVEN_O_DTYPE, GIVEN_SCALE, GIVEN_SOFTCAP, GIVEN_STRIDES, GIVEN_TENSOR_STRIDES, GIVEN_WINDOW, Attention, Error, Note, Operands, Strides

DTYPES = {"fp32": 0, "fp16": 1, "bf16": 2, "e4m3": 3, "e5m2": 4, "int8": 5, "int4": 6}
CAUSAL = {False: 0, None: 0, "none": 0, True: 1, "bottom_right": 1, "top_left": 2}
ALIGNMENTS = {None: 0, "bottom_right": 0, "top_left": 1}
LAYOUTS = {"bhsd": (0, 1, 2), "bshd": (0, 2, 1)}  # where batch, head and row stand
V_LAYOUTS = {"nd": 0, "dn": 1}  # fc_v_layout
_MAX_PLANS = 1024

_said: set[str] = set()


def say_once(text: str, key: str | None = None) -> None:
    """A Note, the first time that it is given, or that one of its `key` is."""
    if (key or text) not in _said:
        _said.add(key or text)
        warnings.warn(text, Note, stacklevel=_callers_level())


def _callers_level() -> int:
    """The stacklevel, for one who calls this, of the line that is the user's: the nearest outside this package, PyTorch and
    transformers; else the nearest outside this package."""
    frameworks = [os.path.dirname(str(getattr(sys.modules.get(name), "__file__", None) or "/nowhere/x")) + os.sep for name in ("torch", "transformers")]
    own = os.path.dirname(__file__) + os.sep
    frame, level, outside = sys._getframe(1), 1, 0
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(own):
            outside = outside or level
            # PyTorch's compiled Python has names as "<eval_with_key>.0" and "<frozen ...>".
            if not name.startswith((*frameworks, "<eval_with_key>", "<frozen")):
                return level
        frame, level = frame.f_back, level + 1  # type: ignore[assignment]
    return outside or 2


def _causal_number(causal: Any) -> int:
    try:
        return CAUSAL[causal]
    except (KeyError, TypeError):
        raise Error(f"causal is {causal!r}; use False, True (the same as 'bottom_right') or 'top_left'") from None


_NO_WINDOW = (-1, -1)


def window_sides(window: Any) -> tuple[int, int]:
    """(left, right) with -1 for no bound."""
    if window is None:
        return _NO_WINDOW
    sides: list[int] = []
    if isinstance(window, (tuple, list)) and len(window) == 2:
        for side in window:
            try:
                number = -1 if side is None else operator.index(side)
            except TypeError:
                break
            if isinstance(side, bool) or not -1 <= number < 2**31:
                break
            sides.append(number)
    if len(sides) != 2:
        raise Error(f"window is {window!r}; use (left, right): how many keys a row sees on either side of its own one, None or -1 for no bound")
    return sides[0], sides[1]


def _alignment_number(alignment: Any, causal: int, window: tuple[int, int]) -> int:
    try:
        number = ALIGNMENTS[alignment]
    except (KeyError, TypeError):
        raise Error(f"window_alignment is {alignment!r}; use 'bottom_right' (the default) or 'top_left'") from None
    if alignment is not None and causal and number != causal - 1:
        raise Error(f"window_alignment is {alignment!r} and causal is aligned otherwise; leave window_alignment out, for causal says it")
    # Where nothing is bounded there is nothing to align.
    return number if window != _NO_WINDOW and not causal else 0


def _order_of(layout: Any) -> tuple[int, ...]:
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise Error(f"layout is {layout!r}; use 'bhsd' ([batch, heads, seqlen, head_dim]) or 'bshd'")
    return LAYOUTS[layout]


def _v_layout_number(v_layout: Any) -> int:
    if not isinstance(v_layout, str) or v_layout not in V_LAYOUTS:
        raise Error(f"v_layout is {v_layout!r}; use 'nd' (v lies as k does), or 'dn' for v of 8 bits as [batch, heads_kv, head_dim_v, seqlen_kv]")
    return V_LAYOUTS[v_layout]


def _scale_number(scale: Any) -> float | None:
    if scale is None:
        return None
    # bool is a number to Python, and an argument in the wrong place to us.
    if isinstance(scale, numbers.Real) and not isinstance(scale, bool):
        try:
            number = float(scale)
        except OverflowError:
            number = float("inf")
        if 1e-6 <= number <= 1e6:
            return number
    raise Error(f"scale is {scale!r}; use a number from 1e-6 to 1e6, or None for 1/sqrt(head_dim)")


def _stream_number(stream: Any) -> int | None:
    if stream is None:
        return None
    try:
        number = operator.index(stream)
    except TypeError:
        number = -1
    if isinstance(stream, bool) or not 0 <= number < 2**64:
        raise Error(f"stream is {stream!r}; give a CUstream as a number (torch.cuda.Stream.cuda_stream, cupy.cuda.Stream.ptr), or None")
    return number


class Plan:
    """One problem made ready on one device: a kernel chosen, compiled and loaded.

    Make it with `flashcore.plan`. It never changes, may be used from any thread, and a launch allocates nothing, so it
    may be captured into a CUDA graph.

    Attributes:
        device: "cpu" or "cuda:N".
        info: what was chosen and why: "problem", "family", "config", "candidate", "reason", "notes", "alignment" (bytes
            that every address must be a multiple of), "block_mask_bytes" (of the lists that a `BlockMask` spares each launch; 0: none), "compile_ms", "from_cache", ...
        tensors: names of what the score and mask functions read, in the order that `launch` takes their addresses in.
    """

    def __init__(self, device: str, problem: Attention) -> None:
        self.tensors: tuple[str, ...] = tuple(problem.tensors[n].name.decode() for n in range(problem.tensor_count))
        library = _library.library()
        handle = ctypes.c_void_p()
        _library.check(library.fc_plan_create(_library.context(device), ctypes.byref(problem), ctypes.byref(handle)))
        self._handle = handle.value
        self._launch = library.fc_plan_launch
        self._launch_scaled = library.fc_plan_launch_scaled
        self._launch_operands = library.fc_plan_launch_operands
        weakref.finalize(self, library.fc_plan_destroy, handle.value).atexit = False
        self.device = device
        self.info: dict[str, Any] = json.loads(_library.text_of(library.fc_plan_describe, handle.value))
        self._has_lists = self.info["block_mask_bytes"] > 0
        for note in self.info["notes"]:
            say_once(note)

    def launch(self, q: int, k: int, v: int, o: int, lse: int = 0, stream: int = 0, descale_q: int = 0, descale_k: int = 0,
               descale_v: int = 0, alibi: int = 0, sink: int = 0, cu_seqlens_q: int = 0, cu_seqlens_kv: int = 0, seqused_kv: int = 0,
               seqused_q: int = 0, tensors: Sequence[int] = (), block_table: int = 0, amax: int = 0,
               block_mask: BlockMask | None = None) -> None:  # fmt: skip
        """Enqueues one call on addresses.

        Args:
            q, k, v, o: addresses on the device, as `tensor.data_ptr()` gives them, with the shapes and strides of the plan.
            lse: address of fp32 [batch, heads_q, seqlen_q], contiguous; 0 if not wanted.
            stream: a CUstream as a number (`torch.cuda.current_stream().cuda_stream`); 0 is the default stream. On the
                CPU 0 only, and the call returns when it is done.
            descale_q, descale_k, descale_v: addresses of the fp32 factors of 8-bit q, k and v; 0 for a plan without.
            alibi: address of the fp32 slopes, [heads] or [batch, heads] as the plan has them; 0 for a plan without.
            sink: address of the fp32 sinks, [heads]; 0 for a plan without.
            cu_seqlens_q, cu_seqlens_kv: of a ragged batch: addresses of the int32 boundaries, [batch + 1]; 0 for others.
            seqused_kv, seqused_q: addresses of int32 [batch], how many keys and rows of each sequence count; 0: all.
            block_table: of a paged cache: address of the int32 pages, [batch, max_pages]; seqused_kv is needed then, cu_seqlens_kv 0.
            tensors: addresses of what the score and mask functions read, in the order of `Plan.tensors`.
            amax: address of fp32 [2, heads], where the largest magnitudes go; 0 for a plan without.
            block_mask: holds the lists of blocks that this launch would make otherwise; they are made here if it has none yet.

        Raises:
            Error: for a null or misaligned address, for an o or lse that overlaps another tensor, and for a device that
                reported a fault.
        """
        try:
            if len(tensors) != len(self.tensors):
                raise Error(f"tensors has {len(tensors)} addresses, and this plan has {len(self.tensors)} tensors: {', '.join(self.tensors) or 'none'}")
            given = _block_mask.require(block_mask)
            lists = given if self._has_lists else None
            if alibi or sink or cu_seqlens_q or cu_seqlens_kv or seqused_kv or seqused_q or tensors or block_table or amax or lists:
                addresses = (ctypes.c_size_t * len(tensors))(*tensors)
                operands = Operands(q=q, k=k, v=v, o=o, lse=lse, descale_q=descale_q, descale_k=descale_k, descale_v=descale_v, alibi=alibi, sink=sink,
                                    cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv, seqused_kv=seqused_kv, seqused_q=seqused_q,
                                    tensors=ctypes.addressof(addresses) if tensors else 0, block_table=block_table, amax=amax)  # fmt: skip
                if lists is not None:
                    held = lists._lists_for(self, operands, stream)
                    operands.block_mask = held.handle
                status = self._launch_operands(self._handle, ctypes.byref(operands), stream)
            elif descale_q or descale_k or descale_v:
                status = self._launch_scaled(self._handle, q, k, v, o, lse, descale_q, descale_k, descale_v, stream)
            else:
                status = self._launch(self._handle, q, k, v, o, lse, stream)
        except (ctypes.ArgumentError, TypeError) as error:
            raise Error(f"an address or the stream is no number ({error}); give them as tensor.data_ptr() does") from error
        if status:
            _library.raise_last_error(status)

    def status(self, cu_seqlens_q: int = 0, cu_seqlens_kv: int = 0, seqused_kv: int = 0, seqused_q: int = 0, block_table: int = 0,
               stream: int = 0) -> dict[int, str]:  # fmt: skip
        """Which sequences of a ragged batch may get NaN from a launch on these lengths, and why.

        Waits for the stream and reads the lengths, as they are then: to find a mistake, not for each call. It cannot be captured; of a
        captured launch give the addresses that were captured, after a replay. What was written over since the launch it cannot know.

        Args:
            cu_seqlens_q, cu_seqlens_kv, seqused_kv, seqused_q, block_table, stream: as of `launch`.

        Returns:
            {place in the batch: what was given and what is allowed}, of those with impossible lengths, and of those whose table has a page that
            the cache does not have among those of their keys: rows that see such a key are NaN, and behind a window there may be none. Empty for
            a plan of fixed lengths.

        Raises:
            Error: for a null or misaligned address, and where the stream is captured.
        """
        operands = Operands(cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv, seqused_kv=seqused_kv, seqused_q=seqused_q, block_table=block_table)
        said = json.loads(_library.text_of(_library.library().fc_plan_status, self._handle, ctypes.byref(operands), stream))
        return {bad["sequence"]: bad["why"] for bad in said["bad"]}

    def __repr__(self) -> str:
        return f"<flashcore.Plan {self.info['problem']} on {self.device}: {self.info['candidate']}>"


class _Sizes:
    """The sizes of one call, checked against each other."""

    def __init__(self, q: View, k: View, v: View, layout: str, v_layout: str = "nd") -> None:
        self.order = _order_of(layout)
        self.v_layout = _v_layout_number(v_layout)
        for role, x in (("q", q), ("k", k), ("v", v)):
            if len(x.shape) != 4:
                raise Error(f"{role} has shape {x.shape}; give four axes, [batch, heads, seqlen, head_dim] or those of layout='bshd'")
        _factors.require_types(q, ("k", k), ("v", v))
        if self.v_layout and q.dtype not in _factors.DTYPES:
            raise Error(f"v_layout is 'dn', q is {q.dtype} and v {v.dtype}; only dense q, k and v of 8 bits may have v transposed")
        (self.batch, self.heads_q, self.seqlen_q), self.head_dim = self._axes(q), q.shape[3]
        (batch_k, self.heads_kv, self.seqlen_kv), dim_k = self._axes(k), k.shape[3]
        batch_v, heads_v, seqlen_v = self._axes(v)
        self.head_dim_v = v.shape[3]
        if self.v_layout:
            batch_v, heads_v, self.head_dim_v, seqlen_v = v.shape
        if batch_k != self.batch or batch_v != self.batch:
            raise Error(f"q, k and v have {self.batch}, {batch_k} and {batch_v} batch entries; all three must agree")
        if (heads_v, seqlen_v) != (self.heads_kv, self.seqlen_kv):
            hint = " (v_layout='dn' says that v lies transposed, as flashcore.quantize makes it)" if v.shape[3] == self.seqlen_kv and not self.v_layout else ""
            raise Error(f"k has {self.heads_kv} heads of {self.seqlen_kv} rows and v has {heads_v} of {seqlen_v}; both must agree{hint}")
        if dim_k != self.head_dim:
            raise Error(f"q has head_dim {self.head_dim} and k has {dim_k}; both must agree")

    @property
    def shape_of_rows(self) -> tuple[int, int, int]:
        return (self.batch, self.heads_q, self.seqlen_q)

    @property
    def shape_of_keys(self) -> tuple[int, int, int]:
        return (self.batch, self.heads_kv, self.seqlen_kv)

    def _axes(self, x: View) -> tuple[int, ...]:
        return tuple(x.shape[axis] for axis in self.order)

    def output_shape(self, columns: int) -> tuple[int, ...]:
        axes = [self.batch, self.heads_q, self.seqlen_q]
        return (*(axes[axis] for axis in self.order), columns)

    def strides(self, role: str, x: View) -> Strides:
        _arrays.require_adjacent(role, x)
        return Strides(*(x.strides[axis] for axis in (LAYOUTS["bhsd"] if role == "v" and self.v_layout else self.order)))


def _alignment(q: View, k: View, v: View, o: View) -> int:
    bits = 16 | q.address | k.address | v.address | o.address
    alignment = min(bits & -bits, 16)
    if alignment < max(_arrays.ITEM_BYTES[q.dtype], _arrays.ITEM_BYTES[o.dtype]):
        for role, x in (("q", q), ("k", k), ("v", v), ("out", o)):
            if x.address % _arrays.ITEM_BYTES[x.dtype]:
                raise Error(f"{role} is at {x.address:#x}, which is no multiple of its {_arrays.ITEM_BYTES[x.dtype]}-byte elements: copy it")
    return alignment


def _make_problem(sizes: _Sizes, q: View, k: View, v: View, o: View, causal: int, window: tuple[int, int], window_alignment: int,
                  scale: float | None, alignment: int, candidate: bytes | None, scaling: int, scores: _scores.Scores,
                  functions: _functions.Functions) -> Attention:  # fmt: skip
    return Attention(
        dtype=DTYPES[q.dtype], kv_dtype=DTYPES[k.dtype], batch=sizes.batch, heads_q=sizes.heads_q, heads_kv=sizes.heads_kv, seqlen_q=sizes.seqlen_q,
        seqlen_kv=sizes.seqlen_kv, head_dim=sizes.head_dim, head_dim_v=sizes.head_dim_v, causal=causal,
        alignment=alignment, scale=0.0 if scale is None else scale, q=sizes.strides("q", q), k=sizes.strides("k", k), v=sizes.strides("v", v),
        o=sizes.strides("out", o), candidate=candidate, window_left=window[0], window_right=window[1], window_alignment=window_alignment,
        o_dtype=DTYPES[o.dtype], scaling=scaling, v_layout=sizes.v_layout, softcap=scores.softcap or 0.0, alibi=scores.alibi, sink=scores.sink,
        amax=scores.amax, given=GIVEN_STRIDES | GIVEN_WINDOW | GIVEN_O_DTYPE | GIVEN_KV_DTYPE | GIVEN_TENSOR_STRIDES | (0 if scale is None else GIVEN_SCALE)
        | (0 if scores.softcap is None else GIVEN_SOFTCAP), **functions.fields())  # fmt: skip


_plans: collections.OrderedDict[Any, Plan] = collections.OrderedDict()
_plans_lock = threading.Lock()


def _renew_lock() -> None:
    # Another thread of the parent may have held it when this process was forked, and is not here to give it back.
    global _plans_lock
    _plans_lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def cached(key: Any, make: Any) -> Plan:
    """The plan of `key`, made if there is none; the oldest goes when there are too many."""
    plan = _plans.get(key)
    if plan is not None:
        return plan
    plan = make()
    with _plans_lock:
        _plans[key] = plan
        while len(_plans) > _MAX_PLANS:
            _plans.popitem(last=False)
    return plan


def _plan_of(q: View, k: View, v: View, o: View, layout: str, causal: Any, window: Any, window_alignment: Any, scale: Any, candidate: Any,
             scaling: int = _factors.NONE, scores: _scores.Scores = _scores.PLAIN, functions: _functions.Functions = _functions.NONE,
             v_layout: str = "nd") -> Plan:  # fmt: skip
    alignment = _alignment(q, k, v, o)
    causal, window, scale = _causal_number(causal), window_sides(window), _scale_number(scale)
    window_alignment = _alignment_number(window_alignment, causal, window)
    name = _library.encoded(candidate, "candidate") if candidate is not None else None
    key = (q.device, q.dtype, q.shape, q.strides, k.device, k.dtype, k.shape, k.strides, v.device, v.dtype, v.shape, v.strides,
           o.device, o.dtype, o.shape, o.strides, _order_of(layout), causal, window, window_alignment, scale, alignment, name, scaling, scores,
           functions, _v_layout_number(v_layout))  # fmt: skip

    def make() -> Plan:
        sizes = _Sizes(q, k, v, layout, v_layout)
        allowed = _factors.OUTPUTS if q.dtype in _factors.DTYPES else (q.dtype,)
        if o.shape != sizes.output_shape(sizes.head_dim_v) or o.dtype not in allowed or o.device != q.device:
            raise Error(f"out is {o.dtype} {o.shape} on {o.device}; it must be {' or '.join(allowed)} {sizes.output_shape(sizes.head_dim_v)} on {q.device}")
        return Plan(q.device, _make_problem(sizes, q, k, v, o, causal, window, window_alignment, scale, alignment, name or None, scaling, scores,
                                            functions))  # fmt: skip

    return cached(key, make)


def without_memory(device: str, dtype: str, shape: tuple[int, ...]) -> View:
    """Of a contiguous array that nobody has made."""
    return View("none", device, dtype, shape, _arrays._contiguous(shape), 0, None)


def require_accepted(q: View, k: View, v: View, functions: _functions.Functions) -> None:
    """The Error with which the library refuses such a call, if it does. Compiles nothing."""
    sizes = _Sizes(q, k, v, "bhsd")
    o = without_memory(q.device, _factors.output_dtype(q.dtype), sizes.output_shape(sizes.head_dim_v))
    problem = _make_problem(sizes, q, k, v, o, 0, _NO_WINDOW, 0, None, _alignment(q, k, v, o), None, _factors.NONE, _scores.PLAIN, functions)
    _library.check(_library.library().fc_explain(_library.context(q.device), ctypes.byref(problem), None, 0, ctypes.c_size_t()))


def plan(q: Any, k: Any, v: Any, *, out: Any = None, causal: Any = False, scale: float | None = None, layout: str = "bhsd",
         candidate: str | None = None, window: Any = None, window_alignment: str | None = None, scaling: str | None = None,
         softcap: float | None = None, alibi: str | None = None, sink: bool = False, score: str | None = None, mask: Any = None,
         tensors: Any = None, bias: Any = None, prefix: Any = None, documents: Any = None, v_layout: str = "nd", kv_dtype: str | None = None,
         return_amax: bool = False, intervals: Any = None) -> Plan:  # fmt: skip
    """The plan for arrays like these: same shapes, strides, dtype, device and alignment. For `Plan.launch` in tight loops.

    Args as of `attention`; `out` defaults to a contiguous array. `scaling` says which factors 8-bit q, k and v, or k and v of a quantised
    cache, have: "tensor" (the default: one each), "head" ([batch, heads_kv] each), "token" (each row, as of `attention`) or "none". `alibi`
    says which slopes there are, "head" ([heads]) or "batch" ([batch, heads]), and `sink` whether there are sinks. Of the arrays of score and mask functions the plan keeps shapes and strides;
    `Plan.tensors` are their names, in the order of the addresses that `Plan.launch` takes. With `return_amax`, `Plan.launch` takes `amax` as well.
    """
    views = [_arrays.view(q, "q"), *(_arrays.cache_view(x, role, None, kv_dtype) for x, role in ((k, "k"), (v, "v")))]
    if out is None:
        sizes = _Sizes(*views, layout, v_layout)
        o = without_memory(views[0].device, _factors.output_dtype(views[0].dtype), sizes.output_shape(sizes.head_dim_v))
    else:
        o = _arrays.output(out, "out")
    return _plan_of(*views, o, layout, causal, window, window_alignment, scale, candidate, _factors.number_of(scaling, views[1].dtype),
                    _scores.with_amax(_scores.of_words(softcap, alibi, sink), return_amax, views[0].dtype),
                    _functions.read(views[0], score, mask, tensors, bias, prefix, documents, causal, lambda: _Sizes(*views, layout, v_layout), None,
                                    intervals).functions,
                    v_layout)  # fmt: skip


def attention(q: Any, k: Any, v: Any, *, causal: Any = False, scale: float | None = None, layout: str = "bhsd", out: Any = None,
              return_lse: bool = False, stream: int | None = None, candidate: str | None = None, window: Any = None,
              window_alignment: str | None = None, descale_q: Any = None, descale_k: Any = None, descale_v: Any = None,
              softcap: float | None = None, alibi: Any = None, sink: Any = None, score: str | None = None, mask: Any = None, tensors: Any = None,
              bias: Any = None, prefix: Any = None, documents: Any = None, v_layout: str = "nd", kv_dtype: str | None = None,
              return_amax: bool = False, intervals: Any = None, document_boundaries: Any = None, descale_blocks: Any = None,
              block_mask: BlockMask | None = None) -> Any:  # fmt: skip
    """softmax(scale · q kᵀ + mask) v, by the kernel that suits the problem best.

    Args:
        q: [batch, heads, seqlen_q, head_dim]: NumPy, CuPy, JAX, PyTorch or any array with `__dlpack__`; float32, float16,
            bfloat16, float8_e4m3fn or float8_e5m2 (torch.float8_*, ml_dtypes), all three of one but for a quantised cache; on the CPU or a CUDA GPU. Any strides, broadcasts included, as long as the elements of a row are
            adjacent; negative ones on the CPU only. Subclasses (masked arrays, FakeTensor, ...) are refused.
        k: [batch, heads_kv, seqlen_kv, head_dim]; heads_kv divides heads (grouped-query attention). Beside q of 16 or 32 bits k and v may
            be a quantised cache, of float8_e4m3fn, float8_e5m2, int8 or int4: they become q's type on the way to the multiplication.
        v: [batch, heads_kv, seqlen_kv, head_dim_v].
        causal: False; True or "bottom_right": the last row sees every key; "top_left": row i sees keys 0..i. Both are the
            same where seqlen_q = seqlen_kv.
        window: (left, right), FlashAttention's window_size: how many keys a row sees to the left and right of its own one; None
            or -1: no bound on that side. The last row's own key is the last one. With causal, right is 0 or without bound. Keys
            outside are not read.
        window_alignment: "top_left": row i's own key is key i. With causal, the alignment of causal holds.
        scale: from 1e-6 to 1e6; default 1/sqrt(head_dim).
        layout: "bhsd" as above, or "bshd": [batch, seqlen, heads, head_dim] for all arrays.
        out: where to write, [batch, heads, seqlen_q, head_dim_v]; it can be written, and shares no element with q, k or v.
            On the CPU a write is tried first, because tensors over read-only mappings do not say that they are. Default: a new array of q's framework and dtype,
            bfloat16 where that has 8 bits; an out of those may be float16, bfloat16 or have 8 bits, which saturate.
        return_lse: also return the log-sum-exp of each row, float32 [batch, heads, seqlen_q].
        stream: a CUstream as a number; default: the framework's current stream.
        candidate: "family" or "family:key=value,…" pins a kernel; default: flashcore chooses.
        descale_q, descale_k, descale_v: of 8-bit q, k and v: what their numbers are multiplied with, all three or none; of a quantised
            cache descale_k and descale_v. A number or a float32 array of one element for a whole tensor, or float32 [batch, heads_kv] for
            each key head and the query heads that read it. Or for each row, whatever the layout: descale_q float32 [batch, heads, seqlen_q] and
            descale_k [batch, heads_kv, seqlen_kv] beside a descale_v [batch, heads_kv]; of a quantised cache descale_k and descale_v
            [batch, heads_kv, seqlen_kv]. Positive and finite (not looked at on a GPU, nor of a cache's keys).
        softcap: from 1e-6 to 1e6: a score s = scale · q kᵀ becomes softcap · tanh(s / softcap) before it is masked (Gemma 2, Grok).
        alibi: slopes of ALiBi, float32 [heads] or [batch, heads]: after softcap, slope · |i + seqlen_kv - seqlen_q - j| is taken
            from the score of row i and key j, as with FlashAttention's alibi_slopes. Finite, and in size at most
            1e37 · min(1, softcap or scale) / (seqlen_q + seqlen_kv + 1024), which fp32 holds; on a GPU nobody looks.
        sink: float32 [heads], a logit for each query head that joins each row's sum and log-sum-exp and has no value (gpt-oss).
            It is neither scaled nor capped; -inf is none.
        score: what becomes of a score after softcap and ALiBi, as a text: "s + slope[h] * (j - i)". Of s, b, h, hk, i, j, seqlen_q,
            seqlen_kv and `tensors`; docs/expressions.md has the language.
        mask: which of the pairs within causal and window are visible: a text, "j <= i && doc[b, i] == doc[b, j]", or an array of bool
            that broadcasts to [batch, heads, seqlen_q, seqlen_kv], True where visible.
        tensors: {name: array} of what score and mask name: float32, int32 or bool, on q's device, of any strides from 0 on, at least as
            large as the indices reach.
        bias: float32 that broadcasts to [batch, heads, seqlen_q, seqlen_kv]: added to the score, after what `score` makes of it.
        prefix: a number of keys, or int32 [batch]: every row sees so many, and the rest is causal (prefix-LM).
        documents: int32 ids of rows and of keys, (ids_q, ids_kv) or one array for both, [batch, seqlen] or [seqlen]: a row sees the keys
            of its own document. Where several masks are given, what all of them show is visible.
        document_boundaries: the same documents as borders in a row of tokens, int32 [documents + 1] or [batch, documents + 1]; a pair of them,
            of rows and of keys; `document_ids` has the rules. Made into ids at each call: of many calls with the same ones, give
            documents=document_ids(boundaries, seqlen).
        intervals: the keys that a row sees, (starts, ends): row i sees the keys from starts up to ends - 1. int32 that broadcast to
            [batch, heads, seqlen_q], a number for all rows, or None for no bound. A list of up to four such pairs shows what any of them does: masks
            that are unions of intervals.
        v_layout: "nd", or "dn" for v of 8 bits that lies transposed, [batch, heads_kv, head_dim_v, seqlen_kv] whatever `layout` is: Hopper's
            kernel then has nothing to transpose. It wants columns that lie a multiple of 16 bytes apart; of a seqlen_kv that is none, give a
            slice of a longer array, whatever that holds behind it. `quantize(v_layout="dn")` makes such an array.
        kv_dtype: None: what the arrays say. "int4": k and v are uint8 [..., head_dim / 2] with two elements a byte, the even column in the lower
            half, each of 4 bits of two's complement: -7 to 7 (-8 is read as -8).
        return_amax: of q of 8 bits: also return the largest magnitudes, float32 [2, heads]. Row 0 has the largest |score| of each query
            head over the batch, of visible pairs and as the softmax takes them; row 1 the largest |o| before it is rounded. Neither NaN nor
            a score of -inf counts. The factors of the next step follow from them.
        descale_blocks: (rows of q, keys) that have one factor each: descale_q is [batch, heads, ceil(seqlen_q / rows)] and descale_k [batch,
            heads_kv, ceil(seqlen_kv / keys)] then, beside a descale_v [batch, heads_kv]; of a quantised cache descale_k and descale_v
            are as descale_k. They are repeated for each row on the device; `quantize(scaling="block")` makes them so.
        block_mask: a `BlockMask`, which calls with the same mask share: the first one lists the blocks that the mask shows, and the others
            need not. What the mask reads must hold the same until `BlockMask.update`.

    Returns:
        The output, or a tuple of it, lse and amax, of which there is what was asked for. A row that sees no key gets output 0 and lse -inf,
        or its sink. On a GPU the work is enqueued like that of the framework (JAX: awaited).

    Raises:
        Error: for arrays that do not fit together, dtypes, devices, layouts, an out that is read-only or overlaps an input,
            arguments of another type; for a missing driver or compiler.
    """
    stream, block_mask = _stream_number(stream), _block_mask.require(block_mask)
    vq = _arrays.view(q, "q", stream)
    vk, vv = _arrays.cache_view(k, "k", stream, kv_dtype), _arrays.cache_view(v, "v", stream, kv_dtype)

    def read_sizes() -> _Sizes:
        return _Sizes(vq, vk, vv, layout, v_layout)

    if out is None:
        sizes = read_sizes()
        out = _arrays.empty_like(vq, sizes.output_shape(sizes.head_dim_v), _factors.output_dtype(vq.dtype))
        vo = _arrays.view(out, "out", stream)  # JAX's own are written this once
    else:
        vo = _arrays.output(out, "out", stream)
    descales = (descale_q, descale_k, descale_v)
    if descale_blocks is not None:
        descales = _factors.of_blocks(descales, descale_blocks, read_sizes(), vq, vk, stream)
    factors = _factors.read(vq, vk, descales, read_sizes, stream)
    scores, operands = _scores.read(vq, softcap, alibi, sink, read_sizes, stream)
    scores = _scores.with_amax(scores, return_amax, vq.dtype)
    given = _functions.read(vq, score, mask, tensors, bias, prefix, documents, causal, read_sizes, stream, intervals, document_boundaries)
    p = _plan_of(vq, vk, vv, vo, layout, causal, window, window_alignment, scale, candidate, factors.scaling, scores, given.functions,
                 v_layout)  # fmt: skip
    lse = lse_view = None
    if return_lse:
        sizes = read_sizes()
        lse = _arrays.empty_like(vq, (sizes.batch, sizes.heads_q, sizes.seqlen_q), "fp32")
        lse_view = _arrays.view(lse, "lse", stream)
    amax = amax_view = None
    if scores.amax:
        amax = _arrays.empty_like(vq, (2, read_sizes().heads_q), "fp32")
        amax_view = _arrays.view(amax, "amax", stream)
    number = _arrays.current_stream(vq) if stream is None else stream
    p.launch(vq.address, vk.address, vv.address, vo.address, lse_view.address if lse_view else 0, number, *factors.addresses or (0, 0, 0),
             operands.alibi, operands.sink, tensors=given.addresses, amax=amax_view.address if amax_view else 0,
             block_mask=block_mask)  # fmt: skip
    _arrays.note_written(out)
    if _arrays.must_wait(vq):
        _library.check(_library.library().fc_context_synchronize(_library.context(vq.device), number))
    return _scores.results(out, (return_lse, lse), (scores.amax, amax))
