"""examples/neighbours.py and examples/mend_overlap.py as external proposers of flashcore tune, and what confines a proposer."""

import json
import os
import re
import subprocess
import sys
import unittest

from support import BAD_USAGE, BINARY, DONE, NOT_JUDGED, SOURCE_DIR, CliTest, copy_device_sources

PROPOSER = f'"{sys.executable}" "{os.path.join(SOURCE_DIR, "examples", "neighbours.py")}"'
MEND = f'"{sys.executable}" "{os.path.join(SOURCE_DIR, "examples", "mend_overlap.py")}"'
# Tries what a confined proposer may not do, says what came of it on stderr, and is done.
ESCAPES = """
import ctypes, errno, fcntl, json, os, platform, resource, socket, sys, tempfile, termios
libc = ctypes.CDLL(None, use_errno=True)
def tried(what):
    try:
        what()
        return "allowed"
    except OSError as e:
        return "refused"
def forbidden(what):
    try:
        what()
        return "allowed"
    except OSError as e:
        return "refused" if e.errno == errno.EPERM else "allowed"
def call(function, *arguments):
    if getattr(libc, function)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), function)
boss = int(sys.argv[2])  # outside, whatever shell is between
with tempfile.NamedTemporaryFile("w") as own:
    own.write("x")
outcome = {
    "network": tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM)),
    "unix": tried(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)),
    "writes": tried(lambda: open(sys.argv[1], "w").close()),
    "kills": tried(lambda: os.kill(os.getppid(), 0)),
    "types": forbidden(lambda: fcntl.ioctl(0, termios.TIOCSTI, b"x")),
    "console": forbidden(lambda: fcntl.ioctl(0, 0x541C, b"x")),
    "discipline": forbidden(lambda: fcntl.ioctl(0, termios.TIOCSETD, b"1234")),
    "limits": forbidden(lambda: resource.prlimit(boss, resource.RLIMIT_CORE, resource.prlimit(0, resource.RLIMIT_CORE))),
    "owner": forbidden(lambda: fcntl.fcntl(0, fcntl.F_SETOWN, boss)),
    "signal": forbidden(lambda: fcntl.fcntl(0, 10, 10)),
    "owner_ex": forbidden(lambda: fcntl.fcntl(0, 15, bytes(8))),
    "affinity": forbidden(lambda: os.sched_setaffinity(boss, os.sched_getaffinity(boss))),
    "scheduler": forbidden(lambda: os.sched_setscheduler(boss, os.SCHED_OTHER, os.sched_param(0))),
    "priority": forbidden(lambda: call("syscall", {"x86_64": 251, "aarch64": 30}[platform.machine()], 1, boss, 0)),
    "shm": forbidden(lambda: call("shmget", 0x5eed, 1, 0)),
    "sem": forbidden(lambda: call("semget", 0x5eed, 1, 0)),
    "msg": forbidden(lambda: call("msgget", 0x5eed, 0)),
    "mq": forbidden(lambda: call("mq_open", b"/flashcore-no-such", 0)),
    "own": forbidden(lambda: (os.sched_setaffinity(0, os.sched_getaffinity(0)), resource.setrlimit(resource.RLIMIT_CORE, resource.getrlimit(resource.RLIMIT_CORE)))),
    "environ": tried(lambda: open("/proc/%d/environ" % boss, "rb").read()),
    "memory": resource.getrlimit(resource.RLIMIT_AS)[0] >> 30,
    "secret": os.environ.get("SECRET_KEY", "gone"),
}
sys.exit("outcome " + json.dumps(outcome))
"""


REACHES_OUT = ["types", "console", "discipline", "limits", "owner", "signal", "owner_ex", "affinity", "scheduler", "priority", "shm", "sem", "msg", "mq"]
# In a terminal of its own: argv[1:], and whether they still had the terminal.
IN_A_TERMINAL = """
import os, pty, subprocess, sys
pid, fd = pty.fork()
if pid == 0:
    group = int(sys.argv[1])
    sys.exit(subprocess.run(sys.argv[2:], process_group=0 if group else None).returncode)
said = b""
while True:
    try:
        part = os.read(fd, 4096)
    except OSError:
        break
    if not part:
        break
    said += part
os.waitpid(pid, 0)
print(said.decode())
"""


