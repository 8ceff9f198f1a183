"""Hugging Face transformers: importing this registers the attention implementation "flashcore".

    import flashcore.transformers
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="flashcore")

Prefill and decoding run on flashcore: grouped-query heads, causal sliding windows, softcap (Gemma 2) and attention sinks (gpt-oss) as
they are, local and global layers (Gemma 3), padded batches (on either side), chunks of prompts and static caches, of which the filled part is read, and packed sequences
where the model is given their boundaries (cu_seq_lens_q and max_length_q, as DataCollatorWithFlattening(return_flash_attn_kwargs=True)
makes them). Padded rows get 0. Continuous batching (generate_batch) takes "paged|flashcore". What needs another mask runs on PyTorch, with a `flashcore.Note` the first time. Under torch.compile and CUDA graphs transformers cannot see that a batch is not packed or
padded, and makes a mask: call the model there with its cache (use_cache=True, the default), and without attention_mask where nothing is padded.
With one the result is right too, and each call computes the mask of all pairs.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable, NamedTuple, Optional

import torch
import transformers.modeling_utils
from torch.utils._pytree import tree_map
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function, sdpa_mask

from . import _library, _torch_launch, _torch_operator, _torch_packed, _varlen
from ._torch_counters import pass_on
from ._torch_reasons import why_not
from ._torch_switch import is_enabled
from .torch import attention, scaled_dot_product_attention

NAME = "flashcore"
PAGED = f"paged|{NAME}"


class Padding(NamedTuple):
    """Of each sequence of a padded batch: its first position that counts, and how many do, one after another. int32 [batch]."""

    first: torch.Tensor
    count: torch.Tensor


class LazyMask(torch.Tensor):
    """A boolean mask [batch, 1, rows, keys] which takes no memory until somebody looks at it: causal, in a sliding window or without
    one, of sequences that may be padded; or of packed ones, whose boundaries the model is called with.

    A model hands the mask that it was given to its attention. attention_forward reads off it what it says, and no mask is ever
    made. Whatever else is done with it (sliced, moved, written to) is done with the mask that it stands for, and that one counts
    from then on. So a model that tells its attention of no window, or changes the mask on the way, stays right.
    """

    window: Optional[int]
    padding: Optional[Padding]
    queries: Optional[Padding]  # the rows that count, where there are neither as many as keys nor one
    packed: bool
    boundaries: dict[Any, tuple[torch.Tensor, torch.Tensor]]  # of the padded rows of tensors, by how those lie
    made: Optional[torch.Tensor]
    _make: Callable[[], torch.Tensor]

    @staticmethod
    def __new__(cls, shape: tuple[int, ...], device: Any, make: Callable[[], torch.Tensor], window: Optional[int] = None,
                padding: Optional[Padding] = None, packed: bool = False, queries: Optional[Padding] = None) -> LazyMask:  # fmt: skip
        mask = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)  # type: ignore[attr-defined]
        mask.window, mask.padding, mask.packed, mask.queries = window, padding, packed, queries
        mask.boundaries, mask.made, mask._make = {}, None, make
        return mask  # type: ignore[no-any-return]

    def make(self) -> torch.Tensor:
        if self.made is None:
            self.made = self._make()
        return self.made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = lambda x: x.make() if isinstance(x, LazyMask) else x  # noqa: E731
        return func(*tree_map(made, args), **tree_map(made, kwargs or {}))

    # What does not come through __torch_dispatch__.
    def __repr__(self) -> str:  # type: ignore[override]
        return f"LazyMask(shape={tuple(self.shape)}, window={self.window}, padded={self.padding is not None}, packed={self.packed})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.make().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return self.make().clone()

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.make().__array__(*args, **kwargs)

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        return self.make().__dlpack__(*args, **kwargs)

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        return self.make().numpy(*args, **kwargs)

    def tolist(self) -> Any:
        return self.make().tolist()


def _attend(attention: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Optional[torch.Tensor],
            dropout: float, scaling: Optional[float], is_causal: bool) -> tuple[torch.Tensor, None]:  # fmt: skip
    # One row sees every key, whatever the mask's alignment.
    is_causal = bool(query.shape[2] > 1 and attention_mask is None and is_causal)
    if is_causal and key.shape[2] > query.shape[2]:
        key, value = _filled(query, key, value)
    out = attention(query, key, value, attn_mask=attention_mask, dropout_p=dropout, is_causal=is_causal, scale=scaling,
                    enable_gqa=bool(key.shape[1] != query.shape[1]))  # fmt: skip
    return out.transpose(1, 2).contiguous(), None


def attention_forward(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                      attention_mask: Optional[torch.Tensor], dropout: float = 0.0, scaling: Optional[float] = None,
                      is_causal: Optional[bool] = None, **kwargs: Any) -> tuple[torch.Tensor, None]:  # fmt: skip
    """What transformers calls: query [batch, heads, length, dim], key and value with their own, fewer heads.

    Returns:
        The output as [batch, length, heads, dim], and None for the weights, which are never formed.

    Raises:
        ValueError: for dropout together with softcap or attention sinks, which neither flashcore nor PyTorch computes.
    """
    softcap, sink = kwargs.get("softcap"), kwargs.get("s_aux")
    lazy = attention_mask if isinstance(attention_mask, LazyMask) and attention_mask.made is None else None
    # With a cache transformers sees no packed sequences, and makes no mask; their boundaries are given all the same.
    is_packed = query.shape[0] == 1 and query.shape[2] == key.shape[2] and kwargs.get("cu_seq_lens_q") is not None
    if lazy is not None and (lazy.shape[2:] != (query.shape[2], key.shape[2]) or (lazy.packed and not is_packed)):
        lazy = None
    if is_packed and (attention_mask is None or lazy is not None) and _is_causal(module, is_causal):
        if (why := why_not(query, key, value, None, dropout, False, scaling, enable_gqa=True)) is None:
            return _attend_packed(query, key, value, None if lazy is None else lazy.window, scaling, softcap, sink, kwargs), None
        pass_on(why)
        attention_mask, lazy = _mask_of_packed(query.shape[2], kwargs["cu_seq_lens_q"], None if lazy is None else lazy.window), None
    if isinstance(attention_mask, LazyMask) and lazy is None:
        attention_mask = attention_mask.make()
    if lazy is not None or softcap is not None or sink is not None:
        mask = None if lazy is not None else attention_mask
        if (why := why_not(query, key, value, mask, dropout, False, scaling, enable_gqa=True)) is None:
            if lazy is not None and lazy.padding is not None:
                return _attend_padded(query, key, value, lazy, scaling, softcap, sink), None
            return _attend_with(query, key, value, lazy, scaling, _is_causal(module, is_causal), softcap, sink, mask)
        attention_mask = lazy.make() if lazy is not None else attention_mask
        if softcap is not None or sink is not None:
            pass_on(why)
            return _attend_by_formula(query, key, value, attention_mask, dropout, scaling, _is_causal(module, is_causal), softcap, sink)
    if (attention_mask is not None or dropout != 0) and hasattr(module, "num_key_value_groups"):
        if (why := why_not(query, key, value, attention_mask, dropout, False, scaling, enable_gqa=True)) is not None:
            # As "sdpa" does it: with a mask it repeats the key's heads, for which PyTorch has faster kernels than for grouped ones.
            if not is_enabled():  # else torch.nn.functional's is ours, and counts it
                pass_on(why)
            return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, is_causal, **kwargs)  # type: ignore[no-any-return]
    return _attend(scaled_dot_product_attention, query, key, value, attention_mask, dropout, scaling, _is_causal(module, is_causal))


def paged_attention_forward(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                            attention_mask: Optional[torch.Tensor] = None, scaling: Optional[float] = None, cache: Any = None,
                            cu_seq_lens_q: Any = None, cu_seq_lens_k: Any = None, max_seqlen_q: Any = None, max_seqlen_k: Any = None,
                            read_index: Any = None, write_index: Any = None, **kwargs: Any) -> tuple[torch.Tensor, None]:  # fmt: skip
    """What transformers' continuous batching calls as "paged|flashcore": the rows of all requests, whose new keys its cache takes first.

    Returns:
        The output as [1, rows, heads, dim], and None for the weights.

    Raises:
        flashcore.Error: for a call with a block table, which transformers makes for FlashAttention 3 only.
    """
    if kwargs.get("block_table") is not None:
        raise _library.Error("block_table is given; 'paged|flashcore' takes read_index and write_index, as without max_blocks_per_request")
    key, value = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, read_index=read_index, write_index=write_index)
    window = kwargs.get("sliding_window") or getattr(module, "sliding_window", None) or None
    kind = "full_attention" if window is None else "sliding_attention"
    cu_kv, longest = (x[kind] if isinstance(x, dict) else x for x in (cu_seq_lens_k, max_seqlen_k))
    rows, keys = query.shape[2], key.shape[0]
    sink = kwargs.get("s_aux")
    out = query.new_zeros(rows, query.shape[1], value.shape[2])
    _varlen.varlen_attention(query[0].transpose(0, 1), key, value, cu_seq_lens_q.to(torch.int32), cu_kv.to(torch.int32), min(int(max_seqlen_q), rows),
                             min(int(longest), keys), out=out, **_options_of(window, scaling, kwargs.get("softcap"), sink))  # fmt: skip
    _torch_launch.computed.add()
    return out.unsqueeze(0), None


def _is_causal(module: torch.nn.Module, is_causal: Optional[bool]) -> bool:
    return bool(getattr(module, "is_causal", True)) if is_causal is None else is_causal


def _filled(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Key and value without the rows of a longer cache that a prefill has not reached, and a top-left mask does not see."""
    return key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]


