"""Converts plain values to the run's frozen configuration, and back."""

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError, create_model

from coterie.config.component import NESTED, TRUST, Component, config_model, load_target, target_of
from coterie.config.explain import Fields, dotted_fields, explain, show
from coterie.config.method import MethodConfig
from coterie.config.partition import PartitionConfig
from coterie.config.schema import COMPONENTS, RunConfig
from coterie.config.source_model import source_model
from coterie.config.trust import trusted_by
from coterie.errors import ConfigError

SCORES = ("acc", "nmi", "ari", "kappa")
"""Metrics by which a checkpoint of Coterie's methods may be the best."""
ModelT = TypeVar("ModelT", bound=BaseModel)

_REMEDIES = {
    "encoder": "name a class derived from EncoderConfig, as in docs/extend.md",
    "augmentation": "name a class derived from AugmentationConfig, as in docs/extend.md",
}
"""Remedies where a section names a class without a config model, such as a bare nn.Module."""

_BASES: dict[str, type[Component]] = {"method": MethodConfig, "partition": PartitionConfig}
"""Base classes of sections' config models that the engine asks for more than their keys."""

_own: dict[str, Any] = {
    name: (field.annotation, field)
    for name, field in RunConfig.model_fields.items()
    if name not in COMPONENTS
}
_Engine = create_model("_Engine", __base__=Component, **_own)


def load_config(values: Mapping[str, Any]) -> RunConfig:
    """Validate the whole configuration.

    Args:
        values: Plain values, as read from YAML. The sections in `COMPONENTS` hold `target:
            package.module:Class` and the keys of that class's config model.

    Raises:
        ConfigError: At the first unknown key or invalid value: one sentence with the full dotted
            key, the value, and the closest valid one.
    """
    models = {name: section_model(name, values.get(name)) for name in COMPONENTS}
    fields = dict(dotted_fields(RunConfig))
    for name, model in models.items():
        fields |= dotted_fields(model, f"{name}.")
    trust = trusted_by(values)
    sections = {
        name: _validate(model, _own_keys(values[name]), fields, f"{name}.", trust)
        for name, model in models.items()
    }
    config = _validate(RunConfig, {**values, **sections}, fields, "")
    _check_sums(config)
    _check_best(config)
    return config


def check_keys(values: Mapping[str, Any]) -> None:
    """Validate what can be validated without importing methods, data or PyTorch.

    These are the keys outside of `COMPONENTS`, and the keys of Coterie's own components as far as
    their source tells them.

    Args:
        values: As for `load_config`, which validates all of them.

    Raises:
        ConfigError: As `load_config`.
    """
    engine = {key: value for key, value in values.items() if key not in COMPONENTS}
    fields = dict(dotted_fields(RunConfig))
    models = {name: _source_model(values.get(name)) for name in COMPONENTS}
    for name, model in models.items():
        fields |= dotted_fields(model, f"{name}.") if model else {}
    _validate(_Engine, engine, fields, "")
    for name, model in models.items():
        if model:
            _validate(model, _own_keys(values[name]), fields, f"{name}.")


