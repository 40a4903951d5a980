"""Predicting a stream on actors gives this process's bits, also when an actor dies on the way."""

import os
import re
import signal
import threading
import time

import pytest
import ray
import torch
from torch import nn

from coterie.config.schema import ClusterConfig
from coterie.contract.clusterer import Clusterer
from coterie.contract.data import SampleBatch
from coterie.distributed.prediction_actors import PredictionActors
from coterie.errors import ConfigError, InterruptedRunError, RunError
from coterie.execution.batch_predictor import BatchPredictor
from coterie.networks.encoders import ConvNet3
from coterie.networks.heads import ClusterHead
from coterie.run.interrupts import Interrupts

pytestmark = pytest.mark.ray


@pytest.fixture
def model():
    torch.manual_seed(0)
    encoder = ConvNet3(width=8, features=16).build((1, 8, 8))
    return Clusterer(encoder, ClusterHead(16, 16, 10)).eval()


@pytest.fixture
def batches():
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (230, 1, 8, 8), dtype=torch.uint8, generator=draw).numpy()
    return [SampleBatch(images[i : i + 20], (str(i),)) for i in range(0, 230, 20)]


def pool_of(model, actors, **config):
    return PredictionActors(model, ClusterConfig(num_actors=actors, **config), "auto", lambda: None)


def assert_same(given, expected):
    for (a, mine), (b, other) in zip(given, expected, strict=True):
        assert a.names == b.names
        assert torch.equal(mine.embedding, other.embedding)
        assert torch.equal(mine.probabilities, other.probabilities)


def test_actors_give_this_processs_bits_in_order_reading_a_few_batches_ahead(
    cluster, model, batches
):
    pool, read = pool_of(model, 2), []
    given = pool.predict_all(batch for batch in batches if not read.append(batch))
    first = next(given)
    assert len(read) == 4
    assert_same([first, *given], BatchPredictor(model, "cpu", 1).predict_all(batches))
    bad = batches[0]._replace(samples=batches[0].samples[:, :, :3])
    with pytest.raises(RuntimeError, match="size"):  # the model's own error, as it is
        list(pool.predict_all([bad]))
    pool.close()


def kill(pool, actor):
    handle = pool.actors[actor]
    os.kill(ray.get(handle.pid.remote()), signal.SIGKILL)


def test_actors_that_the_cluster_does_not_grant_are_told_of(cluster, model):
    with pytest.raises(RunError) as caught:
        pool_of(model, 2, cpus_per_client=4, start_timeout_s=8)
    assert re.fullmatch(
        r"cluster.start_timeout_s=8: [12] of 2 actors \(4 CPU, 0 GPU each\) were not granted or "
        r"not ready in time; .* is free, and .*; lower cluster.num_actors or add nodes.",
        str(caught.value),
    )
    wait_until(lambda: ray.available_resources().get("CPU") == 6)  # no actor is left


class Stuck(nn.Module):
    """A model that takes longer than anyone waits."""

    def forward(self, samples):
        time.sleep(60)


def test_a_signal_is_heeded_while_a_batch_is_waited_for(cluster, batches):
    with Interrupts() as interrupts:
        pool = PredictionActors(Stuck(), ClusterConfig(num_actors=1), "auto", interrupts.check)
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        with pytest.raises(InterruptedRunError, match="SIGINT came"):
            next(pool.predict_all(batches))
    assert time.monotonic() - began < 20
    pool.close()


def wait_until(done):
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_a_dead_actors_batches_run_on_its_replacement(cluster, model, batches, monkeypatch):
    monkeypatch.setattr(BatchPredictor, "pid", lambda self: os.getpid(), raising=False)
    pool, given = pool_of(model, 2, max_actor_restarts=1), []
    for predicted in pool.predict_all(batches):
        given.append(predicted)
        if len(given) == 3:
            kill(pool, 1)
    assert_same(given, BatchPredictor(model, "cpu", 1).predict_all(batches))
    assert pool.lost == 1
    kill(pool, 0)
    with pytest.raises(
        RunError, match=r"2 actors died, more than cluster\.max_actor_restarts=1 \("
    ):
        list(pool.predict_all(batches))
    pool.close()


def test_a_gpu_that_is_not_there_is_refused(cluster, model):
    if ray.cluster_resources().get("GPU"):
        pytest.skip("there is one")
    with pytest.raises(ConfigError, match="accelerator=cuda: the cluster has no GPU; use"):
        PredictionActors(model, ClusterConfig(num_actors=1), "cuda", lambda: None)