def _options_of(window: Optional[int], scaling: Optional[float], softcap: Optional[float], sink: Optional[torch.Tensor]) -> dict[str, Any]:
    return {"causal": window is None, "window": None if window is None else (window - 1, 0), "scale": scaling, "softcap": softcap,
            "sink": None if sink is None else sink.detach().float().contiguous()}  # fmt: skip


def _attend_packed(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: Optional[int], scaling: Optional[float],
                   softcap: Optional[float], sink: Optional[torch.Tensor], given: dict[str, Any]) -> torch.Tensor:  # fmt: skip
    """Sequences that follow each other in a batch of one: [1, rows, heads, dim]."""
    lengths = [given[name if given.get(name) is not None else "cu_seq_lens_q"].to(torch.int32) for name in ("cu_seq_lens_q", "cu_seq_lens_k")]
    longest = [int(given.get(name) or query.shape[2]) for name in ("max_length_q", "max_length_k")]
    return _torch_packed.attend_packed(*_torch_operator.cast(query, key, value), *lengths, *longest, **_options_of(window, scaling, softcap, sink))


def _mask_of_packed(rows: int, boundaries: torch.Tensor, window: Optional[int]) -> torch.Tensor:
    """What each row of packed sequences sees, for PyTorch."""
    position = torch.arange(rows, device=boundaries.device)
    of = torch.bucketize(position, boundaries.long(), right=True)
    seen = (of[:, None] == of[None]) & (position[None] <= position[:, None])
    return (seen if window is None else seen & (position[None] > position[:, None] - window))[None, None]


