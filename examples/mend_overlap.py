#!/usr/bin/env python3
"""A proposer for `flashcore tune` that writes kernels: it starts from one that is slow on purpose and mends it by rule.

    flashcore tune --device cuda --family sm80_fwd --problem b4_h16_s1024_d64_fp16 --strategy none --confine-proposer \\
        --proposer "python3 examples/mend_overlap.py"

Of a GPU family it answers with the source itself (docs/agents.md): first with copies that nothing overlaps, then with what each rule
makes of that. The answers give a config with two stages: the rules change the branch of the kernel that has a ring, and the default of
this problem has one stage. Of cpu_fwd, which cannot be patched, it answers with configs: first the smallest tiles and the most splits, then
each field as in the default. A rule stays applied if its kernel passed the gates and is not slower.
"""

import json
import sys

KERNEL = "sm80_fwd/kernel.cuh"
CONFIG = {"num_stages": 2, "ctas_per_sm": 1}  # without a ring of stages the rules' text is not compiled
# (what the rule says, the slow text, the text that it makes of it)
RULES = [
    ("the copies of the next block run while this one is computed", "load_v(block - (kStages - 1)), ptx::cp_async_wait<0>();", "load_v(block - (kStages - 1));"),
    ("the first scores wait for their keys, not for V as well", "if (first) ptx::cp_async_wait<0>();", "if (first) ptx::cp_async_wait<2 * (kStages - 2) + 1>();"),
]


class Sources:
    """A kernel's text, with the overlap taken out; each rule puts a part of it back."""

    def __init__(self, family):
        text = family["source"][KERNEL]
        for _, slow, fast in RULES:
            if text.count(fast) != 1:
                sys.exit("the kernel has changed: %r occurs %d times" % (fast, text.count(fast)))
            text = text.replace(fast, slow)
        self.text, self.steps = text, [None, *RULES]

    def next(self, step):
        if step:
            return self.text.replace(step[1], step[2])
        return self.text

    def answer(self, text, number):
        return {"family": "sm80_fwd", "config": CONFIG, "name": "mended_%d" % number, "files": {KERNEL: text}}


class Tiles:
    """cpu_fwd's config: at first the keys are split too often into tiles that are too small; each rule takes one field's default."""

    SLOW = {"kv_split": -1, "block_m": 0, "block_n": 0}  # which of the allowed values

    def __init__(self, family):
        self.text = dict(family["default"])
        values = {field["name"]: field["values"] for field in family["fields"]}
        self.steps = [None, *((name, family["default"][name]) for name in self.SLOW)]
        self.text.update((name, values[name][at]) for name, at in self.SLOW.items())

    def next(self, step):
        return {**self.text, **dict([step])} if step else self.text

    def answer(self, text, _):
        return {"family": "cpu_fwd", "config": text}


def main():
    kernel, number, proposed, best_us = None, 0, None, float("inf")
    for line in sys.stdin:
        event = json.loads(line)
        if event["event"] == "start":
            families = {family["name"]: family for family in event["families"]}
            kernel = Sources(families["sm80_fwd"]) if "sm80_fwd" in families else Tiles(families["cpu_fwd"])
        elif event["event"] == "trial" and proposed is not None:
            trial = event["trial"]
            # Without a time (the emulator has none) right is enough.
            us = trial["p50_us"] or 0
            if trial["ended"] in ("passed", "slower", "inconclusive") and us <= best_us * 1.03:
                kernel.text, best_us = proposed, min(us or best_us, best_us)
            proposed = None
        elif event["event"] == "propose":
            if number == len(kernel.steps):
                print(json.dumps({"done": True}), flush=True)
                continue
            proposed = kernel.next(kernel.steps[number])
            print(json.dumps(kernel.answer(proposed, number)), flush=True)
            number += 1
        elif event["event"] == "rejected":
            print(event["message"], file=sys.stderr)


if __name__ == "__main__":
    main()
