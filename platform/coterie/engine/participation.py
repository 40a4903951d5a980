"""A run's participation: who is present, chosen, dropped or slow in each phase."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from coterie.config.schema import RunConfig
from coterie.contract.phase import Phase
from coterie.engine.availability import Rounds, read_availability
from coterie.engine.cohort import choose_cohort, dropouts, failed_devices, stragglers
from coterie.errors import ConfigError


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
