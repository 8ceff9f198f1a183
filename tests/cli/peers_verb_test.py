"""flashcore peers: other programs beside flashcore, by one engine, and what becomes of those that go wrong."""

import datetime
import json
import math
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import unittest

from support import BAD_USAGE, DONE, FAILED, NO_ENVIRONMENT, NOT_JUDGED, SOURCE_DIR, CliTest, refuse_trials, without_digests

PROBLEM = "b1_h2_s16_d16_fp32"
FAKE = os.path.join(SOURCE_DIR, "tests", "cli", "fake_peer.py")
EXAMPLE = os.environ.get("FLASHCORE_EXAMPLE_PEER", os.path.join(SOURCE_DIR, "build", "tests", "example_peer"))


def fake(*offers):
    return json.dumps([sys.executable, FAKE, *offers])


class PeersTest(CliTest):
    def git(self, *arguments):
        return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=self.folder, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    @unittest.skipUnless(shutil.which("git"), "git is not here")
    def test_the_commit_of_the_checkout_around_is_recorded(self):
        peers = ["peers", "--device", "cpu", "--problem", PROBLEM, "--rounds", "2", "--peer", fake("good"), "--json", "peers.json"]
        bench = ["bench", "--device", "cpu", "--problem", PROBLEM, "--json", "bench.json"]

        def recorded(*arguments):
            self.expect(DONE, *arguments)
            with open(self.path(arguments[-1]), encoding="utf-8") as file:
                (row,) = json.load(file)["results"]
            return [(of.get("commit"), of.get("dirty")) for of in (row["environment"], *row.get("measured", []))]

        # Elsewhere it is that of the build, which may have had changes, or no git.
        (built,) = recorded(*bench)
        self.assertRegex(built[0], r"^([0-9a-f]{40}|unknown \(no git\))$")
        self.git("init", "-q", ".")
        self.git("commit", "-q", "--allow-empty", "-m", "of somebody else")
        self.assertEqual((recorded(*peers), recorded(*bench)), ([built] * 2, [built]))
        self.expect(DONE, "verify", "peers.json")
        shutil.copytree(os.path.join(SOURCE_DIR, "src"), self.path("src"))
        self.git("add", "src")
        self.git("commit", "-q", "-m", "ours")
        head = self.git("rev-parse", "HEAD")
        self.assertEqual((recorded(*peers), recorded(*bench)), ([(head, None)] * 2, [(head, None)]))
        self.assertNotIn("with changes", self.expect(DONE, "verify", "peers.json").stdout)
        self.assertEqual(recorded(*peers[:-2], "--commit", "fedcba9", "--json", "named.json"), [("fedcba9", None)] * 2)
        with open(self.path("src", "core", "suite.h"), "a", encoding="utf-8") as file:
            file.write("// changed\n")
        self.assertEqual((recorded(*peers), recorded(*bench)), ([(head, True)] * 2, [(head, True)]))
        for file in ("peers.json", "bench.json"):
            self.assertIn("1 of its results were measured on sources with changes beside their commit", self.expect(DONE, "verify", file).stdout)
        # Committed, and the program is of another text.
        self.git("checkout", "-q", "src")
        with open(self.path("src", "kernels", "tile", "mask.cuh"), "a", encoding="utf-8") as file:
            file.write("// later\n")
        self.git("commit", "-q", "-a", "-m", "later than the program")
        self.assertEqual(recorded(*bench), [(self.git("rev-parse", "HEAD"), True)])

    def be_of_this_build(self):
        """The fake's party `flashcore` then says what the library of this build would."""
        self.expect(DONE, "peers", "--device", "cpu", "--problem", PROBLEM, "--rounds", "2", "--peer", fake("good"), "--json", "hash.json")
        self.environment["FAKE_PEER_SOURCE"] = self.read("hash.json")["source_hash"]

    def read(self, name):
        with open(os.path.join(self.folder, name), encoding="utf-8") as file:
            return json.load(file)

    def let_time_pass(self, name="peers.json"):
        """The sessions in the file were an hour earlier, and written before rows had digests."""
        document = self.read(name)
        document.pop("digest", None)
        for row in document["results"]:
            row.pop("digest", None)
            for session in row["measured"]:
                then = datetime.datetime.strptime(session["began_at"][:19], "%Y-%m-%dT%H:%M:%S") - datetime.timedelta(hours=1)
                session["began_at"] = then.strftime("%Y-%m-%dT%H:%M:%S.000Z")
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            json.dump(document, file)

    def run_peers(self, *arguments, code=DONE, problem=PROBLEM, rounds="12", **kwargs):
        """The rows of the JSON."""
        self.expect(code, "peers", "--device", "cpu", "--problem", problem, "--rounds", rounds, "--json", "peers.json", *arguments, **kwargs)
        with open(os.path.join(self.folder, "peers.json"), encoding="utf-8") as file:
            document = json.load(file)
        self.assertEqual(document["schema"], "flashcore.bench/1")
        return document["results"]

    def test_ragged_batches_come_with_boundaries_and_caches_with_tables(self):
        for problem, names in (("b2_h2_s16_d16_fp32_raggedhalving", {"q", "k", "v", "cu_seqlens_q", "cu_seqlens_kv"}),
                               ("b2_h2_sq3_sk16_d16_fp32_raggedhalving_page4", {"q", "k", "v", "cu_seqlens_q", "seqused_kv", "block_table"})):  # fmt: skip
            log = os.path.join(self.folder, "inputs.json")
            self.environment["FAKE_PEER_LOG"] = log
            (row,) = self.run_peers("--peer", fake("logs:logs"), problem=problem, rounds="2")
            self.assertEqual(row["refused"]["logs"], "it only looks")
            inputs = self.read("inputs.json")
            self.assertEqual(set(inputs), names)
            self.assertEqual((inputs["cu_seqlens_q"]["dtype"], inputs["cu_seqlens_q"]["shape"]), ("int32", [3]))
            if "block_table" in names:
                self.assertEqual((inputs["k"]["shape"][2], inputs["block_table"]["shape"][0], inputs["seqused_kv"]["shape"]), (4, 2, [2]))
            else:
                self.assertEqual((inputs["q"]["shape"], inputs["k"]["shape"]), ([1, 2, 24, 16], [1, 2, 24, 16]))

    def test_the_example_refuses_what_it_does_not_compute(self):
        (row,) = self.run_peers("--peer", EXAMPLE, problem="b2_h2_s16_d16_fp32_raggedfull", rounds="2")
        self.assertEqual(row["peers"], [])
        self.assertIn("ragged", str(row["refused"]))

    def test_a_program_of_somebody_elses_is_timed_and_judged_beside_ours(self):
        (row,) = self.run_peers("--peer", EXAMPLE, "--store", "trials.db")
        (peer,) = row["peers"]
        self.assertEqual((peer["name"], peer["notes"], peer["correct"]), ("plain_loops", ["writes no LSE"], True))
        self.assertEqual((row["sessions"], peer["sessions"]), (1, 1))
        (session,) = row["measured"]
        ours, theirs = session["samples_us"], peer["samples_us"][0]
        self.assertEqual((len(ours), len(theirs), session["rounds"]), (12, 12, 12))
        ratios = sorted(math.log(b / a) for a, b in zip(ours, theirs))
        self.assertAlmostEqual(peer["speedup"], math.exp((ratios[5] + ratios[6]) / 2), delta=2e-4)
        self.assertLessEqual(peer["ci95"][0], peer["speedup"])
        self.assertLess(peer["rel_error"], 1e-5)
        self.assertEqual(session["timed_in"], "the laboratory")
        self.assertEqual((session["condition"], session["measure_ms"]), ("burst", 0), "no word of the row alone")
        self.assertGreaterEqual(session["launches"], 1)
        self.assertGreater(row["floor_us"], 0)
        self.assertTrue(row["source_hash"] and row["chosen_by"])

    def test_a_race_against_several_is_paid_for_once(self):
        self.run_peers("--peer", fake("good", "other:good", "third:good"), "--store", "trials.db", rounds="2")
        with sqlite3.connect(os.path.join(self.folder, "trials.db")) as store:
            seconds = [json.loads(row[0])["seconds"] for row in store.execute("SELECT json FROM trials ORDER BY id")]
        self.assertEqual(len(seconds), 3)
        self.assertGreater(seconds[0]["device"], 0)
        self.assertEqual([s["device"] + s["host"] for s in seconds[1:]], [0, 0])

    def test_a_store_that_takes_nothing_costs_no_row(self):
        self.run_peers("--peer", fake("good"), "--store", "trials.db", rounds="2")
        refuse_trials(self.path("trials.db"))
        result = self.expect(NO_ENVIRONMENT, "peers", "--device", "cpu", "--problem", PROBLEM, "--rounds", "2", "--peer", fake("good"),
                             "--store", "trials.db", "--json", "full.json")  # fmt: skip
        self.assertIn("no room left", result.stderr)
        (row,) = self.read("full.json")["results"]
        self.assertEqual([peer["name"] for peer in row["peers"]], ["good"])

    def test_who_goes_wrong_is_left_out_and_the_others_are_measured(self):
        reasons = {
            "wrong": "its timed output is wrong", "nan": "non-finite", "short_file": "bytes", "refuses": "it does not like this one",
            "excuses": "docs/peers.md", "errors": "it lost its way", "dies": "exited with code 7", "zero": "instead of a time", "too_fast": "faster than the floor", "garbage": "no JSON object",
            "no_launches": "launches 0; a sample is of 1 to",
        }  # fmt: skip
        done = self.expect(DONE, "peers", "--device", "cpu", "--problem", PROBLEM, "--rounds", "2", "--json", "peers.json",
                           "--peer", fake("good", *(f"{name}:{name}" for name in reasons)))  # fmt: skip
        (row,) = self.read("peers.json")["results"]
        self.assertEqual([peer["name"] for peer in row["peers"]], ["good"])
        for name, words in reasons.items():
            self.assertIn(words, row["refused"][name], name)
            self.assertIn(f"refused {name}: ", done.stdout, "one line for each refusal")
        self.assertEqual(done.stdout.count("somewhere_else"), 1, "who is absent from all is told once")
        self.assertIn("load average", done.stdout)
        self.assertEqual(row["refused"]["somewhere_else"], "not installed here")

    def test_names_of_parties_fit_into_tables(self):
        for offer, words in ((":good", "whose name is empty"), ("x" * 65, "whose name has 65 bytes")):
            self.expect_error(BAD_USAGE, [words, "1 to 64 bytes"], "peers", "--device", "cpu", "--problem", PROBLEM, "--rounds", "2", "--peer", fake("good", offer))
        self.run_peers("--peer", fake("x" * 64), rounds="2")

    def test_fewer_than_twelve_rounds_give_no_interval(self):
        done = self.expect(DONE, "peers", "--device", "cpu", "--problem", PROBLEM, "--rounds", "4", "--peer", fake("good"), "--json", "few.json")
        with open(os.path.join(self.folder, "few.json"), encoding="utf-8") as file:
            (peer,) = json.load(file)["results"][0]["peers"]
        self.assertIsNone(peer["ci95"])
        self.assertIn("at least 12 make an interval", peer["no_interval"])
        self.assertIn("no interval", done.stdout)

    def test_a_second_session_joins_the_first(self):
        self.run_peers("--peer", fake("good", "gone"))
        done = self.expect(BAD_USAGE, "peers", "--device", "cpu", "--problem", PROBLEM, "--peer", fake("good"), "--append", "--json", "peers.json")
        self.assertIn("two sessions are at least 10 minutes apart", done.stderr, "seconds later it would be the same session")
        self.assertEqual(self.read("peers.json")["results"][0]["sessions"], 1)
        self.let_time_pass()
        (row,) = self.run_peers("--peer", fake("good"), "--append")
        peers = {peer["name"]: peer for peer in row["peers"]}
        self.assertEqual((row["sessions"], peers["good"]["sessions"], peers["gone"]["sessions"]), (2, 2, 1))
        self.assertEqual([len(session["samples_us"]) for session in row["measured"]], [12, 12])
        self.assertNotEqual(*(session["order_seed"] for session in row["measured"]))
        self.assertIsNone(peers["gone"]["samples_us"][1])
        other = "b1_h2_s17_d16_fp32"
        rows = self.run_peers("--peer", fake("good"), "--append", problem=other)
        self.assertEqual([kept["problem"] for kept in rows], [PROBLEM, other], "what the file holds is kept")
        self.assertEqual(rows[0], row)
        self.assertEqual([kept["problem"] for kept in self.run_peers("--peer", fake("good"))], [PROBLEM], "without --append it is written anew")

    def test_ours_beside_the_peers_and_in_the_laboratory_are_both_told(self):
        self.be_of_this_build()
        done = self.expect(DONE, "peers", "--device", "cpu", "--problem", PROBLEM, "--rounds", "12", "--json", "peers.json", "--peer", fake("flashcore:brief", "good"))
        (row,) = self.read("peers.json")["results"]
        self.assertEqual(row["measured"][0]["timed_in"], "the peers' process")
        self.assertEqual(len(row["measured"][0]["laboratory_us"]), 12)
        self.assertEqual(row["laboratory"]["limit"], 1.5, "on a CPU calls from another program differ")
        self.assertAlmostEqual(row["peers"][0]["speedup"], 1000 / 60, delta=0.2)
        told = float(re.search(r"laboratory ([-+][0-9.]+)%", done.stdout)[1])
        self.assertAlmostEqual(told, 100 * (1 / (1 + row["laboratory"]["apart"]) - 1), delta=0.06)
        self.assertGreater(told, -100, "no time is less than nothing")

    def test_a_time_of_ours_that_the_laboratory_cannot_have_is_refused_on_a_cpu_too(self):
        self.be_of_this_build()
        (row,) = self.run_peers("--peer", fake("flashcore"), rounds="2", code=FAILED)  # 1000 us of a few
        self.assertIsNone(row["time_us"])
        self.assertIn("on a CPU 2.5 is the limit", row["message"])
        self.assertEqual(row["measured"][0]["ended"], "error")

    def test_ours_has_to_be_of_the_source_that_is_gated(self):
        for source, words in (("", 'of no "source_hash"'), ("0123", "of source 0123")):
            self.environment["FAKE_PEER_SOURCE"] = source
            done = self.expect(NO_ENVIRONMENT, "peers", "--device", "cpu", "--problem", PROBLEM, "--peer", fake("flashcore:brief"))
            self.assertIn(words, done.stderr)

    def test_the_laboratory_says_by_how_much_its_timed_output_was_off(self):
        (row,) = self.run_peers("--peer", fake("good"), rounds="2")
        self.assertGreater(row["correct"]["timed_rel_error"], 0)
        self.assertGreater(row["correct"]["timed_bound"], row["correct"]["timed_rel_error"])
        self.assertEqual(row["correct"]["timed_rows"], "all")

    def test_ours_has_no_time_where_its_timed_output_is_wrong_or_its_process_dies(self):
        self.be_of_this_build()
        (row,) = self.run_peers("--peer", fake("flashcore:wrong", "good"), code=FAILED)
        self.assertIsNone(row["time_us"])
        self.assertIn("timed output (flashcore) is wrong", row["message"])
        (row,) = self.run_peers("--peer", fake("flashcore:dies", "good"), code=FAILED)
        self.assertEqual(row["ended"], "crashed")

    def test_a_wrong_output_in_a_later_session_withdraws_the_row(self):
        self.be_of_this_build()
        self.run_peers("--peer", fake("flashcore:brief", "good"))
        self.let_time_pass()
        (row,) = self.run_peers("--peer", fake("flashcore:dies", "good"), "--append", code=FAILED)
        self.assertIsNotNone(row["time_us"], "a session that came to nothing says nothing of the others")
        self.assertEqual([session.get("ended") for session in row["measured"]], [None, "crashed"])
        self.let_time_pass()
        (row,) = self.run_peers("--peer", fake("flashcore:wrong", "good"), "--append", code=FAILED)
        self.assertEqual((row["ended"], row["time_us"], row["peers"]), ("incorrect", None, []))
        self.assertIn("timed output (flashcore) is wrong", row["message"])
        self.assertEqual(len(row["measured"]), 3)
        self.let_time_pass()
        (row,) = self.run_peers("--peer", fake("flashcore:brief", "good"), "--append", code=FAILED)
        self.assertIsNone(row["time_us"], "one good session more does not make it right")

    def test_a_peer_that_is_wrong_in_a_later_session_loses_the_earlier_ones(self):
        self.run_peers("--peer", fake("good", "other"))
        self.let_time_pass()
        (row,) = self.run_peers("--peer", fake("good", "other:wrong"), "--append")
        self.assertEqual([peer["name"] for peer in row["peers"]], ["good"])
        self.assertIn("its timed output is wrong", row["refused"]["other"])
        self.let_time_pass()
        (row,) = self.run_peers("--peer", fake("good", "other"), "--append")
        self.assertEqual([peer["name"] for peer in row["peers"]], ["good"])
        self.assertIn("wrong in an earlier session", row["refused"]["other"])
        self.assertEqual(row["peers"][0]["sessions"], 3)

    def test_what_cannot_be_is_said_before_anything_runs(self):
        for arguments, code, words in (
            (("--device", "cpu"), BAD_USAGE, "no peer was given"),
            (("--device", "cpu", "--peer", "no-such-program"), NO_ENVIRONMENT, "no-such-program"),
            (("--device", "cpu", "--peer", "[1]"), BAD_USAGE, "no list of words"),
            (("--device", "emulator", "--peer", "cat"), BAD_USAGE, "no time"),
            (("--device", "cpu", "--peer", "cat"), NO_ENVIRONMENT, "cannot join"),
            (("--device", "cpu", "--peer", fake("good"), "--peers", "other"), BAD_USAGE, "offers the peer 'other'"),
            (("--device", "cpu", "--peer", fake("laboratory")), BAD_USAGE, "another name"),
            (("--device", "cpu", "--peer", fake("good"), "--rounds", "1"), BAD_USAGE, "1"),
            (("--device", "cpu", "--peer", fake("good"), "--append"), BAD_USAGE, "--json FILE"),
        ):
            with self.subTest(arguments):
                done = self.expect(code, "peers", "--problem", PROBLEM, *arguments)
                self.assertIn(words, done.stderr)