def _attend_padded(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: LazyMask, scaling: Optional[float],
                   softcap: Optional[float], sink: Optional[torch.Tensor]) -> torch.Tensor:  # fmt: skip
    """[batch, rows, heads, dim]; rows that are padding get 0."""
    assert mask.padding is not None
    return _torch_packed.attend_padded(*_torch_operator.cast(query, key, value), *mask.padding, kept=mask.boundaries,
                                       queries=mask.queries, **_options_of(mask.window, scaling, softcap, sink))  # fmt: skip


def _attend_with(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: Optional[LazyMask], scaling: Optional[float],
                 is_causal: bool, softcap: Optional[float], sink: Optional[torch.Tensor], mask: Optional[torch.Tensor]) -> tuple[torch.Tensor, None]:  # fmt: skip
    """`mask`: one that says by itself what is visible."""
    if mask is not None:
        out = torch.ops.flashcore.attention(query, key, value, False, scaling, -1, -1, softcap, None, sink, mask)
        return out.transpose(1, 2).contiguous(), None
    is_causal = is_causal and query.shape[2] > 1 and window is None
    if is_causal:
        key, value = _filled(query, key, value)
    sides = None if window is None or window.window is None else (window.window - 1, 0)
    out = attention(query, key, value, window=sides, is_causal=is_causal, scale=scaling, softcap=softcap, sink=sink)
    return out.transpose(1, 2).contiguous(), None


