"""Components: config sections that name their class by path.

A section such as `method`, `data`, `partition`, `encoder` or `augmentation` names a class with
`target: package.module:Class`; its other keys are the config of that class. A user's own method or
encoder is thus named by its path, without a registry.
"""

import importlib
import re
import sys
from collections.abc import Collection, Mapping
from os import PathLike, fspath
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from coterie.config.explain import dotted_fields, explain, nearest, show
from coterie.errors import ConfigError

TRUST = "trust"
"""The key of pydantic's context under which validators find the packages that the user trusts."""

_LONGEST_TARGET = 500

NotEmpty = Annotated[str, Field(min_length=1)]

NESTED = "give it a nested class Config"
"""The remedy for a class without a config model."""


class Component(BaseModel):
    """Base of every config model: frozen, with strict types, finite numbers and no unknown keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )

    absent: ClassVar[Mapping[str, str]] = {}
    """Keys that similar components have, with the reason why this one lacks them, which ends the
    sentence "KEY=VALUE does not apply here: …"."""

    def __init__(self, **values: Any) -> None:
        """Build the model from keyword arguments, as a user's Python program does.

        Raises:
            ConfigError: If a value is refused, or there is no such key.
        """
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(explain(error, values, dotted_fields(type(self)), "")) from error

    # pydantic then builds the models within a model by itself, and joins their errors.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Copy missing docstrings of fields from the first base that has them."""
        super().__pydantic_init_subclass__(**kwargs)
        bases = [base for base in cls.__mro__[1:] if issubclass(base, Component)]
        for name, field in cls.model_fields.items():
            found = (base.model_fields[name] for base in bases if name in base.model_fields)
            field.description = field.description or next((f.description for f in found), None)

    @model_validator(mode="before")
    @classmethod
    def _refuse_absent(cls, values: Any) -> Any:
        """Refuse keys that the base class has and this class lacks, with the reason in `absent`."""
        for key in cls.absent.keys() & set(values if isinstance(values, Mapping) else ()):
            raise ValueError(f"{key}={show(values[key])} does not apply here: {cls.absent[key]}")
        return values

    @field_validator("*", mode="before")
    @classmethod
    def _plain_values(cls, value: Any) -> Any:
        """Convert YAML's lists to tuples, and NumPy's numbers and paths to plain values."""
        return _plain(value)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy the model with other values of some keys, and validate them.

        Raises:
            ConfigError: If a value is refused, or there is no such key.
        """
        if not update:
            return super().model_copy(deep=deep)
        values = {name: getattr(self, name) for name in type(self).model_fields} | dict(update)
        try:
            checked = type(self).model_validate(values)
        except ValidationError as error:
            raise ConfigError(explain(error, values, dotted_fields(type(self)), "")) from error
        return super().model_copy(update={n: getattr(checked, n) for n in update}, deep=deep)


def _plain(value: Any) -> Any:
    """Return a Python value as YAML would have given it, with tuples for lists."""
    if type(value).__module__ == "numpy":
        value = value.tolist()
    if isinstance(value, PathLike):
        return fspath(value)
    return tuple(_plain(item) for item in value) if isinstance(value, list | tuple) else value


_given: dict[str, Any] = {}


def give_classes(classes: Mapping[str, Any]) -> None:
    """Let targets name classes of another process's program, such as those of a notebook.

    Args:
        classes: Target, such as `__main__:Mine`, to the class itself.
    """
    for target, found in classes.items():
        # A class that was sent by value has lost the name of the class that it is nested in.
        found.__qualname__ = target.partition(":")[2]
        if isinstance(nested := vars(found).get("Config"), type):
            nested.__qualname__ = f"{found.__qualname__}.Config"
    _given.update(classes)


def load_target(target: str) -> Any:
    """Import the object at `package.module:Name`, or take the one from `give_classes`.

    Raises:
        ConfigError: If the path is malformed, or the module or the name does not exist.
    """
    if target in _given:
        return _given[target]
    module_name, separator, name = target.partition(":")
    if (
        not (separator and module_name and name)
        or module_name.startswith(".")
        or len(target) > _LONGEST_TARGET  # Python imports each part within that of the one before
    ):
        form = "package.module:Name"
        if re.fullmatch(r"\w+(\.\w+)+", target) and len(target) <= _LONGEST_TARGET:
            form = ":".join(target.rsplit(".", 1))
        raise ConfigError(f"target={show(target)}: write it as {form}.")
    try:
        module = _imported(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"target={target}: no module {error.name!r}; check the path.") from error
    found: Any = module
    for part in name.split("."):
        if found is not module and isinstance(found, ModuleType):
            raise ConfigError(
                f"target={target}: {part!r} is in another module; put that one before the colon."
            )
        if not hasattr(found, part):
            close = nearest(part, dir(found))
            hint = f"did you mean {module_name}:{close}?" if close else "check the name."
            raise ConfigError(f"target={target}: {module_name!r} has no {part!r}; {hint}")
        found = getattr(found, part)
    home = getattr(found, "__module__", None) or module_name
    if home.partition(".")[0] not in {module_name.partition(".")[0], "coterie"}:
        raise ConfigError(f"target={target}: it is defined in {home}; name it there.")
    return found


def _imported(name: str) -> ModuleType:
    """Import a module, if need be from the current folder.

    Only then is that folder searched, and last: libraries look for modules that are not installed,
    and a stranger's file would take their place.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        here = _current_folder()
        if error.name != name.partition(".")[0] or here in ("", *sys.path):
            raise
        sys.path.append(here)
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as again:
            if again.name == error.name:
                sys.path.remove(here)
            raise


