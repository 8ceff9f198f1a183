"""What the ints of a recorded function may be. PyTorch computes indices in 64 bits, and flashcore has 32.

Ints that no tensor's element is in are left to the library, which refuses what may leave 32 bits at the call's sizes. Nobody knows an element
before the call. So a function that computes with elements in 64 bits is recorded as if each were small, and the call holds its tensors and its
sizes to that. What PyTorch itself computes in 32 bits wraps in both.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

import torch

_aten = torch.ops.aten
MOST_OF_SUMS = 2**26  # an element of a function that computes with them
MOST_OF_INDICES = 2**22  # b, h, i and j of such a function
LEAST, MOST = -(2**31), 2**31 - 1


class Range(NamedTuple):
    low: int
    high: int
    has_element: bool = False  # depends on what a tensor holds

    @property
    def fits(self) -> bool:
        return LEAST <= self.low and self.high <= MOST

    @property
    def within_32_bits(self) -> Range:
        return Range(*(min(max(x, LEAST), MOST) for x in self[:2]))


ANY, CONDITION, INDEX = Range(LEAST, MOST), Range(0, 1), Range(0, MOST_OF_INDICES)


def element(dtype: torch.dtype) -> Range:
    narrow = dtype in (torch.int8, torch.uint8, torch.int16)
    return Range(torch.iinfo(dtype).min, torch.iinfo(dtype).max, True) if narrow else Range(-MOST_OF_SUMS, MOST_OF_SUMS, True)


def literal(value: int) -> Range:
    return Range(value, value)


def _over(*values: int) -> Range:
    return Range(min(values), max(values))


def _times(a: Range, b: Range) -> Range:
    return _over(a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high)


def _plus(a: Range, b: Range) -> Range:
    return Range(a.low + b.low, a.high + b.high)


def _minus(a: Range, b: Range) -> Range:
    return Range(a.low - b.high, a.high - b.low)


def _scaled(b: Range, alpha: Optional[Range]) -> Range:
    return b if alpha is None else _times(b, alpha)


def _abs(a: Range) -> Range:
    return Range(0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high)), max(abs(a.low), abs(a.high)))


def _quotient(a: Range, b: Range) -> Range:
    """Rounded down. Divisors that may be 0 are refused by the library."""
    if b.low <= 0:
        return Range(-_abs(a).high, _abs(a).high)
    return _over(a.low // b.low, a.low // b.high, a.high // b.low, a.high // b.high)


def _remainder(a: Range, b: Range) -> Range:
    high = max(b.high - 1, 0)
    return Range(min(b.low + 1, 0), min(high, a.high) if a.low >= 0 and b.low > 0 else high)


def _smaller(a: Range, b: Range) -> Range:
    return Range(min(a.low, b.low), min(a.high, b.high))


def _larger(a: Range, b: Range) -> Range:
    return Range(max(a.low, b.low), max(a.high, b.high))


def _clamped(a: Range, low: Optional[Range] = None, high: Optional[Range] = None) -> Range:
    a = a if low is None else _larger(a, low)
    return a if high is None else _smaller(a, high)


RANGES: dict[Any, Callable[..., Range]] = {
    _aten.add: lambda a, b, alpha=None: _plus(a, _scaled(b, alpha)), _aten.sub: lambda a, b, alpha=None: _minus(a, _scaled(b, alpha)),
    _aten.rsub: lambda a, b, alpha=None: _minus(b, _scaled(a, alpha)), _aten.mul: _times, _aten.neg: lambda a: Range(-a.high, -a.low), _aten.abs: _abs,
    _aten.div: _quotient, _aten.floor_divide: _quotient, _aten.remainder: _remainder, _aten.minimum: _smaller, _aten.maximum: _larger,
    _aten.clamp: _clamped, _aten.clamp_min: _clamped, _aten.clamp_max: lambda a, high: _clamped(a, None, high), _aten.relu: lambda a: _larger(a, Range(0, 0)),
    _aten.where: lambda _, a, b: Range(min(a.low, b.low), max(a.high, b.high)),
}  # fmt: skip
_SUMS = (_aten.add, _aten.sub, _aten.rsub, _aten.mul, _aten.neg, _aten.abs)


def of(packet: Any, operands: tuple[Optional[Range], ...], alpha: Optional[Range]) -> Range:
    """Before it wraps. `operands` and `alpha` are those of the operator, None for what it was not given or for a float."""
    has_element = any(x.has_element for x in operands if x is not None)
    make = RANGES.get(packet)
    if make is not None:
        made = make(*operands, **({} if alpha is None else {"alpha": alpha}))
    else:  # the same number as another type
        made = operands[0] if operands and operands[0] is not None else ANY
    return made._replace(has_element=has_element)


def can_leave_the_type(packet: Any, operands: tuple[Optional[Range], ...]) -> bool:
    """Whether the result may be larger than all operands: -2^31 // -1 is, too."""
    divides = packet in (_aten.div, _aten.floor_divide) and operands[1] is not None and operands[1].low < 0
    return packet in _SUMS or divides
