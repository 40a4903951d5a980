"""The base of the LightningModules that clients train, which a plain Trainer can also fit.

Batches are dicts, `coterie.contract.client.Batch`, of a client's task as of a data module's loader.
"""

from typing import Any, ClassVar

import torch
from lightning import LightningModule
from torch import Tensor

from coterie.config.component import Component, dumped, parse_component
from coterie.config.trust import check_targets
from coterie.contract import Task
from coterie.contract.clusterer import parameter_dtype, to_unit
from coterie.gradcache import Terms


class ClientModule(LightningModule):
    """A network with its loss and optimiser.

    Attributes:
        representation: The name of the encoder among its parts.
    """

    representation: ClassVar[str] = "online.encoder"
    config: Any

    def __init__(self, config: Component, task: Task, **more: Any) -> None:
        super().__init__()
        self.config = config
        self.save_hyperparameters({"config": dumped(config), "task": task.dumped(), **more})

    def forward(self, samples: Tensor) -> Tensor:
        """Return representations (n, features) of samples (n, …), uint8 or floats in [0, 1]."""
        represented: Tensor = self.get_submodule(self.representation)(
            to_unit(samples, parameter_dtype(self))
        )
        return represented

    def on_train_epoch_start(self) -> None:
        """Switch to train mode, whatever the module was used for before."""
        self.train()

    def logged(self, terms: Terms) -> Terms:
        """Log the terms of a step's loss and their means over each epoch, and return them."""
        self.log_dict(dict(terms), on_step=True, on_epoch=True, batch_size=1)  # of equal weight
        return terms

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, *given: Any, **named: Any) -> Any:
        """Load a Trainer's checkpoint, without running code from the file.

        Raises:
            ConfigError: If the file names a class that is not Coterie's; give `config` and `task`.
        """
        stored = torch.load(checkpoint_path, map_location="cpu", weights_only=True)
        for name, parse in (("config", parse_component), ("task", Task.parse)):
            if name not in named:
                plain = stored["hyper_parameters"][name]
                check_targets({name: plain}, checkpoint_path, ())
                named[name] = parse(plain)
        return super().load_from_checkpoint(checkpoint_path, *given, **named)
