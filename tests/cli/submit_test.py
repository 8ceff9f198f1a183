"""`flashcore submit` as a user runs it: what a machine lacks is no fault of a submission."""

import json
import signal
import subprocess
import unittest

from support import BAD_USAGE, BINARY, DONE, FAILED, NO_ENVIRONMENT, NOT_JUDGED, CliTest

COMMENT = {"family": "sm80_fwd", "name": "mine", "replace": [{"file": "sm80_fwd/kernel.cuh", "from": "#pragma once", "to": "#pragma once  // mine"}]}


class SubmitTest(CliTest):
    def submit(self, code, answer, *flags):
        with open(self.path("answer.json"), "w", encoding="utf-8") as file:
            json.dump(answer, file)
        self.expect(code, "submit", "answer.json", "--problem", "b1_h2_s64_d64_fp16", "--json", "verdict.json", *flags)
        with open(self.path("verdict.json"), encoding="utf-8") as file:
            (result,) = json.load(file)["results"]
        return result

    def test_a_kernel_of_gpus_is_not_judged_on_a_cpu(self):
        for answer in (COMMENT, {"candidate": "sm80_fwd"}):
            result = self.submit(NO_ENVIRONMENT, answer, "--device", "cpu")
            self.assertEqual(result["verdict"], "not_judged")
            self.assertIn("--device emulator", result["message"])
            said = self.run_flashcore("submit", "answer.json", "--problem", "b1_h2_s64_d64_fp16", "--device", "cpu").stdout
            self.assertRegex(said, r"0 passed, 0 failed, 1 of GPUs not tried, since cpu\S* is none")
            self.assertNotIn("for want of", said)

    def test_a_wrong_variable_of_the_environment_is_no_verdict(self):
        with open(self.path("answer.json"), "w", encoding="utf-8") as file:
            json.dump(COMMENT, file)
        given = ["submit", "answer.json", "--problem", "b1_h2_s64_d64_fp16", "--json", "verdict.json"]
        for name, value in (("FLASHCORE_SANDBOX", "zzz"), ("FLASHCORE_SOURCE", "/nonexistent")):
            self.environment[name] = value
            for flags in (["--device", "emulator"], ["--compile-only"]):
                with self.subTest(name, flags=flags):
                    self.expect_error(BAD_USAGE, [name, value, "unset it"], *given, *flags)
                    self.assertNotIn("verdict.json", self.files())
            del self.environment[name]

    def test_flags_of_what_runs_are_refused_where_nothing_runs(self):
        answer = self.write("answer.json", json.dumps(COMMENT))
        for flags in (["--device", "emulator"], ["--seed", "2"]):
            with self.subTest(flags=flags):
                self.expect_error(BAD_USAGE, [flags[0], "changes nothing here", "--compile-only"], "submit", answer, "--problem",
                                  "b1_h2_s64_d64_fp16", "--compile-only", *flags)

    def test_the_emulator_judges_it(self):
        self.assertEqual(self.submit(DONE, COMMENT, "--device", "emulator")["verdict"], "passed")
        self.assertEqual(self.submit(FAILED, {"candidate": "sm80_fwd:block_m=7"}, "--device", "emulator")["verdict"], "failed")

    def test_a_patch_that_the_judged_config_does_not_use_is_told_so(self):
        due = "else ptx::cp_async_wait<2 * (kStages - 2)>();"
        patch = {"family": "sm80_fwd", "name": "ring", "replace": [{"file": "kernel.cuh", "from": due, "to": due.replace("<2 * (kStages - 2)>", "<0>")}]}
        unused = "the machine code is the unpatched kernel's under this config; give a config in which the patch is used"
        for stages, is_used in ((1, False), (2, False), (3, True)):
            with self.subTest(stages=stages):
                result = self.submit(DONE, {**patch, "config": {"num_stages": stages, "ctas_per_sm": 1}}, "--device", "emulator")
                self.assertRegex(result["candidate"], rf"^sm80_fwd\+ring:block_m=.*num_stages={stages},.*ctas_per_sm=1$", "the whole config is told")
                if result["gates"][1]["status"] == "skipped":  # no NVRTC
                    self.assertIsNone(result["unpatched_code"])
                    continue
                self.assertEqual(result["unpatched_code"], not is_used)
                self.assertEqual(any(note.startswith(unused) for note in result["notes"]), not is_used, result["notes"])
        # A further value of a field has no unpatched kernel.
        further = self.submit(DONE, {"family": "sm80_fwd", "name": "more", "config": {"block_n": 80}, "extend": {"block_n": [80]}}, "--device", "emulator")
        self.assertIsNone(further["unpatched_code"])
        self.assertRegex(self.run_flashcore("submit", "answer.json", "--problem", "b1_h2_s64_d64_fp16", "--device", "emulator").stdout,
                         r"sm80_fwd\+more:block_m=\d+,block_n=80,.*passed")  # fmt: skip

    def test_what_was_not_compiled_has_not_passed_the_resource_gate(self):
        self.environment["FLASHCORE_NVRTC"] = "/nonexistent"
        result = self.submit(DONE, COMMENT, "--device", "emulator")
        status = {gate["gate"]: gate["status"] for gate in result["gates"]}
        self.assertEqual((status["compile"], status["resource"], status["correctness"]), ("skipped", "skipped", "passed"), status)
        (note,) = [note for note in result["notes"] if "the resource gate were skipped" in note]
        self.assertIn("NVRTC", note)
        self.assertIn(note, self.run_flashcore("submit", "answer.json", "--problem", "b1_h2_s64_d64_fp16", "--device", "emulator").stdout)

    def test_what_the_emulator_does_not_run_is_not_judged_on_it(self):
        wrong = {"file": "ptx/math.cuh", "from": "ex2.approx.ftz.f32 %0", "to": "sin.approx.ftz.f32 %0"}
        entry = "forward(const __grid_constant__ ForwardParams params) {\n"
        assembly = {"file": "kernel.cuh", "from": entry, "to": entry + '  asm volatile("");\n'}
        for replace, words in ((wrong, "ptx/math.cuh, in whose place the emulator has its own"), (assembly, "has inline assembly")):
            with self.subTest(words):
                result = self.submit(NOT_JUDGED, {"family": "sm80_fwd", "name": "p", "replace": [replace]}, "--device", "emulator")
                self.assertEqual((result["verdict"], result["ended"]), ("not_judged", "inconclusive"))
                self.assertIn("the changed code never ran", result["message"])
                self.assertIn(words, result["message"])
                self.assertNotIn("speed was not judged", json.dumps(result["notes"]))
                self.assertNotEqual(result["trial"]["ended"], "passed")
                self.assertEqual(result["gates"][-1]["status"], "skipped")

    def test_a_patch_that_changes_nothing_of_its_family_is_refused(self):
        nothing = {"family": "sm80_fwd", "name": "other", "files": {"sm90_fwd/kernel.cuh": "// nothing\n"}}
        result = self.submit(FAILED, nothing, "--device", "emulator")
        self.assertIn("patch other changes nothing of sm80_fwd", result["message"])
        self.assertEqual(result["stopped_by"]["check"], "proposal")

    def test_a_new_file_is_one_that_a_file_of_the_patch_includes(self):
        include = {"file": "kernel.cuh", "from": "#pragma once", "to": '#pragma once\n#include "kernels/tile/new.cuh"'}
        new = {"tile/new.cuh": '#pragma once\n#include "kernels/ptx/common.cuh"\nnamespace flashcore {\nFC_DEVICE int one() { return 1; }\n}\n'}
        patch = {"family": "sm80_fwd", "name": "new"}
        result = self.submit(DONE, {**patch, "files": new, "replace": [include]}, "--device", "emulator")
        self.assertEqual(result["verdict"], "passed", result["message"])
        broken = {"tile/new.cuh": new["tile/new.cuh"].replace("return 1", "return one_more")}
        result = self.submit(FAILED, {**patch, "files": broken, "replace": [include]}, "--device", "emulator")
        self.assertEqual(result["ended"], "compile_error", "it is compiled")
        self.assertEqual(result["notes"], [note for note in result["notes"] if "speed" not in note], "it was stopped long before")
        self.assertIn("which no kernel includes", self.submit(FAILED, {**patch, "files": new}, "--device", "emulator")["message"])

    def give(self, text, name="given.json"):
        with open(self.path(name), "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        return ["submit", name, "--problem", "b1_h2_s64_d64_fp16", "--device", "emulator"]

    def test_a_file_that_is_no_submission_is_one_error_with_its_place(self):
        good = json.dumps({"candidate": "ref_fwd"})
        pretty = json.dumps(COMMENT, indent=1)
        for text, words in (
            (pretty[:-1] + ",}", ["given.json", "not JSON", "line 11"]),  # a comma too many in a document over many lines
            (pretty.replace('"name"', "name"), ["given.json", "not JSON", "line 3"]),
            ("[\n%s,\n%s\n]\n" % (good, good), ["given.json is JSON of type array, not an object", "one in each line"]),
            ("one\ntwo\n", ["given.json", "not JSON"]),
            (b"\xff\xfe\n\xff\n", ["given.json", "not JSON"]),
            ("", ["given.json holds no answer"]), ("\n \n", ["given.json holds no answer"]),
        ):  # fmt: skip
            with self.subTest(text[:40]):
                self.expect_error(BAD_USAGE, [*words, "docs/agents.md"], *self.give(text))
        self.expect_error(BAD_USAGE, ["standard input holds no answer"], "submit", "-", "--problem", "b1_h2_s64_d64_fp16", "--device", "emulator")
        self.expect_error(BAD_USAGE, ["nowhere.json", "No such file"], "submit", "nowhere.json", "--problem", "b1_h2_s64_d64_fp16")
        self.expect_error(BAD_USAGE, ["it is a directory"], "submit", ".", "--problem", "b1_h2_s64_d64_fp16")
        self.expect_error(BAD_USAGE, ["no problem was given"], "submit", "given.json")
        self.expect_error(BAD_USAGE, ["no problem of suite"], "submit", "given.json", "--problem", "nonsense")
        with open(self.path("huge.json"), "wb") as file:
            file.truncate((16 << 20) + 1)
        self.expect_error(BAD_USAGE, ["huge.json", str(16 << 20)], "submit", "huge.json", "--problem", "b1_h2_s64_d64_fp16")

    def test_a_line_that_cannot_be_read_does_not_cost_the_others_their_verdicts(self):
        good = json.dumps({"candidate": "ref_fwd"})
        outside = json.dumps({"family": "ref_fwd", "replace": [{"file": "../../etc/passwd", "from": "a", "to": "b"}]})
        lines = [good, "{", '{"family": "ref_fwd", "config": {"num_warps": "x"}}', '{"family": "nobody"}', outside, '{"done": true}', "[1]", good]
        for given, verdicts in ((lines, ["passed", *["failed"] * 6, "passed"]), (["{oops}", good], ["failed", "passed"])):
            self.expect(FAILED, *self.give("\n".join(given)), "--json", "all.json")
            with open(self.path("all.json"), encoding="utf-8") as file:
                document = json.load(file)
            self.assertEqual([result["verdict"] for result in document["results"]], verdicts)
            for result in document["results"]:
                self.assertNotIn('{"done": true}', result["message"], "nobody proposes here")
                self.assertTrue(result["message"] or result["verdict"] == "passed", result)

    def test_an_interrupted_run_keeps_what_was_judged(self):
        arguments = self.give("\n".join([json.dumps({"candidate": "ref_fwd"})] * 4000))
        process = subprocess.Popen([BINARY, *arguments, "--json", "all.json"], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.assertTrue(process.stdout.readline(), "the first verdict's note")
        process.send_signal(signal.SIGINT)
        text = process.communicate(timeout=120)[0].decode()
        self.assertEqual(process.returncode, NOT_JUDGED, text[-500:])
        self.assertIn("stopped by Ctrl-C", text)
        with open(self.path("all.json"), encoding="utf-8") as file:
            document = json.load(file)
        self.assertGreaterEqual(document["passed"], 1)
        self.assertLess(len(document["results"]), 4000)

    def test_a_result_that_cannot_be_written_is_told_before_anything_is_judged(self):
        self.expect_error(NO_ENVIRONMENT, ["nowhere"], *self.give(json.dumps({"candidate": "ref_fwd"})), "--json", "nowhere/verdict.json")
        given = self.give(json.dumps({"candidate": "ref_fwd"}))
        self.expect_error(BAD_USAGE, ["given.json"], *given, "--json", "given.json")
        with open(self.path("given.json"), encoding="utf-8") as file:
            self.assertEqual(json.load(file), {"candidate": "ref_fwd"}, "the input is not overwritten")


if __name__ == "__main__":
    unittest.main()