class ProposerTest(CliTest):
    def test_the_example_climbs_through_the_tuners_gates(self):
        self.expect(
            DONE, "tune", "--device", "cpu", "--problem", "b1_h2_s128_d64_fp32", "--family", "cpu_fwd", "--strategy", "none", "--proposer", PROPOSER,
            "--budget", "5", "--finalists", "1", "--store", self.path("trials.db"), "--json", self.path("tune.json"))  # fmt: skip
        with open(self.path("tune.json"), encoding="utf-8") as file:
            arms = json.load(file)["results"][0]["arms"]
        self.assertEqual([arm["strategy"] for arm in arms], ["proposer"])
        self.assertEqual(arms[0]["note"], "")
        self.assertGreaterEqual(arms[0]["trials"], 3)

    def tune_mending(self, device, problem, family, code):
        said = self.expect(
            code, "tune", "--device", device, "--problem", problem, "--family", family, "--strategy", "none", "--proposer", MEND,
            "--budget", "8", "--finalists", "1", "--store", self.path("trials.db"), "--json", self.path("tune.json"), timeout=280)  # fmt: skip
        with open(self.path("tune.json"), encoding="utf-8") as file:
            return {**json.load(file)["results"][0], "stdout": said.stdout}

    def test_a_bad_config_is_mended_by_rule(self):
        result = self.tune_mending("cpu", "b1_h1_s1024_d64_fp32", "cpu_fwd", DONE)
        arm = result["arms"][0]
        self.assertEqual((arm["note"], arm["rejected"], arm["trials"]), ("", 0, 4))
        # The first rule halves the time and more; the machine decides about the others.
        self.assertNotRegex(arm["best"], "block_m=24,block_n=32,.*kv_split=32", "it ended with the slow one")

    def test_a_kernel_without_overlap_is_mended_by_rule(self):
        result = self.tune_mending("emulator", "b1_h1_s100_d64_fp16", "sm80_fwd", NOT_JUDGED)  # an emulated GPU has no time
        arm = result["arms"][0]
        self.assertEqual((arm["note"], arm["rejected"], arm["trials"]), ("", 0, 3), arm)
        self.assertEqual(result["funnel"]["correct"], result["funnel"]["proposed"], "each of them passed the gates")
        for number in range(3):
            self.assertRegex(result["stdout"], rf"trying sm80_fwd\+mended_{number}\b.* counts as a hang")
            self.assertRegex(result["stdout"], rf"sm80_fwd\+mended_{number}:.*\bnum_stages=2\b")
            self.assertRegex(result["stdout"], rf"sm80_fwd\+mended_{number}:.*: passed the gates, and was not timed: an emulated GPU has no time")
        self.assertIn("passed the gates and none was timed: an emulated GPU has no time", result["note"])
        self.assertNotIn("no candidate passed", result["stdout"])

    def test_the_kernel_that_it_starts_from_is_slow(self):
        with open(os.path.join(SOURCE_DIR, "src", "kernels", "sm80_fwd", "kernel.cuh"), encoding="utf-8") as file:
            shipped = file.read()
        events = [{"event": "start", "families": [{"name": "sm80_fwd", "source": {"sm80_fwd/kernel.cuh": shipped}}]}]
        passed = {"event": "trial", "trial": {"ended": "passed", "p50_us": None}}
        events += [{"event": "propose"}, passed] * 3
        said = subprocess.run([sys.executable, os.path.join(SOURCE_DIR, "examples", "mend_overlap.py")], check=True, timeout=60, text=True,
                              input="".join(json.dumps(event) + "\n" for event in events), stdout=subprocess.PIPE).stdout  # fmt: skip
        answers = [json.loads(line) for line in said.splitlines()]
        texts = [answer["files"]["sm80_fwd/kernel.cuh"] for answer in answers]
        self.assertEqual(texts[-1], shipped, "the last rule ends at the shipped kernel")
        copy_device_sources(self.path("tree"))
        self.environment["FLASHCORE_SOURCE"] = self.path("tree")
        overlapped, compiled = [], []
        for answer, text in zip(answers, texts):
            self.write("tree/src/kernels/sm80_fwd/kernel.cuh", text)
            config = ",".join("%s=%d" % field for field in answer["config"].items())
            self.expect(DONE, "profile", "--device", "emulator", "--problem", "b1_h1_s200_d64_fp16", "--family", "sm80_fwd", "--config", config,
                        "--json", self.path("profile.json"))  # fmt: skip
            with open(self.path("profile.json"), encoding="utf-8") as file:
                (result,) = json.load(file)["results"]
            overlapped += [figure["value"] for figure in result["indicators"] if figure["name"] == "multiplies under copies"]
            compiled.append((result["compiled"] or {}).get("code_hash"))
        self.assertEqual(overlapped[0], 0, "nothing overlaps the copies of the slow kernel")
        self.assertGreaterEqual(overlapped[1], 50, "the first rule overlaps them")
        self.assertGreaterEqual(overlapped[2], overlapped[1])
        if all(compiled):  # by NVRTC, where it is
            self.assertEqual(len(set(compiled)), 3, "a rule that changes no machine code mends nothing")

    def test_a_kernel_that_the_emulator_does_not_run_is_not_judged_on_it(self):
        answer = {"family": "sm80_fwd", "name": "p", "replace": [{"file": "ptx/math.cuh", "from": "ex2.approx.ftz.f32 %0", "to": "sin.approx.ftz.f32 %0"}]}
        script = self.write("wrong.py", 'import sys\nanswers = [%r, \'{"done": true}\']\nfor line, answer in zip(sys.stdin, answers):\n    print(answer, flush=True)\n' % json.dumps(answer))
        said = self.expect(
            NOT_JUDGED, "tune", "--device", "emulator", "--problem", "b1_h1_s64_d64_fp16", "--family", "sm80_fwd", "--strategy", "none",
            "--proposer", f'"{sys.executable}" "{script}"', "--budget", "4", "--store", self.path("trials.db"), "--json", self.path("tune.json"), timeout=280)  # fmt: skip
        with open(self.path("tune.json"), encoding="utf-8") as file:
            result = json.load(file)["results"][0]
        self.assertRegex(said.stdout, r"sm80_fwd\+p:block_m=.*,ctas_per_sm=\d: not judged: the changed code never ran: it changes ptx/math.cuh")
        self.assertEqual((result["funnel"]["proposed"], result["funnel"]["correct"]), (2, 1), "the default passed, and the patch did not")
        self.assertIn("1 of 2 candidates passed", result["note"])

    def escape(self, *flags):
        script = self.write("escapes.py", ESCAPES)
        words = self.expect(
            BAD_USAGE, "tune", "--device", "cpu", "--problem", "b1_h2_s96_d64_fp32", "--family", "cpu_fwd", "--strategy", "none", "--budget", "8",
            "--store", self.path("trials.db"), "--proposer", f'"{sys.executable}" "{script}" "{self.path("written")}" {os.getpid()}', *flags)  # fmt: skip
        return json.loads(re.search(r"outcome (\{.*?\})", words.stderr)[1]), words.stdout

    def test_a_confined_proposer_has_no_network_and_writes_nowhere_else(self):
        self.environment["SECRET_KEY"] = "hunter2"
        free, _ = self.escape()
        self.assertEqual((free["unix"], free["writes"], free["secret"]), ("allowed", "allowed", "hunter2"))
        confined, said = self.escape("--confine-proposer")
        self.assertIn("the proposer is confined: no sockets and so no network", said)
        self.assertIn("the proposer is not kept from: ", said)
        wanted = {"network": "refused", "unix": "refused", "writes": "refused", "kills": "refused", "memory": 8, "secret": "gone",
                  "environ": "refused", "own": "allowed", **{what: "refused" for what in REACHES_OUT}}  # fmt: skip
        for what in REACHES_OUT:
            self.assertEqual(free[what], "allowed", what + ": an attack that nothing would stop")
        if "writing files" in said:  # no Landlock here, and the run said so
            del wanted["writes"], confined["writes"], wanted["environ"], confined["environ"]
        self.assertEqual(confined, wanted)

    def test_a_confined_proposer_leaves_the_terminal(self):
        script = self.write("terminal.py", IN_A_TERMINAL)
        asks = ["/bin/sh", "-c", "if (exec 3</dev/tty); then echo has it; else echo has none; fi"]
        for leads_a_group in ("0", "1"):
            said = subprocess.run([sys.executable, script, leads_a_group, *asks], capture_output=True, text=True, timeout=60).stdout
            self.assertIn("has it", said)
            confine = [BINARY, "confine", self.path("."), "--", *asks]
            said = subprocess.run([sys.executable, script, leads_a_group, *confine], capture_output=True, text=True, timeout=60).stdout
            self.assertIn("has none", said)

    def test_confining_needs_a_proposer(self):
        self.expect_error(BAD_USAGE, ["--confine-proposer", "--proposer"], "tune", "--device", "cpu", "--problem", "b1_h2_s96_d64_fp32", "--confine-proposer")

    def test_a_confined_proposer_proposes(self):
        self.expect(
            DONE, "tune", "--device", "cpu", "--problem", "b1_h2_s128_d64_fp32", "--family", "cpu_fwd", "--strategy", "none", "--proposer", PROPOSER,
            "--confine-proposer", "--budget", "4", "--finalists", "1", "--store", self.path("trials.db"))  # fmt: skip


if __name__ == "__main__":
    unittest.main()
