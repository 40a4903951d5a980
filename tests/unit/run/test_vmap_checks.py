"""What `executor=vmap` refuses before anything starts, in one sentence."""

import pytest

from coterie.commands.compose import compose
from coterie.errors import ConfigError
from coterie.modules.fedavg import FedAvg
from coterie.run.setup import assemble
from coterie.run.vmap_checks import check_vmap
from tests.builders.federation import tiny_task, tiny_workload

BASE = ("experiment=fedmcc_digits", "cluster=serial", "executor=vmap", "data.limit=100")
NOISE = ("privacy.dp.clip=1", "privacy.dp.noise_multiplier=1", "privacy.dp.unit=sample")
OWN = ("experiment=fedavg_fashionmnist", "data=digits", "partition.clients=5")


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ("experiment=ccfc_digits",),
            "executor=vmap: method=CCFC does not declare that it is vmappable; choose one that "
            "does, or use executor=bare.",
        ),
        (
            ("method.micro_batch_size=8",),
            "executor=vmap: method.micro_batch_size=8 caches gradients for one client at a "
            "time; leave it out, or use executor=bare.",
        ),
        (
            ("faults.client_timeout_s=3",),
            "executor=vmap: faults.client_timeout_s=3 limits single clients, which train "
            "together; leave it out, or use executor=bare.",
        ),
        (
            ("precision=16-mixed",),
            "precision=16-mixed: executor=vmap has no gradient scaler; use bf16-mixed.",
        ),
        (
            ("compile=default",),
            "executor=vmap: compile=default compiles one client's encoder at a time; leave it "
            "out, or use executor=bare.",
        ),
        (
            (*OWN, *NOISE),
            "executor=vmap: privacy.dp.unit=sample clips gradients for one client at a time; "
            "use unit=client, or use executor=bare.",
        ),
        (
            ("encoder=torchvision:efficientnet_b0", "data.limit=20"),
            "executor=vmap: the encoder's network.network.classifier.0 is a Dropout; choose an "
            "encoder without, or use executor=bare.",
        ),
        (
            ("callbacks=[{target: lightning.pytorch.callbacks:Timer}]",),
            "executor=vmap: it has no Trainer, which the callback Timer follows; choose "
            "executor=lightning.",
        ),
    ],
)
def test_the_config_is_refused(overrides: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        assemble(compose(*BASE, *overrides))
    assert str(refused.value) == sentence


def test_a_subclass_of_a_vmappable_method_has_to_say_so_itself() -> None:
    own = tiny_workload(Heir.Config(rounds=1), executor="vmap", precision="32-true")
    with pytest.raises(ConfigError, match="method=Heir does not declare"):
        check_vmap(own.config, tiny_task())


class Heir(FedAvg):
    class Config(FedAvg.Config):
        """Its own."""
