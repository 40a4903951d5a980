"""Clients with one sample: methods of sums run; of a site, `faults` decides about the others."""

import json

import numpy as np
import pytest

from coterie.jobs.train import main
from tests.builders.runs import SERIAL


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "sites.npz"
    generator = np.random.default_rng(0)
    labels = np.arange(61) % 2
    samples = generator.normal(size=(61, 6)) + 6 * labels[:, None]
    clients = np.repeat(["ann", "bob", "zoe"], [30, 30, 1])
    np.savez(path, samples=samples.astype(np.float32), labels=labels, clients=clients)
    return path


@pytest.mark.parametrize("method", ["kmeans", "kfed", "prototypes", "concord"])
def test_one_site_with_one_sample_refuses_no_method_of_sums(tmp_path, data, method):
    keys = ("data=npz", f"data.path={data}", "partition=by_client", "augmentation=noise")
    run_dir = tmp_path / "run"
    encoder = ("encoder=mlp", "encoder.hidden=[8]", "encoder.features=4")
    arguments = (f"experiment={method}", *keys, *encoder, *SERIAL, f"run_dir={run_dir}")
    assert main([*arguments]) == 0
    assert json.loads((run_dir / "summary.json").read_text())["clients"] == 3


def dealt_out(tmp_path, data, method, samples, *more):
    """Run a method, with a client for each sample by default; return the exit code."""
    split = ("partition=iid", f"partition.clients={samples}", f"data.limit={samples}")
    keys = (f"data.path={data}", "encoder=raw", "augmentation=noise", *split, *SERIAL, *more)
    return main([f"experiment={method}", "data=npz", *keys, f"run_dir={tmp_path / 'run'}"])


@pytest.mark.parametrize(
    ("method", "samples", "more"),
    [("kmeans", 4, ()), ("kfed", 4, ("privacy.k_anonymity=1",)), ("concord", 24, ())],
)
def test_samples_dealt_out_singly_refuse_no_method_of_sums(tmp_path, data, method, samples, more):
    assert dealt_out(tmp_path, data, method, samples, *more) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["clients"] == samples


@pytest.mark.parametrize(
    ("method", "samples", "told"),
    [
        ("concord", 18, "take method=kmeans"),
        ("prototypes", 18, "take method=kmeans"),
        ("kfed", 4, "clusters of privacy.k_anonymity=2 samples or more"),
    ],
)
def test_too_few_samples_are_refused_before_the_run(tmp_path, data, method, samples, told, capsys):
    assert dealt_out(tmp_path, data, method, samples) == 2
    assert told in capsys.readouterr().err


def test_clients_of_two_samples_send_a_centroid_of_both(tmp_path, data):
    assert dealt_out(tmp_path, data, "kfed", 8, "partition.clients=4") == 0


def test_a_method_that_needs_two_fails_for_that_site_alone(tmp_path, data):
    keys = ("data=npz", f"data.path={data}", "partition=by_client", "augmentation=noise")
    run_dir = tmp_path / "run"
    few = ("method.rounds=1", "faults.on_client_failure=drop")
    arguments = ("experiment=simclr", *keys, "encoder=mlp", *few, *SERIAL, f"run_dir={run_dir}")
    assert main([*arguments]) in (0, 3)
    assert json.loads((run_dir / "summary.json").read_text())["status"] == "completed"
