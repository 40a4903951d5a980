"""A stored config imports Coterie's own classes and those that the user trusts, no others."""

import site

import pytest

from coterie.config.component import load_target
from coterie.config.loading import load_config
from coterie.config.trust import check_places, check_targets, packages_in, trusted_by
from coterie.errors import ConfigError


def refusal(tmp_path, stored, trust=()):
    with pytest.raises(ConfigError) as caught:
        check_targets(stored, tmp_path / "config.yaml", trust)
    return str(caught.value)


@pytest.mark.parametrize(
    ("stored", "key"),
    [
        ({"method": {"target": "mine:Mine"}}, "method.target"),
        ({"encoder": {"network": {"target": "mine.net:Net"}}}, "encoder.network.target"),
        ({"data": {"source": {"target": "mine:Data"}}}, "data.source.target"),
        ({"evaluation": {"metrics": [{"target": "mine:Metric"}]}}, "evaluation.metrics[0].target"),
        ({"callbacks": [{"a": 1}, {"target": "mine:Call"}]}, "callbacks[1].target"),
        ({"tracking": {"loggers": ["csv", {"target": "mine:Log"}]}}, "tracking.loggers[1].target"),
        ({"method": {"target": "coterie.x:Y", "module": "mine:Lit"}}, "method.module"),
        ({"data": {"target": "coterie.x:Y", "module": "mine:Data"}}, "data.module"),
        ({"data": {"source": {"module": "mine:Data", "arguments": {}}}}, "data.source.module"),
    ],
)
def test_any_class_of_another_package_is_refused(tmp_path, stored, key):
    text = refusal(tmp_path, stored)
    assert f"config.yaml: {key}=mine" in text
    assert text.endswith("if you trust the code of mine, add trust=mine.")
    check_targets(stored, tmp_path, ["mine"])


@pytest.mark.parametrize("target", ["coterie2.x:Y", "os:system", "modulesx:Y", ".:Y", "", ":Y"])
def test_what_only_looks_like_coterie_is_refused(tmp_path, target):
    assert "add trust=" in refusal(tmp_path, {"target": target})


def test_a_users_module_is_no_function_of_coteries(tmp_path):
    stored = {"method": {"module": "coterie.jobs.train:main", "arguments": {"module": "text"}}}
    assert "method.module=coterie.jobs.train:main" in refusal(tmp_path, stored)
    check_targets({"method": {"module": "mine:Lit", "is_object": True}}, tmp_path, ())
    assert packages_in({"method.module": "mine:Lit", "data.module": "other:Data"}) == {
        "mine",
        "other",
    }


def test_sites_may_have_the_names_of_keys(tmp_path):
    sites = {"target": "/data/a", "module": "/data/b"}
    check_targets({"data": {"target": "coterie.x:Y", "clients": sites}}, tmp_path, ())
    for where in ({"data": {"source": sites}}, {"clients": sites}, {"data": {"x": [sites]}}):
        assert "target=/data/a: a stored config imports" in refusal(tmp_path, where)


def test_a_part_of_a_package_can_be_trusted(tmp_path):
    check_targets({"target": "mine.nets.small:Net"}, tmp_path, ["mine.nets"])
    assert "add trust=mine" in refusal(tmp_path, {"target": "mine.other:Net"}, ["mine.nets"])
    assert "add trust=mine" in refusal(tmp_path, {"target": "mine.netsy:Net"}, ["mine.nets"])


def test_an_installed_package_declares_itself_by_an_entry_point(tmp_path, monkeypatch):
    def declare(folder):
        info = folder / "mine-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[coterie.trusted]\nmine = mine\n")

    stored = {"target": "mine:Net"}
    declare(tmp_path / "here")  # a stranger's folder, in which the command is started
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend(str(tmp_path / "here"))
    assert "add trust=mine" in refusal(tmp_path, stored)
    declare(tmp_path / "installed")
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path / "installed")])
    check_targets(stored, tmp_path, ())


