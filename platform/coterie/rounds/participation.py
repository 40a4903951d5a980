"""Draws each phase's clients: who is present, chosen, dropped or slow."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from coterie.config.availability_file import read_availability
from coterie.config.schema import RunConfig
from coterie.contract.phase import Phase
from coterie.contract.seeds import derive_seed
from coterie.errors import ConfigError, ContractError


@dataclass(frozen=True, kw_only=True)
class Turnout:
    """The clients that take part in a phase.

    Attributes:
        clients: The clients that take their task, ascending.
        work: Straggler to the share of its local steps that it does.
        simulated: Number of clients that are "absent" (not present in this round), "dropped"
            (chosen, but simulated to fail) and "stragglers", each only where the config asks for
            it.
    """

    clients: tuple[int, ...]
    work: Mapping[int, float] = field(default_factory=dict)
    simulated: Mapping[str, int] = field(default_factory=dict)


_WHOLE_ROUND = 0
"""Replaces the phase's step in the seeds of draws that hold for a whole round."""


class Participation:
    """The draw of each phase's clients, as a function of the config and the phase alone."""

    def __init__(self, config: RunConfig, clients: int) -> None:
        self._config, self._seed, self._all = config.participation, config.seed, range(clients)
        count, availability = self._config.count, self._config.availability
        if count is not None and count > clients:
            raise ConfigError(
                f"participation.count={count}: there are {clients} clients; choose 1 to {clients}."
            )
        rounds: Sequence[Collection[int]] = (self._all,)
        if availability is not None:
            rounds = read_availability(availability, clients)
        failed = failed_devices(clients, self._config.device_failure_rate, self._seed)
        self._rounds: Sequence[Sequence[int]] = (self._all,)  # a range, which takes no time
        if failed or availability is not None:
            self._rounds = [sorted(set(present) - failed) for present in rounds]
        if not any(self._rounds):
            raise ConfigError(
                "participation: no client is present in any round; list some in "
                "participation.availability, or let fewer devices fail."
            )

    def check(self, phase: Phase) -> None:
        """Check that a phase with named clients can run at some time.

        Raises:
            ConfigError: If all clients that the phase names are absent in every round.
        """
        named = phase.cohort if isinstance(phase.cohort, tuple) else ()
        if named and not any(set(named).intersection(present) for present in self._rounds):
            raise ConfigError(
                f"participation: client {named[0]}, which the method asks for, is absent in all "
                "rounds; ask for another, or change participation."
            )

    def size(self, phase: Phase) -> int:
        """Return the number of a phase's clients before dropouts."""
        here, cohort = self._present(phase), self._sized(phase).cohort
        if isinstance(cohort, tuple):
            return len(set(cohort).intersection(here))
        return min(_count(cohort, len(here)), len(here))

    def turnout(self, phase: Phase) -> Turnout:
        """Draw the clients of a phase; none, if none is present or all drop out.

        Raises:
            ContractError: If the method asks for an impossible cohort.
        """
        config = self._config
        present = self._present(phase)
        cohort = choose_cohort(self._sized(phase), self._all, self._seed, present)
        dropped = dropouts(cohort, config.dropout_rate, self._seed, phase)
        left = tuple(client for client in cohort if client not in dropped)
        slow = stragglers(left, config.straggler_rate, self._seed, phase)
        absence = config.device_failure_rate > 0 or config.availability is not None
        simulated = {
            "absent": (len(self._all) - len(present), absence),
            "dropped": (len(dropped), config.dropout_rate > 0),
            "stragglers": (len(slow), config.straggler_rate > 0),
        }
        return Turnout(
            clients=left,
            work=dict.fromkeys(sorted(slow), config.straggler_work),
            simulated={name: count for name, (count, asked) in simulated.items() if asked},
        )

    def _present(self, phase: Phase) -> Sequence[int]:
        return self._rounds[(phase.round - 1) % len(self._rounds)]

    def _sized(self, phase: Phase) -> Phase:
        """Return the phase with the configured cohort size; clients that the method names stay."""
        size = self._config.count if self._config.fraction is None else self._config.fraction
        if size is None or isinstance(phase.cohort, tuple):
            return phase
        return replace(phase, cohort=size)


