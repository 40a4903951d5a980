"""Config of privacy, for any method: k-anonymity, secure aggregation, differential privacy."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from coterie.config.component import Component

MOST_NOISE = 1000
"""Largest product of clip and noise multiplier: the noise's deviation, in units of 2^-20, is then
below 2^31 for samples too, and its square fits the sampler's integers."""
LEAST_NOISE = 1e-3
"""Smallest product of both: the deviation is then some 1,000 units, where ε is exact."""


class DPConfig(Component):
    """Differential privacy of what the server learns from the clients; off without `clip`."""

    unit: Literal["client", "sample"] = "client"
    """What ε protects in methods that train: a whole client, by noise on the sum of updates, or one
    sample, by noise on each step's gradients. Methods that send sums over samples, such as k-means
    and Concord, always protect one sample."""
    clip: Annotated[float, Field(ge=1e-3, le=1e3)] | None = None
    """L2 norm to which each client's update is clipped, over all slots together; with unit=sample,
    each sample's gradient; in methods that send sums, each sample's representation. Setting it adds
    noise; null: no differential privacy."""
    noise_multiplier: Annotated[float, Field(ge=1e-2, le=2000)] | None = None
    """Standard deviation of the noise in each coordinate of a sum, as a multiple of the largest
    change that one client or sample can make to the sum. With `clip` and `budget` alone, the run
    tells which one the budget needs."""
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] = 1e-5
    """δ for which ε is computed; choose it well below one divided by the number of clients, or
    samples."""
    budget: PositiveFloat | None = None
    """ε at which the run ends, with its model, before the first phase that would exceed it."""

    @model_validator(mode="after")
    def _check_pair(self) -> "DPConfig":
        if self.clip is None and self.noise_multiplier is not None:
            raise ValueError(f"noise_multiplier={self.noise_multiplier}: give clip too, or neither")
        if self.clip is None and self.budget is not None:
            raise ValueError(f"budget={self.budget}: give clip too, such as privacy.dp.clip=1")
        if self.clip and self.noise_multiplier is None and self.budget is None:
            raise ValueError(
                f"clip={self.clip}: give noise_multiplier too, or a budget; the run then names "
                "the noise multiplier that the budget needs"
            )
        if self.clip is None and self.unit != "client":
            raise ValueError(f"unit={self.unit}: give clip and noise_multiplier too")
        if self.clip and self.noise_multiplier:
            noise = self.clip * self.noise_multiplier
            if not LEAST_NOISE <= noise <= MOST_NOISE:
                raise ValueError(
                    f"clip={self.clip} with noise_multiplier={self.noise_multiplier} gives noise "
                    f"of {noise:g}, and it has to be from {LEAST_NOISE:g} to {MOST_NOISE}; change "
                    "one of the two, or scale the data"
                )
        return self


class PrivacyConfig(Component):
    """Limits on what a client's messages reveal about single samples."""

    k_anonymity: PositiveInt = 2
    """The fewest samples behind each centroid or prototype that a client sends; those of fewer are
    not sent. With 1, representations of single samples are sent. Fuzzy means (FFCM) and sums are
    not bounded."""
    secure_aggregation: bool = False
    """Clients mask their contributions, and the driver reads only their sum, which is bitwise the
    same. For methods whose clients send only sums."""
    dp: DPConfig = DPConfig()

    @property
    def words(self) -> dict[str, str]:
        """The active protections with their settings, for a run's first lines; {} if none."""
        masks = {"secure aggregation": "on"} if self.secure_aggregation else {}
        dp = self.dp
        if dp.clip is None:
            return masks
        return masks | {
            "differential privacy": f"clip {dp.clip:g}, noise {dp.noise_multiplier or 0:g}"
        }
