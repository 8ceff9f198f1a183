"""The chart that scripts/readme-tables writes: how many times faster flashcore is than each peer, a dot for each problem."""
import html
import math

WIDTH, LEFT, RIGHT, TOP, ROW, BOTTOM = 820, 160, 90, 34, 66, 62
RADIUS = 4
# Colours of the text, lines and dots on a light and on a dark page. The background is the page's.
STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
  .small { font-size: 12px; fill: #59636e; } .mean { font-weight: 600; }
  .grid { stroke: #d1d9e0; } .equal { stroke: #59636e; stroke-width: 1.5; } .bar { stroke: #0550ae; stroke-width: 2.5; }
  .dot { fill: #218bff; fill-opacity: .55; stroke: #0550ae; } .decode { fill: none; stroke: #bc4c00; stroke-width: 1.6; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .small { fill: #9198a1; }
    .grid { stroke: #3d444d; } .equal { stroke: #9198a1; } .bar { stroke: #a5d6ff; }
    .dot { fill: #58a6ff; stroke: #a5d6ff; } .decode { stroke: #ffa657; }
  }
"""


def spread(places):
    """For each place along a row, how far above or below the row's middle its dot goes so that it covers no other."""
    put = []
    for x in places:
        levels = sorted(range(-3, 4), key=lambda level: (abs(level), level))
        free = [level for level in levels if all((x - other) ** 2 + ((level - at) * 2 * RADIUS) ** 2 >= (2 * RADIUS) ** 2 for other, at in put)]
        put.append((x, free[0] if free else 0))
    return [level * 2 * RADIUS for _, level in put]


def draw(rows, title, note):
    """`rows`: of (peer, [(problem, speed-up, whether it is decoding)], geometric mean or None)."""
    values = [value for _, dots, _ in rows for _, value, _ in dots]
    low, high = 0.93 * min([1, *values]), 1.07 * max([2, *values])
    height = TOP + ROW * len(rows) + BOTTOM

    def x(value):
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(value / low) / math.log(high / low)

    means = ", ".join(f"{peer} {mean:.2f}" for peer, _, mean in rows if mean)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-labelledby="title means">',
           f'<title id="title">{html.escape(title)}</title>', f'<desc id="means">Geometric means: {html.escape(means)}.</desc>', f"<style>{STYLE}</style>",
           f'<text x="{LEFT - 14}" y="22" text-anchor="end" class="small">times faster than</text>', f'<text x="{WIDTH - RIGHT + 14}" y="22" class="small">mean</text>']  # fmt: skip
    bottom = TOP + ROW * len(rows)
    for step in (2.0**power for power in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)):
        out.append(f'<line class="{"equal" if step == 1 else "grid"}" x1="{x(step):.1f}" x2="{x(step):.1f}" y1="{TOP}" y2="{bottom}"/>')
        out.append(f'<text class="small" x="{x(step):.1f}" y="{bottom + 18}" text-anchor="middle">{step:g}×</text>')
    for index, (peer, dots, mean) in enumerate(rows):
        middle = TOP + ROW * (index + 0.5)
        out.append(f'<text x="{LEFT - 14}" y="{middle + 4:.1f}" text-anchor="end">{html.escape(peer)}</text>')
        dots = sorted(dots, key=lambda dot: dot[1])
        places = [x(value) for _, value, _ in dots]
        for (problem, value, decode), across, off in zip(dots, places, spread(places)):
            kind = "decode" if decode else "dot"
            out.append(f'<circle class="{kind}" cx="{across:.1f}" cy="{middle + off:.1f}" r="{RADIUS}"><title>{html.escape(problem)}: {value:.2f}×</title></circle>')
        if mean:
            out.append(f'<line class="bar" x1="{x(mean):.1f}" x2="{x(mean):.1f}" y1="{middle - ROW / 2 + 5:.1f}" y2="{middle + ROW / 2 - 5:.1f}"/>')
            out.append(f'<text class="mean" x="{WIDTH - RIGHT + 14}" y="{middle + 4:.1f}">{mean:.2f}×</text>')
    key = bottom + 42
    out += [f'<circle class="dot" cx="{LEFT + 6}" cy="{key - 4}" r="{RADIUS}"/><text class="small" x="{LEFT + 18}" y="{key}">a problem</text>',
            f'<circle class="decode" cx="{LEFT + 106}" cy="{key - 4}" r="{RADIUS}"/><text class="small" x="{LEFT + 118}" y="{key}">decoding</text>',
            f'<line class="bar" x1="{LEFT + 200}" x2="{LEFT + 200}" y1="{key - 11}" y2="{key + 2}"/>'
            f'<text class="small" x="{LEFT + 210}" y="{key}">geometric mean without decoding; {html.escape(note)}</text>', "</svg>", ""]  # fmt: skip
    return "\n".join(out)
