"""A LightningModule and data of the user's own, federated as they are."""

import copy
import resource
import warnings

import lightning
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.demos.boring_classes import (
    BoringModel,
    ManualOptimBoringModel,
    RandomDataset,
)
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from coterie import Federation, RunCallback, compose, load_model
from coterie.contract.loaders import Source
from coterie.errors import ConfigError, CoterieError, DataError, InterruptedRunError, RunError
from coterie.execution.own_trainer import materialised
from coterie.jobs import show
from coterie.jobs.train import main
from coterie.models.module_checkpoint import write_module
from tests.builders.observers import Silent
from tests.builders.own_module import QUIET, Data, Lit, federated, rows, tensors


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return federated(tmp_path_factory.mktemp("run"), epochs=2, holdout=0.2)


def test_one_client_that_keeps_its_optimizer_is_one_plain_trainer(tmp_path):
    torch.manual_seed(0)
    module = Lit()
    plain = copy.deepcopy(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(max_epochs=6, limit_val_batches=0, **QUIET)
        trainer.fit(plain, datamodule=Data(shuffle=False))
    keys = {"clients": 1, "rounds": 3, "epochs": 2, "keep_optimizer": True}
    found = federated(tmp_path, module, Data(shuffle=False), **keys).module
    for name, value in plain.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(found.state_dict()[name], value), name


def test_the_server_has_the_mean_of_what_plain_trainers_give(tmp_path):
    torch.manual_seed(0)
    module, data = Lit(), TensorDataset(*tensors())
    parts = [DataLoader(Subset(data, range(*ends)), 8) for ends in ((0, 32), (32, 48))]
    trained = []
    for part in parts:
        each = copy.deepcopy(module)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lightning.Trainer(max_epochs=1, **QUIET).fit(each, part)
        trained.append(each.state_dict())
    found = federated(tmp_path, module, parts, rounds=1).module.state_dict()
    for name in ("head.weight", "body.0.bias", "body.1.running_var"):
        mean = (32 * trained[0][name].double() + 16 * trained[1][name].double()) / 48
        torch.testing.assert_close(found[name].double(), mean, rtol=1e-6, atol=1e-7)


def test_epochs_and_steps_go_on_over_rounds_and_schedulers_restart(run):
    found = rows(run)
    assert [row["at_epoch"] for row in found] == [1.0, 3.0]
    steps = [row["at_step"] for row in rows(run, scope="client") if row["client"] == 0]
    assert steps == [5.0, 11.0]  # 19 samples by 8: 3 steps an epoch; before the last step
    assert [row["rate"] for row in found] == pytest.approx([0.025, 0.025])


@pytest.mark.parametrize(("keep", "told"), [(False, 1), (True, 0)])
def test_schedulers_that_start_afresh_are_told(tmp_path, keep, told):
    view = Silent()
    federated(tmp_path, keep_optimizer=keep, view=view)
    sentence = "learning-rate schedulers start afresh in each round"
    assert len([note for note in view.notes if sentence in note]) == told


@pytest.mark.parametrize("keep", [False, True])
def test_schedules_of_clients_that_seldom_take_part_are_told_once(tmp_path, keep):
    view = Silent()
    federated(tmp_path, keep_optimizer=keep, participation=0.5, rounds=4, view=view)
    restart = [note for note in view.notes if "schedulers start afresh in each round" in note]
    unequal = [note for note in view.notes if "so clients' learning rates differ" in note]
    assert (len(restart), len(unequal)) == ((0, 1) if keep else (1, 0))


def test_a_result_fits_a_notebooks_cell(run):
    assert repr(run).startswith("RunResult(run_dir=")
    assert len(repr(run)) < 500


def test_schedulers_go_on_with_keep_optimizer(tmp_path):
    found = rows(federated(tmp_path, keep_optimizer=True))
    assert [row["rate"] for row in found] == pytest.approx([0.05, 0.025])


def test_clients_validate_the_global_module_on_what_they_hold_out(run):
    clients = rows(run, "validation", "client")
    assert [(row["round"], row["client"]) for row in clients] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert all(0 <= row["val_acc"] <= 1 for row in clients)


def test_the_validation_loader_is_the_servers(run):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(**QUIET)
        found = trainer.validate(run.module, datamodule=Data(), verbose=False)[0]
    assert run.metrics["val"] == pytest.approx(found)
    assert set(run.metrics["test"]) == {"test_loss"}
    assert rows(run, "validation")[0]["val/val_loss"] > 0


def test_a_checkpoint_of_it_is_lightnings(run, tmp_path):
    run.save(tmp_path / "model.ckpt")
    found = Lit.load_from_checkpoint(tmp_path / "model.ckpt")
    assert found.hparams.lr == 0.05
    assert torch.equal(found.head.weight, run.module.head.weight)
    path = run.run_dir / "model" / "model.ckpt"
    assert Lit.load_from_checkpoint(path).hparams.gamma == 0.5
    for folder in (run.run_dir, path.parent):
        with pytest.raises(DataError, match="trained a LightningModule") as told:
            load_model(folder)
        assert f'load_from_checkpoint("{path}")' in str(told.value)


@pytest.mark.parametrize("form", ["checkpoint", "state_dict"])
def test_weights_to_start_from_are_those_of_a_file(run, tmp_path, form):
    file = tmp_path / "it's (1).ckpt"
    run.save(file) if form == "checkpoint" else torch.save(run.module.state_dict(), file)
    again = federated(tmp_path / "again", module=Lit(lr=0.0), overrides=[f"method.weights={file}"])
    assert torch.equal(again.module.head.weight, run.module.head.weight)


def test_a_resumed_run_needs_the_file_that_it_began_with_no_more(tmp_path):
    file, module = tmp_path / "w.pt", Lit()
    torch.save(module.state_dict(), file)
    begun = [f"method.weights={file}"]
    whole = federated(tmp_path / "whole", rounds=2, overrides=begun)
    federated(tmp_path / "parts", rounds=1, overrides=begun)
    file.unlink()
    without = ["method.weights=null"]
    found = federated(tmp_path / "parts", rounds=2, overrides=without, resume=True)
    assert found.module.state_dict().keys() == whole.module.state_dict().keys()
    for name, value in whole.module.state_dict().items():
        assert torch.equal(found.module.state_dict()[name], value)


@pytest.mark.parametrize(
    ("saved", "told"),
    [
        ({"head.weight": torch.zeros(3, 8)}, r"it does not fit Lit: Missing key\(s\) .*; give"),
        ({**Lit().state_dict(), "more": torch.zeros(1)}, r"fit Lit: Unexpected key\(s\).*more"),
        ({**Lit().state_dict(), "head.bias": torch.zeros(7)}, "size mismatch for head.bias"),
        ([3], "holds no weights by name"),
    ],
)
def test_weights_of_another_module_are_refused(tmp_path, saved, told):
    torch.save(saved, tmp_path / "w.pt")
    with pytest.raises(CoterieError, match=told):
        federated(tmp_path, overrides=[f"method.weights={tmp_path / 'w.pt'}"])


def test_personal_layers_stay_with_their_client(tmp_path):
    view = Silent()
    run = federated(tmp_path, personal=["head.*", "*.1.*"], view=view)
    assert not run.metrics  # the module as a whole has no trained head
    assert any("head.*, *.1.* stay with each client" in note for note in view.notes)
    first, second = (run.client_module(client) for client in range(2))
    assert not torch.equal(first.head.weight, second.head.weight)
    assert not torch.equal(first.body[1].running_mean, second.body[1].running_mean)
    assert torch.equal(first.body[0].weight, run.module.body[0].weight)
    sent = 4 * (4 * 8 + 8) + 8  # the first layer, and a weight
    assert rows(run)[0]["bytes/up/module"] == 2 * sent


def test_a_personal_layer_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"hat\.\* fits no layer; did you mean head\.\*"):
        federated(tmp_path, personal=["hat.*"])


