"""Which device a process may use, where it sees a GPU: an actor only one that it has reserved."""

import pytest
import torch

from coterie.commands.compose import compose
from coterie.contract.clusterer import Clusterer
from coterie.execution.batch_predictor import BatchPredictor
from coterie.execution.build import build_predictor, build_worker
from coterie.networks.encoders import MLP
from coterie.run.evaluate_run import RunEvaluation
from coterie.run.setup import assemble

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
DIGITS = ("experiment=fedmcc_digits", "data.limit=120")


@pytest.fixture(autouse=True)
def sees_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (("cluster=local",), CPU),
        (("cluster=local", "cluster.gpus_per_client=0.25"), CUDA),
        (("cluster=local", "cluster.gpus_per_client=0.25", "accelerator=cpu"), CPU),
        (("cluster=serial",), CUDA),
        (("cluster=serial", "accelerator=cpu"), CPU),
    ],
)
def test_clients_use_a_gpu_only_if_their_actor_has_one(keys, expected):
    workload = assemble(compose(*DIGITS, *keys)).workload
    worker = build_worker(workload, stop=lambda: None)
    assert worker.device == expected
    assert worker.trainer.accelerator == expected.type
    assert build_predictor(worker, workload, stop=lambda: None).device == expected


@pytest.mark.parametrize(("accelerator", "expected"), [("auto", CUDA), ("cpu", CPU)])
def test_the_driver_uses_its_own(accelerator, expected):
    config = compose(*DIGITS, "cluster=local", f"accelerator={accelerator}")
    assert RunEvaluation(config, directory=None, checkpoint="latest").device == expected


@pytest.mark.parametrize(("gpus", "expected"), [(0.0, CPU), (0.5, CUDA), (None, CUDA)])
def test_a_stream_is_predicted_where_its_process_may(monkeypatch, gpus, expected):
    moved = []
    monkeypatch.setattr(Clusterer, "to", lambda self, device: moved.append(device) or self)
    model = Clusterer(MLP(hidden=(4,), features=4).build((1, 8, 8)), None)
    BatchPredictor(model, "auto", 1, gpus)
    assert moved == [expected]
