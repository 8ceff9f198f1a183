"""`campaign` as a user runs it: a whole one on the CPU, on the emulator, stopped, killed and resumed, and bad input."""

import json
import os
import signal
import time
import unittest

from support import BAD_USAGE, DONE, FAILED, NOT_JUDGED, NO_ENVIRONMENT, CliTest, interrupt

PROBLEM = ["--device", "cpu", "--problem", "b1_h1_s64_d64_fp32"]
# Seconds: on two cores that eight processes shared, 120 were not enough.
WHOLE_CAMPAIGN = 600
PHASES = ["environment", "correctness", "baselines", "evolution", "profile", "inversion", "trials", "crosscheck", "gate", "artefacts"]


class CampaignTest(CliTest):
    def setUp(self):
        super().setUp()
        self.out = self.path("campaign")

    def campaign(self, *more, problem=PROBLEM):
        out = [] if "--out" in more else ["--out", self.out]
        return ["campaign", *problem, "--budget", "12s", *out, "--python", "no-such-python", *more]

    def state(self):
        with open(os.path.join(self.out, "campaign.json"), encoding="utf-8") as file:
            return json.load(file)

    def phase(self, name):
        return next(p for p in self.state()["phases"] if p["name"] == name)

    @staticmethod
    def settled(state):
        """Names of its phases that --resume leaves alone. Of a busy machine more is tried again, and the page is made of that."""
        phases = state["phases"]
        busy = any(c["busy"] or c["out_of_time"] for p in phases for c in p["commands"])
        open_ = [p["name"] for p in phases if any(c["lacked"] or c["busy"] or c["out_of_time"] for c in p["commands"])]
        if "evolution" in open_:  # what it finds is what these are about
            open_ += ["profile", "inversion", "trials"]
        return [p["name"] for p in phases if p["name"] not in open_ and not (busy and p["name"] == "artefacts")]

    def page(self):
        with open(os.path.join(self.out, "report.html"), encoding="utf-8") as file:
            return file.read()

    def wait_for(self, condition, process, seconds=60):
        until = time.monotonic() + seconds
        while time.monotonic() < until and process.poll() is None:
            try:
                if condition(self.state()):
                    return
            except (OSError, ValueError):
                pass
            time.sleep(0.05)
        self.fail("what the campaign was waited for never came")

    @staticmethod
    def is_running(name):
        return lambda state: any(p["name"] == name and p["status"] == "running" for p in state["phases"])

    def test_a_whole_campaign_and_what_resuming_it_runs(self):
        result = self.run_flashcore(*self.campaign("--json", self.path("c.json")), timeout=WHOLE_CAMPAIGN)
        # Peers are missing, so it cannot have passed; a busy machine may fail its gate.
        self.assertIn(result.returncode, (FAILED, NOT_JUDGED), result.stderr)
        self.assertIn("a budget below 2m bounds the search and the number of trials alone", result.stdout)
        state = self.state()
        self.assertEqual([p["name"] for p in state["phases"]], PHASES)
        for phase in state["phases"]:
            self.assertEqual(phase["status"], "done", phase)
            self.assertIn(phase["verdict"], ("passed", "failed", "could not judge"))
            if phase["verdict"] != "passed":
                self.assertTrue(phase["reason"], phase)
            for command in phase["commands"]:
                self.assertGreaterEqual(command["seconds"], 0)
                # On a busy machine a phase's share may be over before its last command begins.
                self.assertTrue(command["started_at"] or command["out_of_time"], command)
        for name in ("environment", "correctness", "artefacts"):
            self.assertEqual(self.phase(name)["verdict"], "passed", self.phase(name))
        self.assertEqual(self.phase("baselines")["verdict"], "could not judge")
        self.assertIn("not on PATH", self.phase("baselines")["reason"])
        self.assertIn("lost: the times of other attentions", self.phase("baselines")["reason"])
        for name in ("summary.md", "report.html", "trials.db", "criteria.json", "ledger.json", "tuned_diff.json", "baseline.json"):
            self.assertTrue(os.path.getsize(os.path.join(self.out, name)), name)
        with open(os.path.join(self.out, "summary.md"), encoding="utf-8") as file:
            summary = file.read()
        for part in ("## Phases", "## Results", "## Success criteria", "## Top findings", "could not judge"):
            self.assertIn(part, summary)
        page = self.page()
        for part in ("1. ", "metrics and their targets", "wrong on purpose", "<svg", "No timeline: "):
            self.assertIn(part, page)
        with open(self.path("c.json"), encoding="utf-8") as file:
            document = json.load(file)
        self.assertEqual(document["schema"], "flashcore.campaign/1")
        # Nothing was timed beside PyTorch, and no counters: none of the criteria may be met.
        self.assertEqual({c["verdict"] for c in document["criteria"] if "PyTorch" in c["criterion"]}, {"could not judge"})
        self.assertEqual(len(document["criteria"]), 6)

        # Its own line, and none that it did not run.
        self.assertIn("flashcore campaign --device cpu --problem b1_h1_s64_d64_fp32 --budget 12s", page)
        self.assertNotIn("--suite quick", page)
        # The evidence is there to its end.
        self.assertEqual([c["evidence"] for c in document["criteria"] if c["evidence"].split()[-1] not in result.stdout.split()], [])

        self.expect_error(BAD_USAGE, ["--resume"], *self.campaign())
        # Another spelling of the folder is the same folder, so that its commands are the same.
        resumed = self.run_flashcore(*self.campaign("--resume", "--out", "./campaign/"), timeout=WHOLE_CAMPAIGN)
        self.assertIn(resumed.returncode, (FAILED, NOT_JUDGED), resumed.stderr)
        # Only what the missing Python left open was run again, and whoever reads of it has read all that there is.
        again = self.state()
        for before, after in zip(state["phases"], again["phases"]):
            if before["name"] in self.settled(state):
                self.assertEqual(after, before, state["phases"])
        store = os.path.join(self.out, "trials.db")
        os.rename(store, store + ".away")
        new = self.path("new.html")
        self.expect_error(BAD_USAGE, ["no trials.db", "baselines (the times of other attentions", "evolution", "--store"],
                          "report", "--campaign", self.out, "--out", new)  # fmt: skip
        self.assertFalse(os.path.exists(new))
        self.expect(DONE, "report", "--campaign", self.out, "--out", new, "--store", store + ".away")
        os.rename(store + ".away", store)
        os.truncate(os.path.join(self.out, "05_profile.json"), 100)
        self.assertIn("05_profile.json in it is damaged", self.expect(DONE, "report", "--campaign", self.out, "--out", new).stderr)
        os.remove(os.path.join(self.out, "05_profile.json"))
        self.assertIn("05_profile.json", self.expect(DONE, "report", "--campaign", self.out, "--out", new).stderr)
        self.expect_error(BAD_USAGE, ["b1_h1_s65_d64_fp32", "another folder"],
                          *self.campaign("--resume", problem=["--device", "cpu", "--problem", "b1_h1_s65_d64_fp32"]))  # fmt: skip

    def test_a_python_without_the_package_is_skipped(self):
        fake = self.write("bare-python", "#!/bin/sh\necho \"bare-python: No module named flashcore.peers\" >&2\nexit 1\n")
        os.chmod(fake, 0o755)
        process = self.start_flashcore(*self.campaign("--python", fake)[:-4], "--python", fake)
        self.wait_for(lambda state: any(p["name"] == "baselines" and p["status"] == "done" for p in state["phases"]), process, 120)
        interrupt(process)
        process.wait(timeout=30)
        phase = self.phase("baselines")
        self.assertEqual(phase["verdict"], "could not judge")
        self.assertIn("skipped: the Python package flashcore is missing", phase["reason"])
        self.assertIn("--python", phase["reason"])
        for part in ("PYTHONPATH", "FLASHCORE_LIBRARY", "--resume tries it again"):
            self.assertIn(part, phase["reason"])

    def test_a_baseline_recorded_after_the_evolution_is_of_the_table_before_it(self):
        id = PROBLEM[-1]
        table = self.path("tuned.json")
        self.environment["FLASHCORE_TUNED"] = table
        bench = self.path("bench.json")
        self.expect(DONE, "bench", *PROBLEM, "--json", bench)
        with open(bench, encoding="utf-8") as file:
            row = json.load(file)["results"][0]
        process = self.start_flashcore(*self.campaign())
        self.wait_for(self.is_running("profile"), process, 120)
        process.kill()
        process.wait()
        # As if the evolution had won, and the baselines had been cut.
        config = dict(row["config"], block_m=24, block_n=32)
        won = "cpu_fwd:" + ",".join(f"{k}={v}" for k, v in config.items())
        self.write("tuned.json", json.dumps({row["device"]["key"]: {id: won}}))
        for name in ("03_baselines.json", "baseline.json"):
            os.remove(os.path.join(self.out, name))
        before = self.phase("baselines")["started_at"]
        resumed = self.start_flashcore(*self.campaign("--resume"))
        self.wait_for(lambda state: state["phases"][2]["status"] == "done" and state["phases"][2]["started_at"] != before, resumed, 120)
        resumed.kill()
        resumed.wait()
        with open(os.path.join(self.out, "baseline.json"), encoding="utf-8") as file:
            (recorded,) = json.load(file)["results"]
        with open(os.path.join(self.out, "03_baselines.json"), encoding="utf-8") as file:
            self.assertEqual(json.load(file)["results"][0]["config"], row["config"])
        self.assertEqual(set(recorded["candidate"].partition(":")[2].split(",")), {f"{k}={v}" for k, v in row["config"].items()})

    def test_killed_in_the_middle_and_resumed(self):
        process = self.start_flashcore(*self.campaign())
        self.wait_for(self.is_running("baselines"), process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.assertEqual(self.phase("baselines")["status"], "running")
        before = {name: self.phase(name) for name in ("environment", "correctness")}
        self.assertIn(self.run_flashcore(*self.campaign("--resume"), timeout=WHOLE_CAMPAIGN).returncode, (FAILED, NOT_JUDGED))
        for name, phase in before.items():
            self.assertEqual(self.phase(name), phase)
        self.assertTrue(all(p["status"] == "done" for p in self.state()["phases"]))

    def test_resuming_keeps_the_commands_that_judged(self):
        def bench_has_judged(state):
            (phase,) = [p for p in state["phases"] if p["name"] == "baselines"]
            return phase["status"] == "running" and phase["commands"] and phase["commands"][0]["exit_code"] == 0

        process = self.start_flashcore(*self.campaign())
        self.wait_for(bench_has_judged, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        before = self.phase("baselines")["commands"]
        self.assertEqual([c["exit_code"] for c in before[1:]], [-1, -1])
        again = self.run_flashcore(*self.campaign("--resume"), timeout=WHOLE_CAMPAIGN)
        self.assertIn(again.returncode, (FAILED, NOT_JUDGED), again.stderr)
        self.assertIn("baselines: about", again.stdout)
        self.assertIn(", 1 of 3 commands done before", again.stdout)
        self.assertEqual(["--resume" in session["argv"] for session in self.state()["sessions"]], [False, True])
        self.assertIn("in 2 sessions:</p><pre>flashcore campaign", self.page())
        after = self.phase("baselines")["commands"]
        self.assertEqual(after[0], before[0])
        self.assertNotEqual(after[1]["started_at"], before[1]["started_at"])
        self.assertTrue(os.path.exists(os.path.join(self.out, "baseline.json")))

    def test_ctrl_c_ends_it_with_what_is_done(self):
        process = self.start_flashcore(*self.campaign())
        self.wait_for(self.is_running("baselines"), process)
        time.sleep(1)
        start = time.monotonic()
        interrupt(process)
        self.assertEqual(process.wait(timeout=30), NOT_JUDGED)
        self.assertLess(time.monotonic() - start, 15)
        state = self.state()
        self.assertTrue(state["interrupted"])
        self.assertEqual(self.phase("environment")["status"], "done")
        phase = self.phase("baselines")
        self.assertEqual(phase["status"], "interrupted")
        # The command in flight got the interrupt and ended by itself, with its own exit code.
        (command,) = [c for c in phase["commands"] if "it was interrupted" in c["reason"]]
        self.assertIn(command["exit_code"], (DONE, NOT_JUDGED), command)
        self.assertNotIn("killed", command["reason"])
        self.assertEqual(self.phase("evolution")["status"], "waiting")
        self.assertIn("2 phases passed, 0 failed, 0 could not judge, 8 interrupted or not reached (--resume goes on)", process.stdout.read())
        with open(os.path.join(self.out, "summary.md"), encoding="utf-8") as file:
            self.assertIn("Interrupted", file.read())

    def test_a_second_campaign_in_the_folder_is_refused(self):
        process = self.start_flashcore(*self.campaign())
        self.wait_for(self.is_running("correctness"), process)
        self.expect_error(BAD_USAGE, [self.out, "another campaign is running"], *self.campaign("--resume"))
        interrupt(process)
        process.wait(timeout=30)

    def test_on_the_emulator(self):
        result = self.run_flashcore(*self.campaign(problem=["--device", "emulator", "--problem", "b1_h1_s17_d64_fp16"]))
        self.assertIn(result.returncode, (FAILED, NOT_JUDGED), result.stderr)
        self.assertEqual(self.phase("correctness")["verdict"], "passed", self.phase("correctness"))
        for name in ("evolution", "crosscheck", "gate"):
            self.assertEqual(self.phase(name)["verdict"], "could not judge")
            self.assertIn("an emulated GPU has no time", self.phase(name)["reason"])
        self.assertIn("flashcore tune --device emulator", self.phase("evolution")["reason"])
        self.expect_error(BAD_USAGE, ["trials.db", "emulated GPU, which times nothing"], "economics", "--store", os.path.join(self.out, "trials.db"))
        # Nothing was timed; what was counted is on the page.
        for name in ("profile", "inversion", "artefacts"):
            self.assertEqual(self.phase(name)["verdict"], "passed", self.phase(name))
        page = self.page()
        for part in ("No trials yet", "1. small grid", "needs hardware counters", "metrics and their targets", "wrong on purpose", "no_stores", "<a href=\"timeline.html\">"):
            self.assertIn(part, page)
        self.assertTrue(os.path.getsize(os.path.join(self.out, "timeline.html")))

    def test_a_state_that_is_damaged(self):
        os.makedirs(self.out)
        for text in ("", "{", '{"schema": "flashcore.tune/1"}', '{"schema": "flashcore.campaign/1", "phases": 3}'):
            self.write("campaign/campaign.json", text)
            self.expect_error(BAD_USAGE, ["campaign.json", "another folder"], *self.campaign("--resume"))
            with open(os.path.join(self.out, "campaign.json"), encoding="utf-8") as file:
                self.assertEqual(file.read(), text)

    def test_bad_input(self):
        self.expect_error(BAD_USAGE, ["--resume", "campaign.json"], *self.campaign("--resume"))
        for budget in ("0s", "-1m", "25", "m", "nan", "1e400s"):
            self.expect_error(BAD_USAGE, ["--budget", "25m"], "campaign", *PROBLEM, "--out", self.out, "--budget=" + budget)
        self.expect_error(BAD_USAGE, ["/nope/python", "--python"], "campaign", *PROBLEM, "--out", self.out, "--python", "/nope/python")
        self.expect_error(BAD_USAGE, ["nosuch", "suite emulator"], "campaign", "--device", "emulator", "--problem", "nosuch", "--out", self.out)
        self.expect_error(BAD_USAGE, ["--ledger nowhere", "no such folder"], *self.campaign("--ledger", "nowhere"))
        self.expect_error(BAD_USAGE, ["absent.json", "--write-baseline"], *self.campaign("--baseline", self.path("absent.json")))
        os.mkdir(self.out)
        for out in (self.out, self.out + "/", "campaign", "./campaign//"):
            self.expect_error(BAD_USAGE, ["--json", "files are its own"], "campaign", *PROBLEM, "--out", out,
                              "--json", self.path("campaign", "campaign.json"))  # fmt: skip
        os.rmdir(self.out)
        self.expect_error(NO_ENVIRONMENT, ["/proc/none"], "campaign", *PROBLEM, "--out", "/proc/none")
        self.expect_error(NO_ENVIRONMENT, ["--out"], "campaign", *PROBLEM, "--out", self.write("file", "text"))
        self.assertFalse(os.path.exists(self.out))  # a call that is refused leaves nothing, a lock neither

    def test_a_folder_that_cannot_be_written(self):
        os.makedirs(self.out)
        os.chmod(self.folder, 0o755)
        os.chmod(self.out, 0o555)
        self.addCleanup(os.chmod, self.out, 0o700)
        # Root may write anywhere, so root tries as somebody else.
        other = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
        try:
            self.run_flashcore("--version", **other)
        except PermissionError:
            self.skipTest("the program lies where only root may go")
        self.expect_error(NO_ENVIRONMENT, ["--out"], *self.campaign(), **other)


class HelpTest(CliTest):
    def test_help_names_the_phases_folder(self):
        self.assertIn("--resume", self.expect(DONE, "campaign", "--help").stdout)


if __name__ == "__main__":
    unittest.main()
