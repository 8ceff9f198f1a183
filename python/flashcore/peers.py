"""flashcore beside every other attention that imports, interleaved, by the laboratory's engine.

    python -m flashcore.peers --suite canonical --json results/h200/canonical.json

Runs `flashcore peers` with one program beside it (flashcore._peer_server), in which flashcore and its peers are called from
PyTorch, captured into CUDA graphs and timed by the library's own timer. In each round every party gives one sample, in random
order, each after the same idle gap (burst condition). The candidate first passes the laboratory's gates, every timed output is
judged against fp64, and the laboratory's own timing of the candidate, from another process, has to agree. docs/peers.md has
the rules, and how a program of your own joins: --peer PROGRAM.

Flags that are not listed here are those of `flashcore peers` (--append, --store, --seed, ...).
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from . import _library, _program
from ._library import Error
from ._peers import PEERS


def command(argv: list[str] | None = None) -> list[str]:
    """The command line of the program."""
    parser = argparse.ArgumentParser(prog="python -m flashcore.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--suite", default="canonical", help="a suite that ships, or a .yaml file")
    parser.add_argument("--problem", action="append", default=[], help="only this problem, by id or name; may be repeated")
    parser.add_argument("--peers", help=f"of {', '.join(PEERS)} (default: all of the device's but flex_autotune)")
    parser.add_argument("--device", default="cuda:0", help="cuda, cuda:N, or cpu")
    parser.add_argument("--threads", type=int, help="of every party on the CPU (default: what each of them takes)")
    options, others = parser.parse_known_args(argv)
    if options.threads is not None and options.threads < 1:
        parser.error(f"--threads is {options.threads}; give a number from 1 on")
    if options.threads is not None and options.device != "cpu":
        parser.error("--threads is for --device cpu")
    on_cpu = options.device == "cpu"
    default = [name for name, peer in PEERS.items() if peer.by_default and (on_cpu or peer.on_gpu)]
    names = default if options.peers is None else [name for name in options.peers.split(",") if name]
    for name in names:
        if name not in PEERS:
            parser.error(f"unknown peer '{name}'; known: {', '.join(PEERS)}")
    device = "cuda:0" if options.device == "cuda" else options.device
    server = [sys.executable, "-m", "flashcore._peer_server", "--device", device, "--peers", ",".join(names)]
    if options.threads is not None:
        # Read by PyTorch's OpenMP, whose number the others are told, and by ours.
        os.environ["OMP_NUM_THREADS"] = os.environ["FLASHCORE_THREADS"] = str(options.threads)
    problems = [word for name in options.problem for word in ("--problem", name)]
    return [str(_program.program_path()), "peers", "--suite", options.suite, "--device", device, "--peer", json.dumps(server), *problems, *others]


def main(argv: list[str] | None = None) -> int:
    try:
        words = command(argv)
        _library.library()  # tells the program where NVRTC is
        # The program's child finds this package where this process did.
        folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
        sys.stdout.flush()
        os.execv(words[0], words)
    except Error as error:
        print(f"flashcore.peers: error: {error}", file=sys.stderr)
        return 4


if __name__ == "__main__":
    sys.exit(main())
