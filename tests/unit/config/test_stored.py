"""Configs of earlier versions: names that have moved since."""

import pytest

from coterie.config.component import load_target
from coterie.config.stored import _TARGETS, read_stored_config
from coterie.errors import ConfigError


def test_a_config_that_names_an_old_path_is_read_under_the_present_one(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(
        "method: {target: 'modules.fedavg:FedAvg', rounds: 1}\n"
        "encoder:\n"
        "  target: coterie.engine.pretrained_encoder:Pretrained\n"
        "  network: {target: 'coterie.networks.encoders:MLP'}\n"
        "executor: loop\n"
    )
    values = read_stored_config(path)
    assert values["encoder"]["target"] == "coterie.models.pretrained_encoder:Pretrained"
    assert values["encoder"]["network"] == {"target": "coterie.networks.encoders:MLP"}
    assert values["method"] == {"target": "modules.fedavg:FedAvg", "rounds": 1}
    assert values["executor"] == "bare"


@pytest.mark.parametrize("target", sorted(set(_TARGETS.values())))
def test_every_present_name_exists(target):
    load_target(target)


@pytest.mark.parametrize("old", sorted(_TARGETS))
def test_no_old_name_exists(old):
    with pytest.raises(ConfigError, match="target="):
        load_target(old)


@pytest.mark.parametrize("text", ["a: [", "- 1\n", "method: 3\n"])
def test_what_is_no_config_of_a_run_is_refused(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.yaml: it is not"):
        read_stored_config(path)
