"""Score and mask functions of the caller's own: texts, arrays that become one (biases, boolean masks, prefixes, documents, intervals), and where their tensors lie."""

from __future__ import annotations

import functools
import json
import operator
from typing import Any, Callable, Mapping, NamedTuple, Optional

from . import _arrays, _documents, _library
from ._arrays import View
from ._library import Error

_ELEMENTS = {"fp32": 0, "int32": 1, "bool": 2}  # fc_element
_ELEMENT_WORDS = ("float", "int", "bool")  # of a problem's JSON, by fc_element
_CAUSAL = "j <= i + seqlen_kv - seqlen_q"
# Of what an array becomes: the names of its tensors.
BIAS, MASK, PREFIX, DOCUMENT_Q, DOCUMENT_KV = "attention_bias", "attention_mask", "prefix_keys", "document_q", "document_kv"
INTERVAL_START, INTERVAL_END = "interval_start", "interval_end"
DOCUMENTS_TWICE = "documents and document_boundaries are given; leave one of them away"
_MOST_INTERVALS = 4  # of which each may have two tensors, and eight are all


class Tensor(NamedTuple):
    """fc_tensor, hashable."""

    name: str
    element: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


class Functions(NamedTuple):
    """Of one problem: texts, "" for none, and what they name."""

    score: str
    mask: str
    tensors: tuple[Tensor, ...]

    def fields(self) -> dict[str, Any]:
        """What fc_attention has of them."""
        if not self.score and not self.mask and not self.tensors:
            return {}
        made = [_library.Tensor(name=t.name.encode(), element=t.element, rank=len(t.sizes), sizes=(*t.sizes, *(0,) * (4 - len(t.sizes))),
                                strides=(*t.strides, *(0,) * (4 - len(t.strides)))) for t in self.tensors]  # fmt: skip
        return {"score": _library.encoded(self.score, "score") or None, "mask": _library.encoded(self.mask, "mask") or None,
                "tensors": (_library.Tensor * len(made))(*made) if made else None, "tensor_count": len(made)}  # fmt: skip


NONE = Functions("", "", ())


class Given(NamedTuple):
    """Of one call. Addresses are those of `functions.tensors`; `keep` lives as long as they are used."""

    functions: Functions
    addresses: tuple[int, ...]
    keep: Any


_NOTHING = Given(NONE, (), None)


class Packed(NamedTuple):
    """Of a packed batch: the boundaries of its sequences' rows and keys, and how many there are in all."""

    cu_q: View
    cu_kv: View
    total_q: int
    total_kv: int


