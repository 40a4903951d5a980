"""DCN: an autoencoder whose latent vectors are pulled towards the centroids of k-means.

Yang et al., "Towards K-means-friendly Spaces: Simultaneous Deep Learning and Clustering" (2017),
algorithm 1.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor, nn

from coterie.clustering.kmeans import kmeans, nearest_centroids

_ROWS = 1024
"""Samples per forward pass outside of training."""


def deep_clustering(
    encoder: nn.Module,
    decoder: nn.Module,
    samples: Float[Tensor, "n ..."],
    *,
    clusters: int,
    pretrain_epochs: int,
    epochs: int,
    pull: float,
    learning_rate: float,
    batch_size: int,
    restarts: int,
    seed: int,
) -> Float32[Tensor, "k d"]:
    """Train both networks in place by ½‖g(f(x)) − x‖² + ½ λ ‖f(x) − c‖², means over a batch.

    c is the centroid of x, by k-means between both parts of the training. After each batch its
    samples get their nearest centroids, and these move to the running means of their samples.

    Args:
        encoder: f, from samples to latents (n, d).
        decoder: g, from latents to flattened samples.
        samples: x, n ≥ k, on the networks' device and in their dtype.
        clusters: Number of clusters k.
        pretrain_epochs: Epochs of reconstruction alone.
        epochs: Epochs with the pull to the centroids.
        pull: λ, the weight of that pull.
        learning_rate: Adam's learning rate.
        batch_size: Samples per batch, at least 2; a smaller last batch is kept if it has 2.
        restarts: Starts of k-means between both parts.
        seed: Seed of the batches and of k-means.

    Returns:
        k-means' centroids of the trained encoder's latents, in eval mode.
    """
    draw = torch.Generator().manual_seed(seed)
    learned = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.Adam(learned, lr=learning_rate)
    for places in _batches(len(samples), batch_size, pretrain_epochs, draw):
        batch = samples[places]
        _step(optimizer, _squared(decoder(encoder.train()(batch)), batch))
    latents = _latents(encoder, samples)
    found = kmeans(latents, clusters, seed=seed, restarts=restarts)
    centroids, nearest = found.centroids.double(), found.assignments
    counts = nearest.bincount(minlength=clusters).double()
    for places in _batches(len(samples), batch_size, epochs, draw):
        batch = samples[places]
        hidden = encoder.train()(batch)
        away = _squared(hidden, centroids[nearest[places]].to(hidden.dtype))
        _step(optimizer, _squared(decoder(hidden), batch) + pull * away)
        hidden = hidden.detach()
        nearest[places] = nearest_centroids(hidden, centroids)
        centroids, counts = running_means(centroids, counts, hidden.double(), nearest[places])
    return kmeans(_latents(encoder, samples), clusters, seed=seed, init=centroids).centroids


def running_means(
    centroids: Float64[Tensor, "k d"],
    counts: Float64[Tensor, "k"],
    points: Float64[Tensor, "n d"],
    nearest: Int64[Tensor, "n"],
) -> tuple[Float64[Tensor, "k d"], Float64[Tensor, "k"]]:
    """Return the centroids after the steps c ← c + (x − c)/(n_c + 1), n_c ← n_c + 1 of all points.

    Args:
        centroids: c.
        counts: n_c, how many points each is the mean of.
        points: x.
        nearest: Each point's centroid.
    """
    shares = torch.zeros(len(centroids), len(points), dtype=torch.float64)
    shares[nearest, torch.arange(len(points))] = 1.0
    after = counts + shares.sum(dim=1)
    moved = (counts[:, None] * centroids + shares @ points) / after.clamp_min(1.0)[:, None]
    return torch.where(after[:, None] > 0, moved, centroids), after


def _batches(
    count: int, batch_size: int, epochs: int, draw: torch.Generator
) -> Iterator[Int64[Tensor, "n"]]:
    for _ in range(epochs):
        order = torch.randperm(count, generator=draw)
        yield from (part for part in torch.split(order, batch_size) if len(part) > 1)


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def _squared(found: Tensor, wanted: Tensor) -> Tensor:
    """Return ½‖found − wanted‖², the mean over the batch."""
    return 0.5 * (found.flatten(1) - wanted.flatten(1)).square().sum(dim=1).mean()


def _latents(encoder: nn.Module, samples: Tensor) -> Tensor:
    encoder.eval()
    with torch.no_grad():
        return torch.cat([encoder(part) for part in torch.split(samples, _ROWS)])
