#!/usr/bin/env python3
"""Kernels of somebody else's, through the program as a user runs it.

Attacks past the check of sources are C++ tests: device.ForeignModuleTest.* and lab.ForeignKernel.*.
"""

import os
import subprocess
import tempfile
import textwrap
import time
import unittest
from pathlib import Path

BINARY = os.environ["FLASHCORE_BINARY"]
SOURCE = Path(os.environ["FLASHCORE_SOURCE_DIR"])
DONE, FAILED, NOT_JUDGED, BAD_USAGE, NO_ENVIRONMENT = range(5)
SECRET = "correct horse battery staple"

EXPERIMENT = textwrap.dedent("""\
    name: hostile
    hypothesis: it is faster
    mechanism: it does nothing
    refuted_by: any other verdict
    control: {name: plain, candidate: ref_fwd}
    candidates:
      - {name: patched, candidate: ref_fwd, patch: %s, predicted: [1.1, 1.2]}
    problems: [b1_h1_s40_d16_fp16]
    acceptance: {margin: 0.03, processes: 1, seconds: 0.2, confirmed_when: every}
    """)


class SandboxTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.home = self.folder / "home"
        self.home.mkdir()
        (self.home / "secret").write_text(SECRET)
        self.place = self.folder / "experiment"
        self.place.mkdir()

    def kernel(self):
        return (SOURCE / "src/kernels/ref_fwd/kernel.cuh").read_text()

    def patch(self, text, name="patch"):
        (self.place / name).mkdir(exist_ok=True)
        (self.place / name / "kernel.cuh").write_text(text)

    def check(self, *options, patch="patch", **variables):
        (self.place / "hostile.yaml").write_text(EXPERIMENT % patch)
        environment = dict(os.environ, HOME=str(self.home), FLASHCORE_CACHE=str(self.folder / "cache"), **variables)
        done = subprocess.run(
            [BINARY, "experiment", "check", str(self.place / "hostile.yaml"), "--device", "emulator", *options],
            capture_output=True, text=True, timeout=300, env=environment, cwd=self.folder)  # fmt: skip
        done.output = done.stdout + done.stderr
        self.assertNotIn(SECRET, done.output)
        return done

    def require_sandbox(self):
        self.patch(self.kernel() + "\n// changed\n")
        done = self.check()
        if done.returncode == NO_ENVIRONMENT and "lets no sandbox be made" in done.output:
            self.skipTest("this machine lets no sandbox be made: " + done.output.strip())

    def test_an_honest_patch_is_judged_in_the_sandbox(self):
        self.require_sandbox()
        done = self.check()
        self.assertEqual(done.returncode, DONE, done.output)

    def test_landlock_alone_will_do(self):
        self.patch(self.kernel() + "\n// changed\n")
        done = self.check(FLASHCORE_SANDBOX="landlock")
        if done.returncode == NO_ENVIRONMENT:
            self.assertIn("lets no sandbox be made", done.output)
            self.skipTest("no Landlock here")
        self.assertEqual(done.returncode, DONE, done.output)

    def test_without_a_sandbox_it_is_refused_unless_trusted(self):
        self.patch(self.kernel() + "\n// changed\n")
        unknown = self.check(FLASHCORE_SANDBOX="None")
        self.assertEqual(unknown.returncode, BAD_USAGE, unknown.output)
        self.assertIn("FLASHCORE_SANDBOX is 'None'", unknown.output)
        refused = self.check(FLASHCORE_SANDBOX="none")
        self.assertEqual(refused.returncode, NO_ENVIRONMENT, refused.output)
        self.assertIn("--trust-code", refused.output)
        trusted = self.check("--trust-code", FLASHCORE_SANDBOX="none")
        self.assertEqual(trusted.returncode, DONE, trusted.output)

    def test_an_empty_kernel_does_not_pass(self):
        self.require_sandbox()
        body = self.kernel()
        start = body.index("{", body.index("forward(const __grid_constant__"))
        self.patch(body[: start + 1] + " if (params.q) return; " + body[start + 1 :])
        done = self.check()
        self.assertEqual(done.returncode, FAILED, done.output)
        self.assertIn("never written", done.output)

    def test_sources_that_reach_for_the_host_are_refused_before_a_compiler_sees_them(self):
        owned = self.folder / "owned"
        secret = self.home / "secret"
        attacks = {
            "a constructor": 'extern "C" int system(const char*);\nstruct S { S() { system("touch %s"); } } s;' % owned,
            "an attribute": "__attribute__((constructor)) static void go() {}",
            "an include": '#include "%s"' % secret,
            "a relative include": '#include "../../../../../../../../%s"' % secret,
            "a digraph": '%%:include "%s"' % secret,
            "a joined line": '#inc\\\nlude "%s"' % secret,
            "a variable": "int started = [] { return 1; }();",
            "a system header": "#include <cstdlib>",
        }
        for name, attack in attacks.items():
            with self.subTest(name):
                self.patch(attack + "\n" + self.kernel())
                done = self.check()
                self.assertEqual(done.returncode, BAD_USAGE, done.output)
                self.assertIn("ref_fwd/kernel.cuh:", done.output)
                self.assertFalse(owned.exists())

    def test_assembly_reaches_no_host_compiler(self):
        self.require_sandbox()
        self.patch('asm(".section .rodata; .incbin \\"%s\\"; .text");\n' % (self.home / "secret") + self.kernel())
        done = self.check()
        self.assertNotEqual(done.returncode, DONE, done.output)

    def test_an_endless_kernel_ends_with_whoever_asked_for_it(self):
        self.require_sandbox()
        body = self.kernel()
        start = body.index("{", body.index("forward(const __grid_constant__"))
        self.patch(body[: start + 1] + " for (;;) { if (params.q == nullptr) break; } " + body[start + 1 :])
        process = subprocess.Popen(
            [BINARY, "experiment", "check", str(self.place / "hostile.yaml"), "--device", "emulator"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder,
            env=dict(os.environ, HOME=str(self.home), FLASHCORE_CACHE=str(self.folder / "cache")))  # fmt: skip
        try:
            executor = self.wait_for(lambda: self.executors_below(process.pid), "the executor never started")[0]
        finally:
            process.kill()
            process.wait()
        self.wait_for(lambda: not self.alive(executor), "the executor outlived its judge")

    def wait_for(self, condition, message, seconds=120):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = condition()
            if found:
                return found
            time.sleep(0.05)
        self.fail(message)

    @staticmethod
    def alive(pid):
        try:
            return ") Z " not in Path("/proc/%d/stat" % pid).read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False

    @staticmethod
    def executors_below(ancestor):
        """Processes that run a kernel and descend from `ancestor`."""
        parents, executors = {}, []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parents[int(folder.name)] = int(folder.joinpath("stat").read_text().rpartition(")")[2].split()[1])
                if b"execute-kernel" in folder.joinpath("cmdline").read_bytes():
                    executors.append(int(folder.name))
            except (OSError, ValueError):
                continue
        below = []
        for pid in executors:
            at = pid
            while at in parents and at != ancestor:
                at = parents[at]
            if at == ancestor:
                below.append(pid)
        return below

    def test_patch_folders_stay_inside_the_experiments(self):
        outside = self.folder / "outside"
        outside.mkdir()
        (outside / "kernel.cuh").write_text(self.kernel())
        (self.place / "link").symlink_to(outside)
        for patch in ("../outside", str(outside), ".", "link", "patch/../../outside"):
            with self.subTest(patch):
                done = self.check(patch=patch)
                self.assertEqual(done.returncode, BAD_USAGE, done.output)
                self.assertIn("inside", done.output)

    def test_links_in_a_patch_folder_are_refused(self):
        for name in ("kernel.cuh", "patch.yaml", "notes.md"):
            with self.subTest(name):
                folder = self.place / ("with_" + name.replace(".", "_"))
                folder.mkdir()
                (folder / "config.h").write_text("#pragma once\n")
                (folder / name).symlink_to(self.home / "secret")
                done = self.check(patch=folder.name)
                self.assertEqual(done.returncode, BAD_USAGE, done.output)
                self.assertIn("link", done.output)

    def test_a_fifo_in_a_patch_folder_is_refused(self):
        self.patch(self.kernel())
        os.mkfifo(self.place / "patch" / "pipe.cuh")
        done = self.check()
        self.assertEqual(done.returncode, BAD_USAGE, done.output)


if __name__ == "__main__":
    unittest.main()
