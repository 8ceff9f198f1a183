"""The cookbook is true: its excerpts are in the sources, its tables are the ledger's, its links lead somewhere, its commands run."""

import json
import os
import re
import shlex
import unittest
from pathlib import Path

from support import DONE, SOURCE_DIR, CliTest

ROOT = Path(SOURCE_DIR)
COOKBOOK = ROOT / "docs" / "cookbook"
SECTIONS = ["The problem", "The picture", "The code", "What it bought", "When it loses", "Try it"]
MOST_LINES = 15  # of an excerpt
FENCED = re.compile(r"(?ms)^```(\w*)\n(.*?)^```$")
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")


def pages():
    return sorted(path for path in COOKBOOK.glob("*.md") if path.name != "README.md")


def text_of(path):
    return path.read_text(encoding="utf-8")


def excerpts(page):
    """(file, text) of each quoted piece of code. The file is that of the last link into src/ before it."""
    text = text_of(page)
    for fence in FENCED.finditer(text):
        if fence[1] == "cpp":
            before = [link for link in LINK.findall(text[: fence.start()]) if link.startswith("../../src/")]
            yield (page.parent / before[-1]).resolve() if before else None, fence[2]


def commands(page):
    """(arguments, exit code, text that is printed or None) of each line of a `sh` block."""
    for fence in FENCED.finditer(text_of(page)):
        for line in fence[2].splitlines() if fence[1] == "sh" else []:
            command, _, said = line.partition("  # ")
            code, prints = re.fullmatch(r"(?:exit (\d) ?)?(?:prints (.+))?", said).groups()
            yield shlex.split(command), int(code or DONE), prints


def evidence(name):
    """The table of an experiment's comparisons, as a page shows it."""
    verdict = text_of(ROOT / "results" / "experiments" / name / "verdict.md")
    table = verdict.split("## Evidence\n\n")[1].split("\n\n")[0].splitlines()
    rows = [[re.sub(r"\\([\[\]+])", r"\1", cell.strip()) for cell in line.strip("|").split("|")] for line in table]
    at = [rows[0].index(column) for column in ("candidate", "problem", "verdict", "speed-up [95%]", "median time")]
    return ["| " + " | ".join(row[i] for i in at) + " |" for row in rows]


class CookbookTest(CliTest):
    def test_pages_have_the_same_sections_and_are_in_the_index(self):
        index = LINK.findall(text_of(COOKBOOK / "README.md"))
        self.assertGreaterEqual(len(pages()), 8)
        for page in pages():
            with self.subTest(page=page.name):
                outside_code = FENCED.sub("", text_of(page))
                self.assertEqual(re.findall(r"(?m)^## (.*)$", outside_code), SECTIONS)
                self.assertIn(page.name, index)
                self.assertTrue(list(excerpts(page)), "no code is quoted")
                self.assertTrue(list(commands(page)), "nothing to try")

    def test_excerpts_are_in_the_files_that_are_named(self):
        for page in pages():
            for file, excerpt in excerpts(page):
                with self.subTest(page=page.name, excerpt=excerpt.splitlines()[0].strip()):
                    self.assertIsNotNone(file, "no link to a file of src/ before it")
                    self.assertLessEqual(len(excerpt.splitlines()), MOST_LINES)
                    self.assertTrue("\n" + excerpt in "\n" + text_of(file), "%s does not hold this:\n%s" % (file.relative_to(ROOT), excerpt))

    def test_tables_are_those_of_the_experiments(self):
        for page in pages():
            for name, table in re.findall(r"<!-- evidence: (\w+) -->\n\n((?:\|.*\n)*)", text_of(page)):
                with self.subTest(page=page.name, experiment=name):
                    self.assertEqual(table.splitlines(), evidence(name), "the ledger says:\n" + "\n".join(evidence(name)))

    def test_measured_numbers_are_in_tables_of_experiments_and_results(self):
        for page in [COOKBOOK / "README.md", *pages()]:
            prose = re.sub(r"(?s)<!-- (?:results|evidence): .*?<!-- /results -->", "", text_of(page))  # scripts/readme-tables --check compares them
            self.assertIsNone(re.search(r"\d×|\d ?%(?! interval)|\d µs", FENCED.sub("", prose)), page.name)

    def test_links_lead_somewhere(self):
        for page in [COOKBOOK / "README.md", *pages()]:
            for link in LINK.findall(FENCED.sub("", text_of(page))):
                with self.subTest(page=page.name, link=link):
                    file, _, anchor = link.partition("#")
                    found = page.parent / file if file else page
                    self.assertTrue(found.exists())
                    headings = re.findall(r"(?m)^#+ (.*)$", text_of(found)) if anchor else []
                    anchors = [re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings]
                    self.assertTrue(not anchor or anchor in anchors, anchors)

    def test_commands_end_as_the_pages_say(self):
        for folder in ("experiments", "results"):
            os.symlink(ROOT / folder, self.path(folder))
        report = json.loads(self.expect(DONE, "doctor", "--device", "cpu", "--json", "-", "--quiet").stdout)
        nvrtc = any(found["item"].startswith("NVRTC") and found["present"] for found in report["findings"])
        untested = []
        for page in pages():
            for command, code, prints in commands(page):
                if command[1] == "compile" and not nvrtc:
                    untested.append(" ".join(command))
                    continue
                with self.subTest(page=page.name, command=" ".join(command)):
                    self.assertEqual(command[0], "flashcore")
                    result = self.run_flashcore(*command[1:])
                    self.assertEqual(result.returncode, code, result.stdout + result.stderr)
                    if prints:
                        self.assertIn(prints, result.stdout + result.stderr)
        if untested:
            self.skipTest("no NVRTC here, so these were not run: " + "; ".join(untested))


if __name__ == "__main__":
    unittest.main()
