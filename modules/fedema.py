"""FedEMA: clients blend the global model with their own, by how far they have moved.

Zhuang et al., "Divergence-aware Federated Self-Supervised Learning" (ICLR 2022), section 4: a
client's online network and predictor become μ · local + (1 − μ) · global before it trains, with
μ = min(1, λ · divergence). Its target network stays local, as in FedU.
"""

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from coterie.contract import Slots, Task, Tensors, load_tensors
from coterie.modules.fedu import ROLES, Decayed, PaperConfig
from coterie.modules.pretraining import Pretraining, divergence

DIVERGENCE, SCALE = "divergence", "scale"
"""What a client keeps besides networks: how far its last task moved the encoder, and λ."""
BLENDED = ("online.", "predictor.")


class Blended(Decayed):
    """BYOL's networks; a task starts from a blend of the global model and the client's own."""

    config: "FedEMA.Config"

    def __init__(self, config: "FedEMA.Config", task: Task) -> None:
        super().__init__(config, task)
        self._began: Tensors = {}
        self._scale = config.scale

    def begin(self, kept: Tensors) -> None:
        """Blend the global model with what the client kept; in its first task take all of it."""
        numbers = {name: float(kept[name]) for name in (DIVERGENCE, SCALE) if name in kept}
        self._scale = numbers.get(SCALE, self.config.scale)
        self.start_target()
        load_tensors(self, {name: v for name, v in kept.items() if name.startswith("target.")})
        share = min(1.0, (self._scale or 0.0) * numbers.get(DIVERGENCE, 0.0))
        if share:  # otherwise not a bit may change
            with torch.no_grad():
                for name, parameter in self._blended().items():
                    parameter.lerp_(kept[name].to(parameter), share)
        self._began = _copied(self._blended())

    def end(self) -> dict[str, Tensor]:
        """Return online network, predictor, divergence and, once there is one, λ."""
        moved = divergence(self, self._began)
        if self._scale is None and moved:
            self._scale = self.config.autoscale / moved
        numbers = {DIVERGENCE: moved} | ({} if self._scale is None else {SCALE: self._scale})
        return _copied(self._blended()) | {
            name: torch.tensor(number, dtype=torch.float64) for name, number in numbers.items()
        }

    def _blended(self) -> dict[str, torch.nn.Parameter]:
        """Return the parameters that are blended.

        Running statistics stay those of the global model.
        """
        return {name: p for name, p in self.named_parameters() if name.startswith(BLENDED)}


class FedEMA(Pretraining["FedEMA.Config", Blended]):
    """Clients blend the global model with their own by their divergence.

    λ is constant, or one for each client.

    Clients keep their target network, the parameters of their online network and predictor, their
    last divergence and their λ. The optimiser is reset.
    """

    network = Blended
    roles = ROLES

    class Config(PaperConfig):
        """FedEMA's configuration."""

        scale: Annotated[float, Field(ge=0.0)] | None = None
        """λ of all clients; 0 is FedBYOL. By default each client has its own λ: `autoscale` divided
        by the divergence of its first task."""
        autoscale: Annotated[float, Field(gt=0.0, le=1.0)] = 0.7
        """τ: the share μ of a client's own model in its second task, if it has its own λ."""

    def enter_round(self, module: Blended, round_: int) -> None:
        """Set the learning-rate schedule to this round."""
        module.round = round_

    def restore(self, module: Blended, kept: Tensors) -> None:
        """Blend the global model with what the client kept, to begin a task from it."""
        module.begin(kept)

    def keep(self, module: Blended, slots: Slots) -> Tensors:
        """Keep the target network and what the next task blends."""
        return self.roles.kept(module) | module.end()


def _copied(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: p.detach().cpu().clone() for name, p in parameters.items()}
