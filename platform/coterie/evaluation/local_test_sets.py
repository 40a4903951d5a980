"""Test sets with each client's class proportions, and the evaluator that uses them.

CP-CFL's measure (Tun et al., section 4.1): "local testing sets that follow each client's data
distribution by sampling from the testing portion of the dataset"; the test accuracy is the mean of
the clients' own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.contract.data import DataArrays, Indices
from coterie.contract.phase import ServerState
from coterie.errors import ContractError, DataError
from coterie.evaluation.classification_metrics import f1_and_auroc
from coterie.execution.backend import Backend
from coterie.execution.predictor import Chunk, join


@dataclass(frozen=True, kw_only=True)
class LocalTestEvaluator:
    """Scorer of every client's model on the client's own test set."""

    backend: Backend
    rows: Sequence[Indices]
    labels: NDArray[np.int64]
    batch_size: int

    def scores(self, server: ServerState) -> dict[str, float]:
        """Return mean accuracy over clients, "acc", and F1 and AUROC over all predictions together.

        See `f1_and_auroc` for the latter. A client without a test sample does not count.
        """
        clients = [client for client, own in enumerate(self.rows) if len(own)]
        found = self.backend.predict(server, [self._chunk(client) for client in clients])
        labels = [self.labels[self.rows[client]] for client in clients]
        probabilities = join(found).probabilities
        if probabilities is None:
            raise ContractError("A classifier gave no probabilities; give its Clusterer a head.")
        pooled = probabilities.float().numpy()
        each = torch.split(probabilities.argmax(dim=1), [len(own) for own in labels])
        hits = [np.mean(ours.numpy() == own) for ours, own in zip(each, labels, strict=True)]
        return {
            "acc": float(np.mean(hits)),
            **f1_and_auroc(pooled, np.concatenate(labels)),
        }

    def _chunk(self, client: int) -> Chunk:
        rows = self.rows[client]
        return Chunk(split="test", rows=rows, batch_size=self.batch_size, client=client)


def local_test_rows(
    data: DataArrays, parts: Sequence[Indices], ratio: float, seed: int
) -> list[Indices]:
    """Split the test set over the clients: `ratio` test samples per training sample and class.

    If the test set has too few samples of a class, all counts shrink by one factor, so that the
    clients' class proportions are kept. The sets are disjoint and drawn at random.

    Args:
        data: Classes of the training and the test samples; those of class −1 are left out.
        parts: Each client's training rows.
        ratio: Test samples per training sample.
        seed: Seed of the draw.

    Returns:
        Each client's rows of the test set, sorted.

    Raises:
        DataError: If there is no test set, there are no labels, or no client gets a sample.
    """
    labels, test_labels = data.labels, data.test_labels
    if labels is None or test_labels is None:
        raise DataError(
            f"evaluation.local_tests=true: data={data.name} has no labelled test samples; use "
            "data.split=train, or data that has a test set."
        )
    rng, classes = np.random.default_rng(seed), np.unique(labels[labels >= 0])
    held = {c: np.flatnonzero(test_labels == c) for c in classes}
    own = {c: np.array([np.count_nonzero(labels[part] == c) for part in parts]) for c in classes}
    wanted = [c for c in classes if own[c].sum()]
    factor = min([ratio, *(len(held[c]) / own[c].sum() for c in wanted)])
    if not factor:
        missing = next(c for c in wanted if not len(held[c]))
        raise DataError(
            f"evaluation.local_tests=true: the test set of data={data.name} has no sample of class "
            f"{missing}, which clients have; choose data whose test set has every class."
        )
    rows: list[list[Indices]] = [[] for _ in parts]
    for c in wanted:
        # Rounded cumulative sums, so that the shares of a class add up for any factor.
        ends = np.floor(np.cumsum(own[c]) * factor + 0.5).astype(np.int64)
        shares = np.split(rng.permutation(held[c]), np.minimum(ends, len(held[c])))
        for client, share in enumerate(shares[:-1]):
            rows[client].append(share)
    if not any(len(share) for own_rows in rows for share in own_rows):
        raise DataError(
            f"evaluation.local_test_ratio={ratio:g}: no client gets a test sample; raise it."
        )
    return [np.sort(np.concatenate(own_rows)).astype(np.int64) for own_rows in rows]
