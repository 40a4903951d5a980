"""VAE: an autoencoder whose representations are random, and near to a standard normal.

Kingma and Welling, "Auto-Encoding Variational Bayes" (2014), by federated averaging. With k-means
on the means of its representations it is a baseline of deep clustering, as in Miao and Koyuncu,
"Federated Momentum Contrastive Clustering" (FedMCC), table VI.
"""

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from coterie.contract import Entry, Role, StateRoles, Task, derive_seed
from coterie.contract.client import Batch, batch_seed
from coterie.contract.clusterer import parameter_dtype, to_unit
from coterie.gradcache import Terms
from coterie.modules.autoencoder import Autoencoder, AutoencoderConfig, Reconstruction
from coterie.precision import in_float32, widened


class Variational(Reconstruction):
    """The encoder, whose outputs are means μ, a layer of log σ², the decoder, and their loss."""

    config: "VAE.Config"
    encoder: nn.Sequential
    decoder: nn.Sequential

    def __init__(self, config: "VAE.Config", task: Task) -> None:
        super().__init__(config, task)
        self.images = len(task.shape) == 3
        self.log_variance = nn.Linear(task.features, config.latent)
        self.to(task.dtype)

    def training_step(self, batch: Batch, batch_idx: int) -> Terms:
        """Return −L of eq. (10) with one draw of ε a sample, the mean over a batch, in two terms.

        Images in [0, 1] are Bernoulli variables, as in appendix C.1, vectors normal ones of
        variance 1.
        """
        samples = to_unit(batch["samples"], parameter_dtype(self))
        backbone, to_mean = self.encoder
        features = backbone(samples)
        mean, log_variance = widened(to_mean(features)), widened(self.log_variance(features))
        draw = torch.Generator().manual_seed(derive_seed(batch_seed(batch), "noise"))
        noise = torch.randn(mean.shape, generator=draw, dtype=torch.float64).to(mean)
        codes = (mean + (0.5 * log_variance).exp() * noise).to(features.dtype)
        if self.images:  # without the sigmoid at the decoder's end
            reconstruction = cross_entropy(self.decoder[:-1](codes), samples)
        else:
            reconstruction = half_square(self.decoder(codes), samples)
        kl = divergence(mean, log_variance)
        loss = reconstruction + kl
        return self.logged({"loss": loss, "reconstruction": reconstruction, "kl": kl})


@in_float32
def cross_entropy(
    logits: Float[Tensor, "n *shape"], samples: Float[Tensor, "n *shape"]
) -> Float[Tensor, ""]:
    """Return −log p of a sample's values in [0, 1], Bernoulli variables with these logits.

    It is the sum over the values and the mean over the samples.
    """
    total = binary_cross_entropy_with_logits(logits, samples, reduction="sum")
    return total / len(samples)


@in_float32
def half_square(
    rebuilt: Float[Tensor, "n *shape"], samples: Float[Tensor, "n *shape"]
) -> Float[Tensor, ""]:
    """Return ½‖x̂ − x‖², the mean over the samples: −log p of normal values, but for a constant."""
    return 0.5 * (rebuilt - samples).square().sum() / len(samples)


def divergence(mean: Float[Tensor, "n d"], log_variance: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """Return KL(N(μ, σ²) ‖ N(0, 1)), appendix B: the sum over d, and the mean over the samples."""
    terms = mean.square() + log_variance.exp() - log_variance - 1.0
    return 0.5 * terms.sum() / len(mean)


class VAE(Autoencoder):
    """A variational autoencoder; all its weights are averaged, and clients keep none.

    The means are evaluated.
    """

    network: type[Reconstruction] = Variational
    metrics = frozenset({"loss", "reconstruction", "kl"})
    roles = StateRoles(
        Entry(pattern="encoder.*", role=Role.AVERAGE, slot="encoder"),
        Entry(pattern="log_variance.*", role=Role.AVERAGE, slot="log_variance"),
        Entry(pattern="decoder.*", role=Role.AVERAGE, slot="decoder"),
    )

    class Config(AutoencoderConfig):
        """The VAE's configuration; its decoder is the autoencoder's."""

        latent: PositiveInt = 20
        """Width of a representation."""
