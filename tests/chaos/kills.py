"""Trials with killed processes and lying clients: the bits are those of the undisturbed run."""

import signal
from typing import Any

from tests.builders.every_method import small
from tests.chaos.commands import KILLED, killed, timed
from tests.chaos.trial import Trial
from tests.distributed import test_faults_on_ray as faults
from tests.runs import test_driver_killed as driver
from tests.runs import test_misbehaviour as misbehaviour


def actor(trial: Trial) -> str:
    """An actor, killed in a random phase."""
    return _swept(trial, small(trial.method))


def masked_actor(trial: Trial) -> str:
    """An actor whose clients' sums are masked."""
    return _swept(trial, (*small("fedavg"), "privacy.secure_aggregation=true"))


def stopped_actor(trial: Trial) -> str:
    """An actor that stands still for a second."""
    return _swept(trial, small(trial.method), sent=signal.SIGSTOP)


def _swept(trial: Trial, keys: tuple[str, ...], **options: Any) -> str:
    _, cost = faults.sweep(1, seed=trial.draw.random(), keys=keys, **options)
    return "same bits, a call lost" if cost else "same bits"


def run_driver(trial: Trial) -> str:
    """The driver, killed again and again and resumed."""
    keys = (*small(trial.method), *driver.EVERY)
    whole, run = trial.folder.parent / f"whole-{trial.method}", trial.folder / "run"
    seconds = timed(whole, lambda: driver.in_a_process(whole, keys=keys))
    driver.kill_until_done(run, seconds, trial.draw, kills=3, keys=keys)
    expected, found = driver.gave(whole), driver.gave(run)
    if wrong := [part for part in expected if found[part] != expected[part]]:
        return f"WRONG: another {wrong[0]}"
    return "same bits, resumed"


def process(trial: Trial) -> str:
    """Any process of a command on a local Ray, at any moment of it."""
    return killed(trial.draw.choice(KILLED), trial)


def client(trial: Trial) -> str:
    """A client that misbehaves."""
    how = trial.draw.choice(sorted(misbehaviour.REASONS))
    misbehaviour.test_it_is_retried_then_dropped_from_the_round(trial.folder, how)
    return "its failure alone"


KILLS = {
    "process": process,
    "actor": actor,
    "masked_actor": masked_actor,
    "stopped_actor": stopped_actor,
    "driver": run_driver,
    "client": client,
}