def _attend_by_formula(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Optional[torch.Tensor], dropout: float,
                       scaling: Optional[float], is_causal: bool, softcap: Optional[float], sink: Optional[torch.Tensor]) -> tuple[torch.Tensor, None]:  # fmt: skip
    """PyTorch's attention knows neither softcap nor sinks: from all scores at once, as the model's "eager" does."""
    if dropout != 0:
        raise ValueError("attn_implementation='flashcore' has no dropout together with softcap or attention sinks; use 'eager', or set it to 0")
    is_causal = is_causal and query.shape[2] > 1 and mask is None
    if is_causal:
        key, value = _filled(query, key, value)
    out = _torch_operator.by_formula_of_scores(query, key, value, is_causal, scaling, mask, softcap, None, sink)
    return out.transpose(1, 2).contiguous(), None


def attention_mask_or_none(*args: Any, **options: Any) -> Optional[torch.Tensor]:
    """As for "sdpa", no mask where causality alone decides; other than there, under torch.compile and in CUDA graph captures
    too: the kernel gets its mask from the shapes it is launched with, so nothing is fixed by tracing."""
    rows = options.get("q_length")
    if rows is None and options.get("cache_position") is not None:
        rows = options["cache_position"].shape[0]
    keys, window, padding = options.get("kv_length"), options.get("local_size"), options.get("attention_mask")
    if args or rows is None:
        return sdpa_mask(*args, **options)
    make = lambda: sdpa_mask(**{**options, "allow_is_causal_skip": False})  # noqa: E731
    lazy = functools.partial(LazyMask, (options.get("batch_size", 1), 1, rows, keys), options.get("device", "cpu"), make)
    if (seen := _seen_of_cache(options, rows)) is not None:
        return lazy(padding=seen[0], queries=seen[1])
    if not (rows == 1 or rows == keys):
        return sdpa_mask(*args, **options)
    if not options.get("allow_is_causal_skip", True):  # sequences packed in one row, or a mask of the model's own
        is_packed = rows == keys and window is None and options.get("batch_size", 1) == 1 and padding is None and not _sees_shapes_only()
        return lazy(packed=True) if is_packed else sdpa_mask(*args, **options)
    if padding is None and (window is None or keys < window):
        return None
    function = options.get("mask_function")
    known = function in (None, causal_mask_function) if window is None else _is_causal_window(function, window)
    if not known or _sees_shapes_only():
        return sdpa_mask(*args, **options)
    window = None if window is None or keys < window else window
    if padding is not None and not bool(padding.all()):
        # A decoded row is the last one; its cache may start anywhere.
        where = _padding_of(padding, options.get("kv_offset", 0), keys, rows == 1)
        return sdpa_mask(*args, **options) if where is None else lazy(window=window, padding=where)
    return lazy(window=window) if window is not None else sdpa_mask(*args, **options)


