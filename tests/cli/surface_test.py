"""What a person sees: words, tables, the progress bar, and text of others' that must not act on a terminal."""

import fcntl
import json
import os
import pty
import re
import select
import shlex
import shutil
import struct
import subprocess
import termios
import time
import unicodedata
import unittest

from support import BINARY, DONE, FAILED, CliTest, copy_device_sources

PROBLEM = "b1_h1_s32_d64_fp32"
HOSTILE = "\x1b[2J\x1b]0;pwned\x07\u009b31m\u202eevil\u2066\nflashcore: error: forged"
# What the Console itself writes: its colours, and the start of a line cleared for the bar.
OURS = re.compile(r"\x1b\[(?:0|2|31|32|33)m|\r\x1b\[K")


def hidden(text):
    """Characters that act on a terminal or hide, line breaks aside."""
    return [c for c in text if c != "\n" and (unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp"))]


def columns_of(text):
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in text)


class TerminalTest(CliTest):
    def run_on_terminal(self, columns, *arguments, resize_to=None, timeout=120):
        """What the program writes to a terminal `columns` wide."""
        leader, follower = pty.openpty()
        size = lambda width: fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))  # noqa: E731
        size(columns)
        environment = {name: value for name, value in self.environment.items() if name not in ("COLUMNS", "NO_COLOR")}
        process = subprocess.Popen([BINARY, *arguments], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=follower, stderr=follower)
        os.close(follower)
        seen, resized, deadline = b"", False, time.monotonic() + timeout
        while time.monotonic() < deadline:
            if select.select([leader], [], [], 0.1)[0]:
                try:
                    piece = os.read(leader, 65536)
                except OSError:  # the program has closed its end
                    break
                if not piece:
                    break
                seen += piece
            if resize_to and not resized and seen.count(b"\r\x1b[K") >= 3:
                size(resize_to)
                resized, before = True, len(seen)
        self.assertLess(time.monotonic(), deadline, "the program did not end")
        process.wait()
        os.close(leader)
        if resize_to:
            self.assertTrue(resized, "too few bars to resize between")
            return process.returncode, seen[:before].decode(), seen[before:].decode()
        return process.returncode, seen.decode(), ""

    @staticmethod
    def bars(text):
        return [frame for frame in re.split(r"\r\x1b\[K", text)[1:] if frame and "\n" not in frame]


class ProgressTest(TerminalTest):
    TUNE = ("tune", "--device", "cpu", "--problem", PROBLEM, "--finalists", "1", "--strategy", "random")

    def test_the_bar_fits_fills_with_time_and_shows_the_best(self):
        code, text, _ = self.run_on_terminal(70, *self.TUNE, "--budget", "4s")
        self.assertEqual(code, DONE, text)
        bars = self.bars(text)
        self.assertGreaterEqual(len(bars), 2)
        for bar in bars:
            self.assertLess(columns_of(bar), 70, bar)
        filled = [len(bar[1 : bar.index("]")].rstrip(".")) / len(bar[1 : bar.index("]")]) for bar in bars if bar.startswith("[")]
        self.assertEqual(filled, sorted(filled))
        # The search alone takes 60% of the time; the last bar comes after it.
        self.assertGreater(filled[-1], 0.5, "a budget of time must fill the bar")
        self.assertRegex(bars[-1], r"best [0-9.]+ (us|ms)")

    def test_narrow_windows_and_windows_that_change(self):
        code, wide, narrow = self.run_on_terminal(120, *self.TUNE, "--budget", "30", resize_to=30)
        self.assertEqual(code, DONE, wide + narrow)
        self.assertGreater(max(map(columns_of, self.bars(wide))), 40)
        # The first may still have been drawn for the old width.
        for bar in self.bars(narrow)[1:]:
            self.assertLess(columns_of(bar), 30, bar)

    def test_wide_characters_count_two_columns(self):
        suite = self.write("wide.yaml", "name: wide\nproblems:\n" + "".join(
            f"  - {{name: 注意力注意力注意力注意力注意力注意力注意力{i}, num_heads: 1, seq_len: {8 + i}, head_dim: 16, dtype: fp32}}\n" for i in range(12)))
        for columns in (48, 24, 12, 5):
            code, text, _ = self.run_on_terminal(columns, "bench", "--device", "cpu", "--suite", suite, "--repeats", "3")
            self.assertEqual(code, DONE, text)
            self.assertTrue(self.bars(text))
            for bar in self.bars(text):
                self.assertLess(columns_of(bar), columns, bar)

    def test_columns_of_the_environment_hold(self):
        self.environment["COLUMNS"] = "33"
        leader, follower = pty.openpty()
        fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
        process = subprocess.Popen([BINARY, "check", "--device", "cpu", "--fuzz", "40"], cwd=self.folder, env=self.environment, stdout=follower, stderr=follower)
        os.close(follower)
        seen = b""
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:
                break
            if not piece:
                break
            seen += piece
        process.wait()
        os.close(leader)
        self.assertTrue(self.bars(seen.decode()))
        for bar in self.bars(seen.decode()):
            self.assertLess(columns_of(bar), 33, bar)


