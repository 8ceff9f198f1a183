"""How each attention that Python can import is called, as its authors would: layout, masks, schedulers, two output buffers.

Nothing here is timed or judged. A `Call` computes the problem once a `run()`; consecutive runs write to different outputs,
as ours do: most packages allocate the next one while the last is held, the others are handed two in turn.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
from typing import Any, Callable

from . import _library, _peer_text

MAX_SCORE_BYTES = 12e9  # of an implementation that forms all scores
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "int8": "int8"}
TENSOR_DTYPES = {"fp32": "float32", "int32": "int32", "bool": "bool"}
LARGEST_E4M3 = 448.0
NO_LSE = "writes no LSE"


class Refused(RuntimeError):
    """A peer does not compute such a problem; the message says why."""


class Problem:
    """Tensors of one problem, [batch, heads, seqlen, head_dim], the same for every party, and what its mask comes to.

    Of a ragged batch q is [1, heads, total_q, head_dim], and `rows` and `keys` are the bounds; k and v are alike, or pools of pages,
    [pages, heads_kv, page_size, head_dim].
    """

    def __init__(self, request: dict[str, Any], device: str) -> None:
        import torch

        fields = request["fields"]
        self.key = (request["problem"], request["seed"])
        self.batch, self.heads, self.heads_kv = fields["batch"], fields["heads_q"], fields["heads_kv"]
        self.rows, self.keys, self.dim, self.dim_v = fields["seqlen_q"], fields["seqlen_kv"], fields["head_dim"], fields["head_dim_v"]
        self.causal = False if fields["causal"] == "none" else fields["causal"]
        self.scale: float | None = fields["scale"]
        self.window = (fields["window_left"], fields["window_right"])
        self.alignment: str = fields["window_alignment"]
        self.layout: str = request["layout"]
        self.device, self.on_gpu = device, device.startswith("cuda")
        self.dtype, self.o_dtype = (getattr(torch, DTYPES[fields[name]]) for name in ("dtype", "o_dtype"))
        self.kv_dtype = getattr(torch, DTYPES[fields.get("kv_dtype", fields["dtype"])])
        self.q = self._load(request["inputs"]["q"])
        self.k, self.v = (self._load(request["inputs"][name], self.kv_dtype) for name in "kv")
        self.scaling: str = fields["scaling"]  # of 8-bit q, k and v, or of a quantised cache: none, tensor or head
        self.descales: tuple[Any, ...] = ()
        if self.scaling != "none":
            self.descales = tuple(self._load(request["inputs"]["descale_" + name], torch.float32) for name in ("kv" if self.quantised else "qkv"))
        self.softcap: float | None = fields["softcap"]
        self.slopes, self.sink = (self._load(request["inputs"][name], torch.float32) if fields[name] != "none" else None for name in ("alibi", "sink"))
        self.score_text, self.mask_text = fields["score"] or "", fields["mask"] or ""  # docs/expressions.md
        self.tensors: dict[str, Any] = {
            name: self._load(described, getattr(torch, TENSOR_DTYPES[described["dtype"]])) for name, described in request["inputs"].get("tensors", {}).items()
        }
        self.ragged, self.page_size = fields.get("lengths", "fixed") != "fixed", fields.get("page_size") or 0
        self.paged: bool = self.page_size > 0
        self.total_q: int = self.q.shape[2] if self.ragged else self.batch * self.rows
        if self.ragged:
            names = ("cu_seqlens_q", "seqused_kv", "block_table") if self.paged else ("cu_seqlens_q", "cu_seqlens_kv")
            for name in names:
                setattr(self, name, self._load(request["inputs"][name], torch.int32))
        if self.paged:
            # The gates have NaN where no key is; who multiplies by zero there instead of leaving it out is not timed for that.
            for pool in () if self.kv_dtype.itemsize == 1 else (self.k, self.v):
                pool.masked_fill_(pool.isnan(), 0.0)
        # Bounds that cut nothing off are none: one query row that sees all keys needs no mask. Sequences of a ragged batch may be longer
        # or shorter than each other's keys, so that there every bound counts.
        self.offset = self.keys - self.rows if self.alignment == "bottom_right" else 0
        left, right = self.window
        one_row = self.rows == 1 and self.alignment == "bottom_right"
        self.left: int | None = left if left is not None and (self.ragged or self.rows - 1 + self.offset - left > 0) else None
        self.right: int | None = right if right is not None and (not one_row if self.ragged else self.offset + right < self.keys - 1) else None

    def _load(self, described: dict[str, Any], dtype: Any = None) -> Any:
        import torch

        shape, dtype = described["shape"], dtype or self.dtype
        count = math.prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype, device=self.device)
        # As integers of that size: from_file knows no 8-bit floats.
        stored = torch.uint8 if dtype.itemsize == 1 else dtype
        loaded = torch.from_file(described["file"], shared=False, size=count, dtype=stored).view(dtype)
        return loaded.view(shape).to(self.device, copy=True)

    def placed(self, x: Any) -> Any:
        """The same values as the problem's layout has them in memory."""
        if self.layout == "bhsd":
            return x
        rows_first = x.transpose(1, 2)
        if self.layout == "strided":
            rows_first = rows_first.new_zeros(*rows_first.shape[:-1], rows_first.shape[-1] + 8)[..., :-8].copy_(rows_first)
        else:
            rows_first = rows_first.contiguous()
        return rows_first.transpose(1, 2)

    def empty_output(self) -> Any:
        import torch

        batch, rows = (1, self.total_q) if self.ragged else (self.batch, self.rows)
        return torch.empty(batch, self.heads, rows, self.dim_v, dtype=self.o_dtype, device=self.device)

    @property
    def is_8bit(self) -> bool:
        return self.dtype.itemsize == 1

    @property
    def quantised(self) -> bool:
        """Whether k and v are a quantised cache, of 8 bits beside q of more."""
        return self.kv_dtype != self.dtype

    @property
    def descale_addresses(self) -> list[int]:
        """Of q, k and v; 0 where there are none."""
        addresses = [x.data_ptr() for x in self.descales]
        return [0] * (3 - len(addresses)) + addresses

    @property
    def grouped(self) -> bool:
        return self.heads != self.heads_kv

    @property
    def decoding(self) -> bool:
        return self.rows == 1

    @property
    def masked(self) -> bool:
        return self.left is not None or self.right is not None

    @property
    def scored(self) -> bool:
        return self.softcap is not None or self.slopes is not None or self.sink is not None or bool(self.score_text)

    @property
    def mask_tensor(self) -> Any:
        """A mask that is an element of one tensor, as it broadcasts to [batch, heads, rows, keys]; else None."""
        found = re.fullmatch(r"(\w+)\[([bhij](?:, [bhij])*)\]", self.mask_text)
        axes = found[2].split(", ") if found else []
        if not found or axes != sorted(axes):
            return None
        sizes = iter(self.tensors[found[1]].shape)
        return self.tensors[found[1]].view([next(sizes) if axis in axes else 1 for axis in "bhij"])

    def need_bottom_right(self, whose: str) -> None:
        if self.masked and (self.ragged or self.rows != self.keys) and self.alignment != "bottom_right":
            raise Refused(f"{whose} mask is aligned bottom-right, this problem's is top-left")


