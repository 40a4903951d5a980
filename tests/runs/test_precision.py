"""A whole small run in each precision that the config offers, and its figures in bfloat16."""

from typing import get_args

import numpy as np
import pytest
import torch

from coterie.config.schema import Precision
from coterie.contract.data import DataArrays
from coterie.evaluation.scorer import Evaluation
from coterie.run.outputs import draw_evaluation
from tests.builders.runs import train

SCORED = (
    "evaluation.every=1",
    "evaluation.linear_probe=true",
    "evaluation.knn=true",
    "evaluation.unsupervised=true",
)
STANDING = ("method.momentum=1", "method.clustering_momentum=1")
"""Targets that stand still, for bfloat16 loses the steps of those that follow."""
DTYPES = {"64-true": torch.float64, "bf16-true": torch.bfloat16}


@pytest.mark.ci
@pytest.mark.parametrize("precision", sorted({*get_args(Precision)} - {"16-mixed"}))  # needs a GPU
def test_a_run_in_each_precision_is_scored_and_saved(tmp_path, precision):
    standing = STANDING if precision == "bf16-true" else ()
    result = train(tmp_path / "run", f"precision={precision}", *standing, *SCORED)
    assert {"clustering", "linear", "knn", "unsupervised"} <= result.metrics.keys()
    weights = {w.dtype for w in result.model.parameters()}
    assert weights == {DTYPES.get(precision, torch.float32)}


def test_figures_of_a_bfloat16_model(tmp_path):
    data = DataArrays(
        name="six",
        samples=np.zeros((6, 2), dtype=np.float32),
        labels=np.arange(6) % 2,
        classes=("a", "b"),
    )
    embedding = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    evaluation = Evaluation(
        metrics={}, embedding=embedding.bfloat16(), assignments=None, confidence=None, table=None
    )
    drawn = draw_evaluation(tmp_path, evaluation, data, seed=0, line="a run", tell=pytest.fail)
    assert {path.name for path in drawn} == {"tsne.png", "class_distances.png"}
