"""Which configs may resume a stored run."""

import pytest

from coterie.commands.compose import compose
from coterie.config.loading import dump_config
from coterie.errors import ConfigError
from coterie.run.same_run import check_same_run

TINY = ("experiment=fedmcc_digits", "cluster=serial")


def test_a_run_from_before_the_minimum_can_be_resumed():
    stored = dump_config(compose(*TINY))
    del stored["privacy"]
    assert check_same_run(stored, compose(*TINY)) == ""
    with pytest.raises(ConfigError, match=r"had privacy\.secure_aggregation=False, this one has"):
        check_same_run(stored, compose(*TINY, "privacy.secure_aggregation=true"))


def test_another_minimum_is_refused():
    stored = dump_config(compose(*TINY))
    with pytest.raises(
        ConfigError, match=r"had privacy\.minimum=2, this one has privacy\.minimum=1"
    ):
        check_same_run(stored, compose(*TINY, "privacy.minimum=1"))
