"""Every experiment is what its name says: method, data, clients, sizes."""

from functools import cache

import pytest

from coterie.commands.compose import compose, config_dir, experiments
from coterie.config import RunConfig, dump_config, load_config
from coterie.errors import ConfigError
from coterie.modules.averaging import scaled_rate
from coterie.modules.orchestra import scaled_epochs

FEDERATED = {"fedmcc": 5, "fedcc": 5, "mcc": 1, "cc": 1, "fedavg": 5}
FEDERATED |= {"fedsimclr": 5, "fedbyol": 5, "fedsimsiam": 5, "simclr": 1, "byol": 1, "simsiam": 1}
FEDERATED |= {"fedu": 5, "fedema": 5, "moon": 10, "specloss": 5, "rotpred": 5, "autoencoder": 5}
FEDERATED |= {"vae": 5, "dec": 5, "scan": 5, "idfd": 5}
FEDERATED |= {"dcco": 10, "fedsc": 10, "fedca": 5, "fedx": 10}
FEDERATED |= dict.fromkeys(("vicreg", "barlow_twins", "moco", "dino", "mae"), 5)
FEDERATED |= {"ccfc": 10, "cfcl": 10, "kfed": 10, "ffcm": 10}
FEDERATED |= {"cpcfl": 60, "ifca": 60, "cpcfl_digits": 12, "ifca_digits": 12}
FEDERATED |= {"concord": 10, "kmeans": 10, "prototypes": 10, "turtle": 10}
FEDERATED |= {"sda_fc": 10, "ppfc_gan": 10}
RAW = ("kfed", "ffcm", "kmeans", "turtle", "sda_fc")
WHOLE = ("ccfc", "concord", "prototypes", "ppfc_gan", *RAW)
ENCODERS = dict.fromkeys(RAW, "encoders:Raw") | {"ppfc_gan": "encoders:MLP"}
ENCODERS |= {"mae": "timm_models:Timm"}
ENCODERS |= dict.fromkeys(("concord", "prototypes"), "orientations:Orientations")
FEDERATED |= {"orchestra": 10, "orchestra_fashionmnist": 20}
FEDERATED |= {"orchestra_cifar10": 100, "orchestra_cifar100": 100}


def test_orchestras_silos_are_the_papers() -> None:
    built = compose("experiment=orchestra_cifar10_silo").method
    assert (built.learning_rate, built.momentum, built.batch_size) == (0.01, 0.99, 256)
    assert (built.participation, built.epochs, built.rounds) == (1.0, 10, 100)
    assert (built.local_clusters, built.global_clusters) == (8, 32)
    rate = scaled_rate(built.learning_rate, built.participation, built.base_participation)
    assert (rate, scaled_epochs(built.epochs, 10, built.base_clients)) == (0.01, 10)


def test_orchestra_has_the_papers_clusters_of_cifar100() -> None:
    of = {name: compose(f"experiment=orchestra_{name}").method for name in ("cifar10", "cifar100")}
    assert (of["cifar10"].local_clusters, of["cifar10"].global_clusters) == (8, 32)
    assert (of["cifar100"].local_clusters, of["cifar100"].global_clusters) == (16, 256)


FILES = {path.stem for path in (config_dir() / "experiment").glob("*.yaml")}
OPEN = sorted(FILES - {"photographs", "lightning"})
PHOTOGRAPHS = {
    "concord_lite2": (160, "tf_efficientnet_lite2"),
    "concord_dinov2": (224, "vit_small_patch14_dinov2.lvd142m"),
    "concord_dinov3": (224, "vit_small_patch16_dinov3.lvd1689m"),
    "concord_clip": (224, "vit_base_patch16_clip_224.openai"),
}
"""Pixels and timm's network of the experiments that need a folder of pictures and weights."""
NAMED = [name for name in experiments() if name not in (*FILES, *PHOTOGRAPHS)]


@cache
def named(name: str) -> RunConfig:
    """The experiment of this name."""
    return compose(f"experiment={name}")


def survives_a_dump(config: RunConfig) -> bool:
    return load_config(dump_config(config)) == config


