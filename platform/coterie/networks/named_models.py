"""The base of encoders that another library builds by name, with or without given weights."""

import copy
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, NamedTuple, Self

import torch
from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, PrivateAttr, model_validator
from torch import Tensor, nn

from coterie.config.file_digest import are_untouched, with_digest
from coterie.config.given_path import given_path
from coterie.errors import ConfigError, DataError, reason
from coterie.networks.encoders import Encoder, EncoderConfig, ScalableConfig, image_shape
from coterie.networks.frozen import frozen
from coterie.networks.own_weights import OwnWeights
from coterie.networks.weight_files import Weights, load_weights, parse_weights, read_file
from coterie.precision import widened

_SET_HERE = re.compile(r"multiple values for keyword argument '(\w+)'")
_UNKNOWN = re.compile(r"unexpected keyword argument '(\w+)'")

Colours = Annotated[tuple[float, float, float], Field(strict=False)]
Deviations = Annotated[tuple[PositiveFloat, PositiveFloat, PositiveFloat], Field(strict=False)]
Interpolation = Literal["bilinear", "bicubic"]
Option = bool | int | float | str | tuple[int, ...] | None
_LARGEST = 1 << 14
"""The largest whole number in options: with more layers a network would take minutes to build."""


def _bounded(options: Mapping[str, Option]) -> Mapping[str, Option]:
    for name, value in options.items():
        numbers = value if isinstance(value, tuple) else (value,)
        if any(isinstance(number, int) and abs(number) > _LARGEST for number in numbers):
            raise ValueError(f"{name}: whole numbers are at most {_LARGEST}")
    return options


class Built(NamedTuple):
    """A network that a library has built.

    Attributes:
        network: Maps (n, 3, height, width) to (n, features); its classifier is gone.
        head: Prefixes of the classifier's weights, which a file of weights may still hold.
        mean: Mean of the colours that the network was made for, in [0, 1].
        deviation: Their standard deviation.
        adapted: Fits a file's weights to the network, as its library does: by other names, or for
            images of another size.
        interpolation: How images were resized for it.
    """

    network: nn.Module
    head: tuple[str, ...]
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]
    adapted: Callable[[Weights], Weights] = dict
    interpolation: Interpolation = "bilinear"