def _current_folder() -> str:
    """Return the current folder; "" if it is gone."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def config_model(target: str, remedy: str = NESTED) -> type[Component]:
    """Return the config model of a target: the target itself, or its attribute `Config`.

    Args:
        target: `package.module:Name`.
        remedy: What to do if it has none.

    Raises:
        ConfigError: If the target has no config model, only one that it inherits, or one with a
            field called `target`.
    """
    found = load_target(target)
    model = found if isinstance(found, type) and issubclass(found, Component) else None
    model = model or getattr(found, "Config", None)
    if not (isinstance(model, type) and issubclass(model, Component)):
        raise ConfigError(f"target={target}: it has no config model; {remedy}.")
    if "target" in model.model_fields:
        raise ConfigError(
            f"target={target}: its config has a field target, the key that names the class; rename "
            "the field."
        )
    # `target_of` names a component by its config: an inherited one would name the parent.
    if load_target(_path_of(model)) is not found:
        raise ConfigError(
            f"target={target}: its config model belongs to {_path_of(model)}; give the class its "
            "own nested class Config, which may inherit."
        )
    return model


def parse_component(section: Mapping[str, Any], trust: Collection[str] = ()) -> Component:
    """Validate a section `{target: …, key: value, …}` by its target's config model.

    Args:
        section: The section.
        trust: Packages that configs stored elsewhere, which the section refers to, may name.

    Raises:
        ConfigError: If `target` names nothing that has a config model.
        pydantic.ValidationError: If that model refuses the other keys.
    """
    values = dict(section)
    target = values.pop("target", None)
    if not isinstance(target, str):
        raise ConfigError(f"target={target!r}: name a class as package.module:Name.")
    return config_model(target).model_validate(values, context={TRUST: tuple(trust)})


def target_of(component: Component) -> str:
    """Return a component's target: `coterie.modules.fedmcc:FedMCC` for a `FedMCC.Config`."""
    return _path_of(type(component))


def _path_of(model: type[Component]) -> str:
    return f"{model.__module__}:{model.__qualname__.removesuffix('.Config')}"


def trust_of(info: ValidationInfo) -> tuple[str, ...]:
    """Return the packages that the user trusts, from the context of a validation."""
    found: tuple[str, ...] = (info.context or {}).get(TRUST, ())
    return found


def _parse_nested(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, Mapping):
        return value
    if value.get("target") is None:
        named = ", or a name such as fedprox," if info.field_name == "strategy" else ""
        raise ValueError(f"it has keys but no class; give its target{named} too")
    try:
        return parse_component(value, trust_of(info))
    except ValidationError as error:
        own = {key: given for key, given in value.items() if key != "target"}
        prefix = f"{info.field_name}."
        fields = dotted_fields(config_model(value["target"]), prefix)
        raise ValueError(explain(error, own, fields, prefix).rstrip(".")) from error


def dumped(component: Component) -> dict[str, Any]:
    """Return a component as plain values, which `parse_component` reads."""
    return {"target": target_of(component), **component.model_dump(mode="json")}


def _dump_nested(value: Component | None) -> Any:
    return None if value is None else dumped(value)


NestedComponent = Annotated[
    Component | None, BeforeValidator(_parse_nested), PlainSerializer(_dump_nested)
]
"""A component inside another's config: `{target: package.module:Class, key: value}`, or None."""