def test_what_the_user_types_is_trusted():
    given = {"method.target": "mine:Mine", "callbacks": [{"target": "your.calls:Call"}], "seed": 1}
    assert packages_in(given) == {"mine", "your"}
    assert trusted_by({"trust": "mine"}) == ("mine",)
    assert trusted_by({"trust": ["mine", "your"]}) == ("mine", "your")
    assert trusted_by({"trust": 3}) == trusted_by({}) == ()


def test_a_name_after_the_colon_leads_into_no_other_module():
    with pytest.raises(ConfigError, match="'import_module' is in another module"):
        load_target("coterie.config.component:importlib.import_module")


@pytest.mark.parametrize("address", ["evil:6379", "ray://evil:1", "http://evil"])
def test_a_stored_config_joins_no_cluster(tmp_path, monkeypatch, address):
    monkeypatch.setenv("RAY_ADDRESS", "mine:6379")
    with pytest.raises(ConfigError, match=r"give cluster\.address again"):
        check_places({"cluster": {"address": address}}, tmp_path, {"cluster": {"num_actors": 1}})
    for given in ({"cluster.address": address}, {"cluster": {"address": address}}):
        check_places({"cluster": {"address": address}}, tmp_path, given)
    for fine in (None, "auto", "local", "mine:6379"):
        check_places({"cluster": {"address": fine}}, tmp_path, {})
    check_places({"cluster": 1}, tmp_path, {})


def test_a_stored_config_sends_nothing_to_an_account_of_wandb(tmp_path, monkeypatch):
    stored = {"tracking": {"loggers": ["csv", "wandb"], "wandb": {"entity": "evil"}}}
    with pytest.raises(ConfigError, match=r"if it is yours, give tracking\.wandb\.entity again"):
        check_places(stored, tmp_path, {"tracking.wandb.project": "mine"})
    check_places(stored, tmp_path, {"tracking": {"wandb": {"entity": "mine"}}})
    check_places({"tracking": {**stored["tracking"], "loggers": ["csv"]}}, tmp_path, {})
    monkeypatch.setenv("WANDB_ENTITY", "evil")  # then it is not the stranger's
    check_places(stored, tmp_path, {})


WANDB = "coterie.tracking.wandb_logger:WandbRunLogger"


def test_coteries_loggers_with_arguments_are_the_users_to_give(tmp_path):
    stored = {"tracking": {"loggers": [{"target": WANDB, "settings": {"base_url": "evil"}}]}}
    for trust in ((), packages_in({"encoder.target": "coterie.networks.encoders:MLP"})):
        text = refusal(tmp_path, stored, trust)
        assert f"tracking.loggers[0].target={WANDB}: a stored config may name" in text
        assert text.endswith("give tracking.loggers again.")
    check_targets(stored, tmp_path, packages_in({"tracking.loggers": [{"target": WANDB}]}))
    check_targets(stored, tmp_path, ["coterie"])


def test_what_a_package_has_from_another_is_named_there():
    for target in ("tracking.loggers:CSVLogger", "tracking.wandb_logger:WandbLogger"):
        with pytest.raises(ConfigError, match=r"it is defined in lightning\.\S+; name it there\."):
            load_target(f"coterie.{target}")


def test_a_class_of_another_kind_is_refused_before_it_is_used():
    from coterie.commands.compose import compose_plain
    from coterie.run.setup import assemble

    values = compose_plain("experiment=fedmcc_digits", "cluster=serial")
    swapped = {**values, "method": {"target": "coterie.datamodules.digits:Digits"}}
    with pytest.raises(ConfigError, match=r"method\.target=.*digits:Digits: it is no"):
        assemble(load_config(swapped))
    swapped = {**values, "partition": {"target": "coterie.networks.encoders:MLP"}}
    with pytest.raises(ConfigError, match="it is not a class for partition"):
        assemble(load_config(swapped))


def test_all_strangers_are_named_at_once(tmp_path):
    stored = {"callbacks": [{"target": "theirs.a:B"}], "method": {"module": "mine:C"}}
    with pytest.raises(ConfigError, match=r"add trust=\[theirs,mine\]\.$"):
        check_targets(stored, tmp_path, ())
    with pytest.raises(ConfigError, match=r"of mine, add trust=mine\.$"):
        check_targets(stored, tmp_path, ("theirs",))
