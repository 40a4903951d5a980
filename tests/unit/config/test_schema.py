"""Validation of the whole configuration: sentences, defaults, and the way back to plain values."""

# ruff: noqa: E501 -- the sentences stand whole

import json
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    BeforeValidator,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from coterie.config import (
    COMPONENTS,
    Component,
    MethodConfig,
    PartitionConfig,
    RunConfig,
    config_model,
    dump_config,
    load_config,
    load_target,
    parse_component,
    target_of,
)
from coterie.config.component import NestedComponent
from coterie.config.explain import one_of, show
from coterie.config.loading import check_keys, load_component
from coterie.config.privacy import DPConfig, PrivacyConfig
from coterie.errors import ConfigError


class Optimiser(Component):
    lr: PositiveFloat = 3e-4
    betas: tuple[float, float] = (0.9, 0.999)


class Learner:
    class Config(MethodConfig):
        temperature: PositiveFloat = 0.5
        momentum: Annotated[float, Field(ge=0, le=1)] = 0.99
        widths: tuple[tuple[PositiveInt, ...], ...] = ((64,),)
        depth: Literal[18, 34] = 18
        cohort: float | int | tuple[int, ...] = 1.0
        symmetric: bool = True
        name: str | None = None
        optimiser: Optimiser = Optimiser()

        @model_validator(mode="after")
        def _fit(self) -> "Learner.Config":
            if self.name == "bad":
                raise ValueError("the name {bad} does not fit; take another one")
            return self


class Heir(Learner):
    """Has no Config of its own."""


class Aims:
    class Config(Component):
        target: float = 0.5


class Plain(PartitionConfig):
    clients: PositiveInt
    share: float = 1.0


class Bare:
    """Has no Config at all."""


HERE = __name__


def mapping(**method: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        name: {"target": f"{HERE}:Plain", "clients": 2} for name in COMPONENTS
    }
    return {**values, "method": {"target": f"{HERE}:Learner", **method}}


