"""Encoders: output widths, parameter counts by hand, refusals, determinism, normalisation."""

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from coterie.config.component import parse_component
from coterie.contract import seeded
from coterie.errors import ConfigError
from coterie.networks.auto import Auto
from coterie.networks.encoders import (
    MLP,
    AlexNet,
    ConvNet2,
    ConvNet3,
    ConvNet4,
    EncoderConfig,
    Raw,
    USPSNet,
)
from coterie.networks.resnet import ResNet


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("config", "shape", "features"),
    [
        (ConvNet2(), (1, 28, 28), 64),
        (ConvNet2(width=4, features=5), (3, 9, 5), 5),
        (ConvNet3(), (1, 28, 28), 256),
        (ConvNet3(features=64), (3, 32, 32), 64),
        (ConvNet3(features=None), (1, 28, 28), 256 * 3 * 3),
        (ConvNet3(features=None), (3, 32, 32), 256 * 4 * 4),
        (ConvNet3(features=None), (1, 16, 16), 256 * 2 * 2),
        (ConvNet3(features=None), (1, 8, 8), 256),
        (ConvNet3(features=None), (1, 9, 17), 256 * 1 * 2),
        (ConvNet4(), (3, 31, 31), 256),
        (ConvNet4(features=32), (1, 40, 33), 32),
        (USPSNet(), (1, 16, 16), 16),
        (AlexNet(), (1, 28, 28), 16),
        (AlexNet(width=2, features=3), (3, 8, 9), 3),
        (MLP(), (64,), 128),
        (MLP(hidden=(), features=5), (1, 8, 8), 5),
        (Raw(), (64,), 64),
        (Raw(), (3, 8, 9), 3 * 8 * 9),
        (ResNet(), (3, 32, 32), 512),
        (ResNet(stem="imagenet", depth=34), (1, 64, 64), 512),
        (ResNet(depth=50), (1, 8, 8), 2048),
        (ResNet(norm="group"), (3, 16, 16), 512),
        (ResNet(features=256), (3, 16, 16), 256),
    ],
)
def test_output_width(config: EncoderConfig, shape: tuple[int, ...], features: int) -> None:
    encoder = config.build(shape)
    assert encoder.features == features
    assert encoder(torch.rand(2, *shape)).shape == (2, features)


@pytest.mark.parametrize(
    ("shape", "choice"),
    [
        ((7,), MLP()),
        ((1, 8, 8), ConvNet3()),
        ((3, 31, 60), ConvNet3()),
        ((1, 32, 32), ConvNet3()),
        ((3, 32, 32), ResNet(depth=18, stem="small")),
        ((1, 64, 64), ResNet(depth=18, stem="small")),
        ((3, 65, 65), ResNet(depth=18, stem="imagenet")),
        ((3, 300, 224), ResNet(depth=50, stem="imagenet")),
    ],
)
def test_the_automatic_encoder_fits_the_samples_size(shape, choice) -> None:
    assert Auto().choice(shape) == choice


@pytest.mark.parametrize(
    ("config", "shape", "parameters"),
    [
        (ConvNet4(), (3, 96, 96), 2_378_304),  # CP-CFL's published count
        (ConvNet2(), (1, 28, 28), 105_866 - 65 * 10),  # without a classifier of ten classes
        # Three convolutions without bias, three BatchNorms, one linear layer.
        (ConvNet3(), (1, 28, 28), 16 * (64 + 64 * 128 + 128 * 256) + 2 * 448 + 2305 * 256),
        (ConvNet3(norm="none", features=None), (1, 8, 8), 16 * (64 + 8192 + 32768) + 448),
        (USPSNet(), (1, 16, 16), 80 + 1569 * 1024 + 1025 * 256 + 257 * 16),
        (AlexNet(), (1, 28, 28), 45_433),  # CF-CL's published count
        (MLP(hidden=(10, 4), features=3), (1, 2, 2), 50 + 44 + 15),
        # torchvision's counts without the classifier.
        (ResNet(stem="imagenet"), (3, 64, 64), 11_689_512 - 513_000),
        (ResNet(stem="imagenet", depth=50), (3, 64, 64), 25_557_032 - 2_049_000),
        (ResNet(stem="imagenet"), (1, 64, 64), 11_689_512 - 513_000 - 2 * 49 * 64),
        (ResNet(stem="small"), (3, 32, 32), 11_689_512 - 513_000 - 3 * (49 - 9) * 64),
    ],
)
def test_parameter_count(config: EncoderConfig, shape: tuple[int, ...], parameters: int) -> None:
    assert count(config.build(shape)) == parameters


