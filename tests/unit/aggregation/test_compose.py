"""The list of stages: names are told apart, and none passes by noise or masks."""

import pytest
import torch

from coterie.aggregation import compose
from coterie.aggregation.compose import compose_stages
from coterie.aggregation.masking import Masking
from coterie.aggregation.noise import Noise
from coterie.aggregation.stage import Contribution, Stage, StageTask
from coterie.config.aggregation import AggregationConfig
from coterie.config.component import Component
from coterie.config.privacy import DPConfig, PrivacyConfig
from coterie.contract.phase import Outcome, Phase
from coterie.errors import ConfigError, ContractError
from coterie.modules.fedavg import FedAvg
from tests.builders.loops import make_workload

NOISE = PrivacyConfig(dp=DPConfig(clip=1.0, noise_multiplier=1.0))
MASKS = PrivacyConfig(secure_aggregation=True)


class Custom(Stage):
    """A stage that changes nothing."""

    name = "custom"

    class Config(Component):
        """Of nothing."""

    def __init__(self, config):
        self.config = config


class Summing(Custom):
    def sums(self, key, call, layouts, data):
        return None


class Totalling(Custom):
    def total(self, run, sums):
        return sums.result()


class Joining(Custom):
    def join(self, run, whole):
        return {}


class Limiting(Custom):
    name = "limits"


@pytest.fixture
def composed(monkeypatch):
    """Composes these classes as custom stages."""

    def compose_with(*stages, privacy=None):
        waiting = list(stages)
        monkeypatch.setattr(compose, "load_target", lambda target: waiting.pop(0))
        given = AggregationConfig(stages=tuple(Custom.Config() for _ in stages))
        keys = {} if privacy is None else {"privacy": privacy}
        workload = make_workload(FedAvg.Config(rounds=1), aggregation=given, **keys)
        return [stage.name for stage in compose_stages(workload.config, None, None).stages]

    return compose_with


def test_custom_stages_come_before_noise_and_masks(composed):
    names = composed(Custom, privacy=NOISE)
    assert names.index("custom") < names.index("noise")
    names = composed(Custom, privacy=MASKS)
    assert names.index("custom") < names.index("masking")


@pytest.mark.parametrize("stages", [(Custom, Custom), (Limiting,)])
def test_two_stages_of_one_name_are_refused(composed, stages):
    with pytest.raises(ConfigError, match=r"2 stages have the name '(custom|limits)'"):
        composed(*stages)


@pytest.mark.parametrize(("privacy", "key"), [(NOISE, "dp"), (MASKS, "secure_aggregation")])
@pytest.mark.parametrize("stage", [Summing, Totalling, Joining])
def test_a_stage_that_replaces_a_protected_sum_is_refused(composed, stage, privacy, key):
    assert "custom" in composed(stage)
    with pytest.raises(ConfigError, match=f"of 'custom' replaces the sum that privacy.{key} prot"):
        composed(stage, privacy=privacy)


def test_tensors_that_pass_by_the_sum_are_refused():
    phase = Phase(name="p", stage="s", round=1)
    task = StageTask(
        phase=phase, client=0, samples=1, seed=0, received={}, layouts={}, phase_data=True
    )
    sent = Contribution(outcome=Outcome(), up={}, whole={"encoder": {"w": torch.ones(1)}})
    noise = Noise(make_workload(FedAvg.Config(rounds=1), privacy=NOISE).config, None)
    for stage in (noise, Masking(None)):
        with pytest.raises(ContractError, match="sends 'encoder' by itself, but privacy"):
            stage.contribute(sent, task)
