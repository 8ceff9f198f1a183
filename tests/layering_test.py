#!/usr/bin/env python3
"""Reads the include lines and the device code of src/, and fails on what the design forbids.

    core <- device <- kernels <- lab <- cli        a layer includes only itself and what is left of it
                             <- api                beside lab and cli: neither includes the other
    src/device/cuda                                alone names CUDA headers
    device code (kernels/**/*.cuh, config.h, tile/) includes device code only, no standard header; and core/band.h,
                                                   the mask, which host and device read under the same rules
    kernels/ptx                                    alone has asm, intrinsics and built-in variables
    src/lab                                        is rooms; a room includes only itself and what is left of it
    no circles                                     neither between headers nor between units (a header with its .cpp)
    core/yaml_reader                               alone names yaml-cpp
    prose of core, device, kernels and api         advises no flag of the command line: its reader may have none

The second half plants one violation of each kind in a small tree and asks that it is found.
"""

import os
import re
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parent.parent))
LAYERS = ["core", "device", "kernels", "lab", "cli"]
API_SEES = ["core", "device", "kernels", "api"]  # and its own public header
PUBLIC_HEADER = "flashcore/flashcore.h"
BAND = ["core", "band.h"]
VARIANTS = ["lab", "invert", "device"]  # what takes the place of ptx/ in variants of kernels; device code by every rule
YAML_READER = (["core", "yaml_reader.h"], ["core", "yaml_reader.cpp"])
SUFFIXES = {".h", ".cpp", ".cuh"}
ROOMS = ["record", "statistics", "harness", "measure", "gates", "process", "compare", "invert", "experiment", "tune", "verify", "diagnose", "economics", "campaign", "report"]
# Within these no two units may need each other: one can be read, tested and changed after the other.
UNITS_WITHOUT_CIRCLES = ("core/", "kernels/", "lab/")

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
# Highway's own idiom wants quotes (foreach_target.h includes the file again).
QUOTED_LIBRARIES = ("hwy/",)
CUDA_HEADER = re.compile(
    r"^(cuda|cute|cutlass|cub|thrust|cooperative_groups|mma|crt)(/|\.h)|^(cuda|cu[A-Z]|nv|cublas|cudnn|cupti|nccl|vector_types)\w*(\.h|$)"
)
# What the compiler needs to see on a kernel or a declaration. Every other __name is an intrinsic.
DEVICE_KEYWORDS = {
    "__global__", "__device__", "__host__", "__shared__", "__constant__", "__launch_bounds__", "__grid_constant__",
    "__forceinline__", "__noinline__", "__restrict__", "__align__", "__cluster_dims__", "__maxnreg__",
    "__CUDACC__", "__CUDACC_RTC__", "__CUDA_ARCH__", "__cplusplus", "__FILE__", "__LINE__",
}  # fmt: skip
DUNDER = re.compile(r"\b__\w+")
BUILT_IN = re.compile(
    r"\b(asm|threadIdx|blockIdx|blockDim|gridDim|warpSize|atomic[A-Z]\w*|cuda[A-Z]\w*|half2?|nv_bfloat162?|"
    r"memcpy_async|clock64|clock|(?<!ptx::)globaltimer)\b"
)
PRINTF = re.compile(r"\bprintf\b")


def code_only(text):
    """Comments and string literals become blanks; line numbers stay."""

    def blank(match):
        return re.sub(r"[^\n]", " ", match.group(0))

    pattern = r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\''
    return re.sub(pattern, blank, text, flags=re.DOTALL)


def is_device_code(parts):
    """parts: path below src/, split. ptx/, tile/, and each family's .cuh, config.h and params.h."""
    if parts[0] != "kernels" or len(parts) < 3:
        return parts[-1].endswith(".cuh")
    return parts[1] in ("ptx", "tile") or parts[-1].endswith(".cuh") or parts[-1] in ("config.h", "params.h")


