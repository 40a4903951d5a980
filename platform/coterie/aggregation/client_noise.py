"""Noise that clients add to their own gathered tensors, in phases with an ε: `Client.noisy`."""

import hmac
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.discrete_gaussian import Stream, discrete_gaussian
from coterie.aggregation.noise import NoiseLedger, place
from coterie.aggregation.stage import PhaseRun, Stage, StageTask
from coterie.contract.phase import Phase


class ClientNoise(Stage):
    """Stage that gives each client a key for its own noise, if the phase declares an ε."""

    name: ClassVar[str] = "client_noise"

    def __init__(self, ledger: NoiseLedger | None = None) -> None:
        self._ledger = ledger

    def tasks(self, run: PhaseRun) -> Mapping[int, bytes]:
        """Return each client's key, which is used in this phase only.

        Raises:
            ValueError: If the run has no key.
        """
        if run.phase.epsilon is None:
            return {}
        if self._ledger is None:
            raise ValueError(f"phase {run.phase.name!r} has an ε; compose with a NoiseLedger")
        secret = self._ledger.secret
        return {client: _key(secret, run.phase, client) for client in run.sizes}

    def noisy(
        self, sums: NDArray[np.int64], sigma: int, purpose: str, task: StageTask
    ) -> NDArray[np.int64] | None:
        """Return the integers plus noise, derived from the key, the purpose and the integers."""
        if task.data is None:
            return None
        key = hmac.digest(task.data, f"{purpose} {sigma} ".encode() + sums.tobytes(), "sha256")
        return sums + discrete_gaussian(Stream(key), sigma, len(sums))

    def hides(self, task: StageTask) -> bool:
        """Return True: a traceback could show what the noise hides."""
        return task.data is not None

    def metrics(self, phase: Phase) -> Mapping[str, float]:
        """Return the ε that the phase declares."""
        return {} if phase.epsilon is None else {"epsilon": phase.epsilon}


def _key(secret: bytes, phase: Phase, client: int) -> bytes:
    return hmac.digest(secret, f"records {place(phase)}{client}".encode(), "sha256")