def refusal(values: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(values)
    assert caught.value.exit_code == 2
    return str(caught.value)


METHOD_PROBLEMS = [
    (
        {"temprature": 1},
        "method.temprature=1: there is no such key; did you mean method.temperature?",
    ),
    ({"temperature": 0}, "method.temperature=0: must be above 0."),
    (
        {"temperature": True},
        "method.temperature=true: not a number; give one such as method.temperature=0.5.",
    ),
    ({"momentum": 1.5}, "method.momentum=1.5: must be at most 1."),
    ({"momentum": -1}, "method.momentum=-1: must be at least 0."),
    ({"depth": 19}, "method.depth=19: must be one of 18, 34."),
    ({"depth": 50}, "method.depth=50: must be one of 18, 34."),
    ({"symmetric": "yes"}, "method.symmetric=yes: must be true or false."),
    ({"name": 3}, "method.name=3: not a text; quote it twice, as method.name='\"3\"'."),
    ({"widths": 3}, "method.widths=3: must be a list in brackets such as method.widths=[[64]]."),
    ({"widths": [[8], [4, 0]]}, "method.widths[1][1]=0: must be at least 1."),
    ({"optimiser": {"lr": -1}}, "method.optimiser.lr=-1: must be above 0."),
    (
        {"optimiser": {"lrr": 1}},
        "method.optimiser.lrr=1: there is no such key; did you mean method.optimiser.lr?",
    ),
    ({"optimiser": {"betas": [0.9]}}, "method.optimiser.betas[1]: a value is needed."),
    (
        {"optimiser": 1},
        "method.optimiser=1: must be a group of keys; give it one such as method.optimiser.lr=….",
    ),
    ({"lr": 1.0}, "method.lr=1.0: there is no such key; did you mean method.optimiser.lr?"),
    ({"name": "bad"}, "method: the name {bad} does not fit; take another one."),
    (
        {"cohort": "x"},
        "method.cohort=x: not a number; give one such as method.cohort=1.0, or not a whole number; "
        "give one such as method.cohort=1, or must be a list in brackets such as method.cohort=[1,2].",
    ),
    (
        {"cohort": {"a": 1}},
        "method.cohort={a:1}: not a number; give one such as method.cohort=1.0, or not a whole "
        "number; give one such as method.cohort=1, or must be a list in brackets such as "
        "method.cohort=[1,2].",
    ),
]


@pytest.mark.parametrize(("method", "sentence"), METHOD_PROBLEMS)
def test_a_component_is_refused_in_one_sentence(method: dict[str, Any], sentence: str) -> None:
    assert refusal(mapping(**method)) == sentence


RUN_PROBLEMS = [
    ({"seed": "abc"}, "seed=abc: not a whole number; give one such as seed=0."),
    ({"seed": 1.0}, "seed=1.0: not a whole number; give one such as seed=0."),
    ({"seed": True}, "seed=true: not a whole number; give one such as seed=0."),
    ({"seed": "3"}, "seed=3: it is a text; give it without quotes."),
    ({"seed": "07"}, "seed=07: not a whole number; give one such as seed=0."),
    ({"labelled_pool": ".5"}, "labelled_pool=.5: it is a text; give it without quotes."),
    ({"resume": "True"}, "resume=True: it is a text; give it without quotes."),
    ({"resume": "yes"}, "resume=yes: must be true or false."),
    ({"seed": None}, "seed=null: not a whole number; give one such as seed=0."),
    ({"seed": -1}, "seed=-1: must be at least 0."),
    (
        {"cluster": {"backend": "rya"}},
        "cluster.backend=rya: must be one of ray, serial; did you mean ray?",
    ),
    ({"cluster": {"backend": "mpi"}}, "cluster.backend=mpi: must be one of ray, serial."),
    ({"cluster": {"num_actors": 0}}, "cluster.num_actors=0: must be at least 1."),
    (
        {"cluster": {"num_actors": "a"}},
        "cluster.num_actors=a: not a whole number; give one such as cluster.num_actors=1.",
    ),
    (
        {"cluster": {"num_actors": 2, "min_actors": 3}},
        "cluster={num_actors:2,min_actors:3}: min_actors=3 exceeds num_actors=2; lower it.",
    ),
    (
        {"cluster": {"gpus_per_client": 0.4}},
        "cluster.gpus_per_client=0.4: 2 × 0.4 leave 0.2 of each GPU unused; give 0.333 for 3 "
        "actors on a GPU or 0.5 for 2.",
    ),
    (
        {"cluster": {"gpus_per_client": 1.5}},
        "cluster.gpus_per_client=1.5: an actor with more than one GPU takes whole GPUs; give 1 or 2.",
    ),
    ({"cluster": {"cpus_per_client": 0}}, "cluster.cpus_per_client=0: must be above 0."),
    ({"cluster": 3}, "cluster=3: must be a group of keys; give it one such as cluster.backend=…."),
    ({"sede": 1}, "sede=1: there is no such key; did you mean seed?"),
    (
        {"clutser": {"backend": "ray"}},
        "clutser.backend=ray: there is no such key; did you mean cluster.backend?",
    ),
    ({"backend": "ray"}, "backend=ray: there is no such key; did you mean cluster.backend?"),
    ({"temperature": 1}, "temperature=1: there is no such key; did you mean method.temperature?"),
    (
        {"checkpoint": {"zzz": 1}},
        "checkpoint.zzz=1: there is no such key; checkpoint has every, keep, keep_every, best, best_mode.",
    ),
    (
        {"tracking": {"loggers": ["csv", "wandbb"]}},
        "tracking.loggers[1]=wandbb: must be one of csv, tensorboard, wandb; did you mean wandb?",
    ),
    (
        {"tracking": {"wandb": {"mode": "onlin"}}},
        "tracking.wandb.mode=onlin: must be one of auto, online, offline; did you mean online?",
    ),
]


@pytest.mark.parametrize(("changes", "sentence"), RUN_PROBLEMS)
def test_the_run_is_refused_in_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    assert refusal(mapping() | changes) == sentence


def test_a_misspelt_key_comes_before_the_one_it_leaves_missing() -> None:
    data = {"target": f"{HERE}:Plain", "clinets": 2}
    expected = "data.clinets=2: there is no such key; did you mean data.clients?"
    assert refusal(mapping() | {"data": data}) == expected
    assert refusal(mapping() | {"data": {"target": f"{HERE}:Plain"}}) == (
        "data.clients: a value is needed; give data.clients=…."
    )


@pytest.mark.parametrize(
    ("section", "other", "base"),
    [("method", "Plain", "MethodConfig"), ("partition", "Optimiser", "PartitionConfig")],
)
def test_a_config_for_another_section_is_refused(section: str, other: str, base: str) -> None:
    assert refusal(mapping() | {section: {"target": f"{HERE}:{other}"}}) == (
        f"{section}.target={HERE}:{other}: it is not a class for {section}; name another, or "
        f"derive its config from coterie.{base}."
    )


TARGETS = [
    (None, "encoder: nothing is chosen; set encoder.target=package.module:Class."),
    ({"clients": 2}, "encoder: nothing is chosen; set encoder.target=package.module:Class."),
    ({"target": 3}, "encoder.target=3: write it as package.module:Class."),
    ({"target": "plain"}, "encoder.target=plain: write it as package.module:Name."),
    ({"target": "plain.nets.X"}, "encoder.target=plain.nets.X: write it as plain.nets:X."),
    ({"target": "./own.py:X"}, "encoder.target=./own.py:X: write it as package.module:Name."),
    ({"target": "no.such:X"}, "encoder.target=no.such:X: no module 'no'; check the path."),
    (
        {"target": f"{HERE}:Plian"},
        f"encoder.target={HERE}:Plian: '{HERE}' has no 'Plian'; did you mean {HERE}:Plain?",
    ),
    (
        {"target": f"{HERE}:Bare"},
        f"encoder.target={HERE}:Bare: it has no config model; name a class derived from "
        "EncoderConfig, as in docs/extend.md.",
    ),
    (
        {"target": f"{HERE}:Aims"},
        f"encoder.target={HERE}:Aims: its config has a field target, the key that names the class; "
        "rename the field.",
    ),
    (
        {"target": f"{HERE}:Heir"},
        f"encoder.target={HERE}:Heir: its config model belongs to {HERE}:Learner; "
        "give the class its own nested class Config, which may inherit.",
    ),
]


@pytest.mark.parametrize(("section", "sentence"), TARGETS)
def test_a_bad_target_is_refused_in_one_sentence(section: Any, sentence: str) -> None:
    assert refusal(mapping() | {"encoder": section}) == sentence


def test_defaults_live_in_the_models() -> None:
    config = load_config(mapping())
    assert config == RunConfig(
        method=Learner.Config(), **{name: Plain(clients=2) for name in COMPONENTS[1:]}
    )
    assert (config.seed, config.cluster.backend, config.tracking.loggers) == (0, "ray", ())


def test_whole_numbers_pass_as_floats_and_lists_as_tuples() -> None:
    config = load_config(mapping(temperature=2, widths=[[8, 4], []]))
    assert isinstance(config.method, Learner.Config)
    assert config.method.temperature == 2.0
    assert type(config.method.temperature) is float
    assert config.method.widths == ((8, 4), ())


def test_the_config_is_frozen() -> None:
    config = load_config(mapping())
    with pytest.raises(ValidationError, match="frozen"):
        config.cluster.num_actors = 3


def test_values_of_a_python_program_become_plain(tmp_path) -> None:
    numbers = {"temperature": np.float32(0.5), "widths": np.array([[8, 4]])}
    given = mapping(**numbers) | {"seed": np.int64(3), "resume": np.True_, "run_dir": tmp_path}
    config = load_config(given)
    assert type(config.seed) is int
    assert config.resume is True
    assert config.run_dir == str(tmp_path)
    assert config.method.widths == ((8, 4),)
    assert json.dumps(dump_config(config)) == json.dumps(dump_config(load_config(plain(given))))


def plain(values: Any) -> Any:
    """The same values as YAML has them."""
    return {
        **values,
        **mapping(temperature=0.5, widths=[[8, 4]]),
        "seed": 3,
        "resume": True,
        "run_dir": str(values["run_dir"]),
    }


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: RunConfig(sede=1), "sede=1: there is no such key; did you mean seed?"),
        (lambda: Learner.Config(momentum=2), "momentum=2: must be at most 1."),
        (lambda: Plain(clients="x"), "clients=x: not a whole number; give one such as clients=1."),
        (RunConfig, "method: a value is needed; give method=…."),
    ],
)
def test_a_config_that_a_program_writes_is_refused_in_one_sentence(build, sentence) -> None:
    with pytest.raises(ConfigError) as caught:
        build()
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("rate", "method.learning_rate or method.decay_rate"),
        ("lr", "method.learning_rate"),
        ("decay_rate", "method.decay_rate"),
        ("seed", "method.seed or encoder.seed"),
        ("runz", "runs"),
    ],
)
def test_an_unknown_key_is_sought_in_groups_by_its_parts_and_initials(word, meant) -> None:
    class Inner(Component):
        learning_rate: float = 1.0
        decay_rate: float = 1.0
        seed: int = 0

    class Seeded(Component):
        seed: int = 0

    class Outer(Component):
        runs: int = 1
        method: Inner = Inner()
        encoder: Seeded = Seeded()

    with pytest.raises(ConfigError, match=rf"no such key; did you mean {meant}\?$"):
        load_component(Outer, {word: 1})


