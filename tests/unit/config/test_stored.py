"""What is read of the config that a run has left."""

import yaml

from coterie.commands.compose import compose
from coterie.config.loading import dump_config
from coterie.config.stored import read_stored_config


def test_a_stored_config_downloads_nothing_and_trusts_nobody(tmp_path):
    values = dump_config(compose("experiment=fedmcc_digits", "cluster=serial"))
    values["data"]["download"], values["trust"] = True, ["mine"]
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    found = read_stored_config(path)
    assert found["data"]["download"] is False
    assert "trust" not in found
