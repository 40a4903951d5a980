"""FedAvg: federated averaging of a classifier that is trained on every client's labels.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data"
(arXiv:1602.05629), Algorithm 1: the supervised reference for the other methods.
"""

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from coterie.contract import ServerState
from coterie.contract.clusterer import Clusterer
from coterie.modules.averaging import Averaging
from coterie.modules.classification import ROLES, Classification, ClassificationConfig


class FedAvg(Averaging["FedAvg.Config", Classification]):
    """Supervised federated averaging."""

    vmappable = True
    needs_labels = True
    stage = "supervised"
    network = Classification
    roles = ROLES

    class Config(ClassificationConfig):
        """FedAvg's configuration, in the paper's terms: η, E, B and C."""

        uncoupled: ClassVar[bool] = True

        participation: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
        """Share of the clients in each round, C."""
        rounds: PositiveInt = 50
        epochs: PositiveInt = 1
        """Local epochs per round, E."""
        batch_size: Annotated[int, Field(ge=2)] = 32
        """Samples per batch, B."""

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the global encoder and classifier; the probabilities are those of the classes."""
        return self.global_module(server).clusterer()
