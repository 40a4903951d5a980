"""timm's networks as encoders: `encoder=timm:vit_tiny_patch16_224`, with the extra `timm`."""

from pathlib import Path
from typing import Any

import torch

from coterie.errors import ConfigError
from coterie.networks.named_models import Built, NamedModel, no_such_model

try:
    import timm
    from huggingface_hub import try_to_load_from_cache
except ModuleNotFoundError as missing:
    raise ConfigError(
        f"target={__name__}:Timm: timm is not installed; "
        "install it with pip install 'coterie[timm]'."
    ) from missing

_FILES = ("model.safetensors", "pytorch_model.bin")


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
    def own_weights(cls, model: str) -> str:
        """See `NamedModel.own_weights`; they are in the cache of a model hub."""
        config = _config(model)
        for name in _FILES:
            found = try_to_load_from_cache(config.hf_hub_id, name) if config.hf_hub_id else None
            if isinstance(found, str):
                return found
        if config.url:
            path = Path(torch.hub.get_dir()) / "checkpoints" / config.url.rpartition("/")[2]
            if path.is_file():
                return str(path)
        where = config.hf_hub_id or config.url or "no place that timm knows"
        raise ConfigError(
            f"encoder.pretrained=true: timm's weights of {model} are not on this machine; fetch "
            f"them where there is a network (they are at {where}), or give encoder.weights=FILE."
        )

    def create(self, height: int, width: int) -> Built:
        """See `NamedModel.create`."""
        config = _config(self.model)
        sized = {"img_size": (height, width)} if config.fixed_input_size else {}
        network = timm.create_model(
            self.model, pretrained=False, num_classes=0, **{**sized, **self.options}
        )
        head = config.classifier or ()
        names = (head,) if isinstance(head, str) else tuple(head)
        return Built(network, names, config.mean, config.std)


def _config(model: str) -> Any:
    """What timm knows of a model's weights and inputs."""
    found = timm.models.get_pretrained_cfg(model)
    if found is None:
        raise ConfigError(
            f"encoder.model={model}: timm knows no inputs of it; choose a model that has weights."
        )
    return found
