"""Writes a run's model to the folder `model/`, and reads its description.

`model.safetensors` holds the weights, `config.yaml` the run's config. `model.json` describes the
network's inputs and outputs and the layout of the server state that it was built from.
"""

import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

import torch
from pydantic import Field, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from typing_extensions import TypedDict

from coterie.config.given_path import checkpoint_in_parts, given_path
from coterie.config.plain_files import YAML_BYTES, read_bytes, read_json
from coterie.contract.clusterer import Clusterer, Prediction, parameter_dtype
from coterie.contract.data import DataArrays
from coterie.contract.phase import ServerState
from coterie.errors import DataError, damage
from coterie.networks.heads import Centroids
from coterie.networks.prototypes import UnitPrototypes
from coterie.tracking.atomic import replacing, write_text_atomically
from coterie.version import __version__

FORMAT = 1
_DESCRIPTION_BYTES = 1 << 24
WEIGHTS, DESCRIPTION, CONFIG = "model.safetensors", "model.json", "config.yaml"
CHECKPOINT, BEST = "model.ckpt", "best.ckpt"
"""A user's own module, in the place of the other files."""


class _Input(TypedDict):
    shape: Annotated[list[PositiveInt], Field(min_length=1)]
    dtype: Literal["uint8", "float32"]
    mode: Literal["L", "RGB"] | None
    columns: list[str]


class _Server(TypedDict):
    step: NonNegativeInt
    metadata: dict[str, Any]
    slots: dict[str, dict[str, str]]


class _Description(TypedDict):
    """The types of the fields of `model.json`; further fields are allowed."""

    round: NonNegativeInt
    input: _Input
    dtype: str
    features: PositiveInt
    clusters: PositiveInt | None
    classifies: bool
    outliers: bool
    head: Literal["method", "centroids", "prototypes"] | None
    prototypes: NotRequired[NonNegativeInt | None]
    classes: list[str]
    server: _Server


_DESCRIPTION = TypeAdapter(_Description)


def write_model(
    folder: Path, model: Clusterer, config: Path, server: ServerState, data: DataArrays
) -> None:
    """Write `model/`: the weights, and what `load_model` needs to rebuild the network.

    Args:
        folder: Where to write; created if missing.
        model: The model; it is moved to the CPU.
        config: The run's `config.yaml`, which is copied.
        server: The state that the method built the model from.
        data: The training data.
    """
    weights = {key: value.contiguous() for key, value in model.cpu().state_dict().items()}
    try:
        with replacing(folder / WEIGHTS) as temporary:
            save_file(weights, temporary)
    except SafetensorError as error:  # raised for a full disk
        raise OSError(errno.EIO, str(error), str(folder / WEIGHTS)) from error
    for part in model.encoder.modules():  # an encoder may lie within that of a method
        for name, content in getattr(part, "files", {}).items():
            with replacing(folder / name) as temporary:
                temporary.write_bytes(content)
    description = model_description(model, server, data)
    text = json.dumps(description, indent=2, ensure_ascii=False, allow_nan=False)
    write_text_atomically(folder / CONFIG, read_bytes(config, YAML_BYTES).decode("utf-8"))
    write_text_atomically(folder / DESCRIPTION, text + "\n")


def model_description(model: Clusterer, server: ServerState, data: DataArrays) -> dict[str, Any]:
    """Return the content of `model.json`.

    "input" describes a sample: uint8 images in 0..255 of mode "L" or "RGB", or float vectors as in
    training, with the columns of their table, if any.
    "classifies" tells whether the clusters are "classes", learned from labels. "outliers" tells
    whether the output has one column more than "clusters", for samples that belong to none.
    "head" is "method", "centroids" or "prototypes" (found in the final representations, where the
    method itself does not cluster) or null.
    """
    image = data.samples.dtype.name == "uint8"
    mode = {1: "L", 3: "RGB"}.get(data.shape[0]) if image and len(data.shape) == 3 else None
    with torch.inference_mode():
        given: Prediction = model.eval()(blank_sample(data))
    found = given.probabilities
    kinds = {Centroids: "centroids", UnitPrototypes: "prototypes"}
    kind = kinds.get(type(model.head), "method")
    return {
        "format": FORMAT,
        "version": __version__,
        "round": server.round,
        "input": {
            "shape": list(data.shape),
            "dtype": data.samples.dtype.name,
            "mode": mode,
            "columns": list(data.features),
        },
        "dtype": str(parameter_dtype(model)).removeprefix("torch."),
        "features": given.embedding.shape[1],
        "clusters": None if found is None else found.shape[1] - model.outliers,
        "classifies": model.classifies,
        "outliers": model.outliers,
        "head": None if model.head is None else kind,
        "prototypes": len(model.head.points) if isinstance(model.head, UnitPrototypes) else None,
        "classes": list(data.classes),
        "server": {
            "step": server.step,
            "metadata": dict(server.metadata),
            "slots": {slot: layouts_of(tensors) for slot, tensors in server.slots.items()},
        },
    }


