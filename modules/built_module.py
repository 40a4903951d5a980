"""Builds a user's module by the path of its class, and loads its weights from a file."""

from collections.abc import Mapping
from typing import Any

from coterie.config.component import load_target
from coterie.config.target import check_arguments
from coterie.errors import ConfigError, reason
from coterie.networks.weight_files import parse_weights, read_file


def build_module(target: str, arguments: Mapping[str, Any]) -> Any:
    """Build a module by its class's path, package.module:Class.

    Raises:
        ConfigError: If it is no LightningModule, or cannot be built.
    """
    try:
        kind = load_target(target)
    except ConfigError as error:
        raise ConfigError(f"module: {error}") from error
    bases = {base.__name__ for base in getattr(kind, "__mro__", ())}
    if "LightningModule" not in bases:  # nothing else is called
        raise ConfigError(f"module={target}: it is not a LightningModule class; name one.")
    check_arguments("module", kind, target, arguments)
    try:
        return kind(**arguments)
    except Exception as error:
        raise ConfigError(f"module={target}: it cannot be built ({reason(error)}).") from error


def load_weights(module: Any, path: str) -> None:
    """Load all weights of a module from a file, from which no code is run.

    Raises:
        ConfigError: If the file does not fit the module.
    """
    key = "method.weights"
    weights = parse_weights(read_file(key, path), path)
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        # "Error(s) in loading state_dict for NAME:", then a line for each problem.
        why = " ".join(" ".join(str(error).split("\n")[:2]).split()[5:]).rstrip(".")
        raise ConfigError(
            f"{key}={path}: it does not fit {why}; give weights of this class, built with the same "
            "arguments."
        ) from error
