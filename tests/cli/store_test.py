"""Stores and long runs: stores that cannot be used, kill -9 and resume, two at once, Ctrl-C."""

import json
import os
import signal
import sqlite3
import subprocess
import time
import unittest

from support import BAD_USAGE, DONE, FAILED, NOT_JUDGED, NO_ENVIRONMENT, SOURCE_DIR, CliTest, copy_device_sources, interrupt

PROBLEM = ["--device", "cpu", "--problem", "b1_h2_s96_d64_fp32"]


def query(path, sql):
    connection = sqlite3.connect(path, timeout=20)
    try:
        return connection.execute(sql).fetchall()
    except sqlite3.OperationalError:  # the table is not there yet
        return []
    finally:
        connection.close()


def trial_ids(path):
    return {row[0] for row in query(path, "select id from trials")}


class StoreTest(CliTest):
    def test_a_store_that_is_missing_when_reading(self):
        for verb in (["leaderboard"], ["report", "--out", self.path("r.html")]):
            self.expect_error(BAD_USAGE, ["absent.db", "tune"], *verb, "--store", self.path("absent.db"))
        self.assertEqual(self.files(), [])

    def test_stores_that_cannot_be_used(self):
        not_a_store = self.write("not.db", "this is a text file, and no store at all" * 100)
        for verb in (["tune", *PROBLEM, "--budget", "1"], ["leaderboard"]):
            self.expect_error(BAD_USAGE, ["not.db"], *verb, "--store", not_a_store)
        with open(not_a_store, encoding="ascii") as file:
            self.assertIn("no store at all", file.read())
        self.expect_error(NO_ENVIRONMENT, ["/proc/none"], "tune", *PROBLEM, "--budget", "1", "--store", "/proc/none/t.db")
        self.expect_error(BAD_USAGE, [self.folder, "folder"], "tune", *PROBLEM, "--budget", "1", "--store", self.folder)

    def test_a_read_only_folder(self):
        # Root may write anywhere, so root tries as somebody else.
        os.chmod(self.folder, 0o555)
        self.addCleanup(os.chmod, self.folder, 0o700)
        other = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
        try:
            self.run_flashcore("--version", **other)
        except PermissionError:
            self.skipTest("the program lies where only root may go")
        self.expect_error(NO_ENVIRONMENT, ["t.db"], "tune", *PROBLEM, "--budget", "1", "--store", self.path("t.db"), **other)

    def test_a_store_from_a_newer_version(self):
        store = self.path("t.db")
        self.expect(DONE, "tune", *PROBLEM, "--budget", "1", "--finalists", "1", "--store", store)
        connection = sqlite3.connect(store)
        connection.execute("pragma user_version = 1000")
        connection.commit()
        connection.close()
        for verb in (["tune", *PROBLEM, "--budget", "1"], ["leaderboard"], ["report", "--out", self.path("r.html")]):
            self.expect_error(BAD_USAGE, ["t.db", "1000"], *verb, "--store", store)

    def test_reports_name_their_formats_and_replace_whole_files(self):
        store = self.path("t.db")
        self.expect(DONE, "tune", *PROBLEM, "--budget", "2", "--finalists", "1", "--store", store)
        for extension in ("html", "md", "json", "csv"):
            out = self.path("deep", "r." + extension)
            self.expect(DONE, "report", "--store", store, "--out", out)
            self.assertGreater(os.path.getsize(out), 100)
        self.expect_error(BAD_USAGE, ["r.pdf", ".html"], "report", "--store", store, "--out", self.path("r.pdf"))
        good = self.write("good.md", "good")
        self.expect_error(NOT_JUDGED, ["no-such-run"], "report", "--store", store, "--run", "no-such-run", "--out", good)
        with open(good, encoding="ascii") as file:
            self.assertEqual(file.read(), "good")
        board = json.loads(self.expect(DONE, "leaderboard", "--store", store, "--json", "-", "--quiet").stdout)
        self.assertEqual([row["problem"] for row in board["results"]], ["b1_h2_s96_d64_fp32"])
        self.expect(NOT_JUDGED, "leaderboard", "--store", store, "--problem", "b9_h9_s9_d8_fp32")