def _check_numbers(value: Any, key: str) -> None:
    """Refuse integers of more than 64 bits, which a run's files cannot hold."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _check_numbers(inner, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_numbers(inner, key)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigError(f"{key}={show(value)}: a whole number has at most 64 bits; lower it.")


def _source_model(section: object) -> type[Component] | None:
    target = section.get("target") if isinstance(section, Mapping) else None
    return source_model(target) if isinstance(target, str) else None


def load_component(
    model: type[ModelT], values: Mapping[str, Any], prefix: str = "", trust: Collection[str] = ()
) -> ModelT:
    """Validate plain values with a config model outside a run's config, such as a command's.

    Args:
        model: The config model.
        values: The plain values.
        prefix: Prefix of the keys in errors, such as "cluster.".
        trust: Packages that configs stored elsewhere may name, such as a pretrained encoder's.

    Raises:
        ConfigError: As `load_config`.
    """
    return _validate(model, values, dotted_fields(model, prefix), prefix, trust)


def dump_config(config: RunConfig) -> dict[str, Any]:
    """Return the whole configuration, defaults included, as plain values for YAML or JSON.

    `load_config` restores an equal one, but for the arguments of loggers that are named by class:
    these may be keys and passwords, and a stored config is read by many.
    """
    values = config.model_dump(mode="json")
    values["tracking"]["loggers"] = [
        one if isinstance(one, str) else {"target": one["target"]}
        for one in values["tracking"]["loggers"]
    ]
    for name in COMPONENTS:
        values[name] = {"target": target_of(getattr(config, name)), **values[name]}
    return values


def section_model(name: str, section: object) -> type[Component]:
    """Return the config model of a section's `target`.

    Args:
        name: Name of the section, one of `COMPONENTS`, for the error.
        section: Its keys and values.

    Raises:
        ConfigError: If there is no target, or it has no config model, or one for another section.
    """
    target = section.get("target") if isinstance(section, Mapping) else None
    if target is None:
        raise ConfigError(f"{name}: nothing is chosen; set {name}.target=package.module:Class.")
    if not isinstance(target, str):
        raise ConfigError(f"{name}.target={show(target)}: write it as package.module:Class.")
    try:
        model = config_model(target, _REMEDIES.get(name) or _remedy(name, target))
    except ConfigError as error:
        raise ConfigError(f"{name}.{error}") from error
    base = _BASES.get(name, Component)
    if not issubclass(model, base):
        raise ConfigError(
            f"{name}.target={target}: it is not a class for {name}; name another, or derive its "
            f"config from coterie.{base.__name__}."
        )
    return model


def _remedy(section: str, target: str) -> str:
    """Return advice on a class that has no config model, depending on its kind."""
    kinds = {kind.__name__ for kind in getattr(load_target(target), "__mro__", ())}
    if section == "method" and "LightningModule" in kinds:
        return f"a LightningModule goes in experiment=lightning module={target}"
    if section == "data" and kinds & {"LightningDataModule", "Dataset", "DataLoader"}:
        return f"give data=torch data.target={target}, or for your own module experiment=lightning"
    return NESTED


def _check_sums(config: RunConfig) -> None:
    """Refuse aggregation other than the mean where contributions are sums over samples."""
    if not type(config.method).sums:
        return
    for key, plain in (("rule", ("weighted", "equal")), ("optimizer", ("none",))):
        value = getattr(config.aggregation, key)
        if value not in plain:
            raise ConfigError(
                f"aggregation.{key}={value}: this method's clients send sums over their samples, "
                f"which have to add up; use {plain[0]}."
            )


def _check_best(config: RunConfig) -> None:
    best = config.checkpoint.best
    if best is None or type(config.method).logs:
        return
    if best not in SCORES:
        raise ConfigError(f"checkpoint.best={best}: must be one of {', '.join(SCORES)}.")
    if not config.evaluation.every:
        raise ConfigError(
            f"checkpoint.best={best}: evaluation.every=0 measures nothing between rounds; set it, "
            "or leave checkpoint.best out."
        )


def _own_keys(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key != "target"}


def _validate(
    model: type[ModelT],
    values: Mapping[str, Any],
    fields: Fields,
    prefix: str,
    trust: Collection[str] = (),
) -> ModelT:
    try:
        found = model.model_validate(values, context={TRUST: tuple(trust)})
    except ValidationError as error:
        raise ConfigError(explain(error, values, fields, prefix)) from error
    except UnicodeEncodeError as error:
        section = prefix.rstrip(".") or "the config"
        raise ConfigError(f"{section}: a text in it is not UTF-8; write it in UTF-8.") from error
    _check_numbers(values, prefix.rstrip("."))
    return found
