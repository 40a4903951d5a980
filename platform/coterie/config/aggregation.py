"""How the server aggregates the clients' contributions, whatever the method."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, ValidationInfo, field_validator

from coterie.config.component import Component, NestedComponent

Compression = Literal["none", "int8", "topk"]
AggregationRule = Literal["weighted", "equal", "median", "trimmed_mean"]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]


class AggregationConfig(Component):
    """How the contributions to a slot are combined, and how the server steps towards the result."""

    rule: AggregationRule = "weighted"
    """How contributions are joined: mean by the method's weights (FedAvg), plain mean, or the
    median or trimmed mean of each coordinate, which a few faulty clients cannot move far."""
    trim: Annotated[float, Field(ge=0.0, lt=0.5)] = 0.1
    """Share of the clients that `trimmed_mean` leaves out at each end, rounded down to one or
    more."""
    compression: Compression = "none"
    """How clients compress their updates: `int8` rounds them at random to 255 levels a tensor,
    `topk` sends the largest entries and adds the rest to the client's next update."""
    keep: Annotated[float, Field(gt=0.0, le=1.0)] = 0.01
    """Share of a client's entries that `topk` sends."""
    stages: tuple[NestedComponent, ...] = ()
    """A user's own stages, as {target: package.module:Class, key: value}; see docs/extend.md."""
    optimizer: Literal["none", "momentum", "adam", "yogi", "adagrad"] = "none"
    """`none`: the server takes the mean; `momentum`: FedAvgM; `adam`: FedAdam; `yogi`: FedYogi;
    `adagrad`: FedAdagrad."""
    learning_rate: PositiveFloat | None = None
    """Learning rate of the server; by default 1 for `momentum` and 0.01 for the others, where
    tuning pays."""
    momentum: Decay = 0.9
    """Decay of FedAvgM's velocity."""
    beta_1: Decay = 0.9
    """Decay of an adaptive optimiser's first moment, β₁."""
    beta_2: Decay = 0.99
    """Decay of the second moment of FedAdam and FedYogi, β₂."""
    tau: PositiveFloat = 1e-3
    """Adaptivity τ: the larger it is, the more similar are the steps of all coordinates."""

    @field_validator("learning_rate")
    @classmethod
    def _has_steps(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("optimizer") == "none":
            raise ValueError(
                "aggregation.optimizer=none takes no steps; choose momentum, adam, yogi or "
                "adagrad, or leave it out"
            )
        return value

    @property
    def step_size(self) -> float:
        """The server's learning rate, or the optimiser's default."""
        if self.learning_rate is not None:
            return self.learning_rate
        return 1.0 if self.optimizer in ("none", "momentum") else 0.01
