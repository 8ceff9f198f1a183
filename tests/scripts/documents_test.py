"""What documents say in numbers and lists is what the sources say: each number is read in both places."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))

# (document, pattern of the number there, pattern of the number in some file of src/, how many of the source's units make one of the document's)
NUMBERS = [
    ("environment.md", r"spins for at most (\d+) µs", r"nanoseconds kMostSpin\{([\d']+)\}", 1000),
    ("environment.md", r"Either is kept to (\d+) GiB", r"kMaxBytes = std::uintmax_t\{(\d+)\} << 30", 1),
    ("correctness.md", r"longer than the lower quartile on the same, in (\w+) rounds", r"constexpr int kRounds = (\d+);\nconstexpr double kRoundSeconds", 1),
    ("correctness.md", r"fastest launch on others takes (\d+)%", r"kQuartile = 0\.25, kRatio = 1\.(\d)", 0.1),
    ("correctness.md", r"do not see a gain below (\d+)%", r"kQuartile = 0\.25, kRatio = 1\.(\d)", 0.1),
    ("correctness.md", r"\(and ([\d.]+) us, on a CPU", r"kJitterUsCuda = ([\d.]+)", 1),
    ("correctness.md", r"us, on a CPU ([\d.]+) us\)", r"kJitterUsCpu = ([\d.]+)", 1),
    ("correctness.md", r"where they are at most (\d+) MiB together", r"kInputCheckLimit = std::size_t\{(\d+)\} << 20", 1),
    ("correctness.md", r"\*\*(\d+) × max\(ideal, predicted\)\*\*", r"kBoundFactor = ([\d.]+)", 1),
    ("long-context.md", r"less (\d+)% of all", r"kNeedleLoss = ([\d.]+)", 0.01),
    ("long-context.md", r"Fewer than (\d+) keys are refused", r"kFewestNeedleKeys = (\d+)", 1),
    ("long-context.md", r"a key at one of (\d+) places", r"kNeedlePlaceCount = (\d+)", 1),
    ("measurement.md", r"(\d+) in `ab` and `gate`", r"kMinBlocksPerProcess = (\d+)", 1),
    ("measurement.md", r"(\d+) in `invert`, \d+ in held-out", r"kMinInversionBlocks = (\d+)", 1),
    ("measurement.md", r"(\d+) in held-out trials and in experiments", r"kMinBlocksOf(?:Holdout|Experiment) = (\d+)", 1),
    ("measurement.md", r"(\d+) in a search", r"constexpr int kMinBlocks = (\d+)", 1),
    ("measurement.md", r"with fewer than (\d+) blocks that is", r"constexpr int kMinBlocks = (\d+)", 1),
    ("measurement.md", r"so after (\w+) times its time", r"constexpr double kPatience = (\d+)", 1),
    ("campaign.md", r"Each trial is a race of (\w+) processes", r"kTrialProcesses = (\d+)", 1),
    ("campaign.md", r"twice the engine's time and (\d+) ms more", r"kBusyTurnsUs = (\w+)", 1000),
    ("campaign.md", r"one that is up to (\w+) times faster", r"kBusyFactor = (\d+)", 1),
    ("campaign.md", r"`wgmma` m64n(\d+)k16", r"kWgmmaShape\{64, (\d+), 16\}", 1),
    ("campaign.md", r"`mma.sync` m(\d+)n8k16", r"kMmaShape\{(\d+), 8, 16\}", 1),
    ("profile.md", r"SM busy: at least (\d+)%", r"kSmBusy = (\d+)", 1),
    ("profile.md", r"Tensor cores: at least (\d+)%", r"kTensor = (\d+)", 1),
    ("profile.md", r"DRAM, L2: at most (\d+)%", r"kThroughput = (\d+)", 1),
    ("profile.md", r"the roof is at least (\d+)% of the time", r"kRoof = ([\d.]+)", 0.01),
    ("profile.md", r"Warps per SM: at least (\d+)", r"kWarpsPerSm = (\d+)", 1),
    ("profile.md", r"passes: at most ([\d.]+) times", r"kExcess = ([\d.]+)", 1),
    ("profile.md", r"Barriers: at most (\d+)% of", r"kBarrierShare = ([\d.]+)", 0.01),
    ("security.md", r"kept by looking every (\d+) ms", r"next_look = now \+ std::chrono::milliseconds\((\d+)\)", 1),
    ("security.md", r"Landlock \(version (\d+),", r"kLeastLandlock = (\d+)", 1),
    ("security.md", r"Landlock before version (\d+)", r"kLandlockForTruncation = (\d+)", 1),
    ("security.md", r"at most (\d+) GiB of memory", r"kProposerMemoryBytes = rlim_t\{(\d+)\} << 30", 1),
    ("security.md", r"(\d+) s of processor time", r"kProposerCpuSeconds = (\d+)", 1),
    ("security.md", r"files of (\d+) MiB", r"kProposerFileBytes = rlim_t\{(\d+)\} << 20", 1),
    ("agents.md", r"a message of more than (\d+) MiB", r"kMaxMessage = std::size_t\{(\d+)\} << 20;\nconstexpr std::size_t kMaxWaiting", 1),
    ("agents.md", r"every (\w+) seconds", r"kProgressSeconds = (\d+)", 1),
    ("agents.md", r"(\d+) if not given", r"kDefaultSeconds = (\d+)", 1),
]
WORDS = {"two": "2", "three": "3", "four": "4", "five": "5", "ten": "10"}
# The kernel that brought each version of Landlock's interface: landlock(7).
LANDLOCK_SINCE = {1: "5.13", 2: "5.19", 3: "6.2", 4: "6.7"}

# What CMake looks for, the Debian package that brings it, and its name in README.md.
LIBRARIES = {
    "fmt": ("libfmt-dev", "fmt"), "nlohmann_json": ("nlohmann-json3-dev", "nlohmann-json"), "yaml-cpp": ("libyaml-cpp-dev", "yaml-cpp"),
    "SQLiteCpp": ("libsqlitecpp-dev", "SQLiteCpp"), "sqlite3": ("libsqlite3-dev", "SQLite"), "hwy": ("libhwy-dev", "Highway"),
    "CLI11": ("libcli11-dev", "CLI11"), "xxhash": ("libxxhash-dev", "xxHash"), "Boost": ("libboost-dev", "Boost"),
    "boost_context": ("libboost-context-dev", "Boost"),
}  # fmt: skip
TOOLS = {"cmake": "CMake", "ninja-build": "Ninja", "g++": "GCC"}


# What the glossary calls a phase of a campaign, where its name alone says too little.
IN_GLOSSARY = {"trials": "targeted trials", "crosscheck": "cross-check", "gate": "regression gate"}


def table(document, head):
    """Rows of the table that begins with this text."""
    return (ROOT / document).read_text(encoding="utf-8").split(head)[1].split("\n\n")[0].split("\n")[2:]


def first_cells(document, head):
    return [row.split(" | ")[0].strip("| ") for row in table(document, head)]


def words_of(header, enum):
    """What core/words.h says of an enum, in the order of its table."""
    found = re.search(rf"struct WordsOf<{enum}> \{{.*?table\[\] = \{{(.*?)\}};", (ROOT / header).read_text(encoding="utf-8"), re.DOTALL)
    return re.findall(rf'{enum}::k\w+, "([^"]*)"', found[1])


def number(text):
    return float(WORDS.get(text, text).replace("'", ""))


def tracked(*patterns):
    done = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0:
        return [ROOT / name for name in done.stdout.splitlines() if (ROOT / name).exists()]
    return [path for pattern in patterns for path in ROOT.rglob(pattern) if not {"build", "out", ".venv"} & set(path.relative_to(ROOT).parts)]


class NumbersTest(unittest.TestCase):
    def test_numbers_are_those_of_the_sources(self):
        sources = [path.read_text(encoding="utf-8") for suffix in ("*.h", "*.cpp") for path in (ROOT / "src").rglob(suffix)]
        for document, written, constant, unit in NUMBERS:
            with self.subTest(document=document, number=written):
                said = re.findall(written, " ".join((ROOT / "docs" / document).read_text(encoding="utf-8").split()))
                self.assertEqual(len(said), 1, "the sentence is gone, or there twice")
                meant = {found for text in sources for found in re.findall(constant, text)}
                self.assertEqual(len(meant), 1, f"{constant} is in no source, or with several values: {meant}")
                self.assertAlmostEqual(number(said[0]) * unit, number(meant.pop()))

    def test_the_least_landlock_is_of_the_linux_that_is_named(self):
        version, linux = re.search(r"Landlock \(version (\d+), Linux ([\d.]+)\)", (ROOT / "docs/security.md").read_text(encoding="utf-8")).groups()
        self.assertEqual(LANDLOCK_SINCE[int(version)], linux)


class BuildingTest(unittest.TestCase):
    def setUp(self):
        self.cmake = "\n".join(path.read_text(encoding="utf-8") for path in [ROOT / "CMakeLists.txt", *sorted((ROOT / "cmake").glob("*.cmake"))])
        sentences = re.search(r"Building it needs (.*?)\.\s", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
        self.readme = sentences[1]
        done = subprocess.run([ROOT / "scripts/install-packages", "--list"], capture_output=True, text=True, check=True)
        self.packages = done.stdout.split()

    def test_every_library_that_cmake_requires_is_installed_and_named(self):
        required = set(re.findall(r"find_package\((\S+)[^)]*REQUIRED", self.cmake)) - {"Threads"}
        required |= {re.sub(r"^lib|\.a$", "", name) for name in re.findall(r"find_library\(\w+ (?:NAMES )?(\S+)", self.cmake)}
        self.assertEqual(required, set(LIBRARIES), "a library came or went: say so in LIBRARIES, scripts/install-packages and README.md")
        for library, (package, name) in LIBRARIES.items():
            self.assertIn(package, self.packages, library)
            self.assertIn(name, self.readme, library)

    def test_nothing_is_installed_or_named_that_nothing_needs(self):
        libraries = {package for package in self.packages if package.endswith("-dev")}
        self.assertEqual(libraries, {package for package, _ in LIBRARIES.values()})
        listed = re.sub(r"\(.*?\)", "", self.readme)
        named = set(re.findall(r"[A-Za-z][\w.+-]+", listed)) - {"and", "the", "libraries", "with"}
        self.assertEqual(named, {name for _, name in LIBRARIES.values()} | set(TOOLS.values()))

    def test_tools_and_their_versions(self):
        for package, name in TOOLS.items():
            self.assertIn(package, self.packages)
            self.assertIn(name, self.readme)
        least = re.search(r"cmake_minimum_required\(VERSION ([\d.]+)\)", self.cmake)[1]
        self.assertIn(f"CMake {least}", self.readme)


class ProseTest(unittest.TestCase):
    def test_links_lead_somewhere(self):
        broken, links = [], 0
        for path in tracked("*.md"):
            text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
            for target in re.findall(r"\]\((?!https?:|#)([^)\s]+)\)", text):
                links += 1
                file, _, anchor = target.partition("#")
                found = path.parent / file
                headings = re.findall(r"(?m)^#+ (.*)$", found.read_text(encoding="utf-8")) if anchor and found.is_file() else []
                anchors = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
                if not found.exists() or anchor and anchor not in anchors:
                    broken.append(f"{path.relative_to(ROOT)}: {target}")
        self.assertEqual(broken, [])
        self.assertGreater(links, 50)

    def test_paths_that_are_named_exist(self):
        """Of the checkout, in backticks; `x` and `sm90_example` are the reader's own."""
        missing = []
        for path in tracked("*.md"):
            if "results" in path.relative_to(ROOT).parts:  # written by runs of their day
                continue
            text = path.read_text(encoding="utf-8")
            for named in re.findall(r"`((?:src|tests|scripts|docs|python|results|include|suites|experiments|examples|cmake)/[\w./*-]*)`", text):
                own = re.search(r"/x\.cuh$|sm90_example", named)
                if not own and not any(ROOT.glob(named.rstrip("/"))):
                    missing.append(f"{path.relative_to(ROOT)}: {named}")
        self.assertEqual(missing, [])

    def test_names_are_in_the_files_that_are_named(self):
        """`name` in `path`, as HACKING.md says where a new thing goes."""
        missing, found = [], 0
        for path in tracked("*.md"):
            for name, file in re.findall(r"`(\w+)` in\s`((?:src|tests|scripts|python|include)/[\w./-]+)`", path.read_text(encoding="utf-8")):
                if not (ROOT / file).is_file():
                    continue  # a folder; that it exists is asked above
                found += 1
                if not re.search(rf"\b{name}\b", (ROOT / file).read_text(encoding="utf-8")):
                    missing.append(f"{path.relative_to(ROOT)}: {name} in {file}")
        self.assertEqual(missing, [])
        self.assertGreater(found, 5)

    def test_the_rooms_are_those_of_the_layering_test(self):
        order = re.search(r"(?m)^ROOMS = (\[.*\])$", (ROOT / "tests/layering_test.py").read_text(encoding="utf-8"))
        table = (ROOT / "HACKING.md").read_text(encoding="utf-8").split("| room | holds |")[1].split("\n\n")[0]
        self.assertEqual(re.findall(r"(?m)^\| `(\w+)` \|", table), json.loads(order[1]))

    def test_every_data_pattern_is_described(self):
        self.assertEqual(first_cells("docs/correctness.md", "| pattern | q, k and v |"), [f"`{word}`" for word in words_of("src/core/data.h", "Pattern")])

    def test_every_bottleneck_is_described(self):
        named = ", ".join(first_cells("docs/profile.md", "| bottleneck | what it means |"))
        self.assertEqual(re.sub(r"\*limits?\*: ", "", named).split(", "), words_of("src/lab/diagnose/profile.h", "Cause"))

    def test_every_phase_of_a_campaign_is_described(self):
        plan = (ROOT / "src/lab/campaign/plan.cpp").read_text(encoding="utf-8")
        phases = re.findall(r'\{"(\w+)",\s*[\d.]+,\s*"([^"]+)"', plan)
        self.assertGreater(len(phases), 5)
        rows = [row.strip("|").split(" | ") for row in table("docs/campaign.md", "| phase | runs |")]
        self.assertEqual([(cells[0].strip(), cells[-1].strip()) for cells in rows], phases)
        glossary = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
        self.assertEqual(re.search(r"\| campaign \| All of it on one machine: (.*?) \(", glossary)[1].split(", "), [IN_GLOSSARY.get(name, name) for name, _ in phases])

    def test_lines_are_no_longer_than_a_reader_likes(self):
        done = subprocess.run([sys.executable, ROOT / "scripts/format-prose", "--check"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_long_lines_are_found_and_wrapped_and_nothing_else_is(self):
        long, table = "word " * 40, "| " + "cell " * 40 + "|"
        kept = ["# " + long.strip(), "", table, "", "```", long, "```", "", "<!-- results: a/b -->", "", long, "", "<!-- /results -->", "", "two", "short lines", ""]
        text = "\n".join([*kept, "- first", "- " + long.strip(), "  and more", "  - nested " + long.strip(), "- last", ""])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "a.md")
            path.write_text(text)
            command = [sys.executable, ROOT / "scripts/format-prose", "--root", folder]
            done = subprocess.run([*command, "--check"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertEqual([line.split(" ")[0] for line in done.stderr.splitlines()], [f"a.md:{len(kept) + 2}", f"a.md:{len(kept) + 4}"])
            self.assertEqual(path.read_text(), text)
            subprocess.run(command, check=True, capture_output=True)
            lines = path.read_text().split("\n")
            self.assertEqual(lines[: len(kept)], kept)
            rest = lines[len(kept) :]
            self.assertLessEqual(max(map(len, rest)), 140)
            self.assertEqual([line for line in rest if line.lstrip().startswith("-")][::3], ["- first", "- last"])
            self.assertEqual(" ".join("\n".join(rest).split()), " ".join("\n".join(text.split("\n")[len(kept) :]).split()))
            self.assertEqual(subprocess.run([*command, "--check"], capture_output=True).returncode, 0)


if __name__ == "__main__":
    unittest.main()
