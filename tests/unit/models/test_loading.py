"""A finished run's model is built again from its folder alone, and exported."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from coterie import Federation, load_model
from coterie.commands.compose import compose
from coterie.errors import ConfigError, CoterieError, DataError
from coterie.models import loading, saved_model
from coterie.models.loading import zeros
from coterie.models.saved_model import layouts_of
from coterie.networks.heads import Centroids
from coterie.networks.prototypes import UnitPrototypes
from coterie.run.setup import assemble
from tests.builders.every_method import small
from tests.builders.runs import SERIAL, TINY, WITHOUT_CLUSTERS, train

ROOT = Path(__file__).resolve().parents[3]
BATCH = 512
FEW = ["prototypes=30"]

PICTURE = {"shape": [1, 8, 8], "dtype": "uint8", "mode": "L"}


@pytest.fixture(scope="module", params=["head", "centroids", "prototypes"])
def ran(request, finished_run, tmp_path_factory):
    if request.param == "head":
        return finished_run
    how = {"centroids": "kmeans"}.get(request.param, request.param)
    folder = tmp_path_factory.mktemp("runs") / "run"
    return train(folder, *WITHOUT_CLUSTERS, f"evaluation.clustering={how}")


@pytest.fixture(scope="module")
def samples():
    return torch.from_numpy(assemble(compose(*TINY)).data.samples)


@pytest.fixture
def copy(ran, tmp_path):
    return shutil.copytree(ran.run_dir / "model", tmp_path / "model")


def refusal(path, kind=DataError, **trusted):
    with pytest.raises(kind) as caught:
        load_model(path, **trusted)
    text = str(caught.value)
    assert isinstance(caught.value, CoterieError)
    assert caught.value.exit_code == 2
    assert "\n" not in text
    assert text.endswith(".")
    return text


def describe_anew(folder, **changes):
    path = folder / "model.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_model_gives_the_runs_own_assignments_to_the_bit(ran, samples):
    torch.set_num_threads(1)
    for path in (ran.run_dir, str(ran.run_dir / "model")):
        model = load_model(path)
        assert not model.training
        with torch.inference_mode():
            given = torch.cat([model(batch).probabilities for batch in samples.split(BATCH)])
            own = torch.cat([ran.model(batch).probabilities for batch in samples.split(BATCH)])
        assert torch.equal(given, own)
        written = pq.read_table(ran.run_dir / "assignments.parquet").to_pydict()
        confidence, cluster = given.max(dim=1)
        assert written["cluster"] == cluster.tolist()
        assert np.array_equal(np.float32(written["confidence"]), confidence.float().numpy())


@pytest.mark.parametrize(
    ("choice", "keys"), [("kmeans", ["restarts=1"]), ("concord", FEW), ("prototypes", FEW)]
)
def test_so_does_that_of_a_private_run(choice, keys, tmp_path):
    """Concord with a network encodes mirror images too, but not under differential privacy."""
    noise = ("privacy.dp.clip=1", "privacy.dp.noise_multiplier=2", "data.limit=1000")
    given = (*noise, *(f"method.{key}" for key in keys), f"run_dir={tmp_path / 'run'}")
    done = Federation(compose(*small(choice), *SERIAL, "encoder=mlp", *given)).run()
    images = torch.from_numpy(assemble(compose(*small(choice), "encoder=mlp")).data.samples)
    model = load_model(tmp_path / "run")
    assert torch.equal(model(images).probabilities, done.model(images).probabilities)


def test_model_json_says_what_the_model_takes_and_gives(ran):
    described = json.loads((ran.run_dir / "model" / "model.json").read_text())
    assert described["format"] == 1
    assert described["input"] == {**PICTURE, "columns": []}
    assert (described["features"], described["clusters"]) == (16, 10)
    assert described["classes"] == [str(digit) for digit in range(10)]
    found = {Centroids: "centroids", UnitPrototypes: "prototypes"}.get(type(ran.model.head))
    assert described["head"] == (found or "method")
    assert described["round"] == (2 if found else 4)


def test_loading_needs_neither_data_nor_ray(ran):
    if isinstance(ran.model.head, Centroids | UnitPrototypes):
        pytest.skip("one fresh process is enough")
    code = (
        "import sys; from coterie import load_model; load_model(sys.argv[1]);"
        "sys.exit('ray' in sys.modules or 'faiss' in sys.modules or 'datamodules.digits' in "
        "sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "platform", ROOT)))}
    done = subprocess.run([sys.executable, "-c", code, ran.run_dir], env=env, check=False)
    assert done.returncode == 0


def test_layouts_come_back():
    tensors = {"a": torch.zeros(2, 3), "b": torch.zeros((), dtype=torch.int64)}
    assert layouts_of(tensors) == {"a": "float32 2x3", "b": "int64 "}
    again = zeros(layouts_of(tensors))
    assert {k: (v.shape, v.dtype) for k, v in again.items()} == {
        k: (v.shape, v.dtype) for k, v in tensors.items()
    }


def test_a_folder_that_is_no_model_is_refused(tmp_path):
    assert refusal(tmp_path / "nowhere").endswith(
        "nowhere: there is no such folder; give a run's folder or its model/."
    )
    assert "no model.json in it; give a finished run's folder" in refusal(tmp_path)
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    assert "the run has left no model/; finish it with resume=true" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.yaml"])
def test_a_missing_file_is_named(copy, name):
    (copy / name).unlink()
    assert f"model/{name}: it is missing; copy" in refusal(copy)


def test_another_format_is_refused(copy):
    describe_anew(copy, format=2)
    assert "model.json: format 2, this version reads 1; update Coterie." in refusal(copy)
    describe_anew(copy, format=None)
    assert "format None, this version reads 1; run the experiment again." in refusal(copy)
    (copy / "model.json").write_text("{")
    assert "model.json: it is damaged" in refusal(copy)


def test_a_description_without_a_key_is_refused(copy):
    described = json.loads((copy / "model.json").read_text())
    del described["server"]
    (copy / "model.json").write_text(json.dumps(described))
    assert "model.json: it is damaged (server: Field required); copy" in refusal(copy)


KEY = "encoder.network.0.weight"


def test_weights_that_do_not_fit_are_refused(copy):
    path = copy / "model.safetensors"
    weights = load_file(path)
    save_file({k: v for k, v in weights.items() if k != KEY}, path)
    assert f"model.safetensors: it lacks {KEY}; config.yaml and weights" in refusal(copy)
    save_file({**weights, "extra": torch.zeros(1)}, path)
    assert "it does not match the model, which lacks extra; config.yaml" in refusal(copy)
    save_file({**weights, KEY: torch.zeros(8, 1, 4, 5)}, path)
    assert f"{KEY} has shape (8, 1, 4, 5) for (8, 1, 4, 4); config.yaml" in refusal(copy)
    path.write_bytes(path.read_bytes()[:1000])
    assert "model.safetensors: it cannot be read (" in refusal(copy)


def test_an_operator_that_needs_values_is_passed_over_without_memory_only(copy, monkeypatch):
    real = loading._build

    def with_values(*given):
        torch.ones(3).nonzero()
        return real(*given)

    def on_no_device(*given):
        return torch.ones(2, device="cpu").to(torch.float8_e4m3fn).exp()

    monkeypatch.setattr(loading, "_build", with_values)
    assert not load_model(copy).training
    monkeypatch.setattr(loading, "_build", on_no_device)
    assert 'files do not fit each other ("exp' in refusal(copy)


def test_weights_are_written_whole_or_not_at_all(copy, monkeypatch):
    """A run that is made longer writes over the model that is there."""

    def half(tensors, path):
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(saved_model, "save_file", half)
    before = (copy / "model.safetensors").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        saved_model.write_model(copy, torch.nn.Linear(1, 1), copy / "config.yaml", None, None)
    assert (copy / "model.safetensors").read_bytes() == before


def test_a_class_that_cannot_be_imported_is_named(copy):
    path = copy / "config.yaml"
    path.write_text(
        path.read_text().replace("coterie.modules.fedmcc:FedMCC", "nowhere.method:Mine")
    )
    assert "config.yaml: method.target=nowhere.method:Mine: a stored" in refusal(copy, ConfigError)
    text = refusal(copy, ConfigError, trust=["nowhere"])
    assert "config.yaml: method.target=nowhere.method:Mine: no module 'nowhere'; check" in text


def test_a_key_of_another_version_is_refused(copy):
    path = copy / "config.yaml"
    path.write_text(path.read_text().replace("representation_epochs", "local_epochs"))
    assert "its method section is of another version" in refusal(copy)


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "no type"},
        {"dtype": ""},
        {"prototypes": {"a": 1}},
        {"round": -1},
        {"round": None},
        {"server": {"step": 0, "metadata": {}, "slots": {"a": {"b": "nothing 2x3"}}}},
    ],
)
def test_a_description_of_wrong_values_is_refused_without_words_of_python(copy, change):
    describe_anew(copy, **change)
    told = refusal(copy)
    assert "model.json: it is damaged (" in told
    assert not re.search(r"object|attribute|operand|Error", told)


@pytest.mark.parametrize("text", ["0", "[]", "true", "null"])
def test_a_description_that_is_no_mapping_is_refused(copy, text):
    (copy / "model.json").write_text(text)
    told = refusal(copy)
    assert "model.json: it is damaged (it holds what Coterie does not write); copy" in told
