"""FedMCC with a client that does every wrong thing a client can do."""

import os
import resource
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from pydantic import PositiveInt

from coterie.aggregation.exact import SumsExceededError
from coterie.contract import WeightedUpdate
from coterie.errors import ConfigError, DataError, InterruptedRunError, RunError, StateLostError
from coterie.modules.fedmcc import FedMCC


class Name(str):
    """A name that fails on its way to the driver."""

    def __reduce__(self):
        raise RuntimeError("it cannot be sent")


class UnprintableError(Exception):
    def __str__(self):
        raise SystemExit(0)


class _Nameless(type):
    @property
    def __name__(cls):
        raise RuntimeError("it has no name")


class NamelessError(Exception, metaclass=_Nameless):
    pass


class ClasslessError(Exception):
    @property
    def __class__(self):
        raise RuntimeError("it has no class")


class TracelessError(Exception):
    @property
    def __traceback__(self):
        raise RuntimeError("it comes from nowhere")


_FILES = []
METRICS = {"metric_text": "low", "metric_tensor": torch.ones(3), "metric_huge": 1e38}


class Misbehaves(FedMCC):
    class Config(FedMCC.Config):
        """FedMCC's, and what goes wrong."""

        how: str = "raise"
        until_round: PositiveInt = 1
        culprit: int = 1

    def client(self, client, phase, slots):
        wrong = client.id == self._config.culprit and phase.round <= self._config.until_round
        if wrong and self._config.how == "slow":
            endless = {"representation_epochs": 10**6, "clustering_epochs": 10**6, "how": "none"}
            slow = type(self)(self._config.model_copy(update=endless), self._task)
            return slow.client(client, phase, slots)
        if wrong and hasattr(self, f"_{self._config.how}"):
            getattr(self, f"_{self._config.how}")()
        outcome = super().client(client, phase, slots)
        if wrong and self._config.how in METRICS:
            return replace(outcome, metrics={**outcome.metrics, "loss": METRICS[self._config.how]})
        if wrong and self._config.how == "metric_name":
            return replace(outcome, metrics={Name(n): v for n, v in outcome.metrics.items()})
        if wrong and self._config.how == "state_key":
            return replace(outcome, state={b"x": torch.ones(1)})
        return replace(outcome, up=self._spoiled(outcome.up)) if wrong else outcome

    def server(self, server, phase, means, gathered):
        if self._config.how == "server_exit":
            sys.exit(0)
        if self._config.how == "server_refuse":
            raise DataError("what a client sent cannot be used")
        return super().server(server, phase, means, gathered)

    def _raise(self):
        raise ValueError("its disk is broken")

    def _exit(self):
        sys.exit(0)

    def _interrupt(self):
        raise KeyboardInterrupt

    def _generator(self):
        raise GeneratorExit

    def _stop(self):
        raise InterruptedRunError("it says that somebody pressed Ctrl-C")

    def _run_error(self):
        raise RunError("it says that the run is over")

    def _state_lost(self):
        raise StateLostError(3)

    def _sums_exceeded(self):
        raise SumsExceededError("it says that the sums are full")

    def _refuse(self):
        raise ConfigError("it says that its config is bad")

    def _unprintable(self):
        raise UnprintableError

    def _nameless(self):
        raise NamelessError

    def _classless(self):
        raise ClasslessError

    def _traceless(self):
        raise TracelessError("its text is told")

    def _long(self):
        raise ValueError("x" * 50_000_000)

    def _escape(self):
        raise ValueError("\n\x1b[31mred\x1b[0m \ud800 \x07\rsecond")

    def _cap(self):
        """Its process may use no more than 256 MB in addition."""
        before = resource.getrlimit(resource.RLIMIT_AS)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, before[1]))
        try:
            torch.ones(2**30)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)

    def _hang(self):
        time.sleep(600)

    def _dawdle(self):
        time.sleep(6)

    def _die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def _fork(self):
        """What it has forked holds copies of its process's connections."""
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
        self._die()

    def _twice(self):
        os.fork()

    def _files(self):
        with suppress(OSError):
            while True:
                _FILES.append(os.open(os.devnull, os.O_RDONLY))

    def _memory(self):
        raise MemoryError

    def _gpu_memory(self):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has")

    def _spoiled(self, up):
        wrong = {
            "not_finite": float("nan"),
            "infinite": float("inf"),
            "huge": 1e30,
            "grown": 1.6e7,
            "complex": 1j,
        }
        if self._config.how in wrong:
            return {
                slot: WeightedUpdate(
                    weight=mean.weight,
                    tensors={
                        name: value * 0 + wrong[self._config.how]
                        for name, value in mean.tensors.items()
                    },
                )
                for slot, mean in up.items()
            }
        if self._config.how == "shape":
            slot, mean = next(iter(up.items()))
            tensors = {name: value[..., None] for name, value in mean.tensors.items()}
            return {**up, slot: WeightedUpdate(weight=mean.weight, tensors=tensors)}
        if self._config.how == "weight":
            return {
                slot: WeightedUpdate(weight=-1, tensors=mean.tensors) for slot, mean in up.items()
            }
        if self._config.how == "heavy":
            return {
                slot: WeightedUpdate(weight=2**23, tensors=mean.tensors)
                for slot, mean in up.items()
            }
        return up
