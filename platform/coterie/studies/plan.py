"""The plan of a comparison from its command line: variants of experiments, and their configs."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product
from typing import Annotated, Any, Literal

from hydra.core.override_parser.types import Override
from pydantic import Field, NonNegativeInt, PositiveInt, field_validator

from coterie.commands.arguments import read_values, separate
from coterie.commands.compose import compose_plain
from coterie.commands.overrides import parse
from coterie.config.component import Component, NotEmpty
from coterie.config.explain import nearest
from coterie.config.loading import check_keys, load_component, load_config
from coterie.config.schema import RunConfig
from coterie.errors import ConfigError

_Names = Annotated[tuple[str, ...], Field(strict=False)]
_LONGEST_FOLDER = 160
"""Longest label that is a folder's name; a seed and an ending follow it."""
_INSTEAD = {
    "experiment": "experiments=[NAME,…]",
    "run_dir": "out=DIR",
    "seed": "seeds=[0,1,2]",
}
"""Keys of a single run, and their replacements in a comparison."""

EXIT_CODES = {
    "0": "all runs completed",
    "1": "a run failed",
    "2": "the arguments were refused",
    "3": "all runs completed, but clients were dropped",
    "130": "interrupted; the runs under way stopped after a checkpoint",
}


class CompareConfig(Component):
    """What to compare, and where to write it."""

    experiments: Mapping[str, str] = {}
    """Experiments as [a,b], or with your own names as {name: experiment, other: experiment}."""
    seeds: Annotated[tuple[NonNegativeInt, ...], Field(strict=False, min_length=1)] = (0, 1, 2)
    """Each experiment is run once with each seed."""
    out: NotEmpty | None = None
    """Folder to write to; by default `<$COTERIE_RUNS or runs>/comparison/<UTC time>`."""
    resume: bool = False
    """Resume in out=DIR: completed runs are kept, interrupted ones resumed, others added."""
    parallel: PositiveInt | Literal["auto"] = "auto"
    """Runs at a time; `auto`: as many as the CPUs and GPUs of cluster or machine hold."""
    metrics: _Names = ()
    """Columns of the table and panels of the figures, such as [clustering/acc]; by default all
    final metrics and the bytes that were used, and up to four panels."""
    axes: _Names = ()
    """Figures by x-axis: round, bytes, or columns of metrics.jsonl, which are summed over the
    phases; by default round, and those of bytes, steps and simulated seconds that were used."""

    @field_validator("experiments", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        """Turn a list of experiments into a mapping of each name to itself."""
        if isinstance(value, str):
            value = (value,)
        if isinstance(value, list | tuple):
            if len(set(map(str, value))) < len(value):
                raise ValueError("one is given twice; give each a name, as {name: experiment, …}")
            return {str(name): str(name) for name in value}
        if isinstance(value, Mapping):
            return {str(name): str(experiment) for name, experiment in value.items()}
        raise ValueError("give a list such as [fedmcc_digits,fedcc_digits]")

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) < len(value):
            raise ValueError("one is given twice; leave it out")
        return value


@dataclass(frozen=True)
class Variant:
    """An experiment with overrides, run once with each seed: a row of the table.

    Attributes:
        label: The name and the values that differ between variants: "ccfc_digits p=0.25".
        overrides: As on the command line of `coterie train`.
    """

    label: str
    experiment: str
    overrides: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The prefix of the runs' folder names, unique to the label."""
        plain = re.sub(r"[^\w.=+,-]", "_", self.label.replace(" ", ","), flags=re.ASCII)
        if plain == self.label.replace(" ", ",") and len(plain) <= _LONGEST_FOLDER:
            return plain
        return f"{plain[:80]}-{blake2b(self.label.encode(), digest_size=4).hexdigest()}"

    def arguments(self, seed: int) -> tuple[str, ...]:
        """Return the command line of one of its runs, without `run_dir`."""
        return (f"experiment={self.experiment}", *self.overrides, f"seed={seed}")


