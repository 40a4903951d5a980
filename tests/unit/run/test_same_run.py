"""Which configs may resume a stored run."""

import pytest

from coterie.commands.compose import compose
from coterie.config.loading import dump_config
from coterie.errors import ConfigError
from coterie.run.same_run import check_same_run, measured_otherwise

TINY = ("experiment=fedmcc_digits", "cluster=serial")


@pytest.mark.parametrize("clients", [(), ("data.clients=who",)])
def test_the_clients_of_an_npz_file_are_a_name(clients):
    keys = ("experiment=kmeans", "data=npz", "data.path=x.npz")
    stored = dump_config(compose(*keys, *clients))
    assert check_same_run(stored, compose(*keys, *clients)) == ""
    with pytest.raises(ConfigError, match=r"this one has data\.clients=other"):
        check_same_run(stored, compose(*keys, "data.clients=other"))


def test_what_is_measured_otherwise_is_named():
    stored = dump_config(compose(*TINY))
    same = ("evaluation.every=3", "evaluation.figures=true", "evaluation.batch_size=7")
    assert measured_otherwise(stored, compose(*TINY, *same)) == ""
    keys = ("evaluation.knn_k=7", "evaluation.labelled_shares=[0.5]")
    assert measured_otherwise(stored, compose(*TINY, *keys)) == (
        "evaluation.knn_k changes from 200 to 7, "
        "evaluation.labelled_shares changes from [] to [0.5]."
    )
    assert check_same_run(stored, compose(*TINY, *keys)) == ""


NOISE = ("privacy.dp.clip=1", "privacy.dp.noise_multiplier=2")


def test_the_budget_may_rise():
    stored = dump_config(compose(*TINY, *NOISE, "privacy.dp.budget=2"))
    more = compose(*TINY, *NOISE, "privacy.dp.budget=2.5")
    assert check_same_run(stored, more) == "privacy.dp.budget rises from 2.0 to 2.5."


@pytest.mark.parametrize("keys", [("privacy.dp.budget=1.5",), ()])
def test_a_lower_budget_and_none_are_refused(keys):
    stored = dump_config(compose(*TINY, *NOISE, "privacy.dp.budget=2"))
    with pytest.raises(ConfigError, match=r"had privacy\.dp\.budget=2\.0, this one has"):
        check_same_run(stored, compose(*TINY, *NOISE, *keys))


@pytest.mark.parametrize("key", ["clip=2", "noise_multiplier=3", "delta=1e-6"])
def test_other_noise_is_refused(key):
    stored = dump_config(compose(*TINY, *NOISE))
    with pytest.raises(ConfigError, match=rf"privacy\.dp\.{key.partition('=')[0]}="):
        check_same_run(stored, compose(*TINY, *NOISE, f"privacy.dp.{key}"))


def test_another_minimum_is_refused():
    stored = dump_config(compose(*TINY))
    with pytest.raises(
        ConfigError, match=r"had privacy\.k_anonymity=2, this one has privacy\.k_anonymity=1"
    ):
        check_same_run(stored, compose(*TINY, "privacy.k_anonymity=1"))


def test_the_executor_may_change_between_those_of_equal_bits_only():
    lightning, bare, vmapped = (
        compose(*TINY, f"executor={name}") for name in ("lightning", "bare", "vmap")
    )
    assert check_same_run(dump_config(lightning), bare) == ""
    with pytest.raises(ConfigError, match="had executor=bare, this one has executor=vmap"):
        check_same_run(dump_config(lightning), vmapped)
    with pytest.raises(ConfigError, match="had executor=vmap, this one has executor=bare"):
        check_same_run(dump_config(vmapped), bare)


def test_the_size_of_a_stack_counts_where_there_is_one():
    for name, refused in (("bare", False), ("vmap", True)):
        one, other = (
            compose(*TINY, f"executor={name}", f"cluster.vmap_clients={n}") for n in (8, 9)
        )
        if not refused:
            assert check_same_run(dump_config(one), other) == ""
            continue
        with pytest.raises(ConfigError, match=r"had cluster\.vmap_clients=8, this one has"):
            check_same_run(dump_config(one), other)
