"""Code that somebody else left lying about is not loaded: from the current directory, from folders that others may write
to, from another user's compile cache."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("FLASHCORE_BUILD_DIR", ROOT / "build"))
BINARY = Path(os.environ.get("FLASHCORE_BINARY", BUILD / "flashcore"))
LIBRARY = Path(os.environ.get("FLASHCORE_LIBRARY", BUILD / "libflashcore.so"))

# Leaves a file behind when it is loaded.
PLANTED = """
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void loaded(void) {
  const char* name = getenv("PLANTED_MARK");
  FILE* mark = name ? fopen(name, "w") : NULL;
  if (mark) fclose(mark);
}
"""
COMPILE = ["compile", "--family", "ref_fwd", "--arch", "sm_80", "--problem", "b1_h1_s16_d16_fp16"]


def may_give_away(path):
    """Whether this user can make `path` another's and take it back: root, where the other user exists at all."""
    try:
        os.chown(path, 65534, 65534)
        os.chown(path, os.geteuid(), os.getegid())
    except OSError:
        return False
    return True


def run_path_entries(file):
    text = subprocess.run(["readelf", "-W", "-d", str(file)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    entries = []
    for line in text.splitlines():
        if "(RUNPATH)" in line or "(RPATH)" in line:
            entries += line.split("[", 1)[1].rsplit("]", 1)[0].split(":")
    return entries


def elf_files(folder):
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.suffix not in (".o", ".a", ".kernel", ".gch", ".cpp"):
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


class LoadingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = Path(cls.folder.name)
        (cls.root / "planted.c").write_text(PLANTED)
        cls.planted = cls.root / "planted.so"
        subprocess.run(["c++", "-x", "c", "-shared", "-fPIC", str(cls.root / "planted.c"), "-o", str(cls.planted)], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def setUp(self):
        self.here = Path(tempfile.mkdtemp(dir=self.root))
        self.mark = self.here / "mark"
        keep = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "LC_ALL", "ASAN_OPTIONS")}
        self.environment = {**keep, "HOME": str(self.here), "FLASHCORE_CACHE": str(self.here / "cache"), "PLANTED_MARK": str(self.mark)}

    def run_here(self, *command, cwd=None, **variables):
        return subprocess.run([str(word) for word in command], cwd=cwd or self.here, env={**self.environment, **variables}, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=120)  # fmt: skip

    def plant(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.planted, path)
        path.chmod(0o755)
        return path

    def own_copy(self):
        """The program with what it needs, at here/app/flashcore: its search for NVRTC begins above it."""
        app = self.here / "app"
        app.mkdir()
        shutil.copy(BINARY, app)
        for highway in BINARY.resolve().parent.glob("libhwy.so*"):
            shutil.copy(highway, app)
        return app / "flashcore"

    # --- the current directory

    def test_no_built_or_installed_file_has_an_empty_or_relative_run_path(self):
        prefix = self.here / "prefix"
        done = self.run_here("cmake", "--install", BUILD, "--prefix", prefix)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        files = [*elf_files(BUILD), *elf_files(prefix)]
        names = {path.name for path in files}
        for name in ("flashcore", LIBRARY.resolve().name):
            self.assertIn(name, names)
        bad = {str(path): run_path_entries(path) for path in files
               if not all(entry.startswith(("/", "$ORIGIN")) for entry in run_path_entries(path))}  # fmt: skip
        self.assertEqual(bad, {})

    def test_highway_of_the_current_directory_is_not_loaded(self):
        self.plant(self.here / "libhwy.so.1")
        done = self.run_here(BINARY, "--version")
        self.assertEqual(done.returncode, 0, done.stderr)
        load = f"import ctypes; ctypes.CDLL({str(LIBRARY)!r})"
        done = self.run_here(sys.executable, "-c", load)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse(self.mark.exists())
        # What was planted does work where it is asked for.
        self.run_here(sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(self.here / 'libhwy.so.1')!r})")
        self.assertTrue(self.mark.exists())

    def test_python_takes_no_nvrtc_from_the_current_directory(self):
        for wheel in ("nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"):
            self.plant(self.here / wheel)
        code = "import os, flashcore._library as l; l.library(); print(os.environ.get('FLASHCORE_NVRTC'))"
        for chosen in ("", "."):  # an empty entry of PYTHONPATH is the current directory, as is that of `python -c`
            done = self.run_here(sys.executable, "-c", code, PYTHONPATH=f"{ROOT / 'python'}:{chosen}", FLASHCORE_LIBRARY=str(LIBRARY))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn(str(self.here), done.stdout)
        self.assertFalse(self.mark.exists())

    def test_python_takes_no_nvrtc_that_others_could_have_written(self):
        packages = self.here / "packages"
        library = self.plant(packages / "nvidia/cu13/lib/libnvrtc.so.13")
        code = "import os, flashcore._library as l; l.library(); print(os.environ.get('FLASHCORE_NVRTC'))"
        variables = {"PYTHONPATH": f"{ROOT / 'python'}:{packages}", "FLASHCORE_LIBRARY": str(LIBRARY)}
        self.assertIn(str(library), self.run_here(sys.executable, "-c", code, **variables).stdout)
        packages.chmod(0o777)
        self.assertNotIn(str(library), self.run_here(sys.executable, "-c", code, **variables).stdout)

    # --- NVRTC above the program

    def test_nvrtc_above_the_program_is_taken_only_from_folders_that_are_ours(self):
        program = self.own_copy()
        site = self.here / ".venv" / "lib" / "python3.11" / "site-packages"
        library = self.plant(site / "nvidia/cu13/lib/libnvrtc.so.13")
        self.run_here(program, *COMPILE)
        self.assertTrue(self.mark.exists(), "where it is ours it is looked at: else this test could not fail")
        spoilt = [(site, lambda: site.chmod(0o777), lambda: site.chmod(0o755)),
                  (library, lambda: library.chmod(0o666), lambda: library.chmod(0o755))]  # fmt: skip
        if may_give_away(library):
            spoilt += [(path, lambda path=path: os.chown(path, 65534, 65534), lambda path=path: os.chown(path, 0, 0)) for path in (self.here / ".venv", library)]
        for path, spoil, mend in spoilt:
            self.mark.unlink(missing_ok=True)
            spoil()
            self.run_here(program, *COMPILE)
            mend()
            self.assertFalse(self.mark.exists(), path)

    def test_doctor_says_what_was_passed_over_and_why(self):
        program = self.own_copy()
        library = self.plant(self.here / ".venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13")
        (self.here / ".venv").chmod(0o777)
        report = self.here / "doctor.json"
        self.run_here(program, "doctor", "--device", "cpu", "--json", report)
        self.assertFalse(self.mark.exists())
        (found,) = [item for item in json.loads(report.read_text())["findings"] if item["item"] == "NVRTC not taken"]
        self.assertIn(str(library), found["detail"])
        self.assertIn("everybody may write to", found["detail"])
        self.assertIn("FLASHCORE_NVRTC", found["fix"])
        # The user's word goes before what flashcore thinks.
        self.run_here(program, *COMPILE, FLASHCORE_NVRTC=str(library))
        self.assertTrue(self.mark.exists())

    # --- the compile cache

    def entries(self):
        return sorted((self.here / "cache").rglob("*.kernel"))

    def compile_once(self, program=BINARY, **variables):
        found = os.environ.get("FLASHCORE_NVRTC", "")
        if found:
            variables["FLASHCORE_NVRTC"] = found
        done = self.run_here(program, *COMPILE, "--json", self.here / "out.json", **variables)
        if done.returncode == 4 and "NVRTC, NVIDIA's run-time compiler, is not here" in done.stderr:
            self.skipTest("no NVRTC on this machine")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stderr

    def test_a_cache_that_others_may_write_to_is_not_used_and_a_note_says_so(self):
        cache = self.here / "cache"
        self.assertEqual(self.compile_once(), "")
        self.assertEqual(len(self.entries()), 1)
        for path in (cache, *cache.rglob("*")):
            self.assertEqual(stat.S_IMODE(path.stat().st_mode) & 0o077, 0, path)
        shutil.rmtree(cache)
        cache.mkdir()
        cache.chmod(0o777)
        note = self.compile_once()
        self.assertEqual(note.count("flashcore: note:"), 1, note)
        self.assertIn("everybody may write to", note)
        self.assertIn("FLASHCORE_CACHE", note)
        self.assertEqual(self.entries(), [])

    def test_another_users_cache_is_not_used(self):
        if not may_give_away(self.here):
            self.skipTest("only root can give a folder away, and to a user it has")
        cache = self.here / "cache"
        self.compile_once()
        (entry,) = self.entries()
        entry.unlink()
        os.chown(cache, 65534, 65534)
        self.assertIn("belongs to user 65534", self.compile_once())
        self.assertEqual(self.entries(), [])
        # Nor does it help to leave a file with the program's name where the user is.
        (self.here / BINARY.name).touch()
        os.chown(self.here / BINARY.name, 65534, 65534)
        self.assertIn("belongs to user 65534", self.compile_once(BINARY.name, PATH=f"{BINARY.resolve().parent}:{os.environ['PATH']}"))
        self.assertEqual(self.entries(), [])
        os.chown(cache, 0, 0)
        self.compile_once()
        self.assertEqual([path.name for path in self.entries()], [entry.name])

    def test_a_link_in_the_cache_is_replaced_and_not_written_through(self):
        self.compile_once()
        (entry,) = self.entries()
        precious = self.here / "precious"
        precious.write_text("mine")
        entry.unlink()
        entry.symlink_to(precious)
        self.compile_once()
        self.assertEqual(precious.read_text(), "mine")
        self.assertFalse(entry.is_symlink())
        self.assertGreater(entry.stat().st_size, 100)


if __name__ == "__main__":
    unittest.main()
