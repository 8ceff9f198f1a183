#!/usr/bin/env python3
"""An external proposer for `flashcore tune`: climbs from the best config known to its neighbours, one field at a time.

    flashcore tune --family sm80_fwd --problem b4_h16_s512_d64_fp16 --strategy none --proposer "python3 examples/neighbours.py"

It talks to the tuner in lines of JSON (docs/tuning.md). What is invalid, spills, is wrong or is slow it learns as everybody
does: from the trials it is told of. It is done once every neighbour of the best config has been tried.
"""

import json
import sys


def parse(candidate):
    family, _, text = candidate.partition(":")
    return family, dict(pair.split("=") for pair in text.split(",") if pair)


def text(family, config):
    return family + ":" + ",".join(f"{field}={value}" for field, value in config.items())


def neighbours(family, config, fields):
    """Each field one step up or down."""
    for field, values in fields.items():
        at = values.index(int(config[field]))
        for step in (at - 1, at + 1):
            if 0 <= step < len(values):
                yield text(family, {**config, field: str(values[step])})


class Climber:
    def __init__(self, start):
        self.fields = {family["name"]: {field["name"]: field["values"] for field in family["fields"]} for family in start["families"]}
        first = start["families"][0]
        self.default = text(first["name"], {field: first["default"][field] for field in self.fields[first["name"]]})
        self.times = {}  # microseconds of what was timed, by its text
        self.tried = {self.default}

    def told(self, trial):
        family, config = parse(trial["candidate"])
        self.tried.add(text(family, config))
        if trial["ended"] == "passed" and trial.get("p50_us"):
            self.times[text(family, config)] = trial["p50_us"]

    def propose(self):
        family, config = parse(min(self.times, key=self.times.get, default=self.default))
        for candidate in neighbours(family, config, self.fields[family]):
            if candidate not in self.tried:
                self.tried.add(candidate)
                return {"candidate": candidate}
        return {"done": True}


def main():
    climber = None
    for line in sys.stdin:
        event = json.loads(line)
        if event["event"] == "start":
            climber = Climber(event)
        elif event["event"] == "trial":
            climber.told(event["trial"])
        elif event["event"] == "propose":
            print(json.dumps(climber.propose()), flush=True)
        elif event["event"] == "rejected":
            print(event["message"], file=sys.stderr)


if __name__ == "__main__":
    main()
