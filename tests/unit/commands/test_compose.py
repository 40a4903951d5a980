"""From a command line to a validated configuration, by the YAML groups of the repository."""

# ruff: noqa: E501 -- the sentences stand whole

from pathlib import Path

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir

from coterie.commands import compose as compose_module
from coterie.commands.compose import (
    compose,
    compose_plain,
    config_dir,
    describe_choice,
    experiments,
    groups,
    parse,
    read_choice,
)
from coterie.commands.written import written
from coterie.config import (
    Component,
    MethodConfig,
    PartitionConfig,
    dump_config,
    load_config,
    target_of,
)
from coterie.errors import ConfigError

HERE = __name__
SECTIONS = ("method", "data", "partition", "encoder", "augmentation")


class Toy(MethodConfig, PartitionConfig):
    size: int = 1
    depth: int = 2
    lr: float = 0.1


class Other(Component):
    width: int = 3
    lr: float = 0.2


BASE = """
defaults:
  - _self_
  - method: null
  - data: null
  - partition: null
  - encoder: null
  - augmentation: null
  - cluster: local
  - experiment: null
"""
FIRST = """# @package _global_
# The first of all.

# Another comment.
defaults:
  - override /method: toy
  - override /data: toy
  - override /partition: toy
  - override /encoder: shallow
  - override /augmentation: toy
seed: 7
encoder:
  size: 5
  lr: 1e-3
"""


