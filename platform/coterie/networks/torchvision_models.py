"""torchvision's classification networks as encoders: `encoder=torchvision:resnet18`."""

import inspect
from collections import OrderedDict
from collections.abc import Callable

from torch import nn
from torchvision import models
from torchvision.models.vision_transformer import interpolate_embeddings
from torchvision.transforms import InterpolationMode

from coterie.networks.named_models import Built, NamedModel, no_such_model, replace_head
from coterie.networks.own_weights import OwnWeights, from_address
from coterie.networks.weight_files import Weights

_PLAIN = {"aux_logits": False, "init_weights": True}
_OPTIONS = {"googlenet": _PLAIN, "inception_v3": _PLAIN}
"""Arguments without which a model gives more than one output in training."""
_AUXILIARY = ("aux1", "aux2", "AuxLogits")
"""Their additional classifiers, which a file of weights may hold."""


class Torchvision(NamedModel):
    """A classification network of torchvision's without its last linear layer.

    Vision transformers are built for the size of the images.
    """

    @classmethod
    def check_name(cls, model: str) -> None:
        """See `NamedModel.check_name`."""
        known = models.list_models(module=models)
        if model not in known:
            raise no_such_model("torchvision", model, known)

    @classmethod
    def own_weights(cls, model: str, *, fetch: bool) -> OwnWeights:
        """See `NamedModel.own_weights`; they are where torchvision keeps what it has downloaded."""
        return from_address(models.get_model_weights(model).DEFAULT.url, fetch=fetch)

    def create(self, height: int, width: int) -> Built:
        """See `NamedModel.create`."""
        builder = models.get_model_builder(self.model)
        options: dict[str, object] = dict(_OPTIONS.get(self.model, {}))
        if options and self.weights is not None:
            options["transform_input"] = True  # as torchvision builds them for its weights
        if inspect.signature(builder).return_annotation is models.VisionTransformer:
            if height != width:
                raise ValueError("it takes square images")
            options["image_size"] = height
        network = builder(weights=None, **{**options, **self.options})
        head = replace_head(network)
        if head is None:
            raise ValueError("it has no linear classifier to take off")
        made = models.get_model_weights(self.model).DEFAULT.transforms()
        heads = (head, *_AUXILIARY)
        bicubic = made.interpolation == InterpolationMode.BICUBIC
        return Built(
            network,
            heads,
            tuple(made.mean),
            tuple(made.std),
            _resized(network),
            "bicubic" if bicubic else "bilinear",
        )


def _resized(network: nn.Module) -> Callable[[Weights], Weights]:
    """Return a function that resizes a vision transformer's position embeddings."""
    if not isinstance(network, models.VisionTransformer):
        return dict
    size, patch = network.image_size, network.patch_size
    return lambda weights: interpolate_embeddings(size, patch, OrderedDict(weights))
