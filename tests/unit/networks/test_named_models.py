"""Encoders of torchvision and timm by name, and exported programs."""

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torchvision import models

from coterie import Federation, load_model
from coterie.commands.compose import compose
from coterie.config import dump_config, load_config
from coterie.config.component import config_model
from coterie.contract import seeded
from coterie.contract.clusterer import to_unit
from coterie.errors import ConfigError, DataError
from coterie.networks.encoders import ConvNet2
from coterie.networks.exported import Exported
from coterie.networks.timm_models import Timm
from coterie.networks.torchvision_models import Torchvision
from tests.builders.observers import Silent

# timm ships networks of some 100,000 weights for tests.
TINY = "test_resnet"
ONE_ROUND = (
    "experiment=fedavg_digits",
    "cluster=serial",
    "executor=bare",
    "data.limit=60",
    "partition.clients=2",
    "method.rounds=1",
    "method.epochs=1",
    "evaluation.every=0",
    "evaluation.figures=false",
    "evaluation.linear_probe=false",
    "evaluation.knn=false",
    "evaluation.kmeans_baseline=false",
    "tracking.progress=none",
)


def run(folder: Path, *overrides: str) -> None:
    assert Federation(compose(*ONE_ROUND, f"run_dir={folder}", *overrides)).run().exit_code == 0


def saved_resnet(path: Path) -> nn.Module:
    with seeded(3):
        network = models.resnet18()
    weights = {name: value.contiguous() for name, value in network.state_dict().items()}
    save_file(weights, path) if path.suffix == ".safetensors" else torch.save(weights, path)
    return network


def conv2_program(path: Path, shape: tuple[int, ...] = (1, 8, 8)) -> nn.Module:
    with seeded(4):
        network = ConvNet2(width=4, features=6).build(shape)
    batch = torch.zeros(2, *shape)
    dynamic = ({0: torch.export.Dim("batch")},)
    torch.export.save(torch.export.export(network, (batch,), dynamic_shapes=dynamic), path)
    return network


def test_half_precision_is_resized_too() -> None:
    encoder = Timm(model=TINY, size=32).build((3, 20, 20)).bfloat16()
    assert encoder(torch.rand(2, 3, 20, 20).bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        (Timm(model="tf_efficientnet_lite0", size=32), Image.Resampling.BICUBIC),
        (Timm(model="tf_mobilenetv3_small_100", size=32), Image.Resampling.BILINEAR),
        (Torchvision(model="resnet18", size=32), Image.Resampling.BILINEAR),
        (Torchvision(model="efficientnet_b0", size=32), Image.Resampling.BICUBIC),
    ],
)
@pytest.mark.parametrize("side", [20, 50])
def test_images_are_resized_as_for_the_networks_own_weights(given, mode, side) -> None:
    # Pillow cuts what is beyond black and white off after each axis.
    pixels = np.random.default_rng(0).integers(90, 160, (side, side, 3), dtype=np.uint8)
    prepared = given.build((3, side, side)).network
    found = prepared.prepared(to_unit(torch.tensor(pixels).permute(2, 0, 1)[None]))
    found = found * prepared.deviation + prepared.mean
    wanted = np.asarray(Image.fromarray(pixels).resize((32, 32), mode)) / 255
    np.testing.assert_allclose(found[0].permute(1, 2, 0), wanted, atol=1.5 / 255)


@pytest.mark.parametrize(
    ("model", "mean"), [("efficientnet_v2_l", 0.5), ("resnet18", 0.485), ("googlenet", 0.485)]
)
def test_torchvisions_own_normalisation_is_taken(model, mean):
    with torch.device("meta"):
        built = Torchvision(model=model).create(32, 32)
    assert built.mean[0] == pytest.approx(mean)
    assert len(built.mean) == len(built.deviation) == 3


