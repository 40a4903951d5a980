"""Bad input ends in one sentence (what, which value, what to do), the right exit code, no folder.

Each line of `REFUSED` is run as a command. The other cases are, in tests/unit, config/test_schema.py
and commands/test_compose.py (keys, types, ranges, targets), datamodules/test_bad_data.py and
test_image_files.py (data), checkpoints (checkpoints); here test_claim.py (two runs in one directory),
test_full_disk.py and test_tracker_outage.py; and tests/distributed/test_bad_clusters.py.
"""

# ruff: noqa: E501 -- the sentences stand whole

import json
import multiprocessing
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch import nn

from coterie.jobs.train import main
from coterie.networks.encoders import Encoder, EncoderConfig
from tests.builders.comparisons import ROOT
from tests.builders.runs import COMMAND

HERE = __name__


class TooWide(EncoderConfig):
    """Says 6 and gives 8."""

    def build(self, shape):
        return Encoder(nn.Sequential(nn.Flatten(), nn.Linear(64, 8)), 6)


class Featureless(EncoderConfig):
    """An ordinary module, which does not say its width."""

    def build(self, shape):
        return nn.Flatten()


class ForOthers(EncoderConfig):
    """Takes 9 features, whatever it is asked for."""

    def build(self, shape):
        return Encoder(nn.Sequential(nn.Flatten(), nn.Linear(9, 8)), 8)


class Silent(EncoderConfig):
    """Refuses its samples, and does not say why."""

    def build(self, shape):
        return Encoder(Mute(), 8)


class Mute(nn.Module):
    def forward(self, samples):
        raise ValueError


