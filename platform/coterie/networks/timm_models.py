"""timm's networks as encoders: `encoder=timm:vit_tiny_patch16_224`, with the extra `timm`."""

import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from coterie.errors import ConfigError
from coterie.networks.named_models import Built, NamedModel, no_such_model
from coterie.networks.own_weights import OwnWeights, from_address, from_hub
from coterie.networks.weight_files import Weights

try:
    import timm
except ModuleNotFoundError as missing:
    raise ConfigError(
        f"target={__name__}:Timm: timm is not installed; "
        "install it with pip install 'coterie[timm]'."
    ) from missing


_OF_FACTORY = frozenset(inspect.signature(timm.create_model).parameters)
"""Arguments of timm's factory and not of a network. It reads files that they name, and unpickles
them in its older versions; weights are `encoder.weights`."""


class Timm(NamedModel):
    """A network of timm's without its classifier, `num_classes=0`.

    Networks of a fixed input size, such as vision transformers, are built for that of the images.
    """

    @classmethod
    def check_name(cls, model: str) -> None:
        """See `NamedModel.check_name`."""
        if not timm.is_model(model):
            raise no_such_model("timm", model, timm.list_models())

    @classmethod
    def own_weights(cls, model: str, *, fetch: bool) -> OwnWeights:
        """See `NamedModel.own_weights`; they are in the cache of a model hub, or in PyTorch's."""
        config = _config(model)
        if config.hf_hub_id:
            return from_hub(config.hf_hub_id, config.hf_hub_filename, fetch=fetch)
        if config.url:
            return from_address(config.url, fetch=fetch)
        raise ConfigError(
            f"encoder.pretrained=true: timm knows no weights of {model}; give encoder.weights=FILE."
        )

    def trained_on(self) -> int:
        """See `NamedModel.trained_on`."""
        return int(_config(self.model).input_size[-1])

    def create(self, height: int, width: int) -> Built:
        """See `NamedModel.create`."""
        for option in self.options:
            if option in _OF_FACTORY or option.startswith("pretrained"):
                raise TypeError(f"unexpected keyword argument {option!r}")
        config = _config(self.model)
        sized = {"img_size": (height, width)} if config.fixed_input_size else {}
        network = timm.create_model(
            self.model, pretrained=False, num_classes=0, **{**sized, **self.options}
        )
        head = config.classifier or ()
        names = (head,) if isinstance(head, str) else tuple(head)
        return Built(
            network,
            names,
            config.mean,
            config.std,
            _filter(network),
            "bicubic" if config.interpolation == "bicubic" else "bilinear",
        )


def _filter(network: nn.Module) -> Callable[[Weights], Weights]:
    """Return what timm does to a file's weights, such as resizing position embeddings."""
    found = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
    return dict if found is None else partial(found, model=network)


def _config(model: str) -> Any:
    """Return what timm knows about a model's weights and inputs."""
    found = timm.models.get_pretrained_cfg(model)
    if found is None:
        raise ConfigError(
            f"encoder.model={model}: timm does not state its inputs; choose a model that has "
            "weights."
        )
    return found
