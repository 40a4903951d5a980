"""Kills processes and damages files at random until the time is over: `make chaos`.

    python -m tests.chaos minutes=60 seed=1 out=build/chaos

Trials of all kinds take turns. Each draws what it does from a seed of its own, which is printed;
`python -m tests.chaos kinds=[driver] seed=SEED trials=1` repeats one. It ends with 1 if a trial
went wrong.
"""

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveFloat, PositiveInt

from coterie.commands.arguments import read_values
from coterie.config.component import Component
from coterie.config.loading import load_component
from coterie.tracking.environment import commit
from tests.chaos.apart import run_apart
from tests.chaos.files import FILES
from tests.chaos.kills import KILLS

KINDS: Mapping[str, Callable[[random.Random, Path], str]] = {**FILES, **KILLS}
"""Kind to a trial: it draws from the generator, works in the folder and says how it ended."""
_TURN = (*(6 * tuple(FILES)), *KILLS)
"""Trials with files take a second, those with killed processes a minute or two."""
_LIMIT_S = 1200
"""A trial that takes longer hangs."""


class Chaos(Component):
    """What to do."""

    minutes: PositiveFloat = 60.0
    seed: int = Field(default_factory=lambda: time.time_ns() % 2**31)
    trials: PositiveInt | None = None
    kinds: tuple[str, ...] = _TURN
    out: str = "build/chaos"


def run(chaos: Chaos) -> list[dict[str, Any]]:
    """Run trials in turns until the time is over; every trial is also a line of `trials.jsonl`."""
    folder = Path(chaos.out).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    ending, rows = time.monotonic() + 60 * chaos.minutes, []
    with (folder / "trials.jsonl").open("w") as log:
        while time.monotonic() < ending and len(rows) != chaos.trials:
            kind, seed = chaos.kinds[len(rows) % len(chaos.kinds)], chaos.seed + len(rows)
            rows.append(trial(kind, seed, folder))
            log.write(json.dumps(rows[-1]) + "\n")
            log.flush()
            sys.stdout.write(f"{kind} seed={seed}: {rows[-1]['result']}\n")
            sys.stdout.flush()
    return rows


def trial(kind: str, seed: int, folder: Path) -> dict[str, Any]:
    """Run one trial; its result starts with "WRONG" if it did not end as it has to."""
    began, place = time.monotonic(), folder / f"{kind}-{seed}"
    place.mkdir(exist_ok=True)
    result = run_apart(lambda: KINDS[kind](random.Random(seed), place), _LIMIT_S)
    return {"kind": kind, "seed": seed, "result": result, "seconds": time.monotonic() - began}


def table(rows: list[dict[str, Any]]) -> str:
    """The trials by kind, as Markdown."""
    lines = ["| what | trials | ended as | wrong | s |", "| --- | --- | --- | --- | --- |"]
    for kind in dict.fromkeys(row["kind"] for row in rows):
        own = [row for row in rows if row["kind"] == kind]
        wrong = sum(row["result"].startswith("WRONG") for row in own)
        ends = Counter(row["result"] for row in own if not row["result"].startswith("WRONG"))
        told = ", ".join(f"{end} {count}" for end, count in sorted(ends.items()))
        seconds = sum(row["seconds"] for row in own)
        lines.append(f"| {kind} | {len(own)} | {told} | {wrong} | {seconds:.0f} |")
    return "\n".join(lines)


def main() -> int:
    """Run the session that the arguments ask for, and print its table."""
    chaos = load_component(Chaos, read_values(sys.argv[1:]))
    sys.stdout.write(f"seed={chaos.seed} minutes={chaos.minutes:g}\n")
    rows = run(chaos)
    where = f"{os.cpu_count()} CPUs, load {os.getloadavg()[1]:.0f}, commit {commit()}"
    text = f"{table(rows)}\n\nseed={chaos.seed}, {len(rows)} trials, {where}\n"
    (Path(chaos.out) / "table.md").write_text(text)
    sys.stdout.write(text)
    return int(any(row["result"].startswith("WRONG") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
