"""Parts that modules have: compiled, averaged and shared weights, several devices."""

import copy
import warnings

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from coterie.errors import ConfigError, CoterieError
from tests.builders.on_devices import OnDevices
from tests.builders.own_module import QUIET, Data, Lit, federated, rows, tensors


def plain(module, loader, *callbacks, epochs=1):
    """A copy of the module, trained by one plain Trainer."""
    own = copy.deepcopy(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning.Trainer(max_epochs=epochs, callbacks=[*callbacks], **QUIET).fit(own, loader)
    return own


def loader():
    return DataLoader(TensorDataset(*tensors()), 8)


def assert_same(found, wanted):
    for name, value in wanted.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(found.state_dict()[name], value), name


def test_a_module_that_represents_nothing_has_the_figures_of_its_curves_and_clients(tmp_path):
    run = federated(tmp_path, overrides=["evaluation.figures=true"])
    assert not run.failures
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {"curves.png", "partition.png"}


class Compiled(lightning.LightningModule):
    """One whose network is compiled where it is built."""

    def __init__(self):
        super().__init__()
        self.net = torch.compile(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), backend="eager")
        self.head = nn.Linear(8, 3)

    def training_step(self, batch, batch_idx):
        return cross_entropy(self.head(self.net(batch[0])), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_compiled_part_is_one_plain_trainer(tmp_path):
    module = Compiled()
    found = federated(tmp_path, module, loader(), clients=1, rounds=2, keep_optimizer=True)
    assert_same(found.module, plain(module, loader(), epochs=2))


@pytest.mark.ray
def test_a_compiled_part_travels_to_actors(tmp_path):
    module = Compiled()
    keys = {"cluster": {"num_actors": 1, "cpus_per_client": 0.5}, "clients": 1, "rounds": 1}
    found = federated(tmp_path, module, loader(), **keys)
    assert_same(found.module, plain(module, loader()))


def test_an_averaging_callback_gives_its_average(tmp_path):
    module = Compiled()
    ema = EMAWeightAveraging(decay=0.5)
    found = federated(tmp_path, module, loader(), clients=1, rounds=1, callbacks=[ema])
    averaged = plain(module, loader(), EMAWeightAveraging(decay=0.5))
    assert_same(found.module, averaged)
    assert not torch.equal(averaged.head.weight, plain(module, loader()).head.weight)


class Shared(lightning.LightningModule):
    """An autoencoder whose decoder is its encoder."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 4), nn.Linear(4, 4)
        self.decoder.weight = self.encoder.weight

    def training_step(self, batch, batch_idx):
        return (self.decoder(self.encoder(batch[0])) - batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("strategy", ["fedavg", "fednova", "fedyogi"])
def test_shared_weights_stay_one(tmp_path, strategy):
    found = federated(tmp_path, Shared(), loader(), strategy=strategy).module
    assert found.decoder.weight is found.encoder.weight
    entries = found.state_dict()
    assert torch.equal(entries["decoder.weight"], entries["encoder.weight"])


DEVICES = {"devices": 2, "strategy": "ddp_spawn"}


@pytest.mark.slow
@pytest.mark.parametrize("keep", [False, True])
def test_two_processes_train_one_client(tmp_path, keep):
    module = OnDevices()
    keys = {"clients": 1, "trainer": DEVICES, "keep_optimizer": keep}
    found = federated(tmp_path, module, loader(), **keys)
    assert [row["processes"] for row in rows(found)] == [2.0, 2.0]
    assert rows(found)[1]["loss"] < rows(found)[0]["loss"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = copy.deepcopy(module)
        trainer = lightning.Trainer(max_epochs=2 if keep else 1, **DEVICES, **QUIET)
        trainer.fit(own, loader())
    if keep:
        assert_same(found.module, own)
    else:
        assert not torch.equal(found.module.net.weight, own.net.weight)


@pytest.mark.ray
@pytest.mark.slow
def test_two_processes_train_in_an_actor(tmp_path):
    keys = {"clients": 2, "rounds": 1, "trainer": {"devices": 2}}
    here = federated(tmp_path / "here", OnDevices(), loader(), **keys)
    cluster = {"num_actors": 1, "cpus_per_client": 2}
    there = federated(tmp_path / "there", OnDevices(), loader(), cluster=cluster, **keys)
    assert rows(there)[0]["processes"] == 2.0
    assert_same(there.module, here.module)


@pytest.mark.parametrize(
    ("trainer", "keys", "sentence"),
    [
        ({"devices": 2, "strategy": "ddp"}, {}, "starts the whole program again"),
        ({"devices": 2}, {"strategy": "scaffold"}, "several devices train in processes"),
        (
            {"devices": 2},
            {"cluster": {"backend": "ray", "gpus_per_client": 0.5}},
            r"trainer\.devices=2: an actor has cluster\.gpus_per_client=0\.5; set it to 2",
        ),
    ],
)
def test_what_several_devices_cannot_do_is_one_sentence(tmp_path, trainer, keys, sentence):
    with pytest.raises(ConfigError, match=sentence) as raised:
        federated(tmp_path, Lit(), loader(), trainer=trainer, **keys)
    assert "\n" not in str(raised.value)


class Noisy(Shared):
    """One that draws random numbers, and returns more than its loss."""

    def training_step(self, batch, batch_idx):
        noise = torch.randn_like(batch[0])
        loss = (self.decoder(self.encoder(batch[0] + noise)) - batch[0]).square().mean()
        self.log("noise", noise.mean())
        return {"loss": loss, "noise": noise}

    def validation_step(self, batch, batch_idx):
        self.log("error", (self.decoder(self.encoder(batch[0])) - batch[0]).square().mean())


HALF = ["participation.straggler_rate=0.9", "participation.straggler_work=0.5"]


@pytest.mark.parametrize(("strategy", "more"), [("fedavg", []), ("scaffold", []), ("fedavg", HALF)])
def test_the_executor_bare_gives_the_same_bits(tmp_path, strategy, more):
    module, shuffled = Noisy(), DataLoader(TensorDataset(*tensors()), 8, shuffle=True)
    found = [
        federated(
            tmp_path / executor,
            module,
            shuffled,
            epochs=2,
            holdout=0.2,
            strategy=strategy,
            overrides=[f"executor={executor}", *more],
        )
        for executor in ("lightning", "bare")
    ]
    assert_same(found[1].module, found[0].module)
    for phase, name in (("training", "loss"), ("validation", "error")):
        one, other = ([row[name] for row in rows(run, phase)] for run in found)
        assert one == pytest.approx(other, rel=1e-12)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"overrides": ["executor=vmap"]}, "does not declare that it is vmappable"),
        ({"trainer": {"gradient_clip_val": 1.0}}, "gradient_clip_val needs a Trainer"),
        ({"keep_optimizer": True}, "keep_optimizer needs a Trainer"),
        ({"callbacks": [EMAWeightAveraging()]}, "callbacks needs a Trainer"),
    ],
)
def test_what_bare_cannot_do_is_one_sentence(tmp_path, keys, sentence):
    executor = keys.pop("overrides", ["executor=bare"])
    with pytest.raises(ConfigError, match=sentence) as raised:
        federated(tmp_path, Noisy(), loader(), overrides=executor, **keys)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("module", "data", "sentence"),
    [
        (Lit, loader, "Lit needs the Trainer's|configure_optimizers gave a tuple"),
        (Noisy, Data, "Data overrides on_after_batch_transfer"),
    ],
)
def test_a_module_that_needs_its_trainer_is_told_so(tmp_path, module, data, sentence):
    overrides = ["executor=bare", "faults.on_client_failure=fail"]
    with pytest.raises(CoterieError, match=sentence) as raised:
        federated(tmp_path, module(), data(), overrides=overrides)
    assert "\n" not in str(raised.value)


class Normalised(Shared):
    """One with a layer that cannot be trained on one row."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    def training_step(self, batch, batch_idx):
        return cross_entropy(self.net(batch[0]), batch[1])


@pytest.mark.parametrize("executor", ["lightning", "bare"])
def test_a_last_row_alone_fails_no_client_whose_module_has_batch_norm(tmp_path, executor):
    data = DataLoader(TensorDataset(*(part[:18] for part in tensors())), 8)
    run = federated(tmp_path, Normalised(), data, clients=2, overrides=[f"executor={executor}"])
    assert not run.failures
