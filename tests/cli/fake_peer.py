"""A peer of `flashcore peers` for tests: attention in plain Python on tiny fp32 problems, and ways to go wrong.

usage: fake_peer.py [NAME[:BEHAVIOUR] ...]; behaviours: good, wrong (o doubled), nan, short_file, refuses, errors (in sample), dies (in sample),
dies_once, zero (a time of 0), too_fast, garbage (in sample), twice_the_time, brief (60 us), excuses (says that nothing is wrong, and writes
no file), no_launches (0 of them). Times are made up: 1000 us a sample, with a little noise. FAKE_PEER_SOURCE: the source_hash that all claim.
"""

import array
import json
import math
import os
import random
import sys

RANDOM = random.Random(1)


def floats(tensor):
    values = array.array("f")
    with open(tensor["file"], "rb") as file:
        values.frombytes(file.read())
    return values


def attention(fields, inputs):
    q, k, v = (floats(inputs[name]) for name in "qkv")
    heads, rows, keys, dim, dim_v = fields["heads_q"], fields["seqlen_q"], fields["seqlen_kv"], fields["head_dim"], fields["head_dim_v"]
    group = heads // fields["heads_kv"]
    scale = fields["scale"] or 1 / math.sqrt(dim)
    out = array.array("f")
    for bh in range(fields["batch"] * heads):
        kv = (bh // heads) * fields["heads_kv"] + bh % heads // group
        for row in range(rows):
            qr = q[(bh * rows + row) * dim : (bh * rows + row + 1) * dim]
            scores = [scale * sum(a * b for a, b in zip(qr, k[(kv * keys + j) * dim : (kv * keys + j + 1) * dim])) for j in range(keys)]
            top = max(scores)
            p = [math.exp(s - top) for s in scores]
            total = sum(p)
            out.extend(sum(p[j] * v[(kv * keys + j) * dim_v + c] for j in range(keys)) / total for c in range(dim_v))
    return out


class Peer:
    def __init__(self, offers):
        self.offers, self.prepared = offers, []

    def answer(self, question):
        op = question["op"]
        if op == "hello":
            parties = [{"name": name, "version": "1", "notes": ["writes no LSE"], "source_hash": os.environ.get("FAKE_PEER_SOURCE", "")} for name in self.offers]
            return {"protocol": 1, "name": "fake", "parties": parties, "absent": {"somewhere_else": "not installed here"}}
        if op == "prepare":
            if self.offers[question["party"]] == "refuses":
                return {"refused": "it does not like this one"}
            if self.offers[question["party"]] == "logs":
                with open(os.environ["FAKE_PEER_LOG"], "w", encoding="utf-8") as file:
                    json.dump(question["inputs"], file)
                return {"refused": "it only looks"}
            self.prepared.append((self.offers[question["party"]], attention(question["fields"], question["inputs"])))
            return {"handle": len(self.prepared) - 1, "launches": 0 if self.offers[question["party"]] == "no_launches" else 2}
        if op == "release":
            return {"released": 1}
        behaviour, out = self.prepared[question["handle"]]
        if op == "sample":
            once = os.environ.get("FAKE_PEER_ONCE", "")
            if behaviour == "dies" or (behaviour == "dies_once" and not os.path.exists(once)):
                if once:
                    open(once, "w").close()
                os._exit(7)
            if behaviour == "errors":
                return {"error": "it lost its way"}
            if behaviour == "garbage":
                return "garbage"
            time_us = {"zero": 0.0, "too_fast": 1e-6, "twice_the_time": 2000.0, "brief": 60.0}.get(behaviour, 1000.0)
            return {"time_us": time_us * (1 + 0.01 * RANDOM.random()), "clock_mhz": 0}
        if op == "output":
            if behaviour == "excuses":
                return {"wrong": "", "rel_error": 0.0}
            factor = {"wrong": 2.0, "nan": math.nan}.get(behaviour, 1.0)
            path = os.path.join(question["folder"], "fake_o.bin")
            with open(path, "wb") as file:
                file.write(array.array("f", (x * factor for x in out)).tobytes()[: -4 if behaviour == "short_file" else None])
            return {"outputs": [{"o": path}]}
        return {"error": "unknown op " + op}


def main():
    peer = Peer(dict((word.split(":") + ["good"])[:2] for word in sys.argv[1:]))
    for line in sys.stdin:
        answer = peer.answer(json.loads(line))
        sys.stdout.write((answer if isinstance(answer, str) else json.dumps(answer)) + "\n")
        sys.stdout.flush()


main()