def example_samples(description: Mapping[str, Any]) -> Tensor:
    """Return eight samples of the shape and type that a model takes, always the same ones."""
    given, drawn = description["input"], torch.Generator().manual_seed(0)
    shape, dtype = (8, *given["shape"]), getattr(torch, given["dtype"])
    if dtype == torch.uint8:
        return torch.randint(0, 256, shape, dtype=dtype, generator=drawn)
    return torch.randn(shape, dtype=dtype, generator=drawn)


def blank_sample(data: DataArrays) -> Tensor:
    """Return a batch of one sample with the data's shape and type, all zero."""
    return torch.zeros(1, *data.shape, dtype=torch.from_numpy(data.samples[:1].copy()).dtype)


def with_head(model: Clusterer, head: nn.Module | None) -> Clusterer:
    """Give the model this head, unless it already has one."""
    if head is None or model.head is not None:
        return model
    return Clusterer(model.encoder, head, projection=model.projection)


def model_folder(path: str | Path) -> Path:
    """Find `model/`, given the run's folder or `model/` itself.

    Raises:
        DataError: If there is none.
    """
    given = given_path("model", str(path))
    folder = next((f for f in (given, given / "model") if (f / DESCRIPTION).is_file()), None)
    if folder is not None:
        return folder
    for module in (given / "model" / CHECKPOINT, given / CHECKPOINT):
        if module.is_file():
            raise DataError(
                f"{path}: the run trained a LightningModule, which "
                f'load_from_checkpoint("{module}") of its class reads.'
            )
    if given.is_file():
        raise DataError(
            f"{path}: it is a file, and a run's model is a folder; weights of a network, such as "
            "Lightning's .ckpt, go in encoder.weights=FILE with encoder=timm:NAME or "
            "encoder=torchvision:NAME."
        )
    if told := checkpoint_in_parts(given):
        raise DataError(f"{path}: {told}, which goes in encoder.weights=FILE.")
    if not given.is_dir():
        raise DataError(f"{path}: there is no such folder; give a run's folder or its model/.")
    if (given / CONFIG).is_file():
        raise DataError(f"{path}: the run has left no model/; finish it with resume=true first.")
    raise DataError(f"{path}: no {DESCRIPTION} in it; give a finished run's folder or its model/.")


def read_description(folder: Path) -> dict[str, Any]:
    """Read `model.json`; see `model_description`.

    Raises:
        DataError: If it cannot be read, has another format, or holds what no run writes.
    """
    path = folder / DESCRIPTION
    try:
        description = read_json(path, _DESCRIPTION_BYTES)
        written = description.get("format")
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(
            f"{path}: it is damaged ({damage(error)}); copy the model again."
        ) from error
    if written != FORMAT:
        newer = isinstance(written, int) and written > FORMAT
        remedy = "update Coterie" if newer else "run the experiment again"
        raise DataError(f"{path}: format {written}, this version reads {FORMAT}; {remedy}.")
    try:
        _DESCRIPTION.validate_python(description, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise DataError(
            f"{path}: it is damaged ({place}: {first['msg']}); copy the model again."
        ) from error
    if description["classifies"] and description["clusters"] != len(description["classes"]):
        raise DataError(f"{path}: it is damaged (classes: one for each); copy the model again.")
    return dict(description)


def layouts_of(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return each tensor's dtype and shape, such as `float32 32x1x4x4`, by name."""
    return {
        name: f"{str(t.dtype).removeprefix('torch.')} {'x'.join(map(str, t.shape))}"
        for name, t in tensors.items()
    }
