"""Python functions of scalar tensors, as FlexAttention takes them, as texts of the language of docs/expressions.md.

A function is run once on stand-ins by PyTorch's make_fx, which records the operators that it calls, and each operator becomes a
piece of text. Tensors that the function reads become tensors that the text names.
"""

from __future__ import annotations

import builtins
import dis
import math
import threading
import types
import weakref
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from . import _torch_flex_ints as _ints

_aten = torch.ops.aten
INDICES = ("b", "h", "i", "j")
_MAX_TEXT = 65536  # characters, as the library takes them
_MAX_DEPTH = 4  # of functions within functions that are looked through for what they read


class Untraceable(Exception):
    """The function does something that the language has no word for; the message says what."""


class Traced(NamedTuple):
    """A function as text, and what it reads by the names in it."""

    text: str
    tensors: dict[str, Tensor]
    sums_ints: bool = False  # computes with what int tensors hold: right for elements up to MOST_OF_SUMS and sizes up to MOST_OF_INDICES


class _Word(NamedTuple):
    text: str
    kind: str  # "int" | "float" | "bool" | "tensor"
    range: Optional[_ints.Range] = None  # of an int


_READERS = {getattr(Tensor, name): name for name in ("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__")}


class _IndexByTensors(TorchFunctionMode):
    """x[i] of scalar tensors as an operator: PyTorch itself would ask for the number in i, which a stand-in has not. And what
    reads the numbers in a tensor is refused: another call may find others there."""

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READERS:
            raise Untraceable(f"{_READERS[func]}() of a tensor")
        if func is torch.Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if all(isinstance(x, (Tensor, int)) for x in index) and any(isinstance(x, Tensor) for x in index):
                return _aten.index(args[0], [x if isinstance(x, Tensor) else torch.tensor(x, device=args[0].device) for x in index])
        return func(*args, **(kwargs or {}))


# Types of results. Narrower ones round or wrap where ours do not; float64 is made of numbers alone, and float32 in a score.
_EXACT = (torch.float32, torch.int32, torch.int64, torch.bool)


def _kind(dtype: torch.dtype) -> str:
    return "bool" if dtype is torch.bool else "float" if dtype.is_floating_point else "int"


def _literal(value: Any) -> _Word:
    if isinstance(value, bool):
        return _Word("(0 == 0)" if value else "(0 == 1)", "bool")
    if isinstance(value, int):
        if not -(2**31) < value < 2**31:
            raise Untraceable(f"the number {value} needs more than 32 bits")
        return _Word(str(value) if value >= 0 else f"({value})", "int", _ints.literal(value))
    if isinstance(value, float):
        if math.isnan(value):
            raise Untraceable("the number nan")
        text = ("inf" if value > 0 else "(-inf)") if math.isinf(value) else repr(value) if value >= 0 else f"({value!r})"
        return _Word(text, "float")
    raise Untraceable(f"a value of type {type(value).__name__}")


def _number(word: _Word) -> str:
    """A condition among numbers counts 1 or 0."""
    return f"where({word.text}, 1, 0)" if word.kind == "bool" else word.text


def _condition(word: _Word) -> str:
    return word.text if word.kind == "bool" else f"({word.text} != 0)"


def _range(word: _Word) -> Optional[_ints.Range]:
    return _ints.CONDITION if word.kind == "bool" else word.range


def _binary(sign: str) -> Callable[..., str]:
    return lambda a, b, **_: f"({_number(a)} {sign} {_number(b)})"


def _are_conditions(a: _Word, b: _Word) -> bool:
    return a.kind == b.kind == "bool"


def _of_conditions(sign: str, otherwise: Callable[..., str]) -> Callable[..., str]:
    """Of two conditions PyTorch computes in bool: a product is their conjunction, a sum that one of them holds."""
    return lambda a, b, *more: f"({a.text} {sign} {b.text})" if _are_conditions(a, b) else otherwise(a, b, *more)


