"""The base of exact k-means, Concord and TURTLE, whose clients send sums over their samples.

Sums are on a lattice (`coterie.clustering.lattice`), so the sum over all clients, and with it all
that follows, is the same for every split of the samples, to the bit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float64, Int, Int16, Int32, Shaped
from scipy.linalg import eigh
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from coterie.clustering.blocks import row_blocks
from coterie.clustering.exact_kmeans import Moments
from coterie.clustering.lattice import LIMIT, off_lattice, on_lattice, products
from coterie.config.method import MethodConfig
from coterie.contract import (
    Bounds,
    Client,
    Phase,
    Schedule,
    ServerState,
    Slots,
    Tensors,
    WeightedUpdate,
    derive_seed,
)
from coterie.contract.clusterer import Clusterer
from coterie.modules.fixed_encoder import ENCODER, OnEncoder
from coterie.networks.encoders import Encoder
from coterie.networks.prototypes import LatticeProjection
from coterie.networks.warps import Warp

MOMENTS, SUMS = "moments", "sums"
COUNT, TOTAL, PRODUCTS, WARPED = "count", "total", "products", "warped"
PROJECTION, POINTS, PROTOTYPES = "projection", "points", "prototypes"
_ITERATIONS = (3, 2, 2, 6)
_ROWS = 2048
"""Samples that are warped at a time."""


class ExactSumsConfig(MethodConfig):
    """The common options of methods with exact sums."""

    absent: ClassVar[Mapping[str, str]] = {"micro_batch_size": "it trains nothing in batches"}
    sums: ClassVar[bool] = True
    trains: ClassVar[bool] = False


class OnExactSums(OnEncoder):
    """A method that learns from exact sums over a fixed encoder's representations.

    Attributes:
        widest: Representations wider than this send Σ x² of each feature in place of Σ x xᵀ.
    """

    widest: ClassVar[float] = float("inf")

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """Return the encoder as built, and no sums yet."""
        return with_slots(super().init(sizes, seed), {MOMENTS: self._no_moments()})

    def _moment_bounds(self) -> dict[str, Bounds]:
        """Return bounds on what a sample adds to the moments: features are on the lattice."""
        return {
            COUNT: Bounds(lowest=0.0, highest=1.0),
            TOTAL: Bounds(highest=LIMIT),
            PRODUCTS: Bounds(highest=LIMIT**2),
        }

    def group_sizes(self, sums: Slots) -> Mapping[str, Tensor]:
        """Return the number of samples of each cluster, the last column of the sums."""
        return {SUMS: sums[SUMS][SUMS][..., -1]} if SUMS in sums else {}

    def _no_moments(self) -> dict[str, Tensor]:
        """Return moments of the right shapes, all zero."""
        width = self._task.features
        second = (width,) if width > self.widest else (width, width)
        return {
            name: torch.zeros(shape, dtype=torch.float64)
            for name, shape in ((COUNT, ()), (TOTAL, (width,)), (PRODUCTS, second))
        }

    def _features(
        self, client: Client, slots: Slots, samples: Tensor | None = None
    ) -> Int32[Tensor, "n d"]:
        """Return representations on the lattice, by default of the client's own samples."""
        return on_lattice(self._embedded(client, slots, samples))

    def _projected_points(self, client: Client, slots: Slots) -> Int16[Tensor, "n c"]:
        """Return the client's projected samples, which it keeps from task to task."""
        if client.state is not None:
            return client.state[POINTS]
        project = LatticeProjection(**slots[PROJECTION])
        blocks = row_blocks(self._features(client, slots))
        return torch.cat([on_lattice(project(off_lattice(b))).to(torch.int16) for (b,) in blocks])


def sums_phase(
    server: ServerState,
    name: str,
    down: Iterable[str],
    up: str,
    bounds: Mapping[str, Bounds],
    *,
    loss: bool = False,
) -> Phase:
    """Return the next round, in which clients send sums over their samples.

    Args:
        server: The state before it.
        name: The phase's name.
        down: The slots that clients receive besides the encoder.
        up: The slot of the sums.
        bounds: Of what a sample adds to each sum.
        loss: Whether clients report one.
    """
    return Phase(
        name=name,
        stage="clustering",
        round=server.round + 1,
        down=frozenset({ENCODER, *down}),
        up=frozenset({up}),
        metrics=frozenset({"loss"} if loss else ()),
        bounds={up: bounds},
    )


