"""Simulated participation: cohorts, absence, dropouts and stragglers."""

from typing import Annotated, Any

from pydantic import Field, PositiveInt, ValidationInfo, field_validator, model_validator

from coterie.config.component import Component
from coterie.config.file_digest import with_digest

Fraction = Annotated[float, Field(gt=0.0, le=1.0)]
Rate = Annotated[float, Field(ge=0.0, lt=1.0)]


class ParticipationConfig(Component):
    """Cohorts, absent clients, dropouts and stragglers, all drawn from the run's seed."""

    fraction: Fraction | None = None
    """Share of the present clients drawn for each round, rounded up; by default the method's."""
    count: PositiveInt | None = None
    """Number of clients drawn, or all present clients if fewer; in place of a fraction."""
    availability: str | tuple[tuple[int, ...], ...] | None = None
    """Clients present in each round: a list such as [[0,1],[2]], a .json file with such a list, or
    a .csv file with the columns round and client; it repeats after the last round."""
    availability_digest: str | None = None
    """SHA-256 of that file. Filled in from the file; a given value must match."""
    device_failure_rate: Rate = 0.0
    """Share of the clients that is absent in all rounds, rounded to whole clients, never all."""
    dropout_rate: Rate = 0.0
    """Probability that a chosen client fails in a phase before it sends anything."""
    straggler_rate: Rate = 0.0
    """Share of each round's clients that do only a part of their local steps."""
    straggler_work: Fraction = 0.5
    """Part of the local steps that stragglers do, rounded down, at least one step."""

    @model_validator(mode="before")
    @classmethod
    def _find_out(cls, given: Any) -> Any:
        """Fill in the digest, so that a run is not resumed with another file."""
        return with_digest(
            given, file="availability", digest="availability_digest", section="participation"
        )

    @field_validator("availability", mode="before")
    @classmethod
    def _path_or_lists(cls, value: Any) -> Any:
        if value is None or isinstance(value, str) or are_rounds(value):
            return value
        raise ValueError("give a file, or a list of lists of clients such as [[0,1],[2]]")

    @field_validator("availability_digest")
    @classmethod
    def _of_a_file(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and not isinstance(info.data.get("availability"), str):
            raise ValueError(
                "participation.availability names no file; name one, or leave the digest out"
            )
        return value

    @model_validator(mode="after")
    def _one_size(self) -> "ParticipationConfig":
        if self.fraction is not None and self.count is not None:
            raise ValueError(
                f"fraction={self.fraction:g} and count={self.count} exclude each other; set one"
            )
        return self


def are_rounds(value: Any) -> bool:
    """Return whether a value from YAML or JSON is a list of lists of clients."""
    return isinstance(value, list | tuple) and all(
        isinstance(present, list | tuple) and all(type(client) is int for client in present)
        for present in value
    )
