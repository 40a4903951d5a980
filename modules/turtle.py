"""TURTLE over clients: the labels that a linear classifier of fixed representations learns best.

Gadetsky, Jiang and Brbić, "Let Go of Your Labels with Unsupervised Transfer" (ICML 2024): soft
labels τ = softmax(θφ) are sought by which a linear classifier w, trained on them, errs least
(equation 12), with first-order gradients (equation 13). Both gradients are sums over samples, so
exact sums give the same labels for every split of the samples, to the bit.

φ is a representation's projection on its principal directions, at unit length, with a constant.
Each round takes one step of θ on all samples, by Adam. The authors train w from a new start by ten
steps each time, which keeps it weak. Here it is ten times the ridge regression on the labels of
the round before, which needs Σ φ φᵀ and Σ φ τᵀ only. Entropies and softmax count in bits.
"""

from collections.abc import Mapping
from math import log
from typing import Annotated, ClassVar

import numpy as np
import torch
from jaxtyping import Float64, Int32, Int64
from numpy.typing import NDArray
from pydantic import Field, PositiveInt
from scipy.linalg import cho_factor, cho_solve
from threadpoolctl import threadpool_limits
from torch import Tensor

from coterie.clustering.lattice import off_lattice, on_lattice, products
from coterie.contract import (
    Client,
    Outcome,
    Phase,
    ServerState,
    Slots,
    Task,
    Tensors,
    WeightedUpdate,
    summed,
)
from coterie.contract.clusterer import Clusterer
from coterie.contract.tensor_spec import Bounds
from coterie.modules.exact_sums import (
    MOMENTS,
    POINTS,
    PROJECTION,
    SUMS,
    ExactSumsConfig,
    OnExactSums,
    discriminant,
    draws,
    moment_sums,
    moments_of,
    once,
    project_in,
    sums_phase,
)
from coterie.networks.branch import cluster_count
from coterie.networks.lattice_softmax import FINE, LatticeSoftmax, logs_of_two
from coterie.networks.prototypes import directions
from coterie.networks.quadratic import expand, scale_of

TASK, ADAM, SCATTER = "task", "adam", "scatter"
LABELS, CLASSIFIER, SHARES = "labels", "classifier", "shares"
TARGETS, LOSSES = "targets", "losses"
_MESSAGES = {
    MOMENTS: ((), MOMENTS),
    SCATTER: ((PROJECTION,), SCATTER),
    LABELS: ((PROJECTION, TASK), SUMS),
}
"""What each phase sends down besides the encoder, and what it sends up."""
_SCALE = 10.0
"""Factor from the regression's values to the classifier's logits."""
_RIDGE = 1.0
"""Added to the mean of φ φᵀ, whose diagonal is near 1."""
_FADING = (0.9, 0.999)
_LARGEST = 32.0
"""Bound of a sample's gradient: with 64 components, sums over two million samples are exact."""


