"""What must not cost the work that was done: targets that cannot be written, damaged or read-only stores, a machine that lacks something."""

import glob
import json
import os
import resource
import shutil
import sqlite3
import unittest

from cli_attack import AttackTest
from support import BAD_USAGE, DONE, EXPERIMENT, NO_ENVIRONMENT

PROBLEM = ["--device", "cpu", "--problem", "b1_h2_s96_d64_fp32"]
EMULATED = ["--device", "emulator", "--problem", "b1_h1_s16_d64_fp16", "--family", "ref_fwd", "--patterns", "normal"]

# Root may write anywhere, so root tries as somebody else.
OTHER = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}


class TargetsTest(AttackTest):
    def test_targets_are_tried_before_the_work(self):
        self.write("e.yaml", EXPERIMENT)
        self.write("b.json", "{}")
        verbs = {
            "--json": [["check", *PROBLEM], ["bench", *PROBLEM], ["compile", "--family", "ref_fwd"], ["ab", "cpu_fwd", "cpu_fwd", *PROBLEM],
                       ["ab", "--calibrate", *PROBLEM], ["tune", *PROBLEM], ["doctor"], ["gate", "--device", "cpu", "--baseline", "b.json"],
                       ["experiment", "check", "e.yaml", "--device", "cpu"], ["experiment", "run", "e.yaml", "--device", "cpu"],
                       ["warmup", "--device", "cpu"], ["explain", *PROBLEM], ["leaderboard"]],
            "--record": [["check", "--conformance", "--device", "emulator"], ["tune", *PROBLEM]],
            "--junit": [["gate", "--device", "cpu", "--baseline", "b.json"]],
            "--write-baseline": [["gate", "--device", "cpu"]],
        }  # fmt: skip
        before = self.files()
        for flag, all_arguments in verbs.items():
            for arguments in all_arguments:
                with self.subTest(flag=flag, verb=arguments[0]):
                    self.expect_error(NO_ENVIRONMENT, [flag, "absent"], *arguments, flag, self.path("absent", "x.json"), timeout=30)
                    self.expect_error(BAD_USAGE, [flag, "is a folder"], *arguments, flag, self.folder, timeout=30)
                    self.expect_error(NO_ENVIRONMENT, [flag, "/proc"], *arguments, flag, "/proc/x.json", timeout=30)
        self.assertEqual(self.files(), before, "no store, no folder, no temporary")
        self.expect_error(NO_ENVIRONMENT, ["--out", "/proc/none"], "experiment", "run", "e.yaml", "--device", "cpu", "--out", "/proc/none", timeout=30)
        self.expect_error(NO_ENVIRONMENT, ["--out", "e.yaml"], "experiment", "run", "e.yaml", "--device", "cpu", "--out", "e.yaml", timeout=30)

    def test_an_experiment_keeps_its_measurements(self):
        self.write("e.yaml", EXPERIMENT)
        os.makedirs(self.path("out", "key_blocks", "verdict.html"))
        result = self.expect(NO_ENVIRONMENT, "experiment", "run", "e.yaml", "--device", "cpu", "--out", "out", "--json", "all.json")
        self.assertIn("what was measured is kept", result.stderr)
        for name in ("out/key_blocks/samples.json", "out/key_blocks/verdict.json", "out/key_blocks/verdict.md", "all.json"):
            self.assertGreater(os.path.getsize(self.path(name)), 100)

        shutil.rmtree(self.path("out"))
        os.makedirs(self.path("out", "key_blocks", "samples.json"))
        os.makedirs(self.path("tmp"))
        self.environment["TMPDIR"] = self.path("tmp")
        result = self.expect(NO_ENVIRONMENT, "experiment", "run", "e.yaml", "--device", "cpu", "--out", "out")
        (kept,) = glob.glob(self.path("tmp", "flashcore-experiment-*", "key_blocks", "samples.json"))
        self.assertGreater(os.path.getsize(kept), 100)
        self.assertIn(os.path.dirname(os.path.dirname(kept)), result.stderr)

    def test_a_tuned_table_that_cannot_be_written_does_not_cost_the_run(self):
        # Nothing is entered unless it beats what dispatch takes: here an entry that is several times slower than the default.
        problem = "b1_h2_s256_d64_fp32"
        key = json.loads(self.expect(DONE, "bench", *PROBLEM, "--json", "-", "--quiet").stdout)["results"][0]["device"]["key"]
        self.environment["FLASHCORE_TUNED"] = self.write("table.json", json.dumps({key: {problem: "cpu_fwd:block_m=24,block_n=32,threads=0,kv_split=8"}}))
        os.makedirs(self.path("table.json.lock"))  # a folder, where the lock's file would be
        result = self.expect(NO_ENVIRONMENT, "tune", "--device", "cpu", "--problem", problem, "--budget", "6", "--finalists", "1", "--store", "t.db", "--json", "tune.json")
        self.assertIn(", 0 without a result", result.stdout)
        with open(self.path("tune.json"), encoding="utf-8") as file:
            self.assertIn("winner", json.load(file)["results"][0])


