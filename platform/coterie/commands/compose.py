"""Compose a validated config from `key=value` and `group=choice`, with Hydra's YAML groups.

Hydra composes the groups of `configs/`. Single values are set afterwards and checked by the config
models alone, because Hydra's own error messages are long and do not suggest the nearest key.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from coterie.commands.method_choices import ELSEWHERE, METHOD, methods_in_hydra, shipped_methods
from coterie.commands.overrides import parse
from coterie.commands.own_class_keys import with_own_classes
from coterie.commands.recipes import (
    RECIPES,
    find_recipe,
    first_comment,
    read_recipe,
    recipe_names,
)
from coterie.commands.written import written
from coterie.config import COMPONENTS, RunConfig, load_config
from coterie.config.explain import NAMED, nearest, not_among, show
from coterie.config.trust import check_places, check_targets, packages_in, trusted_by
from coterie.errors import ConfigError, reason
from coterie.tracking.run_directory import RunDirectory

STUDIES = "study"
"""The folder of the papers' tables, from which a run cannot choose."""


_FILES = {
    **dict.fromkeys((".npz", ".npy"), "npz"),
    **dict.fromkeys((".csv", ".tsv", ".txt", ".parquet", ".xlsx", ".xls"), "manifest"),
}
"""Endings of files to the choice of data that reads them."""


def compose(*overrides: str) -> RunConfig:
    """Compose the config that a command line asks for; works in notebooks and from any folder.

    Choices (`encoder=mlp`) are applied before single values (`encoder.features=64`) in any order. A
    choice that differs from the experiment's replaces the experiment's keys in that section; if
    both name the same class, it replaces only the keys that the choice itself sets.

    Without an experiment, `resume=true run_dir=…` takes the config of that run; `cluster=` and
    `tracking=` can be chosen again. Only Coterie's own classes are imported from it, those of the
    packages in `trust=`, and those of packages that the overrides name.

    Args:
        overrides: `experiment=fedmcc_digits`, `encoder=mlp`, `seed=1`, `method.lr=1e-3`;
            `~method.lr` replaces the experiment's value by the default.

    Raises:
        ConfigError: At the first error, in one sentence.
    """
    if other := [given for given in overrides if not isinstance(given, str)]:
        raise ConfigError(f'compose: {show(other[0])}: give each key as a text, such as "seed=1".')
    return load_config(compose_plain(*overrides))


def compose_plain(*overrides: str, needs_data: bool = True) -> dict[str, Any]:
    """Compose the same config as unchecked plain values, without importing PyTorch.

    Args:
        overrides: As `compose`.
        needs_data: Whether data has to be chosen.
    """
    choices, values = _sort(with_own_classes(overrides))
    given = _given(values)
    directory = _resumed(choices, given)
    if directory is not None:
        choices, values = _sort(with_own_classes(overrides, directory.read_config()))
        given = _given(values)
    if "resume=true" in overrides and "run_dir" not in given:
        raise ConfigError("resume=true: give the folder of the run to go on with as run_dir=DIR.")
    if "experiment" not in choices and directory is None:
        raise ConfigError(_no_experiment())
    try:
        needs_data = needs_data and "data.target" not in given
        config = (
            _compose_groups(choices, needs_data=needs_data)
            if directory is None
            else _stored(directory, choices)
        )
        for override in values:
            _set(config, override)
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise _no_config(overrides, error) from error
    # A stored config is data: what looks like an interpolation stays a text.
    plain = as_plain(config, overrides, resolve=directory is None)
    if directory is not None:
        check_targets(plain, directory.config, {*trusted_by(plain), *packages_in(given)})
        check_places(plain, directory.config, given)
    return plain


