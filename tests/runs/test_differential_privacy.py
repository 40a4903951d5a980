"""Whole private runs: budget, resume, noise on any backend, what is sent and what refused."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from coterie import Federation
from coterie.commands.compose import compose
from coterie.config.loading import load_config
from coterie.contract.accounting import epsilon
from coterie.errors import ConfigError
from coterie.rounds import loop
from coterie.rounds.sent import sent_in
from coterie.run.cluster_page import ClusterPage
from coterie.run.setup import assemble
from coterie.tracking import noise_file
from coterie.tracking.run_directory import RunDirectory
from tests.builders.every_method import small
from tests.builders.observers import Silent
from tests.builders.runs import SERIAL, model_files

NOISE = ("privacy.dp.clip=0.05", "privacy.dp.noise_multiplier=2")
NARROW = ("encoder=mlp", "encoder.hidden=[32]", "encoder.features=16")
FEDAVG = (*small("fedavg"), *NARROW, *NOISE, "method.rounds=4", "checkpoint.every=1")
KMEANS = (*small("kmeans"), *NOISE, "privacy.dp.clip=4", "method.restarts=1", "method.iterations=3")
PROTOTYPES = (*NOISE, "privacy.dp.clip=1", "method.prototypes=30", "data.limit=1000")
SAMPLE = (*FEDAVG[:-2], "privacy.dp.unit=sample", "method.epochs=2", *FEDAVG[-2:])
ORCHESTRA = (
    *small("orchestra"),
    "method.privacy=local_dp",
    "method.epsilon=1",
    "method.participation=1",
    "checkpoint.every=1",
)
KEY = "ab" * 32
SUBCLASSES = "tests.builders.inflates"
"""Of methods that have a private form, which they do not inherit."""


@pytest.fixture
def same_key(monkeypatch):
    """The same noise in every run directory."""
    monkeypatch.setattr(noise_file.secrets, "token_hex", lambda size: KEY)


KINDS = [
    pytest.param(FEDAVG, id="fedavg"),
    pytest.param(KMEANS, id="kmeans"),
    pytest.param(SAMPLE, id="record", marks=pytest.mark.slow),
]


def train(folder, *keys, serial=SERIAL):
    view = Silent()
    result = Federation(compose(*keys, *serial, f"run_dir={folder}"), view).run()
    return result, view.notes


def rows(folder, scope="server"):
    lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["scope"] == scope]


def spent(folder):
    return [row["epsilon"] for row in rows(folder) if "epsilon" in row]


def summary(folder):
    return json.loads((Path(folder) / "summary.json").read_text())


def test_the_run_ends_before_the_round_that_its_budget_does_not_pay_for(tmp_path):
    budget = epsilon(2, 2.0, 1e-5) + 0.01
    _, notes = train(tmp_path / "run", *FEDAVG, f"privacy.dp.budget={budget}")
    known = summary(tmp_path / "run")
    assert (known["status"], known["rounds"]) == ("completed", 2)
    assert known["privacy"] == {"epsilon": epsilon(2, 2.0, 1e-5), "delta": 1e-5, "unit": "client"}
    assert spent(tmp_path / "run") == [epsilon(1, 2.0, 1e-5), epsilon(2, 2.0, 1e-5)]
    sentence = f"Ended before round 3: it would exceed privacy.dp.budget={budget:g}, of which ε="
    assert any(note.startswith(sentence) for note in notes)
    assert model_files(tmp_path / "run")
    assert "ε for one client, δ=1e-05" in (tmp_path / "run" / "report.html").read_text()
    train(tmp_path / "run", *FEDAVG, f"privacy.dp.budget={budget}", "resume=true")
    assert summary(tmp_path / "run")["privacy"] == known["privacy"]


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(FEDAVG, id="clients"),
        pytest.param((*FEDAVG, "participation.fraction=0.5"), id="half of them"),
        pytest.param(SAMPLE, id="samples"),
        pytest.param(KMEANS, id="sums"),
    ],
)
def test_a_budget_without_noise_tells_the_least_that_pays_for_all_rounds(keys, tmp_path):
    rest = (key for key in keys if "noise_multiplier" not in key)
    asked = (*rest, "privacy.dp.budget=5", "privacy.dp.clip=0.01")
    with pytest.raises(ConfigError, match=r"budget=5: all . rounds at δ=1e-05 need") as told:
        train(tmp_path / "refused", *asked)
    noise = float(str(told.value).partition("noise_multiplier=")[2].partition(";")[0])
    _, notes = train(tmp_path / "run", *asked, f"privacy.dp.noise_multiplier={noise}")
    assert not [note for note in notes if "Ended before" in note]
    assert summary(tmp_path / "run")["rounds"] == int(str(told.value).split()[2])
    assert 4.9 < summary(tmp_path / "run")["privacy"]["epsilon"] <= 5


def test_a_budget_that_ends_the_run_early_tells_the_noise_that_would_not(tmp_path, caplog):
    budget = f"privacy.dp.budget={1.01 * epsilon(2, 2.0, 1e-5)}"
    keys = (*FEDAVG, "privacy.dp.noise_multiplier=2", budget)
    train(tmp_path, *keys)
    assert "ends the run after round 2; for all 4 rounds it needs" in caplog.text
    caplog.clear()
    assemble(compose(*keys, *SERIAL), trains=False)  # as for evaluation and audit
    assert not caplog.messages


def test_training_that_protects_samples_pays_for_each_epoch(tmp_path):
    budget = epsilon(4, 2.0, 1e-5) + 0.01
    _, notes = train(tmp_path / "run", *SAMPLE, f"privacy.dp.budget={budget}")
    known = summary(tmp_path / "run")
    assert (known["status"], known["rounds"]) == ("completed", 2)
    assert spent(tmp_path / "run") == [epsilon(2, 2.0, 1e-5), epsilon(4, 2.0, 1e-5)]
    assert any(note.startswith("Ended before round 3: it would exceed") for note in notes)


def test_a_raised_budget_goes_on_to_the_bits_of_a_run_that_had_it(tmp_path, same_key):
    less, more = (f"privacy.dp.budget={epsilon(n, 2.0, 1e-5) + 0.01}" for n in (1, 3))
    train(tmp_path / "whole", *FEDAVG, more)
    train(tmp_path / "run", *FEDAVG, less)
    assert summary(tmp_path / "run")["rounds"] == 1
    train(tmp_path / "run", *FEDAVG, more, "resume=true")
    assert summary(tmp_path / "run")["rounds"] == 3
    assert summary(tmp_path / "run")["privacy"] == summary(tmp_path / "whole")["privacy"]
    assert spent(tmp_path / "run") == spent(tmp_path / "whole")
    assert model_files(tmp_path / "run") == model_files(tmp_path / "whole")
    with pytest.raises(ConfigError, match=r"had privacy\.dp\.budget="):
        train(tmp_path / "run", *FEDAVG, less, "resume=true")


@pytest.mark.parametrize(
    ("last", "keys"),
    [
        (2, FEDAVG),
        *(pytest.param(*row, marks=pytest.mark.slow) for row in ((1, FEDAVG), (3, FEDAVG))),
        pytest.param(2, SAMPLE, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_resumed_has_the_same_bits_and_spends_nothing_twice(
    last, keys, tmp_path, same_key
):
    train(tmp_path / "whole", *keys)
    train(tmp_path / "run", *keys)
    released = (tmp_path / "run" / "noise.jsonl").read_text()
    for gone in range(last + 1, 5):  # killed in round 4, with `last` the last checkpoint
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"round-{gone:06d}", ignore_errors=True)
    (tmp_path / "run" / "summary.json").unlink()
    train(tmp_path / "run", *keys, "checkpoint.keep=9", "resume=true")
    assert (tmp_path / "run" / "noise.jsonl").read_text() == released
    assert model_files(tmp_path / "run") == model_files(tmp_path / "whole")
    assert spent(tmp_path / "run") == spent(tmp_path / "whole")
    assert summary(tmp_path / "run")["privacy"] == summary(tmp_path / "whole")["privacy"]


def test_a_run_that_dies_between_release_and_state_resumes_to_the_same_bits(
    tmp_path, same_key, monkeypatch
):
    train(tmp_path / "whole", *FEDAVG)
    append, calls = noise_file.NoiseFile.append, []

    def dies(self, entry):
        append(self, entry)
        calls.append(entry)
        if len(calls) == 2:
            raise OSError("the machine is gone")

    monkeypatch.setattr(noise_file.NoiseFile, "append", dies)
    with pytest.raises(Exception, match="the machine is gone"):
        train(tmp_path / "run", *FEDAVG)
    train(tmp_path / "run", *FEDAVG, "resume=true")
    assert [(entry.round, entry.step) for entry in calls] == [(1, 0), (2, 0), (3, 0), (4, 0)]
    assert model_files(tmp_path / "run") == model_files(tmp_path / "whole")
    assert summary(tmp_path / "run")["privacy"] == summary(tmp_path / "whole")["privacy"]


def test_noise_of_the_clients_own_is_the_same_after_a_resume(tmp_path, same_key):
    train(tmp_path / "whole", *ORCHESTRA)
    train(tmp_path / "run", *ORCHESTRA)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "round-000002")
    (tmp_path / "run" / "summary.json").unlink()
    train(tmp_path / "run", *ORCHESTRA, "resume=true")
    assert model_files(tmp_path / "run") == model_files(tmp_path / "whole")
    assert spent(tmp_path / "run") == spent(tmp_path / "whole")
    assert spent(tmp_path / "run")[0] == pytest.approx(1.0, rel=1e-6)


def test_noise_of_the_clients_own_differs_between_runs(tmp_path):
    train(tmp_path / "one", *ORCHESTRA)
    train(tmp_path / "two", *ORCHESTRA)
    assert model_files(tmp_path / "one") != model_files(tmp_path / "two")


def test_without_its_noise_file_a_run_is_not_resumed(tmp_path):
    train(tmp_path / "run", *FEDAVG, "method.rounds=1")
    (tmp_path / "run" / "noise.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"noise\.jsonl: the run's noise and what it has spent"):
        train(tmp_path / "run", *FEDAVG, "resume=true")


def test_what_a_run_has_spent_is_not_understated(tmp_path):
    train(tmp_path / "run", *FEDAVG, "method.rounds=2")
    noise = tmp_path / "run" / "noise.jsonl"
    key, *released = noise.read_text().splitlines(keepends=True)
    noise.write_text("".join([key, *released[1:]]))
    with pytest.raises(ConfigError, match=r"it has 1 sums, but the run has released 2"):
        train(tmp_path / "run", *FEDAVG, "resume=true")


def test_two_runs_of_one_seed_have_other_noise(tmp_path):
    train(tmp_path / "one", *FEDAVG)
    train(tmp_path / "two", *FEDAVG)
    assert model_files(tmp_path / "one") != model_files(tmp_path / "two")


@pytest.mark.parametrize("choice", ["prototypes", pytest.param("concord", marks=pytest.mark.slow)])
def test_prototypes_from_noisy_sums_give_clusters(choice, tmp_path, same_key):
    keys = (*small(choice), *PROTOTYPES)
    train(tmp_path / "run", *keys)
    known = summary(tmp_path / "run")
    assert known["privacy"]["epsilon"] == epsilon(9, 2.0, 1e-5)
    assert known["metrics"]["clustering"]["nmi"] > 0.3
    train(tmp_path / "masked", *keys, "privacy.secure_aggregation=true")
    assert model_files(tmp_path / "run") == model_files(tmp_path / "masked")


def test_prototypes_of_a_run_that_its_budget_ends_have_clusters(tmp_path):
    budget = f"privacy.dp.budget={epsilon(5, 2.0, 1e-5) + 0.01}"
    train(tmp_path / "run", *small("prototypes"), *PROTOTYPES, budget)
    known = summary(tmp_path / "run")
    assert known["rounds"] == 5
    assert "nmi" in known["metrics"]["clustering"]


@pytest.mark.parametrize("keys", KINDS)
def test_masks_change_no_bit_of_a_private_run(keys, tmp_path, same_key):
    train(tmp_path / "plain", *keys)
    train(tmp_path / "masked", *keys, "privacy.secure_aggregation=true")
    assert model_files(tmp_path / "plain") == model_files(tmp_path / "masked")
    assert spent(tmp_path / "plain") == spent(tmp_path / "masked")


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(FEDAVG, id="of the sums"),
        pytest.param(ORCHESTRA, id="of the clients' own"),
    ],
)
def test_noise_is_the_same_on_ray(keys, tmp_path, same_key):
    ray = ("cluster.backend=ray", "cluster.num_actors=2", *SERIAL[1:])
    train(tmp_path / "serial", *keys)
    train(tmp_path / "ray", *keys, serial=ray)
    assert model_files(tmp_path / "serial") == model_files(tmp_path / "ray")
    assert spent(tmp_path / "serial") == spent(tmp_path / "ray")


@pytest.mark.parametrize("keys", KINDS)
def test_clients_tell_nothing_about_their_training(keys, tmp_path):
    train(tmp_path / "run", *keys)
    assert "loss" not in json.dumps(rows(tmp_path / "run"))
    assert "loss" not in json.dumps(rows(tmp_path / "run", "client"))


def test_clients_do_not_tell_how_large_their_clusters_are(tmp_path, monkeypatch):
    told = []

    def seen(request, result):
        told.extend(done.smallest for done in result.client_results if done.bytes_up)
        return sent_in(request, result)

    monkeypatch.setattr(loop, "sent_in", seen)
    train(tmp_path / "run", *KMEANS)
    assert told
    assert not any(told)
    sent = [sent for row in rows(tmp_path / "run", "messages") for sent in row.get("messages", ())]
    slots = [each for each in sent if each["type"] == "slot"]
    assert slots
    assert {row["samples"] for row in slots} == {None}


def test_the_server_optimiser_steps_by_noisy_means(tmp_path):
    train(tmp_path / "run", *FEDAVG, "aggregation.optimizer=momentum")
    assert summary(tmp_path / "run")["status"] == "completed"


@pytest.mark.parametrize(
    "choice",
    [
        "fedsimclr",
        *(
            pytest.param(c, marks=pytest.mark.slow)
            for c in (
                "fedmcc",
                "fedbyol",
                "fedsimsiam",
                "fedcc",
                "autoencoder",
                "vae",
                "scan",
                "idfd",
            )
        ),
    ],
)
def test_methods_that_average_models_run_with_noise(choice, tmp_path):
    keys = (*small(choice), "encoder=mlp", *NOISE)
    heads = ("method.cluster_heads=1",) if choice == "fedmcc" else ()
    train(tmp_path / "run", *keys, *heads)
    assert spent(tmp_path / "run")[-1] > 0


def test_a_projector_with_batch_norm_keeps_its_statistics(tmp_path):
    keys = (*small("fedsimclr"), "encoder=mlp", "method.projector_norm=hidden")
    noise = ("privacy.dp.clip=1", "privacy.dp.noise_multiplier=4")
    train(tmp_path / "run", *keys, *noise, "evaluation.unsupervised=true")
    assert summary(tmp_path / "run")["status"] == "completed"


@pytest.mark.parametrize(
    "choice",
    ["fedsimclr", "fedbyol", "fedsimsiam", "fedu", "rotpred", "specloss", "fedcc", "ifca"],
)
def test_methods_whose_samples_have_no_gradients_of_their_own_are_refused(choice, tmp_path):
    keys = (*small(choice), "encoder=mlp", *NOISE, "privacy.dp.unit=sample")
    with pytest.raises(ConfigError, match=r"privacy\.dp|groups of clients"):
        train(tmp_path / "run", *keys)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_moon_protects_samples_too(tmp_path):
    small_moon = (*small("moon"), "encoder=mlp", "method.rounds=1")
    train(tmp_path / "run", *small_moon, *NOISE, "privacy.dp.unit=sample")
    assert spent(tmp_path / "run")[-1] > 0


@pytest.mark.parametrize(
    ("choice", "keys", "sentence"),
    [
        (
            "kfed",
            NOISE,
            "privacy.dp.clip=0.05: clients send the gathered tensor 'centroids' in phase",
        ),
        (
            "cfcl",
            NOISE,
            "privacy.dp.clip=0.05: clients send the peer message 'reserve_samples' in phase",
        ),
        (
            "ffcm",
            NOISE,
            "privacy.dp.clip=0.05: clients send the gathered tensor 'centroids' in phase",
        ),
        (
            "prototypes",
            (*NOISE, "aggregation.optimizer=momentum"),
            "aggregation.optimizer=momentum: this method's clients send sums",
        ),
        ("dcco", (*NOISE, "encoder=mlp"), "privacy.dp.clip=0.05: what clients send in slot"),
        ("ifca", (*NOISE, "encoder=mlp"), "privacy.dp.clip=0.05: the method's groups"),
        (
            "ccfc",
            (*NOISE, "encoder=mlp"),
            "privacy.dp.clip=0.05: clients send the gathered tensor 'centroids'",
        ),
        ("dec", NOISE, "privacy.dp.clip=0.05: clients send the gathered tensor 'centroids'"),
        ("fedcc", NOISE, "encoder: a batch norm's running statistics are not sent under"),
        ("fedavg", (*NOISE, "privacy.dp.unit=sample", "encoder=conv3"), "is a BatchNorm2d, after"),
        ("fedavg", (*SAMPLE[1:], "privacy.dp.delta=0.1"), "privacy.dp.delta=0.1: with 200 samples"),
        ("fedavg", (*SAMPLE[1:], "privacy.dp.budget=1"), "a single round spends"),
        ("fedavg", ("privacy.dp.unit=sample",), "unit=sample: give clip and noise_multiplier too"),
        (
            "fedavg",
            (*NOISE, "privacy.dp.unit=sample", "compile=default", "encoder=mlp"),
            "compile=default: under privacy.dp.unit=sample each sample's gradient comes from hooks",
        ),
        ("fedavg", (*NOISE, "aggregation.rule=median"), "aggregation.rule=median: noise under"),
        (
            "fedavg",
            (*NOISE, "privacy.dp.delta=0.4"),
            "privacy.dp.delta=0.4: with 5 clients a mechanism",
        ),
        ("fedavg", (*NOISE, "privacy.dp.budget=0.5"), "privacy.dp.budget=0.5: a single sum spends"),
        ("fedavg", NOISE[:1], "clip=0.05: give noise_multiplier too, or a budget"),
        ("fedavg", NOISE[1:], "noise_multiplier=2.0: give clip too"),
        ("fedavg", ("privacy.dp.budget=1",), "budget=1.0: give clip too"),
        ("kmeans", NOISE, "method.restarts=10: under privacy.dp each start takes its own noise"),
        (
            "concord",
            ("method.prototypes=30", "privacy.dp.clip=0.1", "privacy.dp.noise_multiplier=2000"),
            "noise_multiplier=2000: .* standard deviation of 4e.*, and at most 2048",
        ),
        *(
            (kind.lower(), (*NOISE, f"method.target={SUBCLASSES}:{kind}"), "clients send")
            for kind in ("KMeans", "Concord", "Prototypes")
        ),
        ("kmeans", ("privacy.dp.clip=600", NOISE[1]), "1000; change one of the two, or scale the"),
    ],
)
def test_what_cannot_be_private_is_refused_before_the_run(choice, keys, sentence, tmp_path):
    with pytest.raises(ConfigError, match=sentence):
        train(tmp_path / "run", *small(choice), *keys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["fedsimclr", "autoencoder"])
def test_a_private_model_has_no_clusters_that_are_means_of_samples(tmp_path, method):
    _, notes = train(tmp_path / "run", *small(method), "encoder=mlp", *NOISE)
    described = json.loads((tmp_path / "run" / "model" / "model.json").read_text())
    assert (described["head"], described["clusters"]) == (None, None)
    weights = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert not [name for name in weights if name.startswith("head")]
    assert [note for note in notes if note.startswith("The model has no clusters: those of the")]
    directory = RunDirectory.open(str(tmp_path / "run"))
    page = ClusterPage(directory, load_config(directory.read_config()))
    with pytest.raises(ConfigError, match=r"its model has no clusters; privacy\.dp leaves out"):
        page.write(tmp_path / "page.html")
