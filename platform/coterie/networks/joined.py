"""Several networks side by side, whose representations are joined to one."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from coterie.config.component import NestedComponent, target_of
from coterie.errors import ConfigError
from coterie.networks.encoders import Encoder, EncoderConfig
from coterie.networks.frozen import frozen
from coterie.networks.named_models import NamedModel
from coterie.precision import unit_rows

_LIBRARIES = {
    "timm": "coterie.networks.timm_models:Timm",
    "torchvision": "coterie.networks.torchvision_models:Torchvision",
}


class Joined(EncoderConfig):
    """Several encoders, each at unit length, joined to one representation of unit length.

    Squared distances are then the means of the encoders'. Gadetsky et al., "Let Go of Your Labels
    with Unsupervised Transfer" (ICML 2024), join CLIP and DINOv2 in this way.
    """

    parts: Annotated[tuple[NestedComponent, ...], Field(strict=False, min_length=2)]
    """The encoders, such as [timm:NAME, torchvision:NAME], or with keys for each, such as
    [{model: timm:NAME, weights: FILE, size: 224}, {target: package.module:Class}]."""
    pretrained: bool = False
    """Take the libraries' own weights, which must already be on this machine."""
    download: bool = False
    """Take the libraries' own weights, and fetch them if they are not on this machine."""
    freeze: bool = True
    """Whether the weights stay fixed, in eval mode."""

    @model_validator(mode="before")
    @classmethod
    def _with_targets(cls, given: Any) -> Any:
        """Complete the config of each part: its class, and the common keys for weights."""
        if not isinstance(given, Mapping) or not isinstance(given.get("parts"), list | tuple):
            return given
        own = {key: True for key in ("pretrained", "download") if given.get(key) is True}
        return {**given, "parts": tuple(_part(part, own) for part in given["parts"])}

    @field_validator("parts", mode="after")
    @classmethod
    def _check(cls, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """Refuse parts that are no encoders; turn off downloads, so that none is repeated."""
        for part in parts:
            if not isinstance(part, EncoderConfig):
                raise ConfigError(
                    f"encoder.parts: {target_of(part)} is not an encoder; name a class with build."
                )
        named = [isinstance(part, NamedModel) and part.download for part in parts]
        return tuple(
            part.model_copy(update={"download": False}) if fetched else part
            for part, fetched in zip(parts, named, strict=True)
        )

    def build(self, shape: tuple[int, ...]) -> Encoder:
        """See `EncoderConfig.build`.

        Raises:
            ConfigError: If two parts need files of one name, or a part cannot take the samples.
        """
        encoders = [part.build(shape) for part in self._encoders()]
        files: dict[str, bytes] = {}
        for encoder in encoders:
            if same := files.keys() & encoder.files.keys():
                raise ConfigError(
                    f"encoder.parts: two parts need a file {min(same)!r} each; join other encoders."
                )
            files |= encoder.files
        joined = Encoder(_SideBySide(encoders), sum(each.features for each in encoders), files)
        return frozen(joined) if self.freeze else joined

    def advice(self, shape: tuple[int, ...]) -> str:
        """See `EncoderConfig.advice`."""
        return " ".join(filter(None, (part.advice(shape) for part in self._encoders())))

    @property
    def untrained(self) -> bool:
        """See `EncoderConfig.untrained`."""
        return any(part.untrained for part in self._encoders())

    def architecture(self) -> EncoderConfig:
        """Return the same networks without weights, which the caller loads."""
        return self._of([part.architecture() for part in self._encoders()])

    def among(self, folder: Path) -> EncoderConfig:
        """See `EncoderConfig.among`."""
        return self._of([part.among(folder) for part in self._encoders()])

    def _encoders(self) -> list[EncoderConfig]:
        return [part for part in self.parts if isinstance(part, EncoderConfig)]

    def _of(self, parts: list[EncoderConfig]) -> "Joined":
        return Joined(parts=tuple(parts), freeze=False)


class _SideBySide(nn.Module):
    """Encoders whose outputs, of unit length, are concatenated."""

    def __init__(self, encoders: list[Encoder]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(self, samples: Tensor) -> Tensor:
        """Encode a batch (n, …) as (n, sum of the encoders' features), in float32 or wider."""
        found = [unit_rows(encoder(samples)) for encoder in self.encoders]
        return torch.cat(found, dim=1) / math.sqrt(len(found))


def _part(given: Any, own: Mapping[str, bool]) -> Any:
    """Return the full config of a part: its target, and the common keys unless it has weights.

    Raises:
        ConfigError: If its library is unknown, or it asks for a download by itself.
    """
    if not isinstance(given, str | Mapping):
        return given
    part = {"model": given} if isinstance(given, str) else dict(given)
    if part.get("download"):
        raise ConfigError("encoder.parts: a part has no download of its own; set encoder.download.")
    if "target" in part:
        return part
    library, _, model = str(part.get("model")).partition(":")
    if library not in _LIBRARIES or not model:
        raise ConfigError(
            f"encoder.parts: {part.get('model')}: name a network as timm:NAME or "
            "torchvision:NAME, or a class with target."
        )
    wanted = {} if part.get("weights") else own
    return {**part, **wanted, "target": _LIBRARIES[library], "model": model}
