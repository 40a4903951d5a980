"""Who takes part in a phase: draws that follow from seed, round, step and client alone."""

import math
from collections.abc import Collection, Sequence

import numpy as np

from coterie.contract.phase import Phase
from coterie.contract.seeds import derive_seed
from coterie.errors import ContractError

_WHOLE_ROUND = 0
"""In place of a phase's step where one draw holds for all phases of a round."""


def choose_cohort(
    phase: Phase, clients: Sequence[int], seed: int, present: Collection[int] | None = None
) -> tuple[int, ...]:
    """The phase's clients, sorted; drawn without replacement when only some take part.

    There is one draw a round: who is called to one phase is called to all phases of that size, and
    how many phases a method has, which may depend on its options, changes no cohort.

    Args:
        phase: Its cohort is a fraction of the clients present (rounded up), a count of them (all,
            if they are fewer), or their ids.
        clients: All clients.
        seed: The run's seed.
        present: The clients that can take part; all by default.

    Raises:
        ContractError: If the cohort names clients that do not exist, or is empty.
    """
    here = sorted(clients if present is None else present)
    cohort = phase.cohort
    if isinstance(cohort, tuple):
        if unknown := sorted(set(cohort) - set(clients)):
            raise ContractError(
                f"cohort names client {unknown[0]}; there are {len(clients)} clients."
            )
        if not cohort:
            raise ContractError(
                f"Phase {phase.name!r} has an empty cohort; name one client or more."
            )
        return tuple(sorted(set(cohort) & set(here)))
    count = _share(cohort, len(clients)) if isinstance(cohort, float) else cohort
    if not 1 <= count <= len(clients):
        raise ContractError(
            f"cohort={cohort}: {count} of {len(clients)} clients; choose one or more."
        )
    count = _share(cohort, len(here)) if isinstance(cohort, float) else min(cohort, len(here))
    generator = np.random.default_rng(derive_seed(seed, "cohort", phase.round, _WHOLE_ROUND))
    return tuple(sorted(int(c) for c in generator.choice(here, size=count, replace=False)))


def failed_devices(clients: int, rate: float, seed: int) -> frozenset[int]:
    """The clients that are absent throughout: that share, to the nearest client, but never all.

    Those of a smaller rate are among those of a larger one, so that curves over the rate compare.

    Args:
        clients: How many there are.
        rate: The share in [0, 1).
        seed: The run's seed.
    """
    order = np.random.default_rng(derive_seed(seed, "device failures")).permutation(clients)
    return frozenset(int(c) for c in order[: min(_nearest(rate, clients), clients - 1)])


def dropouts(cohort: Collection[int], rate: float, seed: int, phase: Phase) -> frozenset[int]:
    """The clients of a cohort that fail in this phase, each by itself with probability `rate`."""
    return frozenset(
        client
        for client in cohort
        if derive_seed(seed, "dropout", phase.round, phase.step, client) < rate * 2.0**63
    )


def stragglers(cohort: Collection[int], rate: float, seed: int, phase: Phase) -> frozenset[int]:
    """The clients of a cohort that do less work in this round: that share, to the nearest client.

    Li et al., "Federated Optimization in Heterogeneous Networks" (MLSys 2020), section 5.2.
    """
    generator = np.random.default_rng(derive_seed(seed, "stragglers", phase.round, _WHOLE_ROUND))
    drawn = generator.permutation(sorted(cohort))[: _nearest(rate, len(cohort))]
    return frozenset(int(client) for client in drawn)


def _share(fraction: float, clients: int) -> int:
    """Rounded up, but 0.07 of 100 is 7, although 0.07 * 100 is a little more in binary."""
    return math.ceil(round(fraction * clients, 9))


def _nearest(rate: float, clients: int) -> int:
    """To the nearest whole number, halves up: 0.3 of 5 are 2."""
    return math.floor(round(rate * clients + 0.5, 9))