@pytest.mark.parametrize(("word", "meant"), [("mu", "weight"), ("tau", "heat"), ("Tau", "heat")])
def test_a_greek_letter_is_sought_in_descriptions(word, meant) -> None:
    class Inner(Component):
        weight: float = 1.0
        """μ of the proximal term."""
        heat: float = 1.0
        """τ_I of the loss."""

    class Outer(Component):
        method: Inner = Inner()

    with pytest.raises(ConfigError, match=rf"method.{word}=1: .* did you mean method.{meant}\?$"):
        load_component(Outer, {"method": {word: 1}})


def test_keys_of_a_nested_component_without_its_class_are_told() -> None:
    class Outer(Component):
        strategy: NestedComponent = None

    told = (
        r"^strategy=\{mu:1\}: it has keys but no class; give its target, or a name such as fedprox"
    )
    with pytest.raises(ConfigError, match=told):
        load_component(Outer, {"strategy": {"mu": 1}})


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"seed": 2**64}, r"^seed=18446744073709551616: a whole number has at most 64 bits"),
        ({"sizes": [1, -(2**63) - 1]}, r"^sizes=.*at most 64 bits"),
        ({"rate": "caf\udce9"}, "is not UTF-8"),
    ],
)
def test_what_no_file_can_hold_is_refused(words, told) -> None:
    def refuse(value: object) -> object:
        raise ValueError(f"{value}: no")  # which pydantic encodes

    class Inner(Component):
        seed: int = 0
        sizes: tuple[int, ...] = ()
        rate: Annotated[float, BeforeValidator(refuse)] = 0.0

    with pytest.raises(ConfigError, match=told):
        load_component(Inner, words)


