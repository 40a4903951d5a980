"""Signals in a process of its own: the first sets a flag, the second ends it at once."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import coterie
from coterie.errors import InterruptedRunError
from coterie.run.interrupts import Interrupts

STOPPED = "the run stopped after its last full phase; go on with resume=true"
SOURCE = Path(coterie.__file__).parents[1]

HEAD = """
import signal, sys, time
from coterie.run.interrupts import Interrupts
from coterie.errors import InterruptedRunError
def say(word):
    sys.stdout.write(word + "\\n")
    sys.stdout.flush()
"""

CHECKING = """
with Interrupts() as interrupts:
    say("ready")
    sys.stdin.readline()          # the signal comes while this waits, and does not end it
    say("waited")
    try:
        interrupts.check()
        say("nothing")
    except InterruptedRunError as error:
        say(str(error))
        sys.exit(error.exit_code)
"""

STUBBORN = """
with Interrupts():
    say("ready")
    try:
        for _ in range(100):
            time.sleep(0.1)
    finally:
        say("cleaned up")         # a second signal does not wait for this
"""

TRAINING = """
import torch
from coterie.execution.trainer import LightningTrainer
from lightning import LightningModule

class Endless(LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
    def on_train_start(self):
        say("ready")
    def training_step(self, batch, batch_idx):
        time.sleep(0.01)
        return self.weight.sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class Batches(list):
    epochs = 1

with Interrupts() as interrupts:
    trainer = LightningTrainer(stop=interrupts.check)
    try:
        trainer.fit(Endless(), Batches([torch.zeros(1)] * 3000), 0)
    except InterruptedRunError as error:
        say(str(error))
        sys.exit(error.exit_code)
"""


@pytest.fixture
def start():
    started = []

    def begin(body):
        process = subprocess.Popen(
            [sys.executable, "-c", HEAD + body],
            env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGXCPU,
    ],
)
def test_one_signal_is_remembered_until_the_next_check(start, number):
    process = start("signal.signal(signal.SIGHUP, signal.SIG_DFL)" + CHECKING)
    process.send_signal(number)
    out, _ = process.communicate("\n", timeout=60)
    name = signal.Signals(number).name
    expected = f"waited\n{name} came; {STOPPED}.\n"
    assert (out, process.returncode) == (expected, 130)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_one_that_is_ignored_stays_ignored(start, number):
    process = start(f"signal.signal({int(number)}, signal.SIG_IGN)" + CHECKING)
    process.send_signal(number)
    out, _ = process.communicate("\n", timeout=60)
    assert (out, process.returncode) == ("waited\nnothing\n", 0)


def test_a_program_keeps_its_own_handler():
    handler = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        own = signal.getsignal(signal.SIGUSR1)
        with Interrupts():
            assert signal.getsignal(signal.SIGUSR1) is own
    finally:
        signal.signal(signal.SIGUSR1, handler)


def test_warnings_of_a_batch_system_leave_the_time_that_is_left(start):
    process = start(STUBBORN)
    for number in (signal.SIGUSR1, signal.SIGXCPU, signal.SIGXCPU, signal.SIGTERM):
        process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=5)
    assert (out, process.returncode) == ("", 130)


def test_without_a_signal_a_check_lets_the_run_go_on(start):
    process = start(CHECKING)
    out, _ = process.communicate("\n", timeout=60)
    assert (out, process.returncode) == ("waited\nnothing\n", 0)


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_the_process_at_once(start, second):
    process = start(STUBBORN)
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(second)
    out, _ = process.communicate(timeout=5)
    assert (out, process.returncode) == ("", 130)


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM]
)
def test_a_signal_stops_lightning_after_the_step_under_way(start, number):
    process = start(TRAINING)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == f"{signal.Signals(number).name} came; {STOPPED}.\n"


def test_the_handlers_of_before_are_put_back():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with contextlib.suppress(KeyError), Interrupts():
        assert signal.getsignal(signal.SIGINT) is not before[0]
        raise KeyError
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_in_another_thread_no_handler_is_set():
    before, inside = signal.getsignal(signal.SIGINT), []

    def enter():
        with Interrupts() as interrupts:
            inside.append(signal.getsignal(signal.SIGINT))
            interrupts.check()

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert inside == [before]


def test_the_error_ends_the_command_with_130():
    assert InterruptedRunError.exit_code == 130
