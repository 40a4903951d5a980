"""Objects of other libraries in a config: `{target: package.module:Class, argument: value, …}`."""

import inspect
from collections.abc import Mapping
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import BeforeValidator

from coterie.config.component import load_target
from coterie.config.explain import one_of, show
from coterie.errors import ConfigError


def _named_class(value: Any) -> Any:
    if isinstance(value, Mapping) and isinstance(value.get("target"), str):
        return value
    raise ValueError("name its class, as {target: package.module:Class}")


def _named_class_or(*names: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        if not isinstance(value, Mapping) and value not in names:
            raise ValueError(one_of(show(value), names))
        return _named_class(value) if isinstance(value, Mapping) else value

    return BeforeValidator(check)


Target = Annotated[Mapping[str, Any], BeforeValidator(_named_class)]
"""A class by its path under `target`, and the arguments for it."""
LoggerChoice = Annotated[
    Literal["csv", "tensorboard", "wandb"] | Mapping[str, Any],
    _named_class_or("csv", "tensorboard", "wandb"),
]
"""One of Coterie's loggers by its name, or any other by its class."""


def build_target(
    key: str, section: Mapping[str, Any], bases: tuple[type, ...], **offers: Any
) -> Any:
    """Build the object that a section of the config describes.

    Args:
        key: The section's key, for errors.
        section: `target` and the arguments.
        bases: The classes, of one of which it has to be an instance.
        offers: Arguments that it is called with if it takes them and the section does not say.
    """
    given = {name: value for name, value in section.items() if name != "target"}
    target = section["target"]
    try:
        kind = load_target(target)
    except ConfigError as error:
        raise ConfigError(f"{key}.{error}") from error
    if not (isinstance(kind, type) and issubclass(kind, bases)):
        name = " or ".join(base.__qualname__ for base in bases)
        raise ConfigError(f"{key}.target={target}: it is not of type {name}; name a class that is.")
    takes = check_arguments(key, kind, target, given)
    arguments = {name: value for name, value in offers.items() if name in takes} | given
    try:
        return kind(**arguments)
    except Exception as error:  # a class of another library raises what it likes
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise ConfigError(f"{key}.target={target}: it cannot be built ({reason}).") from error


def check_arguments(
    key: str, kind: Any, target: str, given: Mapping[str, Any]
) -> Mapping[str, inspect.Parameter]:
    """Refuse arguments that a class or function does not take, and return those that it does.

    Raises:
        ConfigError: Naming the nearest that it takes; also of a text for a number.
    """
    try:
        takes = inspect.signature(kind).parameters
    except ValueError:  # of C, without a signature
        return {}
    open_ended = any(each.kind is each.VAR_KEYWORD for each in takes.values())
    for name in given if not open_ended else ():
        if name not in takes:
            raise ConfigError(f"{key}.{name}: {target} does not take it; {one_of(name, takes)}")
    for name in _numbers(kind):
        if isinstance(value := given.get(name), str):
            raise ConfigError(
                f"{key}.{name}={show(value)}: it is a text, and {target} takes a number; give one."
            )
    return takes


def _numbers(kind: Any) -> list[str]:
    """Return the arguments of a class or function whose annotations allow only numbers."""
    try:
        hints = get_type_hints(kind if inspect.isroutine(kind) else kind.__init__)
    except Exception:  # noqa: BLE001 - annotations may name what only type checkers know
        return []
    numbers = {int, float, bool, NoneType}
    return [name for name, hint in hints.items() if {*(get_args(hint) or [hint])} <= numbers]