class VerifyPeersTest(CliTest):
    """No figure of a file can be changed by hand without `verify` saying so."""

    def test_each_figure_is_derived_anew(self):
        self.expect(DONE, "peers", "--device", "cpu", "--problem", PROBLEM, "--rounds", "12", "--peer", fake("good"), "--json", "peers.json")
        with open(self.path("peers.json"), encoding="utf-8") as file:
            sealed = json.load(file)
        self.expect(DONE, "verify", "peers.json")
        honest = without_digests(sealed)
        edits = {
            "/time_us/p10": lambda row: row["time_us"].update(p10=row["time_us"]["p10"] * 0.9),
            "/time_us/p50": lambda row: row["time_us"].update(p50=row["time_us"]["p50"] * 0.999),
            "/time_us/p90": lambda row: row["time_us"].update(p90=row["time_us"]["p90"] * 1.1),
            "/tflops": lambda row: row.update(tflops=row["tflops"] * 1.001),
            "GB/s": lambda row: row.update(gbps=row["gbps"] * 1.1 + 1),
            "a floor of": lambda row: row.update(floor_us=row["floor_us"] * 0.9),
            '"decode" is': lambda row: row.update(decode=not row["decode"]),
            "/sessions": lambda row: row.update(sessions=7),
            "/samples": lambda row: row.update(samples=240),
            "ended": lambda row: row.update(ended="incorrect"),
            "its bound": lambda row: row["correct"].update(rel_error=1.0),
            "of the peer good, /speedup": lambda row: row["peers"][0].update(speedup=row["peers"][0]["speedup"] * 1.01),
            "of the peer good, /ci95/0": lambda row: row["peers"][0]["ci95"].__setitem__(0, 1.05 * row["peers"][0]["speedup"]),
            "of the peer good, /ci95/1": lambda row: row["peers"][0].update(ci95=None),
            "of the peer good, /verdict": lambda row: row["peers"][0].update(verdict="SAME"),
            "of the peer good, /time_us/p10": lambda row: row["peers"][0]["time_us"].update(p10=1.0),
            "of the peer good, /sessions": lambda row: row["peers"][0].update(sessions=2),
            "is not correct": lambda row: row["peers"][0].update(correct=False),
            "times the bound": lambda row: row["peers"][0].update(rel_error=1.0),
            "did not pass": lambda row: row["correct"].update(passed=False),
            "no bound": lambda row: row["correct"].pop("bound"),
            '"level" is "quick"': lambda row: row["correct"].update(level="quick"),
            "was of 40 rounds": lambda row: row["measured"][0].update(rounds=40),
            "is there twice": lambda row: row["peers"].append(row["peers"][0]),
            "of the same run": lambda row: (row["measured"].append(row["measured"][0]), row["peers"][0]["samples_us"].append(row["peers"][0]["samples_us"][0])),
            "raw samples cannot be read": lambda row: row.update(measured=[]),
        }
        for words, edit in edits.items():
            with self.subTest(words):
                document = json.loads(json.dumps(honest))
                edit(document["results"][0])
                self.write("edited.json", json.dumps(document))
                self.assertIn(words, self.expect(FAILED, "verify", "edited.json").stdout)
        for words, edit in {
            "its text is not what the program wrote": lambda document: document["results"][0]["environment"].update(commit="fedcba9"),
            "a row was added or taken out": lambda document: document.update(suite="another"),
        }.items():
            with self.subTest(words):
                document = json.loads(json.dumps(sealed))
                edit(document)
                self.write("edited.json", json.dumps(document))
                self.assertIn(words, self.expect(FAILED, "verify", "edited.json").stdout)
                self.expect_error(BAD_USAGE, [words], "peers", "--device", "cpu", "--problem", PROBLEM, "--peer", fake("good"), "--append", "--json", "edited.json")
        self.write("twice.json", json.dumps(honest | {"results": honest["results"] * 2}))
        self.assertIn("in the file twice", self.expect(FAILED, "verify", "twice.json").stdout)

    def test_ratios_without_samples_cannot_be_confirmed(self):
        self.expect(DONE, "peers", "--device", "cpu", "--problem", PROBLEM, "--rounds", "2", "--peer", fake("good"), "--json", "peers.json")
        with open(self.path("peers.json"), encoding="utf-8") as file:
            document = without_digests(json.load(file))
        del document["results"][0]["measured"]
        self.write("bare.json", json.dumps(document))
        done = self.expect(NOT_JUDGED, "verify", "bare.json", "--json", "verdict.json")
        self.assertIn("no raw samples", done.stdout)
        with open(self.path("verdict.json"), encoding="utf-8") as file:
            (verdict,) = json.load(file)["results"]
        self.assertEqual((verdict["fresh"], verdict["without_samples"], verdict["wrong"]), (True, [PROBLEM], []))


