"""Honest patches of the GPU families, made by rule from a seed: what people and language models do to a kernel without cheating.

No rule changes what a kernel computes. Each patch is the answer of a proposer.
"""

import os
import random
import re

from support import SOURCE_DIR

KERNELS = os.path.join(SOURCE_DIR, "src", "kernels")
FAMILIES = ["ref_fwd", "sm80_decode_fwd", "sm80_fwd", "sm80_short_fwd", "sm90_fwd", "sm90_short_fwd", "sm89_fp8_fwd", "sm90_fp8_fwd"]
# Words that would be refused in code, and are harmless in a comment.
REMARKS = [
    "keeps nothing: no static cache, no system(), no extern",
    "was: asm volatile(\"prefetch.global.L2::evict_last\"), cudaStreamCreate",
    "#include <cstdio> is not needed here",
    "see forward<<<grid, block>>>(params)",
    "TODO(agent): try another unroll; the clock64() of the last run said 3% faster",
]
OPERAND = r"[A-Za-z_][\w.]*|\d+"


def sources():
    """Path to text, of everything that kernels are made of."""
    found = {}
    for folder, _, names in os.walk(KERNELS):
        for name in names:
            if name.endswith((".cuh", ".h")):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as file:
                    found[os.path.relpath(path, KERNELS)] = file.read()
    return found


ALL = sources()
MEMBERS = {word for text in ALL.values() for word in re.findall(r"(?:\.|->|::)\s*(\w+)", text)}


def some(rng, matches, most=3):
    matches = list(matches)
    return rng.sample(matches, min(len(matches), rng.randint(1, most)))


def substitute(rng, text, pattern, make, most=3):
    """Some of the places where `pattern` matches, each replaced by make(match)."""
    for match in sorted(some(rng, re.finditer(pattern, text), most), key=lambda m: -m.start()):
        text = text[: match.start()] + make(match) + text[match.end() :]
    return text


def code_lines(text):
    """Where statements end, outside of comments, macros and directives."""
    return [m for m in re.finditer(r"(?m)^(?![ ]*(?://|#|\*)).*;$", text) if "//" not in m.group()]


def rename(rng, text):
    names = set(re.findall(r"\b(?:const )?(?:int|float|bool|unsigned|long long) (\w{3,}) = ", text))
    names = sorted(n for n in names - MEMBERS if not re.search(r"\b%s\s*\(" % n, text) and not n.startswith("k"))
    if not names:
        return text
    name = rng.choice(names)
    return re.sub(r"\b%s\b" % name, rng.choice(["my_", "the_", "cached_", "static_", "extern_"]) + name, text)


def comment(rng, text):
    for line in sorted(some(rng, code_lines(text), 5), key=lambda m: -m.start()):
        remark = rng.choice(REMARKS)
        text = text[: line.end()] + rng.choice(["  // " + remark, "  /* " + remark + " */"]) + text[line.end() :]
    return text


def commute(rng, text):
    return substitute(rng, text, r"(?<=[(\[=+,] |.[(\[])(%s) \* (%s)(?=[)\];,]| [+;])" % (OPERAND, OPERAND), lambda m: "%s * %s" % (m[2], m[1]))


def flip_equality(rng, text):
    return substitute(rng, text, r"(?<=\()(%s) (==|!=) (%s)(?=\))" % (OPERAND, OPERAND), lambda m: "%s %s %s" % (m[3], m[2], m[1]))


def flip_comparison(rng, text):
    turned = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
    return substitute(rng, text, r"(?<=if \()(%s) (<=|>=|<|>) (%s)(?=\))" % (OPERAND, OPERAND), lambda m: "%s %s %s" % (m[3], turned[m[2]], m[1]))


def increment(rng, text):
    return substitute(rng, text, r"; \+\+(\w+)\)", lambda m: rng.choice(["; %s++)", "; %s += 1)"]) % m[1])


