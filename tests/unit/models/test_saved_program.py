"""What a saved model's program holds: every head of the shipped methods can be exported."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from coterie import load_model
from coterie.contract.clusterer import Clusterer
from coterie.errors import DataError
from coterie.models.saved_program import load_program, write_program
from coterie.modules.soft_clusters import SoftClusters
from coterie.networks.heads import Centroids, FuzzyCentroids
from coterie.networks.lattice_softmax import LatticeSoftmax
from coterie.networks.prototypes import UnitPrototypes
from coterie.networks.quadratic import QuadraticClassifier
from coterie.run.federation import RunResult

HEADS = (
    Centroids(torch.randn(3, 4)),
    FuzzyCentroids(torch.randn(3, 4), 2.0),
    SoftClusters(3, 4),
    UnitPrototypes(
        points=torch.randint(-4096, 4096, (3, 4), dtype=torch.int32),
        counts=torch.ones(3, dtype=torch.float64),
        members=torch.eye(3, dtype=torch.float64),
        temperature=torch.tensor(0.5, dtype=torch.float64),
    ),
    QuadraticClassifier(torch.randint(-(2**20), 2**20, (8, 3)), 4),
    LatticeSoftmax(torch.randint(-(2**20), 2**20, (5, 3))),
)


def test_a_run_leaves_its_model_as_a_program(finished_run: RunResult) -> None:
    folder = finished_run.run_dir / "model"
    program, model = load_program(folder), load_model(folder).eval()
    assert program is not None
    samples = torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8)
    for found, wanted in zip(program(samples), model(samples), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("head", HEADS, ids=lambda head: type(head).__name__)
def test_a_head_is_exported_and_gives_the_same_probabilities(
    head: nn.Module, tmp_path: Path
) -> None:
    model = Clusterer(nn.Identity())
    model.head = head
    model.eval()
    for buffer in model.buffers():  # views of one storage, as what came in a message
        buffer.set_(torch.stack([buffer.clone(), buffer.clone()])[1])
    samples = torch.nn.functional.normalize(torch.randn(7, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_program(tmp_path, model, samples[:1])
    program = load_program(tmp_path)
    assert program is not None
    assert torch.equal(program(samples).probabilities, model(samples).probabilities)


def test_a_program_much_larger_than_the_weights_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "model.pt2").touch()
    os.truncate(tmp_path / "model.pt2", 1 << 40)
    with pytest.raises(DataError, match=r"model\.pt2: larger than \d+ KiB; copy the model again"):
        load_program(tmp_path)


ELSEWHERE = """
import sys, torch
program = torch.export.load(sys.argv[1]).module()
found = program(torch.load(sys.argv[2]))
assert type(found) is tuple and not any(name.startswith("coterie") for name in sys.modules)
torch.save(found, sys.argv[3])
"""


@pytest.mark.parametrize(
    "head",
    [pytest.param(None, marks=pytest.mark.slow), HEADS[0]],
    ids=["no clusters", "clusters"],
)
def test_a_process_without_coterie_loads_and_runs_it(
    head: nn.Module | None, tmp_path: Path
) -> None:
    model = Clusterer(nn.Flatten(), head).eval()
    samples = torch.randint(0, 256, (7, 1, 2, 2), dtype=torch.uint8)
    write_program(tmp_path, model, samples[:1])
    torch.save(samples, tmp_path / "samples.pt")
    command = [sys.executable, "-I", "-c", ELSEWHERE, "model.pt2", "samples.pt", "found.pt"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    embedding, probabilities = torch.load(tmp_path / "found.pt")
    assert torch.equal(embedding, model(samples).embedding)
    assert (probabilities is None) == (head is None)
    assert head is None or torch.equal(probabilities, model(samples).probabilities)


@pytest.mark.parametrize("shape", [(2, 7), (2, 1, 6), (2,), (2, 6, 6)])
def test_samples_that_a_program_cannot_take_are_told_in_a_sentence(tmp_path, shape) -> None:
    write_program(tmp_path, Clusterer(nn.Linear(6, 4), Centroids(torch.eye(4))), torch.zeros(1, 6))
    program = load_program(tmp_path)
    assert program is not None
    with pytest.raises(DataError, match=r"^The model's program cannot take samples of ") as caught:
        program(torch.zeros(shape))
    assert "\n" not in str(caught.value)