class _Reader:
    def __init__(self, q: View, sizes: Any, stream: Optional[int], packed: Optional[Packed]) -> None:
        self.q, self.stream, self.packed = q, stream, packed
        self.axes = {"b": sizes.batch, "h": sizes.heads_q, "i": sizes.seqlen_q, "j": sizes.seqlen_kv}
        self.tensors: list[Tensor] = []
        self.views: list[View] = []

    def add(self, name: str, role: str, x: Any) -> View:
        found = _arrays.view(x, role, self.stream)
        if found.device != self.q.device:
            raise Error(f"{role} is on {found.device} and q on {self.q.device}; move one")
        if any(stride < 0 and extent > 1 for stride, extent in zip(found.strides, found.shape)):
            raise Error(f"{role} has strides {found.strides}; negative ones are not read: copy the array")
        if not 1 <= len(found.shape) <= 4:
            raise Error(f"{role} has shape {found.shape}; give an array of one to four axes")
        if 0 in found.shape:
            raise Error(f"{role} has shape {found.shape}; give one with elements")
        if any(tensor.name == name for tensor in self.tensors):
            raise Error(f"the name {name!r} is given twice; give it once")
        self.tensors.append(Tensor(name, _ELEMENTS[found.dtype], found.shape, found.strides))
        self.views.append(found)
        return found

    def broadcast(self, name: str, role: str, x: Any, axes: str) -> str:
        """`x` by the axes that it has: attention_bias[h, i, j] of shape [1, heads, seqlen_q, seqlen_kv]. Axes of one element are not indexed."""
        found = _arrays.view(x, role, self.stream)
        wanted = tuple(self.axes[axis] for axis in axes)
        shape = found.shape
        missing = len(wanted) - len(shape)
        if missing < 0 or any(extent not in (1, full) for extent, full in zip(shape, wanted[missing:])):
            raise Error(f"{role} has shape {shape}; give one that broadcasts to {wanted}")
        kept = [at for at, extent in enumerate(shape) if extent > 1]
        view = found._replace(shape=tuple(shape[at] for at in kept) or (1,), strides=tuple(found.strides[at] for at in kept) or (1,))
        self.add(name, role, view)
        return f"{name}[{', '.join(axes[missing + at] for at in kept) or '0'}]"

    def documents(self, documents: Any) -> str:
        is_list = isinstance(documents, (tuple, list))
        pair = documents if is_list else (documents, documents)
        if len(pair) != 2 or not all(_is_array(x) for x in pair):
            of = f" of {', '.join(type(x).__name__ for x in documents[:2])}{', ...' if len(documents) > 2 else ''}" if is_list and documents else ""
            raise Error(f"documents is a {type(documents).__name__}{of}; give the ids of documents, int32 [batch, seqlen] or [seqlen]: one array for rows and "
                        "keys, or a pair of them, (ids_q, ids_kv)")  # fmt: skip
        terms = []
        for name, x, axis in ((DOCUMENT_Q, pair[0], "i"), (DOCUMENT_KV, pair[1], "j")):
            terms.append(self.broadcast(name, "documents", self.of_sequences("documents", x, axis, 1), "b" + axis))
        return " == ".join(terms)

    def boundaries(self, boundaries: Any) -> str:
        if self.stream is not None:
            raise Error("document_boundaries and stream are given, and ids are made of boundaries on the framework's current stream; leave stream away, "
                        "or give documents=flashcore.document_ids(...)")  # fmt: skip
        lengths = (self.packed.total_q, self.packed.total_kv) if self.packed else (self.axes["i"], self.axes["j"])
        return self.documents(_documents.ids_of_boundaries(boundaries, *lengths))

    def of_sequences(self, role: str, x: Any, axis: str, most: int) -> Any:
        """By batch entry, of what a packed batch has for each of its rows (or keys): an array of up to `most` axes. Others are so already."""
        if self.packed is None:
            return x
        shape = _arrays.view(x, role, self.stream).shape
        if not 1 <= len(shape) <= most:
            return x
        total, boundaries = (self.packed.total_q, self.packed.cu_q) if axis == "i" else (self.packed.total_kv, self.packed.cu_kv)
        if shape[-1] != total:
            raise Error(f"{role} has shape {shape}; give one for each of the {total} packed {'rows' if axis == 'i' else 'keys'}, or for each batch entry "
                        f"up to the bound, {self.axes[axis]}")  # fmt: skip
        if self.stream is not None:
            raise Error(f"{role} is given for packed rows, and stream as well; they are sorted by sequence on the framework's current stream: leave stream "
                        "away")  # fmt: skip
        return _documents.by_sequence(x, role, boundaries, max(self.axes[axis], 1), most)

    def intervals(self, intervals: Any) -> str:
        """j >= interval_start[b, h, i] && j < interval_end[b, h, i], of each pair, joined by ||."""
        pairs = interval_pairs(intervals)
        return " || ".join(self.interval(pair, "" if n == 0 else f"_{n + 1}", len(pairs) > 1) for n, pair in enumerate(pairs))

    def interval(self, pair: Any, suffix: str, is_part: bool) -> str:
        terms = []
        for name, sign, x in ((INTERVAL_START, ">=", pair[0]), (INTERVAL_END, "<", pair[1])):
            if x is not None:
                terms.append(f"j {sign} {self.key_of_rows(name + suffix, x)}")
        text = " && ".join(terms)
        return f"({text})" if is_part else text

    def key_of_rows(self, name: str, x: Any) -> str:
        if _is_array(x):
            return self.broadcast(name, "intervals", self.of_sequences("intervals", x, "i", 2), "bhi")
        number = _whole(x)
        if number is None or isinstance(x, bool) or not -(2**31) < number < 2**31:
            raise Error(f"intervals has {x!r} for a start or an end; give the number of a key, int32 that broadcasts to [batch, heads, seqlen_q], or None "
                        "for no bound")  # fmt: skip
        return str(number)

    def prefix(self, prefix: Any) -> str:
        if _is_array(prefix):
            return f"j < {self.broadcast(PREFIX, 'prefix', prefix, 'b')} || {_CAUSAL}"
        number = _whole(prefix)
        if number is None or isinstance(prefix, bool) or not 0 <= number < 2**31:
            raise Error(f"prefix is {prefix!r}; give a number of keys, an int from 0 to 2^31 - 1, or an array, int32 [batch]")
        return f"j < {number} || {_CAUSAL}"


def interval_pairs(intervals: Any) -> tuple[Any, ...]:
    """One pair of starts and ends, or a list of them."""
    is_some = isinstance(intervals, (tuple, list)) and len(intervals) > 0
    pairs = tuple(intervals) if is_some and all(isinstance(pair, (tuple, list)) for pair in intervals) else (intervals,)
    if not is_some or len(pairs) > _MOST_INTERVALS or any(len(pair) != 2 for pair in pairs):
        raise Error(f"intervals is no pair of starts and ends, and no list of one to {_MOST_INTERVALS} of them; give (starts, ends), int32 that broadcast "
                    "to [batch, heads, seqlen_q], or [(starts, ends), ...]")  # fmt: skip
    if any(start is None and end is None for start, end in pairs):
        raise Error("intervals has a pair of two None, which hides nothing; give starts, ends or both")
    return pairs