class Turtle(OnExactSums):
    """Labels that a linear classifier of fixed representations learns best, by exact sums."""

    class Config(ExactSumsConfig):
        """TURTLE's configuration."""

        extensible: ClassVar[frozenset[str]] = frozenset({"iterations"})

        clusters: Annotated[int, Field(ge=2)] | None = None
        """Number of clusters k; by default the data's number of classes."""
        components: PositiveInt = 64
        """Principal directions on which representations are projected."""
        restarts: PositiveInt = 8
        """Starts, which run at the same time; the one with the least objective is taken."""
        iterations: PositiveInt = 200
        """Steps of the labels, each a round."""
        learning_rate: Annotated[float, Field(gt=0.0)] = 0.01
        """Learning rate of the labels' weights, for Adam."""
        entropy: Annotated[float, Field(ge=0.0)] = 10.0
        """γ: weight of the entropy of the clusters' shares, which keeps them similar in size."""

    def __init__(self, config: "Turtle.Config", task: Task) -> None:
        super().__init__(task)
        self._config = config
        self._clusters = cluster_count(config.clusters, task)
        self.rounds = 2 + config.iterations

    def next(self, server: ServerState) -> Phase | None:
        """Return the next phase: moments of all samples, moments of projections, then steps."""
        if server.round >= self.rounds:
            return None
        projected = LABELS if TASK in server.slots else SCATTER
        name = projected if PROJECTION in server.slots else MOMENTS
        down, up = _MESSAGES[name]
        bounds, loss = self._bounds(name, server), name == LABELS
        return sums_phase(server, name, down, up, bounds, loss=loss)

    def _bounds(self, name: str, server: ServerState) -> dict[str, Bounds]:
        """Return bounds on what a sample adds to each sum: φ is 1 and values within a scale."""
        if name == MOMENTS:
            return self._moment_bounds()
        features = len(server.slots[SCATTER][SCATTER])
        largest = np.array([1.0, *[scale_of(features - 1)] * (features - 1)])
        most = np.outer(largest, largest)
        if name == SCATTER:
            least = np.where(np.eye(features, dtype=bool), 0.0, -most)
            return {SCATTER: Bounds(lowest=_rows(least), highest=_rows(most))}
        least = np.array([0.0, *-largest[1:]])
        return {
            LABELS: Bounds(highest=_rows(largest[:, None] * _LARGEST)),
            TARGETS: Bounds(lowest=_rows(least[:, None]), highest=_rows(largest[:, None])),
            LOSSES: Bounds(lowest=0.0, highest=_LARGEST * self._clusters),
        }

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Return moments, or sums of the labels' gradient and of what the classifier needs."""
        if phase.name == MOMENTS:
            moments = moment_sums(self._features(client, slots), self.widest)
            return Outcome(up={MOMENTS: once(moments)})
        points = self._projected_points(client, slots)
        features, state = expand(points, leading=0), {POINTS: points}
        if phase.name == SCATTER:
            return Outcome(up={SCATTER: once({SCATTER: products(features)})}, state=state)
        starts = [
            gradient_sums(features, dict(zip(slots[TASK], one, strict=True)), self._config.entropy)
            for one in zip(*slots[TASK].values(), strict=True)
        ]
        sums = {name: torch.stack([start[name] for start in starts]) for name in starts[0]}
        loss = float(sums[LOSSES].amin()) / len(points)
        return Outcome(up={SUMS: once(sums)}, state=state, metrics={"loss": loss})

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, WeightedUpdate],
        gathered: Mapping[int, Tensors],
    ) -> ServerState:
        """Compute the projection, then random labels, then steps of these and their classifiers."""
        if phase.name == MOMENTS:
            return self._projected(server, phase, summed(means[MOMENTS]))
        if phase.name == SCATTER:
            return self._started(server, phase, summed(means[SCATTER])[SCATTER])
        sums, scatter = summed(means[SUMS]), server.slots[SCATTER][SCATTER]
        gradient, targets, losses = (sums[n] / scatter[0, 0] for n in (LABELS, TARGETS, LOSSES))
        step, adam = self._adam(server.slots[ADAM], gradient, phase.round - 2)
        told = [classifier(scatter / scatter[0, 0], start) for start in targets]
        task = {
            LABELS: server.slots[TASK][LABELS] - _fine(step),
            CLASSIFIER: _fine(torch.stack(told)),
            SHARES: targets[:, 0],
        }
        spread = torch.special.entr(task[SHARES]).sum(dim=1) / log(2)
        best = int((losses - self._config.entropy * spread).argmin())
        return server.advance(phase, {TASK: task, ADAM: adam}, {"best": best})

    def group_sizes(self, sums: Slots) -> Mapping[str, Tensor]:
        """Return nothing: every sum is over all of a client's samples."""
        return {}

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the encoder, with projection and labels once there are any."""
        model = super().model_for(server, client)
        if TASK in server.slots:
            project_in(model, server)
            model.head = LatticeSoftmax(server.slots[TASK][LABELS][server.whole("best")])
        return model

    def _projected(self, server: ServerState, phase: Phase, sums: Tensors) -> ServerState:
        """Set the projection on principal directions of all representations."""
        moments = moments_of(sums)
        kept = directions(discriminant(moments.covariance, self._config.components))
        size = 1 + kept.shape[1]
        project = {"mean": on_lattice(moments.mean), "directions": kept}
        zeros = torch.zeros(size, size, dtype=torch.float64)
        return server.advance(phase, {PROJECTION: project, SCATTER: {SCATTER: zeros}})

    def _started(self, server: ServerState, phase: Phase, scatter: Tensor) -> ServerState:
        """Set random labels near uniform, and classifiers of zeros."""
        starts, size, clusters = self._config.restarts, len(scatter), self._clusters
        shape = (starts, size, clusters)
        drawn = draws(server, LABELS).uniform(-1, 1, shape) / size**0.5
        zeros = torch.zeros(shape, dtype=torch.float64)
        shares = torch.full((starts, clusters), 1 / clusters, dtype=torch.float64)
        task = {LABELS: _fine(torch.from_numpy(drawn)), CLASSIFIER: _fine(zeros), SHARES: shares}
        slots: Slots = {
            SCATTER: {SCATTER: scatter},
            TASK: task,
            ADAM: {"first": zeros, "second": zeros},
            SUMS: {LABELS: zeros, TARGETS: zeros, LOSSES: zeros[:, 0, 0]},
        }
        return server.advance(phase, slots, {"best": 0})

    def _adam(
        self, moments: Tensors, gradient: Float64[Tensor, "r f k"], step: int
    ) -> tuple[Float64[Tensor, "r f k"], dict[str, Tensor]]:
        """Return Adam's step down this gradient, and its new moments."""
        (fades, slowly), new = _FADING, {}
        new["first"] = fades * moments["first"] + (1 - fades) * gradient
        new["second"] = slowly * moments["second"] + (1 - slowly) * gradient.square()
        spread = (new["second"] / (1 - slowly**step)).sqrt() + 1e-8
        return self._config.learning_rate * new["first"] / (1 - fades**step) / spread, new


