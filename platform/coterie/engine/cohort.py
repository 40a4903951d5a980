"""Who takes part in a phase."""

import math
from collections.abc import Sequence

import numpy as np

from coterie.contract.phase import Phase
from coterie.contract.seeds import derive_seed
from coterie.errors import ContractError


def choose_cohort(phase: Phase, clients: Sequence[int], seed: int) -> tuple[int, ...]:
    """The phase's clients, sorted; drawn without replacement when only some take part.

    Args:
        phase: Its cohort is a fraction of all clients (rounded up), a count, or their ids.
        clients: All clients.
        seed: The run's seed.

    Raises:
        ContractError: If the cohort names clients that do not exist, or is empty.
    """
    cohort = phase.cohort
    if isinstance(cohort, tuple):
        if unknown := sorted(set(cohort) - set(clients)):
            raise ContractError(
                f"cohort names client {unknown[0]}; there are {len(clients)} clients."
            )
        chosen = sorted(set(cohort))
    else:
        count = _share(cohort, len(clients)) if isinstance(cohort, float) else cohort
        if not 1 <= count <= len(clients):
            raise ContractError(
                f"cohort={cohort}: {count} of {len(clients)} clients; choose one or more."
            )
        generator = np.random.default_rng(derive_seed(seed, "cohort", phase.round, phase.step))
        chosen = sorted(int(c) for c in generator.choice(clients, size=count, replace=False))
    if not chosen:
        raise ContractError(f"Phase {phase.name!r} has an empty cohort; name one client or more.")
    return tuple(chosen)


def _share(fraction: float, clients: int) -> int:
    """Rounded up, but 0.07 of 100 is 7, although 0.07 * 100 is a little more in binary."""
    return math.ceil(round(fraction * clients, 9))
