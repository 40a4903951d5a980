"""A run's participation: who is present, chosen, dropped or slow in each phase."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from coterie.config.availability_file import Rounds, read_availability
from coterie.config.schema import RunConfig
from coterie.contract.phase import Phase
from coterie.contract.seeds import derive_seed
from coterie.errors import ConfigError, ContractError


@dataclass(frozen=True, kw_only=True)
class Turnout:
    """Who takes part in a phase, and what is simulated of it.

    Attributes:
        clients: Those that take their turn, ascending.
        work: Straggler to the part of its local steps that it does.
        simulated: "absent" (clients that are not present in this round), "dropped" (chosen, but
            they fail) and "stragglers", each where the config simulates it.
    """

    clients: tuple[int, ...]
    work: Mapping[int, float] = field(default_factory=dict)
    simulated: Mapping[str, int] = field(default_factory=dict)


class Participation:
    """Draws each phase's clients; the same for the same config, whatever ran before.

    Args:
        config: The run's config.
        clients: How many clients there are.

    Raises:
        ConfigError: If the config asks for clients that do not exist, or leaves none.
    """

    def __init__(self, config: RunConfig, clients: int) -> None:
        self._config, self._seed, self._all = config.participation, config.seed, range(clients)
        count, availability = self._config.count, self._config.availability
        if count is not None and count > clients:
            raise ConfigError(
                f"participation.count={count}: there are {clients} clients; choose 1 to {clients}."
            )
        self._rounds: Rounds = (frozenset(self._all),)
        if availability is not None:
            self._rounds = read_availability(availability, clients)
        self._failed = failed_devices(clients, self._config.device_failure_rate, self._seed)

        if not self._ever:
            raise ConfigError(
                "participation: no client is present in any round; list some in "
                "participation.availability, or let fewer devices fail."
            )

    def check(self, phase: Phase) -> None:
        """Refuse a phase whose own clients are never there.

        Raises:
            ConfigError: If the method names its clients, and all of them are absent throughout.
        """
        named = phase.cohort if isinstance(phase.cohort, tuple) else ()
        if named and not self._ever & set(named):
            raise ConfigError(
                f"participation: client {named[0]}, which the method asks for, is absent in all "
                "rounds; ask for another, or change participation."
            )

    @property
    def _ever(self) -> frozenset[int]:
        """Who is present in some round."""
        return frozenset().union(*self._rounds) - self._failed

    def turnout(self, phase: Phase) -> Turnout:
        """Who takes part in the phase; nobody, if nobody is present or all drop out.

        Raises:
            ContractError: If the method's own cohort is impossible.
        """
        config = self._config
        present = self._rounds[(phase.round - 1) % len(self._rounds)] - self._failed
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

    def _sized(self, phase: Phase) -> Phase:
        """The phase with the cohort's size as configured; ids that the method names stay."""
        size = self._config.count if self._config.fraction is None else self._config.fraction
        if size is None or isinstance(phase.cohort, tuple):
            return phase
        return replace(phase, cohort=size)


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
