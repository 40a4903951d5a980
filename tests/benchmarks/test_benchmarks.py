"""The benchmarks still run: small versions of what `make bench` measures."""

import pytest

from tests.benchmarks import (
    checkpoints,
    large_batches,
    masks,
    own_module,
    profile_steps,
    rounds,
    small_clients,
    streaming,
    training_rate,
)


def test_large_batches_take_both_kinds_of_step():
    for micro in (0, 4):
        seen = large_batches.one("conv3", 10, micro, "natural", 1)
        assert len(seen["seconds"]) == 1
        assert seen["peak"] > 100


def test_small_clients_run_their_tasks():
    seconds = small_clients.measure(2)
    assert {name: len(values) for name, values in seconds.items()} == dict.fromkeys(seconds, 2)


def test_streaming_reads_what_it_has_written(tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "BATCH", 4)
    monkeypatch.setattr(streaming, "BATCHES", 1)
    assert streaming.write(tmp_path / "shards", 20) > 20_000
    for stream in (True, False):
        assert streaming.read(tmp_path / "shards", stream)["images_s"] > 1
    assert {len(values) for values in streaming.train(tmp_path / "shards", 1).values()} == {1}


def test_a_module_of_ones_own_takes_turns_with_a_plain_trainer():
    (pair,) = own_module.measure(own_module.perceptron, {"backend": "serial"}, turns=1, steps=2)
    assert [len(part) for part in pair] == [2, 2]
    assert min(seconds for seconds, _ in pair) > 0


@pytest.mark.ray
@pytest.mark.slow
def test_rounds_that_do_nothing():
    seen = rounds.measure(clients=4, rounds=2)
    assert len(seen.seconds) == len(seen.actors) == 2
    assert min(seen.actors) > 100


def test_masks_are_measured():
    assert masks.table(((3, 100),), repeats=1).splitlines()[-1].startswith("| 3 | 100 | ")


def test_checkpoints_are_measured(monkeypatch):
    monkeypatch.setattr(checkpoints, "LATER", 1)
    (first, _, _), (later, _, _) = checkpoints.measure(3000)
    assert later < 0.5 * first


def test_a_profile_has_all_parts_and_operations(monkeypatch):
    network = ("data=digits", "encoder=mlp", "encoder.hidden=[]", "encoder.features=8")
    monkeypatch.setitem(profile_steps.NETWORKS, "small", (*network, "augmentation=mild"))
    monkeypatch.setitem(profile_steps.IMAGES, "small", 32)
    seconds, operations, images = profile_steps.measure("SimCLR", "small", "32-true")
    assert images == 32
    assert set(seconds) == set(profile_steps.PARTS)
    assert min(seconds.values()) > 0
    weights = 64 * 8 + 8 * 256 + 256 * 256
    # Two views, each 2 operations a weight forward, 4 backward but 2 for the first layer; the loss
    # compares 64 projections with each other.
    layers = 2 * 32 * (6 * weights - 2 * 64 * 8)
    assert operations - layers == pytest.approx(3 * 2 * 64 * 64 * 256, rel=0.5)


def test_a_rate_is_of_the_rounds_behind_the_first():
    keys = ("experiment=simclr_digits", "cluster=serial", "data.limit=32", "executor=bare")
    small = ("method.rounds=3", "method.epochs=1", "method.batch_size=16", "encoder=mlp")
    seen = training_rate.rate(32, *keys, *small)
    assert seen.images > 1
    assert seen.first > 0
