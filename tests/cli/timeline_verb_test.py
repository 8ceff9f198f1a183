"""flashcore timeline: lanes, sums, a trace that Perfetto opens, a page; and what it refuses."""

import json
import time
import unittest

from support import BAD_USAGE, DONE, NOT_JUDGED, CliTest, interrupt

SMALL = ("timeline", "--device", "emulator", "--problem", "b1_h1_s128_d64_fp16", "--family", "sm90_fwd")


def trace_problems(trace):
    """What the Trace Event Format asks of a JSON object: its own words, not ours."""
    found = []
    if not isinstance(trace.get("traceEvents"), list):
        return ["no list of traceEvents"]
    named, ends = set(), {}
    for number, event in enumerate(trace["traceEvents"]):
        where = f"event {number}"
        if event.get("ph") not in ("X", "M"):
            found.append(f"{where}: phase {event.get('ph')}")
            continue
        if not isinstance(event.get("name"), str) or not event["name"]:
            found.append(f"{where}: no name")
        for key in ("pid", "tid"):
            if not isinstance(event.get(key), int) or event[key] < 0:
                found.append(f"{where}: {key} {event.get(key)}")
        if event["ph"] == "M":
            if event["name"] not in ("process_name", "thread_name", "process_sort_index", "thread_sort_index"):
                found.append(f"{where}: metadata {event['name']}")
            if event["name"] in ("process_name", "thread_name") and not isinstance(event.get("args", {}).get("name"), str):
                found.append(f"{where}: metadata without a name")
            if event["name"] == "thread_name":
                named.add((event["pid"], event["tid"]))
            continue
        wrong = [key for key in ("ts", "dur") if not isinstance(event.get(key), (int, float)) or event[key] < 0]
        found += [f"{where}: {key} {event.get(key)}" for key in wrong]
        if wrong:
            continue
        track = (event["pid"], event["tid"])
        if track not in named:
            found.append(f"{where}: a track without a name")
        # Slices of one thread may lie within each other; ours never overlap.
        if event["ts"] < ends.get(track, 0):
            found.append(f"{where}: begins before the slice before it has ended")
        ends[track] = event["ts"] + event["dur"]
    return found