@pytest.mark.parametrize(
    ("config", "shape", "message"),
    [
        (ConvNet4(), (3, 30, 96), "30×96 pixels are too small.*31×31.*data.size=31"),
        (ConvNet2(), (1, 3, 8), "3×8 pixels are too small.*4×4"),
        (ConvNet3(), (1, 7, 8), "7×8 pixels are too small.*8×8"),
        (USPSNet(), (1, 2, 16), "too small"),
        (AlexNet(), (1, 7, 16), "too small"),
        (ConvNet3(), (64,), r"shape \(64,\).*encoder=raw.*encoder=mlp"),
        (ResNet(), (64,), "encoder=mlp"),
    ],
)
def test_refuses_shape(config: EncoderConfig, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.build(shape)


@pytest.mark.parametrize(
    "config",
    [ConvNet2(), ConvNet3(), USPSNet(), AlexNet(), ResNet(), ResNet(stem="imagenet", norm="none")],
)
def test_initialisation_comes_from_torchs_generator(config: EncoderConfig) -> None:
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(config.build((1, 16, 16)).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    weights = [key for key, value in states[0].items() if value.ndim > 1]
    assert weights
    assert not any(torch.equal(states[0][key], states[2][key]) for key in weights)


def test_small_stem_keeps_torchvisions_initialisation() -> None:
    torch.manual_seed(0)
    weight = ResNet().build((3, 32, 32)).network.conv1.weight
    # Kaiming, fan-out: variance 2 / (64 kernels × 9 pixels); 1728 draws give it to about 10 %.
    assert weight.var().item() == pytest.approx(2 / (64 * 9), rel=0.15)


@pytest.mark.parametrize("config", [ConvNet3(norm="group"), ResNet(norm="group")])
def test_group_norm_keeps_samples_independent(config: EncoderConfig) -> None:
    torch.manual_seed(0)
    encoder, images = config.build((1, 16, 16)).double(), torch.rand(4, 1, 16, 16).double()
    torch.testing.assert_close(encoder(images)[:2], encoder(images[:2]), rtol=1e-9, atol=1e-9)
    with_batch_norm = config.model_copy(update={"norm": "batch"}).build((1, 16, 16)).double()
    assert (with_batch_norm(images)[:2] - with_batch_norm(images[:2])).abs().max() > 1e-3


def test_convnet2_is_the_plain_network_whatever_its_memory_format() -> None:
    torch.manual_seed(0)
    encoder, images = ConvNet2().build((1, 8, 8)).double(), torch.rand(3, 1, 8, 8).double()
    first, second, linear = (encoder.network[i] for i in (0, 3, 7))
    hidden = images
    for layer in (first, second):
        weight = layer.weight.contiguous()
        hidden = nn.functional.conv2d(hidden, weight, layer.bias, padding=1)
        hidden = hidden.relu().unfold(2, 2, 2).unfold(3, 2, 2).amax(dim=(-1, -2))
    expected = (hidden.flatten(1) @ linear.weight.T + linear.bias).relu()
    torch.testing.assert_close(encoder(images), expected, rtol=1e-12, atol=1e-12)


def test_convnet4_is_non_negative_and_convnet3_leaks() -> None:
    torch.manual_seed(0)
    images = torch.rand(8, 1, 32, 32)
    assert ConvNet4().build((1, 32, 32))(images).min() == 0
    slopes = [
        m.negative_slope
        for m in ConvNet3().build((1, 32, 32)).modules()
        if hasattr(m, "negative_slope")
    ]
    assert slopes == [0.2, 0.2, 0.2]


def test_sections_take_yaml_lists_and_refuse_wrong_values() -> None:
    section = {"target": "coterie.networks.encoders:MLP", "hidden": [32, 16], "features": 8}
    assert parse_component(section) == MLP(hidden=(32, 16), features=8)
    for wrong in ({"hidden": [0]}, {"hidden": [True]}, {"features": 0}, {"feature": 8}):
        with pytest.raises(ValidationError):
            parse_component({**section, **wrong})
    with pytest.raises(ValidationError):
        parse_component({"target": "coterie.networks.resnet:ResNet", "depth": 20})


@pytest.mark.parametrize(("stem", "side"), [("small", 32), ("imagenet", 8)])
def test_stem_resolution(stem: str, side: int) -> None:
    network = ResNet(stem=stem).build((3, 32, 32)).network
    assert network.maxpool(network.conv1(torch.rand(1, 3, 32, 32))).shape == (1, 64, side, side)


def test_raw_is_the_samples_themselves() -> None:
    images = torch.rand(3, 1, 4, 5)
    encoder = Raw().build((1, 4, 5))
    assert torch.equal(encoder(images), images.reshape(3, 20))
    assert list(encoder.state_dict()) == []


@pytest.mark.parametrize("kind", [ConvNet2, ConvNet3, USPSNet, AlexNet, MLP, Raw, ResNet, Auto])
def test_unit_length_keeps_the_directions_and_the_names(kind: type[EncoderConfig]) -> None:
    with seeded(0):
        plain = kind().build((1, 16, 16)).eval()
    with seeded(0):
        unit = kind(unit_length=True).build((1, 16, 16)).eval()  # type: ignore[call-arg]
    x = torch.rand(4, 1, 16, 16)
    torch.testing.assert_close(unit(x), plain(x) / plain(x).norm(dim=1, keepdim=True))
    assert list(unit.state_dict()) == list(plain.state_dict())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert unit(x).dtype == torch.float32


@pytest.mark.parametrize("config", [ResNet(), ConvNet2(), ConvNet3(), ConvNet4()])
def test_convolutions_keep_channels_last_when_other_weights_are_loaded(
    config: EncoderConfig,
) -> None:
    encoder = config.build((3, 32, 32))
    again = config.build((3, 32, 32))
    again.load_state_dict({k: v.contiguous() for k, v in encoder.state_dict().items()})
    image = torch.rand(2, 3, 32, 32)
    assert all(_has_channels_last(network) for network in (encoder, again))
    assert torch.equal(again.eval()(image), encoder.eval()(image))


def test_channels_stay_first_where_group_normalisation_would_be_slow() -> None:
    assert not _has_channels_last(ConvNet3(norm="group").build((3, 32, 32)))


def _has_channels_last(network: nn.Module) -> bool:
    weights = [p for p in network.parameters() if p.dim() == 4]
    return all(w.is_contiguous(memory_format=torch.channels_last) for w in weights)


def test_layers_without_end_are_refused():
    with pytest.raises(ConfigError, match="at most 100"):
        MLP(hidden=(1,) * 101)
    assert len(MLP(hidden=(1,) * 100).hidden) == 100