class StoreTest(AttackTest):
    def setUp(self):
        super().setUp()
        self.store = self.path("store", "t.db")
        self.expect(DONE, "tune", *PROBLEM, "--budget", "3", "--finalists", "1", "--store", self.store)

    def test_a_damaged_trial_is_named_and_passed_over(self):
        connection = sqlite3.connect(self.store)
        connection.execute("insert into trials (run, created_at, phase, suite, problem, device, family, config, source_hash, ended, json) "
                           "select run, created_at, phase, suite, problem, device, family, config, source_hash, ended, substr(json, 1, 99) from trials where id = 1")  # fmt: skip
        connection.commit()
        (number,) = connection.execute("select max(id) from trials").fetchone()
        connection.close()
        # Deeper than any stack: refused before anything walks it.
        connection = sqlite3.connect(self.store)
        connection.execute("update trials set json = replace(json, '\"evidence\":{', '\"evidence\":{\"x\":' || ? || ',') where id = ?",
                           ("[" * 200000 + "]" * 200000, number - 1))  # fmt: skip
        connection.commit()
        connection.close()
        for verb in (["leaderboard"], ["report", "--out", "r.html"], ["report", "--out", "r.csv"]):
            result = self.expect(DONE, *verb, "--store", self.store)
            self.assertIn("trial %d " % number, result.stderr)
            self.assertIn("damaged and passed over", result.stderr)
        result = self.expect(DONE, "tune", *PROBLEM, "--budget", "4", "--finalists", "1", "--store", self.store)
        self.assertIn("trial %d " % number, result.stdout)

    def test_a_read_only_store_can_be_read(self):
        os.chmod(self.folder, 0o755)
        for path in glob.glob(self.path("store", "*")):
            os.chmod(path, 0o444)
        os.chmod(self.path("store"), 0o555)
        self.addCleanup(os.chmod, self.path("store"), 0o755)
        before = sorted(os.listdir(self.path("store")))
        try:
            self.run_flashcore("--version", **OTHER)
        except PermissionError:
            self.skipTest("the program lies where only root may go")
        result = self.expect(DONE, "leaderboard", "--store", self.store, **OTHER)
        self.assertIn("1 problem with a held-out winner", result.stdout)
        os.makedirs(self.path("public"))
        os.chmod(self.path("public"), 0o777)
        self.expect(DONE, "report", "--store", self.store, "--out", self.path("public", "r.html"), **OTHER)
        self.assertEqual(sorted(os.listdir(self.path("store"))), before)


class EnvironmentTest(AttackTest):
    """A machine that lacks something judges nothing: 4, not "1 failed"."""

    @unittest.skipUnless(shutil.which("c++"), "needs a C++ compiler")
    def test_no_compiler_no_disk_no_folder(self):
        self.compiler("echo \"fatal error: error writing to /tmp/x.s: No space left on device\" >&2; exit 1")
        result = self.expect(NO_ENVIRONMENT, "check", *EMULATED, "--json", "out.json")
        self.assertIn("0 passed, 0 failed", result.stdout)
        with open(self.path("out.json"), encoding="utf-8") as file:
            document = json.load(file)
        self.assertEqual((document["lacking"], document["results"][0]["ended"]), (1, "environment"))
        self.expect(NO_ENVIRONMENT, "bench", *EMULATED[:-2], "--store", "t.db")
        # The compiler goes away between its version and its work.
        self.compiler("exit 1", version="echo 'c++ 12'; rm -f \"$0\"")
        self.expect(NO_ENVIRONMENT, "check", *EMULATED)
        del self.environment["FLASHCORE_CXX"]
        self.environment["TMPDIR"] = self.path("absent")
        result = self.expect(NO_ENVIRONMENT, "check", *EMULATED)
        self.assertIn("TMPDIR", result.stdout + result.stderr)
        del self.environment["TMPDIR"]
        for name in ("HOME", "XDG_CACHE_HOME", "FLASHCORE_CACHE"):
            self.environment.pop(name, None)
        result = self.expect(NO_ENVIRONMENT, "check", *EMULATED)
        self.assertIn("FLASHCORE_CACHE", result.stdout + result.stderr)

    def test_no_memory(self):
        limit = 3 << 30
        large = ["--device", "cpu", "--problem", "b64_h32_s8192_d128_fp32", "--family", "cpu_fwd"]
        result = self.run_flashcore("check", *large, "--patterns", "normal", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        self.assertEqual(result.returncode, NO_ENVIRONMENT, result.stdout + result.stderr)
        self.assertIn("memory", result.stdout + result.stderr)

    def test_a_trial_that_lacked_something_is_tried_again(self):
        self.compiler("echo 'No space left on device' >&2; exit 1")
        tune = ["tune", "--device", "emulator", "--problem", "b1_h1_s16_d64_fp16", "--family", "ref_fwd", "--budget", "1", "--finalists", "1", "--store", "t.db", "--strategy", "random"]
        self.expect(NO_ENVIRONMENT, *tune)
        connection = sqlite3.connect(self.path("t.db"))
        before = connection.execute("select count(*) from trials where ended = 'environment'").fetchone()[0]
        self.assertGreater(before, 0)
        self.run_flashcore(*tune)
        self.assertGreater(connection.execute("select count(*) from trials where ended = 'environment'").fetchone()[0], before)
        connection.close()


if __name__ == "__main__":
    unittest.main()