def loop_form(rng, text):
    return substitute(rng, text, r"for \(int (\w+) = 0; \1 < ([^;()]+); ", lambda m: rng.choice(["for (int {0}{{0}}; {0} < {1}; ", "for (int {0} = 0; !({0} >= {1}); ", "for (int {0} = 0; ({1}) > {0}; "]).format(m[1], m[2]))


def unroll(rng, text):
    return substitute(rng, text, r"#pragma unroll\n", lambda m: rng.choice(["#pragma unroll 256\n", "#pragma unroll(256)\n"]))


def parenthesise(rng, text):
    return substitute(rng, text, r"(?m)(?<=  return )([\w.]+)(?=;$)", lambda m: "(" + m[1] + ")")


def hexadecimal(rng, text):
    return substitute(rng, text, r"(?<= [/%*] )(\d+)(?=[);,])", lambda m: hex(int(m[1])))


def blanks(rng, text):
    for line in sorted(some(rng, code_lines(text), 5), key=lambda m: -m.start()):
        text = text[: line.end()] + rng.choice(["\n", "  ", "\t", "\n\n"]) + text[line.end() :]
    return text


def additions(rng, text):
    opened = re.search(r"(?m)^namespace flashcore[\w:]* \{\n", text)
    if not opened:
        return text
    more = rng.choice([
        "constexpr int kHonest = %d;\n", "inline constexpr float kHonestTable[] = {1.0f, %d.0f};\n", "using HonestRow = float[%d];\n",
        "enum class Honest { kOne, kTwo = %d };\n", "FC_DEVICE int honest_sum(int a) { return a + %d; }\n", "struct HonestPair { float a, b; static constexpr int kSize = %d; };\n",
        "struct HonestMaker { int a; static FC_DEVICE HonestMaker of(int a); };\nFC_DEVICE HonestMaker HonestMaker::of(int a) { return {a + %d}; }\n",
    ])  # fmt: skip
    return text[: opened.end()] + more % rng.randint(1, 9) + text[opened.end() :]


RULES = [rename, comment, commute, flip_equality, flip_comparison, increment, loop_form, unroll, parenthesise, hexadecimal, blanks, additions]


def fields_of(family):
    """Config fields and their values, as config.h lists them."""
    found = re.findall(r'visit\("(block_m|block_n|num_warps|num_stages)", &Config::\w+, ([\d, ]+)\)', ALL[family + "/config.h"])
    return {name: [int(v) for v in values.split(",")] for name, values in found}


def device_files(family):
    return sorted(path for path in ALL if path.startswith(family + "/") and path.endswith(".cuh"))


def differences(before, after):
    """As one replacement: what lies between the common beginning and end, with enough around it to occur once."""
    begin = os.path.commonprefix([before, after])
    tail = os.path.commonprefix([before[len(begin) :][::-1], after[len(begin) :][::-1]])
    at, until = len(begin), len(before) - len(tail)
    while at > 0 and (before.count(before[at:until]) != 1 or at == until):
        at = max(0, at - 20)
    return before[at:until], after[at : len(after) - len(tail)]


def honest_patch(index, seed=1):
    rng = random.Random("%d/%d" % (seed, index))
    family = FAMILIES[index % len(FAMILIES)]
    answer = {"family": family, "name": "honest_%d" % index}
    path = rng.choice(device_files(family))
    text = before = ALL[path]
    rules = []
    for _ in range(100):
        rule = rng.choice(RULES)
        changed = rule(rng, text)
        if changed != text:
            text = changed
            rules.append(rule.__name__)
            if len(rules) >= rng.randint(1, 4):
                break
    if rng.random() < 0.5:
        answer["files"] = {path: text}
    else:
        old, new = differences(before, text)
        answer["replace"] = [{"file": path, "from": old, "to": new}]
    fields = fields_of(family)
    if fields and rng.random() < 0.25:
        name = rng.choice(sorted(fields))
        answer["extend"] = {name: [max(fields[name]) + 16]}
        rules.append("extend")
    return answer, "%s %s: %s" % (family, path, ", ".join(rules))


def honest_patches(count, seed=1):
    return [honest_patch(index, seed) for index in range(count)]