def test_the_same_seed_gives_the_same_bits_and_a_killed_run_too(tmp_path):
    class Halt(lightning.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 2:
                raise KeyboardInterrupt

    keys = {"rounds": 3, "keep_optimizer": True, "personal": ["head.*"]}
    whole = federated(tmp_path / "a", **keys)
    checkpoints = ["checkpoint.every=1"]
    with pytest.raises((RunError, InterruptedRunError)):
        federated(
            tmp_path / "b",
            callbacks=[Halt()],
            overrides=[*checkpoints, "faults.on_client_failure=fail"],
            **keys,
        )
    again = federated(tmp_path / "b", resume=True, overrides=checkpoints, **keys)
    for one, other in ((whole.module, again.module), *_clients(whole, again)):
        for name, value in one.state_dict().items():
            assert torch.equal(other.state_dict()[name], value), name


def test_a_run_that_has_ended_takes_more_rounds(tmp_path):
    keys = {"keep_optimizer": True, "personal": ["head.*"], "holdout": 0.2}
    whole = federated(tmp_path / "a", rounds=2, **keys)
    federated(tmp_path / "b", rounds=1, **keys)
    again = federated(tmp_path / "b", rounds=2, resume=True, **keys)
    for one, other in ((whole.module, again.module), *_clients(whole, again)):
        for name, value in one.state_dict().items():
            assert torch.equal(other.state_dict()[name], value), name


def test_its_clusters_are_not_shown(tmp_path, capsys):
    federated(tmp_path, rounds=1)
    assert show.main([f"run={tmp_path}"]) == 2
    assert "the run trained a LightningModule, which load_from" in capsys.readouterr().err


def _clients(one, other):
    return [(one.client_module(n), other.client_module(n)) for n in range(2)]


def test_another_module_does_not_resume(tmp_path):
    federated(tmp_path, rounds=1)
    with pytest.raises(ConfigError, match=r"method\.module=.*Lit.*BoringModel"):
        federated(tmp_path, BoringModel(), rounds=1, resume=True)


@pytest.mark.parametrize(
    "keys",
    [
        ["privacy.secure_aggregation=true"],
        ["aggregation.rule=median"],
        ["aggregation.optimizer=adam"],
        ["participation.straggler_rate=0.9", "participation.straggler_work=0.5"],
    ],
    ids=lambda keys: keys[0].partition("=")[0],
)
def test_what_holds_for_averaging_holds_for_it(tmp_path, keys):
    run = federated(tmp_path, clients=3, rounds=1, overrides=keys)
    assert run.exit_code == 0
    assert torch.isfinite(run.module.head.weight).all()


class OfTheOtherPackage(pytorch_lightning.LightningModule):
    """A module of pytorch_lightning, with a callback of its own."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def configure_callbacks(self):
        return pytorch_lightning.callbacks.EarlyStopping("mean")

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
        self.log("mean", loss, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Lazy(OfTheOtherPackage):
    """One whose shapes the first batch gives."""

    def __init__(self):
        super().__init__()
        self.layer = nn.LazyLinear(3)


class LateLayers(OfTheOtherPackage):
    """One that builds its layers in `configure_model`."""

    def __init__(self):
        super().__init__()
        self.layer = None

    def configure_model(self):
        if self.layer is None:
            self.layer = nn.Linear(4, 3)


class WeightNorm(OfTheOtherPackage):
    """One with a weight that is computed from others."""

    def __init__(self):
        super().__init__()
        self.layer = nn.utils.weight_norm(nn.Linear(4, 3))


@pytest.mark.parametrize("kind", [OfTheOtherPackage, Lazy, LateLayers, WeightNorm])
def test_modules_of_either_package_and_late_layers(tmp_path, kind):
    run = federated(tmp_path, kind(), TensorDataset(*tensors()))
    assert rows(run)[1]["mean"] < rows(run)[0]["mean"]
    assert run.module.layer.weight.shape == (3, 4)


class LazyHead(Lit):
    def __init__(self):
        super().__init__()
        self.head = nn.LazyLinear(3)


class LateHead(Lit):
    def __init__(self):
        super().__init__()
        self.body = self.head = None

    def configure_model(self):
        self.body = nn.Linear(4, 8) if self.body is None else self.body
        self.head = nn.Linear(8, 3) if self.head is None else self.head


@pytest.mark.parametrize("kind", ["LazyHead", "LateHead"])
@pytest.mark.parametrize("backend", ["serial", pytest.param("local", marks=pytest.mark.ray)])
def test_late_layers_of_a_class_that_the_command_line_names(tmp_path, kind, backend):
    words = (
        "experiment=lightning",
        f"module={__name__}:{kind}",
        "data.target=tests.builders.own_module:Data",
        "partition.clients=2",
        "method.rounds=1",
        f"cluster={backend}",
        "evaluation.figures=false",
        f"run_dir={tmp_path / 'run'}",
    )
    Federation(compose(*words), Silent()).run()
    saved = torch.load(tmp_path / "run" / "model" / "model.ckpt", weights_only=True)
    assert saved["state_dict"]["head.weight"].shape == (3, 8)


class KeepsStatistics(Lazy):
    """One that keeps what it can of the first batch: in buffers and in its first weights."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.scale = None

    def training_step(self, batch, batch_idx):
        points = self.norm(batch[0])
        if self.scale is None:
            self.scale = nn.Parameter(batch[0].mean(0))
            self.register_buffer("first", batch[0][0].clone())
        return super().training_step((points * self.scale, batch[1]), batch_idx)


def test_late_layers_are_built_without_the_values_of_the_data():
    points, labels = tensors()
    found = []
    for data in (points, points + 100):
        source = Source(loader=DataLoader(TensorDataset(data, labels), 6))
        torch.manual_seed(0)
        found.append(materialised(KeepsStatistics(), lambda source=source: source))
    first, second = (module.state_dict() for module in found)
    assert first.keys() == second.keys()
    assert {"first", "scale", "layer.weight", "norm.running_mean"} <= first.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert first["norm.running_mean"].eq(0).all()
    assert first["norm.running_var"].eq(1).all()


@pytest.mark.parametrize("kind", [BoringModel, ManualOptimBoringModel])
def test_lightnings_demos(tmp_path, kind):
    run = federated(tmp_path, kind(), RandomDataset(32, 64), loader_batch_size=8)
    assert run.exit_code == 0
    assert not torch.equal(run.module.layer.weight, kind().layer.weight)


def test_another_number_of_clients_than_of_data_sets_is_refused(tmp_path):
    parts = [TensorDataset(*tensors()) for _ in range(3)]
    with pytest.raises(ConfigError, match="clients=2: data is a list of 3, one for each client"):
        federated(tmp_path, Lit(), parts, clients=2)
    with pytest.raises(ConfigError, match="ModelCheckpoint would write files on every client"):
        federated(tmp_path, Lit(), callbacks=[pytorch_lightning.callbacks.ModelCheckpoint()])


class Relinks(RunCallback):
    """Puts a link in place of the folder of the model."""

    def __init__(self, folder):
        self.folder = folder

    def on_round_end(self, record):
        (self.folder / "elsewhere").mkdir(exist_ok=True)
        (self.folder / "run" / "model").symlink_to("../elsewhere")


def test_a_link_in_place_of_the_models_folder_is_not_followed(tmp_path):
    with pytest.raises(RunError, match="it is a link, and a run writes in its own folder"):
        federated(tmp_path / "run", Lit(), rounds=1, callbacks=[Relinks(tmp_path)])
    assert not [*(tmp_path / "elsewhere").iterdir()]


def test_a_module_that_cannot_be_written_is_an_error_of_the_disk(tmp_path):
    limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match=r"model\.ckpt"):
            write_module(tmp_path / "model.ckpt", Lit(), round_=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    assert not [*tmp_path.iterdir()]


class NoStep(lightning.LightningModule):
    def configure_optimizers(self):
        return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)


