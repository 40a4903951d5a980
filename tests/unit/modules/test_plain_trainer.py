"""Every module of modules/ is an ordinary one: a plain Trainer fits it with a data module."""

import importlib
import math
import pkgutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

import modules
from coterie.commands.compose import compose
from coterie.commands.own_module import Federation
from coterie.contract.method import TrainsModule
from coterie.datamodules.digits import Digits
from coterie.errors import ConfigError, CoterieError
from coterie.modules.ccfc import CCFC
from coterie.modules.dec import DEC
from coterie.modules.fedu import FedU
from coterie.modules.mae import MAE
from coterie.modules.mcc import MomentumConfig, MomentumContrast
from coterie.modules.scan import SCAN, NeighbourClusters
from coterie.modules.simclr import SimCLR
from coterie.modules.soft_clusters import SelfTraining
from coterie.modules.synthesis import GAN
from coterie.networks.encoders import MLP
from coterie.networks.timm_models import Timm
from coterie.run.as_lightning import as_lightning
from tests.builders.every_method import METHODS, short
from tests.builders.federation import tiny_task

pytestmark = pytest.mark.ci

TASK = replace(tiny_task(torch.float32), classes=10, encoder=MLP(hidden=(8,), features=6))
PATCHES = {"patch_size": 2, "embed_dim": 8, "depth": 1, "num_heads": 2}
PATCHED = replace(TASK, encoder=Timm(model="vit_tiny_patch16_224", options=PATCHES))
TRAINING = [kind for kind in METHODS if issubclass(kind, TrainsModule)]


def built(kind: Any, **config: Any) -> Any:
    method: Any = kind(kind.Config(**config) if config else short(kind), TASK)
    torch.manual_seed(0)
    return method.build()


BUILDERS = {
    **{kind.__name__: lambda kind=kind: built(kind) for kind in TRAINING},
    "CCFC's clusters": lambda: CCFC(short(CCFC), TASK)._module("clusters"),
    "DEC's clustering": lambda: SelfTraining(short(DEC), TASK),
    "FedMCC's clustering": lambda: MomentumContrast(MomentumConfig(), TASK, "clustering"),
    "SCAN's labels": lambda: NeighbourClusters(SCAN.Config(threshold=0.1), TASK, "self-labelling"),
    "MAE": lambda: MAE(MAE.Config(decoder=8, decoder_heads=2, decoder_blocks=1), PATCHED).build(),
    "SimCLR's micro-batches": lambda: built(SimCLR, batch_size=20, micro_batch_size=7),
}


def digits(limit: int = 60) -> Digits:
    return Digits(Digits.Config(limit=limit), batch_size=20)


@pytest.mark.parametrize("name", sorted(BUILDERS.keys() - {"Orchestra", "IDFD"}))
def test_it_fits_the_batches_of_any_loader(name: str, tmp_path: Path) -> None:
    parts = 2 if name in {"FedAvg", "MOON", "CPCFL", "IFCA"} else 1  # those that need labels
    tensors = torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8), torch.arange(40) % 10
    loader = DataLoader(TensorDataset(*tensors[:parts]), batch_size=20)
    trainer = plain(tmp_path)
    trainer.fit(BUILDERS[name](), loader)
    assert (trainer.global_step, trainer.callback_metrics["loss"].isfinite()) == (2, True)


