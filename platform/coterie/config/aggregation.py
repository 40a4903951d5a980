"""How the server turns the clients' contributions into its next state, whatever the method."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from coterie.config.component import Component

AggregationRule = Literal["weighted", "equal", "median", "trimmed_mean"]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]


class AggregationConfig(Component):
    """How contributions to a slot become one, and how the server follows it."""

    rule: AggregationRule = "weighted"
    """How contributions are joined: by the method's weights (FedAvg), each alike, or by coordinate
    with the median or a trimmed mean, which some faulty clients cannot move far."""
    trim: Annotated[float, Field(ge=0.0, lt=0.5)] = 0.1
    """Share of the clients that `trimmed_mean` cuts at each end, rounded down to whole clients."""
    optimizer: Literal["none", "momentum", "adam"] = "none"
    """How the server follows the mean: it takes it, or steps towards it as FedAvgM or FedAdam."""
    learning_rate: PositiveFloat | None = None
    """The server's step; by default 1 for `momentum` and 0.01 for `adam`, which is worth tuning."""
    momentum: Decay = 0.9
    """Decay of FedAvgM's velocity."""
    beta_1: Decay = 0.9
    """Decay of FedAdam's first moment."""
    beta_2: Decay = 0.99
    """Decay of FedAdam's second moment."""
    tau: PositiveFloat = 1e-3
    """FedAdam's adaptivity: the larger, the less steps are scaled by coordinate."""

    @property
    def step_size(self) -> float:
        """The server's learning rate, the optimiser's own default included."""
        if self.learning_rate is not None:
            return self.learning_rate
        return 0.01 if self.optimizer == "adam" else 1.0