class Call:
    """`compute()` returns [batch, heads, rows, dim_v]: the last output is held until the next is there."""

    def __init__(self, compute: Callable[[], Any], notes: tuple[str, ...] = ()) -> None:
        self.compute, self.notes = compute, list(notes)
        self.out: Any = None
        self.inputs: tuple[Any, ...] = ()  # what it reads in place of the problem's q and v, if it has copies
        self.code_hash = ""  # of the machine code, if that is ours
        self.o_factor = 1.0  # what its o is multiplied with, after it was timed, to be the problem's

    def run(self) -> None:
        self.out = self.compute()

    def outputs(self) -> list[tuple[Any, Any]]:
        return [(self.out, None)]


class TwoBufferCall(Call):
    """`compute(i)` writes to the i-th of two outputs, [batch, heads, rows, dim_v]."""

    def __init__(self, compute: Callable[[int], Any], outputs: list[tuple[Any, Any]], notes: tuple[str, ...] = ()) -> None:
        super().__init__(lambda: None, notes)
        self.into, self.both, self.turn = compute, outputs, 0

    def run(self) -> None:
        self.into(self.turn % 2)
        self.turn += 1

    def outputs(self) -> list[tuple[Any, Any]]:
        return self.both[: min(2, self.turn)]


def flashcore_call(p: Problem, candidate: str) -> Call:
    import torch

    import flashcore

    if p.ragged:
        from . import _peer_packed

        return _peer_packed.flashcore_call(p, candidate)
    q, k, v = (p.placed(x) for x in (p.q, p.k, p.v))
    outs = [p.placed(p.empty_output()) for _ in range(2)]
    lses = [torch.empty(p.batch, p.heads, p.rows, dtype=torch.float32, device=p.device) for _ in range(2)]
    window = None if p.window == (None, None) else p.window
    alignment = None if p.causal or window is None else p.alignment
    if p.causal and p.window[0] is None:
        window = None
    slopes = None if p.slopes is None else "head" if p.slopes.dim() == 1 else "batch"
    plan = flashcore.plan(q, k, v, out=outs[0], causal=p.causal, scale=p.scale, candidate=candidate, window=window, window_alignment=alignment,
                          softcap=p.softcap, alibi=slopes, sink=p.sink is not None, scaling=p.scaling if p.is_8bit or p.quantised else None,
                          score=p.score_text or None, mask=p.mask_text or None, tensors=p.tensors or None)  # fmt: skip
    tensors = [p.tensors[name].data_ptr() for name in plan.tensors]
    operands = [*p.descale_addresses, 0 if p.slopes is None else p.slopes.data_ptr(), 0 if p.sink is None else p.sink.data_ptr()]

    def compute(i: int, keep: Any = (q, k, v)) -> None:  # addresses do not keep memory alive
        stream = torch.cuda.current_stream().cuda_stream if p.on_gpu else 0
        plan.launch(*(x.data_ptr() for x in (q, k, v, outs[i], lses[i])), stream, *operands, tensors=tensors)

    call = TwoBufferCall(compute, list(zip(outs, lses)))
    call.inputs, call.code_hash = (q, v), plan.info.get("code_hash", "")
    return call