class NamedModel(ScalableConfig):
    """A library's network, chosen by its name, without its classifier.

    Images are standardised by the network's own mean and deviation. Grey ones are repeated over
    its three channels, so that weights for colour fit. Given weights travel with the config, so
    nodes need no access to the file or to the network.
    """

    model: Annotated[str, Field(min_length=1)]
    """The model's name in its library."""
    pretrained: bool = False
    """Take the library's own weights, which must already be on this machine."""
    download: bool = False
    """Take the library's own weights, and fetch them if they are not on this machine."""
    weights: str | None = None
    """A file of weights, .safetensors or as written by `torch.save(network.state_dict())`; by
    default weights are random."""
    freeze: bool = False
    """Whether the weights stay fixed, in eval mode."""
    stem: Literal["own", "small"] = "own"
    """`small`, for images of up to 64 pixels: the first convolution is 3×3 with stride 1, and the
    max-pool after it is left out."""
    size: PositiveInt | None = None
    """Resize images to this many pixels a side before the network, as was done for its own weights;
    by default not at all."""
    mean: Colours | None = None
    """Mean of red, green and blue in [0, 1]; by default the model's own."""
    deviation: Deviations | None = None
    """Standard deviation of red, green and blue; by default the model's own."""
    options: Annotated[Mapping[str, Option], AfterValidator(_bounded)] = {}
    """Arguments of the library's constructor, such as {patch_size: 4}."""
    digest: str | None = None
    """SHA-256 of the file of weights. Filled in from the file; a given value must match."""
    source: str | None = None
    """The origin and revision of the library's own weights. Filled in."""
    _content: bytes = PrivateAttr(default=b"")

    @model_validator(mode="before")
    @classmethod
    def _find_weights(cls, given: Any) -> Any:
        """Find or fetch the library's own weights, and fill in their source and the digest."""
        if not isinstance(given, Mapping) or not isinstance(given.get("model"), str):
            return given
        cls.check_name(given["model"])
        values = cls._with_own_weights(dict(given))
        if isinstance(values.get("weights"), str):
            values["weights"] = str(given_path("encoder.weights", values["weights"]).absolute())
        return with_digest(values, file="weights", digest="digest", section="encoder")

    @classmethod
    def _with_own_weights(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values with the library's own weights if they ask for them."""
        fetch = values.get("download") is True
        if are_untouched() or not (fetch or values.get("pretrained") is True):
            return values
        if values.get("weights") is None:
            own = cls.own_weights(values["model"], fetch=fetch)
            values |= {"weights": own.path, "source": own.source}
        elif values.get("source") is None:
            raise ConfigError(
                f"encoder.weights={values['weights']}: encoder.pretrained and encoder.download "
                "take the library's own weights; leave one of the two out."
            )
        return {**values, "pretrained": True}

    @model_validator(mode="after")
    def _read_weights(self) -> Self:
        """Read the weights; a resolved config may outlive the file."""
        if self.weights is not None and not are_untouched():
            try:
                self._content = read_file("encoder.weights", self.weights)
            except ConfigError:
                if self.digest is None:
                    raise
        return self

    @classmethod
    @abstractmethod
    def check_name(cls, model: str) -> None:
        """Raise a ConfigError, with the nearest names, if the library has no such model."""

    @classmethod
    @abstractmethod
    def own_weights(cls, model: str, *, fetch: bool) -> OwnWeights:
        """Return the library's own weights.

        Raises:
            ConfigError: If they are not here, or cannot be fetched; it says where they have to be.
        """

    @abstractmethod
    def create(self, height: int, width: int) -> Built:
        """Build the network for colour images of this size, with random weights."""

    def build(self, shape: tuple[int, ...]) -> Encoder:
        """Return the network with its weights; see `EncoderConfig.build`.

        Raises:
            DataError: If the weights are damaged, or missing since the config was resolved.
        """
        channels, height, width = image_shape(self.model, shape, smallest=1)
        if channels not in (1, 3):
            raise ConfigError(
                f"encoder.model={self.model}: it takes 1 or 3 channels, the samples have "
                f"{channels}; give your own encoder with encoder.target=package.module:Class."
            )
        height, width = (height, width) if self.size is None else (self.size, self.size)
        try:
            built = self.create(height, width)
        except Exception as error:  # the library's code, with options of any kind
            raise self._refused(f"it cannot be built for {height}×{width} pixels", error) from error
        if self.stem == "small":
            make_stem_small(self.model, built.network)
        if self.weights is not None:
            load_weights(built.network, self._weights(), self.weights, built.head, built.adapted)
        features = self._features(built.network, height, width)
        prepared = Prepared(
            built.network,
            self.mean or built.mean,
            self.deviation or built.deviation,
            self.size,
            built.interpolation,
        )
        encoder = Encoder(prepared, features, unit_length=self.unit_length)
        return frozen(encoder) if self.freeze else encoder

    @property
    def untrained(self) -> bool:
        """See `EncoderConfig.untrained`."""
        return self.weights is None

    def advice(self, shape: tuple[int, ...]) -> str:
        """See `EncoderConfig.advice`: given weights may have been trained on far larger images."""
        seen = self.size or min(shape[1:], default=0)
        if self.weights is None or not 0 < 2 * seen < self.trained_on():
            return ""
        return (
            f"encoder.model={self.model} was trained on images of {self.trained_on()} pixels a "
            f"side and gets images of {seen}; data.size or encoder.size nearer to the former "
            "gives better representations."
        )

    def trained_on(self) -> int:
        """Return the pixels a side of the images that the library's weights are made for."""
        return 224

    def architecture(self) -> EncoderConfig:
        """Return the same network without weights, which the caller loads."""
        loose = {"pretrained": False, "download": False, "freeze": False}
        none = dict.fromkeys(("weights", "digest", "source"))
        return type(self)(**{**self.model_dump(), **loose, **none})

    def _weights(self) -> dict[str, Tensor]:
        if not self._content:
            raise DataError(
                f"encoder.weights={self.weights}: it is empty or no longer there; put it back."
            )
        return parse_weights(self._content, str(self.weights))

    def _features(self, network: nn.Module, height: int, width: int) -> int:
        """Return the width of the output, computed from shapes on the meta device."""
        probe = copy.deepcopy(network).to("meta").eval()
        try:
            found = probe(torch.zeros(2, 3, height, width, device="meta"))
        except Exception as error:  # as in `build`
            raise self._refused(f"it cannot take {height}×{width} pixels", error) from error
        if not isinstance(found, Tensor) or found.ndim != 2:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ConfigError(
                f"encoder.model={self.model}: it gives {shape} instead of a vector for each "
                "sample; choose a model for classification."
            )
        return int(found.shape[1])

    def _refused(self, what: str, error: Exception) -> ConfigError:
        if option := _UNKNOWN.search(str(error)):
            return ConfigError(
                f"encoder.options: {self.model} takes no {option[1]}; leave it out, or choose "
                "another network."
            )
        if option := _SET_HERE.search(str(error)):
            return ConfigError(f"encoder.options: {option[1]} is set by Coterie; leave it out.")
        return ConfigError(
            f"encoder.model={self.model}: {what} ({reason(error)}); choose another size with "
            f"encoder.size, such as its own {self.trained_on()}, or with data.size, or correct "
            "encoder.options."
        )


class Prepared(nn.Module):
    """Network that first brings images in [0, 1] to the form that it was made for.

    Args:
        size: Pixels a side to resize to, if any.
        interpolation: How to resize.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self,
        network: nn.Module,
        mean: Iterable[float],
        deviation: Iterable[float],
        size: int | None,
        interpolation: Interpolation,
    ) -> None:
        super().__init__()
        self.network, self._size, self._mode = network, size, interpolation
        for name, values in (("mean", mean), ("deviation", deviation)):
            self.register_buffer(name, torch.tensor([*values]).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Encode images (n, 1 or 3, height, width); grey ones become three equal channels."""
        encoded: Tensor = self.network(self.prepared(images))
        return encoded

    def prepared(self, images: Tensor) -> Tensor:
        """Return these images in the form that the network takes."""
        if self._size is not None and images.shape[2:] != (self._size, self._size):
            wanted = (self._size, self._size)
            wide = widened(images)  # CPUs cannot resize bfloat16
            wide = nn.functional.interpolate(wide, wanted, mode=self._mode, antialias=True)
            wide = wide.clamp(0, 1) if self._mode == "bicubic" else wide  # it overshoots at edges
            images = wide.to(images.dtype)
        colour = images.expand(-1, 3, -1, -1)
        return (colour - self.mean) / self.deviation


def make_stem_small(model: str, network: nn.Module) -> None:
    """Give the first convolution 3×3 and stride 1, and leave out the max-pool after it.

    Raises:
        ConfigError: If the network begins differently: a transformer cuts the image into patches.
    """
    parts = dict(network.named_modules())
    names = list(parts)
    first = next((name for name in names if isinstance(parts[name], nn.Conv2d)), None)
    conv = parts.get(first or "")
    if not isinstance(conv, nn.Conv2d) or conv.kernel_size == conv.stride:
        raise ConfigError(
            f"encoder.stem=small: {model} does not begin with a convolution that overlaps; leave "
            "it out, and make patches smaller with encoder.options={patch_size: 4} where the model "
            "takes that."
        )
    assert first is not None  # it was found
    small = nn.Conv2d(conv.in_channels, conv.out_channels, 3, 1, 1, bias=conv.bias is not None)
    nn.init.kaiming_normal_(small.weight, mode="fan_out", nonlinearity="relu")
    _replace(network, first, small)
    later = names[names.index(first) + 1 :]
    kinds = (nn.Conv2d, nn.MaxPool2d)
    follows = next((name for name in later if isinstance(parts[name], kinds)), "")
    if isinstance(parts.get(follows), nn.MaxPool2d):
        _replace(network, follows, nn.Identity())


def _replace(network: nn.Module, name: str, part: nn.Module) -> None:
    holder, _, leaf = name.rpartition(".")
    setattr(network.get_submodule(holder), leaf, part)


def replace_head(network: nn.Module) -> str | None:
    """Remove the last linear layer, the classifier, and return its name; None if there is none.

    The identity takes its place.
    """
    linear: list[str] = [
        name for name, part in network.named_modules() if isinstance(part, nn.Linear)
    ]
    if not linear:
        return None
    _replace(network, linear[-1], nn.Identity())
    return linear[-1]


def no_such_model(library: str, model: str, known: list[str]) -> ConfigError:
    """Return the error for a name that the library does not have."""
    close = get_close_matches(model.rpartition("/")[2], known, n=3)  # without a hub's owner
    hint = f"the nearest are {', '.join(close)}." if close else "look it up in its documentation."
    return ConfigError(f"encoder.model={model}: {library} has no model of this name; {hint}")
