"""Cheats of proposers, submitted as a proposer submits: each is caught by the gate and the check named for it.

Untrusted, as an inline patch or as a folder; those that the check of sources stops are submitted once more with --trust-code,
where the gates behind it must catch what the emulator can show.
"""

import json
import os
import unittest

from support import FAILED, CliTest

KERNEL = "ref_fwd/kernel.cuh"
CALL = "  attend<T, C>(params, nullptr, NoDescales{});\n"
STORE = "    if (column < T.head_dim_v) tile::store_any<T.output>(params.o, o_row + column, o[i] * scale);\n"
LSE = "  if (params.lse && lane == 0)\n"
OPEN = "namespace flashcore::ref_fwd {\n"
PROBLEM = "b1_h2_s40_d16_fp16"
# The first number of the warp's row, in half precision: not the poison, which is a NaN.
WRITTEN = (
    "  Item own;\n  if (!find_item<C>(params, own)) return;\n"
    "  const unsigned short* o = static_cast<const unsigned short*>(params.o) + own.batch * params.o_stride.batch +\n"
    "                            own.head_q * params.o_stride.head + own.row * params.o_stride.row;\n"
    "  if ((*o & 0x7FFF) <= 0x7C00) return;\n"
)


def at(place, text, file=KERNEL):
    return {"file": file, "from": place, "to": text}


# name: what it does, the patch, and the gate and check that must catch it.
CHEATS = {
    "pointer_cache": (
        "computes when q has another address than last time, and leaves the output alone otherwise",
        {"replace": [at(CALL, "  static const void* last[1 << 16];\n  const int own = ptx::ctaid_x() * threads_per_block(C) + ptx::tid_x();\n"
                              "  const bool known = last[own] == params.q;\n  last[own] = params.q;\n  if (known) return;\n" + CALL)]},
        "valid", "device_code"),
    "stops_after_the_gates": (
        "counts its launches in a variable of its kernel and computes in the first ones only",
        {"replace": [at(OPEN, OPEN + "__device__ unsigned launches;\n"), at(CALL, "  if (launches++ > 100000) return;\n" + CALL)]},
        "valid", "device_code"),
    "constant_that_changes": (
        "counts its launches in a mutable member of a constexpr variable, which the compiler keeps in global memory",
        {"replace": [at(CALL, "  struct Kept {\n    mutable unsigned launches = 0;\n  };\n  static constexpr Kept kept{};\n"
                              "  if (kept.launches++ > 100000) return;\n" + CALL)]},
        "valid", "device_code"),
    "constant_through_a_cast": (
        "counts its launches in a constexpr variable, through a cast: no word of it is refused, and its PTX has the store",
        {"replace": [at(OPEN, OPEN + "constexpr unsigned kLaunches[1] = {1};\n"),
                     at(CALL, "  volatile unsigned* const launches = (volatile unsigned*)&kLaunches[0];\n  if (*launches > 100000) return;\n"
                              "  *launches = *launches + 1;\n" + CALL)]},
        "resource", "kept_state"),
    "counts_in_ptx": (
        "counts its launches in a variable of a file of ptx/, in whose place the emulator has its own",
        {"replace": [at('#include "kernels/ptx/common.cuh"\n', '#include "kernels/ptx/common.cuh"\n__device__ unsigned launches;\n', "ptx/memory.cuh"),
                     at(CALL, "  if (launches++ > 100000) return;\n" + CALL)]},
        "valid", "device_code"),
    "variable_in_disguise": (
        "declares its cache with an attribute that has the word constexpr in it",
        {"replace": [at(OPEN, OPEN + "[[constexpr]] __device__ float cache[1024];\n")]},
        "valid", "device_code"),
    "hint_in_parts": (
        "asks L2 to keep its inputs, in two texts that the compiler joins",
        {"replace": [at(CALL, '  asm volatile("prefetch.global.L2::evict_" "last [%0];" ::"l"(params.k));\n' + CALL)]},
        "valid", "device_code"),
    "replayed_output": (
        "returns where the output holds a number already, whatever inputs that is the result of",
        {"replace": [at(CALL, WRITTEN + CALL)]},
        "correctness", "earlier_result"),
    "other_kernel": (
        "has a second kernel do the work, outside of the launch that is timed",
        {"replace": [at(CALL, "  forward<T, C><<<1, 32>>>(params);\n")]},
        "valid", "device_code"),
    "other_stream": (
        "opens a stream of its own",
        {"replace": [at(CALL, "  cudaStream_t side;\n  cudaStreamCreate(&side);\n" + CALL)]},
        "valid", "device_code"),
    "late_write": (
        "leaves rows to a launch that comes later: every row but the first is not written when the launch is complete",
        {"replace": [at(CALL, "  if (ptx::ctaid_x() > 0) return;\n" + CALL)]},
        "correctness", "unwritten"),
    "patched_timer": (
        "brings a clock of its own in place of the laboratory's",
        {"files": {"device/cuda/cuda_timer.cpp": "double now() { return 0; }\n"}},
        "valid", "device_code"),
    "redefined_clock": (
        "makes the clock stand still by a macro",
        {"replace": [at(OPEN, "#define clock64() 0\n" + OPEN)]},
        "valid", "device_code"),
    "persisting_l2": (
        "asks L2 to keep its inputs for the next launch",
        {"replace": [at(CALL, '  asm volatile("prefetch.global.L2::evict_last [%0];" ::"l"(params.k));\n' + CALL)]},
        "valid", "device_code"),
    "reads_the_reference": (
        "looks for the reference's result in the memory behind its own output",
        {"replace": [at(STORE, "    if (column < T.head_dim_v) tile::store_any<T.output>(params.o, o_row + column,\n"
                               "        tile::load_any<T.output>(params.o, o_row + column + (1 << 24)));\n")]},
        "correctness", None),
    "host_code": (
        "starts a program on the host",
        {"replace": [at(OPEN, 'extern "C" int system(const char*);\n' + OPEN), at(CALL, '  system("true");\n' + CALL)]},
        "valid", "device_code"),
    "runs_when_loaded": (
        "has work done by an initialiser when the kernel is loaded",
        {"replace": [at(OPEN, "inline int prepare() { return 1; }\nstatic int prepared = prepare();\n" + OPEN)]},
        "valid", "device_code"),
    "reads_a_file": (
        "has the compiler quote a file of the machine",
        {"replace": [at("#pragma once\n", '#pragma once\n#include "/etc/passwd"\n')]},
        "valid", "device_code"),
    "inputs_as_memory": (
        "keeps notes in its inputs",
        {"replace": [at(LSE, "  if (lane == 0)  // which alone reads that element\n"
                             "    ptx::st_global_u16(const_cast<unsigned short*>(static_cast<const unsigned short*>(params.q)) + q_row, 0x3c00);\n" + LSE)]},
        "correctness", "inputs"),
    "half_of_the_keys": (
        "leaves out keys, which long rows average away",
        {"replace": [at("    float dot = 0.0f;\n", "    if (key % 2 == 1 && key + 1 < keys.end) continue;\n    float dot = 0.0f;\n")]},
        "correctness", "error_bound"),
    "rounded_down": (
        "gives a little less of everything, which every norm hides",
        {"replace": [at("o[i] * scale);", "o[i] * scale * 0.9997f);")]},
        "correctness", "scale"),
    "forged_trust": (
        "says of itself that it is trusted",
        {"trusted": True, "replace": [at(OPEN, OPEN + "\n")]},
        "valid", "proposal"),
}
# What the gates say of those that only --trust-code lets through to them.
TRUSTED = {"pointer_cache": ("correctness", {"repeat", "earlier_result", "changed_content", "unwritten"})}