def moment_sums(points: Int[Tensor, "n d"], widest: float) -> dict[str, Tensor]:
    """Return n, Σ x and Σ x xᵀ, or only its diagonal for representations wider than `widest`."""
    values = off_lattice(points)
    second = values.square().sum(dim=0) if values.shape[1] > widest else products(points)
    return {COUNT: values.new_tensor(len(values)), TOTAL: values.sum(dim=0), PRODUCTS: second}


def differences(
    client: Client,
    warps: Sequence[tuple[Warp, Warp]],
    embed: Callable[[Tensor], Shaped[Tensor, "n d"]],
) -> Iterator[Shaped[Tensor, "n d"]]:
    """Yield the change of features between the two warps of each pair, block by block."""
    for rows in np.array_split(np.arange(len(client.data)), -(-len(client.data) // _ROWS)):
        samples = client.data.take(rows)
        for pair in warps:
            up, down = (embed(warp(samples)) for warp in pair)
            yield up - down


def discriminant(
    covariance: Float64[Tensor, "d d"],
    components: int,
    within: Float64[Tensor, "d d"] | None = None,
    ridge: float = 0.0,
) -> Float64[Tensor, "d c"]:
    """Return directions of the largest variance, relative to `within` if it is given.

    Args:
        covariance: Of the features.
        components: Number of directions; fewer where there are fewer features.
        within: Of what is to be left out, such as a sample's features under warps.
        ridge: Added to `within`, as a share of its mean variance.
    """
    width = len(covariance)
    if within is None:
        noise = np.eye(width)
    else:
        shift = ridge * float(within.diagonal().mean()) + np.finfo(float).tiny
        noise = within.numpy() + shift * np.eye(width)
    with threadpool_limits(1):
        _, vectors = eigh(covariance.numpy(), noise)
    leading = vectors[:, ::-1][:, :components]
    largest = np.abs(leading).argmax(axis=0)
    return torch.from_numpy(leading * np.sign(leading[largest, np.arange(leading.shape[1])]))


def cluster_bounds(width: int, largest: float, squared: float) -> dict[str, Bounds]:
    """Return bounds on what a sample adds to a cluster: itself, its squared length, and one.

    Args:
        width: Number of features.
        largest: The largest magnitude of a feature.
        squared: The largest squared length.
    """
    highest, lowest = (*[largest] * width, squared, 1.0), (*[-largest] * width, 0.0, 0.0)
    return {SUMS: Bounds(lowest=lowest, highest=highest)}


def with_slots(server: ServerState, slots: Slots) -> ServerState:
    """Return the state with these slots added or replaced."""
    return replace(server, slots={**server.slots, **slots})


def once(tensors: Tensors) -> WeightedUpdate:
    """Return sums with weight 1: their mean is the total divided by the number of clients."""
    return WeightedUpdate(weight=1, tensors=tensors)


def project_in(model: Clusterer, server: ServerState, slot: str = PROJECTION) -> None:
    """Put the projection behind a model's encoder, once there is one."""
    if slot in server.slots:
        project = LatticeProjection(**server.slots[slot])
        model.encoder = Encoder(nn.Sequential(model.encoder, project), project.width)


def draws(server: ServerState, *purpose: str | int) -> np.random.Generator:
    """Return the server's random generator for a purpose."""
    return np.random.default_rng(derive_seed(server.whole("seed"), *purpose))


def moments_of(sums: Tensors) -> Moments:
    """Return the moments of all samples, from the sums of `moment_sums` over all clients."""
    return Moments.of(sums[COUNT], sums[TOTAL], sums[PRODUCTS])


def growth(prototypes: int) -> Schedule[int]:
    """Return growing numbers of centroids, from an eighth to all, each with its iterations."""
    sizes = [max(1, prototypes // part) for part in (8, 4, 2, 1)]
    return Schedule(tuple(zip(sizes, _ITERATIONS, strict=True)))