class TimelineTest(CliTest):
    def test_ctrl_c_in_the_middle_of_a_launch(self):
        process = self.start_flashcore("timeline", "--device", "emulator", "--problem", "b1_h8_s1024_d128_fp16", "--family", "sm90_fwd",
                                       "--json", self.path("t.json"))  # fmt: skip
        time.sleep(2)  # it takes much longer
        start = time.monotonic()
        interrupt(process)
        self.assertEqual(process.wait(timeout=60), NOT_JUDGED, process.stderr.read())
        self.assertLess(time.monotonic() - start, 10)
        self.assertIn("nothing was recorded; stopped by Ctrl-C", process.stdout.read())
        with open(self.path("t.json"), encoding="utf-8") as file:
            document = json.load(file)
        self.assertEqual((document["interrupted"], document["results"]), (True, []))

    def test_json_trace_and_page_of_one_run(self):
        result = self.expect(DONE, *SMALL, "--json", "t.json", "--trace", "trace.json", "--html", "t.html")
        self.assertIn("Q·K", result.stdout)
        self.assertRegex(result.stdout, r"distortion: \d[\d,]* steps with marks, \d[\d,]* without")
        with open(self.path("t.json"), encoding="utf-8") as file:
            document = json.load(file)
        self.assertEqual(document["schema"], "flashcore.timeline/1")
        timeline = document["results"][0]
        self.assertEqual(timeline["unit"], "steps")
        marks = [end for track in timeline["tracks"] for segment in track["segments"] for end in segment[2:]]
        length = f"{max(marks) - min(marks)} steps"
        self.assertGreater(min(marks), 0, "a launch begins before its first mark")
        self.assertIn(f"{length} from the first mark to the last", result.stdout)
        with open(self.path("t.html"), encoding="utf-8") as file:
            self.assertIn(f"<dt>from the first mark to the last</dt><dd>{length}</dd>", file.read())
        halves = [row["median"] for row in timeline["sums"] if row["median"] % 1]
        for median in halves:
            self.assertRegex(result.stdout, rf"(?m) {median:.{1 if median >= 9.995 else 2}f}$")
        self.assertEqual(timeline["faults"], [])
        self.assertEqual({track["role"] for track in timeline["tracks"]}, {"producer", "consumer"})
        for track in timeline["tracks"]:
            for before, after in zip(track["segments"], track["segments"][1:]):
                self.assertEqual(before[3], after[2], "a gap or an overlap")
        for role in ("producer", "consumer"):
            self.assertAlmostEqual(sum(s["share"] for s in timeline["sums"] if s["role"] == role), 1.0)
        with open(self.path("trace.json"), encoding="utf-8") as file:
            trace = json.load(file)
        self.assertEqual(trace_problems(trace), [])
        slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
        self.assertEqual(len(slices), sum(len(track["segments"]) for track in timeline["tracks"]))
        with open(self.path("t.html"), encoding="utf-8") as file:
            page = file.read()
        self.assertIn("Content-Security-Policy", page)
        self.assertNotIn("http://", page.replace("http://www.w3.org/2000/svg", ""))

    def test_the_check_of_traces_can_fail(self):
        good = {"traceEvents": [{"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "w"}},
                                {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 0, "dur": 2}]}
        self.assertEqual(trace_problems(good), [])
        for key, value in (("ts", -1), ("dur", "long"), ("pid", None), ("name", ""), ("ph", "Q"), ("tid", 2)):
            bad = json.loads(json.dumps(good))
            bad["traceEvents"][1][key] = value
            self.assertNotEqual(trace_problems(bad), [], key)
        overlapping = json.loads(json.dumps(good))
        overlapping["traceEvents"].append({"ph": "X", "name": "b", "pid": 1, "tid": 1, "ts": 1, "dur": 2})
        self.assertNotEqual(trace_problems(overlapping), [])
        self.assertNotEqual(trace_problems({}), [])

    def test_json_on_stdout_is_alone_there(self):
        result = self.expect(DONE, *SMALL, "--json", "-", "--quiet")
        self.assertEqual(json.loads(result.stdout)["schema"], "flashcore.timeline/1")

    def test_quiet_says_what_the_marks_cost(self):
        self.assertRegex(self.expect(DONE, *SMALL, "--quiet").stdout, r"\Adistortion: .*\n\Z")

    def test_refusals_are_one_sentence(self):
        self.expect_error(BAD_USAGE, ["no timeline", "runs on a CPU", "--device emulator"],
                          "timeline", "--device", "cpu", "--problem", "b1_h1_s64_d64_fp16")
        self.expect_error(BAD_USAGE, ["the kernel of ref_fwd has no marks", "sm90_fwd"],
                          "timeline", "--device", "emulator", "--problem", "b1_h1_s32_d64_fp16", "--family", "ref_fwd")
        self.expect_error(BAD_USAGE, ["one problem", "--problem"], "timeline", "--device", "emulator")
        self.expect_error(BAD_USAGE, ["no query rows"],
                          "timeline", "--device", "emulator", "--problem", "b1_h1_sq0_sk32_d64_fp16", "--family", "sm80_fwd")
        self.expect_error(BAD_USAGE, ["tracks, and the buffer of", "record fewer CTAs"],
                          "timeline", "--device", "emulator", "--problem", "b128_h64_s512_d64_fp16", "--family", "sm80_fwd",
                          "--config", "persistent=0", "--ctas", "1000000")
        self.expect_error(BAD_USAGE, ["--trace", "--html"], *SMALL, "--trace", "same", "--html", "same")
        self.expect(BAD_USAGE, *SMALL, "--ctas", "0")


if __name__ == "__main__":
    unittest.main()
