"""`economics`, the report's section of it, and `tune --stop-loss`."""

import json
import sqlite3
import unittest

from support import BAD_USAGE, DONE, NOT_JUDGED, CliTest

PROBLEM = ["--device", "cpu", "--problem", "b1_h1_s64_d64_fp32"]


class EconomicsTest(CliTest):
    def setUp(self):
        super().setUp()
        self.store = self.path("t.db")

    def tune(self, *more):
        return self.expect(DONE, "tune", *PROBLEM, "--store", self.store, "--finalists", "1", "--json", self.path("tune.json"), *more)

    def bench(self):
        self.expect(DONE, "bench", *PROBLEM, "--store", self.store)

    def economics(self, *more):
        self.expect(DONE, "economics", "--store", self.store, "--json", self.path("e.json"), *more)
        with open(self.path("e.json"), encoding="utf-8") as file:
            return json.load(file)

    def test_what_a_tuning_run_cost(self):
        self.tune("--budget", "4")
        document = self.economics("--price", "3600")
        self.assertEqual(document["schema"], "flashcore.economics/1")
        account = document["results"][0]
        total = account["total"]
        self.assertGreater(total["device_seconds"], 0)
        self.assertEqual(total["trials_without_seconds"], 0)
        # At 3600 an hour a second costs 1.
        self.assertAlmostEqual(total["money"], total["device_seconds"] + total["host_seconds"], places=6)
        for part in ("phases", "verdicts"):
            self.assertAlmostEqual(sum(row["device_seconds"] for row in account[part]), total["device_seconds"], places=6)
            self.assertEqual(sum(row["trials"] for row in account[part]), total["trials"])
        self.assertIn("search", {row["phase"] for row in account["phases"]})
        self.assertIsNone(self.economics()["results"][0]["total"]["money"])
        for name in ("r.html", "r.md"):
            self.expect(DONE, "report", "--store", self.store, "--out", self.path(name), "--price", "3600")
            with open(self.path(name), encoding="utf-8") as file:
                text = file.read()
            self.assertIn("What it cost", text)
            self.assertIn("%.4g" % total["money"], text)
        self.expect(DONE, "report", "--store", self.store, "--out", self.path("r.json"), "--price", "3600")
        with open(self.path("r.json"), encoding="utf-8") as file:
            self.assertEqual(json.load(file)["economics"][0]["total"]["money"], total["money"])
        self.expect_error(BAD_USAGE, ["--price", ".html"], "report", "--store", self.store, "--out", self.path("r.csv"), "--price", "3600")
        self.assertEqual(self.economics("--device", "cpu")["results"][0]["device"], account["device"])
        other = self.expect(NOT_JUDGED, "economics", "--store", self.store, "--device", "h200")
        self.assertIn("--device h200: no device of", other.stderr)
        self.assertIn("it holds trials of %s" % account["device"], other.stderr)

    def test_a_store_of_an_older_flashcore(self):
        self.bench()
        connection = sqlite3.connect(self.store)
        for number, text in connection.execute("select id, json from trials").fetchall():
            trial = json.loads(text)
            del trial["seconds"]
            connection.execute("update trials set json = ? where id = ?", (json.dumps(trial), number))
        connection.commit()
        connection.close()
        result = self.expect(NOT_JUDGED, "economics", "--store", self.store)
        self.assertIn("do not say their seconds", result.stdout)
        self.bench()  # and it can be gone on with
        self.assertGreater(self.economics()["results"][0]["total"]["trials_without_seconds"], 0)

    def test_bad_input(self):
        self.expect_error(BAD_USAGE, ["absent.db"], "economics", "--store", self.path("absent.db"))
        self.bench()
        for price in ("-1", "nan", "inf", "three"):
            self.expect_error(BAD_USAGE, ["--price"], "economics", "--store", self.store, "--price=" + price)
        self.expect_error(BAD_USAGE, ["--json"], "economics", "--store", self.store, "--json", self.store)
        self.bench()
        with sqlite3.connect(self.store) as connection:
            runs = {json.loads(text)["run"] for (text,) in connection.execute("select json from trials")}
        self.assertEqual(len(runs), 2)
        self.expect_error(BAD_USAGE, ["--run none", *runs], "economics", "--store", self.store, "--run", "none")
        for run in runs:
            self.assertEqual(self.economics("--run", run)["results"][0]["total"]["trials"], 1)

    def test_stop_loss_ends_a_search_and_says_so(self):
        # A percent is worth next to nothing, so that the first verdict ends it.
        result = self.tune("--budget", "100", "--stop-loss", "--worth", "0.0001s")
        self.assertIn("the search was ended by --stop-loss after 16 trials", result.stdout)
        self.assertIn("a trial costs", result.stdout)
        with open(self.path("tune.json"), encoding="utf-8") as file:
            entry = json.load(file)["results"][0]
        self.assertTrue(entry["stop_loss"]["stopped"])
        self.assertEqual(entry["stop_loss"]["expected"]["trials"], 16)
        self.assertLess(entry["stop_loss"]["expected"]["worth_seconds"], entry["stop_loss"]["expected"]["trial_seconds"])

    def test_stop_loss_lets_a_search_go_on_that_may_gain(self):
        self.tune("--budget", "20", "--stop-loss", "--worth", "1000000", "--price", "1")
        with open(self.path("tune.json"), encoding="utf-8") as file:
            entry = json.load(file)["results"][0]
        self.assertFalse(entry["stop_loss"]["stopped"])
        self.assertEqual(entry["stop_loss"]["seconds_per_percent"], 3.6e9)
        self.assertGreaterEqual(entry["funnel"]["proposed"], 20)

    def test_stop_loss_flags(self):
        tune = ["tune", *PROBLEM, "--store", self.store, "--budget", "1"]
        self.expect_error(BAD_USAGE, ["--stop-loss", "--worth"], *tune, "--stop-loss")
        self.expect_error(BAD_USAGE, ["--worth", "--stop-loss"], *tune, "--worth", "10m")
        self.expect_error(BAD_USAGE, ["--price", "--stop-loss"], *tune, "--price", "3")
        self.expect_error(BAD_USAGE, ["--price"], *tune, "--stop-loss", "--worth", "20")
        self.expect_error(BAD_USAGE, ["--price"], *tune, "--stop-loss", "--worth", "20m", "--price", "3")
        for worth in ("0", "-3", "nan", "10x", "0m"):
            self.expect_error(BAD_USAGE, ["--worth"], *tune, "--stop-loss", "--worth=" + worth, "--price", "3")
        self.write("l.json", "{}")
        self.expect_error(BAD_USAGE, ["--stop-loss", "--replay"], "tune", "--replay", self.path("l.json"), "--stop-loss", "--worth", "1m")


if __name__ == "__main__":
    unittest.main()
