"""The public headers in older languages: flashcore.h compiles from C99 and C++11 on, flashcore.hpp says once what it needs."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
COMPILERS = [path for path in map(shutil.which, ("c++", "g++", "clang++")) if path]


def compile_only(compiler, language, source):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / ("x.c" if language.startswith("c9") or language == "c11" else "x.cpp")
        file.write_text(source)
        done = subprocess.run([compiler, f"-std={language}", "-Wall", "-Wextra", "-pedantic", f"-I{ROOT}/include", "-fsyntax-only", str(file)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)  # fmt: skip
        return done.returncode, [line for line in done.stdout.splitlines() if "error" in line and "1 error" not in line]


class HeadersTest(unittest.TestCase):
    def setUp(self):
        self.assertTrue(COMPILERS, "there is no C++ compiler here")

    def test_the_cpp_header_says_that_it_needs_cpp20(self):
        for compiler in COMPILERS:
            for language in ("c++11", "c++14", "c++17"):
                with self.subTest(compiler=compiler, language=language):
                    code, errors = compile_only(compiler, language, "#include <flashcore/flashcore.hpp>\n")
                    self.assertNotEqual(code, 0)
                    self.assertIn("flashcore.hpp needs C++20: compile with -std=c++20", errors[0])
                    # The compiler may print the line of the header below its message; nothing else is an error.
                    self.assertTrue(all("flashcore.hpp needs C++20" in line for line in errors), errors)

    def test_the_cpp_header_compiles_as_cpp20(self):
        for compiler in COMPILERS:
            with self.subTest(compiler):
                self.assertEqual(compile_only(compiler, "c++20", "#include <flashcore/flashcore.hpp>\n")[1], [])

    def test_the_c_header_compiles_everywhere(self):
        source = "#include <flashcore/flashcore.h>\nfc_attention problem = FC_ATTENTION_INIT;\n"
        for compiler in COMPILERS:
            for language in ("c++11", "c++17"):
                self.assertEqual(compile_only(compiler, language, source), (0, []), (compiler, language))
        for compiler in filter(None, map(shutil.which, ("cc", "gcc", "clang"))):
            for language in ("c99", "c11"):
                self.assertEqual(compile_only(compiler, language, source), (0, []), (compiler, language))


if __name__ == "__main__":
    unittest.main()
