"""The encoder that a plain Trainer trained is where a federation starts."""

import resource

import pytest
import torch
from lightning import Trainer, seed_everything

from coterie import Federation, as_lightning
from coterie.commands.compose import compose
from coterie.errors import ConfigError, CoterieError
from tests.builders.federation import same_bits

SMALL = ("data.limit=120", "encoder.width=4", "encoder.features=8")
SUPERVISED = (
    "experiment=fedavg_digits",
    "cluster=serial",
    "data.limit=120",
    "evaluation.every=0",
    "evaluation.figures=false",
    "evaluation.linear_probe=false",
    "evaluation.knn=false",
    "tracking.progress=none",
    "method.rounds=1",
    "encoder=pretrained",
)


@pytest.fixture(scope="module", params=["fedbyol_digits", "fedavg_digits"])
def trained(request, tmp_path_factory):
    """A module that a Trainer trained for an epoch, and its checkpoint."""
    seed_everything(0)
    module, data = as_lightning(compose(f"experiment={request.param}", *SMALL))
    folder = tmp_path_factory.mktemp("trained")
    trainer = Trainer(
        max_epochs=1, default_root_dir=folder, logger=False, enable_progress_bar=False
    )
    trainer.fit(module, datamodule=data)
    return module, trainer.checkpoint_callback.best_model_path


def saved(content, folder):
    torch.save(content, folder / "other.ckpt")
    return str(folder / "other.ckpt")


def test_a_methods_encoder_starts_from_it(trained, tmp_path):
    module, path = trained
    config = compose(*SUPERVISED, f"encoder.path={path}", f"run_dir={tmp_path / 'run'}")
    encoder = config.encoder.build((1, 8, 8))
    own = module.get_submodule(module.representation)
    assert same_bits(encoder.state_dict(), own.state_dict())
    run = Federation(config).run()
    assert same_bits(run.model.encoder.state_dict(), own.state_dict())  # frozen


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: {**content, "hyper_parameters": {}},
        lambda content: {**content, "hyper_parameters": [1]},
        lambda content: {**content, "state_dict": 3},
        lambda content: {**content, "state_dict": {"online.encoder.x": "text"}},
        lambda content: [content],
        lambda content: {"state_dict": content["state_dict"]},
    ],
)
def test_other_checkpoints_are_refused_in_a_sentence(trained, damage, tmp_path):
    content = torch.load(trained[1], weights_only=True)
    path = saved(damage(content), tmp_path)
    with pytest.raises(CoterieError, match=r"other\.ckpt: it (is|holds) no"):
        compose(*SUPERVISED, f"encoder.path={path}").encoder.build((1, 8, 8))


def test_a_class_that_is_not_coteries_is_imported_only_if_it_is_trusted(
    trained, tmp_path, monkeypatch
):
    (tmp_path / "strange_package.py").write_text("raise SystemExit('a stranger runs')")
    monkeypatch.syspath_prepend(tmp_path)
    content = torch.load(trained[1], weights_only=True)
    content["hyper_parameters"]["task"]["encoder"] = {"target": "strange_package:Encoder"}
    with pytest.raises(ConfigError, match="trust=strange_package"):
        compose(*SUPERVISED, f"encoder.path={saved(content, tmp_path)}")


@pytest.mark.parametrize(
    "encoder",
    [
        {"features": 10**7},
        {"width": 10**9},
        {"width": 2**62},
        {"target": "coterie.models.pretrained_encoder:Pretrained", "path": "/etc/passwd"},
    ],
)
def test_a_network_that_the_weights_do_not_fit_takes_no_memory_and_reads_no_file(
    trained, encoder, tmp_path
):
    content = torch.load(trained[1], weights_only=True)
    content["hyper_parameters"]["task"]["encoder"] |= encoder
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CoterieError) as told:
        compose(*SUPERVISED, f"encoder.path={saved(content, tmp_path)}").encoder.build((1, 8, 8))
    assert "passwd" not in str(told.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 19  # KiB


def test_an_encoder_that_was_pretrained_itself_is_in_the_checkpoint(trained, tmp_path):
    content = torch.load(trained[1], weights_only=True)
    task = content["hyper_parameters"]["task"]
    pretrained = {"target": "coterie.models.pretrained_encoder:Pretrained", "path": "/gone"}
    task["encoder"] = {**pretrained, "network": task["encoder"], "digest": "0" * 64}
    encoder = compose(*SUPERVISED, f"encoder.path={saved(content, tmp_path)}").encoder
    own = trained[0].get_submodule(trained[0].representation)
    assert same_bits(encoder.build((1, 8, 8)).state_dict(), own.state_dict())
