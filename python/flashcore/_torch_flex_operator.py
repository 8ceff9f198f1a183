"""torch.ops.flashcore.flex_attention, which has the functions as text, and how torch.compile comes to it from functions in Python.

torch.compile records score_mod and mask_mod as a part of its graph, with the tensors that they read as inputs of it. What it recorded becomes
text where the graph is run or compiled further. By then PyTorch can no longer be given the call: an int64 tensor with numbers beyond 32 bits,
which is passed on outside of torch.compile, is a RuntimeError there.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from . import _plan, _torch_flex_ints as _ints, _torch_launch
from ._torch_trace import Traced, Untraceable, record, variables_of

NAME = "flashcore::flex_attention"

# Exact as what our functions read: float32, int32, bool. int64 by its values.
_READ = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
_checked: Any = WeakIdKeyDictionary()  # int64 tensors whose numbers fit 32 bits, and their version when they were looked at


def _as_int32(x: Tensor, most: int) -> Tensor:
    """To look at the numbers waits for the device: once for each version of a tensor."""
    version = (-1 if x.is_inference() else x._version, most)
    if version[0] < 0 or _checked.get(x) != version:
        if x.numel() > 0 and not bool(((x >= -most) & (x <= most)).all()):
            raise Untraceable(f"it reads a tensor of ints beyond {most}, and ours have 32 bits")
        _checked[x] = version
    return x.int()


def operand(x: Tensor, device: torch.device, sums_ints: bool) -> Tensor:
    """As a function of ours reads it: float32, int32 or bool, on the query's device, with an axis at least."""
    if x.requires_grad and torch.is_grad_enabled():
        raise Untraceable("a tensor that it reads requires a gradient, and flashcore has no backward pass for it")
    if x.dtype not in _READ:
        raise Untraceable(f"it reads a tensor of {x.dtype}, which is narrowed here")
    if x.dtype is torch.int64 or (sums_ints and x.dtype is torch.int32):
        x = _as_int32(x, _ints.MOST_OF_SUMS if sums_ints else _ints.MOST)
    elif x.dtype is not torch.bool:
        x = x.detach().float() if x.dtype.is_floating_point else x.int()
    if x.device != device:
        if x.dim() != 0:
            raise Untraceable(f"it reads a tensor on {x.device}, and the query is on {device}")
        x = x.to(device)
    return x.reshape(1) if x.dim() == 0 else x


def require_short(q: tuple[int, ...], k: tuple[int, ...]) -> None:
    """Shapes of a call whose function computes with what int tensors hold."""
    longest = max(*q[:3], k[2])
    if longest > _ints.MOST_OF_INDICES:
        raise Untraceable(f"it computes with ints of a tensor, and flashcore has ints of 32 bits, which are enough for sizes up to {_ints.MOST_OF_INDICES}: one is {longest}")


# --- the operator ------------------------------------------------------------------------------------------------------
torch.library.define(NAME, "(Tensor q, Tensor k, Tensor v, str score, str mask, str[] names, Tensor[] tensors, bool[] sums_ints, float? scale=None, "
                     "bool return_lse=False) -> (Tensor, Tensor)")


@torch.library.impl(NAME, ("CPU", "CUDA"))
def _forward(q: Tensor, k: Tensor, v: Tensor, score: str, mask: str, names: list[str], tensors: list[Tensor], sums_ints: list[bool],
             scale: Optional[float] = None, return_lse: bool = False) -> tuple[Tensor, Tensor]:  # fmt: skip
    given = {name: text for name, text in (("score", score), ("mask", mask)) if text}
    if names:
        try:
            given["tensors"] = {name: operand(x, q.device, sums) for name, x, sums in zip(names, tensors, sums_ints)}
            if any(sums_ints):
                require_short(q.shape, k.shape)
        except Untraceable as why:
            raise RuntimeError(f"flashcore.flex_attention: of a function that was recorded before its tensors were known, {why}; call it outside of "
                               "torch.compile, which passes it on to PyTorch, or give it numbers that fit") from None
    made = _plan.attention(q, k, v, scale=scale, return_lse=return_lse, **given)
    _torch_launch.computed.add()
    return made if return_lse else (made, q.new_empty(0, dtype=torch.float32))


@torch.library.register_fake(NAME)
def _fake(q: Tensor, k: Tensor, v: Tensor, score: str, mask: str, names: list[str], tensors: list[Tensor], sums_ints: list[bool],
          scale: Optional[float] = None, return_lse: bool = False) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _example(q, v, return_lse)


def _example(q: Tensor, v: Tensor, return_lse: bool) -> tuple[Tensor, Tensor]:
    batch, heads, rows, _ = q.shape
    return q.new_empty((batch, heads, rows, v.shape[3])), q.new_empty((batch, heads, rows) if return_lse else (0,), dtype=torch.float32)


def _autograd(keys: Any, q: Tensor, k: Tensor, v: Tensor, score: str, mask: str, names: list[str], tensors: list[Tensor], *options: Any, **named: Any) -> Any:
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, *tensors)):
        raise RuntimeError("flashcore.flex_attention: a tensor requires a gradient, which this operator has not; use flashcore.torch.flex_attention")
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.flashcore.flex_attention.default.redispatch(keys & torch._C._after_autograd_keyset, q, k, v, score, mask, names, tensors, *options, **named)


_library = torch.library.Library("flashcore", "FRAGMENT")
_library.impl("flex_attention", _autograd, "Autograd", with_keyset=True)

