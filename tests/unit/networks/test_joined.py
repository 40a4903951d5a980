"""Several networks side by side as one encoder."""

import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import normalize

from coterie import Federation, compose, load_model
from coterie.config import dump_config, load_config
from coterie.config.stored import read_stored_config
from coterie.contract import seeded
from coterie.errors import ConfigError
from coterie.networks import timm_models
from coterie.networks.encoders import ConvNet2, ConvNet3, Raw
from coterie.networks.joined import Joined
from coterie.networks.own_weights import OwnWeights

TINY = "test_resnet"  # timm ships networks of some 100,000 weights for tests
SMALL = (
    "experiment=kfed_digits",
    "data.limit=120",
    "data.size=32",
    "partition=iid",
    "partition.clients=2",
    "cluster=serial",
    "tracking.progress=none",
    "evaluation.figures=false",
    "encoder=joined",
)


def saved(path, seed):
    with seeded(seed):
        network = timm_models.timm.create_model(TINY, num_classes=0)
    save_file({name: value.contiguous() for name, value in network.state_dict().items()}, path)
    return path


def test_distances_are_the_means_of_the_parts_distances():
    parts = (ConvNet2(width=4, features=6), ConvNet3(width=4, features=5))
    with seeded(1):
        joined = Joined(parts=parts).build((1, 16, 16))
    with seeded(1):
        alone = [part.build((1, 16, 16)).eval() for part in parts]
    images = torch.rand(3, 1, 16, 16)
    found = joined(images)
    assert joined.features == found.shape[1] == 11
    assert torch.allclose(found.norm(dim=1), torch.ones(3))
    units = [normalize(each(images)) for each in alone]
    wanted = sum(torch.cdist(unit, unit) ** 2 for unit in units) / 2
    assert torch.allclose(torch.cdist(found, found) ** 2, wanted, atol=1e-5)


def test_it_is_frozen_unless_it_is_to_be_trained():
    parts = (Raw(), ConvNet2(width=2, features=3))
    for freeze in (True, False):
        built = Joined(parts=parts, freeze=freeze).build((1, 8, 8))
        assert len([*built.parameters()]) == (0 if freeze else 6)


def test_given_weights_travel_with_the_config_and_the_model_holds_them(tmp_path, monkeypatch):
    first, second = (saved(tmp_path / f"{seed}.safetensors", seed) for seed in (1, 2))
    named = f"model: 'timm:{TINY}'"
    one, other = f"{named}, weights: '{first}'", f"{named}, weights: '{second}', size: 48"
    parts = f"[{{{one}}}, {{{other}}}]"
    config = compose(*SMALL, f"encoder.parts={parts}", f"run_dir={tmp_path}/run")
    values = dump_config(config)
    assert [part["size"] for part in values["encoder"]["parts"]] == [None, 48]
    assert len({part["digest"] for part in values["encoder"]["parts"]}) == 2
    assert dump_config(load_config(values)) == values
    Federation(config).run()
    first.unlink()
    images = torch.randint(0, 256, (4, 1, 32, 32), dtype=torch.uint8)
    model = load_model(tmp_path / "run")
    own = pickle.loads(pickle.dumps(config)).encoder.build((1, 32, 32)).eval()
    assert torch.equal(model(images).embedding, own(images / 255))
    second.write_bytes(b"other")
    with pytest.raises(ConfigError, match=r"encoder\.digest=.*has changed"):
        load_config(values)


def test_the_libraries_own_weights_are_fetched_once_for_each(tmp_path, monkeypatch):
    asked = []

    def own(model, *, fetch):
        asked.append((model, fetch))
        return OwnWeights(str(saved(tmp_path / "own.safetensors", 3)), "hf://tiny@1/model")

    monkeypatch.setattr(timm_models.Timm, "own_weights", own)
    two = f"encoder.parts=[timm:{TINY},timm:{TINY}]"
    config = compose(*SMALL, two, "encoder.download=true", f"run_dir={tmp_path}/run")
    assert asked == [(TINY, True)] * 2
    assert {part.source for part in config.encoder.parts} == {"hf://tiny@1/model"}
    Federation(config).run()
    asked.clear()
    stored = read_stored_config(tmp_path / "run" / "model" / "config.yaml")["encoder"]
    assert not stored["download"]
    assert not any(part["download"] for part in stored["parts"])
    load_model(tmp_path / "run")
    compose("resume=true", f"run_dir={tmp_path}/run")
    assert asked == []
    assert not any(part.weights for part in compose(*SMALL, two).encoder.parts)


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ("[timm:test_resnet]", r"encoder\.parts.*at least 2"),
        ("[test_resnet,raw]", r"encoder\.parts: test_resnet: name a network as timm:NAME"),
        ("[keras:x,timm:test_resnet]", r"encoder\.parts: keras:x: name a network"),
        ("[timm:test_resnett,timm:test_resnet]", r"test_resnett.*test_resnet"),
        (
            "[{model: 'timm:test_resnet', download: true},timm:test_resnet]",
            r"set encoder\.download",
        ),
        ("[{target: 'coterie.modules.fedavg:FedAvg'},timm:test_resnet]", r"encoder\.parts.*FedAvg"),
        ("[{model: 'timm:test_resnet', sise: 3},timm:test_resnet]", r"encoder\.parts.*sise"),
        ("[{model: 'timm:test_resnet', weights: none.pt},timm:test_resnet]", r"none\.pt"),
        ("3", r"encoder\.parts=3"),
        ("[3,4]", r"encoder\.parts"),
    ],
)
def test_what_is_no_part_is_refused_in_one_sentence(parts, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        compose(*SMALL, f"encoder.parts={parts}")
    assert "\n" not in str(caught.value)


def test_a_stored_config_of_a_stranger_fetches_and_imports_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(timm_models.Timm, "own_weights", None)  # whoever calls it fails
    Federation(
        compose(*SMALL, f"encoder.parts=[timm:{TINY},timm:{TINY}]", f"run_dir={tmp_path}/run")
    ).run()
    path = tmp_path / "run" / "config.yaml"
    text = path.read_text()
    given = ("resume=true", f"run_dir={tmp_path}/run")
    path.write_text(text.replace("download: false", "download: true"))
    with pytest.raises(ConfigError, match=r"set encoder\.download"):
        compose(*given)
    path.write_text(text.replace("coterie.networks.timm_models:Timm", "os:system"))
    with pytest.raises(ConfigError, match=r"encoder\.parts\[0\]\.target=os:system"):
        compose(*given)