def _scaled(sign: str, a: _Word, b: _Word, alpha: Optional[_Word] = None) -> str:
    return f"({_number(a)} {sign} {_number(b)})" if alpha is None else f"({_number(a)} {sign} {_number(alpha)} * {_number(b)})"


def _refuse_bits(*_: _Word) -> str:
    raise Untraceable("it works on the bits of ints (& | ^ ~ << >>), for which flashcore has no operation; of conditions & | ^ ~ are recorded")


def _add(a: _Word, b: _Word, alpha: Optional[_Word] = None) -> str:
    if _are_conditions(a, b):
        return f"({a.text} || {b.text if alpha is None else f'({_condition(alpha)} && {b.text})'})"
    return _scaled("+", a, b, alpha)


def _chosen(a: _Word, b: _Word, if_same: bool) -> str:
    """The shorter one stands twice: a chain of them grows by what is added to it."""
    long, short = (a.text, b.text) if len(a.text) >= len(b.text) else (b.text, a.text)
    return f"where({long}, {short}, !{short})" if if_same else f"where({long}, !{short}, {short})"


def _differ(a: _Word, b: _Word) -> str:
    return _chosen(a, b, False)


def _exclusive_or(a: _Word, b: _Word) -> str:
    return _differ(a, b) if _are_conditions(a, b) else _refuse_bits()


def _compare(sign: str) -> Callable[..., str]:
    def write(a: _Word, b: _Word) -> str:
        if _are_conditions(a, b) and sign in ("==", "!="):
            return _chosen(a, b, sign == "==")
        return f"({_number(a)} {sign} {_number(b)})"

    return write


def _divide(a: _Word, b: _Word, rounding_mode: Optional[str] = None) -> str:
    if rounding_mode is None:
        return f"({_number(a)} / {_number(b)})"
    if rounding_mode != "floor" or "float" in (a.kind, b.kind):
        raise Untraceable("a division that rounds other than ints rounded down")
    return f"({_number(a)} // {_number(b)})"


def _of_ints(sign: str) -> Callable[..., str]:
    def write(a: _Word, b: _Word) -> str:
        if "float" in (a.kind, b.kind):
            raise Untraceable(f"{sign} of floats")
        return f"({_number(a)} {sign} {_number(b)})"

    return write


def _call(name: str) -> Callable[..., str]:
    return lambda *words: f"{name}({', '.join(_number(word) for word in words)})"


def _negate_bits(a: _Word) -> str:
    return f"!{a.text}" if a.kind == "bool" else _refuse_bits()


def _power(a: _Word, b: _Word) -> str:
    powers = {"2": f"({a.text} * {a.text})", "2.0": f"({a.text} * {a.text})", "0.5": f"sqrt({a.text})", "1": a.text, "3": f"({a.text} * {a.text} * {a.text})"}
    if b.text not in powers or a.kind != "float":
        raise Untraceable(f"a power of {b.text}")
    return powers[b.text]


def _clamp(a: _Word, low: Optional[_Word] = None, high: Optional[_Word] = None) -> str:
    are_conditions = all(x is None or x.kind == "bool" for x in (a, low, high))
    write, larger, smaller = (lambda x: x.text, "({} || {})", "({} && {})") if are_conditions else (_number, "max({}, {})", "min({}, {})")
    text = write(a) if low is None else larger.format(write(a), write(low))
    return text if high is None else smaller.format(text, write(high))


def _where(c: _Word, a: _Word, b: _Word) -> str:
    if _are_conditions(a, b):
        return f"where({_condition(c)}, {a.text}, {b.text})"
    return f"where({_condition(c)}, {_number(a)}, {_number(b)})"


