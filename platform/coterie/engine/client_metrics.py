"""What the clients measured in a phase, joined to one row of the run."""

from collections import defaultdict
from collections.abc import Mapping

from coterie.contract.phase import Phase
from coterie.engine.events import TurnDone


def joined_metrics(
    phase: Phase, turns: tuple[TurnDone, ...], sizes: Mapping[int, int]
) -> dict[str, float]:
    """Means of the clients' metrics, weighted by their numbers of samples, in client order.

    Of the phase's `minima` it is the smallest.
    """
    sums: dict[str, float] = defaultdict(float)
    weights: dict[str, int] = defaultdict(int)
    for turn in turns:
        for name, value in turn.metrics.items():
            sums[name] += sizes[turn.client] * value
            weights[name] += sizes[turn.client]
    means = {name: sums[name] / weights[name] for name in sums}
    every = {name: [t.metrics[name] for t in turns if name in t.metrics] for name in phase.minima}
    return {**means, **{name: min(values) for name, values in every.items() if values}}
