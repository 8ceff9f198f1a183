"""An installed flashcore as a project outside of this one finds it: find_package in CMake, pkg-config from a shell."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("FLASHCORE_BUILD_DIR", ROOT / "build"))

PROJECT = """
cmake_minimum_required(VERSION 3.16)
project(outside LANGUAGES C CXX)
find_package(flashcore 0.1 REQUIRED)
set(CMAKE_CXX_STANDARD 20)
add_executable(from_cpp attention.cpp)
target_link_libraries(from_cpp PRIVATE flashcore::flashcore)
foreach(name attention paged_decode fp8_attention masked_attention)
  add_executable(from_c_${name} ${name}.c)
  target_link_libraries(from_c_${name} PRIVATE flashcore::flashcore m)
endforeach()
"""


class InstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = Path(cls.folder.name)
        cls.prefix = cls.root / "prefix"
        cls.run_ok("cmake", "--install", BUILD, "--prefix", cls.prefix)
        cls.project = cls.root / "project"
        cls.project.mkdir()
        for name in ("attention.c", "paged_decode.c", "fp8_attention.c", "masked_attention.c", "attention.cpp"):
            shutil.copy(ROOT / "examples" / name, cls.project)
        (cls.project / "CMakeLists.txt").write_text(PROJECT)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def run_ok(cls, *command, **options):
        done = subprocess.run([str(word) for word in command], cwd=cls.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
        if done.returncode != 0:
            raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def test_find_package(self):
        build = self.root / "outside"
        self.run_ok("cmake", "-S", self.project, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        self.run_ok("cmake", "--build", build)
        self.assertIn("o[0] = 3", self.run_ok(build / "from_cpp"))
        for name in ("from_c_attention", "from_c_paged_decode", "from_c_masked_attention"):
            self.assertIn("largest difference", self.run_ok(build / name, "cpu"))
        self.assertIn("error to the formula", self.run_ok(build / "from_c_fp8_attention", "cpu"))

    def test_pkg_config(self):
        (config,) = self.prefix.rglob("flashcore.pc")
        environment = {**os.environ, "PKG_CONFIG_PATH": str(config.parent)}
        flags = self.run_ok("pkg-config", "--cflags", "--libs", "flashcore", env=environment).split()
        program = self.root / "from_pkg_config"
        self.run_ok("cc", "-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror", self.project / "attention.c", *flags, "-lm", "-o", program)
        # Though the prefix is none of the system's, it runs without LD_LIBRARY_PATH, from anywhere.
        bare = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
        done = subprocess.run([str(program), "cpu"], cwd="/", env=bare, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertIn("largest difference", done.stdout)
        paths = [line for line in self.run_ok("readelf", "-d", program).splitlines() if "RUNPATH" in line or "RPATH" in line]
        self.assertEqual(len(paths), 1, paths)
        self.assertTrue(all(entry.startswith("/") for entry in paths[0].split("[")[1].rstrip("]").split(":")), paths)

    def test_the_licence_comes_along(self):
        (licence,) = self.prefix.rglob("LICENSE")
        self.assertEqual(licence.read_bytes(), (ROOT / "LICENSE").read_bytes())
        self.assertEqual(licence.parent.name, "flashcore")

    def test_a_moved_prefix_still_works(self):
        moved = self.root / "moved"
        shutil.copytree(self.prefix, moved, symlinks=True)
        self.assertIn("flashcore 0.", self.run_ok(moved / "bin" / "flashcore", "--version"))

    def test_only_the_api_is_visible(self):
        (library,) = [path for path in self.prefix.rglob("libflashcore.so") if path.exists()]
        names = [line.split()[-1] for line in self.run_ok("nm", "-D", "--defined-only", library).splitlines()]
        self.assertGreater(len(names), 10)
        self.assertEqual([name for name in names if not name.startswith("fc_")], [])


if __name__ == "__main__":
    unittest.main()