_SAME = lambda a, *_, **__: a.text  # noqa: E731
_WRITERS: dict[Any, Callable[..., str]] = {
    _aten.add: _add, _aten.sub: lambda a, b, alpha=None: _scaled("-", a, b, alpha),
    _aten.rsub: lambda a, b, alpha=None: _scaled("-", b, a, alpha), _aten.mul: _of_conditions("&&", _binary("*")), _aten.div: _divide,
    _aten.floor_divide: _of_ints("//"), _aten.remainder: _of_ints("%"), _aten.neg: lambda a: f"(-{_number(a)})", _aten.abs: _call("abs"),
    _aten.exp: _call("exp"), _aten.exp2: _call("exp2"), _aten.log: _call("log"), _aten.log2: _call("log2"), _aten.tanh: _call("tanh"), _aten.sqrt: _call("sqrt"),
    _aten.minimum: _of_conditions("&&", _call("min")), _aten.maximum: _of_conditions("||", _call("max")), _aten.clamp: _clamp, _aten.clamp_min: _clamp,
    _aten.clamp_max: lambda a, high: _clamp(a, None, high), _aten.relu: lambda a: f"max({a.text}, 0)", _aten.reciprocal: lambda a: f"(1 / {_number(a)})",
    _aten.rsqrt: lambda a: f"(1 / sqrt({_number(a)}))", _aten.sigmoid: lambda a: f"(1 / (1 + exp(-{_number(a)})))", _aten.pow: _power, _aten.where: _where,
    _aten.lt: _compare("<"), _aten.le: _compare("<="), _aten.gt: _compare(">"), _aten.ge: _compare(">="), _aten.eq: _compare("=="), _aten.ne: _compare("!="),
    _aten.logical_and: lambda a, b: f"({_condition(a)} && {_condition(b)})", _aten.logical_or: lambda a, b: f"({_condition(a)} || {_condition(b)})",
    _aten.logical_not: lambda a: f"!{_condition(a)}", _aten.logical_xor: lambda a, b: _differ(a._replace(text=_condition(a)), b._replace(text=_condition(b))),
    _aten.bitwise_and: _of_conditions("&&", _refuse_bits), _aten.bitwise_or: _of_conditions("||", _refuse_bits), _aten.bitwise_xor: _exclusive_or,
    _aten.__and__: _of_conditions("&&", _refuse_bits), _aten.__or__: _of_conditions("||", _refuse_bits), _aten.__xor__: _exclusive_or, _aten.bitwise_not: _negate_bits,
    _aten.__lshift__: _refuse_bits, _aten.__rshift__: _refuse_bits, _aten.bitwise_left_shift: _refuse_bits, _aten.bitwise_right_shift: _refuse_bits, _aten.alias: _SAME, _aten.clone: _SAME, _aten.detach: _SAME,
    _aten.lift_fresh_copy: _SAME,
}  # fmt: skip


_COMPARISONS = (_aten.lt, _aten.le, _aten.gt, _aten.ge, _aten.eq, _aten.ne)
# Tensors of one number, and which.
_FILLED: dict[Any, Callable[[torch.fx.Node], Any]] = {
    **{packet: lambda _: True for packet in (_aten.new_ones, _aten.ones, _aten.ones_like)},
    **{packet: lambda _: False for packet in (_aten.new_zeros, _aten.zeros, _aten.zeros_like)},
    _aten.full: lambda node: node.args[1], _aten.new_full: lambda node: node.args[2], _aten.scalar_tensor: lambda node: node.args[0],
}  # fmt: skip


def _convert(a: _Word, dtype: torch.dtype) -> str:
    to = _kind(dtype)
    if dtype not in _EXACT:
        raise Untraceable(f"a number that becomes {dtype}: scores are float32 and indices int32 here")
    if a.kind == to:
        return a.text
    if to == "bool":
        return _condition(a)
    if a.kind == "bool":
        return f"where({a.text}, {'1.0, 0.0' if to == 'float' else '1, 0'})"
    if to == "float":
        return f"(1.0 * {a.text})"
    raise Untraceable("a float that becomes an int")


