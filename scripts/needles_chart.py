"""The chart and the table that scripts/readme-tables writes of `flashcore check --needles --json`: drift from bf16 over the number of keys."""
import html
import math

WIDTH, LEFT, TOP, PANEL_W, PANEL_H, GAP_X, GAP_Y = 860, 64, 52, 240, 190, 22, 66
COLOURS = ["#218bff", "#e16f24", "#2da44e", "#a475f9", "#fa4549", "#8c959f"]  # seen on a light and on a dark page
STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
  .small { font-size: 11px; fill: #59636e; } .grid { stroke: #d1d9e0; } .limit { stroke: #59636e; stroke-dasharray: 5 4; fill: none; stroke-width: 1.5; }
  .line { fill: none; stroke-width: 2; }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .small { fill: #9198a1; } .grid { stroke: #3d444d; } .limit { stroke: #9198a1; } }
"""


def family_of(candidate):
    return candidate["candidate"].split(":")[0]


def interval_of(candidate):
    """(sorts, in words): how often the candidate's sums are promoted."""
    promotion = candidate["promotion"]
    if promotion is None:
        return (math.inf, "sums in fp32")
    name = f"{promotion['field']}={promotion['value']}"
    return (promotion["value"] or math.inf, name if promotion["value"] else f"{name} (never)")


def series(results):
    """{family: {interval: {head dim: [(keys, candidate, result)]}}}; of equal intervals the one that is gated."""
    found = {}
    for result in results:
        for candidate in sorted(result["candidates"], key=lambda each: not each["gated"]):
            points = found.setdefault(family_of(candidate), {}).setdefault(interval_of(candidate), {}).setdefault(result["head_dim"], [])
            if all(keys != result["seqlen_kv"] for keys, _, _ in points):
                points.append((result["seqlen_kv"], candidate, result))
    return found


def short(keys):
    return f"{keys // 1024}k" if keys % 1024 == 0 else str(keys)


def table(results):
    lengths = sorted({result["seqlen_kv"] for result in results})
    lines = ["| family | promoted | head dim | " + " | ".join(f"{short(keys)} keys" for keys in lengths) + " |", "| --- | --- | ---: |" + " ---: |" * len(lengths)]
    for family, intervals in sorted(series(results).items()):
        for interval in sorted(intervals):
            for dim, points in sorted(intervals[interval].items()):
                cells = dict.fromkeys(lengths, "–")
                for keys, candidate, result in points:
                    text = f"{candidate['needles']['found']} of {result['bf16']['needles']['found']}, {candidate['drift']['o_rms']:.2g}"
                    cells[keys] = text if candidate["finds"] and candidate["stays"] else f"**{text}**"
                usual = " (default)" if points[0][1]["gated"] else ""
                lines.append(f"| `{family}` | {interval[1]}{usual} | {dim} | " + " | ".join(cells.values()) + " |")
    return "\n".join(lines)


def draw(results, device):
    families = sorted(series(results).items())
    dims, lengths = sorted({result["head_dim"] for result in results}), sorted({result["seqlen_kv"] for result in results})
    drifts = [value for result in results for each in result["candidates"] for value in (each["drift"]["o_rms"], each["limit"]["o_rms"])]
    low, high = 10 ** math.floor(math.log10(min(drifts))), 10 ** math.ceil(math.log10(max(drifts)))
    height = TOP + len(families) * (PANEL_H + GAP_Y)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-labelledby="title">',
           f'<title id="title">Drift of 8-bit attention from bf16 over the number of keys, {html.escape(device)}</title>', f"<style>{STYLE}</style>"]  # fmt: skip
    for row, (family, intervals) in enumerate(families):
        top = TOP + row * (PANEL_H + GAP_Y)
        legend = LEFT + 120
        out.append(f'<text x="{LEFT}" y="{top - 26}">{html.escape(family)}</text>')
        for number, interval in enumerate(sorted(intervals)):
            out.append(f'<text class="small" x="{legend}" y="{top - 26}" style="fill:{COLOURS[number % len(COLOURS)]}">{html.escape(interval[1])}</text>')
            legend += 8 * len(interval[1])
        for column, dim in enumerate(dims):
            left = LEFT + column * (PANEL_W + GAP_X)

            def place(keys, drift, left=left, top=top):
                span = math.log(lengths[-1] / lengths[0]) or 1
                return left + 8 + (PANEL_W - 16) * math.log(keys / lengths[0]) / span, top + PANEL_H * math.log(high / drift) / math.log(high / low)

            out.append(f'<text class="small" x="{left + PANEL_W / 2}" y="{top - 8}" text-anchor="middle">head dim {dim}</text>')
            for power in range(round(math.log10(low)), round(math.log10(high)) + 1):
                y = place(lengths[0], 10.0**power)[1]
                out.append(f'<line class="grid" x1="{left}" x2="{left + PANEL_W}" y1="{y:.1f}" y2="{y:.1f}"/>')
                if column == 0:
                    out.append(f'<text class="small" x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
            for keys in lengths:
                out.append(f'<text class="small" x="{place(keys, high)[0]:.1f}" y="{top + PANEL_H + 16}" text-anchor="middle">{short(keys)}</text>')
            limits = {keys: each["limit"]["o_rms"] for interval in intervals.values() for keys, each, _ in interval.get(dim, [])}
            out.append('<polyline class="limit" points="' + " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in sorted(limits.items())) + '"/>')
            for number, interval in enumerate(sorted(intervals)):
                colour, points = COLOURS[number % len(COLOURS)], sorted(intervals[interval].get(dim, []), key=lambda point: point[0])
                ends = [place(keys, each["drift"]["o_rms"]) for keys, each, _ in points]
                out.append(f'<polyline class="line" stroke="{colour}" points="' + " ".join(f"{x:.1f},{y:.1f}" for x, y in ends) + '"/>')
                for (x, y), (keys, each, _) in zip(ends, points):
                    fill = colour if each["finds"] else "none"
                    out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" stroke="{colour}" fill="{fill}"><title>{html.escape(each["candidate"])}, {keys} keys: {html.escape(each["verdict"])}</title></circle>')
    out.append(f'<text class="small" x="{LEFT}" y="{height - 12}">rms drift of o from bf16, of its rms, over keys; dashed: the limit; hollow: loses needles; {html.escape(device)}</text>')
    return "\n".join([*out, "</svg>", ""])