class DrawTest(CliTest):
    def test_unseen_problems_are_drawn_by_seed_and_read_back(self):
        first = self.expect(DONE, "problem", "--draw", "40", "--seed", "7", "--suite-file", "unseen.yaml", "--json", "-", "--quiet")
        again = self.expect(DONE, "problem", "--draw", "40", "--seed", "7", "--json", "-", "--quiet")
        problems = json.loads(first.stdout)["results"]
        self.assertEqual(problems, json.loads(again.stdout)["results"])
        self.assertNotEqual(problems, json.loads(self.expect(DONE, "problem", "--draw", "40", "--seed", "8", "--json", "-", "--quiet").stdout)["results"])
        read = json.loads(self.expect(DONE, "explain", "--suite", "unseen.yaml", "--arch", "sm_90", "--json", "-", "--quiet").stdout)["results"]
        self.assertEqual([row["problem"] for row in read], [problem["problem"] for problem in problems])
        self.assertEqual(len({problem["problem"] for problem in problems}), 40)
        decoding = sum(problem["decode"] for problem in problems)
        self.assertTrue(4 <= decoding <= 24, decoding)
        self.assertTrue(any(problem["fields"]["window_left"] is not None for problem in problems))
        for problem in problems:
            self.assertGreaterEqual(problem["flops"], 2e7)

    def test_types_that_are_asked_for_are_those_of_the_same_draw(self):
        draw = lambda *more: json.loads(self.expect(DONE, "problem", "--seed", "7", "--json", "-", "--quiet", *more).stdout)["results"]  # noqa: E731
        kinds = ("fp16", "bf16")
        everything = [p["problem"] for p in draw("--draw", "60") if p["fields"]["dtype"] in kinds]
        self.assertEqual([p["problem"] for p in draw("--draw", "20", "--dtypes", "fp16,bf16")], everything[:20])
        self.assertIn("fp32", self.expect(BAD_USAGE, "problem", "--draw", "3", "--dtypes", "fp32").stderr)
        self.assertIn("--draw", self.expect(BAD_USAGE, "problem", "--dtypes", "fp16").stderr)


if __name__ == "__main__":
    unittest.main()
