"""Weights that libraries name: found on this machine, or fetched from a server on loopback."""

import hashlib
import io
from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import save
from torchvision import models

from coterie.commands.compose import compose
from coterie.config import dump_config, load_config
from coterie.errors import ConfigError
from coterie.networks.own_weights import from_address
from coterie.networks.timm_models import Timm
from coterie.networks.torchvision_models import Torchvision
from coterie.run.same_run import check_same_run
from coterie.tracking.run_directory import RunDirectory
from tests.builders.weight_server import COMMIT, weight_server

TINY, REPOSITORY = "test_resnet", "timm/test_resnet.r160_in1k"
PLACE = f"/{REPOSITORY}/resolve/main/model.safetensors"


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The stub in place of the hub, with empty caches."""
    with weight_server() as served:
        hub_address(monkeypatch, served.address)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub_cache"))
        monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield served


def tiny_weights() -> bytes:
    return save(timm.create_model(TINY).state_dict())


def resnet_weights() -> bytes:
    file = io.BytesIO()
    torch.save(models.resnet18().state_dict(), file)
    return file.getvalue()


def hub_address(monkeypatch, address: str) -> None:
    """Let the hub's client ask this address."""
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + template)
    monkeypatch.setattr(constants, "ENDPOINT", address)


def resnet_address(monkeypatch, address: str) -> None:
    """Let torchvision name this address."""

    class Named:
        class DEFAULT:
            url = address
            transforms = models.ResNet18_Weights.DEFAULT.transforms

    monkeypatch.setattr(models, "get_model_weights", lambda _: Named)


def test_download_fetches_what_timm_names_once(server, tmp_path) -> None:
    content = server.files[PLACE] = tiny_weights()
    config = Timm(model=TINY, download=True)
    assert config.digest == hashlib.sha256(content).hexdigest()
    assert config.source == f"hf://{REPOSITORY}@{COMMIT}/model.safetensors"
    assert config.build((3, 32, 32)).features > 1
    asked = len(server.asked)
    again = Timm(model=TINY, pretrained=True)
    assert (again.weights, again.source) == (config.weights, config.source)
    assert again.digest == config.digest
    assert len(server.asked) == asked


def test_source_and_hash_are_stored_and_a_stored_config_fetches_nothing(server, tmp_path) -> None:
    server.files[PLACE] = tiny_weights()
    command = ("experiment=fedavg_digits", f"encoder=timm:{TINY}", "encoder.download=true")
    config = compose(*command)
    RunDirectory(tmp_path).write_config(dump_config(config))
    stored = RunDirectory(tmp_path).read_config()
    assert stored["encoder"]["source"].endswith(f"@{COMMIT}/model.safetensors")
    assert stored["encoder"]["digest"] == config.encoder.digest
    assert stored["encoder"]["download"] is False
    Path(config.encoder.weights).unlink()
    asked = len(server.asked)
    assert load_config(stored).encoder.digest == config.encoder.digest
    assert len(server.asked) == asked
    assert check_same_run(stored, compose(*command)) == ""  # fetched again, to the same bits


@pytest.mark.parametrize("served", ["pytorch_model.bin", None])
def test_only_safetensors_come_from_a_hub(server, served) -> None:
    if served:
        server.files[PLACE.replace("model.safetensors", served)] = b"pickled"
    with pytest.raises(ConfigError, match=r"fetching model\.safetensors of timm/test_resnet"):
        Timm(model=TINY, download=True)
    assert not any(line.startswith("GET") for line in server.asked)


def test_a_file_that_is_not_what_the_hub_promised_is_refused(server, tmp_path) -> None:
    server.files[PLACE] = tiny_weights()
    server.promised[PLACE] = "0" * 64
    for _ in range(2):  # the damaged file does not stay for the next attempt
        with pytest.raises(ConfigError, match=r"SHA-256 is .*, not the promised 00000000…"):
            Timm(model=TINY, download=True)
    server.promised.clear()
    assert Timm(model=TINY, download=True).digest


def test_download_fetches_what_torchvision_names_and_checks_its_hash(server, monkeypatch) -> None:
    content = resnet_weights()
    stated = hashlib.sha256(content).hexdigest()[:8]
    name = f"/resnet18-{stated}.pth"
    server.files[name] = content
    resnet_address(monkeypatch, server.address + name)
    with pytest.raises(ConfigError, match=r"not on this machine.*encoder\.download=true"):
        Torchvision(model="resnet18", pretrained=True)
    config = Torchvision(model="resnet18", download=True)
    assert config.source == server.address + name
    assert config.build((3, 32, 32)).features == 512
    server.files["/resnet18-00000000.pth"] = content
    resnet_address(monkeypatch, f"{server.address}/resnet18-00000000.pth")
    with pytest.raises(ConfigError, match="invalid hash value"):
        Torchvision(model="resnet18", download=True)


def test_an_address_without_a_hash_is_refused(server) -> None:
    server.files["/own.pth"] = resnet_weights()
    with pytest.raises(ConfigError, match="names no hash"):
        from_address(f"{server.address}/own.pth", fetch=True)
    assert server.asked == []


@pytest.mark.parametrize("config", [Timm, Torchvision])
def test_without_a_network_a_sentence_says_what_to_do(config, server, monkeypatch) -> None:
    model = TINY if config is Timm else "resnet18"
    hub_address(monkeypatch, "http://127.0.0.1:9")
    resnet_address(monkeypatch, "http://127.0.0.1:9/resnet18-00000000.pth")
    with pytest.raises(ConfigError, match=r"failed .*without a network here, .*encoder\.weights"):
        config(model=model, download=True)


def test_a_file_and_the_librarys_own_weights_exclude_each_other(tmp_path) -> None:
    (tmp_path / "own.pt").write_bytes(resnet_weights())
    with pytest.raises(ConfigError, match="leave one of the two out"):
        Torchvision(model="resnet18", weights=str(tmp_path / "own.pt"), download=True)
