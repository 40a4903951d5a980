"""What is compared is checked before the first run, and what differs is said."""

import pytest

from coterie.errors import DataError
from coterie.studies.configs_apart import check_all, differences, differences_text
from coterie.studies.plan import read_comparison, variant_configs

SMALL = ("data.limit=200", "seeds=[0]")


def configs(*arguments):
    options, variants = read_comparison([*arguments, *SMALL])
    return variant_configs(variants, options.seeds[0])


def test_what_experiments_bring_besides_their_methods_is_named():
    found = differences(configs("experiments=[fedmcc_digits,ccfc_digits]"))
    assert found
    assert not any(key.startswith(("method", "experiment", "seed")) for key in found)
    assert differences_text(configs("experiments=[kfed]", "data=digits")) == ""


def test_what_was_asked_for_is_not_repeated():
    swept = configs("experiments=[fedavg_digits]", "partition.clients=5,10")
    assert differences(swept) == {}
    own = {"experiments={a: fedavg_digits, b: fedavg_digits}"}
    assert differences(configs(*own, "a:encoder=mlp", "b:partition.clients=7")) == {}


def test_who_has_which_value_is_told():
    own = ("experiments={a: concord_digits, b: kmeans_digits, c: concord_digits}",)
    found = differences(configs(*own))
    assert found["data.size"] == "16 in a, c; null in b"
    assert all(" in a, c; " in who for who in found.values())
    assert "data.size (16 in a, c; null in b)" in differences_text(configs(*own))
    assert not any(key.startswith("encoder.") for key in found) or "encoder" not in found


def test_a_variant_that_does_not_fit_its_data_is_refused_before_any_run(tmp_path):
    given = configs("experiments=[fedmcc_digits,ccfc_digits]", "ccfc_digits:partition.clients=7")
    with pytest.raises(DataError, match=r"^ccfc_digits.*: partition"):
        check_all(given, "out", None)
    (tmp_path / "runs" / "ccfc_digits,seed=0").mkdir(parents=True)
    check_all(given, "out", str(tmp_path))