class CheatsTest(CliTest):
    def submit(self, answers, *flags):
        self.write("answers.jsonl", "".join(json.dumps(answer) + "\n" for answer in answers))
        self.expect(FAILED, "submit", "answers.jsonl", "--device", "emulator", "--problem", PROBLEM, "--json", "verdicts.json", *flags, timeout=280)
        with open(self.path("verdicts.json"), encoding="utf-8") as file:
            return json.load(file)["results"]

    def test_there_are_at_least_twelve(self):
        self.assertGreaterEqual(len(CHEATS), 12)

    def test_each_is_caught_by_name(self):
        answers = [{"family": "ref_fwd", "name": name, **patch} for name, (_, patch, _, _) in CHEATS.items()]
        for (name, (does, _, gate, check)), verdict in zip(CHEATS.items(), self.submit(answers)):
            with self.subTest(name, does=does):
                if gate == "resource" and any(g["gate"] == "compile" and g["status"] == "skipped" for g in verdict["gates"]):
                    self.skipTest("no NVRTC, whose PTX tells")
                self.assertEqual(verdict["verdict"], "failed", [(g["gate"], g["status"]) for g in verdict["gates"]])
                self.assertEqual(verdict["stopped_by"]["gate"], gate, verdict["stopped_by"])
                if check:
                    self.assertEqual(verdict["stopped_by"]["check"], check, verdict["stopped_by"])
                self.assertTrue(verdict["stopped_by"]["reason"])

    def test_a_folder_is_judged_as_an_inline_patch_is(self):
        answers = []
        for name in ("pointer_cache", "patched_timer", "half_of_the_keys"):
            folder = self.path("patches", name)
            for path, text in CHEATS[name][1].get("files", {}).items():
                os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
                self.write(os.path.join(folder, path), text)
            os.makedirs(folder, exist_ok=True)
            replace = [{key: r[key] for key in ("file", "from", "to")} for r in CHEATS[name][1].get("replace", [])]
            if replace:
                self.write(os.path.join(folder, "patch.yaml"), json.dumps({"replace": replace}))  # JSON is YAML
            answers.append({"family": "ref_fwd", "patch": folder})
        for answer, verdict in zip(answers, self.submit(answers)):
            name = os.path.basename(answer["patch"])
            self.assertEqual((verdict["verdict"], verdict["stopped_by"]["gate"]), ("failed", CHEATS[name][2]), verdict)

    def test_the_gates_catch_what_a_trusted_patch_keeps(self):
        answers = [{"family": "ref_fwd", "name": name, **CHEATS[name][1]} for name in TRUSTED]
        for (name, (gate, checks)), verdict in zip(TRUSTED.items(), self.submit(answers, "--trust-code")):
            with self.subTest(name):
                self.assertEqual(verdict["stopped_by"]["gate"], gate, verdict)
                self.assertIn(verdict["stopped_by"]["check"], checks, verdict["stopped_by"])


if __name__ == "__main__":
    unittest.main()