def _is_array(x: Any) -> bool:
    """One that has an element alone is one, too: it lies on a device, and may change. Numbers of NumPy are none."""
    return getattr(x, "shape", ()) != () or hasattr(x, "__dlpack__")


def _whole(x: Any) -> Optional[int]:
    try:
        return operator.index(x)
    except TypeError:
        return None


def _text(value: Any, role: str) -> str:
    if not isinstance(value, str):
        raise Error(f"{role} is a {type(value).__name__}; give a text, as {'s + slope[h] * (j - i)' if role == 'score' else 'j <= i'!r}")
    if not value.strip():
        raise Error(f"{role} is an empty text; leave it away for none")
    return value


@functools.lru_cache(maxsize=256)
def _refusal(score: Optional[str], mask: Optional[str], tensors: str) -> str:
    """What is written wrong in a text, with its column; "" for nothing. Sizes are not judged."""
    texts = {name: text for name, text in (("score", score), ("mask", mask), ("tensors", tensors)) if text}
    try:
        _library.check(_library.library().fc_problem_parse(json.dumps({"id": "b1_h1_s1_d8_fp32", **texts}).encode(), _library.Attention()))
    except Error as error:
        if str(error).startswith("column "):
            return str(error)
    return ""


def _check_joined(score: Optional[str], mask: Optional[str], joined: Functions, roles: Mapping[str, list[str]]) -> None:
    """Error for texts of the caller that others are joined with. What is wrong in one alone has a column of it, and parentheses put around it stay
    their own. `roles`: of what the score and the mask are joined."""
    tensors = ", ".join(f"{t.name}: {_ELEMENT_WORDS[t.element]}[{len(t.sizes)}]" for t in joined.tensors)
    if alone := _refusal(score, mask, tensors):
        raise Error(alone)
    # Each is right, so that together they can only pass a limit, in a column of a text that nobody has seen.
    where, _, said = _refusal(joined.score, joined.mask, tensors).partition(": ")
    if said:
        first, *others = roles["mask" if where.endswith("mask") else "score"]
        limit = said.removeprefix("there are ").removeprefix("the text has ")
        raise Error(f"{first}, together with {' and '.join(others)}, has {limit}; give a shorter or simpler {first}")


def read(q: View, score: Any, mask: Any, tensors: Any, bias: Any, prefix: Any, documents: Any, causal: Any, sizes: Callable[[], Any],
         stream: Optional[int], intervals: Any = None, document_boundaries: Any = None, packed: Optional[Packed] = None) -> Given:  # fmt: skip
    """Of one call, with its arrays. Error, naming the argument, for one that does not suit."""
    if all(x is None for x in (score, mask, tensors, bias, prefix, documents, intervals, document_boundaries)):
        return _NOTHING
    if documents is not None and document_boundaries is not None:
        raise Error(DOCUMENTS_TWICE)
    reader = _Reader(q, sizes(), stream, packed)
    if tensors is not None and not isinstance(tensors, Mapping):
        raise Error(f"tensors is a {type(tensors).__name__}; give a dict of names and arrays")
    for name, x in (tensors or {}).items():
        if not isinstance(name, str) or not name.isascii():
            raise Error(f"tensors has the name {name!r}; give a text of letters, digits and '_'")
        reader.add(name, f"tensors[{name!r}]", x)
    score_text = "" if score is None else _text(score, "score")
    if bias is not None:
        term = reader.broadcast(BIAS, "bias", bias, "bhij")
        score_text = f"({score_text}) + {term}" if score_text else f"s + {term}"
    masks: dict[str, str] = {}
    if mask is not None:
        masks["mask"] = _text(mask, "mask") if isinstance(mask, str) else reader.broadcast(MASK, "mask", mask, "bhij")
    if prefix is not None:
        if causal not in (False, None, "none"):
            raise Error("prefix and causal are given; leave causal away: after the prefix the mask is causal")
        masks["prefix"] = reader.prefix(prefix)
    if packed is None or 0 not in (packed.total_q, packed.total_kv):  # else there is no pair to hide
        if documents is not None:
            masks["documents"] = reader.documents(documents)
        if document_boundaries is not None:
            masks["document_boundaries"] = reader.boundaries(document_boundaries)
        if intervals is not None:
            masks["intervals"] = reader.intervals(intervals)
    texts = list(masks.values())
    made = Functions(score_text, texts[0] if len(texts) == 1 else " && ".join(f"({text})" for text in texts), tuple(reader.tensors))
    if (bias is not None and score is not None) or (len(masks) > 1 and isinstance(mask, str)):
        _check_joined(score, mask if isinstance(mask, str) else None, made, {"score": ["score", "bias"], "mask": list(masks)})
    return Given(made, tuple(view.address for view in reader.views), reader.views)
