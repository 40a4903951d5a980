"""A run on a cluster scaled to zero, second by second: its autoscaler brings nodes, and takes them.

`python -m tests.benchmarks.elastic docs/figures/elastic.png` draws it too. The nodes are processes
of this machine, which start in seconds; a cloud's take minutes. FedMCC on digits, 5 clients, 40
rounds of each stage, a node of one CPU for each of two actors; idle nodes end after 3 seconds.
"""

import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import load_file

from coterie.commands.compose import compose
from coterie.evaluation.canvas import COLOURS, blank, save
from coterie.run.federation import Federation
from tests.builders.autoscaling import Autoscaled
from tests.builders.observers import Silent

TITLE = "A run on a cluster scaled to zero"
RUN = (
    "experiment=fedmcc_digits",
    "executor=bare",
    "method.representation_rounds=40",
    "method.clustering_rounds=40",
    "evaluation.every=0",
    "evaluation.figures=false",
)


class Elastic(NamedTuple):
    """What was seen, in seconds since the command.

    Attributes:
        nodes: (second, workers) at each change.
        rounds: When each round was over.
        notes: (second, what the run said of its actors).
        ended: When the command was over.
        same: Whether the model is the serial backend's to the bit.
    """

    nodes: list[tuple[float, int]]
    rounds: list[float]
    notes: list[tuple[float, str]]
    ended: float
    same: bool


def watch(folder):
    """Run, and look at nodes and at what the run writes, ten times a second."""
    cluster = Autoscaled(folder, 1)
    try:
        cluster.wait_until_up()
        run, begun = folder / "run", time.perf_counter()
        where = (f"run_dir={run}", f"cluster.address={cluster.address}", "tracking.progress=lines")
        driver = subprocess.Popen(
            [sys.executable, "-m", "coterie.jobs.train", *RUN, *where, "cluster.min_actors=1"],
            env=cluster.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = []

        def read():
            lines.extend((time.perf_counter() - begun, line.strip()) for line in driver.stdout)

        reader = threading.Thread(target=read)
        reader.start()
        nodes, rounds, ended = [(0.0, 0)], [], None
        while ended is None or (nodes[-1][1] and time.perf_counter() - begun < ended + 60):
            now, seen = time.perf_counter() - begun, cluster.workers()
            if seen != nodes[-1][1]:
                nodes.append((now, seen))
            rounds += [now] * (finished(run) - len(rounds))
            if ended is None and driver.poll() is not None:
                ended = now
            time.sleep(0.1)
        reader.join()
        if driver.returncode:
            raise RuntimeError("\n".join(line for _, line in lines))
        alone = folder / "serial"
        Federation(compose(*RUN, "cluster=serial", f"run_dir={alone}"), Silent()).run()
        mine, theirs = (load_file(path / "model/model.safetensors") for path in (run, alone))
        same = all(mine[name].equal(theirs[name]) for name in theirs)
        notes = [(at, line) for at, line in lines if re.match("Waiting for actors|Actors: ", line)]
        return Elastic(nodes, rounds, notes, ended, same)
    finally:
        cluster.close()


def finished(run):
    """How many rounds `metrics.jsonl` has."""
    path = run / "metrics.jsonl"
    if not path.exists():
        return 0
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return sum(row["scope"] == "server" for row in rows)


def events(seen):
    """(second, what happened), in order."""
    yield from ((at, f"{count} worker node{'' if count == 1 else 's'}") for at, count in seen.nodes)
    yield from seen.notes
    yield seen.rounds[0], "round 1 is over"
    yield seen.rounds[-1], f"round {len(seen.rounds)} is over"
    yield seen.ended, "the command has ended"


def table(seen=None):
    """What happened when, as a Markdown table."""
    if seen is None:
        with tempfile.TemporaryDirectory() as name:
            seen = watch(Path(name))
    lines = ["| s | what happened |", "| --- | --- |"]
    lines += [f"| {at:.1f} | {what} |" for at, what in sorted(events(seen))]
    return "\n".join([*lines, "", f"The serial backend's bits: {'yes' if seen.same else 'no'}."])


def draw(seen, path):
    """Nodes and finished rounds over time."""
    figure = blank(7.0, 2.8)
    left = figure.subplots()
    last = (max(seen.nodes[-1][0], seen.ended) + 2, seen.nodes[-1][1])
    times, counts = zip(*seen.nodes, last, strict=True)
    left.step(times, counts, where="post", color=COLOURS[0])
    left.set_yticks([0, 1, 2])
    left.set_ylabel("worker nodes", color=COLOURS[0])
    left.set_xlabel("seconds since the command")
    right = left.twinx()
    right.plot(seen.rounds, range(1, len(seen.rounds) + 1), color=COLOURS[1])
    right.set_ylabel("rounds finished", color=COLOURS[1])
    right.set_ylim(bottom=0)
    left.axvline(seen.ended, color="0.6", linewidth=0.8, linestyle="--")
    for axes in (left, right):
        axes.spines["top"].set_visible(False)
    save(figure, path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = watch(Path(folder))
    sys.stdout.write(f"{table(found)}\n")
    if sys.argv[1:]:
        draw(found, Path(sys.argv[1]))