class NoParameters(Lit):
    def configure_optimizers(self):
        return torch.optim.SGD([], lr=0.1)


class Diverges(Lit):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * float("nan")


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(*tensors(), strict=True))


class WithoutLength(Dataset):
    def __getitem__(self, row):
        return tensors()[0][row], tensors()[1][row]


class Stays:
    """A batch of tensors that is on no other device."""

    def __init__(self, samples):
        self.points, self.labels = (torch.stack(part) for part in zip(*samples, strict=True))

    def to(self, device, **_):
        raise NotImplementedError("it cannot be moved")


class Raises(Lit):
    def training_step(self, batch, batch_idx):
        raise LookupError("no such thing")


FAIL = ["faults.on_client_failure=fail"]


@pytest.mark.parametrize(
    ("module", "data", "error", "sentence"),
    [
        (NoStep, Data, ConfigError, "NoStep has no training_step; write one."),
        (nn.Identity, Data, ConfigError, "Identity is not a LightningModule; inherit from it."),
        (Lit, Stream, DataError, "Stream has no rows that could be split over clients"),
        (Lit, WithoutLength, DataError, "WithoutLength has no rows that could be split"),
        (Lit, lambda: TensorDataset(*tensors(0)), DataError, "has no samples; add some."),
        (Lit, lambda: [Data(), TensorDataset(*tensors(0))], DataError, "has no samples; add"),
        (
            Lit,
            lambda: DataLoader(TensorDataset(*tensors()), 8, collate_fn=Stays),
            RunError,
            "NotImplementedError: .*it cannot be moved",
        ),
        (Lit, lambda: TensorDataset(*tensors(3)), DataError, "each needs 2"),
        (NoParameters, Data, RunError, "optimizer got an empty parameter list"),
        (Diverges, Data, RunError, "is not finite; lower the learning rate"),
        (Raises, Data, RunError, "LookupError: .*no such thing"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, module, data, error, sentence):
    with pytest.raises(error, match=sentence) as raised:
        federated(tmp_path / "run", module(), data(), overrides=FAIL)
    assert "\n" not in str(raised.value)


def test_a_failing_step_leaves_its_traceback(tmp_path):
    with pytest.raises(RunError):
        federated(tmp_path, Raises(), overrides=FAIL)
    log = (tmp_path / "failures.log").read_text()
    assert "test_own_module.py" in log
    assert "in training_step" in log


def test_a_loader_that_drops_all_that_a_client_has_is_refused(tmp_path):
    loader = DataLoader(TensorDataset(*tensors()), 32, drop_last=True)
    with pytest.raises(RunError, match="24 samples, fewer than its loader's batch_size=32"):
        federated(tmp_path, Lit(), loader, overrides=FAIL)


def test_updates_are_clipped_for_differential_privacy(tmp_path):
    keys = ["privacy.dp.clip=0.5", "privacy.dp.noise_multiplier=0.01"]
    module = BoringModel()
    run = federated(tmp_path, module, RandomDataset(32, 64), rounds=1, overrides=keys)
    moved = [
        run.module.state_dict()[k].double() - v.double() for k, v in module.state_dict().items()
    ]
    assert 0 < sum(float((m**2).sum()) for m in moved) ** 0.5 < 0.6
    assert set(rows(run, scope="client")[0]) & {"loss"} == set() or not rows(run)[0].get("loss")


def test_batch_norm_is_refused_under_differential_privacy(tmp_path):
    keys = ["privacy.dp.clip=0.5", "privacy.dp.noise_multiplier=0.5"]
    with pytest.raises(ConfigError, match="batch norm's running statistics are not sent"):
        federated(tmp_path, overrides=keys)


@pytest.mark.parametrize("strategy", [{}, {"strategy": "fedavg"}, {"strategy": "fedadam"}])
def test_a_strategy_without_a_proximal_term_takes_no_mu(tmp_path, strategy):
    with pytest.raises(
        ConfigError, match=r'^mu=5: strategy="fed.*" has no proximal term; give "fedpr'
    ):
        federated(tmp_path, mu=5.0, **strategy)


def test_what_is_held_out_needs_a_validation_step(tmp_path):
    with pytest.raises(ConfigError, match=r"holdout=0\.2: .* has no validation_step"):
        federated(tmp_path, OfTheOtherPackage(), TensorDataset(*tensors()), holdout=0.2)


@pytest.mark.parametrize("key", ["max_epochs", "hats"])
def test_arguments_of_the_trainer_are_checked(tmp_path, key):
    with pytest.raises(ConfigError, match=f"trainer: .*{key}.*leave it out"):
        federated(tmp_path, trainer={key: 1})


def test_arguments_of_the_trainer_count(tmp_path):
    run = federated(tmp_path, rounds=1, trainer={"limit_train_batches": 1})
    assert rows(run)[0]["at_step"] == 0.0


def test_an_object_is_not_gone_on_with_from_the_command_line(tmp_path, capsys):
    federated(tmp_path, rounds=1)
    assert main(["resume=true", f"run_dir={tmp_path}"]) == 2
    assert "an object of a Python program" in capsys.readouterr().err


def test_the_command_line_takes_a_class(tmp_path, capsys):
    code = main(
        [
            "experiment=lightning",
            "module=tests.builders.own_module:Lit",
            "module.lr=0.01",
            "data.target=tests.builders.own_module.Data",
            "data.batch_size=4",
            "method.strategy=fedprox",
            "method.strategy.mu=0.1",
            "partition.clients=2",
            "method.rounds=1",
            "cluster=serial",
            f"run_dir={tmp_path}",
        ]
    )
    assert code == 0, capsys.readouterr().err
    found = Lit.load_from_checkpoint(tmp_path / "model" / "model.ckpt")
    assert found.hparams.lr == 0.01


@pytest.mark.parametrize("word", ["module.lrr=1", "data.lrr=1"])
def test_an_argument_that_a_class_does_not_take_is_named_with_the_nearest(tmp_path, word):
    own = "tests.builders.own_module"
    words = ("experiment=lightning", f"module={own}:Lit", f"data.target={own}:Data", word)
    if word.startswith("data"):
        words = tuple(part.replace(":Data", ":Lit") for part in words)
    keys = ("cluster=serial", f"run_dir={tmp_path / 'run'}")
    with pytest.raises(ConfigError, match=rf"^{word[:-2]}: .*:Lit does not take it; .*lr\?$"):
        Federation(compose(*words, *keys)).run()


NOT_SO = {
    "method.strategy=fedporx": "strategy=fedporx: must be one of fedavg, fedprox, scaffold, ",
    "method.strategy=null": None,
    "method.strategy=fedyogi": None,
}


@pytest.mark.parametrize("word", NOT_SO)
def test_strategies_have_names_on_the_command_line(word):
    words = ("experiment=lightning", "module=tests.builders.own_module:Lit", word)
    if NOT_SO[word]:
        with pytest.raises(ConfigError, match=NOT_SO[word]):
            compose(*words)
    else:
        assert compose(*words).aggregation.optimizer == ("yogi" if "yogi" in word else "none")


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        (
            "method.target=tests.builders.own_module:Lit",
            "a LightningModule goes in experiment=lightning module=tests.builders.own_module:Lit",
        ),
        (
            "data.target=tests.builders.own_module:Data",
            "or for your own module experiment=lightning",
        ),
    ],
)
def test_what_is_lightnings_is_told_where_it_goes(word, remedy):
    with pytest.raises(ConfigError, match=remedy):
        compose("experiment=fedavg_digits", word)


