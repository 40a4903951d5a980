"""DCCO: clients train on the cross-correlation of all clients' encodings.

Vemulapalli et al., "Federated Training of Dual Encoding Models on Small Non-IID Client Datasets"
(2022). The loss is Barlow Twins' (Zbontar et al., 2021). It depends on a batch through five means
alone, so that clients which exchange those train as if their small batches were one.
"""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from coterie.contract import Client, Phase, Plan, Task, Tensors
from coterie.losses.correlation import (
    corrected,
    cross_correlation_loss,
    pair_shapes,
    pair_statistics,
)
from coterie.modules.pretraining import CrossSilo, PretrainingConfig
from coterie.modules.shared_statistics import SharedStatistics, SharedViews


class CrossCorrelation(SharedViews):
    """The network, and the loss of all clients' statistics with a client's own gradient."""

    config: "DCCO.Config"

    def __init__(self, config: "DCCO.Config", task: Task) -> None:
        super().__init__(config, task, pair_shapes(config.projection))

    def measure(self, u: Tensor, v: Tensor) -> Tensors:
        """Return the five means of `pair_statistics`."""
        return pair_statistics(u, v)

    def loss(self, u: Tensor, v: Tensor) -> Tensor:
        """Return the cross-correlation loss, of the batch alone before there are statistics."""
        own, shared = pair_statistics(u, v), self.shared()
        if any(bool(value.any()) for value in shared.values()):
            own = corrected(own, shared)
        return cross_correlation_loss(own, self.config.off_diagonal)


class DCCO(SharedStatistics["DCCO.Config", CrossCorrelation]):
    """Trains on the cross-correlation of all clients' encodings, whose means are shared first.

    Clients keep nothing.
    """

    network = CrossCorrelation

    class Config(CrossSilo, PretrainingConfig):
        """DCCO's configuration."""

        off_diagonal: Annotated[float, Field(ge=0.0)] = 0.005
        """λ, the weight of the correlations between different features."""
        learning_rate: PositiveFloat = 0.2
        """The optimiser's learning rate."""
        rounds: PositiveInt = 500
        epochs: Literal[1] = 1
        """Epochs per round; only 1, a single step on one batch, because a second step would use
        statistics of older weights, and diverge."""

    def plan(self, phase: Phase, seed: int) -> Plan:
        """Return one batch, the same in both phases."""
        return Plan(batch_size=self._config.batch_size, steps=1, seed=seed)

    def weight(self, client: Client) -> int:
        """Return the number of samples of the batch."""
        return min(len(client.data), self._config.batch_size)