def as_plain(values: Any, overrides: Sequence[str], *, resolve: bool = True) -> dict[str, Any]:
    """Return plain values, with interpolations such as `${oc.env:NAME}` resolved by default.

    Raises:
        ConfigError: If an interpolation cannot be resolved.
    """
    try:
        config = OmegaConf.create(values)
        plain: Any = OmegaConf.to_container(config, resolve=resolve, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise _no_config(overrides, error) from error
    return dict(plain)


def _no_config(overrides: Sequence[str], error: Exception) -> ConfigError:
    return ConfigError(f"{' '.join(overrides)}: the config does not compose: {reason(error)}.")


def compose_sections(needed: Sequence[str], arguments: Sequence[str]) -> dict[str, Any]:
    """Compose a few sections without an experiment, for commands with keys of their own.

    Args:
        needed: Groups of which a choice, or a `target`, has to be given, such as "data".
        arguments: Choices of these groups, and keys of theirs and of the command's.

    Returns:
        Unchecked plain values: a section for each group, and the command's own keys.

    Raises:
        ConfigError: If a group has no choice, or another group is chosen.
    """
    choices, values = _sort(arguments)
    if other := sorted(choices.keys() - set(needed)):
        known = ", ".join(needed)
        raise ConfigError(f"{other[0]}={choices[other[0]]}: choose only {known} here.")
    config = OmegaConf.create({name: read_choice(name, choices[name]) for name in choices})
    for override in values:
        _set(config, override)
    for name in needed:
        if _target(config, name) is None:
            raise ConfigError(f"{name}: none is chosen; give {name}=CHOICE, see --help.")
    return as_plain(config, arguments)


def _given(values: Sequence[Override]) -> dict[str, Any]:
    """Return the values on the command line by dotted key, without those that are deleted."""
    return {value.key_or_group: value.value() for value in values if not value.is_delete()}


def _resumed(choices: Mapping[str, str], given: Mapping[str, Any]) -> RunDirectory | None:
    """Return the folder of the run that `resume=true run_dir=…` names, if nothing else is chosen.

    Another `cluster` or `tracking` replaces the run's; keys that decide bits are checked later.
    """
    run_dir = given.get("run_dir")
    if not choices.keys() <= {"cluster", "tracking"} or given.get("resume") is not True:
        return None
    if not isinstance(run_dir, str):
        return None
    if "experiment" not in choices or RunDirectory.exists(run_dir):
        return RunDirectory.open(run_dir)  # raises if there is no run
    return None


def _stored(directory: RunDirectory, choices: Mapping[str, str]) -> DictConfig:
    """Return the config of a run, with sections chosen again."""
    own = {group: read_choice(group, choice) for group, choice in choices.items()}
    return OmegaConf.create({**directory.read_config(), **own})


def _no_experiment() -> str:
    names = list(experiments())
    known = f", one of {', '.join(names)}" if len(names) <= NAMED else " (--help lists them)"
    return f"experiment: none is chosen; give experiment=<name>{known}."


def config_dir() -> Path:
    """Find the YAML groups: inside `coterie` in a wheel, else at the top of the source tree."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "configs"
    found = inside if inside.is_dir() else package.parent.parent / "configs"
    if not found.is_dir():
        raise ConfigError(f"{found}: the folder with the YAML is missing; submit configs/ as well.")
    return found


def groups() -> dict[str, list[str]]:
    """Return the choices of every group, sorted: `{"cluster": ["gpu", "local", "serial"], …}`."""
    return {group: _choices_of(group) for group in _group_names()}


def _group_names() -> list[str]:
    folders = (path for path in config_dir().iterdir() if path.is_dir())
    return sorted({METHOD, *(folder.name for folder in folders)} - {STUDIES})


def _choices_of(group: str) -> list[str]:
    if group == "experiment":
        return list(experiments())
    shipped = shipped_methods() if group == METHOD else ()
    return sorted({*shipped, *_yaml_names(group)})


def _yaml_names(group: str) -> set[str]:
    """Return the choices of a group that have YAML."""
    return {path.stem for path in (config_dir() / group).glob("*.yaml")}


def experiments() -> dict[str, str]:
    """Return a one-sentence description of each experiment, by name."""
    return recipe_names(config_dir() / "experiment")


def describe_choice(group: str, choice: str) -> str:
    """Return the first comment of a choice's YAML that is not for Hydra, or its class's sentence.

    Or "".
    """
    if group == "experiment":
        return experiments()[choice]
    path = _yaml(group, choice)
    if not path.is_file():
        return shipped_methods()[choice].about
    return first_comment(path.read_text(encoding="utf-8"))


def read_choice(group: str, choice: str) -> dict[str, Any]:
    """Read the keys that a choice itself sets, such as `target`.

    Raises:
        ConfigError: If the group has no such choice.
    """
    choice, model = split_choice(group, choice)
    _check_choice(group, choice)
    content: Any = OmegaConf.to_container(_content(group, choice))
    return {**content, **model}


def _content(group: str, choice: str) -> DictConfig | ListConfig:
    """Return a choice's YAML; for a method without YAML, only its class."""
    path = _yaml(group, choice)
    if path.is_file():
        return OmegaConf.load(path)
    return OmegaConf.create({"target": shipped_methods()[choice].target})


def _yaml(group: str, choice: str) -> Path:
    return config_dir() / group / f"{choice}.yaml"


def split_choice(group: str, choice: str) -> tuple[str, dict[str, str]]:
    """Split `torchvision:resnet18` into the choice and the key that names a library's model."""
    name, separator, model = choice.partition(":")
    if separator and group in COMPONENTS and name in _choices_of(group):
        return name, {"model": model}
    return choice, {}


def _check_choice(group: str, choice: str) -> None:
    known = _choices_of(group)
    sought = choice if group == METHOD else choice.partition("_")[0]
    if group in (METHOD, "experiment") and sought in ELSEWHERE and choice not in known:
        raise ConfigError(f"{group}={choice}: {ELSEWHERE[sought]}.")
    if group == "experiment" and choice not in known:
        method, _, data = choice.partition("_")
        if method in known and data in _choices_of("data"):
            raise ConfigError(
                f"{group}={choice}: there is no such experiment; give experiment={method} "
                f"data={data}."
            )
    if group == "encoder" and "/" in choice:
        raise ConfigError(
            f"{group}={choice}: give encoder=timm:NAME, which takes the hub's weights, or "
            "encoder.target=my_file:Class for another model of Hugging Face (docs/encoders.md), or "
            "encoder=exported encoder.path=FILE for a program of torch.export."
        )
    if group == "data" and choice not in known and Path(choice).suffix.lower() in _FILES:
        kind = _FILES[Path(choice).suffix.lower()]
        raise ConfigError(f"{group}={choice}: a file goes in data={kind} data.path={choice}.")
    if group == "tracking" and choice.startswith("["):
        raise ConfigError(f"{group}={choice}: several loggers go in tracking.loggers={choice}.")
    if choice not in known and {":", "."} & set(choice) and group in COMPONENTS:
        raise ConfigError(f"{group}={choice}: your class goes in {group}.target={choice}.")
    if choice not in known:
        why = not_among(group, choice, known, "coterie train --help")
        if group == "encoder" and not nearest(choice, known):
            why = (
                f"there is no such encoder; give {_with_recipe(choice)}encoder=timm:{choice} or "
                f"encoder=torchvision:{choice} if they have it, or see coterie train --help."
            )
        raise ConfigError(f"{group}={choice}: {why}")


def _with_recipe(encoder: str) -> str:
    """Return `experiment=concord_ENCODER, ` to put before other choices; "" if there is none."""
    name = f"concord_{encoder}"
    return f"experiment={name}, " if name in _choices_of("experiment") else ""


def _sort(overrides: Sequence[str]) -> tuple[dict[str, str], list[Override]]:
    """Separate choices of groups from single values, in order; the last choice of a group wins."""
    known, choices, models, values = _group_names(), {}, {}, []
    for override in parse(overrides):
        group, value = override.key_or_group, override.value()
        if group not in known or override.is_delete() or isinstance(value, dict):
            values.append(override)
            continue
        choices[group], named = split_choice(group, written(value))
        _check_choice(group, choices[group])
        models[group] = parse([f"{group}.{key}={name}" for key, name in named.items()])
    # A new class drops the keys of the old one, so `target` comes before the new keys.
    values = [*chain.from_iterable(models.values()), *values]
    return choices, sorted(values, key=lambda value: not value.key_or_group.endswith(".target"))


def _compose_groups(choices: dict[str, str], *, needs_data: bool) -> DictConfig:
    """Compose the YAML of these choices, without an experiment's keys for other choices."""
    folder = config_dir() / "experiment"
    stem, recipe = find_recipe(folder, choices["experiment"], choices.get("data"))
    config = _experiment(stem)
    chosen = dict(config.hydra.runtime.choices)
    del config["hydra"]
    config.pop(RECIPES, None)
    if recipe is not None:
        own, values = read_recipe(folder / f"{stem}.yaml", recipe)
        _choose(config, chosen, own)
        config.merge_with(values)
    _choose(config, chosen, {group: c for group, c in choices.items() if group != "experiment"})
    if chosen.get("data") is None and needs_data:
        raise ConfigError(
            "data: none is chosen; give data=mnist, or your own pictures with data=class_folders "
            "data.path=FOLDER, or data=torch for a torch data set (--help lists all)."
        )
    config["experiment"] = stem if recipe is None else f"{stem}_{recipe}"
    return config


def _choose(config: DictConfig, chosen: dict[str, Any], choices: Mapping[str, str]) -> None:
    """Replace sections by other choices; within the same class, only the keys that the choice sets.

    Args:
        config: Is changed.
        chosen: The choices made so far; is changed.
        choices: The new ones.
    """
    for group, choice in choices.items():
        if chosen.get(group) == choice:
            continue
        own = _content(group, choice)
        same = _target(config, group) == OmegaConf.select(own, "target")
        config[group] = OmegaConf.merge(config[group], own) if same else own
        chosen[group] = choice


def _experiment(stem: str) -> DictConfig:
    """Return what Hydra composes from an experiment's YAML, with its own section."""
    world = GlobalHydra.instance()
    surrounding, world.hydra = world.hydra, None  # a notebook may use Hydra itself
    try:
        with (
            methods_in_hydra(besides=_yaml_names(METHOD)),
            initialize_config_dir(str(config_dir()), version_base="1.3"),
        ):
            config = hydra_compose("config", [f"experiment={stem}"], return_hydra_config=True)
    finally:
        GlobalHydra.instance().hydra = surrounding
    OmegaConf.set_struct(config, False)
    return config


def _target(config: DictConfig, section: str) -> str | None:
    target: str | None = OmegaConf.select(config, f"{section}.target")
    return target


def _set(config: DictConfig, override: Override) -> None:
    key, value = override.key_or_group, override.value()
    parent, _, leaf = key.rpartition(".")
    if override.is_delete():
        holder = OmegaConf.select(config, parent) if parent else config
        if not isinstance(holder, DictConfig) or leaf not in holder:
            raise ConfigError(
                f"{override.input_line}: the experiment does not set it; leave it out."
            )
        del holder[leaf]
        return
    section = parent if leaf == "target" else key
    target = value.get("target") if isinstance(value, dict) else value if leaf == "target" else None
    if section in COMPONENTS and target is not None and target != _target(config, section):
        config[section] = {}
    OmegaConf.update(config, key, value, merge=True, force_add=True)
