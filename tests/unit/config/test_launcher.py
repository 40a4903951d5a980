"""Variables of launchers are hidden meanwhile, and back afterwards."""

import os

import pytest

from coterie.config.launcher import launcher_hidden


@pytest.mark.parametrize("name", ["RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK", "NODE_RANK"])
def test_a_variable_is_hidden_meanwhile(monkeypatch, name):
    monkeypatch.setenv(name, "banana")
    with launcher_hidden():
        assert name not in os.environ
    assert os.environ[name] == "banana"
