"""Loads the model of a finished run from its `model/` folder alone."""

import math
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from coterie.config.component import Component, parse_component
from coterie.config.explain import show
from coterie.config.regular_files import open_regular
from coterie.config.stored import read_stored_config
from coterie.config.trust import check_targets
from coterie.contract.clusterer import Clusterer
from coterie.contract.method import Task, build_method
from coterie.contract.phase import ServerState
from coterie.contract.section_checks import check_section
from coterie.errors import ConfigError, ContractError, DataError, damage, reason
from coterie.models.saved_model import (
    CONFIG,
    DESCRIPTION,
    WEIGHTS,
    model_folder,
    read_description,
    with_head,
)
from coterie.networks.encoders import EncoderConfig
from coterie.networks.heads import Centroids
from coterie.networks.prototypes import UnitPrototypes
from coterie.networks.weight_files import checked

_MISFITS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ContractError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Errors that methods and PyTorch raise for configs and descriptions that do not fit each other."""
_SPARE = 1 << 30
"""Bytes that a server state may have in addition to 64 times those of the weights."""


def load_model(path: str | Path, trust: Collection[str] = ()) -> Clusterer:
    """Return the model of a finished run, in eval mode on the CPU, without data set or Ray.

    It takes a batch of samples, uint8 images (n, channels, height, width) or float vectors
    (n, features), and returns a `Prediction`: embedding and cluster probabilities. The run's
    method, encoder and augmentation must be importable; the program `model.pt2` beside the weights
    needs PyTorch alone.

    Args:
        path: The run's folder or its `model/`.
        trust: Packages that its config may import, in addition to Coterie's own.

    Raises:
        DataError: If there is no model, its format is newer, or its weights do not fit it.
        ConfigError: If a class that the run uses cannot be imported, or its package is not trusted.
    """
    folder = model_folder(path)
    description = read_description(folder)
    sections = _read_sections(folder, trust)
    check_sizes(folder, description)
    weights = _read_weights(folder / WEIGHTS)
    try:
        # Without memory first, where no operator needs values: the config may ask for too much.
        with suppress(NotImplementedError), torch.device("meta"):
            _check_weights(folder / WEIGHTS, weights, _build(folder, description, sections))
        model = _build(folder, description, sections)
    except _MISFITS as error:
        raise DataError(
            f"{folder}: its files do not fit each other ({reason(error)}); copy the model again."
        ) from error
    _check_weights(folder / WEIGHTS, weights, model)
    model.load_state_dict(weights)
    return model.eval()


def _read_sections(folder: Path, trust: Collection[str]) -> dict[str, Component]:
    # Only these sections: the data module of the run need not be importable.
    names = ("method", "encoder", "augmentation")
    sections = {name: read_section(folder / CONFIG, name, trust) for name in names}
    for name, section in sections.items():
        check_section(name, section)
    return sections


def check_sizes(folder: Path, description: Mapping[str, Any]) -> None:
    """Refuse a description whose samples or server states are too large for the file of weights."""
    path = folder / DESCRIPTION
    most = _SPARE + 64 * ((folder / WEIGHTS).stat().st_size if (folder / WEIGHTS).is_file() else 0)
    try:
        shape, slots = description["input"]["shape"], description["server"]["slots"]
        layouts = [_layout(text) for tensors in slots.values() for text in tensors.values()]
        sizes = [math.prod(shape), *(8 * math.prod(sizes) for _, sizes in layouts)]
        head = [size for size in (description["clusters"], description["features"]) if size]
        sizes.append(8 * math.prod(head) if description["head"] == "centroids" else 0)
        many = description.get("prototypes") or 1
        sizes.append(16 * many * max(head, default=1))
        whole = all(type(size) is int and size > 0 for size in (*shape, *head, many))
        fits = whole and isinstance(getattr(torch, description["dtype"]), torch.dtype)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(
            f"{path}: it is damaged ({damage(error)}); copy the model again."
        ) from error
    if not fits or sum(sizes) > most:
        raise DataError(
            f"{path}: samples of shape {show(shape)} and the layout of its server state do not fit "
            "its weights; copy the model again."
        )


def _build(
    folder: Path, description: Mapping[str, Any], sections: Mapping[str, Component]
) -> Clusterer:
    """Build the network from a server state of the right shapes, with all values zero."""
    privacy = read_stored_config(folder / CONFIG).get("privacy") or {}
    clip = privacy.get("dp", {}).get("clip")  # under noise, Concord encodes no mirror images
    task = Task(
        shape=tuple(description["input"]["shape"]),
        classes=len(description["classes"]),
        encoder=self_contained(sections["encoder"], folder),  # type: ignore[arg-type]  # checked when it is called
        augmentation=sections["augmentation"],  # type: ignore[arg-type]
        dtype=getattr(torch, description["dtype"]),
        clip=clip,
    )
    state = description["server"]
    slots = {slot: zeros(tensors) for slot, tensors in state["slots"].items()}
    server = ServerState(
        slots=slots, round=description["round"], step=state["step"], metadata=state["metadata"]
    )
    features, clusters, head = (description[key] for key in ("features", "clusters", "head"))
    model = build_method(sections["method"], task).model_for(server, None)  # type: ignore[arg-type]
    if head == "centroids":
        return with_head(model, Centroids(torch.zeros(clusters, features)))
    if head == "prototypes":
        many = description.get("prototypes") or 0
        return with_head(model, UnitPrototypes.blank(many, features, clusters))
    return model


def self_contained(encoder: Component, folder: Path) -> Component:
    """Return the encoder's config, limited to files in a saved model's folder."""
    return encoder.among(folder) if isinstance(encoder, EncoderConfig) else encoder


def read_section(path: Path, name: str, trust: Collection[str]) -> Component:
    """Read one section of a saved model's config.

    Args:
        path: The config.
        name: The section.
        trust: Packages that it may import, in addition to Coterie's own.

    Raises:
        DataError: If the file is missing, or the section is of another version.
        ConfigError: If the section's class cannot be imported, or its package is not trusted.
    """
    if not path.is_file():
        raise DataError(f"{path}: it is missing; copy the whole model/ folder.")
    values = read_stored_config(path)
    check_targets({name: values.get(name)}, path, trust)
    try:
        return parse_component(values[name], trust)
    except ConfigError as error:
        raise ConfigError(f"{path}: {name}.{error}") from error
    except (KeyError, TypeError, ValueError) as error:  # also pydantic's
        raise DataError(
            f"{path}: its {name} section is of another version of Coterie; use the version that it "
            "names."
        ) from error


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        open_regular(path).close()  # it is another kind of file, which may never end
        return checked(load_file(path), path)
    except (OSError, SafetensorError) as error:
        why = f"it cannot be read ({reason(error)})" if path.is_file() else "it is missing"
        raise DataError(f"{path}: {why}; copy the model again.") from error


def _check_weights(path: Path, weights: Mapping[str, Tensor], model: nn.Module) -> None:
    expected = model.state_dict()
    for key in sorted(expected.keys() ^ weights.keys()):
        what = "lacks" if key in expected else "does not match the model, which lacks"
        raise DataError(f"{path}: it {what} {key}; config.yaml and weights are of different runs.")
    for key, tensor in expected.items():
        if weights[key].shape != tensor.shape:
            shapes = f"{tuple(weights[key].shape)} for {tuple(tensor.shape)}"
            raise DataError(
                f"{path}: {key} has shape {shapes}; config.yaml and weights are of different runs."
            )


def zeros(layouts: Mapping[str, str]) -> dict[str, Tensor]:
    """Return zero tensors in the layouts that `layouts_of` gave."""
    tensors = {}
    for name, layout in layouts.items():
        dtype, sizes = _layout(layout)
        tensors[name] = torch.zeros(sizes, dtype=dtype)
    return tensors


def _layout(text: str) -> tuple[torch.dtype, list[int]]:
    """Parse a dtype and a shape from a text such as `float32 32x1x4x4`."""
    name, _, shape = text.partition(" ")
    dtype, sizes = getattr(torch, name), [int(size) for size in shape.split("x") if size]
    if not isinstance(dtype, torch.dtype) or any(size < 0 for size in sizes):
        raise ValueError(f"{text} is not a layout")
    return dtype, sizes
