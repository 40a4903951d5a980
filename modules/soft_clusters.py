"""DEC's network and loss: clusters that learn from the samples that they are surest of.

Xie, Girshick and Farhadi, "Unsupervised Deep Embedding for Clustering Analysis" (2016), section
3.1. The target distribution is that of the frozen global encoder and centroids.
"""

from copy import deepcopy
from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import kl_div

from coterie.contract import Task
from coterie.contract.client import Batch
from coterie.contract.clusterer import parameter_dtype, to_unit
from coterie.gradcache import Terms
from coterie.modules.autoencoder import AutoencoderConfig, narrowed
from coterie.modules.client_module import ClientModule
from coterie.modules.shared_statistics import RunningMean
from coterie.networks.branch import cluster_count
from coterie.precision import widened


class SelfTrainingConfig(AutoencoderConfig):
    """Options of DEC's networks and optimisers; the decoder is the autoencoder's."""

    clusters: PositiveInt | None = None
    """Number of clusters k; by default the data's number of classes."""
    latent: PositiveInt | None = 10
    """Width of a linear layer behind the encoder, whose outputs are clustered; null: the encoder's
    own outputs are."""
    learning_rate: PositiveFloat = 1e-3
    """Adam's learning rate, for the autoencoder."""
    clustering_learning_rate: PositiveFloat = 0.01
    """SGD's learning rate, for encoder and centroids."""
    sgd_momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """SGD's momentum."""


class SoftClusters(nn.Module):
    """Centroids μ, and the probability that a sample is of each, eq. (1)."""

    def __init__(self, clusters: int, width: int) -> None:
        super().__init__()
        self.centroids = nn.Parameter(torch.randn(clusters, width))

    def logits(self, embedded: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        """Return −log(1 + ‖z − μ‖²), in float32 or wider, of which q is the softmax."""
        exact = "donot_use_mm_for_euclid_dist"
        away = torch.cdist(widened(embedded), widened(self.centroids), compute_mode=exact)
        return -away.square().log1p()

    def forward(self, embedded: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        """Return q, eq. (1): Student's t distribution with one degree of freedom."""
        return self.logits(embedded).softmax(dim=1)


class SelfTraining(ClientModule):
    """Encoder and centroids, their frozen global copies, and the loss of the second stage."""

    representation = "encoder"
    frozen = ("global_model",)
    config: SelfTrainingConfig

    def __init__(self, config: SelfTrainingConfig, task: Task) -> None:
        super().__init__(config, task)
        count = cluster_count(config.clusters, task)
        self.encoder, width = narrowed(task, config.latent)
        self.clusters = SoftClusters(count, width)
        self.global_model = deepcopy(self.assigner()).requires_grad_(False)
        self.frequencies = RunningMean((count,))
        self.frequencies.running_mean.fill_(1 / count)
        self.to(task.dtype)

    def assigner(self) -> nn.Sequential:
        """Return the network from samples to q."""
        return nn.Sequential(self.encoder, self.clusters)

    def start(self) -> None:
        """Copy encoder and centroids, as they were received, into the global model."""
        self.global_model.load_state_dict(self.assigner().state_dict())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Build SGD over all parameters that take a gradient."""
        learned = [p for p in self.parameters() if p.requires_grad]
        rate, momentum = self.config.clustering_learning_rate, self.config.sgd_momentum
        return torch.optim.SGD(learned, lr=rate, momentum=momentum)

    def training_step(self, batch: Batch, batch_idx: int) -> Terms:
        """Return KL(P‖Q), eq. (2), the mean over a batch; P is the global model's, eq. (3)."""
        samples = to_unit(batch["samples"], parameter_dtype(self))
        log_q = self.clusters.logits(self.encoder(samples)).log_softmax(dim=1)
        with torch.no_grad():
            p = target(self.global_model(samples), widened(self.frequencies.running_mean))
        return self.logged({"loss": kl_div(log_q, p, reduction="batchmean")})


def target(q: Float[Tensor, "n k"], frequencies: Float[Tensor, "k"]) -> Float[Tensor, "n k"]:
    """Return p, eq. (3): q² / f, scaled so that rows sum to 1, as those of q do.

    Args:
        q: Soft assignments.
        frequencies: f, the sum of q over all samples, or a multiple of it.
    """
    weights = q.square() / frequencies
    return weights / weights.sum(dim=1, keepdim=True)