def test_weights_with_further_classifiers_are_read(tmp_path):
    full = models.googlenet(weights=None, aux_logits=True, init_weights=False)
    torch.save(full.state_dict(), tmp_path / "googlenet.pt")
    keys = {"model": "googlenet", "weights": str(tmp_path / "googlenet.pt")}
    encoder = Torchvision(**keys).build((3, 64, 64))
    (network,) = [part for part in encoder.modules() if isinstance(part, models.GoogLeNet)]
    assert torch.equal(network.conv1.conv.weight, full.conv1.conv.weight)
    assert network.transform_input  # as torchvision's own weights want it


@pytest.mark.parametrize(
    ("config", "shape", "features"),
    [
        (Torchvision(model="resnet18"), (3, 64, 64), 512),
        (Torchvision(model="resnet18", stem="small"), (1, 8, 8), 512),
        (Torchvision(model="mobilenet_v3_small"), (1, 28, 28), 576 + 448),
        (Torchvision(model="shufflenet_v2_x0_5", size=64), (3, 20, 30), 1024),
        (Timm(model=TINY), (3, 32, 32), 96),
        (Timm(model=TINY, stem="small"), (1, 8, 8), 96),
        (Timm(model="test_vit", options={"patch_size": 4}), (1, 16, 16), 64),
        (Timm(model="test_vit"), (3, 32, 48), 64),
    ],
)
def test_output_width(config, shape, features) -> None:
    encoder = config.build(shape)
    assert encoder.features == features
    assert encoder(torch.rand(2, *shape)).shape == (2, features)


def test_the_initial_weights_come_from_the_seed() -> None:
    def weights() -> dict[str, torch.Tensor]:
        with seeded(1):
            return Timm(model=TINY, stem="small").build((1, 8, 8)).state_dict()

    first, second = weights(), weights()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_small_stem_steps_one_pixel_and_does_not_pool() -> None:
    network = Torchvision(model="resnet18", stem="small").build((3, 32, 32)).network.network
    assert (network.conv1.kernel_size, network.conv1.stride) == ((3, 3), (1, 1))
    assert isinstance(network.maxpool, nn.Identity)
    with pytest.raises(ConfigError, match=r"stem=small: vit_b_16 does not begin.*patch_size: 4"):
        Torchvision(model="vit_b_16", stem="small").build((3, 32, 32))


def test_a_grey_image_is_three_equal_channels_standardised_as_the_model_wants() -> None:
    with seeded(1):
        encoder = Torchvision(model="resnet18").build((1, 32, 32)).eval()
    grey = torch.rand(2, 1, 32, 32)
    colour = grey.expand(-1, 3, -1, -1)
    assert torch.equal(encoder(grey), encoder(colour))
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    by_hand = (colour - mean.view(3, 1, 1)) / deviation.view(3, 1, 1)
    assert torch.equal(encoder(grey), encoder.network.network(by_hand))


@pytest.mark.parametrize("name", ["own.safetensors", "own.pt"])
def test_weights_of_a_file_travel_with_the_config(tmp_path, name) -> None:
    network = saved_resnet(tmp_path / name).eval()
    config = Torchvision(model="resnet18", weights=str(tmp_path / name), freeze=True)
    there = pickle.loads(pickle.dumps(config))
    (tmp_path / name).unlink()
    encoder = there.build((3, 32, 32))
    assert not list(encoder.parameters())
    images = torch.rand(2, 3, 32, 32)
    encoder.network.mean, encoder.network.deviation = torch.zeros(1), torch.ones(1)
    network.fc = nn.Identity()
    assert torch.equal(encoder(images), network(images))


