"""Opens a report in headless Chromium as a reader would: no console error, no missing chart.

usage: report_browser_test.py REPORT_EXAMPLE_PROGRAM
Skipped (exit 77) where there is no Chromium; ./run-tests installs it.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
CHARTS = ("speedup", "funnel", "roofline", "samples")


def open_page(browser, page, profile, *options):
    """The DOM after the scripts ran, and what the console said."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={profile}",
               "--enable-logging=stderr", "--v=0", "--virtual-time-budget=20000", *options, "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    # INFO:CONSOLE(12)] "message", source: file:///...
    return done.stdout, re.findall(r"CONSOLE[:(][^\n]*", done.stderr)


def problems_of(dom, console):
    found = [f"console: {line}" for line in console]
    for chart in CHARTS:
        start = dom.find(f'id="chart-{chart}"')
        drawn = start >= 0 and "<svg" in dom[start:dom.find("</figure>", start)]
        if not drawn:
            found.append(f"chart '{chart}' was not drawn")
    if "aria-sort" not in dom and "<button" not in dom:
        found.append("the tables did not become sortable")
    return found


def main():
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        print("skipped: no Chromium on this machine (apt-get install chromium)")
        return SKIPPED
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        page = pathlib.Path(folder, "report.html")
        subprocess.run([sys.argv[1], str(page)], check=True)
        failures = problems_of(*open_page(browser, page, pathlib.Path(folder, "profile")))
        # A gate that cannot fail is none: the same page with a fault planted must be caught.
        broken = pathlib.Path(folder, "broken.html")
        broken.write_text(page.read_text().replace("function drawFunnel(choice) {", "function drawFunnel(choice) { planted_fault();"))
        if not problems_of(*open_page(browser, broken, pathlib.Path(folder, "profile"))):
            failures.append("a page with a planted script error passed")
        # Nor may markup that got into the page run: the policy names our own script and style sheet, and no other.
        injected = pathlib.Path(folder, "injected.html")
        injected.write_text(page.read_text().replace("<main>", "<main><script>document.title = 'ran'</script><img src=data: onerror=\"document.title = 'ran'\">"))
        dom, console = open_page(browser, injected, pathlib.Path(folder, "profile"))
        if "<title>ran" in dom or not any("Content Security Policy" in line for line in console):
            failures.append(f"an injected script ran, or the page's policy said nothing: {console}")
    for failure in failures:
        print("FAILED:", failure)
    print(f"{len(CHARTS)} charts drawn, console clean, planted fault caught, injected script refused" if not failures else f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
