"""The adversarial losses of a GAN."""

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from coterie.precision import widened


def discriminator_loss(real: Float[Tensor, "n 1"], made: Float[Tensor, "m 1"]) -> Float[Tensor, ""]:
    """Return −mean log σ(real) − mean log(1 − σ(made)) of logits; 2 log 2 where they are 0."""
    return softplus(-widened(real)).mean() + softplus(widened(made)).mean()


def generator_loss(made: Float[Tensor, "m 1"]) -> Float[Tensor, ""]:
    """Return −mean log σ(made), the non-saturating generator loss (Goodfellow et al., 2014)."""
    return softplus(-widened(made)).mean()
