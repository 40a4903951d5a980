"""The choices of `method=`, read from the source of `coterie.modules`."""

import shutil

import pytest
from hydra.core.config_store import ConfigStore

from coterie.commands import method_choices
from coterie.commands.compose import compose_plain, config_dir, describe_choice, groups, read_choice
from coterie.commands.method_choices import METHOD, methods_in_hydra, shipped_methods
from coterie.config.component import load_target
from tests.builders.every_method import METHODS

WRITTEN = '''
class _Base(Method):
    """A base."""

    class Config(MethodConfig):
        """Keys."""


class NoMethod(nn.Module):
    """A network."""


class MyFirst(
    _Base, Generic[T]
):
    """The first of two, by eq. (2). It keeps nothing.

    More about it.
    """

    class Config(_Base.Config):
        """Keys."""


class Second(_Base):
    class Config(_Base.Config):
        """Keys."""


def helper():
    """No class."""
'''


def test_they_are_the_classes_that_can_be_imported():
    found = {load_target(choice.target) for choice in shipped_methods().values()}
    assert found == set(METHODS)
    for choice in shipped_methods().values():
        doc = load_target(choice.target).__doc__
        assert doc.startswith(choice.about)
        assert choice.about.endswith(".")


def test_a_file_has_its_public_classes_with_a_config(tmp_path, monkeypatch):
    (tmp_path / "my_first.py").write_text(WRITTEN)
    monkeypatch.setattr(method_choices, "_MODULES", tmp_path)
    assert shipped_methods.__wrapped__() == {
        "my_first": ("coterie.modules.my_first:MyFirst", "The first of two, by eq. (2)."),
        "second": ("coterie.modules.my_first:Second", ""),
    }


@pytest.mark.filterwarnings("error")
def test_a_users_yaml_comes_first(tmp_path, monkeypatch):
    own = shutil.copytree(config_dir(), tmp_path / "configs")
    (own / "method").mkdir()
    text = "# Mine.\ntarget: coterie.modules.kfed:KFED\nepochs: 3\n"
    (own / "method" / "fedmcc.yaml").write_text(text)
    monkeypatch.setattr("coterie.commands.compose.config_dir", lambda: own)
    assert groups()["method"] == sorted(shipped_methods())
    assert describe_choice("method", "fedmcc") == "Mine."
    assert read_choice("method", "fedmcc") == {"target": "coterie.modules.kfed:KFED", "epochs": 3}
    assert read_choice("method", "kfed") == {"target": "coterie.modules.kfed:KFED"}
    found = compose_plain("experiment=fedmcc_digits")["method"]
    assert (found["target"], found["epochs"]) == ("coterie.modules.kfed:KFED", 3)


def test_a_surrounding_hydra_keeps_its_own_methods():
    store = ConfigStore.instance()
    store.store(group=METHOD, name="theirs", node={"a": 1})
    try:
        with methods_in_hydra():
            assert store.list(METHOD) == sorted(f"{name}.yaml" for name in shipped_methods())
        with methods_in_hydra(besides={"kfed"}):
            assert "kfed.yaml" not in store.list(METHOD)
        assert store.list(METHOD) == ["theirs.yaml"]
    finally:
        del store.repo[METHOD]
