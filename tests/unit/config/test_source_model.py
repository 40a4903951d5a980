"""Config models read from source say the same as the models themselves."""

import re
from pathlib import Path

import pytest

from coterie.commands.compose import compose, compose_plain, config_dir
from coterie.commands.method_choices import shipped_methods
from coterie.config import config_model
from coterie.config.loading import check_keys
from coterie.config.source_model import source_model
from coterie.errors import ConfigError

CONVERTED_IN_CODE = {
    "coterie.models.pretrained_encoder:Pretrained",
    "coterie.networks.exported:Exported",
    "coterie.networks.joined:Joined",
    "coterie.networks.timm_models:Timm",
    "coterie.networks.torchvision_models:Torchvision",
    "coterie.datamodules.partition_configs:FromFile",
    "coterie.datamodules.partition_configs:Rest",
}
"""Their keys depend on code that runs before the fields are read."""


def shipped() -> list[str]:
    texts = (path.read_text() for path in Path(config_dir()).rglob("*.yaml"))
    named = {name for text in texts for name in re.findall(r"target: (\S+)", text)}
    return sorted(named | {method.target for method in shipped_methods().values()})


@pytest.mark.ci
@pytest.mark.parametrize("target", shipped())
def test_the_fields_are_those_of_the_model(target):
    read, model = source_model(target), config_model(target)
    if target in CONVERTED_IN_CODE:
        assert read is None
        return
    assert read is not None
    assert list(read.model_fields) == list(model.model_fields)
    assert read.absent == model.absent
    for name, field in read.model_fields.items():
        assert field.is_required() == model.model_fields[name].is_required(), name
        assert field.description == model.model_fields[name].description, name
        assert field.default == model.model_fields[name].default, name


@pytest.mark.parametrize(
    "override",
    [
        "method.temprature=1",
        "method.batch_size=many",
        "method.batch_size=1",
        "method.momentum=2",
        "method.representations=three",
        "encoder.widht=3",
        "encoder.features=0",
        "encoder.norm=layer",
        "data.size=[0,0]",
        "data.form=3",
        "partition.cleints=4",
        "augmentation.padding=mirror",
    ],
)
def test_a_config_is_refused_in_the_same_words(override):
    arguments = ("experiment=fedmcc_digits", "partition=iid", "partition.clients=2", override)
    with pytest.raises(ConfigError) as whole:
        compose(*arguments)
    with pytest.raises(ConfigError) as read:
        check_keys(compose_plain(*arguments))
    assert str(read.value) == str(whole.value)


@pytest.mark.parametrize(
    "target", ["json:JSONEncoder", "coterie.modules.nothing:X", "coterie.modules.fedmcc:No"]
)
def test_another_target_is_left_to_the_import(target):
    assert source_model(target) is None
