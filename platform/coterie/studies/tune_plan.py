"""The plan of a search for hyperparameters from its command line: its trials' configs."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from coterie.commands.arguments import read_values, separate
from coterie.commands.written import written
from coterie.config.component import Component, NotEmpty
from coterie.config.explain import show
from coterie.config.loading import load_component
from coterie.config.plain_files import read_yaml
from coterie.errors import ConfigError
from coterie.studies.comparison_table import LOWER
from coterie.studies.plan import Variant, short_names

LABEL_FREE = "unsupervised"
"""The group of the scores that need no labels."""
_DIGITS = 3
"""Significant digits of a number that is drawn from a range."""
_ATTEMPTS = 100
"""The most draws for a trial until it differs from all earlier ones."""
_IMPLIED = {
    LABEL_FREE: "evaluation.unsupervised=true",
    "linear": "evaluation.linear_probe_between=true",
}
"""Group of the objective to the key with which trials measure it between rounds."""


class Range(Component):
    """A range to draw numbers from, uniformly or by logarithm; integers between integers."""

    low: int | float
    high: int | float
    log: bool = False

    @model_validator(mode="after")
    def _ordered(self) -> "Range":
        if not self.low < self.high:
            raise ValueError(f"low={self.low} is not below high={self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"low={self.low} has no logarithm; give one above 0")
        return self

    def draw(self, rng: np.random.Generator) -> int | float:
        """Draw a number with three significant digits."""
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        beyond = 0.5 if whole else 0.0  # so that both ends are as likely as other integers
        low, high = self.low - beyond, self.high + beyond
        ends = (math.log(low), math.log(high)) if self.log else (low, high)
        found = rng.uniform(*ends)
        number = math.exp(found) if self.log else found
        number = round(number) if whole else float(f"{number:.{_DIGITS}g}")
        return min(max(number, self.low), self.high)


Values = tuple[Any, ...] | Range


class TuneConfig(Component):
    """What to search, and by which objective to choose."""

    experiment: str
    """The experiment; other keys apply to every trial."""
    space: Mapping[str, Any] = {}
    """Keys and their values, as a YAML file or as {method.epochs: [1, 2], method.learning_rate:
    {low: 1e-3, high: 1e-1, log: true}}; groups such as encoder too."""
    objective: str = f"{LABEL_FREE}/selection"
    """Score to choose by, by its name in metrics.jsonl; Align + 0.2 Unif, the default, needs no
    labels."""
    mode: Literal["auto", "max", "min"] = "auto"
    """Whether a high or a low objective is better; `auto`: low for losses and mixing, high for all
    others."""
    trials: PositiveInt = 8
    """Number of distinct points drawn from the space; all combinations if there are no more."""
    early_stopping: bool = True
    """Stop trials that are behind, by ASHA; false: all run to their end."""
    grace: PositiveInt | None = None
    """Rounds before a trial may be stopped; by default those up to the first evaluation."""
    reduction: Annotated[float, Field(gt=1.0)] = 3.0
    """ASHA's reduction factor η: at each decision the best 1/η of the trials continue, and the
    rounds between decisions grow by η."""
    seed: NonNegativeInt = 0
    """Seed of the draws and of every trial."""
    run_dir: NotEmpty | None = None
    """Folder to write to, where the same command continues; by default `<$COTERIE_RUNS or
    runs>/tune/<UTC time>`."""
    parallel: PositiveInt | Literal["auto"] = "auto"
    """Trials at a time; `auto`: as many as the CPUs and GPUs of cluster or machine hold."""

    @field_validator("space", mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return read_yaml(Path(value))
        except OSError as error:
            raise ValueError(f"it cannot be read ({error.strerror}); check the path") from error

    @property
    def lower(self) -> bool:
        """Whether less of the objective is better."""
        if self.mode == "auto":
            return self.objective.rpartition("/")[2] in LOWER
        return self.mode == "min"


Point = Mapping[str, str]
"""Key to value, as on the command line."""


def read_tuning(arguments: Sequence[str]) -> tuple[TuneConfig, dict[Variant, Point]]:
    """Read the command line of a search.

    Returns:
        The options, and each trial's variant and point of the space.
    """
    own, shared = separate(arguments, set(TuneConfig.model_fields))
    config = load_component(TuneConfig, read_values(own))
    space = _space(config.space)
    implied = _IMPLIED.get(config.objective.partition("/")[0])
    before = (*([implied] if implied else []), *shared)
    short, trials = short_names(space), dict[Variant, Point]()
    for point in points(space, config.trials, config.seed):
        label = " ".join(f"{short[key]}={value}" for key, value in point.items())
        values = (f"{key}={value}" for key, value in point.items())
        trials[Variant(label, config.experiment, (*before, *values))] = point
    return config, trials


def _space(given: Mapping[str, Any]) -> dict[str, Values]:
    """Return the values of each key, or its range."""
    if not given:
        raise ConfigError("space: none is given; write space='{method.KEY: [VALUE, VALUE]}'.")
    space: dict[str, Values] = {}
    for key, values in given.items():
        if isinstance(values, Mapping):
            space[key] = load_component(Range, values, f"space.{key}.")
        elif isinstance(values, list | tuple) and values:
            space[key] = tuple(values)
        else:
            raise ConfigError(
                f"space.{key}={show(values)}: give values as [1, 2], or a range as "
                "{low: 1, high: 2}."
            )
    return space


def points(space: Mapping[str, Values], trials: int, seed: int) -> list[Point]:
    """Draw distinct points of a space; drawing more keeps the first ones.

    Args:
        space: Key to values or range.
        trials: Points to draw; all combinations if there are no more.
        seed: Of the draws.
    """
    rng, found = np.random.default_rng(seed), dict[tuple[str, ...], None]()
    for _ in range(_ATTEMPTS * trials):
        if len(found) == trials:
            break
        found[tuple(written(_draw(values, rng)) for values in space.values())] = None
    lists = [values for values in space.values() if not isinstance(values, Range)]
    if len(lists) == len(space) and math.prod(map(len, lists)) <= trials:
        for point in product(*lists):  # the combinations that were not drawn
            found[tuple(map(written, point))] = None
    return [dict(zip(space, point, strict=True)) for point in found]


def _draw(values: Values, rng: np.random.Generator) -> Any:
    return values.draw(rng) if isinstance(values, Range) else values[rng.integers(len(values))]