class _Writer:
    """One recorded function, node by node."""

    def __init__(self, module: torch.fx.GraphModule, variables: tuple[str, ...], prefix: str) -> None:
        self.module, self.variables, self.prefix = module, iter(variables), prefix
        self.words: dict[torch.fx.Node, _Word] = {}
        self.names: dict[str, str] = {}  # of the module's attributes
        self.sums_ints = False
        self.tensors: dict[str, Tensor] = {}

    def word_of(self, x: Any) -> _Word:
        if not isinstance(x, torch.fx.Node):
            return _literal(x)
        word = self.words[x]
        if word.kind != "tensor":
            return word
        tensor = self.tensors[word.text]
        if tensor.dim() != 0:
            raise Untraceable(f"a tensor of shape {tuple(tensor.shape)} that is not indexed")
        return _Word(f"{word.text}[0]", _kind(tensor.dtype), _ints.element(tensor.dtype) if _kind(tensor.dtype) == "int" else None)

    def require_exact(self, node: torch.fx.Node, dtype: torch.dtype) -> None:
        """An element has its tensor's type, whatever that is; what is computed from narrower numbers is rounded by PyTorch."""
        packet = getattr(node.target, "overloadpacket", None)
        if dtype not in _EXACT and packet not in (_aten.index, _aten.select):
            raise Untraceable(f"{packet} in {dtype}: scores are float32 and indices int32 here")

    def literal_beside(self, x: Any, other: Any) -> _Word:
        """A number that is compared with a tensor's element becomes one of its type, as PyTorch has it."""
        if isinstance(x, (torch.fx.Node, bool)) or not isinstance(other, torch.fx.Node):
            return self.word_of(x)
        word = self.words[other]
        dtype = self.tensors[word.text].dtype if word.kind == "tensor" else other.meta["val"].dtype
        if isinstance(x, int) and _kind(dtype) == "int" and not torch.iinfo(dtype).min <= x <= torch.iinfo(dtype).max:
            raise Untraceable(f"it compares {dtype} with {x}, which PyTorch wraps to that type; convert the tensor to a wider one")
        if dtype in (torch.float16, torch.bfloat16):
            return _literal(torch.tensor(x, dtype=dtype).item())
        return self.word_of(x)

    def range_of(self, node: torch.fx.Node, dtype: torch.dtype) -> Optional[_ints.Range]:
        packet = getattr(node.target, "overloadpacket", None)
        if _kind(dtype) != "int":
            return None
        if packet in (_aten.index, _aten.select):
            return _ints.element(dtype)
        if packet in _FILLED:
            return _range(_literal(_FILLED[packet](node)))
        given = node.args if packet in _ints.RANGES else node.args[:1]
        operands = tuple(None if x is None else _range(self.word_of(x)) for x in given)
        alpha = node.kwargs.get("alpha")
        made = _ints.of(packet, operands, None if alpha is None else _range(self.word_of(alpha)))
        if not made.has_element:  # the library judges it, and refuses what does not fit
            return made.within_32_bits
        if dtype is torch.int64 and _ints.can_leave_the_type(packet, operands):
            self.sums_ints = True
            if not made.fits:
                raise Untraceable(f"an int that it computes of a tensor's elements ({packet}) may be {made.high if made.high > _ints.MOST else made.low}, and "
                                  f"flashcore's have 32 bits; elements count as up to {_ints.MOST_OF_SUMS}, and places as up to {_ints.MOST_OF_INDICES}")  # fmt: skip
        return made if made.fits else _ints.ANY._replace(has_element=True)

    def name_of(self, target: str) -> str:
        if target not in self.names:
            self.names[target] = f"{self.prefix}{len(self.names)}"
            self.tensors[self.names[target]] = getattr(self.module, target)
        return self.names[target]

    def index(self, tensor: torch.fx.Node, indices: Any) -> str:
        word = self.words[tensor]
        if word.kind != "tensor":
            raise Untraceable("an index into what is no tensor from outside")
        words = [self.word_of(x) for x in indices if x is not None]
        if len(words) != self.tensors[word.text].dim() or any(x.kind != "int" for x in words):
            raise Untraceable("an index that takes a part of a tensor")
        if len(words) > 4:
            raise Untraceable("a tensor of more than four axes")
        return f"{word.text}[{', '.join(x.text for x in words)}]"

    def write(self, node: torch.fx.Node) -> str:
        packet = getattr(node.target, "overloadpacket", None)
        if packet is _aten.index:
            return self.index(node.args[0], node.args[1])  # type: ignore[arg-type]
        if packet in (_aten._to_copy, _aten.to):
            dtype = node.kwargs.get("dtype", node.args[1] if len(node.args) > 1 else None)
            word = self.word_of(node.args[0])
            return _convert(word, dtype) if isinstance(dtype, torch.dtype) else word.text
        if packet in _FILLED:
            return _convert(_literal(_FILLED[packet](node)), node.meta["val"].dtype)
        if packet is _aten.select and node.args[1] == 0 and isinstance(node.args[2], int) and node.args[2] >= 0:
            return self.index(node.args[0], [node.args[2]])  # type: ignore[arg-type]
        writer = _WRITERS.get(packet)
        if writer is None:
            raise Untraceable(f"{packet or node.target} is none of the operations that flashcore records; flex_attention's docstring lists them")
        if packet in _COMPARISONS:
            a, b = node.args
            return writer(self.literal_beside(a, b), self.literal_beside(b, a))
        named = {name: self.word_of(x) for name, x in node.kwargs.items() if name == "alpha"}
        extra = {"rounding_mode": node.kwargs["rounding_mode"]} if "rounding_mode" in node.kwargs else {}
        return writer(*(None if x is None else self.word_of(x) for x in node.args), **named, **extra)

    def run(self) -> _Word:
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                name = next(self.variables)
                self.words[node] = _Word(name, "float") if name == "s" else _Word(name, "int", _ints.INDEX)
            elif node.op == "get_attr":
                self.words[node] = _Word(self.name_of(node.target), "tensor")
            elif node.op == "call_function":
                value = node.meta.get("val")
                if not isinstance(value, Tensor) or value.dim() != 0:
                    raise Untraceable(f"{node.target}, whose result is no scalar")
                self.require_exact(node, value.dtype)
                text = self.write(node)
                if len(text) > _MAX_TEXT:
                    raise Untraceable(f"it is longer than an expression of {_MAX_TEXT} characters, in which a value that it uses twice is written twice")
                self.words[node] = _Word(text, _kind(value.dtype), self.range_of(node, value.dtype))
            elif node.op == "output":
                return self.word_of(node.args[0])
        raise Untraceable("it returns nothing")


