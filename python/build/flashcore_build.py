"""The build backend of pyproject.toml (PEP 517): `pip wheel .` builds the shared library and the program with CMake and
packs them with the Python files into one wheel for every Python. Needs what scripts/install-packages installs, and no
Python package.

$FLASHCORE_BUILD_DIR names the CMake build folder (default: build/ if it is configured, else build-wheel/).
"""

import base64
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "flashcore"
LIMIT_BYTES = 15_000_000


def get_requires_for_build_wheel(config_settings=None):
    return []


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    require_tools()
    version = project_version()
    with tempfile.TemporaryDirectory() as stage:
        natives = build_natives(pathlib.Path(stage))
        tag = f"py3-none-manylinux_2_{newest_glibc(natives)}_{os.uname().machine}"
        name = f"flashcore-{version}-{tag}.whl"
        path = pathlib.Path(wheel_directory) / name
        write_wheel(path, version, tag, natives)
    size = path.stat().st_size
    if size > LIMIT_BYTES:
        raise SystemExit(f"{name} has {size} bytes, more than the {LIMIT_BYTES} allowed")
    return name


def build_sdist(sdist_directory, config_settings=None):
    raise SystemExit("flashcore has no source distribution: build from a checkout with `pip wheel .`")


def project_version():
    """Of CMakeLists.txt; pyproject.toml and the Python files must say the same."""
    cmake = re.search(r"project\(flashcore VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    python = re.search(r'__version__ = "([\d.]+)"', (PACKAGE / "_library.py").read_text()).group(1)
    toml = re.search(r'^version = "([\d.]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE).group(1)
    if not cmake == python == toml:
        raise SystemExit(f"versions differ: CMakeLists.txt {cmake}, _library.py {python}, pyproject.toml {toml}")
    return cmake


# What the build calls, and the Debian package that has it.
TOOLS = {"cmake": "cmake", "ninja": "ninja-build", "c++": "g++", "readelf": "binutils"}


def require_tools():
    """One message for all that is missing, before anything is built."""
    own = {"c++": os.environ.get("CXX")}
    missing = [tool for tool in TOOLS if not shutil.which(own.get(tool) or tool)]
    if missing:
        raise SystemExit(
            f"the wheel is built from source, and {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing. Run "
            f"scripts/install-packages once, which installs all that the build needs (of these, on Debian and Ubuntu: "
            f"{' '.join(TOOLS[tool] for tool in missing)}), then `pip wheel .` again")  # fmt: skip


def run(*command):
    done = subprocess.run([str(word) for word in command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.stderr.write(done.stdout[-4000:])
        raise SystemExit(f"`{' '.join(map(str, command))}` failed with {done.returncode}; its last lines are above. scripts/install-packages "
                         "installs what the build needs")  # fmt: skip


def build_folder():
    chosen = os.environ.get("FLASHCORE_BUILD_DIR")
    if chosen:
        return pathlib.Path(chosen)
    return ROOT / "build" if (ROOT / "build" / "CMakeCache.txt").is_file() else ROOT / "build-wheel"


def build_natives(stage):
    """name in the package's _lib/ -> file, stripped."""
    folder = build_folder()
    if not (folder / "CMakeCache.txt").is_file():
        run("cmake", "--preset", "release-unity", "-B", folder, "-DFLASHCORE_BUILD_TESTS=OFF", "-DFLASHCORE_BUILD_BENCHMARKS=OFF")
    run("cmake", "--build", folder, "--target", "flashcore", "flashcore_shared")
    run("cmake", "--install", folder, "--prefix", stage, "--strip")
    natives = {"flashcore": stage / "bin" / "flashcore"}
    for library in sorted(stage.rglob("lib*.so*")):
        if library.name == "libflashcore.so" or library.name.startswith("libhwy.so."):
            natives[library.name] = library.resolve()
    if len(natives) != 3:
        raise SystemExit(f"the build installed {sorted(natives)}; libflashcore.so, libhwy.so.N and flashcore were expected")
    # A library without a version in its name: nothing links to it, Python opens it.
    return natives


def newest_glibc(natives):
    """The minor version of the newest glibc symbol that a file asks for: what the wheel's tag must say."""
    newest = 17
    for path in natives.values():
        text = subprocess.run(["readelf", "-W", "--version-info", str(path)], stdout=subprocess.PIPE, text=True, check=True).stdout
        newest = max([newest, *(int(minor) for minor in re.findall(r"Name: GLIBC_2\.(\d+)", text))])
    return newest


METADATA = """Metadata-Version: 2.1
Name: flashcore
Version: {version}
Summary: Attention kernels for NVIDIA GPUs and CPUs, compiled for the exact problem and chosen by measurement
License: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.9
"""
WHEEL = """Wheel-Version: 1.0
Generator: flashcore_build
Root-Is-Purelib: false
Tag: {tag}
"""
ENTRY_POINTS = """[console_scripts]
flashcore = flashcore._program:main
"""


def write_wheel(path, version, tag, natives):
    files = {}  # name in the archive -> (bytes, executable)
    for source in sorted(PACKAGE.rglob("*")):
        if source.is_file() and source.suffix in (".py", ".typed") or source.name == "py.typed":
            files[f"flashcore/{source.relative_to(PACKAGE)}"] = (source.read_bytes(), False)
    for name, file in natives.items():
        files[f"flashcore/_lib/{name}"] = (file.read_bytes(), True)
    info = f"flashcore-{version}.dist-info"
    files[f"{info}/METADATA"] = (METADATA.format(version=version).encode(), False)
    files[f"{info}/WHEEL"] = (WHEEL.format(tag=tag).encode(), False)
    files[f"{info}/entry_points.txt"] = (ENTRY_POINTS.encode(), False)
    files[f"{info}/LICENSE"] = ((ROOT / "LICENSE").read_bytes(), False)
    record = []
    temporary = path.with_suffix(".tmp")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, (data, executable) in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}")
            add(archive, name, data, executable)
        record.append(f"{info}/RECORD,,")
        add(archive, f"{info}/RECORD", ("\n".join(record) + "\n").encode(), False)
    shutil.move(temporary, path)


def add(archive, name, data, executable):
    entry = zipfile.ZipInfo(name, date_time=(2025, 1, 1, 0, 0, 0))  # the same wheel from the same files
    entry.external_attr = (0o100755 if executable else 0o100644) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, data)