@pytest.mark.parametrize("logger", ["csv", True])
def test_a_logger_by_its_name_is_refused(tmp_path, logger):
    with pytest.raises(ConfigError, match=r"logger=.*: it is not a Lightning logger; give an"):
        federated(tmp_path, logger=logger)


def test_other_methods_refuse_such_data():
    words = ["experiment=fedavg", "data=lightning", "data.target=tests.builders.own_module:Data"]
    with pytest.raises(ConfigError, match="it is for your own module"):
        Federation(compose(*words, "cluster=serial", "encoder=mlp"))


class Unscored(Data):
    """Data without a loader to validate or to test on."""

    val_dataloader = lightning.LightningDataModule.val_dataloader
    test_dataloader = lightning.LightningDataModule.test_dataloader


@pytest.mark.parametrize(("keys", "told"), [({}, 1), ({"holdout": 0.2}, 0)])
def test_a_module_that_nothing_scores_is_told(tmp_path, keys, told):
    view = Silent()
    federated(tmp_path, data=Unscored(), view=view, **keys)
    assert len([note for note in view.notes if note.startswith("Nothing scored the mod")]) == told


@pytest.mark.parametrize("trainer", [{}, {"devices": 1}])
def test_a_share_of_a_gpu_is_no_number_of_devices(tmp_path, trainer):
    cluster = {"backend": "serial", "gpus_per_client": 0.25}
    assert federated(tmp_path, rounds=1, cluster=cluster, trainer=trainer).exit_code == 0


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"cluster": 2}, r'cluster=2: give keys, such as \{"num_actors": 4\}'),
        ({"trainer": lightning.Trainer}, "trainer: "),
        ({"trainer": [1]}, "trainer: give the arguments of a Trainer"),
        ({"num_clients": 3}, "did you mean clients"),
        ({"local_epochs": 3}, "did you mean epochs"),
        ({"actors": 3}, "did you mean cluster"),
        ({"partition": "noniid"}, "did you mean dirichlet"),
        ({"lr": 0.1}, "your module's configure_optimizers decides it"),
        ({"batch_size": 8}, "your DataLoader has it"),
        ({"precision": "bf16-mixed"}, r'give overrides=\["precision=…"\]'),
        ({"val_split": 0.1}, "did you mean holdout"),
    ],
)
def test_arguments_of_another_kind_or_name_are_told(tmp_path, keys, told):
    with pytest.raises(ConfigError, match=told):
        federated(tmp_path, **keys)


