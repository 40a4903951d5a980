"""Very many clients, and very large models: seconds and memory of a round.

Clients that send the model back as it came, all of them in each round; exact sums. All lies in the
memory of one machine. `python -m tests.benchmarks.sizes 10 250 2` measures ten clients with a model
of 250 MB on two actors (0: the serial backend), and adds a line to the data.
"""

import csv
import os
import sys
from pathlib import Path

from coterie.config.free_memory import unclaimed_memory
from coterie.run.memory import round_bytes
from tests.benchmarks.noop import NoOp
from tests.benchmarks.processes import Peak
from tests.benchmarks.rounds import measure

TITLE = "Very many clients, and very large models"
DATA = Path(__file__).parents[2] / "docs" / "results" / "data" / "sizes.csv"
HEADS = ("clients", "model, MB", "actors", "told beforehand, MB", "peak, MB", "rounds, s", "load")
ROUNDS = 3
_STORE = 0.3
"""Ray's object store, as a share of the free memory."""


def told(elements, actors):
    """MB that a round is said to take, before anything takes them."""
    method = NoOp(NoOp.Config(rounds=1, elements=1), None)
    server = method.init(None, 0)
    store = _STORE * unclaimed_memory() / elements
    return round_bytes(method.next(server), server, actors, store) * elements / 1e6


def line(clients, size, actors):
    """Clients, MB of the model, actors, and what was seen of the run."""
    said, peak = told(size * 250_000, actors), Peak(os.getpid())
    seen = measure(clients, ROUNDS, elements=size * 250_000, actors=actors)
    peak.stop()
    seconds = ", ".join(f"{s:.1f}" for s in seen.seconds)
    return (clients, size, actors, round(said), round(peak.mb), seconds, round(os.getloadavg()[1]))


def table():
    """The data, as a Markdown table."""
    with DATA.open(newline="") as file:
        _, *lines = csv.reader(file)
    heads = f"| {' | '.join(HEADS)} |", "|" + " --- |" * len(HEADS)
    rows = [[f"{int(n):,}" if n.isdigit() else n for n in cells] for cells in lines]
    return "\n".join([*heads, *(f"| {' | '.join(cells)} |" for cells in rows)])


if __name__ == "__main__":
    measured = line(*map(int, sys.argv[1:]))
    new = not DATA.exists()
    with DATA.open("a", newline="") as data:
        csv.writer(data, lineterminator="\n").writerows([HEADS, measured] if new else [measured])