def parts_of(name: str) -> tuple[str, str]:
    """An experiment's method and the rest of its name."""
    method = max((one for one in OPEN if name.startswith(f"{one}_")), key=len)
    return method, name.removeprefix(f"{method}_")


def test_every_experiment_has_a_sentence() -> None:
    assert [name for name, sentence in experiments().items() if not sentence.endswith(".")] == []


@pytest.mark.parametrize("name", OPEN)
def test_an_experiment_without_a_data_set_takes_any(name: str) -> None:
    config = compose(f"experiment={name}", "data=class_folders", "data.path=pictures")
    values = dump_config(config)
    assert (config.experiment, survives_a_dump(config)) == (name, True)
    assert values["method"]["target"].lower().endswith(f":{name.replace('_', '')}")
    assert values["partition"]["target"].endswith(":IID")  # which needs no labels
    encoder = ENCODERS.get(name, "auto:Auto")
    assert values["encoder"]["target"] == f"coterie.networks.{encoder}"


def test_photographs_are_large_for_a_resnet_50_in_bf16() -> None:
    config = compose("experiment=photographs", "data.path=any")
    values = dump_config(config)
    assert (config.experiment, survives_a_dump(config)) == ("photographs", True)
    assert values["method"]["target"] == "coterie.modules.simclr:FedSimCLR"
    assert (values["data"]["size"], values["precision"]) == (224, "bf16-mixed")
    assert values["encoder"]["model"] == "resnet50"


ONE_DATA_SET = {parts_of(name)[0]: name for name in NAMED if "_" not in parts_of(name)[1]}


@pytest.mark.parametrize("name", ONE_DATA_SET.values())  # one of each method
def test_method_and_data_compose_to_the_experiment_of_both_names(name: str) -> None:
    method, data = parts_of(name)
    assert compose(f"experiment={method}", f"data={data}") == named(name)


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_photographs_take_a_folder_and_a_network_with_its_weights(name: str) -> None:
    size, model = PHOTOGRAPHS[name]
    with pytest.raises(ConfigError, match=r"data\.path: a value is needed"):
        compose(f"experiment={name}")
    given = (f"experiment={name}", "data.path=pictures")
    with pytest.raises(ConfigError, match=rf"encoder\.pretrained=true: .*timm/{model}"):
        compose(*given)
    values = dump_config(compose(*given, "encoder.pretrained=false"))
    assert (values["experiment"], values["data"]["size"]) == (name, size)
    assert values["evaluation"]["every"] == 0  # each would embed all pictures again
    assert values["encoder"]["model"] == model


@pytest.mark.parametrize("name", NAMED)
def test_every_experiment_is_what_its_name_says(name: str) -> None:
    method, rest = parts_of(name)
    data = rest.split("_")[0]
    clients = FEDERATED.get(name, FEDERATED[method])
    values = dump_config(named(name))
    assert (named(name).experiment, survives_a_dump(named(name))) == (name, True)
    assert values["method"]["target"].lower().endswith(f":{method.replace('_', '')}")
    assert values["data"]["target"].lower().endswith(f":{data}")
    assert values["partition"]["clients"] == clients
    resized = data in ("mnist", "fashionmnist") and method not in ("fedavg", "moon", *WHOLE)
    sizes = {"concord_digits": 16, "prototypes_digits": 16}
    assert values["data"]["size"] == sizes.get(name, 32 if resized else None)
    assert values["data"]["root"] is None
    if method == "cfcl":
        embedded = name.endswith("_implicit")
        assert values["method"]["exchange"] == ("implicit" if embedded else "explicit")
        assert values["encoder"]["features"] == 16
        assert values["partition"]["k"] == 3
    if data == "cifar10" and clients != 60:
        depth = 34 if clients == 1 else 18
        split = "all" if clients == 1 or method in WHOLE else "train"
        if method not in (*RAW, "ppfc_gan"):
            assert (values["encoder"]["depth"], values["encoder"]["stem"]) == (depth, "small")
        assert values["data"]["split"] == split
    if method in RAW:
        assert values["encoder"] == {
            "target": "coterie.networks.encoders:Raw",
            "unit_length": False,
        }
