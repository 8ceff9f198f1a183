"""One attention on one problem, ready to run: with an output of its own, or with two that are written in turn."""

from __future__ import annotations

from typing import Any, Callable

NO_LSE = "writes no LSE"


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
