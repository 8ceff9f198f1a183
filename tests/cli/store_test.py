"""Stores and long runs: stores that cannot be used, kill -9 and resume, two at once, Ctrl-C."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import unittest

from support import BAD_USAGE, DONE, FAILED, NOT_JUDGED, NO_ENVIRONMENT, SOURCE_DIR, CliTest, copy_device_sources, interrupt, refuse_trials, without_digests

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

    def test_a_store_that_takes_nothing_costs_no_result(self):
        store = self.path("t.db")
        self.expect(DONE, "bench", *PROBLEM, "--store", store)
        refuse_trials(store)
        suite = self.write("two.yaml", "name: two\nproblems:\n" + "".join(
            "  - {name: p%d, num_heads: 1, seq_len: %d, head_dim: 64, dtype: fp32}\n" % (i, 16 * i) for i in (1, 2)))
        short = ["--seconds", "0.2", "--processes", "1"]
        for verb, codes, results in (
            (["ab", "cpu_fwd:block_n=32", "cpu_fwd:block_n=64", "--device", "cpu", "--suite", suite, *short], (FAILED, NO_ENVIRONMENT), 2),
            (["bench", "--device", "cpu", "--suite", suite], (NO_ENVIRONMENT,), 2),
            (["tune", *PROBLEM, "--budget", "2", "--finalists", "1"], (NO_ENVIRONMENT,), 1),
        ):
            with self.subTest(verb=verb[0]):
                result = self.run_flashcore(*verb, "--store", store, "--json", self.path("out.json"))
                self.assertIn(result.returncode, codes, result.stderr)
                self.assertIn("no room left (the trials since then are not stored)", result.stderr)
                with open(self.path("out.json"), encoding="utf-8") as file:
                    self.assertEqual(len(json.load(file)["results"]), results)
        with sqlite3.connect(store) as connection:
            self.assertEqual(connection.execute("SELECT count(*) FROM trials").fetchone(), (1,))

    def test_a_replay_takes_trials_and_no_time(self):
        landscape = self.path("landscape.json")
        self.expect(DONE, "tune", *PROBLEM, "--family", "cpu_fwd", "--budget", "4", "--finalists", "1", "--record", landscape)
        self.expect(DONE, "tune", "--replay", landscape, "--budget", "10")
        self.expect(DONE, "tune", "--replay", landscape)
        self.expect_error(BAD_USAGE, ["--budget 5m", "number of trials"], "tune", "--replay", landscape, "--budget", "5m")

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
        self.expect_error(BAD_USAGE, ["r.md", ".html", "--campaign"], "report", "--campaign", self.folder, "--out", self.path("r.md"))
        self.expect_error(BAD_USAGE, ["--campaign", "campaign.json"], "report", "--campaign", self.folder, "--out", self.path("r.html"))
        other = self.write("other.json", '{"schema": "flashcore.bench/1"}')
        self.expect_error(BAD_USAGE, ["other.json", "flashcore.bench/1", "invert --json"], "report", "--store", store, "--with", other, "--out", self.path("r.html"))
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

    def test_figures_of_bench_follow_from_its_samples(self):
        self.expect(DONE, "bench", *PROBLEM, "--json", "r.json")
        with open(self.path("r.json"), encoding="utf-8") as file:
            text = file.read()
        row = json.loads(text)["results"][0]
        self.assertEqual(len(row["samples_us"]), row["samples"])
        self.assertLess(text.count("\n"), 20, "samples take no line each")
        for key in ("p10", "p50", "p90"):
            self.assertTrue(min(row["samples_us"]) <= row["time_us"][key] <= max(row["samples_us"]))
        self.assertNotIn("no raw samples", self.expect(DONE, "verify", "r.json").stdout)
        honest = without_digests(json.loads(text))
        edits = {
            "/time_us/p10": lambda row: row["time_us"].update(p10=row["time_us"]["p10"] * 0.9),
            "/time_us/p50": lambda row: row["time_us"].update(p50=row["time_us"]["p50"] * 0.999),
            "/time_us/p90": lambda row: row["time_us"].update(p90=row["time_us"]["p90"] * 1.1),
            "/tflops": lambda row: row.update(tflops=row["tflops"] * 1.001),
            "/samples": lambda row: row.update(samples=row["samples"] + 1),
            "/kcycles": lambda row: row.update(clock_mhz=1000.0),
            "raw samples cannot be read": lambda row: row.update(samples_us=[]),
            "did not pass": lambda row: row["correct"].pop("passed"),
        }
        for words, edit in edits.items():
            with self.subTest(words):
                document = json.loads(json.dumps(honest))
                edit(document["results"][0])
                self.write("edited.json", json.dumps(document))
                told = self.expect(FAILED, "verify", "edited.json").stdout
                self.assertIn(words, told)
                self.assertIn(row["problem"], told)
        # As bench wrote rows before it kept samples: read, fresh, and not told to be confirmed.
        old = json.loads(json.dumps(honest))
        del old["results"][0]["samples_us"]
        self.write("old.json", json.dumps(old))
        done = self.expect(DONE, "verify", "old.json", "--json", "verdict.json")
        self.assertIn("no raw samples kept of 1", done.stdout)
        with open(self.path("verdict.json"), encoding="utf-8") as file:
            (verdict,) = json.load(file)["results"]
        self.assertEqual((verdict["fresh"], verdict["times_without_samples"], verdict["without_samples"]), (True, [row["problem"]], []))

    def test_a_file_in_which_nothing_was_measured_is_not_fresh(self):
        self.expect(DONE, "bench", *PROBLEM, "--json", "r.json")
        with open(self.path("r.json"), encoding="utf-8") as file:
            document = without_digests(json.load(file))
        row = document["results"][0]
        row.update(time_us=None, ended="crashed", message="m")
        withheld = self.write("withheld.json", json.dumps(document))
        self.assertIn("it has samples, and no time", self.expect(FAILED, "verify", withheld).stdout)
        del row["samples_us"]
        crashed = self.write("crashed.json", json.dumps(document))
        told = self.expect(NOT_JUDGED, "verify", crashed).stdout
        self.assertIn("nothing was measured: none of its 1 results has a time", told)
        self.assertIn("0 fresh, 0 stale or wrong, 1 not confirmed", told)

    def test_recording_changes_nothing_else(self):
        self.expect(DONE, "bench", *PROBLEM, "--json", "r.json")
        with open(self.path("r.json"), "rb") as file:
            sealed = json.load(file)
        self.expect(DONE, "verify", "--record", "r.json")
        rows = [{key: value for key, value in row.items() if key != "digest"} for row in sealed["results"]]
        usual = (json.dumps({"results": rows} | {key: value for key, value in sealed.items() if key not in ("digest", "results")}, indent=2) + "\n").encode()
        number = b"123456789012345678901234567890"
        for words, text in ((["CR LF"], usual.replace(b"\n", b"\r\n")), (["byte order mark"], b"\xef\xbb\xbf" + usual),
                            ([number.decode(), "64 bits"], usual.replace(b"{", b'{"of_somebody": -' + number + b",", 1))):  # fmt: skip
            with open(self.path("odd.json"), "wb") as file:
                file.write(text)
            self.expect(DONE, "verify", "odd.json")
            self.expect_error(BAD_USAGE, ["odd.json", "left as it is", *words], "verify", "r.json", "--record", "odd.json")
            with open(self.path("odd.json"), "rb") as file:
                self.assertEqual(file.read(), text)
        for kept in (b'"18446744073709551615"', b"18446744073709551615", b"-9223372036854775808", b"-0.5e+300", b'"12345678901234567890123 \\" 9"'):
            with open(self.path("even.json"), "wb") as file:
                file.write(usual.replace(b"{", b'{"of_somebody": ' + kept + b",", 1))
            self.expect(DONE, "verify", "--record", "even.json")

    def test_figures_of_older_statistics_are_derived_anew(self):
        document = self.one_row_of_each_family()
        honest = self.without_hashes(document)
        for row in document["results"]:
            row["floor_us"] *= 0.5
            row["peers"][0]["ci95"] = [0.9999 * row["peers"][0]["speedup"], 1.0001 * row["peers"][0]["speedup"]]
        older = self.write("older.json", json.dumps(document))
        self.assertIn("WRONG", self.expect(FAILED, "verify", older).stdout)
        # They have no digest: their samples may as well have been edited.
        refused = self.expect(FAILED, "verify", "--record", older).stdout
        self.assertIn("nothing is recorded in it", refused)
        self.assertIn("%d results without a digest would get other figures" % len(document["results"]), refused)
        self.expect_error(BAD_USAGE, ["--rederive", "--record"], "verify", "--rederive", older)
        recorded = self.expect(DONE, "verify", "--record", "--rederive", older).stdout
        self.assertIn("derived the figures of %d results anew from the samples and ceilings that it keeps" % len(document["results"]), recorded)
        self.assertIn("derived anew from samples without a digest", self.expect(DONE, "verify", older).stdout)
        with open(older, encoding="utf-8") as file:
            derived = json.load(file)
        for row in derived["results"]:
            self.assertRegex(row.pop("rederived_without_digest"), r"^\d{4}-\d\d-\d\dT")
        self.assertEqual(self.without_hashes(derived), honest)
        # A time that is wrong by other evidence stays as it is.
        document["results"][0]["correct"]["passed"] = False
        wrong = self.write("wrong.json", json.dumps(document))
        self.assertIn("nothing is recorded in it", self.expect(FAILED, "verify", "--record", "--rederive", wrong).stdout)

    def test_edited_samples_without_a_digest_are_not_laundered(self):
        document = self.one_row_of_each_family()
        peer = document["results"][0]["peers"][0]
        peer["samples_us"] = [[2 * sample for sample in session] if session else session for session in peer["samples_us"]]
        edited = self.write("edited.json", json.dumps(document))
        for recording in ([], ["--record"]):
            self.assertIn("WRONG", self.expect(FAILED, "verify", *recording, edited).stdout)
        with open(edited, encoding="utf-8") as file:
            self.assertEqual(json.load(file), document)

    def without_hashes(self, document):
        """What is recorded is of the text that is here, which may be a later one than the file's, of the same code."""
        rows = [{key: value for key, value in row.items() if key != "source_hash"} for row in document["results"]]
        return json.dumps({**document, "source_hash": "", "results": rows}, sort_keys=True)

    def one_row_of_each_family(self):
        """Of what was measured on an H200, with the hash of the text that is here."""
        with open(os.path.join(SOURCE_DIR, "results", "h200", "canonical.json"), encoding="utf-8") as file:
            document = json.load(file)
        rows = {result["family"]: result for result in document["results"]}
        self.assertTrue({"sm80_short_fwd", "sm90_fwd"} < set(rows), "the file shows nothing here without rows of a third family")
        return {**document, "results": list(rows.values())}

    def judged(self, path, code):
        verdict = json.loads(self.expect(code, "verify", path, "--json", "-", "--quiet").stdout)["results"][0]
        return [{row["row"]: row["why"] for row in verdict[key]} for key in ("stale", "unknown", "same_code")]

    def change(self, tree, file, old, new):
        path = os.path.join(tree, "src", "kernels", file)
        with open(path, encoding="utf-8") as source:
            text = source.read()
        self.assertIn(old, text)
        with open(path, "w", encoding="utf-8") as source:
            source.write(text.replace(old, new, 1))

    def test_rows_go_stale_one_by_one(self):
        """Kernels for a GPU: a row whose code or launch changed is stale, and no other."""
        document = self.one_row_of_each_family()
        ran = [result["family"] for result in document["results"]]
        tree = self.path("tree")
        copy_device_sources(tree)
        self.environment["FLASHCORE_SOURCE"] = tree
        a_line_each = "{\n" + "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in document.items() if key != "results")
        a_line_each += ' "results": [\n  ' + ",\n  ".join(map(json.dumps, document["results"])) + "\n ]\n}\n"
        rows = self.write("rows.json", a_line_each)
        fresh = DONE if all("measured" in result for result in document["results"]) else NOT_JUDGED  # figures without samples cannot be checked
        self.assertEqual(self.judged(rows, fresh)[0:2], [{}, {}])
        self.change(tree, "ptx/common.cuh", "#pragma once", "#pragma once\n// a comment")
        self.assertEqual(self.judged(rows, fresh)[0:2], [{}, {}])
        # Shared text, and no code.
        self.change(tree, "tile/mask.cuh", "namespace flashcore::tile {", "namespace flashcore::tile {\nconstexpr int nobody_calls_this(int x) { return x + 1; }")
        stale, unknown, same_code = self.judged(rows, fresh)
        self.assertEqual((stale, unknown, sorted(same_code)), ({}, {}, list(range(len(ran)))))
        with open(rows, encoding="utf-8") as file:
            before = file.read()
        # Nothing is recorded where figures are wrong.
        wrong = self.write("wrong.json", json.dumps({**document, "results": document["results"] * 2}))
        self.assertIn("nothing is recorded in it", self.expect(FAILED, "verify", "--record", wrong).stdout)
        with open(wrong, encoding="utf-8") as file:
            self.assertEqual(file.read(), json.dumps({**document, "results": document["results"] * 2}))
        # Without a compiler nobody knows, and nothing is recorded.
        self.environment["FLASHCORE_NVRTC"] = self.path("none.so")
        stale, unknown, same_code = self.judged(rows, NOT_JUDGED)
        self.assertEqual((stale, sorted(unknown), same_code), ({}, list(range(len(ran))), {}))
        self.expect(NOT_JUDGED, "verify", "--record", rows)
        with open(rows, encoding="utf-8") as file:
            self.assertEqual(file.read(), before)
        del self.environment["FLASHCORE_NVRTC"]
        # Recorded, they are known to be fresh without one.
        self.expect(fresh, "verify", "--record", rows)
        self.environment["FLASHCORE_NVRTC"] = self.path("none.so")
        self.assertEqual(self.judged(rows, fresh), [{}, {}, {}])
        del self.environment["FLASHCORE_NVRTC"]
        with open(rows, encoding="utf-8") as file:
            text = file.read()
        self.assertNotEqual(text, before)
        self.assertEqual(text.count("\n"), before.count("\n"))  # a file keeps its lines
        recorded = json.loads(text)
        for now, then in zip(recorded["results"], document["results"]):
            self.assertEqual({**now, "source_hash": then["source_hash"]}, then)
        # The code of one family.
        self.change(tree, "sm80_short_fwd/kernel.cuh", "params.scale_log2", "(1.5f * params.scale_log2)")
        stale, unknown, same_code = self.judged(rows, FAILED)
        self.assertEqual(([ran[row] for row in stale], unknown, same_code), (["sm80_short_fwd"], {}, {}))
        self.assertIn("the code that sm80_short_fwd compiles to has changed", list(stale.values())[0])


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

    def test_a_busy_machine_is_noticed_and_said(self):
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
        try:
            result = self.expect(DONE, *self.tune, "--budget", "2", "--json", "t.json")
        finally:
            for other in others:
                other.kill()
                other.wait()
        self.assertRegex(result.stdout, r"load average [\d.]+ to [\d.]+ on \d+ cores \(this run included\), other programs kept up to [\d.]+ cores busy")
        self.assertRegex(result.stdout, r"the machine was busy: other programs kept up to [\d.]+ cores busy while candidates were timed, so that "
                                        r"another run may crown other winners")
        with open(self.path("t.json"), encoding="utf-8") as file:
            document = json.load(file)
        self.assertIn("the machine was busy", document["busy"])
        self.assertGreater(document["results"][0]["winner"]["machine"]["others_busy"], 0)

    def test_bench_and_ab_warn_of_a_busy_machine_too(self):
        problem = ("--device", "cpu", "--problem", "b1_h2_s128_d64_fp32", "--quiet")
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
        try:
            timed = self.run_flashcore("bench", *problem)
            raced = self.run_flashcore("ab", "cpu_fwd", "cpu_fwd:block_n=128", *problem, "--seconds", "1", "--processes", "1")
        finally:
            for other in others:
                other.kill()
                other.wait()
        for result in (timed, raced):
            self.assertRegex(result.stdout, r"warning: the machine was busy: other programs kept up to [\d.]+ cores busy while candidates were timed")

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