def test_a_copy_is_validated_too() -> None:
    config = load_config(mapping())
    assert type(config.model_copy(update={"seed": np.int64(7)}).seed) is int
    with pytest.raises(ConfigError, match=r"^seed=7: it is a text; give it without quotes"):
        config.model_copy(update={"seed": "7"})
    with pytest.raises(ConfigError, match=r"^sead=7: there is no such key; did you mean seed"):
        config.model_copy(update={"sead": 7})
    with pytest.raises(ConfigError, match=r"^temperature=-1"):
        config.method.model_copy(update={"temperature": -1})
    assert config.model_copy() == config


def test_targets_are_classes_and_their_configs() -> None:
    assert config_model(f"{HERE}:Learner") is Learner.Config
    assert config_model(f"{HERE}:Plain") is Plain
    assert load_target(f"{HERE}:Learner.Config") is Learner.Config
    assert target_of(Learner.Config()) == f"{HERE}:Learner"
    assert target_of(Plain(clients=1)) == f"{HERE}:Plain"
    assert parse_component({"target": f"{HERE}:Plain", "clients": 3}) == Plain(clients=3)


def test_a_dump_holds_every_default_and_the_targets() -> None:
    dump = dump_config(load_config(mapping(widths=[[8]])))
    assert dump["method"]["target"] == f"{HERE}:Learner"
    assert dump["method"]["widths"] == [[8]]
    assert dump["partition"] == {"target": f"{HERE}:Plain", "clients": 2, "share": 1.0}
    assert dump["evaluation"]["every"] == 10
    # Trust is the reader's to give.
    assert set(dump) == set(RunConfig.model_fields) - {"trust"}


