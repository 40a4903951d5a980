"""Whether memory stays flat over a thousand rounds, on Ray.

100 clients that send a 2 MB model back as it came and keep 1 KB, another after each turn; 2 actors
on a local Ray, exact sums, a checkpoint after every tenth round.
"""

import numpy as np

from tests.benchmarks.rounds import measure

TITLE = "Memory over a thousand rounds of 100 clients with a state of 1 KB: 2 MB model, local Ray"
CLIENTS, ROUNDS, KEPT = 100, 1000, 256
SHOWN = (2, 20, 100, 200, 500, 800, 1000)


def slope(values, first):
    """KB a round, by least squares from a round on."""
    return float(np.polyfit(np.arange(first, len(values)), values[first:], 1)[0] * 1e3)


def table():
    """MB after some rounds, as a Markdown table; then the slope over the second half."""
    seen = measure(CLIENTS, ROUNDS, KEPT, every=10)
    cells = " | ".join(f"round {n}, MB" if n == SHOWN[0] else str(n) for n in SHOWN)
    lines = [
        f"| | {cells} | slope from round {ROUNDS // 2}, KB a round |",
        "|" + " --- |" * (len(SHOWN) + 2),
    ]
    for name, values in (
        ("driver", seen.driver),
        ("both actors", seen.actors),
        ("object store", seen.store),
    ):
        at = " | ".join(f"{values[n - 1]:,.0f}" for n in SHOWN)
        lines.append(f"| {name} | {at} | {slope(values, ROUNDS // 2):.1f} |")
    return "\n".join(lines)
