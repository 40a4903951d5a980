"""What a first line of Python gets wrong, told in one sentence, and what it may leave out."""

from pathlib import Path

import pytest

from coterie import Federation, compose
from coterie.errors import ConfigError
from tests.builders.own_module import Data, Lit


@pytest.mark.parametrize(
    "given", [["experiment=fedavg_digits"], {"experiment": "x"}, 7, Path("x")], ids=str
)
def test_keys_are_texts(given):
    with pytest.raises(ConfigError, match=r"compose: .*: give each key as a text, such as"):
        compose(given)


@pytest.mark.parametrize("given", ["experiment=fedavg_digits", {"seed": 1}, Lit()], ids=type)
def test_a_config_is_one_of_compose(given):
    with pytest.raises(ConfigError, match=r"Federation: .* is not a config; give compose\(…\), or"):
        Federation(given, Data())


@pytest.mark.parametrize(
    ("key", "keys"),
    [
        ("module", {"module": Lit, "data": Data()}),
        ("data", {"module": Lit(), "data": Data}),
        ("data", {"module": Lit(), "data": [Data(), Data]}),
        ("callbacks", {"module": Lit(), "data": Data(), "callbacks": [Lit]}),
        ("logger", {"module": Lit(), "data": Data(), "logger": Lit}),
    ],
)
def test_a_class_is_no_object(key, keys):
    with pytest.raises(ConfigError, match=rf"^{key}: (Lit|Data) is a class; give an object, such"):
        Federation(**keys)


def test_one_of_several_needs_no_list():
    keys = {"module": Lit(), "data": Data(), "personal": "head.*", "clients": 2}
    run = Federation(**keys, overrides="seed=3", cluster="serial")
    assert (run._config.seed, run._config.method.personal) == (3, ("head.*",))
    assert run._config.cluster.backend == "serial"
    with pytest.raises(ConfigError, match="callbacks: int is not a callback"):
        Federation(**keys, callbacks=7)


def test_an_argument_that_is_near_another_is_told():
    with pytest.raises(
        ConfigError, match=r"callback: there is no such argument; did you mean callbacks\?"
    ):
        Federation(callback=[])