def variables_of(is_score: bool) -> tuple[tuple[str, ...], str]:
    """The arguments of such a function, and how the tensors that it reads are called."""
    return (("s", *INDICES), "score_t") if is_score else (INDICES, "mask_t")


def record(function: Callable[..., Any], variables: tuple[str, ...], device: torch.device, prefix: str) -> Traced:
    """`function` as text, recorded now."""
    inputs = [torch.zeros((), dtype=torch.float32 if name == "s" else torch.int64, device=device) for name in variables]
    try:
        with torch.no_grad(), _IndexByTensors():
            module = make_fx(lambda *at: function(*at))(*inputs)  # it asks plain functions alone how many arguments they take
    except Untraceable:
        raise
    except Exception as error:  # noqa: BLE001: whatever the caller's function and PyTorch raise
        lines = str(error).splitlines()
        raise Untraceable(f"it cannot be recorded: {type(error).__name__}: {lines[0][:200] if lines else ''}") from error
    writer = _Writer(module, variables, prefix)
    try:
        result = writer.run()
    except Untraceable:
        raise
    except Exception as error:  # noqa: BLE001: PyTorch computes what was recorded in whatever way
        raise Untraceable(f"it cannot be written as an expression: {type(error).__name__}: {str(error)[:200]}") from error
    score = variables[0] == "s"
    return Traced(_number(result) if score else _condition(result), writer.tensors, writer.sums_ints)


# --- recorded once -----------------------------------------------------------------------------------------------------
def _names_of(code: types.CodeType) -> set[str]:
    """Globals and attributes that it names, and functions within it."""
    return set(code.co_names).union(*(_names_of(x) for x in code.co_consts if isinstance(x, types.CodeType)))


