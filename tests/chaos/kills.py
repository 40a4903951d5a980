"""Trials with killed processes and lying clients: the bits are those of the undisturbed run."""

import signal
from functools import cache
from pathlib import Path
from random import Random

from tests.builders.every_method import CHOICES, small
from tests.builders.runs import SMALL
from tests.distributed import test_faults_on_ray as faults
from tests.distributed import test_lost_cluster as lost
from tests.runs import test_driver_killed as driver
from tests.runs import test_misbehaviour as misbehaviour


def actor(draw: Random, folder: Path) -> str:
    """An actor of any method, killed in a random phase."""
    choice = draw.choice(CHOICES)
    _, cost = faults.sweep(1, seed=draw.random(), keys=small(choice))
    return "same bits, a call lost" if cost else "same bits"


def stopped_actor(draw: Random, folder: Path) -> str:
    """An actor that stands still for a second."""
    faults.sweep(1, seed=draw.random(), keys=SMALL, sent=signal.SIGSTOP)
    return "same bits"


def server(draw: Random, folder: Path) -> str:
    """The server's actor."""
    keys = (*SMALL, "cluster.server=actor")
    faults.sweep(1, seed=draw.random(), keys=keys, victim="server")
    return "same bits"


def run_driver(draw: Random, folder: Path) -> str:
    """The driver of any method, killed again and again and resumed."""
    choice = draw.choice(CHOICES)
    keys = (*small(choice), *driver.EVERY)
    expected, seconds = _undisturbed(choice, folder.parent)
    driver.kill_until_done(folder / "run", seconds, draw, kills=3, keys=keys)
    if driver.gave(folder / "run") != expected:
        return f"WRONG: other bits ({choice})"
    return "same bits, resumed"


@cache
def _undisturbed(choice: str, folder: Path) -> tuple[object, float]:
    import time

    began, run_dir = time.monotonic(), folder / f"whole-{choice}"
    driver.in_a_process(run_dir, keys=(*small(choice), *driver.EVERY))
    return driver.gave(run_dir), time.monotonic() - began


def control(draw: Random, folder: Path) -> str:
    """`gcs_server` or the raylet."""
    victim, phase = draw.choice(("gcs_server", "raylet")), draw.randrange(4)
    lost.check_killed(victim, phase, folder / "run", _whole(folder.parent))
    return "same bits, resumed"


@cache
def _whole(folder: Path) -> object:
    return lost.finished(folder / "whole")


def client(draw: Random, folder: Path) -> str:
    """A client that misbehaves."""
    how = draw.choice(sorted(misbehaviour.REASONS))
    misbehaviour.test_it_is_retried_then_dropped_from_the_round(folder, how)
    return "its failure alone"


KILLS = {
    "actor": actor,
    "stopped_actor": stopped_actor,
    "server": server,
    "driver": run_driver,
    "control": control,
    "client": client,
}
