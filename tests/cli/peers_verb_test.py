"""flashcore peers: other programs beside flashcore, by one engine, and what becomes of those that go wrong."""

import json
import math
import os
import sys
import unittest

from support import BAD_USAGE, DONE, FAILED, NO_ENVIRONMENT, SOURCE_DIR, CliTest

PROBLEM = "b1_h2_s16_d16_fp32"
FAKE = os.path.join(SOURCE_DIR, "tests", "cli", "fake_peer.py")
EXAMPLE = os.environ.get("FLASHCORE_EXAMPLE_PEER", os.path.join(SOURCE_DIR, "build", "tests", "example_peer"))


def fake(*offers):
    return json.dumps([sys.executable, FAKE, *offers])


class PeersTest(CliTest):
    def run_peers(self, *arguments, code=DONE, problem=PROBLEM, rounds="12", **kwargs):
        """The rows of the JSON."""
        self.expect(code, "peers", "--device", "cpu", "--problem", problem, "--rounds", rounds, "--json", "peers.json", *arguments, **kwargs)
        with open(os.path.join(self.folder, "peers.json"), encoding="utf-8") as file:
            document = json.load(file)
        self.assertEqual(document["schema"], "flashcore.bench/1")
        return document["results"]

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
        self.assertGreater(row["floor_us"], 0)
        self.assertTrue(row["source_hash"] and row["chosen_by"])

    def test_who_goes_wrong_is_left_out_and_the_others_are_measured(self):
        reasons = {
            "wrong": "its timed output is wrong", "nan": "non-finite", "short_file": "bytes", "refuses": "it does not like this one",
            "errors": "it lost its way", "dies": "exited with code 7", "zero": "instead of a time", "too_fast": "faster than the floor", "garbage": "no JSON object",
        }  # fmt: skip
        (row,) = self.run_peers("--peer", fake("good", *(f"{name}:{name}" for name in reasons)), rounds="2")
        self.assertEqual([peer["name"] for peer in row["peers"]], ["good"])
        for name, words in reasons.items():
            self.assertIn(words, row["refused"][name], name)
        self.assertEqual(row["refused"]["somewhere_else"], "not installed here")

    def test_fewer_than_twelve_rounds_give_no_interval(self):
        done = self.expect(DONE, "peers", "--device", "cpu", "--problem", PROBLEM, "--rounds", "4", "--peer", fake("good"), "--json", "few.json")
        with open(os.path.join(self.folder, "few.json"), encoding="utf-8") as file:
            (peer,) = json.load(file)["results"][0]["peers"]
        self.assertIsNone(peer["ci95"])
        self.assertIn("at least 12 make an interval", peer["no_interval"])
        self.assertIn("no interval", done.stdout)

    def test_a_second_session_joins_the_first(self):
        self.run_peers("--peer", fake("good", "gone"))
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
        (row,) = self.run_peers("--peer", fake("flashcore", "good"))
        self.assertEqual(row["measured"][0]["timed_in"], "the peers' process")
        self.assertEqual(len(row["measured"][0]["laboratory_us"]), 12)
        self.assertIsNone(row["laboratory"]["limit"], "on a CPU calls from another program differ")
        self.assertGreater(row["laboratory"]["apart"], 1)
        self.assertAlmostEqual(row["peers"][0]["speedup"], 1, delta=0.02)

    def test_ours_has_no_time_where_its_timed_output_is_wrong_or_its_process_dies(self):
        (row,) = self.run_peers("--peer", fake("flashcore:wrong", "good"), code=FAILED)
        self.assertIsNone(row["time_us"])
        self.assertIn("timed output (flashcore) is wrong", row["message"])
        (row,) = self.run_peers("--peer", fake("flashcore:dies", "good"), code=FAILED)
        self.assertEqual(row["ended"], "crashed")

    def test_a_refused_row_does_not_take_the_place_of_a_good_one(self):
        self.run_peers("--peer", fake("flashcore", "good"))
        (row,) = self.run_peers("--peer", fake("flashcore:wrong", "good"), "--append", code=FAILED)
        self.assertIsNotNone(row["time_us"])

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


if __name__ == "__main__":
    unittest.main()
