"""Functions of scores by name (softcap, ALiBi) and attention sinks: what a call asks for, and where slopes and logits lie."""

from __future__ import annotations

import numbers
from typing import Any, Callable, NamedTuple

from . import _arrays
from ._arrays import View
from ._factors import DTYPES, float_array
from ._library import Error

ALIBI = {None: 0, "none": 0, "head": 1, "batch": 2}  # fc_alibi
SINK = {None: 0, False: 0, "none": 0, True: 1, "head": 1}  # fc_sink


class Scores(NamedTuple):
    """Of one problem: a softcap or None, fc_alibi, fc_sink; and fc_amax, whether largest magnitudes are asked for."""

    softcap: float | None
    alibi: int
    sink: int
    amax: int = 0


PLAIN = Scores(None, 0, 0)


class Operands(NamedTuple):
    """Addresses of slopes and sinks, 0 where there are none; `keep` lives as long as they are used."""

    alibi: int
    sink: int
    keep: Any


def softcap_number(softcap: Any) -> float | None:
    if softcap is None:
        return None
    # bool is a number to Python, and an argument in the wrong place to us.
    if isinstance(softcap, numbers.Real) and not isinstance(softcap, bool):
        try:
            number = float(softcap)
        except OverflowError:
            number = float("inf")
        if 1e-6 <= number <= 1e6:
            return number
    raise Error(f"softcap is {softcap!r}; use a number from 1e-6 to 1e6, or None for none")


def with_amax(scores: Scores, asked: Any, dtype: str) -> Scores:
    """With what `return_amax` says, of q of that dtype."""
    if asked is False:
        return scores
    if asked is not True:
        raise Error(f"return_amax is {asked!r}; use True or False")
    if dtype not in DTYPES:
        raise Error(f"return_amax is True and q is {dtype}; largest magnitudes are written of q, k and v of 8 bits only")
    return scores._replace(amax=1)


def results(out: Any, *more: tuple[Any, Any]) -> Any:
    """The output, or a tuple of it and of those that were asked for: (asked, array)."""
    asked = tuple(array for was_asked, array in more if was_asked)
    return (out, *asked) if asked else out


def of_words(softcap: Any, alibi: Any, sink: Any) -> Scores:
    """What `flashcore.plan` is told in words."""
    try:
        alibi_number = ALIBI[alibi]
    except (KeyError, TypeError):
        raise Error(f"alibi is {alibi!r}; use 'head' (a slope for each query head), 'batch' (for each batch entry and query head) or None") from None
    try:
        sink_number = SINK[sink]
    except (KeyError, TypeError):
        raise Error(f"sink is {sink!r}; use True (a logit for each query head) or False") from None
    return Scores(softcap_number(softcap), alibi_number, sink_number)


def read(q: View, softcap: Any, alibi: Any, sink: Any, sizes: Callable[[], Any], stream: int | None) -> tuple[Scores, Operands]:
    """Of one call, with its arrays. Error, naming the argument, for one that does not suit q."""
    cap = softcap_number(softcap)
    if alibi is None and sink is None:
        return (PLAIN if cap is None else Scores(cap, 0, 0)), Operands(0, 0, None)
    made = sizes()
    slopes = logits = None
    kind = 0
    if alibi is not None:
        slopes = float_array(alibi, "alibi", q, stream)
        shapes = {(made.heads_q,): 1, (made.batch, made.heads_q): 2}
        if slopes.shape not in shapes:
            raise Error(f"alibi has shape {slopes.shape}; give slopes of shape [heads] = {(made.heads_q,)}, or [batch, heads] = {(made.batch, made.heads_q)}")
        kind = shapes[slopes.shape]
    if sink is not None:
        logits = float_array(sink, "sink", q, stream)
        if logits.shape != (made.heads_q,):
            raise Error(f"sink has shape {logits.shape}; give a logit for each query head, [heads] = {(made.heads_q,)}")
    scores = Scores(cap, kind, 0 if logits is None else 1)
    return scores, Operands(slopes.address if slopes else 0, logits.address if logits else 0, (slopes, logits))
