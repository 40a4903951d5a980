"""A model's ONNX file gives the model's outputs, for any number of samples."""

import numpy as np
import onnxruntime
import pytest
import torch

from coterie import load_model
from coterie.contract.clusterer import Clusterer
from coterie.errors import DataError
from coterie.jobs.export import main
from coterie.models import onnx_file
from coterie.models.onnx_file import write_onnx
from coterie.networks.heads import Centroids, ClusterHead, FuzzyCentroids, UnitLength
from coterie.networks.quadratic import QuadraticClassifier


class Flat(torch.nn.Module):
    """As the embedding, samples in a row."""

    features = 4

    def forward(self, samples):
        return samples.flatten(1).float() * 2


class Uneven(Flat):
    """A network that depends on values, which no exporter takes."""

    def forward(self, samples):
        return super().forward(samples) if samples.sum() > 0 else samples.flatten(1).float()


def test_a_run_is_exported_and_checked(finished_run, tmp_path, capsys):
    out = tmp_path / "a b.onnx"
    assert main([f"model={finished_run.run_dir}", f"out={out}"]) == 0
    assert "ONNX Runtime gives PyTorch's outputs, " in capsys.readouterr().out.replace("\n", " ")
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    model = load_model(finished_run.run_dir)
    (given,) = session.get_inputs()
    for number in (1, 5):
        samples = torch.randint(0, 256, (number, *given.shape[1:]), dtype=torch.uint8)
        found = session.run(["embedding", "probabilities"], {"samples": samples.numpy()})
        with torch.inference_mode():
            expected = model(samples)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other.numpy(), rtol=1e-3, atol=1e-4)


def test_a_program_is_written_too(finished_run, tmp_path):
    out = tmp_path / "model.pt2"
    assert main([f"model={finished_run.run_dir}", "format=pt2", f"out={out}"]) == 0
    samples = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
    embedding, _ = torch.export.load(out).module()(samples)
    assert torch.allclose(embedding, load_model(finished_run.run_dir)(samples).embedding)


@pytest.mark.ci
@pytest.mark.parametrize(
    "head",
    [
        Centroids(torch.rand(3, 4)),
        FuzzyCentroids(torch.rand(3, 4), 1.5),
        ClusterHead(4, 8, 3),
        QuadraticClassifier(torch.randint(-(2**20), 2**20, (5, 3)), 4),
        QuadraticClassifier(torch.randint(-(2**20), 2**20, (5 + 3, 3)), 4),
        torch.nn.Sequential(UnitLength(), Centroids(torch.rand(3, 4))),
    ],
    ids=lambda head: type(head).__name__,
)
def test_every_head_has_a_form_in_onnx(tmp_path, head):
    model = Clusterer(Flat(), head).eval()
    assert write_onnx(tmp_path / "m.onnx", model, torch.rand(3, 4)) < 1e-4


class Special(Flat):
    """A network with an operation that ONNX lacks."""

    def forward(self, samples):
        return super().forward(samples).kthvalue(2, keepdim=True).values


def test_the_operation_that_onnx_lacks_is_named(tmp_path):
    with pytest.raises(DataError, match=r"No ONNX function found for .*kthvalue"):
        write_onnx(tmp_path / "m.onnx", Clusterer(Special(), None), torch.ones(3, 4))


def test_a_network_without_a_form_in_onnx_is_refused_and_leaves_no_file(tmp_path):
    with pytest.raises(DataError, match="the network cannot be converted to ONNX"):
        write_onnx(tmp_path / "m.onnx", Clusterer(Uneven(), None), torch.ones(3, 4))
    assert list(tmp_path.iterdir()) == []


def test_other_outputs_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "_apart", lambda *_: 0.5)
    with pytest.raises(DataError, match=r"differ from the model's by 0\.5"):
        write_onnx(tmp_path / "m.onnx", Clusterer(Flat(), None), torch.ones(3, 4))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named(finished_run, monkeypatch, capsys):
    monkeypatch.setattr(onnx_file, "_NEEDED", ("onnx", "no_such_package"))
    assert main([f"model={finished_run.run_dir}"]) == 2
    assert "pip install 'coterie[onnx]'" in capsys.readouterr().err.replace("\n", " ")
