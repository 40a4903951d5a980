"""Scores server states without labels, by alignment, uniformity and inter-cluster mixing."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clustering.kmeans import kmeans
from coterie.contract.clusterer import Prediction
from coterie.contract.data import Indices
from coterie.contract.phase import ServerState
from coterie.contract.seeds import derive_seed
from coterie.evaluation.unsupervised_metrics import (
    alignment,
    mixing,
    selection_score,
    uniformity,
)
from coterie.execution.backend import Backend
from coterie.execution.predictor import join, split_rows


@dataclass(frozen=True, kw_only=True)
class UnsupervisedEvaluator:
    """Orchestra's metrics in a model's projection space, see `Clusterer.project`.

    Attributes:
        parts: Each client's rows; alignment and uniformity are means over clients.
        clusters: Clusters of k-means for the mixing if the model has no head; 0 for no mixing.
        seed: Seed of the sample, the views and k-means.
        max_samples: Samples that `quick` scores; None for all.
    """

    backend: Backend
    parts: Sequence[Indices]
    clusters: int
    seed: int
    batch_size: int
    max_samples: int | None

    def scores(self, server: ServerState) -> dict[str, float]:
        """Return metrics of a state: "align", "unif", "selection" and, with clusters, "mixing".

        Alignment compares each sample with one random view of it under the run's augmentation.
        """
        return self._scores(server, [np.arange(len(part)) for part in self.parts])

    def quick(self, server: ServerState) -> dict[str, float]:
        """Return metrics of up to `max_samples`, each against all samples of its client.

        All samples are embedded: uniformity compares a sample with itself too, and with fewer
        samples that term would weigh more.
        """
        return self._scores(server, self.sampled())

    def _scores(self, server: ServerState, anchors: Sequence[Indices]) -> dict[str, float]:
        """Return metrics of the samples at these positions in the clients' parts."""
        sizes, every = [len(part) for part in self.parts], np.concatenate(self.parts)
        counts, starts = [len(own) for own in anchors], np.cumsum([0, *sizes[:-1]])
        chosen = np.concatenate([own + start for own, start in zip(anchors, starts, strict=True)])
        whole = self._project(server, every, None)
        plain = _taken(whole, torch.from_numpy(chosen))
        views = self._project(server, every[chosen], derive_seed(self.seed, "views"))
        both = torch.split(plain.embedding, counts), torch.split(views.embedding, counts)
        align = alignment(list(zip(*both, strict=True)))
        unif = uniformity(torch.split(whole.embedding, sizes), anchors=anchors)
        found = {"align": align, "unif": unif, "selection": selection_score(align, unif)}
        assignments = self.assignments_of(plain)
        if assignments is not None:
            found["mixing"] = mixing(plain.embedding, assignments)
        return found

    def assignments_of(self, found: Prediction) -> NDArray[np.int64] | None:
        """Return the clusters of the head, or of k-means; None for fewer samples than clusters."""
        assigned: Tensor
        if found.probabilities is not None:
            assigned = found.probabilities.argmax(dim=1)
        elif 0 < self.clusters <= len(found.embedding):
            seed = derive_seed(self.seed, "clusters") % 2**31
            assigned = kmeans(found.embedding, self.clusters, seed=seed).assignments
        else:
            return None
        return np.asarray(assigned.numpy(), dtype=np.int64)

    def sampled(self) -> list[Indices]:
        """Draw the same share of positions in each client's part, `max_samples` in all."""
        sizes, most = [len(part) for part in self.parts], self.max_samples
        total = sum(sizes)
        if most is None or total <= most:
            return [np.arange(size) for size in sizes]
        draw = np.random.default_rng(derive_seed(self.seed, "sample"))
        return [
            np.sort(draw.choice(size, max(1, size * most // total), replace=False))
            for size in sizes
        ]

    def _project(self, server: ServerState, rows: Indices, view: int | None) -> Prediction:
        chunks = split_rows("train", rows, self.batch_size, projected=True, view=view)
        return join(self.backend.predict(server, chunks))


def _taken(found: Prediction, rows: Tensor) -> Prediction:
    """Select the predictions of these rows."""
    p = found.probabilities
    return Prediction(found.embedding[rows], None if p is None else p[rows])
