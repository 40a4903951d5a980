"""Trials with killed processes and lying clients: the bits are those of the undisturbed run."""

import signal
from pathlib import Path
from random import Random
from typing import Any

from tests.builders.every_method import CHOICES, small
from tests.builders.runs import SMALL
from tests.chaos.commands import KILLED, killed, timed
from tests.distributed import test_faults_on_ray as faults
from tests.runs import test_driver_killed as driver
from tests.runs import test_misbehaviour as misbehaviour


def actor(draw: Random, folder: Path) -> str:
    """An actor of any method, killed in a random phase."""
    choice = draw.choice(CHOICES)
    _, cost = faults.sweep(1, seed=draw.random(), keys=small(choice))
    return "same bits, a call lost" if cost else "same bits"


def masked_actor(draw: Random, folder: Path) -> str:
    """An actor whose clients' sums are masked."""
    keys = (*small("fedavg"), "privacy.secure_aggregation=true")
    _, cost = faults.sweep(1, seed=draw.random(), keys=keys)
    return "same bits, a call lost" if cost else "same bits"


def stopped_actor(draw: Random, folder: Path) -> str:
    """An actor that stands still for a second."""
    faults.sweep(1, seed=draw.random(), keys=SMALL, sent=signal.SIGSTOP)
    return "same bits"


def run_driver(draw: Random, folder: Path) -> str:
    """The driver of any method, killed again and again and resumed."""
    choice = draw.choice(CHOICES)
    keys = (*small(choice), *driver.EVERY)
    expected, seconds = _undisturbed(choice, folder.parent)
    driver.kill_until_done(folder / "run", seconds, draw, kills=3, keys=keys)
    found = driver.gave(folder / "run")
    if wrong := [part for part in expected if found[part] != expected[part]]:
        return f"WRONG: another {wrong[0]} ({choice})"
    return "same bits, resumed"


def _undisturbed(choice: str, folder: Path) -> tuple[dict[str, Any], float]:
    run_dir = folder / f"whole-{choice}"
    seconds = timed(
        run_dir, lambda: driver.in_a_process(run_dir, keys=(*small(choice), *driver.EVERY))
    )
    return driver.gave(run_dir), seconds


def process(draw: Random, folder: Path) -> str:
    """Any process of a command on a local Ray, at any moment of it."""
    return killed(draw.choice(KILLED), draw, folder)


def client(draw: Random, folder: Path) -> str:
    """A client that misbehaves."""
    how = draw.choice(sorted(misbehaviour.REASONS))
    misbehaviour.test_it_is_retried_then_dropped_from_the_round(folder, how)
    return "its failure alone"


KILLS = {
    "process": process,
    "actor": actor,
    "masked_actor": masked_actor,
    "stopped_actor": stopped_actor,
    "driver": run_driver,
    "client": client,
}