def _seen_of_cache(options: dict[str, Any], rows: int) -> Optional[tuple[Padding, Padding]]:
    """Of rows on a cache that is longer than what they see, as a static one or that of a prompt in chunks: which keys count, up to the last
    row's own, and which rows. Where nothing is padded no value is asked for. None where a mask must say it."""
    keys, offset, seen = options["kv_length"], options.get("q_offset"), options.get("attention_mask")
    has_own_mask = options.get("mask_function") not in (None, causal_mask_function) or options.get("local_size") is not None
    if rows == keys or offset is None or has_own_mask or _sees_shapes_only() or bool(options.get("kv_offset", 0)):
        return None
    if rows == 1 and options.get("allow_is_causal_skip", True):  # the cache ends at the row
        return None
    device, batch = options.get("device", "cpu"), options.get("batch_size", 1)
    start = torch.as_tensor(offset, dtype=torch.int32, device=device).reshape(-1)[:1].expand(batch)
    first = torch.zeros(batch, dtype=torch.int32, device=device)
    if seen is not None and not bool(seen.all()):
        where = _padding_of(seen, 0, seen.shape[1], True)
        if where is None:
            return None
        first = where.first.to(device)
    skipped = (first - start).clamp(0, rows)
    return Padding(first, start + rows - first), Padding(skipped, rows - skipped)


def _padding_of(seen: torch.Tensor, offset: Any, keys: int, is_last_seen: bool) -> Optional[Padding]:
    """Of the keys from `offset` on, which a cache of a window still has. None where the positions that count do not follow each
    other, or, with `is_last_seen`, do not end at the last."""
    if seen.dim() != 2 or seen.shape[1] != int(offset) + keys:
        return None
    seen = seen[:, int(offset) :].bool()
    position = torch.arange(keys, device=seen.device)
    count = seen.sum(1)
    first = torch.where(seen, position, keys).amin(1)
    end = torch.where(seen, position + 1, 0).amax(1)
    fits = (end - first == count) & (count > 0)
    if is_last_seen:
        fits &= end == keys
    return Padding(first.to(torch.int32), count.to(torch.int32)) if bool(fits.all()) else None


def _sees_shapes_only() -> bool:
    """Under torch.compile, traces and graph captures, where no value can be asked for."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def _is_causal_window(function: Optional[Callable[..., Any]], window: int) -> bool:
    """Chunks (Llama 4) come the same way, with their size in the place of a window's. Row w tells them apart: under a
    window of w keys it sees those from 1 to w, in chunks of w only its own."""
    if function is None:
        return False
    row, first = torch.tensor(window), torch.tensor(0)
    seen = [bool(function(first, first, row, torch.tensor(key))) for key in (0, 1, window, window + 1)]
    return seen == [False, True, True, False]


def _is_no_flash_attention() -> None:
    """transformers (from 5.0) takes every name with "flash" in it for FlashAttention's package, and asks for that package."""
    original = getattr(transformers.modeling_utils, "is_flash_attention_requested", None)
    if original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def is_flash_attention_requested(config: Any = None, requested_attention_implementation: Optional[str] = None, *args: Any, **kwargs: Any) -> bool:
        name = requested_attention_implementation if config is None else getattr(config, "_attn_implementation", None)
        return name not in (NAME, PAGED) and bool(original(config, requested_attention_implementation, *args, **kwargs))

    for name, module in list(sys.modules.items()):
        if name.startswith("transformers") and getattr(module, "__dict__", {}).get("is_flash_attention_requested") is original:
            module.is_flash_attention_requested = is_flash_attention_requested  # type: ignore[attr-defined]


_is_no_flash_attention()
AttentionInterface.register(NAME, attention_forward)
AttentionInterface.register(PAGED, paged_attention_forward)
AttentionMaskInterface.register(NAME, attention_mask_or_none)
