"""Test sets of the clients' own: their proportions, sizes, scores and refusals."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score

from coterie.commands.compose import compose
from coterie.contract.clusterer import Prediction
from coterie.contract.data import DataArrays
from coterie.datamodules.partition_configs import IID, Grouped
from coterie.errors import ConfigError, DataError
from coterie.evaluation.classification_metrics import f1_and_auroc
from coterie.evaluation.local_test_sets import LocalTestEvaluator, local_test_rows
from coterie.run.setup import assemble


def data_of(labels: Any, test_labels: Any) -> DataArrays:
    labels, test = np.asarray(labels), np.asarray(test_labels)
    return DataArrays(
        name="numbers",
        samples=np.zeros((len(labels), 1), np.float32),
        labels=labels,
        test_samples=np.zeros((len(test), 1), np.float32),
        test_labels=test,
        classes=tuple("0123456789"),
    )


def counts(labels: Any, rows: Any) -> np.ndarray:
    return np.bincount(np.asarray(labels)[rows], minlength=10)


def test_a_client_is_tested_on_as_many_of_each_class_as_it_learns_from() -> None:
    data = data_of(np.repeat(np.arange(10), 600), np.repeat(np.arange(10), 700))
    parts = Grouped(clients=60).split(data, 3)
    rows = local_test_rows(data, parts, 1.0, 0)
    for part, own in zip(parts, rows, strict=True):
        assert (counts(data.labels, part) == counts(data.test_labels, own)).all()
        assert sorted(counts(data.test_labels, own))[-4:] == [5, 5, 20, 20]
        assert (np.diff(own) > 0).all()
    together = np.concatenate(rows)
    assert len(np.unique(together)) == len(together) == 3000


@pytest.mark.parametrize("ratio", [0.5, 1.0, 7.0])
def test_proportions_stay_where_the_test_set_is_small(ratio: float) -> None:
    draw = np.random.default_rng(1)
    data = data_of(draw.integers(0, 10, 5000), draw.integers(0, 10, 900))
    parts = IID(clients=7).split(data, 2)
    rows = local_test_rows(data, parts, ratio, 0)
    own = np.array([counts(data.labels, part) for part in parts])
    factor = min(ratio, (np.bincount(data.test_labels) / own.sum(axis=0)).min())
    assert factor < 0.5
    found = np.array([counts(data.test_labels, part) for part in rows])
    assert abs(found - factor * own).max() < 1
    assert abs(found.sum(axis=0) - factor * own.sum(axis=0)).max() <= 0.5


def test_other_seeds_give_other_samples_and_equal_ones_the_same() -> None:
    data = data_of(np.repeat(np.arange(10), 50), np.repeat(np.arange(10), 80))
    parts = IID(clients=3).split(data, 0)
    one, same, other = (local_test_rows(data, parts, 1.0, seed) for seed in (0, 0, 1))
    assert all((a == b).all() for a, b in zip(one, same, strict=True))
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(one, other, strict=True))


def test_a_class_that_is_not_held_out_is_refused() -> None:
    data = data_of([0, 0, 1, 1], [0, 0])
    with pytest.raises(DataError, match="has no sample of class 1, which clients have"):
        local_test_rows(data, [np.arange(4)], 1.0, 0)


@dataclass
class Backend:
    """Gives fixed probabilities by client."""

    probabilities: dict[int, torch.Tensor]
    asked: list[Any] = field(default_factory=list)

    def predict(self, server: Any, chunks: Any) -> list[Prediction]:
        self.asked += chunks
        return [
            Prediction(torch.zeros(len(c.rows), 1), self.probabilities[c.client]) for c in chunks
        ]


def test_accuracy_is_the_mean_over_clients_and_the_rest_is_pooled() -> None:
    draw = torch.Generator().manual_seed(0)
    given = {k: torch.rand(n, 4, generator=draw).softmax(dim=1) for k, n in ((0, 30), (2, 9))}
    labels = np.random.default_rng(0).integers(0, 4, 60)
    rows = [np.arange(30), np.arange(0), np.arange(40, 49)]
    backend = Backend(given)
    found = LocalTestEvaluator(backend=backend, rows=rows, labels=labels, batch_size=16).scores(
        None
    )
    assert [(c.split, c.client, len(c.rows)) for c in backend.asked] == [
        ("test", 0, 30),
        ("test", 2, 9),
    ]
    hits = [np.mean(given[k].argmax(dim=1).numpy() == labels[rows[k]]) for k in (0, 2)]
    assert found["acc"] == pytest.approx(np.mean(hits), abs=1e-12)
    pooled, true = torch.cat([given[0], given[2]]).numpy(), labels[np.r_[0:30, 40:49]]
    for average in ("macro", "weighted"):
        f1 = f1_score(true, pooled.argmax(axis=1), average=average)
        assert found[f"f1_{average}"] == pytest.approx(f1, abs=1e-12)
        for kind in ("ovr", "ovo"):
            area = roc_auc_score(true, pooled.astype(float), multi_class=kind, average=average)
            assert found[f"auroc_{kind}_{average}"] == pytest.approx(area, abs=1e-9)


def test_classes_without_a_sample_have_no_curve() -> None:
    p = np.array([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7], [0.4, 0.3, 0.3], [0.3, 0.1, 0.6]])
    found = f1_and_auroc(p, np.array([0, 2, 2, 2]))
    assert found["auroc_ovr_macro"] == pytest.approx(1.0)
    assert found["auroc_ovo_weighted"] == pytest.approx(1.0)
    assert set(f1_and_auroc(p, np.zeros(4, np.int64))) == {"f1_macro", "f1_weighted"}
    with pytest.raises(DataError, match=r"labels \(0,\): give"):
        f1_and_auroc(p[:0], np.zeros(0, np.int64))


@pytest.mark.parametrize(
    ("overrides", "kind", "sentence"),
    [
        (("experiment=fedavg_digits", "data.split=all"), DataError, "no labelled test samples"),
        (("experiment=fedmcc_digits", "data.split=train"), ConfigError, "learns no classes"),
    ],
)
def test_runs_that_cannot_be_tested_so_are_refused(
    overrides: Any, kind: Any, sentence: str
) -> None:

    with pytest.raises(kind, match=sentence):
        assemble(compose(*overrides, "evaluation.local_tests=true"))


def test_a_ratio_that_leaves_nobody_a_sample_is_refused() -> None:
    data = data_of(np.repeat(np.arange(10), 6), np.repeat(np.arange(10), 7))
    with pytest.raises(DataError, match=r"local_test_ratio=0\.001: no client gets a test sample"):
        local_test_rows(data, IID(clients=3).split(data, 0), 0.001, 0)