class VerifyTest(CliTest):
    def test_fresh_stale_and_unreadable(self):
        fresh = self.path("fresh.json")
        self.expect(DONE, "bench", *PROBLEM, "--json", fresh)
        self.expect(DONE, "verify", fresh)
        with open(fresh, encoding="utf-8") as file:
            results = json.load(file)
        results["results"][0]["source_hash"] = "f" * 32
        stale = self.write("stale.json", json.dumps(results))
        self.expect(FAILED, "verify", stale)
        self.expect(FAILED, "verify", fresh, stale)
        self.expect_error(BAD_USAGE, ["none.json"], "verify", self.path("none.json"))
        # A row is stale if what it was measured on changed, and only then: here it ran cpu_fwd.
        tree = self.path("tree")
        copy_device_sources(tree)
        self.environment["FLASHCORE_SOURCE"] = tree
        self.expect(DONE, "verify", fresh)
        for file, change, code in (("ptx/common.cuh", "int changed;\n", DONE), ("sm90_fwd/kernel.cuh", "int changed;\n", DONE),
                                   ("cpu_fwd/forward.cpp", "// changed\n", DONE), ("cpu_fwd/forward.cpp", "int changed;\n", FAILED)):
            with open(os.path.join(tree, "src", "kernels", file), "a", encoding="utf-8") as source:
                source.write(change)
            self.expect(code, "verify", fresh)
        del self.environment["FLASHCORE_SOURCE"]
        for text in ("", "{", "[]", "{}", '{"results": []}', '{"results": [{}]}', '{"results": [3]}'):
            with self.subTest(text=text):
                self.expect_error(BAD_USAGE, ["bad.json"], "verify", fresh, self.write("bad.json", text))

    def test_rows_go_stale_one_by_one(self):
        """Kernels for a GPU: the one whose text changed, and those alone that ran it."""
        shipped = os.path.join(SOURCE_DIR, "results", "h200", "canonical.json")
        tree = self.path("tree")
        copy_device_sources(tree)
        self.environment["FLASHCORE_SOURCE"] = tree
        self.expect(DONE, "verify", shipped)
        with open(shipped, encoding="utf-8") as file:
            ran = [result["family"] for result in json.load(file)["results"]]
        for file, change, families in (("ptx/common.cuh", "// a comment\n", set()), ("sm80_short_fwd/kernel.cuh", "int changed;\n", {"sm80_short_fwd"}),
                                       ("sm90_fwd/loader.cuh", "int changed;\n", {"sm80_short_fwd", "sm90_fwd"})):
            with open(os.path.join(tree, "src", "kernels", file), "a", encoding="utf-8") as source:
                source.write(change)
            code = FAILED if families else DONE
            stale = json.loads(self.expect(code, "verify", shipped, "--json", "-", "--quiet").stdout)["results"][0]["stale"]
            self.assertEqual([row["row"] for row in stale], [row for row, family in enumerate(ran) if family in families])
            for row in stale:
                self.assertIn(ran[row["row"]], row["why"])
        self.assertTrue({"sm80_short_fwd", "sm90_fwd"} < set(ran), "the file shows nothing here without rows of a third family")


class LongRunTest(CliTest):
    def setUp(self):
        super().setUp()
        self.store = self.path("t.db")
        self.tune = ["tune", *PROBLEM, "--strategy", "random", "--finalists", "2", "--store", self.store]

    def wait_for_trials(self, count, process):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if os.path.exists(self.store) and len(trial_ids(self.store)) >= count:
                return
            self.assertIsNone(process.poll(), "tune ended before it had %d trials" % count)
            time.sleep(0.02)
        self.fail("no %d trials within a minute" % count)

    def test_kill_9_then_tune_again_resumes(self):
        process = self.start_flashcore(*self.tune, "--budget", "1000000")
        self.wait_for_trials(4, process)
        process.kill()
        process.wait()
        before = trial_ids(self.store)
        self.assertEqual(query(self.store, "pragma integrity_check"), [("ok",)])
        self.expect(DONE, *self.tune, "--budget", str(len(before) + 3))
        self.assertTrue(before < trial_ids(self.store), "trials were lost, or none was added")
        twice = query(self.store, "select family, config from trials where phase = 'search' group by family, config having count(*) > 1")
        self.assertEqual(twice, [], "tried before the kill, and again after")

    def test_two_at_once_on_one_store_both_finish(self):
        processes = [self.start_flashcore(*self.tune, "--budget", "4", "--seed", str(seed)) for seed in (1, 2)]
        for process in processes:
            out, err = process.communicate(timeout=120)
            self.assertEqual(process.returncode, DONE, out + err)
        self.assertGreaterEqual(len(trial_ids(self.store)), 8)

    def test_ctrl_c_ends_cleanly_with_what_is_done_saved(self):
        self.end_by(signal.SIGINT, "stopped by Ctrl-C")

    def test_sigterm_does_too(self):
        self.end_by(signal.SIGTERM, "stopped by SIGTERM")

    def end_by(self, kind, words):
        # In its own process group, as a shell would, and the whole group is told, as a terminal or timeout(1) would.
        process = self.start_flashcore(*self.tune, "--budget", "1000000", "--json", "tune.json", start_new_session=True)
        self.wait_for_trials(3, process)
        os.killpg(process.pid, kind)
        out, err = process.communicate(timeout=60)
        self.assertIn(process.returncode, (DONE, NOT_JUDGED), out + err)
        self.assertIn(words, out)
        self.assertIn("tune.json", self.files())
        self.assertEqual(err, "")
        self.assertGreaterEqual(len(trial_ids(self.store)), 3)
        crashed = query(self.store, "select config, ended from trials where ended in ('crashed', 'timeout', 'error')")
        self.assertEqual(crashed, [], "the interrupt was taken for a candidate's failure")

    def test_ctrl_c_of_a_check(self):
        process = self.start_flashcore("check", "--device", "cpu", "--fuzz", "100000")
        time.sleep(1.5)
        interrupt(process)
        out, err = process.communicate(timeout=60)
        self.assertIn(process.returncode, (DONE, NOT_JUDGED), out + err)
        self.assertIn("stopped by Ctrl-C", out)

    def test_no_worker_is_left_behind_by_kill_9(self):
        process = self.start_flashcore(*self.tune, "--budget", "1000000")
        self.wait_for_trials(1, process)
        workers = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], stdout=subprocess.PIPE, text=True, check=False).stdout.split()
        process.kill()
        process.wait()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and any(os.path.exists("/proc/" + pid) for pid in workers):
            time.sleep(0.1)
        self.assertEqual([pid for pid in workers if os.path.exists("/proc/" + pid)], [])


if __name__ == "__main__":
    unittest.main()
