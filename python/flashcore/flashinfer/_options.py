"""What FlashInfer's arguments mean for flashcore, and one clear sentence for each that flashcore has no kernel for."""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple, Optional, Union

import torch
from torch import Tensor

from .. import _library, _torch_launch

LOG2E = math.log2(math.e)
LAYOUTS = ("NHD", "HND")
_DTYPES = {"float16": torch.float16, "half": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32,
           "float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}  # fmt: skip
_EIGHT = (torch.float8_e4m3fn, torch.float8_e5m2)
CACHES = (*_EIGHT, torch.int8)  # beside q of 16 or 32 bits
_slopes: dict[tuple[int, torch.device], Tensor] = {}

Cache = Union[Tensor, tuple[Tensor, Tensor]]


class Error(_library.Error, ValueError):
    """flashcore.Error, and a ValueError as FlashInfer's are."""


class Options(NamedTuple):
    """Of one plan, and so of each of its runs."""

    heads_q: int
    heads_kv: int
    dim: int
    dim_v: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    out_dtype: torch.dtype
    causal: bool
    alibi: bool
    window_left: int
    softcap: Optional[float]
    scale: Optional[float]
    same_bits: bool = False  # of a request, whatever else is in the batch
    mask: Any = None  # _masks.Mask


def dtype_of(given: Any, name: str) -> torch.dtype:
    if isinstance(given, torch.dtype) and given in _DTYPES.values():
        return given
    if isinstance(given, str) and given.removeprefix("torch.") in _DTYPES:
        return _DTYPES[given.removeprefix("torch.")]
    raise Error(f"{name} is {given!r}; give torch.float16, bfloat16, float8_e4m3fn, float8_e5m2, or on the CPU float32")


def options(heads_q: int, heads_kv: int, dim: int, dim_v: Optional[int], *, causal: bool, pos_encoding_mode: str, window_left: int,
            logits_soft_cap: Optional[float], sm_scale: Optional[float], q_data_type: Any, kv_data_type: Any, o_data_type: Any,
            fixed_split_size: Optional[int] = None, disable_split_kv: bool = False) -> Options:  # fmt: skip
    heads_q, heads_kv = (whole(x, name, 1, 2**31 - 1, "heads") for x, name in ((heads_q, "num_qo_heads"), (heads_kv, "num_kv_heads")))
    dim = whole(dim, "head_dim", 1, 2**31 - 1, "columns")
    if heads_q % heads_kv:
        raise Error(f"num_qo_heads is {heads_q} and num_kv_heads {heads_kv}; the second must divide the first")
    q_dtype = dtype_of(q_data_type, "q_data_type")
    is_int8 = kv_data_type in (torch.int8, "int8", "torch.int8")
    kv_dtype = q_dtype if kv_data_type is None else torch.int8 if is_int8 else dtype_of(kv_data_type, "kv_data_type")
    if kv_dtype != q_dtype and (q_dtype in _EIGHT or kv_dtype not in CACHES):
        raise Error(f"q_data_type is {q_dtype} and kv_data_type {kv_dtype}; give both alike, or keys and values of 8 bits beside queries of 16")
    usual = torch.bfloat16 if q_dtype in _EIGHT else q_dtype
    out_dtype = usual if o_data_type is None else dtype_of(o_data_type, "o_data_type")
    if q_dtype not in _EIGHT and out_dtype != q_dtype:
        raise Error(f"o_data_type is {out_dtype} and q_data_type {q_dtype}; only outputs of 8-bit queries may have another type")
    cap = None if not logits_soft_cap or logits_soft_cap < 0 else float(logits_soft_cap)
    alibi = pos_encoding_mode == "ALIBI"
    if not alibi and pos_encoding_mode != "NONE":
        raise Error(f"pos_encoding_mode is {pos_encoding_mode!r}; give 'NONE' or 'ALIBI': rotate q, and k before it is appended, by yourself")
    if alibi and cap is not None:
        raise Error("pos_encoding_mode='ALIBI' and logits_soft_cap are both given; FlashInfer caps scores after the slopes, scaled twice, and "
                    "flashcore before: leave one out")  # fmt: skip
    # FlashInfer's own default is -1 behind None. How long its parts are does not matter: equal bits are what a caller wants.
    same_bits = bool(disable_split_kv) or (fixed_split_size is not None and fixed_split_size > 0)
    return Options(heads_q, heads_kv, dim, dim if dim_v is None else dim_v, q_dtype, kv_dtype, out_dtype, causal, alibi, window_left, cap, sm_scale,
                   same_bits)  # fmt: skip


def layout_of(given: Any) -> str:
    if given not in LAYOUTS:
        raise Error(f"kv_layout is {given!r}; give 'NHD' ([pages, page_size, heads, dim]) or 'HND' ([pages, heads, page_size, dim])")
    return str(given)


def device_of(workspace: Any) -> torch.device:
    if not isinstance(workspace, Tensor):
        raise Error(f"the workspace is a {type(workspace).__name__}; give a tensor of any size on the device of the caches")
    return workspace.device


def refuse(**given: Any) -> None:
    """Of arguments that must keep the value that means nothing."""
    hints = {
        "kv_cache_sf": "4-bit caches have no kernel; give 16 or 8 bits",
        "skip_softmax_threshold_scale_factor": "no kernel skips keys; leave it out",
        "mask": "rows of a request are causal among themselves; leave it out",
        "kv_len": "plan() is given kv_len_arr",
        "page_table": "plan() is given the page lists",
        "o_scale": "outputs of 8 bits have no kernel beside q of 16",
        "ckv_scale_arr": "factors of each token have no kernel; give ckv_scale",
        "use_profiler": "no kernel writes a profile; flashcore timeline does",
        "profiler_buffer": "no kernel writes a profile; flashcore timeline does",
        "jit_args": "of variants only AttentionSink has kernels, in prefill",
        "prefix_len_ptr": "multi-item scoring has no kernel; leave it out",
        "token_pos_in_items_ptr": "multi-item scoring has no kernel; leave it out",
        "max_item_len_ptr": "multi-item scoring has no kernel; leave it out",
        "o_sf_scale": "4-bit outputs have no kernel; leave it out",
        "v_indptr": "K and V have the same boundaries; leave it out",
        "o_indptr": "q and the output have the same boundaries; leave it out",
    }
    for name, value in given.items():
        if value is not None and value is not False:
            raise Error(f"{name} is given; flashcore.flashinfer takes None only: {hints.get(name, 'leave it out')}")


def is_sink_variant(jit_args: Any) -> bool:
    """Whether FlashInfer's arguments of a compiled variant ask for its AttentionSink, by name; any other variant is refused."""
    if jit_args is None:
        return False
    if isinstance(jit_args, (list, tuple)) and len(jit_args) >= 12 and jit_args[11] == "AttentionSink":
        if list(jit_args[7]) == ["sink"] and list(jit_args[9]) == ["sm_scale"]:
            return True
    refuse(jit_args=jit_args)
    return False


def split(cache: Cache, layout: str, name: str = "paged_kv_cache") -> tuple[Tensor, Tensor]:
    """K and V of a cache in one tensor or two. As in FlashInfer the axis of a page's keys may be missing where a page has one."""
    keys = -3 if layout == "NHD" else -2
    if isinstance(cache, (tuple, list)):
        if len(cache) != 2 or not all(isinstance(x, Tensor) and x.dim() in (3, 4) for x in cache):
            raise Error(f"{name} is a {type(cache).__name__} of {len(cache)}; give two tensors of four axes, K's pages and V's")
        k, v = (x.detach() if x.dim() == 4 else x.detach().unsqueeze(keys) for x in cache)
        return k, v
    if isinstance(cache, Tensor) and cache.dim() == 4 and cache.shape[1] == 2:
        cache = cache.unsqueeze(keys)
    if not isinstance(cache, Tensor) or cache.dim() != 5 or cache.shape[1] != 2:
        what = f"has shape {tuple(cache.shape)}" if isinstance(cache, Tensor) else f"is a {type(cache).__name__}"
        raise Error(f"{name} {what}; give [pages, 2, page_size, heads, dim], [pages, 2, heads, page_size, dim] with kv_layout='HND', or (K, V)")
    return cache.detach()[:, 0], cache.detach()[:, 1]


def slopes(heads: int, device: torch.device) -> Tensor:
    """ALiBi's of its paper: a geometric row for the largest power of two of heads, and every second of the next one's for the others."""
    key = (heads, device)
    if key not in _slopes:
        whole = 1 << (heads.bit_length() - 1)
        values = [2.0 ** (-8.0 * (h + 1) / whole) for h in range(whole)] + [2.0 ** (-4.0 * (2 * h + 1) / whole) for h in range(heads - whole)]
        _slopes[key] = torch.tensor(values, dtype=torch.float32, device=device)
    return _slopes[key]


def make_slopes(o: Options, device: torch.device) -> Options:
    """At plan(): a run that is captured must copy nothing from the host."""
    if o.alibi:
        slopes(o.heads_q, device)
    return o


def whole(given: Any, name: str, least: int, most: int, what: str) -> int:
    try:
        found = operator.index(given)
    except TypeError:
        found = least - 1
    if not least <= found <= most:
        raise Error(f"{name} is {given!r}; give {least} to {most} {what}")
    return found


def number(given: Any, name: str) -> float:
    """A factor on the host: one on a GPU would have to be waited for."""
    if given is None:
        return 1.0
    if isinstance(given, Tensor):
        if given.numel() != 1 or given.device.type != "cpu":
            raise Error(f"{name} is a tensor of shape {tuple(given.shape)} on {given.device}; give a number")
        return float(given)
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise Error(f"{name} is a {type(given).__name__}; give a number")
    return float(given)


class Factors(NamedTuple):
    """What scores and outputs are multiplied with besides, and the descales of each sequence and head, if those were given."""

    scores: float
    values: float
    descales: dict[str, Any]


def factors(o: Options, batch: int, device: torch.device, q: Any, k: Any, v: Any, divisor: Any = None) -> Factors:
    """`q_scale`, `k_scale` and `v_scale`: numbers, or of tensors of 8 bits tensors on `device`, of one element or a factor for each head.
    `divisor`: o_scale."""
    over = number(divisor, "o_scale")
    if over == 0:
        raise Error(f"o_scale is {divisor}; give what outputs are divided by")
    by = _undivided(o, batch, device, q, k, v)
    if o.out_dtype not in _EIGHT:
        return by._replace(values=by.values / over)
    # An output of 8 bits is rounded by the kernel, and has its factor before.
    if by.descales:
        return by._replace(descales={**by.descales, "descale_v": by.descales["descale_v"] / over})
    if by.values == over:
        return by._replace(values=1.0)
    return Factors(by.scores, 1.0, {"descale_q": 1.0, "descale_k": 1.0, "descale_v": by.values / over})


def _undivided(o: Options, batch: int, device: torch.device, q: Any, k: Any, v: Any) -> Factors:
    has_q = o.dtype in _EIGHT
    roles = [("k_scale", k, o.heads_kv), ("v_scale", v, o.heads_kv)]
    if has_q:
        roles.insert(0, ("q_scale", q, o.heads_kv))
    if not any(map(is_by_head, (q, k, v))) and not any(is_on(x, device) for _, x, _ in roles if o.kv_dtype.itemsize == 1):
        of_q, of_k, of_v = (_positive(x, name) for x, name in ((q, "q_scale"), (k, "k_scale"), (v, "v_scale")))
        if o.kv_dtype != o.dtype and (of_k, of_v) != (1.0, 1.0):  # however small: the kernel has them in fp32
            return Factors(of_q, 1.0, {"descale_k": of_k, "descale_v": of_v})
        return Factors(of_q * of_k, of_v, {})
    if o.kv_dtype.itemsize > 1:
        raise Error(f"a scale for each head is given and q is {o.dtype}; give numbers: only 8-bit tensors have factors")
    if is_by_head(q) and not has_q:
        raise Error(f"q_scale has a factor for each head and q is {o.dtype}; give a number: only the cache has 8 bits")
    made = {f"descale_{name[0]}": x for (name, _, _), x in zip(roles, descales(batch, device, *roles))}
    return Factors(1.0 if has_q else _positive(q, "q_scale"), 1.0, made)


def _positive(given: Any, name: str) -> float:
    found = number(given, name)
    if not 0 < found < math.inf:
        raise Error(f"{name} is {found}; give a positive, finite number")
    return found


def has_query_factors(o: Options, q_scale: Any) -> bool:
    """Whether query heads that share a key head have factors of their own, which no kernel knows."""
    return is_by_head(q_scale) and o.dtype in _EIGHT and o.heads_q != o.heads_kv


def is_by_head(x: Any) -> bool:
    return isinstance(x, Tensor) and x.numel() > 1


def is_on(x: Any, device: torch.device) -> bool:
    return isinstance(x, Tensor) and x.device == device


def descales(batch: int, device: torch.device, *given: tuple[str, Any, int]) -> list[Any]:
    """Of (name, scale, heads) each what flashcore's descales are: numbers and float32 [1] on `device`, or where a scale has a factor for each
    head float32 [batch, heads] all. Nothing on a GPU is read here."""
    made = []
    for name, x, heads in given:
        if is_by_head(x) and (x.shape != (heads,) or x.dtype != torch.float32):
            raise Error(f"{name} is {x.dtype} of shape {tuple(x.shape)}; give float32 [heads] = ({heads},), or a number")
        if is_by_head(x):
            made.append(x.detach().to(device))
        elif is_on(x, device) and x.numel() == 1:
            made.append(x.detach().float().reshape(1))
        else:
            made.append(number(x, name))
            if not 0 < made[-1] < math.inf:
                raise Error(f"{name} is {x}; give a number that is positive and finite")
    if not any(map(is_by_head, made)):
        return made
    per = (x if isinstance(x, Tensor) else torch.full((1,), x, dtype=torch.float32, device=device) for x in made)
    return [x.expand(batch, heads).contiguous() for x, (_, _, heads) in zip(per, given)]


def keywords(o: Options, device: torch.device, by: Factors, sinks: Optional[Tensor], window_left: Optional[int] = None) -> dict[str, Any]:
    """Of flashcore.paged_attention and flashcore.varlen_attention."""
    left = o.window_left if window_left is None else window_left
    right = 0 if o.causal else -1
    scale = (1.0 / math.sqrt(o.dim) if o.scale is None else float(o.scale)) * by.scores
    if sinks is not None and (not isinstance(sinks, Tensor) or sinks.shape != (o.heads_q,)):
        what = f"has shape {tuple(sinks.shape)}" if isinstance(sinks, Tensor) else f"is a {type(sinks).__name__}"
        raise Error(f"sinks {what}; give a tensor with a logit for each query head, [heads] = ({o.heads_q},)")
    return dict(window=None if left < 0 and right < 0 else (left if left >= 0 else -1, right), scale=scale, softcap=o.softcap,
                sink=None if sinks is None else sinks.detach().float().contiguous(), **by.descales, **functions(o, device),
                **({"deterministic_batch": True} if o.same_bits else {}))  # fmt: skip


def functions(o: Options, device: torch.device) -> dict[str, Any]:
    """The slopes and the custom masks. FlashInfer's slopes are of j - i with its sign, of which those by distance differ where a row sees keys
    behind its own."""
    given: dict[str, Any] = {"alibi": slopes(o.heads_q, device)} if o.alibi and o.causal else {}
    tensors = {} if o.mask is None else dict(o.mask.tensors)
    if o.alibi and not o.causal:
        given["score"], tensors["slope"] = "s + slope[h] * (j - i)", slopes(o.heads_q, device)
    if o.mask is not None:
        given["mask"] = o.mask.text
    return {**given, "tensors": tensors} if tensors else given


def require_q(q: Tensor, o: Options, rows: Optional[int]) -> Tensor:
    if not isinstance(q, Tensor) or q.dim() != 3 or q.shape[1:] != (o.heads_q, o.dim) or q.dtype != o.dtype or (rows is not None and q.shape[0] != rows):
        what = f"is {q.dtype} of shape {tuple(q.shape)}" if isinstance(q, Tensor) else f"is a {type(q).__name__}"
        told = "rows" if rows is None else f"batch * q_len_per_req = {rows}"
        raise Error(f"q {what}; plan() was told {o.dtype} [{told}, {o.heads_q}, {o.dim}]")
    q = q.detach()
    return q if q.stride(-1) == 1 else q.contiguous()


def output(q: Tensor, o: Options, out: Optional[Tensor]) -> Tensor:
    """Where to write. Rows that no request has are not written."""
    shape = (*q.shape[:-1], o.dim_v)
    if out is None:
        return torch.empty(shape, dtype=o.out_dtype, device=q.device)
    if out.shape != shape or out.dtype != o.out_dtype:
        raise Error(f"out is {out.dtype} of shape {tuple(out.shape)}; plan() was told {o.out_dtype} {shape}")
    return out


def finish(made: Any, return_lse: bool, lse: Optional[Tensor], by: Factors, cu_q: Optional[Tensor] = None) -> Any:
    """The output, and the log-sum-exp to base 2 as [rows, heads], which FlashInfer's is. With `cu_q` rows behind its end stay as they are."""
    _torch_launch.computed.add()
    out = made[0] if return_lse else made
    if by.values != 1.0 and cu_q is None:
        out.mul_(by.values)
    elif by.values != 1.0 and cu_q is not None:
        is_one = torch.arange(out.shape[0], device=out.device) < cu_q[-1]
        out.mul_(torch.where(is_one, by.values, 1.0)[:, None, None])
    if not return_lse:
        return out
    natural = made[1].t()
    if lse is None:
        return out, (natural * LOG2E).contiguous()
    if lse.shape != natural.shape or lse.dtype != torch.float32:
        raise Error(f"lse is {lse.dtype} of shape {tuple(lse.shape)}; give float32 [rows, heads] = {tuple(natural.shape)}")
    return out, torch.mul(natural, LOG2E, out=lse)


