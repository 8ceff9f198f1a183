"""Opens a timeline's page in headless Chromium as a reader would: lanes are drawn, buttons work, nothing is wider than a phone's screen.

usage: timeline_browser_test.py FLASHCORE
Skipped (exit 77) where there is no Chromium; ./run-tests installs it.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from report_browser_test import SKIPPED, open_page, sizes_at

RUN = ["timeline", "--device", "emulator", "--problem", "b1_h1_s128_d64_fp16", "--family", "sm90_fwd", "--quiet"]
WARPS = 9  # a producer, and eight of two consumer warpgroups
POLICY = re.compile(r'<meta http-equiv=Content-Security-Policy content="[^"]*">')
# Clicks as a reader does, and what the page then shows.
CLICKS = """<script>addEventListener('load', () => {
  const widths = () => [...document.querySelectorAll('#lanes g rect')].reduce((sum, rect) => sum + Number(rect.getAttribute('width')), 0);
  const count = () => document.querySelectorAll('#lanes g rect').length, say = (name, value) => { document.body.dataset[name] = value; };
  const first = document.querySelector('#lanes g rect').getAttribute('width');
  say('whole', count());
  document.getElementById('zoom-in').click(); document.getElementById('zoom-in').click();
  say('zoomed', count() < Number(document.body.dataset.whole) && widths() > 0);
  document.getElementById('whole').click();
  say('back', count() === Number(document.body.dataset.whole) && document.querySelector('#lanes g rect').getAttribute('width') === first);
  document.querySelector('#lanes g rect').dispatchEvent(new PointerEvent('pointerover', {bubbles: true}));
  say('under', document.getElementById('under').textContent);
});</script>"""


def problems_of(dom, console):
    found = [f"console: {line}" for line in console]
    lanes = dom[dom.find('id="lanes"'):dom.find("</figure>")]
    if lanes.count("<g ") != WARPS:
        found.append(f"{lanes.count('<g ')} lanes were drawn, not {WARPS}")
    for activity in ("qk", "softmax", "pv", "wait_k", "load_k", "epilogue"):
        if f'class="a-{activity}"' not in lanes:
            found.append(f"no lane shows '{activity}'")
    if dom.count("<li>") < 6:
        found.append("the legend is not there")
    return found


def problems_of_clicks(dom):
    said = dict(re.findall(r'data-(whole|zoomed|back|under)="([^"]*)"', dom[dom.find("<body"):dom.find("<main")]))
    found = [] if int(said.get("whole", 0)) > 50 else [f"few segments were drawn: {said}"]
    for name in ("zoomed", "back"):
        if said.get(name) != "true":
            found.append(f"'{name}' is {said.get(name)}: {said}")
    if not re.search(r"^warp \d+, .+: \d+ steps from \d+ steps on$", said.get("under", "")):
        found.append(f"a segment under the pointer says '{said.get('under')}'")
    return found


def main():
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        print("skipped: no Chromium on this machine (apt-get install chromium)")
        return SKIPPED
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        folder = pathlib.Path(folder)
        page = folder / "timeline.html"
        subprocess.run([sys.argv[1], *RUN, "--html", str(page)], check=True)
        text = page.read_text(encoding="utf-8")

        def opened(name, changed):
            file = folder / name
            file.write_text(changed, encoding="utf-8")
            return open_page(browser, file, folder / "profile")

        failures = problems_of(*opened("page.html", text))
        # A gate that cannot fail is none. Without the policy, which would refuse the changed script for its hash alone.
        bare = POLICY.sub("", text)
        if not problems_of(*opened("broken.html", bare.replace("function drawLane(", "function drawLane() { planted_fault(); }\nfunction other("))):
            failures.append("a page with a planted script error passed")
        if not problems_of(*opened("empty.html", bare.replace('"segments":[', '"segments":[],"other":['))):
            failures.append("a page whose lanes are empty passed")
        failures += problems_of_clicks(opened("clicked.html", bare + CLICKS)[0])
        if not problems_of_clicks(opened("stuck.html", bare.replace("zoom(.5)", "zoom(1)") + CLICKS)[0]):
            failures.append("a page whose zoom does nothing passed")
        sizes = sizes_at(browser, text, folder, 420)
        if sizes is None or sizes["scroll"] > sizes["inner"]:
            failures.append(f"at 420 pixels the page scrolls sideways: {sizes}")
        dom, console = opened("injected.html", text.replace("<main>", "<main><script>document.title = 'ran'</script>"))
        if "<title>ran" in dom or not any("Content Security Policy" in line for line in console):
            failures.append(f"an injected script ran, or the page's policy said nothing: {console}")
    for failure in failures:
        print("FAILED:", failure)
    print(f"{len(failures)} failures" if failures else f"{WARPS} lanes drawn, zoom works, console clean, fits 420 pixels, planted faults caught")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
