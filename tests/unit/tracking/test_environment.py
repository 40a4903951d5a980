"""What is noted of the software and the device."""

import torch

from coterie.commands.compose import compose
from coterie.tracking.environment import ENVIRONMENT_KEYS, commit, device_name, environment


def test_the_commit_is_a_word():
    assert commit()
    assert " " not in commit()


def test_the_versions_are_those_that_are_installed():
    assert tuple(environment()) == ENVIRONMENT_KEYS
    assert torch.__version__.startswith(environment()["packages"]["torch"])


def test_the_device_is_named():
    device = device_name(compose("experiment=kfed_digits", "cluster=serial", "accelerator=cpu"))
    assert " cores of " in device
