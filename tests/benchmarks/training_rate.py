"""How fast local training is, in this process or in one of its own."""

import json
import subprocess
import sys
import time
from typing import NamedTuple

import torch

from coterie.commands.compose import compose
from coterie.rounds.loop import Loop
from coterie.rounds.state import RunState
from coterie.run.setup import assemble, make_backend
from tests.builders.observers import Silent


class Rate(NamedTuple):
    """Images a second of the rounds behind the first, and the seconds of the first."""

    images: float
    first: float


def rate(images: int, *overrides: str) -> Rate:
    """Train by a config of which a round takes so many images, here."""
    assembly = assemble(compose(*overrides))
    backend = make_backend(assembly.workload, lambda: None)
    times = [time.perf_counter()]

    def commit(_: RunState, done: object) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter())

    try:
        loop = Loop(assembly.method, backend, assembly.workload, Silent(), commit)
        loop.run(RunState(server=assembly.server))
    finally:
        backend.close()
    return Rate((len(times) - 2) * images / (times[-1] - times[1]), times[1] - times[0])


def rate_apart(images: int, *overrides: str) -> Rate:
    """The same in a process of its own."""
    command = (sys.executable, "-m", __name__, str(images), *overrides)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return Rate(*json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(rate(int(sys.argv[1]), *sys.argv[2:])))