def _imports(code: types.CodeType) -> bool:
    """Within it, so that the name is no global's."""
    return any(step.opname == "IMPORT_NAME" for step in dis.get_instructions(code)) or any(
        _imports(x) for x in code.co_consts if isinstance(x, types.CodeType))  # fmt: skip


# Names of builtins that read nothing but what they are given: not getattr, globals, vars, eval, open, ...
_PURE = {"abs", "all", "any", "bool", "divmod", "enumerate", "float", "int", "isinstance", "len", "list", "map", "max", "min", "pow", "range", "reversed",
         "round", "set", "slice", "sorted", "sum", "tuple", "type", "zip"}  # fmt: skip


def _outside(function: types.FunctionType) -> Any:
    """What it reads but for its closure and its defaults: globals, and attributes that somebody may have given the torch module. None where
    it may read more."""
    names = sorted(_names_of(function.__code__))
    others = [name for name in names if name not in function.__globals__]
    if function.__dict__ or _imports(function.__code__) or any(hasattr(builtins, name) and name not in _PURE for name in others):
        return None
    return [function.__globals__[name] for name in names if name in function.__globals__] + [vars(torch)[name] for name in others if name in vars(torch)]


def _is_of_torch(x: Any) -> bool:
    return getattr(x, "__module__", None) is not None and str(x.__module__).split(".")[0] == "torch"


def _reads(x: Any, depth: int = 0) -> Any:
    """What a function is made of, to be compared: its code, and what it reads from outside. None where that is not known: attributes of
    functions and of tensors, containers, modules other than torch and math, imports within it."""
    if isinstance(x, (bool, int, float, str, type(None))):
        return (type(x), x)
    if isinstance(x, types.FunctionType) and depth > 0 and _is_of_torch(x):
        return (_Same(x),)
    if isinstance(x, types.FunctionType):
        if depth == _MAX_DEPTH:
            return None
        try:
            cells = [cell.cell_contents for cell in x.__closure__ or ()]
        except ValueError:  # not bound yet
            return None
        used = _outside(x)
        if used is None:
            return None
        parts = [_reads(part, depth + 1) for part in (*cells, *used, *(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values())]
        return None if any(part is None for part in parts) else (x.__code__, tuple(parts))
    if isinstance(x, Tensor):
        return None if x.__dict__ else (_Same(x), x.shape, x.dtype, x.device)
    # Of other modules attributes may change.
    if isinstance(x, types.ModuleType):
        return (_Same(x),) if x.__name__.split(".")[0] in ("torch", "math") else None
    # d.get reads a dict.
    if isinstance(x, types.BuiltinFunctionType):
        return (_Same(x),) if x.__self__ is None or isinstance(x.__self__, (types.ModuleType, type)) else None
    if isinstance(x, (torch.dtype, torch.device)) or (isinstance(x, type) and _is_of_torch(x)):
        return (_Same(x),)
    return None


class _Same:
    """Equal to itself alone, and keeps what it is of: another object does not come to lie at its address."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.x is self.x

    __hash__ = None  # type: ignore[assignment]


# PyTorch records in one thread at a time.
_recording = threading.Lock()
_recorded: weakref.WeakKeyDictionary[Any, dict[Any, tuple[Any, Traced]]] = weakref.WeakKeyDictionary()


def trace(function: Callable[..., Any], is_score: bool, device: torch.device) -> Traced:
    """`function` as text. Raises Untraceable where the language has no word for what it does.

    A function of the same code that reads the same tensors and numbers as before is not recorded again; what is in the tensors
    may have changed.
    """
    variables, prefix = variables_of(is_score)
    with _recording:
        reads = _reads(function)
        if reads is None:
            return record(function, variables, device, prefix)
        known = _recorded.setdefault(function, {})
        found = known.get((is_score, device))
        if found is None or found[0] != reads:
            found = known[(is_score, device)] = (reads, record(function, variables, device, prefix))
        return found[1]
