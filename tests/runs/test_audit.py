"""`coterie audit`: a run's messages, the fewest samples behind each, and attacks on the model."""

import json
import shutil
import stat

import numpy as np
import pytest

from coterie.jobs.audit import main
from coterie.jobs.train import main as train
from coterie.tracking.run_directory import RunDirectory
from tests.builders.every_method import CHOICES, small
from tests.builders.runs import COMMAND

QUIET = tuple(key for key in COMMAND if key.startswith(("evaluation.", "tracking.")))
SERIAL = ("cluster=serial", "executor=bare", *QUIET)


def trained(folder, *keys):
    assert train([*keys, *SERIAL, f"run_dir={folder}"]) == 0
    return folder


def audited(folder, *arguments):
    assert main([f"run={folder}", *arguments]) == 0
    return json.loads((folder / "audit.json").read_text())


def messages(record):
    return {(sent["type"], sent["key"]): sent for sent in record["messages"]}


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").open()]


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """Noise with random classes: 50 training samples, and as many held-out ones."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("data") / "noise.npz"
    samples = rng.random((100, 16), dtype=np.float32)
    labels = rng.integers(3, size=100)
    np.savez(
        path,
        samples=samples[:50],
        labels=labels[:50],
        test_samples=samples[50:],
        test_labels=labels[50:],
    )
    held = ("data.test_samples=test_samples", "data.test_labels=test_labels")
    return ("data=npz", f"data.path={path}", *held, "augmentation=noise", "partition=iid")


@pytest.fixture(scope="module")
def overfitted(tmp_path_factory, vectors):
    wide = ("encoder=mlp", "encoder.hidden=[128]", "encoder.features=64")
    long = ("method.rounds=2", "method.epochs=60", "method.batch_size=8")
    rate = ("method.learning_rate=0.3",)
    base = ("experiment=fedavg_digits", "partition.clients=2")
    return trained(tmp_path_factory.mktemp("runs") / "over", *base, *vectors, *wide, *long, *rate)


def test_an_overfitted_classifier_is_found(overfitted, capsys):
    record = audited(overfitted)
    found = record["membership"]["loss"]
    assert (found["members"], found["others"]) == (50, 50)
    assert found["auc_interval"][0] > 0.5
    blank = record["membership"]["loss, untrained"]
    assert blank["auc_interval"][0] < 0.5 < blank["auc_interval"][1]
    shown = capsys.readouterr().out
    assert all(sentence in " ".join(shown.split()) for sentence in record["conclusions"])
    assert max(map(len, shown.splitlines()[:-1])) <= 80
    assert audited(overfitted) == record
    mode = stat.S_IMODE(RunDirectory(overfitted).audit.stat().st_mode)
    assert mode == 0o600


def test_the_messages_of_a_run_add_up_to_its_bytes(overfitted):
    sent = messages(audited(overfitted))
    (server, *_) = [row for row in rows(overfitted) if row["scope"] == "server"]
    summary = json.loads((overfitted / "summary.json").read_text())
    assert {key for kind, key in sent if kind == "slot"} == {
        name.removeprefix("bytes/up/") for name in server if name.startswith("bytes/up/")
    } - {"metrics"}
    assert sum(each["bytes"] for each in sent.values()) == summary["bytes"]["up"]
    slot = sent["slot", "encoder"]
    assert (slot["phases"], slot["clients"], slot["samples"], slot["summed"]) == (2, 2, 25, 0)
    assert sent["metric", "loss"]["samples"] == 25


def test_centroids_and_sums_stand_for_their_smallest_cluster(vectors, tmp_path):
    keys = (*small("kmeans"), *vectors, "data.limit=null", "encoder=raw", "partition.clients=2")
    record = audited(trained(tmp_path / "run", *keys, "method.clusters=8"))
    sent = messages(record)
    assert sent["slot", "moments"]["samples"] == 25
    assert 1 <= sent["slot", "sums"]["samples"] <= 25 // 8
    assert set(record["membership"]) == {"centroids"}


def test_under_masks_the_sum_counts(vectors, tmp_path):
    keys = (*small("kmeans"), *vectors, "data.limit=null", "encoder=raw", "partition.clients=2")
    mask = "privacy.secure_aggregation=true"
    record = audited(trained(tmp_path / "run", *keys, "method.clusters=4", mask))
    sent = messages(record)
    assert (sent["slot", "moments"]["samples"], sent["slot", "moments"]["summed"]) == (50, 2)
    assert 1 <= sent["slot", "sums"]["samples"] <= 50 // 4
    assert ("keys", "secure_aggregation") in sent
    assert record["privacy"]["secure_aggregation"] is True


@pytest.mark.ci
@pytest.mark.parametrize(
    ("choice", "key", "fewest"),
    [
        ("kfed", ("gathered", "centroids"), 2),  # privacy.k_anonymity
        ("orchestra", ("gathered", "centroids"), 2),
        ("prototypes", ("gathered", "points"), 3),
        ("cfcl", ("peer_message", "reserve_samples"), 1),
        ("ffcm", ("gathered", "centroids"), 1),
    ],
)
def test_the_fewest_samples_behind_what_methods_send(choice, key, fewest, tmp_path):
    record = audited(trained(tmp_path / "run", *small(choice)), "samples=50")
    assert messages(record)[key]["samples"] >= fewest
    if choice == "cfcl":
        assert messages(record)[key]["samples"] == 1
    assert record["membership"] == {}
    assert record["note"].startswith("The model is not attacked")


def test_a_resumed_run_counts_each_phase_once(tmp_path):
    keys = (*small("fedavg"), "checkpoint.every=1")
    once = messages(audited(trained(tmp_path / "once", *keys, "method.rounds=3")))
    trained(tmp_path / "twice", *keys, "method.rounds=2")
    twice = trained(tmp_path / "twice", *keys, "method.rounds=3", "resume=true")
    assert messages(audited(twice)) == once


def test_an_encoder_is_attacked_by_its_views(vectors, tmp_path):
    keys = (*small("fedsimclr"), *vectors, "data.limit=null", "partition.clients=2")
    mlp = ("encoder=mlp", "encoder.hidden=[16]", "encoder.features=8")
    record = audited(trained(tmp_path / "run", *keys, *mlp))
    assert {"views", "views, untrained"} <= set(record["membership"])


def test_a_run_without_messages_or_of_silos_is_refused_in_a_sentence(overfitted, tmp_path, capsys):
    old = tmp_path / "old"
    old.mkdir()
    for name in ("config.yaml", "summary.json"):
        (old / name).write_bytes((overfitted / name).read_bytes())
    lines = [row for row in rows(overfitted) if row["scope"] != "messages"]
    (old / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    assert main([f"run={old}"]) == 2
    assert "it does not say what clients sent" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("text", ["client,tasks\nx,1\n", "client\n1\n", "client,tasks\n1\n"])
def test_a_damaged_table_of_clients_is_refused_in_a_sentence(overfitted, tmp_path, capsys, text):
    run = shutil.copytree(overfitted, tmp_path / "run")
    (run / "clients.csv").write_text(text)
    assert main([f"run={run}"]) == 2
    assert "which clients took part cannot be read" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"privacy": {"epsilon": "x"}}', "[]"])
def test_a_damaged_summary_is_refused_or_says_nothing(overfitted, tmp_path, capsys, text):
    run = tmp_path / "run"
    shutil.copytree(overfitted, run)
    (run / "summary.json").write_text(text)
    code = main([f"run={run}", "samples=50"])
    assert code == (2 if text[-1] in "{[" else 0)
    told = capsys.readouterr()
    assert ("summary.json: it cannot be read" in " ".join(told.err.split())) is (code == 2)


def test_of_a_module_of_ones_own_the_messages_are_told(tmp_path, capsys):
    own = "tests.builders.own_module"
    keys = ("experiment=lightning", f"module={own}:Lit", f"data.target={own}:Data")
    few = ("partition.clients=2", "method.rounds=1", "cluster=serial", "tracking.progress=none")
    run = tmp_path / "run"
    assert train([*keys, *few, f"run_dir={run}"]) == 0
    record = audited(run, "trust=tests")
    assert record["membership"] == {}
    assert ("slot", "module") in messages(record)
    told = " ".join(capsys.readouterr().out.split())
    assert "The run trained a LightningModule of yours, which is not attacked." in told


def test_every_method_is_known():
    assert {"kfed", "orchestra", "prototypes", "cfcl", "ffcm", "kmeans", "fedsimclr"} <= {*CHOICES}
