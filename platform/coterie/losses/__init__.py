"""Losses as pure functions of projections and soft assignments, and their closed-form gradients.

Axes: n samples, d features, k clusters, m samples of another device. A scalar has no axis.
"""

from coterie.losses.contrastive import (
    cluster_contrastive_loss,
    contrastive_loss,
    nt_xent,
    nt_xent_against,
)
from coterie.losses.correlation import cross_correlation_loss, shared_spectral_loss
from coterie.losses.cosine import (
    cluster_contrast,
    model_contrast,
    negative_cosine,
    normalised_error,
)
from coterie.losses.entropy import cluster_entropy, entropy_gradient
from coterie.losses.gradients import contrastive_gradients
from coterie.losses.plain import plain_contrastive_loss
from coterie.losses.relational import relational_loss
from coterie.losses.spectral import bounded_rows, spectral_contrast
from coterie.losses.tiled import tiled_contrastive_loss

__all__ = [
    "bounded_rows",
    "cluster_contrast",
    "cluster_contrastive_loss",
    "cluster_entropy",
    "contrastive_gradients",
    "contrastive_loss",
    "cross_correlation_loss",
    "entropy_gradient",
    "model_contrast",
    "negative_cosine",
    "normalised_error",
    "nt_xent",
    "nt_xent_against",
    "plain_contrastive_loss",
    "relational_loss",
    "shared_spectral_loss",
    "spectral_contrast",
    "tiled_contrastive_loss",
]
