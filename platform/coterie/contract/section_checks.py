"""Checks that a section's class is of the right kind, before it is used."""

from coterie.config.component import Component, load_target, target_of
from coterie.config.schema import COMPONENTS, RunConfig
from coterie.contract.method import Method
from coterie.errors import ConfigError

_NEEDS = {"data": "arrays", "partition": "split", "encoder": "build", "augmentation": "build"}
"""Abilities that each section's class or config needs."""


def check_section(name: str, section: Component) -> None:
    """Check one section of a config."""
    target = target_of(section)
    found = load_target(target)
    if name == "method":
        fits = Method in getattr(found, "__mro__", ())
    else:
        fits = callable(getattr(found, _NEEDS[name], None))
    if not fits:
        raise ConfigError(f"{name}.target={target}: it is not a class for {name}; name another.")


def check_sections(config: RunConfig) -> None:
    """Check all sections; see `check_section`."""
    for name in COMPONENTS:
        check_section(name, getattr(config, name))