@pytest.fixture
def refused(tmp_path, capsys, monkeypatch):
    """Run a command that is to be refused; its sentence."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, code=2):
        other = any(argument.startswith("experiment=") for argument in arguments)
        command = [key for key in COMMAND if not (other and key.startswith("method."))]
        assert main([*command, "run_dir=run", *arguments]) == code
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        if code == 2:
            assert not (tmp_path / "run").exists()
        assert multiprocessing.active_children() == []
        return said.err.strip()

    return run


REFUSED = [
    # keys, types and ranges
    ("method.clusters=1", "method.clusters=1: it must be at least 2; set it to 2 or more."),
    (
        "method.clusters=2.5",
        "method.clusters=2.5: not a whole number; give one such as method.clusters=1.",
    ),
    (
        "method.clusters=101",
        "method.clusters=101: data=digits has 100 samples; choose at most as many clusters.",
    ),
    ("method.batch_size=1", "method.batch_size=1: must be at least 2."),
    ("method.learning_rate=nan", "method.learning_rate=nan: must be finite."),
    ("method.learning_rate=inf", "method.learning_rate=inf: must be finite."),
    ("method.learning_rate=-1", "method.learning_rate=-1: must be above 0."),
    ("method.momentum=2", "method.momentum=2: must be at most 1."),
    ("method.representation_epochs=0", "method.representation_epochs=0: must be at least 1."),
    ("seed=-1", "seed=-1: must be at least 0."),
    ("seed=9223372036854775808", "seed=9223372036854775808: must be below 9223372036854775808."),
    ("seed=1.5", "seed=1.5: not a whole number; give one such as seed=0."),
    ("seed=null", "seed=null: not a whole number; give one such as seed=0."),
    ("resume=maybe", "resume=maybe: must be true or false."),
    (
        "precision=8",
        "precision=8: must be one of 32-true, 64-true, bf16-mixed, 16-mixed, bf16-true.",
    ),
    (
        "precision=16-mixed",
        "precision=16-mixed: executor=bare has no gradient scaler; use bf16-mixed.",
    ),
    (
        "precision=bf16-true",
        "precision=bf16-true: bfloat16 rounds away the small steps of a moving average with method.clustering_momentum=0.5; use bf16-mixed.",
    ),
    (
        "precision=16-mixed executor=lightning",
        "precision=16-mixed: clients train on the CPU, which has no gradient scaler; use bf16-mixed.",
    ),
    ("evaluation.batch_size=0", "evaluation.batch_size=0: must be at least 1."),
    ("evaluation.every=-1", "evaluation.every=-1: must be at least 0."),
    (
        "evaluation.max_samples=3",
        "evaluation.max_samples=3: that is less than the 10 clusters; raise it.",
    ),
    ("checkpoint.keep=0", "checkpoint.keep=0: must be at least 1."),
    ("checkpoint.best=loss", "checkpoint.best=loss: must be one of acc, nmi, ari, kappa."),
    (
        "checkpoint.keep_every=7",
        "checkpoint.keep_every=7: with checkpoint.every=10 some of these rounds have no checkpoint; set checkpoint.every to 7 or a divisor of it.",
    ),
    (
        "checkpoint.keep_every=5 checkpoint.every=0",
        "checkpoint.keep_every=5: with checkpoint.every=0 some of these rounds have no checkpoint; set checkpoint.every to 5 or a divisor of it.",
    ),
    (
        "checkpoint.best=acc evaluation.every=0",
        "checkpoint.best=acc: evaluation.every=0 measures nothing between rounds; set it, or leave checkpoint.best out.",
    ),
    (
        "aggregation.learning_rate=0.1",
        "aggregation.learning_rate=0.1: aggregation.optimizer=none takes no steps; choose momentum, adam, yogi or adagrad, or leave it out.",
    ),
    (
        "participation.availability_digest=ab",
        "participation.availability_digest=ab: participation.availability names no file; name one, or leave the digest out.",
    ),
    ("faults.client_timeout_s=inf", "faults.client_timeout_s=inf: must be finite."),
    ("faults.min_participation=2", "faults.min_participation=2: must be at most 1."),
    (
        "cluster.threads_per_client=100000",
        "cluster.threads_per_client=100000: must be at most 1024.",
    ),
    ("cluster.cpus_per_client=nan", "cluster.cpus_per_client=nan: must be finite."),
    ("participation.count=6", "participation.count=6: there are 5 clients; choose 1 to 5."),
    (
        "aggregation.rule=mean",
        "aggregation.rule=mean: must be one of weighted, equal, median, trimmed_mean; did you mean median?",
    ),
    (
        "tracking.loggers=[wandbb]",
        "tracking.loggers[0]=wandbb: must be one of csv, tensorboard, wandb; did you mean wandb?",
    ),
    (
        "experiment=orchestra_digits method.micro_batch_size=8",
        "method: micro_batch_size=8 does not apply here: its loss is a mean over samples that are not compared, so a smaller batch_size does as well with less memory.",
    ),
    (
        "experiment=fedavg_digits method.micro_batch_size=8",
        "method: micro_batch_size=8 does not apply here: its loss is a mean over samples that are not compared, so a smaller batch_size does as well with less memory.",
    ),
    ("method.momentun=1", "method.momentun=1: there is no such key; did you mean method.momentum?"),
    # choices and targets
    (
        "method=fedmccc",
        "method=fedmccc: there is no such method; did you mean fedmcc? coterie train --help lists all.",
    ),
    (
        "experiment=fedsimcrl_digits",
        "experiment=fedsimcrl_digits: there is no such experiment; did you mean fedsimclr_digits? coterie train --help lists all.",
    ),
    (
        "experiment=qqqq",
        "experiment=qqqq: there is no such experiment; coterie train --help lists all.",
    ),
    ("method.target=no.such:X", "method.target=no.such:X: no module 'no'; check the path."),
    (
        "method.target=coterie.modules.fedmcc:FedMC",
        "method.target=coterie.modules.fedmcc:FedMC: 'coterie.modules.fedmcc' has no 'FedMC'; did you mean coterie.modules.fedmcc:FedMCC?",
    ),
    (
        "method.target=json:loads",
        "method.target=json:loads: it has no config model; give it a nested class Config.",
    ),
    (
        f"encoder.target={HERE}:TooWide ~encoder.hidden ~encoder.features",
        "encoder: Encoder gives (2, 8) for 2 samples, but says features=6; make it (2, 6).",
    ),
    (
        f"encoder.target={HERE}:Silent ~encoder.hidden ~encoder.features",
        "encoder: Encoder cannot take samples of shape (1, 8, 8) (ValueError); correct its build, or choose another.",
    ),
    (
        f"encoder.target={HERE}:Featureless ~encoder.hidden ~encoder.features",
        "encoder: build returned Flatten, not an Encoder; return Encoder(network, features=…).",
    ),
    (
        "encoder=conv4 ~encoder.hidden",
        "encoder=ConvNet4: images of 8×8 pixels are too small, it takes 31×31 and more; resize them with data.size=31 or above.",
    ),
    (
        "experiment=fedmcc_digits encoder=conv3 ~encoder.hidden method.micro_batch_size=1",
        "method.micro_batch_size=1: the encoder's batch norm needs two samples; raise it, or choose an encoder without.",
    ),
    # clients and samples
    ("partition.clients=101", "partition.clients=101 is more than the 100 samples; lower it."),
    (
        "partition.clients=60",
        "partition: client 40 of 60 has 1 samples, each needs 2; lower partition.clients, or choose a more even partition.",
    ),
    (
        "partition=k_classes partition.k=11",
        "partition.clients=5: k_classes with k=11 classes each does not fit 10 classes; set partition.k=10 and partition.clients=5.",
    ),
    ("data.limit=3", "partition.clients=5 is more than the 3 samples; lower it."),
    (
        "data=mnist data.root=/nowhere",
        "mnist: no train-images-idx3-ubyte or train-images-idx3-ubyte.gz in /nowhere/MNIST/raw; set data.root or COTERIE_DATA to the folder that holds MNIST/, or set data.download=true.",
    ),
    (
        "participation.availability=[[]]",
        "participation: no client is present in any round; list some in participation.availability, or let fewer devices fail.",
    ),
    ("method.micro_batch_size=0", "method.micro_batch_size=0: must be at least 1."),
    (
        "participation.availability=/no.json",
        "participation.availability=/no.json: cannot read it (No such file or directory); check the path.",
    ),
    # words of other libraries
    ("num_clients=3", "num_clients=3: there is no such key; did you mean partition.clients?"),
    ("n_clusters=5", "n_clusters=5: there is no such key; did you mean method.clusters?"),
    ("k=5", "k=5: there is no such key; did you mean method.clusters?"),
    ("out=x", "out=x: there is no such key; did you mean run_dir?"),
    (
        "fraction_fit=0.5",
        "fraction_fit=0.5: there is no such key; did you mean participation.fraction?",
    ),
    (
        "privacy.dp.epsilon=8",
        "privacy.dp.epsilon=8: there is no such key; did you mean privacy.dp.budget?",
    ),
    (
        "aggregation.lr=0.1",
        "aggregation.lr=0.1: there is no such key; did you mean aggregation.learning_rate?",
    ),
    ("evaluation.k=5", "evaluation.k=5: there is no such key; did you mean evaluation.clusters?"),
    ("gpu=1", "gpu=1: there is no such key; did you mean cluster.gpus_per_client?"),
    (
        "experiment=concord_digits method.rounds=3",
        "method.rounds=3: there is no such key here; this method has no number of rounds to set.",
    ),
    (
        "logger=wandb",
        "logger=wandb: there is no such key here; give tracking=NAME, or several as tracking.loggers=[NAME,NAME].",
    ),
    (
        "tracking.loggers=wandb",
        "tracking.loggers=wandb: must be a list in brackets such as tracking.loggers=[wandb].",
    ),
    (
        "tracking=mlflow",
        "tracking=mlflow: must be one of all, csv, none, tensorboard, wandb; give a logger of Lightning by its class, as tracking.loggers='[{target: lightning.pytorch.loggers:MLFlowLogger, tracking_uri: \"sqlite:///mlflow.db\"}]'.",
    ),
    (
        "data.name=mnist",
        "data.name=mnist: there is no such key; choose it by data=mnist.",
    ),
    (
        "model=x",
        "model=x: there is no such key here; a network is chosen by encoder=NAME, and a LightningModule of yours by experiment=lightning module=package.module:Class.",
    ),
    (
        "partition=iid partition.alpha=0.3",
        "partition.alpha=0.3: there is no such key here; it is a key of partition=dirichlet.",
    ),
    (
        "precision=bf16",
        "precision=bf16: must be one of 32-true, 64-true, bf16-mixed, 16-mixed, bf16-true; did you mean bf16-mixed?",
    ),
    ("cluster=cpu", "cluster=cpu: must be one of gpu, local, serial; did you mean serial?"),
    ("device=cpu", "device=cpu: there is no such key; did you mean accelerator?"),
    ("accelerator=gpu", "accelerator=gpu: must be one of auto, cpu, cuda; did you mean cuda?"),
    (
        "trainer.max_epochs=3",
        "trainer.max_epochs=3: there is no such key here; a Trainer's arguments go in method.trainer, of experiment=lightning.",
    ),
    (
        "encoder=vit_b_16",
        "encoder=vit_b_16: there is no such encoder; give encoder=timm:vit_b_16 or encoder=torchvision:vit_b_16 if they have it, or see coterie train --help.",
    ),
    # places
    ("run_dir=''", "run_dir=: must not be empty."),
    (
        "run_dir=s3://bucket/x",
        "run_dir=s3://bucket/x: give a path or a file:///… URI; mount remote storage.",
    ),
    (
        "run_dir=/dev/null",
        "run_dir=/dev/null: cannot write there (File exists); choose a folder you may write to.",
    ),
    (
        "run_dir=/dev/null/x",
        "run_dir=/dev/null/x: cannot write there (Not a directory); choose a folder you may write to.",
    ),
    (
        "cluster=local accelerator=cuda",
        "accelerator=cuda: cluster.gpus_per_client=0 gives no actor a GPU; set it, for example to 0.25, or use accelerator=cpu.",
    ),
    (
        "cluster=local cluster.address='ray://head:10001'",
        "cluster.address=ray://head:10001: Ray Client cannot stream what actors report; start the command with ray job submit, or on a node of the cluster with cluster.address=auto.",
    ),
    (
        "cluster=local cluster.address=nowhere",
        "cluster.address=nowhere: it is not an address; write it as host:port, or auto.",
    ),
]


@pytest.mark.parametrize(("overrides", "sentence"), REFUSED)
def test_it_is_refused_in_one_sentence_and_leaves_nothing(refused, overrides, sentence):
    assert refused(*overrides.split()) == sentence


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there(refused):
    assert refused("accelerator=cuda") == (
        "accelerator=cuda: there is no CUDA device here; use accelerator=cpu."
    )


def test_encoders_for_images_and_vectors(refused, tmp_path):
    np.savez(tmp_path / "v.npz", x=np.random.default_rng(0).normal(size=(40, 3)).astype("f4"))
    vectors = ("data=npz", f"data.path={tmp_path / 'v.npz'}", "partition=iid", "augmentation=noise")
    clusters = "method.clusters=3"
    assert (
        "encoder=ConvNet3: it takes images (channels, height, width), not samples of shape (3,); for vectors choose encoder=raw"
        in refused(*vectors, clusters, "encoder=conv3", "~encoder.hidden")
    )
    other = refused(f"encoder.target={HERE}:ForOthers", "~encoder.hidden", "~encoder.features")
    assert other.startswith("encoder: Encoder cannot take samples of shape (1, 8, 8) (")
    assert other.endswith("(2x64 and 9x8)); correct its build, or choose another.")
    narrow = ("encoder=conv3", "encoder.norm=group", "encoder.width=8", "~encoder.hidden")
    assert refused(*narrow) == (
        "encoder: a group norm in it has one value per group on samples of shape (1, 8, 8), and "
        "so gives only zeros; make it wider, or choose another norm."
    )
    assert refused(*vectors, clusters, "checkpoint.best=acc") == (
        "checkpoint.best=acc: data=v has no labels to measure it by; leave it out."
    )


def test_a_cluster_at_an_address_where_nobody_listens(refused, tmp_path):
    started = time.monotonic()
    assert refused("cluster=local", "cluster.address=127.0.0.1:1", code=1) == (
        "cluster.address=127.0.0.1:1: no Ray cluster answers there; start one or leave it out."
    )
    assert time.monotonic() - started < 15  # Ray alone tries for more than seven minutes
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


def test_a_relative_folder_under_a_job(refused, monkeypatch):
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert refused().startswith("run_dir=run: a submitted job's working directory is deleted")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [", "is not plain YAML"),
        ("- 1\n", "is not the config of a run"),
        ("seed: 1\n", "is not the"),
    ],
)
def test_resuming_what_is_no_run_changes_nothing_in_it(tmp_path, capsys, text, reason):
    (tmp_path / "config.yaml").write_text(text)
    assert main([*COMMAND, f"run_dir={tmp_path}", "resume=true"]) == 2
    error = capsys.readouterr().err
    assert f"config.yaml: it {reason}" in error
    assert error.endswith("restore it, or choose another run_dir.\n")
    assert (tmp_path / "config.yaml").read_text() == text
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", ".lock"}


def test_resuming_another_run_leaves_it_as_it_was(tmp_path, capsys):
    run_dir = f"run_dir={tmp_path / 'run'}"
    assert main([*COMMAND, run_dir]) == 0
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    rest = [key for key in COMMAND if not key.startswith(("experiment", "method"))]
    for other, sentence in (
        ([*COMMAND, "seed=1"], "had seed=0, this one has seed=1; give the same config"),
        (
            ["experiment=fedcc_digits", *rest],
            "had method.target=coterie.modules.fedmcc:FedMCC, this one",
        ),
    ):
        assert main([*other, run_dir, "resume=true"]) == 2
        error = capsys.readouterr().err
        assert sentence in error
        assert error.endswith("give the same config, or another run_dir.\n")
        assert error.count("\n") == 1
    assert main([*COMMAND, run_dir]) == 2
    assert "the folder is not empty; choose another one" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == files


def test_a_checkpoint_of_another_version(tmp_path, capsys):
    run_dir = tmp_path / "run"
    assert main([*COMMAND, f"run_dir={run_dir}"]) == 0
    from coterie.checkpoints.integrity import seal, unseal

    for path in (run_dir / "checkpoints").glob("round-*/run.json"):
        path.write_text(seal({**unseal(path), "format": 99}))
    summary = (run_dir / "summary.json").read_text()
    assert main([*COMMAND, f"run_dir={run_dir}", "resume=true"]) == 2
    error = capsys.readouterr().err
    assert "format 99, this version reads" in error
    assert error.count("\n") == 1
    assert (run_dir / "summary.json").read_text() == summary


def test_fewer_samples_than_a_batch_still_train(tmp_path, capsys):
    assert main([*COMMAND, f"run_dir={tmp_path / 'run'}", "method.batch_size=1000"]) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 2


def test_help_is_no_error(capsys):
    assert main(["--help"]) == 0
    said = capsys.readouterr()
    assert "fedmcc      cifar10 digits" in said.out
    assert said.err == ""


def test_the_command_itself_answers_a_misspelt_experiment(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "coterie.jobs.train", "experiment=fedmc_digits"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"platform{os.pathsep}."},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "did you mean fedmcc_digits?" in done.stderr
