"""SimCLR and FedSimCLR: contrast of two views in a batch, centralised and federated.

Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations"; CP-CFL's
first pretrainer (section 3.3.1) and Orchestra's baseline f-SimCLR.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from coterie.contract import StateRules, Task
from coterie.gradcache import Part, Terms, batch_loss
from coterie.losses.contrastive import nt_xent
from modules.pretraining import ONLINE, Pretraining, PretrainingConfig, TwoViews, Views


class SimCLRConfig(PretrainingConfig):
    """What SimCLR and FedSimCLR share."""

    temperature: PositiveFloat = 0.1
    """τ."""
    hidden: PositiveInt = 256
    """Width of the projector's hidden layer."""
    projection: PositiveInt = 256
    """Width of the projector's output."""


class Contrast(TwoViews):
    """One network and the loss over two views."""

    config: SimCLRConfig

    def __init__(self, config: SimCLRConfig, task: Task) -> None:
        super().__init__(config, task, batch_norm=False)
        self.to(task.dtype)

    def training_step(self, batch: Views, batch_idx: int) -> dict[str, Tensor]:
        """NT-Xent over the 2n views: self excluded, positive included, mean over all anchors."""
        parts = {
            name: Part(self.online, [self.online], view)
            for name, view in zip("ab", batch, strict=True)
        }
        return batch_loss(parts, self._terms, self.config.micro_batch_size)

    def _terms(self, z: Mapping[str, Tensor]) -> Terms:
        return {"loss": nt_xent(z["a"], z["b"], self.config.temperature)}


class SimCLR(Pretraining[SimCLRConfig, Contrast]):
    """SimCLR, as a rule on one client that has all data. Clients keep nothing."""

    rules = StateRules(*ONLINE)

    class Config(SimCLRConfig):
        """SimCLR's configuration, as CP-CFL pretrains with it."""

    def build(self) -> Contrast:
        """The network and its loss."""
        return Contrast(self._config, self._task)


class FedSimCLR(SimCLR):
    """SimCLR by federated averaging of encoder and projector."""

    class Config(SimCLRConfig):
        """FedSimCLR's configuration: the cross-silo setting of Orchestra's baselines."""

        optimizer: Literal["adam", "sgd"] = "sgd"
        """SGD with momentum (Orchestra's baselines) or Adam (CP-CFL)."""
        learning_rate: PositiveFloat = 0.03
        """The optimiser's learning rate; 0.003 across devices."""
        weight_decay: Annotated[float, Field(ge=0.0)] = 1e-4
        """The optimiser's weight decay."""
        rounds: PositiveInt = 100
        """Rounds; the optimiser starts afresh in each."""
        epochs: PositiveInt = 10
        """Local epochs a round."""
        batch_size: Annotated[int, Field(ge=2)] = 256
        """Samples a batch, n; 16 across devices."""