THIRD = """# @package _global_
# The third, on any data.
defaults:
  - override /method: toy
  - override /partition: toy
  - override /encoder: other
  - override /augmentation: toy
seed: 1
encoder:
  width: 8

# Below.
recipes:
  toy:
    about: The third, with toys.
    choose: {data: toy, encoder: deep}
    encoder:
      size: 5
  toy_more:
    about: More of it.
    like: toy
    seed: 2
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {
        "config": BASE,
        "experiment/first": FIRST,
        "experiment/second": FIRST.replace("The first of all", "The second"),
        "experiment/third": THIRD,
        "data/wide": f"target: {HERE}:Other\n",
        "experiment/broken": "# @package _global_\ndefaults:\n  - override /method: nope\n",
        "encoder/shallow": f"target: {HERE}:Toy\ndepth: 1\n",
        "encoder/deep": f"target: {HERE}:Toy\ndepth: 9\n",
        "encoder/other": f"target: {HERE}:Other\n",
        "cluster/local": "# Here.\n{}\n",
        "cluster/serial": "backend: serial\n",
    }
    files |= {f"{name}/toy": f"target: {HERE}:Toy\n" for name in SECTIONS if name != "encoder"}
    for name, text in files.items():
        path = tmp_path / "configs" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    package = tmp_path / "platform" / "coterie"
    package.mkdir(parents=True)
    monkeypatch.setattr(compose_module, "__file__", str(package / "commands" / "compose.py"))
    return tmp_path


@pytest.mark.usefixtures("tree")
class TestInASmallTree:
    def test_an_experiment_chooses_sets_and_names(self) -> None:
        config = compose("experiment=first")
        assert (config.experiment, config.seed) == ("first", 7)
        assert config.encoder == Toy(size=5, depth=1, lr=0.001)
        assert config.method == Toy()

    def test_single_values_win(self) -> None:
        config = compose("experiment=first", "seed=3", "encoder.size=8", "method.lr=2")
        assert (config.seed, config.encoder, config.method) == (
            3,
            Toy(size=8, depth=1, lr=0.001),
            Toy(lr=2.0),
        )

    def test_another_class_takes_no_key_of_the_former(self) -> None:
        assert compose("experiment=first", "encoder=other").encoder == Other()
        config = compose("encoder.width=4", "encoder=other", "experiment=first")
        assert config.encoder == Other(width=4)

    def test_another_choice_of_the_same_class_keeps_the_experiments_keys(self) -> None:
        assert compose("experiment=first", "encoder=deep").encoder == Toy(size=5, depth=9, lr=0.001)
        assert compose("experiment=first", "encoder=shallow") == compose("experiment=first")

    def test_a_model_of_a_library_is_named_behind_a_colon(self) -> None:
        plain = compose_plain("experiment=first", "encoder=deep:resnet18", "encoder.size=3")
        assert plain["encoder"] == {
            "target": f"{HERE}:Toy",
            "depth": 9,
            "size": 3,
            "model": "resnet18",
        } | {"lr": 0.001}
        plain = compose_plain("experiment=first", "encoder.model=b", "encoder=deep:a.b_1")
        assert plain["encoder"]["model"] == "b"
        assert (
            "model"
            not in compose_plain("experiment=first", "encoder=deep:a", "encoder=deep")["encoder"]
        )
        assert read_choice("encoder", "deep:a") == {
            "target": f"{HERE}:Toy",
            "depth": 9,
            "model": "a",
        }

    def test_a_class_of_ones_own_by_target(self) -> None:
        assert compose("experiment=first", f"encoder.target={HERE}:Other").encoder == Other()
        for own in (
            ["encoder.width=4", f"encoder.target={HERE}:Other"],
            [f"encoder={{target:'{HERE}:Other',width:4}}"],
        ):
            assert compose("experiment=first", *own).encoder == Other(width=4)
        same = compose("experiment=first", f"encoder.target={HERE}:Toy")
        assert same.encoder == Toy(size=5, depth=1, lr=0.001)

    def test_the_last_choice_counts(self) -> None:
        assert compose("experiment=first", "experiment=second").experiment == "second"
        assert compose("experiment=first", "cluster=serial").cluster.backend == "serial"

    def test_values_are_read_by_hydras_grammar(self) -> None:
        config = compose("experiment=first", "run_dir='a b,c'", "tracking.loggers=[csv,wandb]")
        assert (config.run_dir, config.tracking.loggers) == ("a b,c", ("csv", "wandb"))
        assert compose("experiment=first", "cluster={backend:serial}").cluster.backend == "serial"
        assert compose("experiment=first", "+seed=1", "++data.size=2").data == Toy(size=2)

    def test_a_value_can_be_taken_back(self) -> None:
        config = compose("experiment=first", "~seed", "~encoder.size")
        assert (config.seed, config.encoder) == (0, Toy(size=1, depth=1, lr=0.001))

    def test_experiments_are_described_by_their_first_comment(self) -> None:
        assert experiments() == {
            "broken": "",
            "first": "The first of all.",
            "second": "The second.",
            "third": "The third, on any data.",
            "third_toy": "The third, with toys.",
            "third_toy_more": "More of it.",
        }
        assert groups()["encoder"] == ["deep", "other", "shallow"]
        assert read_choice("encoder", "deep") == {"target": f"{HERE}:Toy", "depth": 9}

    def test_a_surrounding_hydra_survives(self, tree: Path) -> None:
        with initialize_config_dir(str(tree / "configs"), version_base="1.3"):
            compose("experiment=first", "encoder=deep")
            assert hydra_compose("config", ["experiment=first"]).seed == 7

    def test_an_experiment_has_recipes_for_data_sets(self) -> None:
        given = compose("experiment=third", "data=toy")
        assert given.experiment == "third_toy"
        assert given == compose("experiment=third_toy")
        assert (given.encoder, given.seed) == (Toy(size=5, depth=9, lr=0.1), 1)
        more = compose("experiment=third_toy_more", "encoder=shallow")
        assert (more.experiment, more.seed) == ("third_toy_more", 2)
        assert more.encoder == Toy(size=5, depth=1, lr=0.1)  # the recipe's keys, another choice
        other = compose("experiment=third", "data=wide")
        assert (other.experiment, other.encoder) == ("third", Other(width=8))
        assert experiments()["third_toy"] == "The third, with toys."
        with pytest.raises(ConfigError, match=r"^data: none is chosen; give data=mnist, or your"):
            compose("experiment=third")


PROBLEMS = [
    (
        [],
        "experiment: none is chosen; give experiment=<name>, one of broken, first, second, third, third_toy, third_toy_more.",
    ),
    (
        ["seed=1"],
        "experiment: none is chosen; give experiment=<name>, one of broken, first, second, third, third_toy, third_toy_more.",
    ),
    (
        ["experiment=frist"],
        "experiment=frist: must be one of broken, first, second, third, third_toy, third_toy_more; did you mean first?",
    ),
    (
        ["experiment=null"],
        "experiment=null: must be one of broken, first, second, third, third_toy, third_toy_more.",
    ),
    (
        ["experiment=first", "encoder=depe"],
        "encoder=depe: must be one of deep, other, shallow; did you mean deep?",
    ),
    (
        ["experiment=first", "encoder=[deep]"],
        "encoder=[deep]: must be one of deep, other, shallow; did you mean deep?",
    ),
    (
        ["experiment=first", "encoder=a.b:C"],
        "encoder=a.b:C: your class goes in encoder.target=a.b:C.",
    ),
    (
        ["experiment=first", "encoder=hf:x/y"],
        "encoder=hf:x/y: give encoder=timm:NAME, which takes the hub's weights, or encoder.target=",
    ),
    (["--rounds=3"], "--rounds=3: it cannot be read; keys have no dashes before them."),
    (["experiment=first", "encoder=a/b"], "encoder=a/b: give encoder=timm:NAME, which takes the"),
    (
        ["experiment=first", "method=fedprox"],
        "method=fedprox: it is a strategy for your own LightningModule; give "
        "experiment=lightning method.strategy=fedprox.",
    ),
    (["experiment=fedprox_digits"], "experiment=fedprox_digits: it is a strategy for your own Li"),
    (["experiment=fedbn"], "experiment=fedbn: it keeps layers with their clients, for your own Li"),
    (
        ["experiment=first", "method=fedyogi"],
        "method=fedyogi: it is an optimiser of the server; give aggregation.optimizer=yogi ",
    ),
    (
        ["experiment=first", "encoder@x=deep"],
        "encoder@x=deep: a section cannot be renamed; leave @x out.",
    ),
    (
        ["experiment=first", "encoder.siez=1"],
        "encoder.siez=1: there is no such key; did you mean encoder.size?",
    ),
    (
        ["experiment=first", "encoder=other", "encoder.size=1"],
        "encoder.size=1: there is no such key; did you mean method.size?",
    ),
    (
        ["experiment=first", "method.lr=true"],
        "method.lr=true: not a number; give one such as method.lr=0.1.",
    ),
    (
        ["experiment=first", "+foo=bar"],
        "foo=bar: there is no such key; the top has experiment, seed,",
    ),
    (["experiment=first", "hydra.run.dir=x"], "hydra.run.dir=x: there is no such key; "),
    (
        ["experiment=first", "encodr=deep"],
        "encodr=deep: there is no such key; did you mean encoder?",
    ),
    (["experiment=first", "foo"], "foo: it cannot be read; write it as key=value."),
    (["experiment=first", "/"], "/: it cannot be read; write it as key=value, such as run=/ or d"),
    (["--seed"], "--seed: it cannot be read; keys have no dashes before them."),
    (["seed=[1"], "seed=[1: it cannot be read; close brackets and quotes"),
    (["seed='a"], "seed='a: it cannot be read; close brackets and quotes"),
    (["seed=1,2"], "seed=1,2: these are several values; give one, or a list as seed=[1,2]."),
    (
        ["seed=range(1,3)"],
        "seed=range(1,3): these are several values; give one, or a list as seed=[range(1,3)].",
    ),
    (["experiment=first", "~zzz"], "~zzz: the experiment does not set it; leave it out."),
    (["experiment=first", "~zzz.a"], "~zzz.a: the experiment does not set it; leave it out."),
    (
        ["experiment=first", "run_dir=${nope}"],
        "experiment=first run_dir=${nope}: the config does not compose: Interpolation key 'nope' not found.",
    ),
    (
        ["experiment=first", "seed=???"],
        "experiment=first seed=???: the config does not compose: Missing mandatory value: seed.",
    ),
    (["experiment=broken"], "experiment=broken: the config does not compose: "),
]


@pytest.mark.usefixtures("tree")
@pytest.mark.parametrize(("overrides", "sentence"), PROBLEMS)
def test_a_command_line_is_refused_in_one_sentence(overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(*overrides)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)
    if sentence.endswith((".", "?")):
        assert str(caught.value) == sentence


@pytest.mark.usefixtures("tree")
@pytest.mark.parametrize(
    "path", ["~/runs/first", "/tmp/bücher", "/tmp/lr=1e-3", "/tmp/a&b", "/tmp/a b#c"]
)
def test_a_path_needs_no_quotes(path: str) -> None:
    assert str(compose("experiment=first", f"run_dir={path}").run_dir) == path


def test_a_missing_folder_of_yaml_is_named(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        compose_module, "__file__", str(tree / "a" / "b" / "c" / "d" / "compose.py")
    )
    with pytest.raises(ConfigError, match=r"configs: the folder with the YAML is missing"):
        compose("experiment=first")


def test_in_a_wheel_the_yaml_lies_in_the_package(tree: Path) -> None:
    package = tree / "platform" / "coterie"
    assert config_dir() == tree / "configs"
    (tree / "configs").rename(package / "configs")
    assert config_dir() == package / "configs"
    assert compose("experiment=first").seed == 7


def test_the_working_directory_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = groups()
    monkeypatch.chdir(tmp_path)
    assert groups() == here
    assert here["cluster"] == ["gpu", "local", "serial"]


CHOICES = [(g, choice) for g, names in groups().items() if g != "experiment" for choice in names]
OWN_DATA = {"class_folders", "client_folders", "image_folder", "manifest", "npz", "shards"}
OWN_DATA |= {"webdataset", "imagenet10", "imagenet_dogs"}


@pytest.mark.ci
@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_yaml_composes_and_survives_a_dump(group: str, choice: str, finished_run) -> None:
    path = [f"{group}.path=somewhere"] if choice in {*OWN_DATA, "file", "rest"} else []
    path += ["data.clients={a: here, b: there}"] if choice == "node_local" else []
    path += [f"encoder.path={finished_run.run_dir}"] if choice == "pretrained" else []
    path += ["encoder.path=pyproject.toml"] if choice == "exported" else []
    path += ["encoder.parts=[timm:resnet18,torchvision:resnet18]"] if choice == "joined" else []
    path += ["encoder.model=resnet18"] if choice in {"torchvision", "timm"} else []
    config = compose("experiment=fedmcc_digits", f"{group}={choice}", *path)
    assert load_config(dump_config(config)) == config
    assert describe_choice(group, choice).endswith(".")
    section = dump_config(config)[group]
    for key, value in read_choice(group, choice).items() if group in SECTIONS else ():
        assert section[key] == value


def test_another_partition_brings_its_own_keys() -> None:
    config = compose("experiment=mcc_digits", "partition=dirichlet", "partition.clients=4")
    assert target_of(config.partition) == "coterie.datamodules.partition_configs:Dirichlet"
    assert config.partition.model_dump()["clients"] == 4


@pytest.mark.parametrize(
    "path",
    [
        "/x/Bilder (1)",
        "[2024] a,b",
        "it's",
        "'half",
        "a{b}",
        'qu"ote',
        "50 % #1",
        "trailing ",
        "1e5",
        "2024",
        "true",
        "a=b",
        "back\\slash\\",
    ],
)
def test_a_path_is_read_as_it_is(path):
    for key in ("run_dir", "data.path", "out", "encoder.weights"):
        assert parse([f"{key}={path}"])[0].value() == path
        assert parse([f"{key}={written(path)}"])[0].value() == path


def test_a_path_may_be_in_quotes_or_swept():
    assert parse(["run_dir='a, b'"])[0].value() == "a, b"
    assert parse(["run_dir=null"])[0].value() is None
    assert parse(["encoder.path=a,b"], sweeps=True)[0].is_choice_sweep()
    assert parse(["encoder.path=a (1),b"], sweeps=True)[0].value() == "a (1),b"


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("[Höhe,weight (kg)]", ["Höhe", "weight (kg)"]),
        ('["Länge, außen",Breite,1]', ["Länge, außen", "Breite", 1]),
        ("['a,b', ü ]", ["a,b", "ü"]),
        ("[a b,c=d]", ["a b", "c=d"]),
    ],
)
def test_items_of_a_list_need_no_quotes(text, items):
    assert parse([f"data.feature_columns={text}"])[0].value() == items


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{Höhe: [1, 2]}", {"Höhe": [1, 2]}),
        ('{age:[0,100],"weight (kg)":[1e-1,1.5]}', {"age": [0, 100], "weight (kg)": [0.1, 1.5]}),
        ("{'a, b': {ü: x}, c#d: true}", {"a, b": {"ü": "x"}, "c#d": True}),
    ],
)
def test_names_in_a_mapping_may_be_any_text(text, found):
    assert parse([f"data.feature_ranges={text}"])[0].value() == found


@pytest.mark.parametrize(
    "text",
    [
        *("{ü: ", "{ü: [}", "{ü: ${x}}", "{ü: !!python/none x}", "{- ü}"),
        "{ü: &x [1, 1], a: [*x, *x]}",
        *("{ü: " + "[" * 1000 + "]" * 1000 + "}", "{a:" * 400 + "1" + "}" * 400),
    ],
    ids=lambda text: text[:12],
)
def test_what_is_no_mapping_is_told(text):
    with pytest.raises(ConfigError, match="it cannot be read; close brackets and quotes"):
        parse([f"data.feature_ranges={text}"])


def test_a_long_override_is_cut_in_its_error():
    with pytest.raises(ConfigError) as told:
        parse([f"seed=[{'9' * 5000}"])
    assert len(str(told.value)) < 400


@pytest.mark.parametrize("text", ["[ü", "[ü,[a]]", "[${x},ü]", "[ü,{a: b}]"])
def test_what_is_more_than_a_list_is_hydras(text):
    with pytest.raises(ConfigError, match="it cannot be read; close brackets and quotes"):
        parse([f"data.feature_columns={text}"])


@pytest.mark.parametrize("key", ["strategy=fedprox", "personal=['head.*']", "keep_optimizer=true"])
def test_keys_of_an_own_module_are_told_where_they_go(key):
    with pytest.raises(ConfigError, match="of your own LightningModule; give experiment=light"):
        compose("experiment=fedavg_digits", f"method.{key}")


@pytest.mark.parametrize(
    ("encoder", "told"),
    [
        ("dinov2", "there is no such encoder; give experiment=concord_dinov2, encoder=timm:dinov2"),
        ("vit", "there is no such encoder; give encoder=timm:vit or encoder=torchvision:vit"),
        ("conv5", "there is no such encoder; did you mean conv4"),
    ],
)
def test_encoders_that_are_not_there_are_told_of_those_that_are(encoder, told):
    with pytest.raises(ConfigError, match=f"^encoder={encoder}: {told}"):
        compose("experiment=concord_digits", f"encoder={encoder}")


@pytest.mark.parametrize("text", ["it's (a), b", "a] b", "5 % #3"])
def test_other_text_that_is_no_list_needs_no_quotes(text):
    assert parse([f"tracking.wandb.group={text}"])[0].value() == text


def test_a_mistyped_folder_of_a_run_to_resume_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"run_dir=.*typo: there is no such folder; give the"):
        compose("resume=true", f"run_dir={tmp_path / 'typo'}")
    with pytest.raises(ConfigError, match=r"run_dir=.*: no config.yaml in it; give the folder of"):
        compose("resume=true", f"run_dir={tmp_path}")
    folder = tmp_path / "run" / "model"
    folder.mkdir(parents=True)
    for name in ("config.yaml", "model.json"):
        (folder / name).touch()
    with pytest.raises(ConfigError, match=r"it is a run's model; give the run's folder .*run\."):
        compose("resume=true", f"run_dir={folder}")


def test_several_loggers_are_told_their_key():
    with pytest.raises(
        ConfigError, match=r"^tracking=\[csv,wandb\]: .*tracking\.loggers=\[csv,wandb"
    ):
        compose("experiment=fedmcc_digits", "tracking=[csv,wandb]")


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ((), False),
        (("partition=iid",), False),
        (("partition=dirichlet",), True),
        (("partition=iid", "partition=k_classes"), True),
        (("partition=dirichlet", "data.read_labels=false"), False),
    ],
)
def test_classes_are_read_where_the_partition_is_by_class(words, read):
    own = ("experiment=lightning", "module=a.b:C", "data.target=a.b:D")
    assert compose_plain(*own, *words)["data"].get("read_labels", False) is read


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["experiment=kmeans", "data=t.csv"],
            "^data=t.csv: a file goes in data=manifest data.path=t",
        ),
        (
            ["experiment=kmeans", "data=a/x.npz"],
            "^data=a/x.npz: a file goes in data=npz data.path=a",
        ),
        (
            ["experiment=lightning", "data=mine.Data"],
            "^data=mine.Data: your class goes in data.target=mine.Data",
        ),
        (["experiment=kmeans", "data=csv"], "^data=csv: .* did you mean manifest"),
        (["experiment=kmeans", f"seed={'9' * 5000}"], "^seed=9+…: it cannot be read"),
        (["experiment=fedmcc_digits", "method.cluster=3"], r"did you mean method\.clusters\?$"),
        (
            ["experiment=fedmcc_digits", "method.round=3"],
            r"did you mean method\.representation_rounds or method\.clustering_rounds\?$",
        ),
        (["experiment=fedavg_digits", "method.epoch=3"], r"did you mean method\.epochs\?$"),
        (["experiment=lightning", "resume=true"], "^resume=true: give the folder of the run"),
        (["resume=true"], "^resume=true: give the folder of the run to go on with as run_dir=DIR"),
        (
            ["experiment=lightning", "module=a:B", "data.target=a:C", "method.strategy=FedBN"],
            r"^strategy=FedBN: it keeps layers .* give personal=\[NAMES\]",
        ),
    ],
)
def test_what_goes_elsewhere_is_told_where(words, told):
    with pytest.raises(ConfigError, match=told):
        load_config(compose_plain(*words))


def test_a_strategy_may_be_written_as_its_class():
    own = ("experiment=lightning", "module=a:B", "data.target=a:C")
    names = [compose_plain(*own, f"method.strategy={name}") for name in ("FedProx", "fedprox")]
    assert names[0] == names[1]