@pytest.mark.parametrize(
    ("target", "keys", "message"),
    [
        ("torchvision", {"model": "resnet81"}, "no model of this name.*resnet18"),
        ("timm", {"model": "vit_tiny_patch16_225"}, "nearest are vit_tiny_patch16_224"),
        ("torchvision", {"model": "resnet18", "weights": "/no.pt"}, "No such file.*check the path"),
        ("torchvision", {"model": "resnet18", "weights": "/"}, "a folder.*encoder=pretrained"),
        (
            "torchvision",
            {"model": "resnet18", "pretrained": True},
            "not on this machine; fetch them.* put",
        ),
        ("timm", {"model": "vit_tiny_patch16_224", "pretrained": True}, "not on this machine"),
        ("torchvision", {}, r"encoder\.model: a value is needed"),
    ],
)
def test_a_config_that_cannot_be_met_is_refused(
    target, keys, message, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    values = [f"encoder.{key}={str(value).lower()}" for key, value in keys.items()]
    with pytest.raises(ConfigError, match=message):
        compose("experiment=fedavg_digits", f"encoder={target}", *values)


@pytest.mark.parametrize(
    ("config", "shape", "message"),
    [
        (Torchvision(model="inception_v3"), (3, 32, 32), "cannot take 32×32 pixels.*encoder.size"),
        (Torchvision(model="squeezenet1_0"), (3, 64, 64), "no linear classifier"),
        (Torchvision(model="vit_b_16"), (3, 32, 48), "square images"),
        (Timm(model=TINY), (5, 32, 32), "1 or 3 channels, the samples have 5"),
        (Timm(model=TINY), (64,), "it takes images"),
        (
            Timm(model=TINY, options={"colour": 1}),
            (3, 32, 32),
            "^encoder.options: .* takes no colour; ",
        ),
    ],
)
def test_a_model_that_does_not_fit_the_samples_is_refused(config, shape, message) -> None:
    with pytest.raises(ConfigError, match=message):
        config.build(shape)


@pytest.mark.parametrize(
    "option",
    [
        "checkpoint_path",
        "pretrained_cfg",
        "pretrained_cfg_overlay",
        "cache_dir",
        "pretrained_strict",
    ],
)
def test_options_that_read_files_are_refused(tmp_path, option) -> None:
    """timm unpickles what its older versions find at `checkpoint_path`."""
    config = Timm(model="test_vit", options={option: str(tmp_path)})
    with pytest.raises(
        ConfigError, match=rf"^encoder\.options: .* takes no {option}; leave it out"
    ):
        config.build((3, 32, 32))


@pytest.mark.parametrize(
    "options", [{"act_layer": "os.system"}, {"num_heads": 0}, {"norm_layer": "x"}, {"depth": -1}]
)
def test_options_that_a_library_stumbles_over_are_refused_in_a_sentence(options) -> None:
    with pytest.raises(ConfigError, match=r"^encoder\.model=test_vit: it cannot"):
        Timm(model="test_vit", options=options).build((3, 32, 32))


def test_what_coterie_sets_itself_is_refused_as_that() -> None:
    with pytest.raises(ConfigError, match=r"^encoder\.options: num_classes is set by Coterie"):
        Timm(model="test_vit", options={"num_classes": 3}).build((3, 32, 32))


def test_a_size_that_is_too_small_names_the_networks_own() -> None:
    with pytest.raises(ConfigError, match=r"encoder\.size, such as its own 160"):
        Timm(model="test_vit").build((3, 8, 8))


@pytest.mark.parametrize("options", [{"depth": 10**8}, {"embed_dim": 2**20}])
def test_options_of_networks_without_end_are_refused(options) -> None:
    with pytest.raises(ConfigError, match="at most 16384"):
        Timm(model="test_vit", options=options)


def test_wrong_weights_are_refused_by_the_first_that_does_not_fit(tmp_path) -> None:
    path = str(tmp_path / "own.pt")
    saved_resnet(Path(path))
    with pytest.raises(ConfigError, match=r"it lacks conv1\.0\.weight and 27 more, which"):
        Timm(model=TINY, weights=path).build((3, 32, 32))
    with pytest.raises(ConfigError, match=r"conv1\.weight is \(64, 3, 3, 3\).*encoder.stem"):
        Torchvision(model="resnet18", weights=path, stem="small").build((3, 32, 32))
    with pytest.raises(ConfigError, match="digest=00: the file"):
        Torchvision(model="resnet18", weights=path, digest="00")
    Path(path).write_bytes(pickle.dumps({"conv1.weight": Path("x")}))
    with pytest.raises(DataError, match="weights cannot be read"):
        Torchvision(model="resnet18", weights=path).build((3, 32, 32))


def test_a_transformers_positions_are_resized_as_timm_does(tmp_path) -> None:
    with seeded(5):
        made = timm.create_model("test_vit", img_size=160)
    save_file(made.state_dict(), tmp_path / "own.safetensors")
    config = Timm(model="test_vit", weights=str(tmp_path / "own.safetensors"))
    state = {"state_dict": made.state_dict()}
    wanted = timm.create_model(
        "test_vit", pretrained=True, pretrained_cfg_overlay=state, img_size=96, num_classes=0
    )
    found = config.build((3, 96, 96)).network.network.state_dict()
    assert found["pos_embed"].shape != made.pos_embed.shape
    assert all(found[name].equal(value) for name, value in wanted.state_dict().items())


@pytest.mark.parametrize("prefix", ["visual.trunk.", "module.visual.trunk.", "model."])
def test_a_vision_tower_is_taken_from_its_model(tmp_path, prefix) -> None:
    with seeded(5):
        tower = timm.create_model("test_vit", img_size=64, num_classes=0).state_dict()
    other = {"text.bias": torch.zeros(3)}
    named = {prefix + name: value for name, value in tower.items()}
    torch.save(named | other, tmp_path / "own.pt")
    found = Timm(model="test_vit", weights=str(tmp_path / "own.pt")).build((3, 64, 64))
    assert found.network.network.state_dict()["norm.weight"].equal(tower["norm.weight"])


def test_torchvisions_positions_are_resized(tmp_path) -> None:
    with seeded(5):
        made = models.vit_b_32(image_size=96)
    torch.save(made.state_dict(), tmp_path / "own.pt")
    config = Torchvision(model="vit_b_32", weights=str(tmp_path / "own.pt"))
    found = config.build((3, 64, 64)).network.network.encoder.pos_embedding
    assert found.shape == (1, 5, 768)
    assert found[:, 0].equal(made.encoder.pos_embedding[:, 0])
    corners = [1, 3, 7, 9]  # of 3 by 3 patches after the class token; they stay where they are
    assert torch.allclose(found[:, 1:], made.encoder.pos_embedding[:, corners], atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 7, 64), (1, 17), (3, 17, 64)])