class HostileTextTest(TerminalTest):
    """Names that suites may hold. A loader may refuse them; what is printed is harmless either way."""

    def setUp(self):
        super().setUp()
        quoted = HOSTILE.encode("unicode_escape").decode().replace("\\x9b", "\\u009b").replace("\\n", "\\n")
        self.suite = self.write("hostile.yaml", 'name: "s%s"\nproblems:\n  - {name: "p%s", num_heads: 1, seq_len: 8, head_dim: 16, dtype: fp32}\n' % (quoted, quoted))

    def check(self, text, ours=False):
        left = OURS.sub("", text.replace("\r\n", "\n")) if ours else text
        self.assertEqual(hidden(left), [], ascii(text))
        for line in left.split("\n"):
            self.assertFalse(line.startswith("flashcore: error: forged"), ascii(text))

    def test_no_verb_prints_what_acts_on_a_terminal(self):
        store = self.path("t.db")
        for verb in (["bench", "--store", store], ["check"], ["explain"], ["tune", "--budget", "1", "--finalists", "1", "--store", store], ["warmup"],
                     ["bench", "--store", store, "--json", "-"]):
            with self.subTest(verb=verb):
                result = self.run_flashcore(*verb, "--device", "cpu", "--suite", self.suite)
                self.check(result.stdout)
                self.check(result.stderr)
        if os.path.exists(store):
            for verb in (["leaderboard"], ["gate", "--device", "cpu", "--seconds", "1", "--processes", "1"]):
                result = self.run_flashcore(*verb, "--store", store)
                self.check(result.stdout + result.stderr)

    def test_nor_on_a_real_one(self):
        _, text, _ = self.run_on_terminal(90, "check", "--device", "cpu", "--suite", self.suite)
        self.check(text, ours=True)

    def test_what_was_given_comes_back_harmless_in_errors(self):
        for arguments in (["bench", "--problem", HOSTILE], ["check", "--family", HOSTILE], [HOSTILE], ["bench", "--device", HOSTILE],
                          ["report", "--store", HOSTILE], ["tune", "--budget", HOSTILE], ["bench", "--suite", HOSTILE], ["verify", HOSTILE]):
            with self.subTest(arguments=arguments):
                result = self.run_flashcore(*arguments)
                self.assertNotEqual(result.returncode, DONE)
                self.assertTrue(result.stderr.startswith("flashcore: error: "), ascii(result.stderr))
                self.check(result.stdout + result.stderr)


class WordsTest(CliTest):
    def test_a_problem_by_its_id_is_of_no_suite(self):
        out = self.expect(DONE, "bench", "--device", "cpu", "--problem", PROBLEM).stdout
        self.assertNotIn("quick", out)
        self.assertIn(f"problem {PROBLEM},", out)

    def test_bench_shows_noise_and_samples(self):
        out = self.expect(DONE, "bench", "--device", "cpu", "--problem", PROBLEM).stdout
        header = next(line for line in out.splitlines() if line.startswith("problem "))
        for word in ("p50 +-", "samples"):
            self.assertIn(word, header)
        self.assertRegex(out, r"\d%? +\d+ x \d+ ")

    def test_no_verdict_is_said_twice(self):
        for arguments in (["cpu_fwd", "cpu_fwd:block_n=128", "--seconds", "0.5", "--processes", "1"], ["cpu_fwd", "cpu_fwd"]):
            out = self.run_flashcore("ab", *arguments, "--device", "cpu", "--problem", PROBLEM).stdout
            line = next(line for line in out.splitlines() if re.match(r"(FASTER|SLOWER|SAME|INCONCLUSIVE|NOT JUDGED)  ", line))
            self.assertEqual(len(re.findall(r"FASTER|SLOWER|SAME|INCONCLUSIVE|NOT JUDGED", line)), 1, line)

    def test_counts_and_nouns_agree(self):
        store = self.path("t.db")
        tuned = self.expect(DONE, "tune", "--device", "cpu", "--problem", PROBLEM, "--budget", "1", "--finalists", "1", "--strategy", "random", "--store", store).stdout
        outputs = [tuned]
        for verb in (["check", "--device", "cpu", "--problem", PROBLEM, "--patterns", "normal"], ["explain", "--device", "cpu", "--problem", PROBLEM],
                     ["leaderboard", "--store", store], ["report", "--store", store, "--out", "r.html"],
                     ["gate", "--device", "cpu", "--write-baseline", "b.json", "--problem", PROBLEM, "--seconds", "1", "--processes", "1"]):
            outputs.append(self.expect(DONE, *verb).stdout)
        for out in outputs:
            self.assertNotRegex(out, r"\b1 (problems|candidates|patterns|trials|configs|winners|kernels|experiments|devices)\b", out)
            self.assertNotRegex(out, r"\b(0|[2-9]|\d\d+) (problem|candidate|pattern|trial|winner|kernel|experiment|device)\b", out)
        # One trial is the default's own: it stays, and nothing says that a winner was found.
        self.assertIn("nothing beat what dispatch takes for 1 problem", tuned)
        self.assertNotIn("winner entered", tuned)
        self.assertIn("every trial is in %s" % store, tuned)
        self.assertIn("0 with a config faster than the default, 1 where the default remains", tuned)


