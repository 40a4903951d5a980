"""The encoder of a finished run, as a component from which any method can start."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, PrivateAttr, ValidationInfo, model_validator
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from coterie.config.component import Component, NestedComponent, dumped, trust_of
from coterie.config.file_digest import are_untouched
from coterie.config.given_path import given_path
from coterie.config.regular_files import open_regular
from coterie.contract.section_checks import check_section
from coterie.errors import ConfigError, CoterieError, DataError, reason
from coterie.models.loading import read_section, self_contained
from coterie.models.saved_model import CONFIG, WEIGHTS, model_folder, read_description
from coterie.models.trained_checkpoint import encoder_config, encoder_weights
from coterie.networks.encoders import Encoder, EncoderConfig, ScalableConfig
from coterie.networks.frozen import frozen
from coterie.networks.weight_files import checked

_PREFIX = "encoder."
"""Where the encoder's weights are in a saved model."""


class Pretrained(ScalableConfig):
    """The encoder of an earlier run's `model/`, or of a plain Trainer's checkpoint.

    The checkpoint is of a module of `as_lightning`. The weights are read once, with the config, and
    travel with it, so nodes need no access to the path. A run's resolved config holds the weights'
    digest and the network's own config.
    """

    path: Annotated[str, Field(min_length=1)]
    """The folder of a finished run, its `model/`, or a Trainer's .ckpt."""
    freeze: bool = True
    """Whether the weights stay fixed, in eval mode; if not, training starts from them."""
    digest: str | None = None
    """SHA-256 of the model's weights file. Filled in from the file; a given value must match."""
    network: NestedComponent = None
    """The encoder's own config. Filled in from the model; a given value must match."""
    _weights: bytes = PrivateAttr(default=b"")

    @model_validator(mode="before")
    @classmethod
    def _find_out(cls, given: Any, info: ValidationInfo) -> Any:
        """Fill in digest and network; a resolved config has both, and the files may be gone."""
        if not isinstance(given, Mapping) or not isinstance(given.get("path"), str):
            return given
        path = str(given_path("encoder.path", given["path"]).absolute())
        resolved = given.get("digest") is not None and given.get("network") is not None
        if resolved and (are_untouched() or not _weights_file(path).is_file()):
            return {**given, "path": path}
        try:
            found = _description(path, trust_of(info))
        except CoterieError as error:
            raise type(error)(f"encoder.path={error}") from error
        for key, own in found.items():
            if given.get(key) not in (None, own):
                raise ConfigError(
                    f"encoder.{key}={given[key]}: the model in {path} has {own}; leave it out, or "
                    "give the model that it belongs to."
                )
        return {**given, **found, "path": path}

    def advice(self, shape: tuple[int, ...]) -> str:
        """See `EncoderConfig.advice`: say that frozen weights are not trained."""
        frozen = f"The encoder of {self.path} stays as it is; encoder.freeze=false trains it on."
        return frozen if self.freeze else ""

    def model_post_init(self, context: Any) -> None:
        """Read the weights."""
        file = _weights_file(self.path)
        self._weights = _read(file) if file.is_file() and not are_untouched() else b""

    def build(self, shape: tuple[int, ...]) -> Encoder:
        """Return the encoder with its weights; see `EncoderConfig.build`.

        Raises:
            DataError: If the weights are damaged, or missing since the config was resolved.
            ConfigError: If the network for samples of this shape differs from the pretrained one.
        """
        if not self._weights:
            raise DataError(
                f"encoder.path={self.path}: the weights are no longer there; put them back."
            )
        weights = self._load()
        self._check_sizes(weights, shape)
        encoder = self.architecture().build(shape)
        encoder.load_state_dict(self._own(encoder, weights, shape))
        return frozen(encoder) if self.freeze else encoder

    @property
    def untrained(self) -> bool:
        """See `EncoderConfig.untrained`."""
        return False

    def architecture(self) -> EncoderConfig:
        """Return the network's own config.

        Raises:
            ConfigError: If representations are to have unit length, and it cannot do that.
        """
        network: EncoderConfig = self.network  # type: ignore[assignment]  # set when read
        if not self.unit_length:
            return network
        if not isinstance(network, ScalableConfig):
            raise ConfigError(
                f"encoder.unit_length=true: the network of {self.path} is a "
                f"{type(network).__name__}, which has no such key; leave it out."
            )
        return network.model_copy(update={"unit_length": True})

    def _load(self) -> dict[str, Tensor]:
        """Return the encoder's weights by their names in it."""
        if self._weights[8:9] != b"{":
            return encoder_weights(self._weights, Path(self.path))
        try:
            saved = checked(load(self._weights), self.path).items()
            return {k.removeprefix(_PREFIX): v for k, v in saved if k.startswith(_PREFIX)}
        except SafetensorError as error:
            raise DataError(
                f"encoder.path={self.path}: its weights cannot be read ({error}); copy the model "
                "again."
            ) from error

    def _check_sizes(self, weights: Mapping[str, Tensor], shape: tuple[int, ...]) -> None:
        """Check the weights against a network without memory: its config may ask for too much."""
        try:
            with torch.device("meta"):
                self._own(self.architecture().build(shape), weights, shape)
        except CoterieError:
            raise
        except Exception as error:
            if "overflow" not in str(error):  # it needs values, which the meta device has not
                return
            raise DataError(
                f"encoder.path={self.path}: its network cannot be built ({reason(error)}); copy "
                "the model again."
            ) from error

    def _own(
        self, encoder: nn.Module, weights: Mapping[str, Tensor], shape: object
    ) -> Mapping[str, Tensor]:
        """Return the network's weights, without those of layers that a method put behind it."""
        wanted = {key: tuple(value.shape) for key, value in encoder.state_dict().items()}
        own = _within([*wanted], weights)
        found = {key: tuple(value.shape) for key, value in own.items()}
        for key in sorted(wanted.keys() | found.keys()):
            if wanted.get(key) != found.get(key):
                raise ConfigError(
                    f"encoder.path={self.path}: for samples of shape {shape} its network has "
                    f"{key} of {wanted.get(key)}, the weights have {found.get(key)}; set data.size "
                    "to that of the pretraining, or choose another model."
                )
        return own


