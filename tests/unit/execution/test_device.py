"""Which device a process may use, where it sees a GPU: an actor only one that it has reserved."""

import os
from dataclasses import replace

import pytest
import torch

from coterie.commands.compose import compose
from coterie.contract.clusterer import Clusterer
from coterie.execution.batch_predictor import BatchPredictor
from coterie.execution.build import build_predictor, build_worker
from coterie.execution.device import device_of
from coterie.execution.serial import SerialBackend
from coterie.networks.encoders import MLP
from coterie.run import fine_tuning
from coterie.run.fine_tuning import FineTuning
from coterie.run.setup import assemble, make_evaluator

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
DIGITS = ("experiment=fedmcc_digits", "data.limit=120")


@pytest.fixture(autouse=True)
def sees_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    yield
    torch.use_deterministic_algorithms(False)


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


def test_a_gpu_computes_in_float32_and_deterministically(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    assert device_of("cpu") == CPU
    assert torch.backends.cudnn.allow_tf32
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    assert device_of("auto") == CUDA
    assert not torch.backends.cudnn.allow_tf32
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    workload = assemble(compose(*DIGITS, "cluster=serial")).workload
    build_worker(workload, stop=lambda: None)
    assert torch.are_deterministic_algorithms_enabled()  # of embeddings and predictions too


@pytest.mark.parametrize(("gpus", "expected"), [(0.0, CPU), (0.5, CUDA), (None, CUDA)])
def test_a_stream_is_predicted_where_its_process_may(monkeypatch, gpus, expected):
    moved = []
    monkeypatch.setattr(Clusterer, "to", lambda self, device: moved.append(device) or self)
    model = Clusterer(MLP(hidden=(4,), features=4).build((1, 8, 8)), None)
    BatchPredictor(model, "auto", 1, gpus)
    assert moved == [expected]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [(("cluster=local",), CPU), (("cluster=local", "cluster.gpus_per_client=0.5"), CUDA)],
)
def test_fine_tuning_takes_the_gpu_of_a_run_that_has_one(monkeypatch, keys, expected):
    seen = []

    def tuned(*given, device, **options):
        seen.append((device, torch.are_deterministic_algorithms_enabled()))
        return {"acc": 1.0, "f1_macro": 1.0}

    monkeypatch.setattr(fine_tuning, "fine_tune", tuned)
    config = compose(*DIGITS, *keys, "evaluation.labelled_shares=[0.1]")
    assembly = assemble(config)
    on_cpu = replace(assembly.workload, config=compose(*DIGITS, "accelerator=cpu"))
    backend = SerialBackend(on_cpu, stop=lambda: None)
    tuning = FineTuning.of(
        config, assembly, make_evaluator(config, assembly, backend), lambda: None
    )
    assert tuning is not None
    tuning.scores(assembly.server, [0.1])
    assert seen == [(expected, expected == CUDA)]
