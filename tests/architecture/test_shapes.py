"""Shapes in annotations are checked in tests, and only there."""

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError

from coterie.clustering.fuzzy import ratio_where_positive
from coterie.contract.client import ClientData
from coterie.contract.clusterer import to_unit
from coterie.contract.data import SampleBatch, Survey
from coterie.errors import ContractError
from coterie.losses.cosine import negative_cosine
from coterie.losses.triplet import crossed_losses
from coterie.peers.samples_importance import member_weights

PAIR = torch.ones(2, 3)
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "call",
    [
        lambda: crossed_losses(PAIR, PAIR, torch.ones(4, 1), 1.0),
        lambda: ratio_where_positive(PAIR, torch.ones(1), PAIR),
        lambda: member_weights(torch.ones(2, dtype=torch.int64), torch.zeros(2).long(), 1.0),
        lambda: ClientData(samples=np.ones((4, 3)), rows=np.arange(2.0)),
        lambda: to_unit(torch.tensor(1.0)),
        lambda: Survey(size=1, shape=(3,), dtype="uint8", classes=["a"], labelled=False),
    ],
    ids=["losses", "clustering", "peers", "client", "clusterer", "data"],
)
def test_a_wrong_shape_or_type_is_an_error_even_where_it_would_compute(call) -> None:
    with pytest.raises(TypeCheckError):
        call()


def test_a_function_that_refuses_a_shape_itself_raises_its_own_sentence() -> None:
    with pytest.raises(ContractError, match="give it two matrices of one shape"):
        negative_cosine(PAIR, PAIR[:1])


def test_an_int_is_a_float_and_a_batch_needs_no_names() -> None:
    assert crossed_losses(PAIR, PAIR, PAIR, 1).shape == (2, 2)
    assert SampleBatch(np.ones((1, 2))).names is None


def test_production_checks_nothing() -> None:
    code = (
        "import sys, torch\n"
        "from coterie.losses.triplet import crossed_losses\n"
        "pair = torch.ones(2, 3)\n"
        "assert crossed_losses(pair, pair, torch.ones(4, 1), 1.0).shape == (2, 4)\n"
        "assert 'beartype' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_shapes_are_of_ndarray_itself() -> None:
    # From NumPy 2.5 on, which needs Python 3.12, NDArray is an alias that jaxtyping 0.3 refuses.
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("platform", "modules", "datamodules", "ray_jobs")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Subscript) and _is_shape_of(node.slice, "NDArray")
    ]
    assert wrong == []


def _is_shape_of(part: ast.expr, name: str) -> bool:
    """Whether it is `name[...], "a shape"`."""
    match part:
        case ast.Tuple(elts=[ast.Subscript(value=ast.Name(id=found)), ast.Constant(value=str())]):
            return found == name
    return False
