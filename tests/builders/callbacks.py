"""Callbacks that write down what they see."""

import json
import os
from pathlib import Path

from lightning import Callback

from coterie import RunCallback


class Diary(RunCallback):
    """Keeps the names and some facts of its hooks; as lines of a file if it is given one."""

    def __init__(self, path=None):
        self.path, self.lines = path, []

    def write(self, *what):
        self.lines.append(what)
        if self.path:
            with Path(self.path).open("a") as file:
                file.write(json.dumps(what) + "\n")

    def on_run_start(self, experiment, details):
        self.write("start", experiment, details["method"])

    def on_client_end(self, client, metrics):
        self.write("client", client)

    def on_phase_end(self, record):
        self.write("phase", record.phase.round)

    def on_round_end(self, record):
        self.write("round", record.phase.round)

    def on_evaluation_end(self, round_, scores, *, final):
        self.write("evaluation", round_, sorted(scores)[0], final)

    def on_run_end(self, status, error):
        self.write("end", status, error)


class Steps(Callback):
    """Writes a line per client's training: the process and the number of its steps."""

    def __init__(self, folder):
        self.folder, self.steps = folder, 0

    def on_train_batch_end(self, *_):
        self.steps += 1

    def on_train_end(self, trainer, pl_module):
        path = Path(self.folder) / str(os.getpid())
        with path.open("a") as file:
            file.write(f"{self.steps}\n")


class Raises(RunCallback):
    def on_round_end(self, record):
        raise OverflowError("too much")


class Both(Diary, Steps):
    def __init__(self, folder):
        Diary.__init__(self)
        Steps.__init__(self, folder)
