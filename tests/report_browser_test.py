"""Opens a report in headless Chromium as a reader would: no console error, no missing chart, nothing wider than a phone's screen.

usage: report_browser_test.py REPORT_EXAMPLE_PROGRAM
Skipped (exit 77) where there is no Chromium; ./run-tests installs it.
"""
import html
import json
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


# Chromium's window is never narrower than 500 pixels, a frame may be. The page tells its sizes to the page around it.
NARROW = """<!doctype html><iframe src="{page}" style="width:{width}px; height:900px; border:0"></iframe><pre id=sizes></pre>
<script>addEventListener('message', event => document.getElementById('sizes').textContent = JSON.stringify(event.data))</script>"""
TELL = """<script>addEventListener('load', () => setTimeout(() => {
  const labels = axis => [...document.querySelectorAll(`#chart-roofline .${axis}tick text`)].map(label => label.textContent);
  parent.postMessage({scroll: document.documentElement.scrollWidth, inner: innerWidth, x: labels('x'), y: labels('y')}, '*');
}, 3000))</script>"""


def sizes_at(browser, page, folder, width):
    """What the page measures of itself when it is `width` pixels wide."""
    # Its own policy would refuse our script.
    inside, around = folder / "inside.html", folder / "around.html"
    inside.write_text(re.sub(r'<meta http-equiv=Content-Security-Policy content="[^"]*">', "", page) + TELL)
    around.write_text(NARROW.format(page=inside.as_uri(), width=width))
    dom, _ = open_page(browser, around, folder / "profile", "--window-size=1000,1000")
    found = re.search(r"<pre id=\"sizes\">(.+?)</pre>", dom, re.DOTALL)
    return json.loads(html.unescape(found[1])) if found else None


def problems_when_narrow(sizes, width):
    if sizes is None or sizes["inner"] != width:
        return [f"at {width} pixels the page told no sizes: {sizes}"]
    found = []
    if sizes["scroll"] > sizes["inner"]:
        found.append(f"at {width} pixels the page is {sizes['scroll']} wide and scrolls sideways")
    for axis in "xy":
        if len(sizes[axis]) < 3:
            found.append(f"at {width} pixels the roofline's {axis} axis has the labels {sizes[axis]}")
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
        # On a phone; and one chart that keeps its width must be caught.
        folder = pathlib.Path(folder)
        failures += problems_when_narrow(sizes_at(browser, page.read_text(), folder, 420), 420)
        wide = page.read_text().replace("<main>", "<main><div style='width:700px'>wide</div>")
        if not problems_when_narrow(sizes_at(browser, wide, folder, 420), 420):
            failures.append("a page with something 700 pixels wide passed for 420")
        # Nor may markup that got into the page run: the policy names our own script and style sheet, and no other.
        injected = pathlib.Path(folder, "injected.html")
        injected.write_text(page.read_text().replace("<main>", "<main><script>document.title = 'ran'</script><img src=data: onerror=\"document.title = 'ran'\">"))
        dom, console = open_page(browser, injected, pathlib.Path(folder, "profile"))
        if "<title>ran" in dom or not any("Content Security Policy" in line for line in console):
            failures.append(f"an injected script ran, or the page's policy said nothing: {console}")
    for failure in failures:
        print("FAILED:", failure)
    print(f"{len(CHARTS)} charts drawn, console clean, fits 420 pixels, planted faults caught, injected script refused" if not failures else f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
