"""A run of an earlier version is read: renamed values and targets, removed keys."""

import re

import pytest
import yaml

from coterie.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from coterie.commands.compose import compose
from coterie.config.loading import dump_config, load_config
from coterie.config.schema import CheckpointConfig
from coterie.config.stored import read_stored_config
from coterie.contract.phase import ServerState
from coterie.errors import ConfigError
from coterie.rounds.state import RunState
from coterie.run.same_run import check_same_run
from tests.builders.loops import make_loop, make_workload
from tests.builders.mailer import Mailer

TINY = ("experiment=fedmcc_digits", "cluster=serial")
ENCODER = "coterie.models.pretrained_encoder:Pretrained"


def earlier(**changes):
    """The config of a run as an earlier version wrote it."""
    values = dump_config(compose(*TINY))
    values["executor"] = "loop"
    values["cluster"] |= {"server": "auto", "gpu_memory_fraction": None}
    values["data"] |= {"batch_size": 128, "limit_seed": 0}
    values["evaluation"]["knn_temperature"] = 0.1
    values["faults"]["retries"] = 1
    for key, value in changes.items():
        section, _, name = key.partition("__")
        values[section][name] = value
    return values


def read(tmp_path, values):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    return read_stored_config(path)


def test_an_earlier_config_is_the_present_one(tmp_path):
    found = read(tmp_path, earlier())
    assert load_config(found) == compose(*TINY, "executor=bare")


def test_removed_keys_are_dropped_inside_of_silos(tmp_path):
    source = {
        "target": "coterie.datamodules.folders:ClassFolders",
        "limit_seed": 0,
        "batch_size": 128,
    }
    found = read(tmp_path, earlier(data__source=source))
    assert found["data"]["source"] == {"target": source["target"]}


def test_a_target_that_has_moved_is_found(tmp_path):
    former = "coterie.engine.pretrained_encoder:Pretrained"
    assert read(tmp_path, earlier(encoder__target=former))["encoder"]["target"] == ENCODER


@pytest.mark.parametrize(
    ("changed", "key", "fixed"),
    [
        ({"cluster__gpu_memory_fraction": 0.5}, "cluster.gpu_memory_fraction=0.5", "null"),
        ({"data__limit_seed": 1}, "data.limit_seed=1", "0"),
        ({"evaluation__knn_temperature": 0.07}, "evaluation.knn_temperature=0.07", "0.1"),
        ({"faults__retries": 3}, "faults.retries=3", "1"),
    ],
)
def test_another_value_of_a_removed_key_is_refused(tmp_path, changed, key, fixed):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, earlier(**changed))
    assert str(caught.value) == (
        f"{tmp_path / 'config.yaml'}: {key} is a key of an earlier version, now always {fixed}; "
        "use the version that wrote the file."
    )


def test_the_config_in_a_checkpoint_is_brought_up_to_date(tmp_path):
    backend = make_loop(make_workload(Mailer.Config())).backend

    def save(number, config):
        state = RunState(server=ServerState(round=number, slots={}))
        policy = CheckpointConfig()
        save_checkpoint(
            tmp_path, state, backend, tracking={}, config=config, policy=policy, best=False
        )

    save(1, earlier())
    assert check_same_run(load_checkpoint(tmp_path, backend).config, compose(*TINY)) == ""
    save(2, earlier(faults__retries=3))
    with pytest.raises(ConfigError, match=re.escape("run.json: faults.retries=3 is a key of")):
        load_checkpoint(tmp_path, backend)


def test_a_stored_config_downloads_nothing(tmp_path):
    assert read(tmp_path, earlier(data__download=True))["data"]["download"] is False
    assert "download" not in read(tmp_path, earlier())["data"]