def _pytorch(backend: str) -> Callable[[Problem], Call]:
    def make(p: Problem) -> Call:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        which = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}[backend]
        if p.left is not None or p.right not in (None, 0):
            raise Refused("PyTorch's scaled_dot_product_attention has no window but by a mask tensor")
        if p.ragged:
            from . import _peer_packed

            if p.on_gpu or p.mask_text:
                raise Refused("PyTorch's scaled_dot_product_attention knows no ragged batches; its varlen_attn is asked")

            def attend(q: Any, k: Any, v: Any) -> Any:
                with sdpa_kernel(which):
                    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=p.right == 0, scale=p.scale, enable_gqa=p.grouped)

            return _peer_packed.by_sequence_call(p, attend, "a call for each sequence")
        if backend == "math" and p.batch * p.heads * p.rows * p.keys * 4 > MAX_SCORE_BYTES:
            raise Refused(f"it forms all scores, {p.batch * p.heads * p.rows * p.keys * 4 / 1e9:.0f} GB of them")
        bias = p.mask_tensor if p.mask_text else None
        if p.mask_text and (bias is None or p.masked):
            raise Refused("PyTorch's scaled_dot_product_attention takes a mask that is one tensor, and no other beside it")
        if p.right == 0 and p.offset != 0:
            if backend not in ("flash", "efficient") or not p.on_gpu:
                raise Refused("PyTorch's is_causal aligns the mask top-left, this problem's is bottom-right")
            from torch.nn.attention.bias import causal_lower_right

            bias = causal_lower_right(p.rows, p.keys)
        notes = [NO_LSE] if backend != "flash" else []
        k, v = p.k, p.v
        if backend == "efficient" and p.grouped:  # it knows no groups; the copy is not timed, reading it is
            k, v = (x.repeat_interleave(p.heads // p.heads_kv, dim=1) for x in (k, v))
            notes.append("repeats K and V")
        if backend == "math" and p.grouped:
            notes.append("repeats K and V")

        def compute() -> Any:
            with sdpa_kernel(which):
                return torch.nn.functional.scaled_dot_product_attention(
                    p.q, k, v, attn_mask=bias, is_causal=bias is None and p.right == 0, scale=p.scale, enable_gqa=k.shape[1] != p.heads)  # fmt: skip

        return Call(compute, tuple(notes))

    return make


def _cudnn_mask(p: Problem) -> dict[str, Any]:
    import cudnn

    options: dict[str, Any] = {}
    if p.masked:
        align = cudnn.diagonal_alignment
        options["diagonal_alignment"] = align.BOTTOM_RIGHT if p.alignment == "bottom_right" and p.rows != p.keys else align.TOP_LEFT
        if p.left is not None:
            options["diagonal_band_left_bound"] = p.left + 1  # it counts the row's own key
        if p.right is not None:
            options["diagonal_band_right_bound"] = p.right
    return options


def _build_cudnn(graph: Any, p: Problem) -> Any:
    """Workspace of the graph, which is ready to run."""
    import cudnn
    import torch

    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    return torch.empty(max(graph.get_workspace_size(), 1), device=p.device, dtype=torch.uint8)


def _cudnn_frontend_8bit(p: Problem) -> Call:
    """o leaves as e4m3, the only type that cuDNN has for it on Hopper, times what brings its largest value to half of e4m3's largest.

    Probabilities enter P·V as e4m3, times 256: their largest is 1.
    """
    import cudnn
    import torch

    if p.dtype != torch.float8_e4m3fn:
        raise Refused("its 8-bit attention is asked for e4m3 only")
    if p.scaling == "head":
        raise Refused("its 8-bit attention takes one factor a tensor")
    if p.left is not None or p.right not in (None, 0) or (p.right == 0 and p.offset != 0):
        raise Refused("its 8-bit attention has no mask but a causal one on as many rows as keys")
    kinds, handle = cudnn.data_type, cudnn.create_handle()
    graph = cudnn.pygraph(io_data_type=kinds.FP8_E4M3, intermediate_data_type=kinds.FLOAT, compute_data_type=kinds.FLOAT, handle=handle)

    def tensor(x: Any, kind: Any) -> Any:
        return graph.tensor(dim=list(x.size()), stride=list(x.stride()), data_type=kind)

    def number(value: float) -> Any:
        return torch.full((1, 1, 1, 1), value, dtype=torch.float32, device=p.device)

    factors = {f"descale_{name}": x.view(1, 1, 1, 1) for name, x in zip("qkv", p.descales or [number(1.0)] * 3)}
    factors |= {"descale_s": number(1 / 256), "scale_s": number(256.0), "scale_o": number(1.0)}
    inputs = {"q": p.q, "k": p.k, "v": p.v}
    arguments = {name: tensor(x, kinds.FP8_E4M3) for name, x in inputs.items()} | {name: tensor(x, kinds.FLOAT) for name, x in factors.items()}
    options = {"attn_scale": p.scale or 1 / math.sqrt(p.dim), "use_causal_mask": p.right == 0, "name": "attention"}
    try:
        o, _, *largest = graph.sdpa_fp8(generate_stats=False, **arguments, **options)
    except TypeError:  # before 1.13
        o, _, *largest = graph.sdpa_fp8(is_inference=True, **arguments, **options)
    outs = [torch.empty(p.batch, p.heads, p.rows, p.dim_v, dtype=p.dtype, device=p.device) for _ in range(2)]
    o.set_output(True).set_dim(list(outs[0].size())).set_stride(list(outs[0].stride())).set_data_type(kinds.FP8_E4M3)
    for x in largest:  # of the probabilities and of o
        x.set_output(True).set_dim([1, 1, 1, 1]).set_stride([1, 1, 1, 1]).set_data_type(kinds.FLOAT)
    workspace = _build_cudnn(graph, p)
    bound = {arguments[name]: x for name, x in (inputs | factors).items()} | {x: number(0.0) for x in largest}
    packs = [bound | {o: out} for out in outs]

    def compute(i: int) -> None:
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(packs[i], workspace, handle=handle)

    compute(0)
    call = TwoBufferCall(compute, [(out, None) for out in outs], ("writes o as e4m3",))
    amax = bound[largest[-1]].item()
    if amax > 0:
        scale = 2.0 ** math.floor(math.log2(LARGEST_E4M3 / 2 / amax))
        factors["scale_o"].fill_(scale)
        call.o_factor = 1 / scale
    return call


def _cudnn_frontend(p: Problem) -> Call:
    import cudnn
    import torch

    if p.ragged:
        from . import _peer_packed

        return _peer_packed.cudnn_call(p)
    if p.is_8bit:
        return _cudnn_frontend_8bit(p)
    kind = {torch.float16: cudnn.data_type.HALF, torch.bfloat16: cudnn.data_type.BFLOAT16}.get(p.dtype)
    if kind is None:
        raise Refused("its attention takes 16-bit types")
    handle = cudnn.create_handle()
    graph = cudnn.pygraph(io_data_type=kind, intermediate_data_type=cudnn.data_type.FLOAT, compute_data_type=cudnn.data_type.FLOAT, handle=handle)
    q, k, v = (graph.tensor_like(x) for x in (p.q, p.k, p.v))
    options = {"attn_scale": p.scale or 1 / math.sqrt(p.dim), "name": "attention", **_cudnn_mask(p)}
    try:
        o, _ = graph.sdpa(q=q, k=k, v=v, generate_stats=False, **options)
    except TypeError:  # before 1.13
        o, _ = graph.sdpa(q=q, k=k, v=v, is_inference=True, **options)
    outs = [p.empty_output() for _ in range(2)]
    o.set_output(True).set_dim(list(outs[0].size())).set_stride(list(outs[0].stride()))
    workspace = _build_cudnn(graph, p)
    packs = [{q: p.q, k: p.k, v: p.v, o: out} for out in outs]

    def compute(i: int) -> None:
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(packs[i], workspace, handle=handle)

    return TwoBufferCall(compute, [(out, None) for out in outs])


def _flex(mode: str | None) -> Callable[[Problem], Call]:
    def make(p: Problem) -> Call:
        import torch
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        torch._dynamo.reset()  # it counts every problem as a recompilation of one function, and allows eight
        offset, left, right = p.offset, p.left, p.right
        shown = _peer_text.function_of(p.mask_text, p.tensors) if p.mask_text else None
        at = {"seqlen_q": p.rows, "seqlen_kv": p.keys}
        group = p.heads // p.heads_kv

        def in_band(i: Any, j: Any) -> Any:
            own = i + offset
            if left is None:
                return j <= own + right
            return own - j <= left if right is None else (own - j <= left) & (j <= own + right)

        mask = None
        if p.masked or shown:

            def visible(b: Any, h: Any, i: Any, j: Any) -> Any:
                if shown is None:
                    return in_band(i, j)
                own = shown(at | {"b": b, "h": h, "hk": h // group, "i": i, "j": j})
                return own & in_band(i, j) if p.masked else own

            names = _peer_text.names_of(p.mask_text)
            batch, heads = p.batch if "b" in names else None, p.heads if names & {"h", "hk"} else None
            mask = create_block_mask(visible, batch, heads, p.rows, p.keys, device=p.device)
        elif p.rows < 128:
            # Without one, its decoding kernel takes the keys as a single block: one CTA a head (1104 us where this takes 156).
            mask = create_block_mask(lambda b, h, i, j: j >= 0, None, None, p.rows, p.keys, device=p.device)
        score = None
        if p.softcap is not None or p.slopes is not None or p.score_text:
            cap, slopes, own_key = p.softcap, p.slopes, p.keys - p.rows
            own_score = _peer_text.function_of(p.score_text or "s", p.tensors)

            def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
                s = s if cap is None else cap * torch.tanh(s / cap)
                if slopes is not None:
                    s = s - (slopes[h] if slopes.dim() == 1 else slopes[b, h]) * (i + own_key - j).abs()
                return own_score(at | {"s": s, "b": b, "h": h, "hk": h // group, "i": i, "j": j})

        def attend(q: Any, k: Any, v: Any) -> Any:
            if p.sink is None:
                return flex_attention(q, k, v, score_mod=score, block_mask=mask, scale=p.scale, enable_gqa=p.grouped)
            out, lse = flex_attention(q, k, v, score_mod=score, block_mask=mask, scale=p.scale, enable_gqa=p.grouped, return_lse=True)
            return (out * torch.sigmoid(lse - p.sink[:, None])[..., None]).to(q.dtype)

        compiled = torch.compile(attend, dynamic=False, fullgraph=True, **({"mode": mode} if mode else {}))
        return Call(lambda: compiled(p.q, p.k, p.v), (NO_LSE,) if p.sink is None else ("joins the sink after, by its log-sum-exp",))

    return make


def _rows_first(p: Problem) -> list[Any]:
    """[batch, seqlen, heads, head_dim], contiguous: what FlashAttention's packages take."""
    return [x.transpose(1, 2).contiguous() for x in (p.q, p.k, p.v)]


def _flash_package(module: str) -> Callable[[Problem], Call]:
    """FlashAttention-2 (flash_attn) and -3 (flash_attn_interface)."""

    def make(p: Problem) -> Call:
        package = importlib.import_module(module)
        if p.ragged:
            from . import _peer_packed

            return _peer_packed.flash_package_call(p, package)
        p.need_bottom_right("its")
        q, k, v = _rows_first(p)
        causal = p.right == 0
        window = (-1 if p.left is None else p.left, -1 if p.right is None or causal else p.right)
        options = {"softmax_scale": p.scale, "causal": causal, "window_size": window}

        def compute() -> Any:
            if p.decoding:  # their decoding: splits the keys among CTAs
                out = package.flash_attn_with_kvcache(q, k, v, cache_seqlens=p.keys, **options)
            else:
                out = package.flash_attn_func(q, k, v, **options)
            return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

        return Call(compute)

    return make


def _varlen(p: Problem) -> Call:
    from . import _peer_packed

    if not p.ragged:
        raise Refused("it is asked for ragged batches only")
    return _peer_packed.varlen_call(p)


def _flashinfer(p: Problem) -> Call:
    import flashinfer
    import torch

    if p.ragged:
        from . import _peer_packed

        return _peer_packed.flashinfer_call(p)
    if p.quantised:
        raise Refused("its quantised caches are in pages")
    p.need_bottom_right("its")
    if p.right not in (None, 0):
        raise Refused("its window has a left side only")
    if p.dtype == torch.float32:
        raise Refused("its prefill takes 16-bit types")
    ends = lambda step: torch.arange(0, (p.batch + 1) * step, step, dtype=torch.int32, device=p.device)  # noqa: E731
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device=p.device)
    outs = [torch.empty(p.batch * p.rows, p.heads, p.dim_v, dtype=p.dtype, device=p.device) for _ in range(2)]
    views = [(out.view(p.batch, p.rows, p.heads, p.dim_v).transpose(1, 2), None) for out in outs]
    q, k, v = (x.flatten(0, 1) for x in _rows_first(p))
    window = -1 if p.left is None else p.left
    page = 16
    if p.decoding and p.keys % page == 0 and p.dim == p.dim_v:
        pages = p.keys // page
        cache = tuple(x.view(p.batch * pages, page, p.heads_kv, -1) for x in (k, v))
        decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
        last = torch.full((p.batch,), page, dtype=torch.int32, device=p.device)
        table = torch.arange(p.batch * pages, dtype=torch.int32, device=p.device)
        decode.plan(ends(pages), table, last, p.heads, p.heads_kv, p.dim, page, window_left=window, sm_scale=p.scale, q_data_type=p.dtype, kv_data_type=p.dtype)
        return TwoBufferCall(lambda i: decode.run(q, cache, out=outs[i]), views)
    prefill = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
    prefill.plan(ends(p.rows), ends(p.keys), p.heads, p.heads_kv, p.dim, head_dim_vo=p.dim_v, causal=p.right == 0, window_left=window, sm_scale=p.scale, q_data_type=p.dtype)
    return TwoBufferCall(lambda i: prefill.run(q, k, v, out=outs[i]), views)


def _xformers(p: Problem) -> Call:
    import xformers.ops as ops
    from xformers.ops import fmha

    p.need_bottom_right("its")
    q, k, v = _rows_first(p)
    group = p.heads // p.heads_kv
    if p.grouped:
        q = q.unflatten(2, (p.heads_kv, group))
        k, v = (x[:, :, :, None].expand(-1, -1, -1, group, -1) for x in (k, v))
    bias: Any = None
    if p.left is not None or p.right not in (None, 0):
        bias = fmha.attn_bias.LocalAttentionFromBottomRightMask(p.keys if p.left is None else p.left, p.keys if p.right is None else p.right)
    elif p.masked:
        bias = fmha.attn_bias.LowerTriangularFromBottomRightMask()

    def compute() -> Any:
        out = ops.memory_efficient_attention(q, k, v, attn_bias=bias, scale=p.scale)
        return (out.flatten(2, 3) if p.grouped else out).transpose(1, 2)

    return Call(compute)


@dataclasses.dataclass
class Peer:
    make: Callable[[Problem], Call]
    notes: list[str] = dataclasses.field(default_factory=list)  # that hold for every problem
    package: str | None = None  # beside PyTorch
    on_cpu: bool = False
    on_gpu: bool = True
    by_default: bool = True
    takes_scores: bool = False  # softcap, ALiBi, sinks, functions of scores
    takes_masks: bool = False  # functions of pairs
    takes_8bit: bool = False
    takes_ragged: bool = False  # ragged batches; which of them, and of paged caches, it says itself
    takes_quantised: bool = False  # caches of 8 bits beside wider queries; which of them it says itself


def _cpu_only(name: str) -> Callable[[Problem], Call]:
    """Of _peer_cpu, which needs this module's classes."""

    def make(p: Problem) -> Call:
        from . import _peer_cpu

        call: Call = getattr(_peer_cpu, name)(p)
        return call

    return make


def peer_call(name: str, p: Problem) -> Call:
    peer = PEERS[name]
    if p.scored and not peer.takes_scores:
        raise Refused("it knows no softcap, ALiBi, sinks or functions of scores, or is not asked for them")
    if p.mask_text and not peer.takes_masks:
        raise Refused("it knows no masks but bands, or is not asked for them")
    if p.quantised and not peer.takes_quantised:
        raise Refused("it takes no quantised caches, or is not asked for them")
    if p.is_8bit and not peer.takes_8bit:
        raise Refused("it takes no 8-bit types, or is not asked for them")
    if p.ragged and not peer.takes_ragged:
        raise Refused("it knows no ragged batches and paged caches, or is not asked for them")
    if p.ragged and (p.scored or p.mask_text or p.is_8bit):
        raise Refused("of ragged batches it is asked for plain ones only")
    return peer.make(p)


PEERS = {
    "cudnn": Peer(_pytorch("cudnn"), takes_masks=True), "cudnn_frontend": Peer(_cudnn_frontend, [NO_LSE], "cudnn", takes_8bit=True, takes_ragged=True), "flash": Peer(_pytorch("flash"), on_cpu=True, takes_ragged=True),
    "efficient": Peer(_pytorch("efficient"), takes_masks=True), "math": Peer(_pytorch("math"), on_cpu=True, takes_masks=True, takes_ragged=True),
    "varlen": Peer(_varlen, takes_ragged=True),
    "flex": Peer(_flex(None), takes_scores=True, takes_masks=True),
    # Minutes of compiling for each problem.
    "flex_autotune": Peer(_flex("max-autotune-no-cudagraphs"), by_default=False, takes_scores=True, takes_masks=True),
    "flash_attn": Peer(_flash_package("flash_attn"), package="flash_attn", takes_ragged=True),
    "flash_attn_3": Peer(_flash_package("flash_attn_interface"), package="flash_attn_interface", takes_ragged=True),
    "flashinfer": Peer(_flashinfer, [NO_LSE], "flashinfer", takes_ragged=True, takes_quantised=True), "xformers": Peer(_xformers, [NO_LSE], "xformers"),
    "openvino": Peer(_cpu_only("openvino_call"), [NO_LSE], "openvino", on_cpu=True, on_gpu=False),
    "onnxruntime": Peer(_cpu_only("onnxruntime_call"), [NO_LSE], "onnxruntime", on_cpu=True, on_gpu=False),
}  # fmt: skip


def available(names: list[str], on_gpu: bool) -> tuple[dict[str, str], dict[str, str]]:
    """name -> version of those that import, and name -> why not of the others."""
    import torch

    versions, absent = {}, {}
    for name in names:
        peer = PEERS.get(name)
        if peer is None:
            raise _library.Error(f"unknown peer '{name}'; known: {', '.join(PEERS)}")
        if not on_gpu and not peer.on_cpu:
            absent[name] = "it runs on a GPU only"
            continue
        if on_gpu and not peer.on_gpu:
            absent[name] = "it runs on a CPU only here"
            continue
        if peer.package is None:
            cudnn = f", cuDNN {torch.backends.cudnn.version()}" if name == "cudnn" else ""
            triton = f", Triton {importlib.import_module('triton').__version__}" if name.startswith("flex") else ""
            versions[name] = f"PyTorch {torch.__version__}{cudnn}{triton}"
            continue
        try:
            module = importlib.import_module(peer.package)
            below = f", cuDNN {module.backend_version()}" if name == "cudnn_frontend" else ""
            versions[name] = f"{peer.package} {getattr(module, '__version__', 'of unknown version')}{below}"
        except Exception as error:  # noqa: BLE001: a broken installation raises anything
            absent[name] = f"{peer.package} does not import: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return versions, absent
