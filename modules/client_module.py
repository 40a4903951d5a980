"""The base of the LightningModules that clients train, which a plain Trainer can also fit.

Batches are dicts, `coterie.contract.client.Batch`, of a client's task as of a data module's loader.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar

import torch
from lightning import LightningModule
from torch import Tensor, nn

from coterie.config.component import Component, dumped, parse_component
from coterie.config.growth import most_from
from coterie.config.plain_files import plain_copy
from coterie.config.trust import check_targets
from coterie.contract import Task, blank
from coterie.contract.clusterer import parameter_dtype, to_unit
from coterie.errors import ConfigError, CoterieError, reason
from coterie.gradcache import MicroBatched, Terms
from coterie.networks.views import batch_views
from coterie.networks.weight_files import checked, read_file, unpickled


class ClientModule(LightningModule):
    """A network with its loss and optimiser.

    Attributes:
        representation: The name of the encoder among its parts.
        frozen: The names of the parts that stay in eval mode.
    """

    representation: ClassVar[str] = "online.encoder"
    frozen: ClassVar[tuple[str, ...]] = ()
    config: Any

    def __init__(self, config: Component, task: Task, **more: Any) -> None:
        super().__init__()
        self.config = config
        stored = {"config": dumped(config), "task": task.dumped(), **more}
        self.save_hyperparameters({**stored, "representation": self.representation})

    def forward(self, samples: Tensor) -> Tensor:
        """Return representations (n, features) of samples (n, …), uint8 or floats in [0, 1]."""
        represented: Tensor = self.get_submodule(self.representation)(
            to_unit(samples, parameter_dtype(self))
        )
        return represented

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Take the batches of any loader: samples, or samples and labels, become a dict."""
        if isinstance(batch, Tensor):
            return {"samples": batch}
        if isinstance(batch, list | tuple):
            return dict(zip(("samples", "labels"), batch, strict=False))
        return batch

    def on_train_epoch_start(self) -> None:
        """Switch to train mode, whatever the module was used for before; `frozen` parts to eval."""
        self.train()
        for name in self.frozen:
            self.get_submodule(name).eval()

    def logged(self, terms: Terms) -> Terms:
        """Log the terms of a step's loss and their means over each epoch, and return them."""
        self.log_dict(dict(terms), on_step=True, on_epoch=True, batch_size=1)  # of equal weight
        return terms

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # without Lightning's own arguments
        cls, checkpoint_path: Any, map_location: Any = "cpu", strict: bool = True, **named: Any
    ) -> Any:
        """Load a Trainer's checkpoint, without running code from the file.

        Nothing of this is left to Lightning, some versions of which call what the file names.

        Args:
            checkpoint_path: The file.
            map_location: The device of the module.
            strict: Whether the file has to have all of the module's weights, and no others.
            named: Arguments of the module instead of the file's, such as `task`.

        Raises:
            ConfigError: If the file names a class that is not Coterie's; give `config` and `task`.
                Or if it holds no such module.
            DataError: If it cannot be read.
        """
        path = Path(checkpoint_path)
        content = read_file("checkpoint_path", str(path))
        stored = unpickled(content, str(path), "fetch the checkpoint again.")
        try:
            weights = checked(dict(stored["state_dict"]), path)
            plain = plain_copy(stored.get("hyper_parameters", {}))
            arguments = cls._arguments(plain, path, named)
            if strict:
                _check_sizes(lambda: cls(**arguments), arguments["task"], weights)
            module = blank(lambda: cls(**arguments))
            module.on_load_checkpoint(stored)
            module.load_state_dict(weights, strict=strict)
        except CoterieError:
            raise
        except Exception as error:  # whatever a stranger's values lead to
            raise ConfigError(
                f"{path}: it holds no {cls.__name__} ({reason(error)}); load it by the class that "
                "was trained, or give config and task."
            ) from error
        return module.to(map_location)

    @classmethod
    def _arguments(
        cls, stored: Mapping[str, Any], path: Path, named: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the class's arguments; a file gives the config, the task and plain values."""
        known = {key: stored[key] for key in signature(cls).parameters if key in stored}
        own: dict[str, Any] = {**known, **named}
        parsers: dict[str, Callable[[Any], Any]] = {"config": parse_component, "task": Task.parse}
        if "task" not in named:
            stored["task"]["encoder"].pop("download", None)  # it is the reader's to give
        for name in [name for name in parsers if name not in named]:
            check_targets({name: stored[name]}, path, ())
            own[name] = parsers[name](stored[name])
        return own


class ViewPairs(ClientModule):
    """A module whose steps take two views of each sample.

    Attributes:
        augment: Draws the views.
        config: With the size of micro-batches, for which views are drawn when they are needed.
    """

    augment: nn.Module
    config: MicroBatched

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Draw two views of each sample, on the device."""
        whole = self.config.micro_batch_size is None
        return batch_views(self.augment, batch, parameter_dtype(self), whole=whole)


def _check_sizes(build: Callable[[], nn.Module], task: Task, weights: Mapping[str, Tensor]) -> None:
    """Check that weights fit a module, which is built without memory: a file may ask for too much.

    Raises:
        ValueError: If they do not.
    """
    if math.prod(task.shape) > most_from(sum(value.nbytes for value in weights.values())):
        raise ValueError("its samples are larger than its weights")
    with suppress(NotImplementedError, RuntimeError), torch.device("meta"):
        wanted = {name: value.shape for name, value in blank(build).state_dict().items()}
        found = {name: value.shape for name, value in weights.items()}
        for name in sorted(wanted.keys() | found.keys()):
            if wanted.get(name) != found.get(name):
                raise ValueError(f"{name} is of other weights")
