"""How the server combines contributions: `aggregation.rule`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from coterie.aggregation.robust import joined, trimmed
from coterie.aggregation.stage import Contribution, PhaseRun, Stage, StageTask, Start
from coterie.config.aggregation import AggregationConfig
from coterie.contract.phase import Tensors, WeightedUpdate
from coterie.errors import ConfigError


class Rule(Stage):
    """Stage that weighs contributions by the rule, or passes them to the server one by one."""

    name: ClassVar[str] = "rule"

    def __init__(self, config: AggregationConfig) -> None:
        self._config = config

    def check(self, start: Start) -> None:
        """Refuse a trimmed mean that would drop nobody."""
        if self._config.rule == "trimmed_mean":
            check_trim(self._config.trim, (start.cohort(p) for p in start.phases() if p.up))

    def contribute(self, sent: Contribution, task: StageTask) -> Contribution:
        """Give each client the weight 1, or send its tensors one by one instead of in a sum."""
        if self._config.rule == "weighted":
            return sent
        if self._config.rule == "equal":
            up = {
                slot: WeightedUpdate(weight=1, tensors=mean.tensors)
                for slot, mean in sent.up.items()
            }
            return replace(sent, up=up)
        return replace(sent, up={}, whole={slot: mean.tensors for slot, mean in sent.up.items()})

    def join(
        self, run: PhaseRun, whole: Mapping[str, Callable[[], Sequence[Tensors]]]
    ) -> Mapping[str, WeightedUpdate]:
        """Return the median or trimmed mean of each slot.

        Its weight is the number of contributions.
        """
        means = {}
        for slot in sorted(whole):
            given = whole[slot]()
            tensors = joined(given, run.layouts[slot], self._config)
            means[slot] = WeightedUpdate(weight=len(given), tensors=tensors)
        return means


def check_trim(trim: float, clients: Iterable[int]) -> None:
    """Check that a trimmed mean drops somebody: else one client could move it without limit.

    Args:
        trim: `aggregation.trim`.
        clients: The numbers of clients of the phases.
    """
    fewest = min(clients, default=None)
    if fewest is not None and not trimmed(fewest, trim):
        raise ConfigError(
            f"aggregation.trim={trim:g}: with {fewest} clients it drops nobody; raise it, let more "
            "clients take part, or choose aggregation.rule=median."
        )
