"""How the server combines contributions: `aggregation.rule`.

Median and trimmed mean are taken by coordinate and need every client's update instead of their sum.
Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (ICML 2018):
the coordinate-wise median (definition 1) and the coordinate-wise trimmed mean (definition 2). Each
client counts once, whatever its weight, because a faulty client may report any weight.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from coterie.aggregation.exact import narrowed
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

        Its weight is the number of contributions. Computed tensor by tensor, so that only one
        tensor of all clients is copied at a time.
        """
        trim = 0.5 if self._config.rule == "median" else self._config.trim
        means = {}
        for slot in sorted(whole):
            given, layout, tensors = whole[slot](), run.layouts[slot], {}
            for name, dtype in zip(layout.names, layout.dtypes, strict=True):
                stacked = torch.stack([sent[name] for sent in given])
                tensors[name] = narrowed(trimmed_mean(stacked, trim), dtype)
            means[slot] = WeightedUpdate(weight=len(given), tensors=tensors)
        return means


def trimmed(clients: int, trim: float) -> int:
    """Return how many clients a trimmed mean drops at each end; it always keeps one or more.

    Args:
        clients: Number of clients.
        trim: Their share in [0, 0.5], rounded down to whole clients. It counts as a decimal: 0.29
            of 100 is 29, although 0.29 * 100 < 29 in binary.
    """
    return min(math.floor(round(trim * clients, 9)), (clients - 1) // 2)


def trimmed_mean(stacked: Tensor, trim: float) -> Tensor:
    """Return the mean of each coordinate without its smallest and largest values.

    Args:
        stacked: Floating (clients, …).
        trim: Share of the clients cut at each end; see `trimmed`. One half gives the median; for an
            even number of clients, the mean of the middle two.

    Returns:
        float64 (…).
    """
    cut = trimmed(len(stacked), trim)
    return stacked.sort(dim=0).values[cut : len(stacked) - cut].double().mean(dim=0)


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
