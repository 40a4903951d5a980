"""Scores of a server state without labels: alignment, uniformity and inter-cluster mixing."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clustering.kmeans import kmeans
from coterie.contract.data import Indices
from coterie.contract.phase import ServerState
from coterie.contract.seeds import derive_seed
from coterie.engine.backend import Backend
from coterie.engine.predictor import join, split_rows
from coterie.evaluation.representation_scores import (
    alignment,
    mixing,
    selection_score,
    uniformity,
)
from coterie.networks.clusterer import Prediction


@dataclass(frozen=True, kw_only=True)
class UnsupervisedEvaluator:
    """Orchestra's scores of a model where it compares samples, see `Clusterer.project`.

    Attributes:
        backend: Where samples are embedded.
        parts: Each client's rows; alignment and uniformity are means over clients.
        clusters: How many clusters k-means makes for the mixing, where the model has none; 0 for
            no mixing.
        seed: Of the sample, of the views and of k-means.
        batch_size: Samples embedded at a time.
        max_samples: Samples looked at; None takes all.
    """

    backend: Backend
    parts: Sequence[Indices]
    clusters: int
    seed: int
    batch_size: int
    max_samples: int | None

    def scores(self, server: ServerState) -> dict[str, float]:
        """Scores "align", "unif", "selection" and, with clusters, "mixing" of a state.

        Alignment compares each sample with one random view of it, by the run's augmentation.
        """
        rows = self._sampled_parts()
        sizes, every = [len(part) for part in rows], np.concatenate(rows)
        plain = self._project(server, every, None)
        views = self._project(server, every, derive_seed(self.seed, "views"))
        samples = torch.split(plain.embedding, sizes)
        pairs = zip(samples, torch.split(views.embedding, sizes), strict=True)
        align, unif = alignment(list(pairs)), uniformity(samples)
        found = {"align": align, "unif": unif, "selection": selection_score(align, unif)}
        assignments = self._assignments(plain)
        if assignments is not None:
            found["mixing"] = mixing(plain.embedding, assignments)
        return found

    def _assignments(self, found: Prediction) -> NDArray[np.int64] | None:
        assigned: Tensor
        if found.probabilities is not None:
            assigned = found.probabilities.argmax(dim=1)
        elif self.clusters:
            seed = derive_seed(self.seed, "clusters") % 2**31
            assigned = kmeans(found.embedding, self.clusters, seed=seed).assignments
        else:
            return None
        return np.asarray(assigned.numpy(), dtype=np.int64)

    def _sampled_parts(self) -> list[Indices]:
        """Each client's rows, of all clients alike so many fewer that `max_samples` is kept."""
        total, most = sum(len(part) for part in self.parts), self.max_samples
        if most is None or total <= most:
            return list(self.parts)
        draw = np.random.default_rng(derive_seed(self.seed, "sample"))
        sizes = [max(1, len(part) * most // total) for part in self.parts]
        return [
            np.sort(draw.choice(part, size, replace=False))
            for part, size in zip(self.parts, sizes, strict=True)
        ]

    def _project(self, server: ServerState, rows: Indices, view: int | None) -> Prediction:
        chunks = split_rows("train", rows, self.batch_size, projected=True, view=view)
        return join(self.backend.predict(server, chunks))
