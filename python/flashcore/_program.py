"""bench, tune and explain: what the flashcore program does, from Python."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

from . import _library
from ._library import Attention, Error

# Exit codes of the program: 0 done, 1 judged and failed, 2 could not judge, 3 bad input, 4 environment.
_KINDS = {3: "bad input", 4: "environment"}


def program_path() -> pathlib.Path:
    """$FLASHCORE_BINARY, else the program that came with this package. Error if there is none."""
    chosen = os.environ.get("FLASHCORE_BINARY")
    path = pathlib.Path(chosen) if chosen else _library.find_bundled("flashcore")
    if not path.is_file():
        raise Error(f"the flashcore program is not at {path}: this installation has the library only. Install the wheel, or set "
                    "FLASHCORE_BINARY to build/flashcore of a checkout", "environment")  # fmt: skip
    if not os.access(path, os.X_OK):  # unpacked by something that forgets permissions
        try:
            path.chmod(0o755)
        except OSError as error:
            raise Error(f"{path} may not be executed, and that cannot be changed ({error}): chmod +x it", "environment") from error
    return path


def run_program(*arguments: Any) -> dict[str, Any]:
    """Runs a verb with --json - and returns the document. Exit codes 1 and 2 are results; 3 and 4 are an Error."""
    for flag, value in zip(arguments, arguments[1:]):
        if not isinstance(value, os.PathLike):
            _library.encoded(value, str(flag).removeprefix("--"))
    _library.library()  # tells the child where NVRTC is
    command = [str(program_path()), *arguments, "--json", "-", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    message = done.stderr.strip().removeprefix("flashcore: error: ")
    if done.returncode not in (0, 1, 2) or not done.stdout.strip():
        raise Error(f"`flashcore {' '.join(map(str, arguments))}` ended with {done.returncode}: {message}", _KINDS.get(done.returncode, "internal"))
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _selection(problem: str | None, suite: str | None, device: str | None) -> list[str]:
    flags = []
    for name, value in (("--problem", problem), ("--suite", suite), ("--device", device)):
        if value is not None:
            flags += [name, value]
    return flags


def bench(problem: str | None = None, *, suite: str | None = None, device: str | None = None, candidate: str | None = None,
          store: str | None = None) -> list[dict[str, Any]]:  # fmt: skip
    """Times problems as `flashcore bench` does, after checking that the result is correct.

    Args:
        problem: an id as "b1_h8_s512_d64_fp16", or a name of the suite; default: all of the suite.
        suite: "quick" (the default), "canonical", "smoke" or a YAML file.
        device: "cpu", "cuda:N"; default: a GPU if there is one.
        candidate: "family" or "family:key=value,…"; default: what dispatch picks.
        store: the file of trials; default .flashcore/trials.db.

    Returns:
        One entry per problem, schema "flashcore.bench/1": "time_us" {p10, p50, p90}, "samples_us", "floor_us", "tflops", "correct", ...
    """
    flags = _selection(problem, suite, device)
    for name, value in (("--family", candidate), ("--store", store)):
        if value is not None:
            flags += [name, value]
    results: list[dict[str, Any]] = run_program("bench", *flags)["results"]
    return results


def tune(problem: str | None = None, *, suite: str | None = None, budget: str = "60s", device: str | None = None,
         store: str | None = None) -> dict[str, Any]:  # fmt: skip
    """Searches the fastest correct config of each problem, as `flashcore tune` does.

    What is found enters the user's tuned table, which every process started afterwards uses.

    Args:
        problem, suite, device, store: as of `bench`.
        budget: a time as "60s" or "10m", or a number of trials per problem.

    Returns:
        The document of `flashcore tune --json`.
    """
    flags = _selection(problem, suite, device)
    if store is not None:
        flags += ["--store", store]
    return run_program("tune", "--budget", budget, *flags)


def explain(problem: str, *, device: str | None = None, measure: bool = False) -> dict[str, Any]:
    """Which kernel dispatch picks for a problem, and why. Compiles nothing.

    Args:
        problem: an id as "b1_h32_hk8_s4096_d128_bf16_causal".
        device: "cpu", "cuda:N"; default: a GPU if there is one.
        measure: also the expected time and the floor ("expected_us", "floor_us"), which takes the flashcore program and
            seconds to measure the machine's ceilings.

    Returns:
        "family", "config", "candidate", "reason", "alternatives" (with reasons) and "refused" (why other families cannot).
    """
    if measure:
        found: dict[str, Any] = run_program("explain", *_selection(problem, None, device))["results"][0]
        return found
    library = _library.library()
    parsed = Attention()
    _library.check(library.fc_problem_parse(_library.encoded(problem, "problem"), ctypes.byref(parsed)))
    context = _library.context("" if device is None else device)
    described: dict[str, Any] = json.loads(_library.text_of(library.fc_explain, context, ctypes.byref(parsed)))
    return described


def main() -> None:
    """The `flashcore` command of the wheel: the program itself, with NVRTC found where Python's packages are."""
    try:
        _library.library()
        path = str(program_path())
    except Error as error:
        raise SystemExit(f"flashcore: error: {error}") from None
    os.execv(path, [path, *sys.argv[1:]])
