"""FedMCC with a client that does every wrong thing a client can do."""

import os
import signal
import time
from dataclasses import replace

import torch
from pydantic import PositiveInt

from coterie.contract import Mean
from modules.fedmcc import FedMCC


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
        return replace(outcome, up=self._spoiled(outcome.up)) if wrong else outcome

    def _raise(self):
        raise ValueError("its disk is broken")

    def _hang(self):
        time.sleep(600)

    def _dawdle(self):
        time.sleep(1.2)

    def _die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def _memory(self):
        raise MemoryError

    def _gpu_memory(self):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has")

    def _spoiled(self, up):
        wrong = {"not_finite": float("nan"), "infinite": float("inf"), "huge": 1e30}
        if self._config.how in wrong:
            return {
                slot: Mean(
                    weight=mean.weight,
                    tensors={
                        name: torch.full_like(value, wrong[self._config.how])
                        for name, value in mean.tensors.items()
                    },
                )
                for slot, mean in up.items()
            }
        if self._config.how == "shape":
            slot, mean = next(iter(up.items()))
            tensors = {name: value[..., None] for name, value in mean.tensors.items()}
            return {**up, slot: Mean(weight=mean.weight, tensors=tensors)}
        if self._config.how == "weight":
            return {slot: Mean(weight=-1, tensors=mean.tensors) for slot, mean in up.items()}
        return up