def plain(folder: Path, epochs: int = 1, **more: Any) -> Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    logger = CSVLogger(folder, flush_logs_every_n_steps=1)
    return Trainer(
        max_epochs=epochs, accelerator="cpu", logger=logger, log_every_n_steps=1, **quiet, **more
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", BUILDERS)
def test_it_fits_logs_represents_and_is_loaded(name: str, tmp_path: Path) -> None:
    module, trainer, data = BUILDERS[name](), plain(tmp_path), digits()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    trainer.fit(module, datamodule=data)
    assert trainer.global_step == 3
    assert any(not torch.equal(before[key], value) for key, value in module.state_dict().items())
    for logged in (trainer.callback_metrics["loss"], trainer.logged_metrics["loss_epoch"]):
        assert math.isfinite(logged)
    assert "loss_epoch" in (tmp_path / "lightning_logs/version_0/metrics.csv").read_text()
    batch = next(iter(data.train_dataloader()))["samples"]
    seen = module.codes(20) if isinstance(module, GAN) else batch
    found = module.eval()(seen)
    if isinstance(module, GAN):
        assert found.shape == batch.shape
    else:
        assert (found.ndim, len(found)) == (2, 20)
    loaded = type(module).load_from_checkpoint(trainer.checkpoint_callback.best_model_path)
    assert dict(loaded.hparams) == dict(module.hparams)
    task = PATCHED if name == "MAE" else TASK
    assert (loaded.config, loaded.hparams["task"]) == (module.config, task.dumped())
    assert torch.equal(loaded.eval()(seen), found)


def test_no_module_is_left_out() -> None:
    every = set()
    for info in pkgutil.iter_modules(modules.__path__, "coterie.modules."):
        for kind in vars(importlib.import_module(info.name)).values():
            own = isinstance(kind, type) and issubclass(kind, LightningModule)
            if own and kind.training_step is not LightningModule.training_step:
                every.add(kind)
    covered = {parent for build in BUILDERS.values() for parent in type(build()).__mro__}
    assert len(every) > 15
    assert every <= covered


def test_without_a_seed_views_come_from_the_global_generator(tmp_path: Path) -> None:
    found = []
    for seed in (1, 1, 2):
        module = built(SimCLR)
        seed_everything(seed, verbose=False)
        plain(tmp_path, enable_checkpointing=False).fit(module, datamodule=digits())
        found.append(module.online.projector.layers[0].weight)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_fedus_schedule_goes_on_by_rounds_of_epochs(tmp_path: Path) -> None:
    config = {"rounds": 2, "decay_rounds": 2, "epochs": 2, "learning_rate": 0.5}
    narrow = {"hidden": 8, "projection": 4, "bottleneck": 4}
    rates = []
    for epochs in (1, 2, 3, 4):
        trainer = plain(tmp_path, epochs, enable_checkpointing=False)
        trainer.fit(built(FedU, **config, **narrow), datamodule=digits())
        rates.append(trainer.optimizers[0].param_groups[0]["lr"])
    assert rates == pytest.approx([0.5, 0.25, 0.25, 0.0])


def test_a_configs_module_and_data(tmp_path: Path) -> None:
    small = ("data.limit=40", "method.hidden=8", "method.projection=4", "method.batch_size=16")
    module, data = as_lightning(compose("experiment=fedbyol_digits", *small))
    assert [len(batch["samples"]) for batch in data.train_dataloader()] == [16, 16, 8]
    plain(tmp_path, enable_checkpointing=False).fit(module, datamodule=data)
    with pytest.raises(ConfigError, match="method=KFED: its clients train no module"):
        as_lightning(compose("experiment=kfed_digits"))


def test_a_checkpoint_of_somebody_elses_class_is_not_imported(tmp_path: Path) -> None:
    module = built(SimCLR)
    module.hparams["task"]["encoder"] = {"target": "elsewhere:Encoder"}
    trainer = plain(tmp_path)
    trainer.strategy.connect(module)
    trainer.save_checkpoint(tmp_path / "foreign.ckpt")
    with pytest.raises(ConfigError, match="imports only Coterie's own classes"):
        type(module).load_from_checkpoint(tmp_path / "foreign.ckpt")
    again = type(module).load_from_checkpoint(tmp_path / "foreign.ckpt", task=TASK)
    assert torch.equal(
        again.online.encoder(torch.ones(2, 64)), module.online.encoder(torch.ones(2, 64))
    )


def stored(tmp_path: Path, **changes: Any) -> Path:
    """A checkpoint of SimCLR with other hyperparameters, or other parts of its task."""
    module, path = built(SimCLR), tmp_path / "stranger.ckpt"
    trainer = plain(tmp_path)
    trainer.strategy.connect(module)
    trainer.save_checkpoint(path)
    content = torch.load(path, weights_only=True)
    content["hyper_parameters"] |= changes.pop("hyper_parameters", {})
    content["hyper_parameters"]["task"] |= changes.pop("task", {})
    torch.save({**content, **changes}, path)
    return path


@pytest.mark.parametrize("key", ["_instantiator", "_class_path", "_target_"])
def test_what_a_checkpoint_names_is_not_called(key: str, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "stranger.py").write_text("raise SystemExit('a stranger runs')")
    monkeypatch.syspath_prepend(tmp_path)
    path = stored(tmp_path, hyper_parameters={key: "stranger.run"}, hparams_name="kwargs")
    loaded = type(built(SimCLR)).load_from_checkpoint(path)
    assert {"config", "task"} <= loaded.hparams.keys()
    assert key not in loaded.hparams


def doubled() -> list[Any]:
    inner: list[Any] = []
    for _ in range(60):
        inner = [inner, inner]
    return inner


def forged(**parts: Any) -> dict[str, Any]:
    return {"task": parts}


STRANGE = {
    "a list of lists": (forged(more=doubled()), "larger than 512 KiB"),
    "a dtype that is none": (forged(dtype="load"), "load is no dtype"),
    "a shape without end": (forged(shape=[1, 1 << 20, 1 << 20]), "samples are larger than its w"),
    "a wide encoder": (
        forged(encoder={"target": "coterie.networks.encoders:MLP", "hidden": [1 << 40]}),
        "is of other weights",
    ),
    "another key": (forged(more=1), "it holds no"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", STRANGE)
def test_strange_hyperparameters_are_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    changes, why = STRANGE[name]
    path = stored(tmp_path, **changes)
    with pytest.raises(CoterieError, match=rf"^{path}: .*{why}[^\n]*\.$"):
        type(built(SimCLR)).load_from_checkpoint(path)


def test_files_that_are_no_checkpoints_are_refused_in_a_sentence(tmp_path: Path) -> None:
    kind = type(built(SimCLR))
    for content, why in (({"a": torch.ones(1)}, "it holds no"), ({"a": {1}}, "builtin.*set")):
        torch.save(content, tmp_path / "x.ckpt")
        with pytest.raises(CoterieError, match=rf"x\.ckpt: .*{why}[^\n]*\.$"):
            kind.load_from_checkpoint(tmp_path / "x.ckpt")
    with pytest.raises(CoterieError, match=r"missing\.ckpt: it cannot be read"):
        kind.load_from_checkpoint(tmp_path / "missing.ckpt")


def test_a_federation_takes_module_and_data_as_any_others(tmp_path: Path) -> None:
    run = Federation(
        module=built(SimCLR, batch_size=8, rounds=1, epochs=1),
        data=digits(),
        clients=2,
        rounds=1,
        alpha=1.0,
        cluster={"backend": "serial"},
        run_dir=tmp_path / "run",
    ).run()
    assert math.isfinite(run.history["loss_epoch"][0].as_py())
    assert run.module(torch.rand(3, 1, 8, 8)).shape == (3, 6)