def test_positions_that_fit_no_image_are_refused(tmp_path, shape) -> None:
    weights = timm.create_model("test_vit", img_size=64, num_classes=0).state_dict()
    torch.save(weights | {"pos_embed": torch.zeros(shape)}, tmp_path / "own.pt")
    told = r"^encoder.weights=.*give (the stem, image size|weights of this model)"
    with pytest.raises(ConfigError, match=told):
        Timm(model="test_vit", weights=str(tmp_path / "own.pt")).build((3, 96, 96))


def test_pretrained_takes_what_is_in_the_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    name = models.ResNet18_Weights.DEFAULT.url.rpartition("/")[2]
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    saved_resnet(tmp_path / "hub" / "checkpoints" / name)
    config = Torchvision(model="resnet18", pretrained=True)
    assert config.weights == str(tmp_path / "hub" / "checkpoints" / name)
    assert config.build((3, 32, 32)).features == 512


def test_without_timm_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.delitem(sys.modules, "coterie.networks.timm_models")
    with pytest.raises(
        ConfigError, match=r"timm is not installed; .*pip install 'coterie\[timm\]'"
    ):
        config_model("coterie.networks.timm_models:Timm")


def test_a_run_from_given_weights_leaves_a_model_that_needs_no_file(tmp_path) -> None:
    with seeded(5):
        weights = Timm(model=TINY).build((1, 8, 8)).network.network.state_dict()
    torch.save({"state_dict": weights}, tmp_path / "own.pt")
    keys = (f"encoder=timm:{TINY}", f"encoder.weights={tmp_path}/own.pt", "encoder.freeze=true")
    run(tmp_path / "run", *keys)
    config = compose(*ONE_ROUND, *keys)
    assert load_config(dump_config(config)) == config
    (tmp_path / "own.pt").unlink()
    model = load_model(tmp_path / "run")
    assert torch.equal(model.encoder.network.network.conv1[0].weight, weights["conv1.0.weight"])
    assert model(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).probabilities.shape == (2, 10)