def read_comparison(arguments: Sequence[str]) -> tuple[CompareConfig, tuple[Variant, ...]]:
    """Read the command line of a comparison."""
    own, others = separate(arguments, CompareConfig.model_fields)
    single = [text for text in others if ":" in text.partition("=")[0]]
    shared = [text for text in others if text not in single]
    config = load_component(CompareConfig, read_values(own))
    if not config.experiments:
        raise ConfigError(
            "experiments: none is given; write experiments=[NAME,…], of those that "
            "coterie train --help lists."
        )
    for name in config.experiments:
        if not re.fullmatch(r"[\w.+-]+", name):
            raise ConfigError(
                f"experiments: the name {name!r} may only have letters, digits, . + - _"
            )
    of_one = _by_name(single, config.experiments)
    variants = [
        variant
        for name, experiment in config.experiments.items()
        for variant in _variants(name, experiment, shared, of_one[name])
    ]
    return config, tuple(variants)


def variant_configs(variants: Sequence[Variant], seed: int) -> dict[Variant, RunConfig]:
    """Load each variant's config with this seed, so that errors are found before any run."""
    plain, configs = {}, {}
    try:
        for variant in variants:  # all of them before a class, and with it PyTorch, is imported
            plain[variant] = compose_plain(*variant.arguments(seed))
            check_keys(plain[variant])
        for variant in variants:
            configs[variant] = load_config(plain[variant])
    except ConfigError as error:
        whose = "" if variant.label in str(error) else f"{variant.label}: "
        raise ConfigError(f"{whose}{error}") from error
    return configs


def _by_name(texts: Sequence[str], names: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the overrides of single experiments (`name:key=value`) by name."""
    found: dict[str, list[str]] = {name: [] for name in names}
    for text in texts:
        name, _, override = text.partition(":")
        if name not in found:
            close = nearest(name, names)
            hint = f"did you mean {close}?" if close else f"there are {', '.join(names)}."
            raise ConfigError(f"{text}: nothing in experiments is called {name}; {hint}")
        found[name].append(override)
    return found


def _variants(
    name: str, experiment: str, shared: Sequence[str], own: Sequence[str]
) -> list[Variant]:
    """Return the variants of an experiment: one per combination of the keys' values."""
    texts, chosen = [*shared, *own], dict[str, tuple[Override, str]]()
    for number, (override, text) in enumerate(zip(parse(texts, sweeps=True), texts, strict=True)):
        key = override.key_or_group
        if key in _INSTEAD:
            given = text if number < len(shared) else f"{name}:{text}"
            raise ConfigError(f"{given}: a comparison sets it itself; give {_INSTEAD[key]}.")
        chosen.pop(key, None)  # the last value counts; own ones follow shared ones
        chosen[key] = override, text
    values = {key: _values(override, text) for key, (override, text) in chosen.items()}
    swept = [key for key, (override, _) in chosen.items() if override.is_sweep_override()]
    short = short_names(swept)
    variants = []
    for combination in product(*values.values()):
        by_key = dict(zip(values, combination, strict=True))
        differs = [f"{short[key]}={by_key[key].partition('=')[2]}" for key in swept]
        variants.append(Variant(" ".join([name, *differs]), experiment, combination))
    return variants


def short_names(keys: Collection[str]) -> dict[str, str]:
    """Return each key's last part, or the whole keys if two would be equal."""
    short = {key: key.rpartition(".")[2] for key in keys}
    return short if len(set(short.values())) == len(short) else {key: key for key in keys}


def _values(override: Override, text: str) -> list[str]:
    """Return the override of each value of a key."""
    if not override.is_sweep_override():
        return [text]
    if not (override.is_choice_sweep() or override.is_range_sweep()):
        raise ConfigError(f"{text}: it names no values; list them, as {override.key_or_group}=a,b.")
    values = [f"{override.key_or_group}={value}" for value in override.sweep_string_iterator()]
    if len(set(values)) < len(values):
        raise ConfigError(f"{text}: a value is given twice; leave it out.")
    return values