# --- from a recorded graph ---------------------------------------------------------------------------------------------


_OWN = 8  # q, k, v, s, b, h, i, j: the first tensors among the inputs of a graph; sizes may be there too


def _hint(size: Any) -> int:
    return int(size.node.hint if isinstance(size, torch.SymInt) else size)


def _number_in(node: torch.fx.Node, x: Any) -> Any:
    """What a graph reads at an input. A float of Python that changes is a tensor there, whose item() is asked for."""
    if isinstance(x, torch.SymInt):
        return int(x)
    asked = [user for user in node.users if user.op == "call_method" and user.target == "item"]
    if not isinstance(x, Tensor) or x.dim() != 0 or not x.dtype.is_floating_point or len(asked) < len(node.users):
        return x
    for user in asked:
        user.replace_all_uses_with(node)
        node.graph.erase_node(user)
    return x.float()


def _function_of(graph: torch.fx.GraphModule, at: int, inputs: tuple[Any, ...], own: list[int], device: torch.device, is_score: bool) -> Traced:
    """Output `at` of a graph as text; `own` are the places of the function's arguments among the inputs. What else it reads is named."""
    alone = torch.fx.Graph()
    outputs = alone.graph_copy(graph.graph, {})
    alone.output(outputs[at])
    alone.eliminate_dead_code()
    read = {}
    for place, (node, x) in enumerate(zip(alone.find_nodes(op="placeholder"), inputs)):
        if node.users and place not in own:
            read[place] = _number_in(node, x)
    module = torch.fx.GraphModule(graph, alone)
    with _disable_current_modes():
        given: list[Any] = [None] * len(inputs)
        for place, x in read.items():
            given[place] = torch.zeros((), dtype=x.dtype, device=x.device).expand([_hint(n) for n in x.shape]) if isinstance(x, Tensor) else x

        def function(*arguments: Tensor) -> Any:
            values = dict(zip(own, arguments))
            return module(*(values.get(place, x) for place, x in enumerate(given)))

        variables, prefix = variables_of(is_score)
        traced = record(function, variables, device, prefix)
    by_stand_in = {id(given[place]): x for place, x in read.items()}
    return traced._replace(tensors={name: by_stand_in[id(x)] for name, x in traced.tensors.items() if re.search(rf"\b{name}\b", traced.text)})


def _run(graph: torch.fx.GraphModule, has: tuple[bool, bool], scale: Optional[float], return_lse: bool) -> Callable[..., Any]:
    """What the graph of a call computes: the operator."""

    def run(*inputs: Any) -> Any:
        places = [place for place, x in enumerate(inputs) if isinstance(x, Tensor)][:_OWN]
        if [inputs[place].dim() for place in places] != [4] * 3 + [1] * (_OWN - 3):
            raise RuntimeError("flashcore.flex_attention: this PyTorch records a graph otherwise than flashcore reads it; call it outside of torch.compile")
        q, k, v = (inputs[place] for place in places[:3])
        texts, names, tensors, sums = ["", ""], [], [], []
        for is_score in (True, False):
            if has[not is_score]:
                traced = _function_of(graph, 3 if is_score or not has[0] else 4, inputs, places[3 if is_score else 4 :], q.device, is_score)
                texts[not is_score] = "" if traced.text in ("s", "(0 == 0)") else traced.text
                names += list(traced.tensors)
                tensors += list(traced.tensors.values())
                sums += [traced.sums_ints] * len(traced.tensors)
        made = torch.ops.flashcore.flex_attention(q, k, v, *texts, names, tensors, sums, scale, return_lse)
        # What the graph has besides, and nobody reads.
        return *made, *(q.new_empty(1, dtype=dtype) for dtype, there in ((torch.float32, True), (torch.float32, has[0]), (torch.bool, has[1])) if there)

    return run


try:  # of PyTorch's own parts; without them the compiler leaves its graph for such a call
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from torch._higher_order_ops.wrap import dynamo_bypassing_wrapper
except ImportError:  # pragma: no cover
    dynamo_bypassing_wrapper = None
CAN_RECORD = dynamo_bypassing_wrapper is not None


def attend_compiled(q: Tensor, k: Tensor, v: Tensor, score_mod: Optional[Callable[..., Any]], mask_mod: Optional[Callable[..., Any]],
                    scale: Optional[float], return_lse: bool) -> Any:  # fmt: skip
    """(output, log-sum-exp) of a call that torch.compile records. The functions were found to have a text."""

    def body(q: Tensor, k: Tensor, v: Tensor, s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Any:
        # Results as the operator gives them, and those of the functions. Each argument is used, in their order:
        # the graph has only inputs that are, in the order of their use.
        used = q.sum() + k.sum() + v.sum() + s + b + h + i + j
        made = (function(*own).clone() for function, own in ((score_mod, (s, b, h, i, j)), (mask_mod, (b, h, i, j))) if function is not None)
        return *_example(q, v, return_lse), used, *made

    # A tensor that is given twice would be one input of the graph, which has to have three.
    k = k.view_as(k) if k is q else k
    v = v.view_as(v) if v is q or v is k else v
    zero, index = torch.zeros(1, device=q.device), torch.zeros(1, dtype=torch.int64, device=q.device)
    how = functools.partial(_run, has=(score_mod is not None, mask_mod is not None), scale=scale, return_lse=return_lse)
    with TransformGetItemToIndex():
        return dynamo_bypassing_wrapper(how, body, q, k, v, zero, *(index.clone() for _ in range(4)))[:2]