@given(
    seed=st.integers(0, 2**63 - 1),
    temperature=st.floats(min_value=1e-300, max_value=1e300),
    widths=st.lists(st.lists(st.integers(1, 512), max_size=3), max_size=3),
    cohort=st.one_of(st.floats(0, 1), st.integers(1, 9), st.lists(st.integers(0, 9), min_size=1)),
    name=st.none() | st.text().filter(lambda text: text != "bad"),
    loggers=st.lists(st.sampled_from(["csv", "tensorboard", "wandb"]), max_size=3),
)
def test_loading_a_dump_gives_an_equal_config(
    seed: int, temperature: float, widths: Any, cohort: Any, name: str | None, loggers: list[str]
) -> None:
    values = mapping(temperature=temperature, widths=widths, cohort=cohort, name=name)
    config = load_config(values | {"seed": seed, "tracking": {"loggers": loggers}})
    again = load_config(json.loads(json.dumps(dump_config(config))))
    assert again == config
    assert type(again.method.cohort) is type(config.method.cohort)  # type: ignore[attr-defined]


def test_a_dump_has_no_arguments_of_loggers() -> None:
    """They may be keys and passwords."""
    own = {"target": "lightning.pytorch.loggers:MLFlowLogger", "token": "SECRET"}
    config = load_config(mapping() | {"tracking": {"loggers": ["csv", own]}})
    dumped = dump_config(config)
    assert dumped["tracking"]["loggers"] == ["csv", {"target": own["target"]}]
    assert "SECRET" not in json.dumps(dumped)
    assert config.tracking.loggers[1] == own


def test_values_are_shown_as_on_the_command_line() -> None:
    assert show([1, None, True, {"a": 0.5}]) == "[1,null,true,{a:0.5}]"
    assert len(show("x" * 100)) == 60


def test_the_engines_keys_are_refused_alike_without_the_components():
    for key, bad in (("tracking", {"progress": "plain"}), ("seed", -1), ("sead", 1)):
        values = mapping() | {key: bad}
        with pytest.raises(ConfigError) as whole:
            load_config(values)
        with pytest.raises(ConfigError) as engine:
            check_keys(values)
        assert str(engine.value) == str(whole.value)
    check_keys(mapping())
    check_keys({"seed": 1})


def test_names_that_hold_commas_are_told_apart():
    assert one_of("x", ["a, b", "c"]) == "must be one of 'a, b', c."


def test_what_protects_clients_is_told_in_words() -> None:
    noise = DPConfig(clip=1, noise_multiplier=4.25)
    assert PrivacyConfig().words == {}
    assert PrivacyConfig(secure_aggregation=True, dp=noise).words == {
        "secure aggregation": "on",
        "differential privacy": "clip 1, noise 4.25",
    }