def classifier(
    scatter: Float64[Tensor, "f f"], targets: Float64[Tensor, "f k"]
) -> Float64[Tensor, "f k"]:
    """Return ten times the ridge regression on the labels minus their mean shares.

    Args:
        scatter: The mean of φ φᵀ, with the constant first.
        targets: The mean of φ τᵀ.
    """
    matrix = scatter.numpy() + _RIDGE * np.eye(len(scatter))
    centred = targets - torch.outer(scatter[0], targets[0])
    with threadpool_limits(1):
        return torch.from_numpy(_SCALE * cho_solve(cho_factor(matrix), centred.numpy()))


def gradient_sums(
    features: Int32[Tensor, "n f"], task: Mapping[str, Tensor], entropy: float
) -> dict[str, Float64[Tensor, "..."]]:
    """Return Σ over samples of the labels' gradient, of φ τᵀ and of the cross-entropy in bits.

    Args:
        features: φ and a constant, on the lattice.
        task: θ and w (f, k) in steps of 2^-20, and the labels' shares among all samples.
        entropy: γ.

    Returns:
        The gradient of τ's cross-entropy to w's prediction p, less γ times the shares' entropy, by
        θ: Σ φ (τ ∘ (g − τᵀg))ᵀ with g = −log₂ p + γ log₂ of k times the shares;
        Σ φ τᵀ; and Σ −τᵀ log₂ p. All exact.
    """
    labels = LatticeSoftmax(task[LABELS]).of(features)
    told = LatticeSoftmax(task[CLASSIFIER])
    excess_share = task[SHARES].clamp_min(2.0**-20) * len(task[SHARES])
    prices = entropy * logs_of_two(excess_share) - told.logits(features)
    excess = prices - _bounded(labels * prices).sum(dim=1, keepdim=True)
    values = off_lattice(features).T
    surprise = logs_of_two(told.of(features).clamp_min(2.0**-60))
    return {
        LABELS: values @ _bounded(labels * excess),
        TARGETS: values @ _bounded(labels),
        LOSSES: _bounded(-labels * surprise).sum(),
    }


def _rows(matrix: NDArray[np.float64]) -> tuple[tuple[float, ...], ...]:
    """Return a matrix in the form of bounds."""
    return tuple(map(tuple, matrix.tolist()))


def _bounded(values: Float64[Tensor, "n k"]) -> Float64[Tensor, "n k"]:
    """Put values on the lattice, limited to a magnitude of 32."""
    return off_lattice(on_lattice(values.clamp(-_LARGEST, _LARGEST)))


def _fine(weights: Float64[Tensor, "r f k"]) -> Int64[Tensor, "r f k"]:
    """Round weights to steps of 2^-20."""
    return (weights * FINE).round().long()