def test_a_program_is_a_frozen_encoder_and_is_saved_with_the_model(tmp_path) -> None:
    network = conv2_program(tmp_path / "net.pt2")
    images = torch.rand(5, 1, 8, 8)
    encoder = Exported(path=str(tmp_path / "net.pt2")).build((1, 8, 8)).train()
    assert encoder.features == 6
    assert not list(encoder.parameters())
    assert torch.equal(encoder(images), network(images))
    run(tmp_path / "run", "encoder=exported", f"encoder.path={tmp_path}/net.pt2")
    (tmp_path / "net.pt2").unlink()
    (tmp_path / "run").rename(tmp_path / "moved")
    assert torch.equal(load_model(tmp_path / "moved").encoder(images), network(images))
    run(tmp_path / "next", "encoder=pretrained", f"encoder.path={tmp_path}/moved")


def test_a_program_within_the_encoder_of_a_method_is_saved_too(tmp_path) -> None:
    network, images = conv2_program(tmp_path / "net.pt2"), torch.rand(5, 1, 8, 8)
    keys = (*ONE_ROUND, "experiment=vae_digits", "encoder=exported", "method.hidden=8")
    paths = (f"encoder.path={tmp_path}/net.pt2", f"run_dir={tmp_path / 'run'}")
    assert Federation(compose(*keys, *paths, "method.width=2")).run().exit_code == 0
    (tmp_path / "net.pt2").unlink()
    found = load_model(tmp_path / "run").encoder.backbone(images)
    assert torch.equal(found, network(images))


@pytest.mark.parametrize(
    ("shape", "message"),
    [((1, 9, 9), "cannot take 2 samples of shape.*export it for samples of this shape")],
)
def test_a_program_for_other_samples_is_refused(tmp_path, shape, message) -> None:
    conv2_program(tmp_path / "net.pt2")
    with pytest.raises(ConfigError, match=message):
        Exported(path=str(tmp_path / "net.pt2")).build(shape)


def test_a_file_that_is_no_program_is_refused(tmp_path) -> None:
    (tmp_path / "net.pt2").write_bytes(b"no program")
    with pytest.raises(DataError, match=r"it cannot be read .* torch.export.save"):
        Exported(path=str(tmp_path / "net.pt2")).build((1, 8, 8))
    with pytest.raises(ConfigError, match=r"encoder.path=/no.pt2: it cannot be read"):
        Exported(path="/no.pt2")


@pytest.mark.parametrize(("size", "told"), [(32, True), (79, True), (80, False), (160, False)])
def test_weights_for_far_larger_images_are_told(tmp_path, size, told) -> None:
    network = timm.create_model(TINY, num_classes=0)
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    given = Timm(model=TINY, weights=str(tmp_path / "w.safetensors"))
    assert given.trained_on() == 160
    sentence = (
        f"encoder.model={TINY} was trained on images of 160 pixels a side and gets images of "
        f"{size}; "
    )
    assert given.advice((3, size, size + 9)).startswith(sentence) is told
    assert given.model_copy(update={"size": 160}).advice((3, size, size)) == ""
    assert Timm(model=TINY).advice((3, size, size)) == ""  # random weights suit any


def test_a_run_tells_once_that_its_images_are_small(tmp_path) -> None:
    saved_resnet(tmp_path / "w.safetensors")
    seen = Silent()
    given = ("encoder=torchvision:resnet18", f"encoder.weights={tmp_path}/w.safetensors")
    config = compose(*ONE_ROUND, *given, "data.size=32", f"run_dir={tmp_path}/run")
    Federation(config, view=seen).run()
    assert [
        note
        for note in seen.notes
        if "was trained on images of 224 pixels a side and gets images of 32" in note
    ]
