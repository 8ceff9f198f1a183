"""A problem as every peer gets it: tensors from the laboratory's files, and what its mask comes to."""

from __future__ import annotations

import math
import re
from typing import Any

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "int8": "int8"}
TENSOR_DTYPES = {"fp32": "float32", "int32": "int32", "bool": "bool"}


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
        # Of v that lies transposed flashcore takes that, and a peer v as it wants it.
        self.v_layout: str = fields.get("v_layout", "nd")
        self.v_columns = self.v
        if self.v_layout == "dn":
            self.v = self.v.transpose(2, 3).contiguous()
        self.scaling: str = fields["scaling"]  # of 8-bit q, k and v, or of a quantised cache: none, tensor, head or token
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

    @property
    def placed_v(self) -> Any:
        """v as flashcore is given it: with v_layout "dn" columns of keys, a multiple of 16 bytes apart."""
        if self.v_layout == "nd":
            return self.placed(self.v)
        keys = self.v_columns.shape[3]
        padded = self.v_columns.new_zeros(*self.v_columns.shape[:3], -(-keys // 16) * 16)
        padded[..., :keys].copy_(self.v_columns)
        return padded[..., :keys]

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
