"""Hostile text in every field of a store and of an experiment, through all four formats.

Pages are opened in headless Chromium, where one is installed: no script of the text's may run, nothing may load, the console
stays empty. Markdown and CSV are read back as their readers would.
"""

import csv
import html.parser
import io
import json
import os
import pathlib
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import unicodedata
import unittest

SOURCE_DIR = pathlib.Path(os.environ.get("FLASHCORE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BINARY = os.environ.get("FLASHCORE_BINARY", str(SOURCE_DIR / "build" / "flashcore"))
sys.path.insert(0, str(SOURCE_DIR / "tests"))
import report_browser_test  # noqa: E402

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
RUN = "document.title='pw'+'ned'"
PAYLOADS = (
    f'<svg onload="{RUN}"><script>{RUN}</script></svg>',
    f'</script></style></title></textarea><script>{RUN}</script>',
    f'"\' onmouseover={RUN} autofocus onfocus={RUN} x=',
    f'<img src="https://evil.example/x.png" onerror="{RUN}"><link rel=stylesheet href=//evil.example/x.css>',
    f'<a href="javascript:{RUN}">click</a> [click](javascript:{RUN}) ![x](https://evil.example/y.png) https://evil.example www.evil.example',
    f'<iframe srcdoc="<script>parent.{RUN}</script>"></iframe><base href="https://evil.example/"><form action=//evil.example><button>',
    '%{text} <b>bold</b> <br> &lt;script&gt; {{x}} ${y} `code` **bold** | pipe | *a* _b_ ~~c~~ # h',
    "=HYPERLINK(\"https://evil.example\";\"x\")",
    "+1+cmd|' /C calc'!A0",
    "-2+3", "@SUM(1)", "\t=1+1", "\r=1+1", " =1+1", "\uff1d1+1",
    "\x1b[2J\x1b]0;pwned\x07\u009b31m\u202eevil\u2066\u0000\x7f",
    "line one\n\n# heading\n- item\n| a | b |\n<!-- x",
)  # fmt: skip
# What must stay what it is for a trial to be read, or for a page to show the trial in full.
KEPT = {"problem", "phase", "status", "regime", "condition", "kind", "arch", "gate", "ended", "created_at", "source_hash", "dtype", "code_hash", "chosen_by"}

EXPERIMENT = """
name: hostile
hypothesis: {0}
mechanism: {1}
refuted_by: {2}
control: {{name: {3}, candidate: "cpu_fwd:block_m=96,block_n=256"}}
candidates:
  - {{name: {4}, candidate: "cpu_fwd:block_m=96,block_n=32", predicted: [0.5, 0.95]}}
  - {{name: {5}, candidate: "cpu_fwd:block_m=96,block_n=64", predicted: [0.5, 0.95]}}
problems: [b1_h1_s32_d64_fp32]
acceptance: {{processes: 1, seconds: 0.1}}
"""


def hidden(text):
    return [c for c in text if c not in "\n\r" and unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")]


def poisoned(value, payload, key=""):
    if isinstance(value, dict):
        return {k: poisoned(v, payload, k) for k, v in value.items()}
    if isinstance(value, list):
        return [poisoned(v, payload, key) for v in value]
    # Numbers that JSON has no word for are text.
    return payload if isinstance(value, str) and key not in KEPT and value not in ("inf", "-inf", "nan") else value


class Tags(html.parser.HTMLParser):
    """What a document has that text must not become: handlers, links, things to load, elements that our pages have none of."""

    def __init__(self):
        super().__init__()
        self.bad = []

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name.startswith("on") or name in ("srcdoc", "action", "formaction"):
                self.bad.append((tag, name, value))
            if name in ("src", "href", "xlink:href") and not re.match(r"#|data:,|blob:null/", value or ""):
                self.bad.append((tag, name, value))
        if tag in ("iframe", "img", "form", "base", "object", "embed", "textarea", "a") and attributes:
            self.bad.append((tag, attributes))


class PagesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="flashcore-pages-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.environment = dict(os.environ, FLASHCORE_CACHE=str(cls.folder / "cache"), NO_COLOR="1")

    @classmethod
    def run_flashcore(cls, *arguments):
        return subprocess.run([BINARY, *map(str, arguments)], cwd=cls.folder, env=cls.environment, capture_output=True, text=True, timeout=120, check=False)

    def hostile_store(self):
        """A store of real trials, and of each a copy for every payload, in every text field."""
        store = self.folder / "trials.db"
        if store.exists():
            return store
        for verb in (["bench", "--problem", "b1_h1_s32_d64_fp32"], ["tune", "--problem", "b1_h1_s32_d64_fp32", "--budget", "3", "--finalists", "1"]):
            done = self.run_flashcore(*verb, "--device", "cpu", "--store", store)
            self.assertEqual(done.returncode, 0, done.stderr)
        connection = sqlite3.connect(store)
        columns = "run, created_at, phase, suite, problem, device, family, config, code_hash, source_hash, ended, p50_us, json"
        rows = connection.execute(f"select {columns} from trials").fetchall()
        for number, payload in enumerate(PAYLOADS):
            for row in rows:
                trial = poisoned(json.loads(row[-1]), payload)
                # Problems of their own, so that each payload has its row.
                trial["problem"] = f"b1_h1_s{33 + number}_d64_fp32"
                trial["problem_name"] = payload + str(number)
                trial["message"] = payload
                for ended in (trial["ended"], "crashed"):
                    failed = dict(trial, ended=ended)
                    if ended == "crashed":
                        failed["gates"] = [dict(g, status="failed", reason=payload) for g in trial["gates"][:1]]
                    text = json.dumps(failed)
                    connection.execute(f"insert into trials ({columns}) values (?,?,?,?,?,?,?,?,?,?,?,?,?)",
                                       (*row[:4], failed["problem"], payload.replace("\0", ""), *row[6:10], ended, row[11], text))  # fmt: skip
        connection.commit()
        connection.close()
        return store

    def report(self, extension):
        out = self.folder / f"report.{extension}"
        done = self.run_flashcore("report", "--store", self.hostile_store(), "--out", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(out, encoding="utf-8", newline="") as file:
            return out, file.read()

    def check_page(self, page):
        text = page.read_text(encoding="utf-8")
        policy = re.search(r'Content-Security-Policy"? content="([^"]*)"', text)[1]
        self.assertIn("default-src 'none'", policy)
        self.assertNotRegex(policy, r"unsafe-(inline|eval)|https?:|\*")
        shown = re.sub(r"<script type=\"application/gzip\".*?</script>|<style>.*?</style>", "", text, flags=re.S)
        self.assertEqual(hidden(shown), [])
        for tag in ("<svg onload", "<img", "<iframe", "<base", "<form", "<link rel=stylesheet", "</textarea>", "<a href"):
            self.assertNotIn(tag, shown)
        if BROWSER is None:
            self.skipTest("no Chromium on this machine: the text of the page is clean, nothing was opened")
        title = re.search(r"<title>(.*?)</title>", text, re.S)[1]
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            dom, console = report_browser_test.open_page(BROWSER, page, profile)
        self.assertEqual(console, [])
        self.assertEqual(re.search(r"<title>(.*?)</title>", dom, re.S)[1].replace('"', "&quot;").replace("'", "&#39;"), title)
        self.assertNotIn("<title>pwned", dom)
        reader = Tags()
        reader.feed(dom)
        self.assertEqual(reader.bad, [])
        return dom

    def test_the_report_page(self):
        dom = self.check_page(self.report("html")[0])
        self.assertEqual(report_browser_test.problems_of(dom, []), [])

    def test_an_experiments_pages(self):
        texts = [json.dumps(payload) for payload in (*PAYLOADS[:6], *PAYLOADS[:1])]
        (self.folder / "e.yaml").write_text(EXPERIMENT.format(*texts), encoding="utf-8")
        done = self.run_flashcore("experiment", "run", "e.yaml", "--device", "cpu", "--out", "verdicts")
        self.assertIn(done.returncode, (0, 2), done.stderr)
        self.assertEqual(hidden(done.stdout + done.stderr), [])
        folder = self.folder / "verdicts" / "hostile"
        self.check_markdown((folder / "verdict.md").read_text(encoding="utf-8"))
        dom = self.check_page(folder / "verdict.html")
        # Our own drawings are there all the same.
        self.assertGreaterEqual(dom.count('<svg viewBox="0 0 300 26"'), 1)

    def check_markdown(self, text):
        self.assertEqual(hidden(text), [])
        # Code spans show what they hold; a backtick in one would have ended it.
        text = re.sub(r"(?<!\\)`[^`\n]*`", "code", text)
        self.assertNotRegex(text, r"<[a-zA-Z!/]")  # no markup
        self.assertNotRegex(text, r"(?<!\\)\]\(")  # no link, no image
        self.assertNotRegex(text, r"https?://|www\.")  # no address that becomes one by itself
        cells = None
        for line in text.splitlines():
            if not line.startswith("|"):
                cells = None
                continue
            count = len(re.sub(r"\\.", "", line).split("|"))
            self.assertEqual(count, cells or count, line)
            cells = count
            self.assertNotRegex(line, r"(?<!\\)`")
        ours = ("# flashcore report", "## Tuning funnel", "## Rejected candidates", "## What it cost", "# hostile: ", "## Candidates", "## Before the run", "## Errors", "## Evidence")
        for line in text.splitlines():
            if re.match(r"#+ ", line):
                self.assertTrue(line.startswith(ours), line)

    def test_markdown(self):
        self.check_markdown(self.report("md")[1])

    def test_csv(self):
        text = self.report("csv")[1]
        self.assertEqual(hidden(text), [])
        rows = list(csv.reader(io.StringIO(text, newline="")))
        self.assertGreater(len(rows), len(PAYLOADS))
        for row in rows:
            self.assertEqual(len(row), len(rows[0]))
            for cell in row:
                if re.match(r"[\s]*[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]", cell):
                    float(cell)  # only a number may begin so

    def test_json(self):
        document = json.loads(self.report("json")[1])
        self.assertEqual(len(document["problems"]), len(PAYLOADS) + 1)

    def test_the_terminal(self):
        for verb in (["leaderboard"], ["leaderboard", "--json", "-"], ["explain", "--device", "cpu", "--problem", "b1_h1_s33_d64_fp32"]):
            done = self.run_flashcore(*verb, "--store", self.hostile_store())
            self.assertEqual(hidden(done.stdout + done.stderr), [], verb)


if __name__ == "__main__":
    unittest.main()
