"""The encoder in the checkpoint that a plain Trainer wrote of one of Coterie's modules."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from coterie.config.component import Component, parse_component
from coterie.config.file_digest import files_untouched
from coterie.config.plain_files import plain_copy
from coterie.config.trust import check_targets
from coterie.errors import CoterieError, DataError, reason
from coterie.models.loading import self_contained
from coterie.networks.weight_files import parse_weights, unpickled

_PRETRAINED = "coterie.models.pretrained_encoder:Pretrained"
_AGAIN = "copy the checkpoint again."


def encoder_config(content: bytes, path: Path, trust: Collection[str]) -> Component:
    """Return the config of the encoder that a module of Coterie's was trained with.

    Args:
        content: The checkpoint's bytes.
        path: Its file, for messages.
        trust: Packages that it may import, in addition to Coterie's own.

    Raises:
        ConfigError: If the encoder's class cannot be imported, or its package is not trusted.
        DataError: If the file is damaged, or holds another module.
    """
    stored = _parameters(unpickled(content, str(path), _AGAIN), path)
    try:
        plain = dict(stored["task"]["encoder"])
        while plain.get("target") == _PRETRAINED:  # its weights are in the checkpoint too
            plain = dict(plain["network"])
        plain.pop("download", None)  # it is the reader's to give
        check_targets({"encoder": plain}, path, trust)
        with files_untouched():  # the checkpoint names files of the machine that wrote it
            return self_contained(parse_component(plain, trust), path.parent)
    except CoterieError:
        raise
    except Exception as error:  # whatever a stranger's values lead to
        raise DataError(
            f"{path}: the config of its encoder cannot be read ({reason(error)}); {_AGAIN}"
        ) from error


def encoder_weights(content: bytes, path: Path) -> dict[str, Tensor]:
    """Return the weights of that encoder, by their names in it.

    Raises:
        DataError: If the file is damaged, or holds another module.
    """
    stored = _parameters(unpickled(content, str(path), _AGAIN), path)
    prefix = f"{stored['representation']}."
    weights = parse_weights(content, str(path)).items()
    return {name.removeprefix(prefix): value for name, value in weights if name.startswith(prefix)}


def _parameters(found: Any, path: Path) -> Mapping[str, Any]:
    """Return the hyperparameters in a checkpoint that has all that an encoder needs."""
    stored = found.get("hyper_parameters") if isinstance(found, Mapping) else None
    try:
        plain: Mapping[str, Any] = plain_copy(stored)
        complete = isinstance(plain["representation"], str) and "encoder" in plain["task"]
    except (KeyError, TypeError, ValueError):
        complete = False
    if not complete:
        raise DataError(
            f"{path}: it is not a checkpoint of one of Coterie's modules; for a network of a "
            "library give encoder.weights=FILE with its name, for your own module "
            "method.weights=FILE."
        )
    return plain