def _within(names: Sequence[str], weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the weights of these names, also where a method has put layers behind the network.

    The network is then a part of the method's encoder, whose name comes first, as in `backbone.…`.
    """
    if not names or names[0] in weights:
        return weights
    parts = sorted(key.removesuffix(names[0]) for key in weights if key.endswith("." + names[0]))
    fitting = [part for part in parts if all(part + name in weights for name in names)]
    return {name: weights[fitting[0] + name] for name in names} if fitting else weights


def _weights_file(path: str) -> Path:
    given = Path(path)
    return next((f for f in (given / WEIGHTS, given / "model" / WEIGHTS) if f.is_file()), given)


def _description(path: str, trust: Collection[str]) -> dict[str, Any]:
    """Return the digest and network config of a saved model, as plain values."""
    if Path(path).is_file():
        content = _read(Path(path))
        network: Component = encoder_config(content, Path(path), trust)
        return {"digest": hashlib.sha256(content).hexdigest(), "network": dumped(network)}
    folder = model_folder(path)
    read_description(folder)  # raises on other formats
    file = folder / WEIGHTS
    if not file.is_file():
        raise DataError(f"{file}: it is missing; copy the model again.")
    stored = read_section(folder / CONFIG, "encoder", trust)
    check_section("encoder", stored)
    network = self_contained(stored, folder)
    return {"digest": hashlib.sha256(_read(file)).hexdigest(), "network": dumped(network)}


def _read(file: Path) -> bytes:
    try:
        with open_regular(file) as content:
            return content.read()
    except OSError as error:
        raise DataError(
            f"{file}: it cannot be read ({reason(error)}); copy the model again."
        ) from error