def test_the_curves_of_a_module_with_a_validation_loader_are_drawn(tmp_path):
    federated(tmp_path, rounds=2, every=1, overrides=["evaluation.figures=true"])
    assert (tmp_path / "figures" / "curves.png").stat().st_size > 10_000


@pytest.mark.parametrize("how", ["early stopping", "plateau"])
def test_a_watched_metric_that_clients_lack_is_told_with_its_remedy(tmp_path, how):
    class Watching(Lit):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), 0.1)
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"},
            }

    module = Watching() if how == "plateau" else Lit()
    callbacks = [] if how == "plateau" else [EarlyStopping("val_loss")]
    told = r"val_loss is watched, and clients do not log it.*holdout=0\.1[^,]*, or watch"
    with pytest.raises(RunError, match=told) as refused:
        federated(tmp_path / "run", module, callbacks=callbacks)
    assert "lower that share" not in str(refused.value)
    federated(tmp_path / "held out", module, callbacks=callbacks, holdout=0.2)


@pytest.mark.parametrize("epochs", [1, 2])
def test_early_stopping_is_told_to_end_no_run(tmp_path, epochs):
    view, callbacks = Silent(), [EarlyStopping("val_loss")]
    federated(tmp_path, callbacks=callbacks, holdout=0.2, epochs=epochs, view=view)
    (note,) = (note for note in view.notes if "EarlyStopping" in note)
    assert "not the run" in note
    assert ("with one epoch a round it changes nothing" in note) == (epochs == 1)


def test_a_text_for_a_number_is_refused_before_the_run(tmp_path):
    own = "tests.builders.own_module"
    words = ("experiment=lightning", f"module={own}:Annotated", f"data.target={own}:Data")
    config = compose(*words, "module.lr=high", "cluster=serial", f"run_dir={tmp_path / 'run'}")
    with pytest.raises(ConfigError, match=r"^module.lr=high: it is a text, and .*Annotated takes"):
        Federation(config).run()
