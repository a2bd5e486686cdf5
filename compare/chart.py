#!/usr/bin/env python3
"""Draws what compare measured: in each row, how many times as fast Varve is as each other engine.

usage: chart.py RESULTS.json.. > CHART.svg

Reads what `--out` wrote; a row that several files have is taken from the last. Needs nothing but Python 3.9.
"""

import json
import math
import sys
from html import escape

WIDTH, LEFT, RIGHT, TOP, STEP, BOTTOM = 1000, 430, 30, 70, 30, 70
# Colours that hold against light and dark (Okabe and Ito), and shapes for those who see no colours.
ENGINES = {
    "sqlite": ("#0072b2", "square"),
    "rocksdb": ("#d55e00", "circle"),
    "lmdb": ("#009e73", "diamond"),
    "redb": ("#cc79a7", "triangle"),
    "fjall": ("#56b4e9", "square"),
    "sled": ("#e69f00", "circle"),
    "wiredtiger": ("#8c6bb1", "diamond"),
}
STYLE = """
svg { color-scheme: light dark; --ink: #1b1b1b; --dim: #666; --grid: #ddd; --paper: #fff; }
@media (prefers-color-scheme: dark) { svg { --ink: #e8e8e8; --dim: #a0a0a0; --grid: #3a3a3a; --paper: #161616; } }
text { fill: var(--ink); font: 13px system-ui, sans-serif; } .dim { fill: var(--dim); font-size: 12px; }
line { stroke: var(--grid); } .one { stroke: var(--ink); } .paper { fill: var(--paper); }
"""


def mark(shape, x, y, colour):
    """A mark of about ten by ten."""
    if shape == "circle":
        return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='5' fill='{colour}'/>"
    points = {
        "square": [(-4.5, -4.5), (4.5, -4.5), (4.5, 4.5), (-4.5, 4.5)],
        "diamond": [(0, -6), (6, 0), (0, 6), (-6, 0)],
        "triangle": [(0, -6), (5.5, 4.5), (-5.5, 4.5)],
    }[shape]
    places = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in points)
    return f"<polygon points='{places}' fill='{colour}'/>"


def ratios(row):
    """Varve's median over that of each other engine."""
    medians = {figure["engine"]: figure["median"] for figure in row["figures"]}
    # sled's flush leaves rows in the drive's cache.
    left_out = {"sled"} if row["row"].startswith("durable") else set()
    others = [engine for engine in ENGINES if medians.get(engine) and engine not in left_out]
    return {engine: medians["varve"] / medians[engine] for engine in others} if "varve" in medians else {}


def main(paths):
    rows, origins = {}, []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
        origins.append(result["origin"])
        rows.update({row["row"]: (row["title"], ratios(row)) for row in result["rows"]})
    rows = {name: row for name, row in rows.items() if row[1]}
    if not rows:
        sys.exit("these results compare Varve with no other engine")
    found = [ratio for _, others in rows.values() for ratio in others.values()]
    low, high = math.floor(math.log2(min(found + [1]))), math.ceil(math.log2(max(found + [1])))
    height = TOP + STEP * len(rows) + BOTTOM

    def across(ratio):
        return LEFT + (math.log2(ratio) - low) / max(high - low, 1) * (WIDTH - LEFT - RIGHT)

    out = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' role='img'>",
        "<title>How many times as fast Varve is as other engines</title>",
        f"<style>{STYLE}</style><rect class='paper' width='{WIDTH}' height='{height}'/>",
        "<text x='14' y='24'>Varve's rate over that of each other engine; right of 1 Varve is faster</text>",
    ]
    for place, engine in enumerate(sorted({engine for _, others in rows.values() for engine in others})):
        x = 20 + place * 120
        out.append(mark(ENGINES[engine][1], x, 44, ENGINES[engine][0]) + f"<text x='{x + 12}' y='49'>{engine}</text>")
    end = height - BOTTOM + 8
    for power in range(low, high + 1):
        x, kind = across(2.0**power), " class='one'" if power == 0 else ""
        label = f"{2**power}" if power >= 0 else f"1/{2**-power}"
        out.append(f"<line{kind} x1='{x:.1f}' x2='{x:.1f}' y1='{TOP - 8}' y2='{end}'/>")
        out.append(f"<text x='{x:.1f}' y='{end + 18}' text-anchor='middle'>{label}</text>")
    for place, (title, others) in enumerate(rows.values()):
        y = TOP + STEP * (place + 0.5)
        out.append(f"<text x='{LEFT - 16}' y='{y + 4:.1f}' text-anchor='end'>{escape(title)}</text>")
        out.append(f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y:.1f}' y2='{y:.1f}'/>")
        out.extend(mark(ENGINES[engine][1], across(ratio), y, ENGINES[engine][0]) for engine, ratio in others.items())
    said = {f"{origin['processor']}, {origin['date']}, commit {origin['commit']}" for origin in origins}
    out.append(f"<text class='dim' x='14' y='{height - 16}'>{escape('; '.join(sorted(said)))}</text></svg>")
    print("\n".join(out))


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__.strip())
    main(sys.argv[1:])
