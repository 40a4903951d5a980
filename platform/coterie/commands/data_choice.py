"""The data set that a command's arguments choose: `data=CHOICE data.KEY=VALUE ...`."""

from collections.abc import Collection, Sequence
from typing import Any

from coterie.commands.arguments import read_values
from coterie.commands.compose import read_choice
from coterie.commands.own_class_keys import with_own_classes
from coterie.config.component import Component, load_target, target_of
from coterie.config.loading import load_component, section_model
from coterie.errors import ConfigError


def separate_data(
    arguments: Sequence[str], refused: Collection[str] = ()
) -> tuple[Component, dict[str, Any]]:
    """Read the chosen data set's config, and the other values.

    Raises:
        ConfigError: If none is chosen, or a key is unknown, invalid or refused.
    """
    arguments = with_own_classes(arguments)
    choices = [argument for argument in arguments if argument.startswith("data=")]
    values = read_values([argument for argument in arguments if argument not in choices])
    given: dict[str, Any] = values.pop("data", {})
    if not choices and "target" not in given:
        raise ConfigError(
            "data: none is chosen; give data=class_folders or another, see --help, or "
            "data.target=package.module:Class."
        )
    chosen = read_choice("data", choices[-1].removeprefix("data=")) if choices else {}
    section: dict[str, Any] = {**chosen, **given}
    for key in refused:
        if key in section:
            raise ConfigError(
                f"data.{key}: shards hold the samples unchanged; set this key in the command that "
                "reads the shards."
            )
    model = section_model("data", section)
    own = {key: value for key, value in section.items() if key != "target"}
    return load_component(model, own, "data."), values


def build_data(config: Component) -> Any:
    """Build the data set of a config.

    Raises:
        ConfigError: If it stays with its clients.
    """
    data = load_target(target_of(config))(config)
    if not hasattr(data, "open_half"):
        raise ConfigError(
            f"data={target_of(config)}: its samples are not in one place; choose another data set."
        )
    return data