def choose_cohort(
    phase: Phase, clients: Sequence[int], seed: int, present: Collection[int] | None = None
) -> tuple[int, ...]:
    """Return the phase's clients, sorted; drawn without replacement when only some take part.

    There is one draw per round: all phases of a round with the same cohort size have the same
    clients, and the number of phases, which may depend on a method's options, changes no cohort.

    Args:
        phase: Its cohort is a fraction of the clients present (rounded up), a count of them (all,
            if fewer are present), or their ids.
        clients: All clients; a range takes no time for clients that are not drawn.
        seed: The run's seed.
        present: The clients that can take part; all by default.

    Raises:
        ContractError: If the cohort is empty or names clients that do not exist.
    """
    here = clients if present is None else present
    here = here if isinstance(here, range) else sorted(here)
    cohort = phase.cohort
    if isinstance(cohort, tuple):
        if unknown := sorted(client for client in cohort if client not in clients):
            raise ContractError(
                f"cohort names client {unknown[0]}; there are {len(clients)} clients."
            )
        if not cohort:
            raise ContractError(
                f"Phase {phase.name!r} has an empty cohort; name one client or more."
            )
        return tuple(sorted(set(cohort).intersection(here)))
    count = _count(cohort, len(clients))
    if not 1 <= count <= len(clients):
        raise ContractError(
            f"cohort={cohort}: {count} of {len(clients)} clients; choose one or more."
        )
    generator = np.random.default_rng(derive_seed(seed, "cohort", phase.round, _WHOLE_ROUND))
    drawn = generator.choice(
        len(here), size=min(_count(cohort, len(here)), len(here)), replace=False
    )
    return tuple(sorted(here[int(place)] for place in drawn))


def failed_devices(clients: int, rate: float, seed: int) -> frozenset[int]:
    """Draw the clients that are absent in every round.

    A smaller rate gives a subset of a larger rate's clients, so that rates can be compared.

    Args:
        clients: Number of clients.
        rate: The share of absent clients in [0, 1), rounded to the nearest client, never all.
        seed: The run's seed.
    """
    order = np.random.default_rng(derive_seed(seed, "device failures")).permutation(clients)
    return frozenset(int(c) for c in order[: min(_nearest(rate, clients), clients - 1)])


def dropouts(cohort: Collection[int], rate: float, seed: int, phase: Phase) -> frozenset[int]:
    """Draw the clients of a cohort that fail in this phase, independently with this rate."""
    return frozenset(
        client
        for client in cohort
        if derive_seed(seed, "dropout", phase.round, phase.step, client) < rate * 2.0**63
    )


def stragglers(cohort: Collection[int], rate: float, seed: int, phase: Phase) -> frozenset[int]:
    """Draw the clients of a cohort that do less work in this round, to the nearest client.

    Li et al., "Federated Optimization in Heterogeneous Networks" (MLSys 2020), section 5.2.
    """
    generator = np.random.default_rng(derive_seed(seed, "stragglers", phase.round, _WHOLE_ROUND))
    drawn = generator.permutation(sorted(cohort))[: _nearest(rate, len(cohort))]
    return frozenset(int(client) for client in drawn)


def _count(cohort: float | int, clients: int) -> int:
    """Return the size of a cohort among this number of clients; fractions are rounded up.

    0.07 of 100 is 7, although 0.07 * 100 > 7 in binary.
    """
    return math.ceil(round(cohort * clients, 9)) if isinstance(cohort, float) else cohort


def _nearest(rate: float, clients: int) -> int:
    """Return a share of clients, to the nearest whole number, halves up: 0.3 of 5 is 2."""
    return math.floor(round(rate * clients + 0.5, 9))