def includes_of(text):
    # A line within a comment is no include; the quotes of a real one must survive, so only comments are blanked.
    text = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group(0)), text, flags=re.DOTALL)
    for number, line in enumerate(text.splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match.group(1) == '"', match.group(2)


def device_include_problem(parts, quoted, name):
    if not quoted:
        return f"device code includes <{name}>; it may include device code only"
    target = name.split("/")
    if target == BAND and parts[1] != "ptx":
        return None
    if target[0] != "kernels" or len(target) < 3 or not is_device_code(target):
        return f'device code includes "{name}", which is not device code'
    allowed = {"ptx": ["ptx"], "tile": ["ptx", "tile"]}.get(parts[1], ["ptx", "tile", parts[1]])
    if target[1] not in allowed:
        return f'{parts[1]}/ includes "{name}"; it may include only {", ".join(allowed)}'
    if parts[-1].endswith(".h") and target[-1].endswith(".cuh"):
        return f'"{name}" is for NVRTC alone, and the host compiler reads this file too'
    return None


def host_include_problem(parts, quoted, name):
    if quoted and name.endswith(".cuh"):
        return f'host code includes device code "{name}"'
    if parts[0] == "api" and name == PUBLIC_HEADER:
        return None
    if quoted and not name.startswith(QUOTED_LIBRARIES):
        layer = name.split("/")[0]
        if parts[0] == "api":
            return None if layer in API_SEES else f'api includes "{name}"; it sees {", ".join(API_SEES)} only'
        if layer not in LAYERS:
            return f'"{name}" does not start with a layer ({", ".join(LAYERS)}); write the path below src/'
        if LAYERS.index(layer) > LAYERS.index(parts[0]):
            return f'{parts[0]} includes "{name}" of {layer}, which is to its right'
        if parts[0] == "lab" and layer == "lab" and (problem := room_problem(parts, name)):
            return problem
    if name.startswith("yaml-cpp/") and parts not in YAML_READER:
        return f"<{name}>: core/yaml_reader.h is the one reader of YAML; its complaints name file and line"
    if not quoted and CUDA_HEADER.match(name) and parts[:2] != ["device", "cuda"]:
        return f"<{name}> is a CUDA header; only src/device/cuda names those"
    return None


def room_problem(parts, name):
    room, target = parts[1], name.split("/")[1]
    if room in ROOMS and target in ROOMS and ROOMS.index(target) > ROOMS.index(room):
        return f'lab/{room} includes "{name}" of {target}, which is to its right'
    return None


def circle(edges):
    """One circle of a graph {node: [nodes]} as a list that ends where it begins, or None."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return path[path.index(node) :] + [node]
        if node in done:
            return None
        path.append(node)
        for target in sorted(edges.get(node, ())):
            if found := visit(target):
                return found
        path.pop()
        done.add(node)
        return None

    for node in sorted(edges):
        if found := visit(node):
            return found
    return None


def circles(includes):
    """includes: {file: files of src/ that it includes}. Between headers of any layer; between units of some."""
    headers = {file: [t for t in targets if not t.endswith(".cpp")] for file, targets in includes.items() if not file.endswith(".cpp")}
    if found := circle(headers):
        yield found
    units = {}
    for file, targets in includes.items():
        unit = file.rpartition(".")[0]
        if unit.startswith(UNITS_WITHOUT_CIRCLES):
            others = (target.rpartition(".")[0] for target in targets)
            units.setdefault(unit, set()).update(other for other in others if other != unit)
    if found := circle(units):
        yield found


def emulator_include_problem(quoted, name):
    """src/device/emulator/ptx: counterparts of kernels/ptx, read by a host compiler at run time in its place."""
    if quoted and (name == "device/emulator/services.h" or name.startswith("kernels/ptx/")):
        return None
    return f'the emulator\'s ptx/ includes "{name}"; it may include services.h and kernels/ptx/ only'


def device_code_problems(parts, text):
    for number, line in enumerate(code_only(text).splitlines(), 1):
        if PRINTF.search(line):
            yield number, "printf in device code"
        if parts[1] == "ptx":
            continue
        names = [name for name in DUNDER.findall(line) if name not in DEVICE_KEYWORDS]
        names += BUILT_IN.findall(line)
        for name in names:
            yield number, f"{name} outside kernels/ptx; add a wrapper there"


# Options of compilers are words of their own; a text for people has blanks.
LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"(?:\s*"(?:\\.|[^"\\\n])*")*')
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def flag_problems(text):
    text = re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group(0)), text, flags=re.DOTALL)
    for literal in LITERAL.finditer(text):
        prose = re.sub(r'"\s*"', "", literal.group(0))
        for flag in FLAG.findall(prose) if " " in prose else []:
            yield text.count("\n", 0, literal.start()) + 1, f"a message of the library advises {flag}; say it in words of the API, and let the command line add its flag"


def violations(root):
    """All violations below root/src, as 'path:line: what'."""
    found, includes = [], {}
    source = Path(root) / "src"
    for path in sorted(source.rglob("*")):
        if path.suffix not in SUFFIXES:
            continue
        parts = list(path.relative_to(source).parts)
        text = path.read_text(encoding="utf-8")
        where = "/".join(["src"] + parts)
        if parts[0] not in LAYERS and parts[0] != "api":
            found.append(f"{where}:1: src/{parts[0]} is no layer; the layers are {', '.join(LAYERS)}")
            continue
        if parts[:3] == ["device", "emulator", "ptx"]:
            problems = [(number, emulator_include_problem(quoted, name)) for number, quoted, name in includes_of(text)]
            found += [f"{where}:{number}: {problem}" for number, problem in problems if problem]
            continue
        if parts == BAND:
            found += [f"{where}:{number}: band.h is compiled for the device too; it includes nothing" for number, _, _ in includes_of(text)]
            found += [f"{where}:{number}: {problem}" for number, problem in device_code_problems(parts, text)]
            continue
        device = is_device_code(parts)
        if device and parts[0] != "kernels" and parts[:3] != VARIANTS:
            found.append(f"{where}:1: device code belongs in src/kernels")
            continue
        if parts[0] == "lab" and (len(parts) < 3 or parts[1] not in ROOMS):
            found.append(f"{where}:1: lies in no room of src/lab; the rooms are {', '.join(ROOMS)}")
            continue
        allowed = includes["/".join(parts)] = []
        for number, quoted, name in includes_of(text):
            problem = (device_include_problem if device else host_include_problem)(parts, quoted, name)
            external = name.startswith(QUOTED_LIBRARIES) or name == PUBLIC_HEADER
            if problem is None and quoted and not external and not (source / name).is_file():
                problem = f'"{name}" does not exist below src/'
            if problem:
                found.append(f"{where}:{number}: {problem}")
            elif quoted and not external:
                allowed.append(name)
        if parts[0] in API_SEES:
            found += [f"{where}:{number}: {problem}" for number, problem in flag_problems(text)]
        if device:
            found += [f"{where}:{number}: {problem}" for number, problem in device_code_problems(parts, text)]
    for names in circles(includes):
        found.append(f"src/{names[0]}: a circle of includes: {' -> '.join(names)}")
    return found


class TreeTest(unittest.TestCase):
    def test_the_tree_is_layered(self):
        self.assertEqual(violations(SOURCE), [])

    def test_there_is_something_to_check(self):
        files = [path.relative_to(SOURCE / "src").parts for path in (SOURCE / "src").rglob("*") if path.suffix in SUFFIXES]
        self.assertGreater(sum(is_device_code(parts) for parts in files), 5)
        for layer in LAYERS:
            self.assertGreater(sum(parts[0] == layer for parts in files), 3, layer)
        for room in ROOMS:
            self.assertGreater(sum(parts[:2] == ("lab", room) for parts in files), 1, room)


class PlantedTest(unittest.TestCase):
    """A clean little tree, and what happens when one line is added to one of its files."""

    CLEAN = {
        "core/a.h": "#include <vector>\n",
        "core/band.h": "#pragma once\n",
        "kernels/tile/mask.cuh": '#include "core/band.h"\n',
        "kernels/sm90_fwd/config.h": '#include "core/band.h"\n',
        "core/a.cpp": '#include "core/a.h"\n// "lab/gates/l.h" and asm in a comment\n',
        "device/d.h": '#include "core/a.h"\n',
        "device/cuda/c.cpp": '#include <cuda.h>\n#include <nvrtc.h>\n#include "device/d.h"\nauto s = "asm";\n',
        "kernels/family.h": '#include "device/d.h"\n',
        "kernels/ptx/mma.cuh": "__device__ void f() { asm volatile(\"mma\"); __shfl_sync(0, 0, threadIdx.x); }\n",
        "kernels/tile/traits.h": "#pragma once\n",
        "kernels/tile/softmax.cuh": '#include "kernels/ptx/mma.cuh"\n#include "kernels/tile/traits.h"\n// __ldg, asm\n',
        "kernels/sm80_fwd/config.h": '#include "kernels/tile/traits.h"\n',
        "kernels/sm80_fwd/params.h": '#include "kernels/tile/traits.h"\n',
        "kernels/sm80_fwd/kernel.cuh": '#include "kernels/sm80_fwd/config.h"\n#include "kernels/sm80_fwd/params.h"\n#include "kernels/tile/softmax.cuh"\n'
        "__global__ void __launch_bounds__(128) k(const __grid_constant__ int p) {}\n",
        "kernels/sm80_fwd/family.cpp": '#include "kernels/family.h"\n#include "kernels/sm80_fwd/config.h"\n#include "hwy/foreach_target.h"\n',
        "kernels/ref_fwd/kernel.cuh": '#include "kernels/ptx/mma.cuh"\n',
        "lab/gates/l.h": '#include "kernels/family.h"\n#include <nlohmann/json.hpp>\n',
        "cli/main.cpp": '#include "lab/gates/l.h"\n#include "core/a.h"\n',
        "api/p.h": '#include "flashcore/flashcore.h"\n#include "kernels/family.h"\n',
    }  # fmt: skip

    def found(self, path=None, line="", more=()):
        with tempfile.TemporaryDirectory() as root:
            files = {**self.CLEAN, **dict(more)}
            if path is not None:
                files[path] = files.get(path, "") + line + "\n"
            for name, text in files.items():
                file = Path(root) / "src" / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            return violations(root)

    def assert_found(self, path, line, words):
        found = self.found(path, line)
        self.assertEqual(len(found), 1, f"{path}: {line}: {found}")
        self.assertTrue(found[0].startswith(f"src/{path}:"), found[0])
        self.assertIn(words, found[0])

    def test_the_clean_tree_is_clean(self):
        self.assertEqual(self.found(), [])

    def test_arrows_to_the_right(self):
        self.assert_found("core/a.h", '#include "device/d.h"', "to its right")
        self.assert_found("core/a.cpp", '  #  include "lab/gates/l.h"', "to its right")
        self.assert_found("device/cuda/c.cpp", '#include "kernels/family.h"', "to its right")
        self.assert_found("kernels/family.h", '#include "lab/gates/l.h"', "to its right")
        self.assert_found("lab/gates/l.h", '#include "cli/main.cpp"', "to its right")

    def test_the_api_stands_beside_the_laboratory(self):
        self.assert_found("api/p.h", '#include "lab/gates/l.h"', "it sees core, device, kernels, api only")
        self.assert_found("lab/gates/l.h", '#include "api/p.h"', "does not start with a layer")
        self.assert_found("kernels/family.h", '#include "flashcore/flashcore.h"', "does not start with a layer")

    def test_rooms_of_the_laboratory(self):
        self.assert_found("lab/record/r.h", '#include "lab/gates/l.h"', "which is to its right")
        self.assert_found("lab/measure/m.cpp", '#include "lab/gates/l.h"', "which is to its right")
        self.assertEqual(self.found("lab/gates/g.cpp", '#include "lab/gates/l.h"'), [])
        self.assertEqual(self.found("lab/report/p.cpp", '#include "lab/gates/l.h"'), [])
        self.assert_found("lab/flat.h", "", "lies in no room")
        self.assert_found("lab/cellar/c.h", "", "lies in no room")

    def test_circles(self):
        self.assert_circle({"lab/gates/a.h": "lab/gates/b.h", "lab/gates/b.h": "lab/gates/a.h"}, "lab/gates/a")
        # Through sources: a.cpp needs b, and b.cpp needs a.
        self.assert_circle({"lab/gates/a.cpp": "lab/gates/b.h", "lab/gates/b.cpp": "lab/gates/a.h",
                            "lab/gates/a.h": None, "lab/gates/b.h": None}, "lab/gates/a -> lab/gates/b -> lab/gates/a")  # fmt: skip
        self.assert_circle({"core/list.h": "core/family.h", "core/family.h": None, "core/family.cpp": "core/list.h"}, "core/family ->")
        self.assert_circle({"device/x.h": "device/y.h", "device/y.h": "device/x.h"}, "device/x.h -> device/y.h -> device/x.h")
        self.assertEqual(self.found_of({"lab/gates/a.cpp": "lab/gates/b.h", "lab/gates/b.h": None, "lab/gates/c.h": "lab/gates/b.h"}), [])

    def assert_circle(self, files, words):
        found = self.found_of(files)
        self.assertTrue(found, files)
        self.assertTrue(any("a circle of includes: " in line and words in line for line in found), found)

    def found_of(self, files):
        return self.found(more={name: f'#include "{target}"\n' if target else "" for name, target in files.items()})

    def test_messages_of_the_library_advise_no_flags(self):
        for path in ("core/a.cpp", "device/d.h", "kernels/family.h", "api/p.h"):
            self.assert_found(path, 'throw_bad_input("{} is wrong; give --suite "\n"FILE", x);', "advises --suite")
        self.assert_found("core/a.cpp", 'auto s = "use one of them, or "\n  "--trust-code";', "advises --trust-code")
        for fine in ('throw_bad_input("give --suite FILE", x);',):
            self.assertEqual(self.found("lab/gates/l.h", fine), [])
        for fine in ('auto s = "--gpu-architecture=";', "// as --suite says", 'auto s = "a -- b";', "/* a\n --flag */", "--i;"):
            self.assertEqual(self.found("core/a.cpp", fine), [])

    def test_one_reader_of_yaml(self):
        self.assertEqual(self.found("core/yaml_reader.h", "#include <yaml-cpp/yaml.h>"), [])
        for path in ("core/a.cpp", "lab/gates/l.h", "cli/main.cpp"):
            self.assert_found(path, "#include <yaml-cpp/yaml.h>", "one reader")

    def test_paths_that_are_not_below_src(self):
        self.assert_found("core/a.cpp", '#include "a.h"', "does not start with a layer")
        self.assert_found("core/a.cpp", '#include "../device/d.h"', "does not start with a layer")
        self.assert_found("core/a.cpp", '#include "core/absent.h"', "does not exist")
        self.assert_found("tools/t.cpp", "", "is no layer")

    def test_cuda_headers_outside_device_cuda(self):
        for header in ("cuda.h", "cuda_runtime.h", "cuda_fp16.h", "nvrtc.h", "nvml.h", "cuda/barrier", "cute/tensor.hpp",
                       "cudnn.h", "cublas_v2.h", "cuda.hpp", "nccl.h", "cupti.h", "mma.h"):  # fmt: skip
            self.assert_found("device/d.h", f"#include <{header}>", "CUDA header")
        self.assert_found("lab/gates/l.h", "#include <cuda.h>", "CUDA header")

    def test_device_code_includes_device_code_only(self):
        self.assert_found("kernels/sm80_fwd/kernel.cuh", "#include <cstdint>", "device code only")
        self.assert_found("kernels/sm80_fwd/config.h", "#include <array>", "device code only")
        self.assert_found("kernels/sm80_fwd/params.h", "#include <array>", "device code only")
        self.assert_found("kernels/tile/traits.h", "#include <cuda_fp16.h>", "device code only")
        self.assert_found("kernels/tile/softmax.cuh", '#include "core/a.h"', "not device code")
        self.assert_found("kernels/sm80_fwd/kernel.cuh", '#include "kernels/family.h"', "not device code")
        self.assert_found("kernels/sm80_fwd/kernel.cuh", '#include "kernels/ref_fwd/kernel.cuh"', "may include only")
        self.assert_found("kernels/tile/softmax.cuh", '#include "kernels/sm80_fwd/config.h"', "may include only")
        self.assert_found("kernels/ptx/mma.cuh", '#include "kernels/tile/traits.h"', "may include only")
        self.assert_found("kernels/sm80_fwd/config.h", '#include "kernels/ptx/mma.cuh"', "host compiler")

    def test_the_band_is_device_code_too(self):
        self.assert_found("core/band.h", "#include <algorithm>", "includes nothing")
        self.assert_found("core/band.h", '#include "core/a.h"', "includes nothing")
        self.assert_found("core/band.h", "x = __ldg(p);", "outside kernels/ptx")
        self.assert_found("kernels/ptx/mma.cuh", '#include "core/band.h"', "not device code")

    def test_host_code_includes_no_device_code(self):
        self.assert_found("kernels/sm80_fwd/family.cpp", '#include "kernels/sm80_fwd/kernel.cuh"', "host code")
        self.assert_found("lab/kernel.cuh", "", "belongs in src/kernels")

    def test_the_emulators_ptx_includes_little(self):
        path = "device/emulator/ptx/mma.cuh"
        self.assertEqual(self.found(path, '#include "kernels/ptx/common.cuh"'), [])
        self.assert_found(path, '#include "core/a.h"', "emulator's ptx/")
        self.assert_found(path, "#include <cmath>", "emulator's ptx/")

    def test_intrinsics_outside_ptx(self):
        for line in ("asm volatile(\"nop;\");", "__syncthreads();", "x = __ldg(p);", "__shfl_xor_sync(m, v, 1);", "__half h;",
                     "x = __float2half_rn(1.f);", "x = threadIdx.x;", "x = blockIdx.y;", "atomicAdd(p, 1);", "half h;",
                     "__asm__(\"nop\");", "__nv_bfloat16 b;", "t = clock64();"):  # fmt: skip
            for path in ("kernels/sm80_fwd/kernel.cuh", "kernels/tile/softmax.cuh", "kernels/sm80_fwd/config.h", "kernels/tile/traits.h"):
                self.assert_found(path, line, "outside kernels/ptx")

    def test_printf_in_device_code(self):
        for path in ("kernels/sm80_fwd/kernel.cuh", "kernels/tile/softmax.cuh", "kernels/ptx/mma.cuh"):
            self.assert_found(path, 'printf("%d", x);', "printf")

    def test_comments_and_strings_are_no_code(self):
        self.assertEqual(self.found("kernels/sm80_fwd/kernel.cuh", '/* asm\n __ldg */ const char* s = "__ldg"; // asm'), [])
        self.assertEqual(self.found("core/a.cpp", '/*\n#include "lab/gates/l.h"\n*/'), [])
        self.assertEqual(self.found("core/a.cpp", '// #include "lab/gates/l.h"'), [])


if __name__ == "__main__":
    unittest.main()
