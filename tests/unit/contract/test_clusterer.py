"""torch.export of models with a dynamic batch: the same outputs, read back from a file."""

import pytest
import torch

from coterie import load_model
from coterie.contract.clusterer import Clusterer
from coterie.networks.encoders import MLP, ConvNet3
from coterie.networks.heads import Centroids, ClusterHead
from coterie.networks.resnet import ResNet

ENCODERS = {
    "conv3": (ConvNet3(width=8), (1, 8, 8)),
    "mlp": (MLP(hidden=(16,), features=8), (20,)),
    "resnet18": (ResNet(), (3, 16, 16)),
}


def batch(size, shape):
    torch.manual_seed(size)
    images = torch.randint(0, 256, (size, *shape), dtype=torch.uint8)
    return images if len(shape) == 3 else torch.randn(size, *shape)


def through_a_file(model, shape, path):
    dynamic = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(model, (batch(2, shape),), dynamic_shapes=dynamic)
    torch.export.save(program, path)
    return torch.export.load(path).module()


def assert_equal_outputs(model, program, shape):
    for size in (1, 3, 65):
        samples = batch(size, shape)
        with torch.inference_mode():
            expected, given = model(samples), program(samples)
        torch.testing.assert_close(given.embedding, expected.embedding, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(
            given.probabilities, expected.probabilities, atol=1e-6, rtol=1e-6
        )
        assert torch.equal(given.probabilities.argmax(1), expected.probabilities.argmax(1))


@pytest.mark.parametrize("name", ENCODERS)
def test_any_batch_size_gives_the_models_outputs(name, tmp_path):
    config, shape = ENCODERS[name]
    torch.manual_seed(0)
    encoder = config.build(shape)
    model = Clusterer(encoder, ClusterHead(encoder.features, 16, 10)).eval()
    assert_equal_outputs(model, through_a_file(model, shape, tmp_path / "m.pt2"), shape)


def test_centroids_are_exported_too(tmp_path):
    config, shape = ENCODERS["mlp"]
    torch.manual_seed(0)
    model = Clusterer(config.build(shape), Centroids(torch.randn(10, 8))).eval()
    assert_equal_outputs(model, through_a_file(model, shape, tmp_path / "m.pt2"), shape)


def test_a_finished_runs_model_is_exported_as_its_docstring_says(finished_run, tmp_path):
    model = load_model(finished_run.run_dir)
    assert_equal_outputs(model, through_a_file(model, (1, 8, 8), tmp_path / "m.pt2"), (1, 8, 8))