class SourceTreeTest(CliTest):
    def setUp(self):
        super().setUp()
        copy_device_sources(self.path("my tree"))
        self.environment["FLASHCORE_SOURCE"] = self.path("my tree")

    def edit(self, name, before, after):
        path = self.path("my tree", "src", "kernels", name)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        self.assertIn(before, text)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(before, after, 1))

    def test_the_hosts_own_copy_is_warned_of(self):
        check = ("check", "--device", "cpu", "--problem", PROBLEM, "--patterns", "normal")
        self.assertEqual(self.expect(DONE, *check).stderr, "")
        self.edit("sm80_fwd/kernel.cuh", "namespace", "// only the device reads this\nnamespace")
        self.assertEqual(self.expect(DONE, *check).stderr, "")
        self.edit("sm80_fwd/config.h", "namespace", "// changed\nnamespace")
        self.edit("cpu_fwd/forward.cpp", "namespace", "// changed\nnamespace")
        warning = self.expect(DONE, *check).stderr
        self.assertEqual(warning.count("\n"), 1, warning)
        for word in ("flashcore: warning: FLASHCORE_SOURCE=", "sm80_fwd/config.h", "cpu_fwd/forward.cpp", "rebuild"):
            self.assertIn(word, warning)

    @unittest.skipUnless(shutil.which("c++"), "the emulator needs a C++ compiler")
    def test_what_failed_is_repeated_by_the_line_that_is_printed(self):
        self.environment["FLASHCORE_EMULATOR_SEED"] = "3"
        self.edit("ref_fwd/kernel.cuh", "ptx::st_global", "if (false) ptx::st_global")
        result = self.expect(FAILED, "check", "--device", "emulator", "--problem", "b1_h1_s8_d64_fp16", "--family", "ref_fwd", "--patterns", "normal")
        # The long text stands below the table, not in it.
        row = next(line for line in result.stdout.splitlines() if line.startswith("b1_h1_s8_d64_fp16") and "num_warps" in line)
        self.assertLess(len(row), 160, row)
        line = re.search(r"to repeat: (.*)", result.stdout)[1]
        self.assertTrue(line.startswith("FLASHCORE_SOURCE='%s' FLASHCORE_EMULATOR_SEED=3 flashcore check " % self.path("my tree")), line)
        for name in ("FLASHCORE_SOURCE", "FLASHCORE_EMULATOR_SEED"):
            del self.environment[name]
        again = subprocess.run(line.replace(" flashcore check", " %s check" % shlex.quote(BINARY)), shell=True, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)
        self.assertEqual(again.returncode, FAILED, again.stdout + again.stderr)

    @unittest.skipUnless(shutil.which("c++"), "the emulator needs a C++ compiler")
    def test_counters_name_the_kernels_line_that_called(self):
        del self.environment["FLASHCORE_SOURCE"]
        bench = ("bench", "--device", "emulator", "--problem", "b1_h1_s64_d64_fp16", "--family", "sm80_fwd")
        sites = json.loads(self.expect(DONE, *bench, "--json", "-", "--quiet").stdout)["results"][0]["counters"]["sites"]
        shared = [site for site in sites if site["where"].startswith("kernels/tile/")]
        self.assertTrue(shared)
        for site in shared:
            self.assertRegex(site["caller"], r"^kernels/sm80_fwd/kernel\.cuh:\d+ ")
        for site in sites:
            if site["where"].startswith("kernels/sm80_fwd/"):
                self.assertEqual(site["caller"], "")


if __name__ == "__main__":
    unittest.main()
