"""An encoder is pretrained by a job of its own and used by another run, frozen or as a start."""

import contextlib
import hashlib
import io
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from coterie import Federation, load_model
from coterie.commands.compose import compose
from coterie.config import dump_config, load_config
from coterie.errors import ConfigError, DataError
from coterie.jobs import pretrain
from coterie.models.pretrained_encoder import Pretrained
from coterie.modules.byol import FedBYOL
from coterie.modules.cfcl import CFCL
from coterie.modules.fedavg import FedAvg
from coterie.modules.fedmcc import FedMCC
from tests.builders.federation import SHAPE, federate, same_bits, tiny_workload

QUIET = (
    "cluster=serial",
    "executor=bare",
    "data.limit=120",
    "evaluation.every=0",
    "evaluation.figures=false",
    "evaluation.linear_probe=false",
    "evaluation.knn=false",
    "evaluation.kmeans_baseline=false",
    "tracking.progress=none",
)
PRETRAINING = (
    "experiment=simclr_digits",
    *QUIET,
    "encoder.width=4",
    "encoder.features=8",
    "method.rounds=1",
    "method.epochs=1",
    "method.batch_size=64",
)
SUPERVISED = ("experiment=fedavg_digits", *QUIET, "method.rounds=1", "encoder=pretrained")
WEIGHTS = "model/model.safetensors"
ROUNDS = {
    FedAvg: {"rounds": 2, "epochs": 1, "batch_size": 8},
    FedBYOL: {"rounds": 2, "epochs": 1, "batch_size": 8},
    FedMCC: {
        "representation_rounds": 1,
        "clustering_rounds": 1,
        "representation_epochs": 1,
        "clustering_epochs": 1,
        "batch_size": 8,
    },
}


@pytest.fixture(scope="module")
def said_and_left(tmp_path_factory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("pretrained") / "simclr"
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert pretrain.main([*PRETRAINING, f"out={folder}"]) == 0
    return said.getvalue(), folder


@pytest.fixture
def folder(said_and_left, tmp_path) -> Path:
    return shutil.copytree(said_and_left[1], tmp_path / "simclr")


def encoder(folder: Path, **keys) -> Pretrained:
    return Pretrained(path=str(folder), **keys)


def saved(folder: Path) -> dict[str, torch.Tensor]:
    every = load_file(folder / WEIGHTS)
    return {k.removeprefix("encoder."): v for k, v in every.items() if k.startswith("encoder.")}


def test_the_command_leaves_a_run_and_says_how_to_use_it(said_and_left) -> None:
    said, folder = said_and_left
    assert said.splitlines()[-1] == f"encoder=pretrained encoder.path={folder}"
    assert {"config.yaml", "summary.json", "model", "checkpoints"} <= {
        path.name for path in folder.iterdir()
    }


def test_the_command_asks_for_a_folder(capsys) -> None:
    assert pretrain.main(["experiment=simclr_digits"]) == 2
    sentence = "out: none is given; name the folder for the encoder as out=DIR.\n"
    assert capsys.readouterr().err == sentence


def test_the_resolved_config_holds_digest_and_network(folder) -> None:
    config = compose(*SUPERVISED, f"encoder.path={folder}")
    found = dump_config(config)["encoder"]
    assert found["digest"] == hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    assert found["network"] == dump_config(compose(*PRETRAINING))["encoder"]
    assert (found["path"], found["freeze"]) == (str(folder), True)
    assert load_config(dump_config(config)) == config
    assert (
        compose(*SUPERVISED, f"encoder.path={folder / 'model'}").encoder.digest == found["digest"]
    )


@pytest.mark.parametrize("freeze", [True, False])
def test_it_gives_the_representations_of_the_run(folder, freeze: bool) -> None:
    built = encoder(folder, freeze=freeze).build(SHAPE)
    assert built.features == 8
    assert same_bits(dict(built.state_dict()), saved(folder))
    assert bool(list(built.parameters())) is not freeze
    samples = torch.rand(5, *SHAPE)
    built.train(not freeze)
    with torch.no_grad():
        assert torch.equal(built.eval()(samples), load_model(folder).encoder(samples))


def ran(folder: Path, kind: type, *, freeze: bool):
    config = encoder(folder, freeze=freeze)
    workload = tiny_workload(kind.Config(**ROUNDS[kind]), needs_labels=kind.needs_labels)
    return federate(replace(workload, task=replace(workload.task, encoder=config)))


@pytest.mark.parametrize("kind", ROUNDS)
def test_nothing_moves_a_frozen_encoder(folder, kind: type) -> None:
    done = ran(folder, kind, freeze=True)
    before, after = (server.slots for server in (done.start, done.state.server))
    assert same_bits(before["encoder"], after["encoder"])
    weights = saved(folder)
    for key, value in after["encoder"].items():
        assert torch.equal(value, weights[key.partition("encoder.")[2]].double())
    moved = [slot for slot in after if not same_bits(before[slot], after[slot])]
    assert moved, "nothing was trained at all"


def test_a_frozen_encoder_goes_down_once_and_is_not_sent_back(folder) -> None:
    done = ran(folder, FedAvg, freeze=True)
    assert [set(c.traffic.down) for c in done.commits] == [
        {"encoder", "classifier"},
        {"classifier"},
    ]
    assert [set(c.traffic.up) for c in done.commits] == [{"classifier", "metrics"}] * 2


@pytest.mark.parametrize("kind", ROUNDS)
def test_training_may_start_from_it(folder, kind: type) -> None:
    done = ran(folder, kind, freeze=False)
    before, after = (server.slots["encoder"] for server in (done.start, done.state.server))
    key = next(k for k in before if k.endswith("network.0.weight"))
    torch.testing.assert_close(before[key].float(), saved(folder)["network.0.weight"])
    assert not torch.equal(before[key], after[key])


def test_its_representations_may_have_unit_length(folder) -> None:
    plain, unit = (Pretrained(path=str(folder), unit_length=u) for u in (False, True))
    x = torch.rand(3, 1, 8, 8)
    h, found = (config.build((1, 8, 8))(x) for config in (plain, unit))
    torch.testing.assert_close(found, h / h.norm(dim=1, keepdim=True))
    # A model that was trained on it is loaded by the architecture alone.
    assert unit.architecture().build((1, 8, 8)).unit_length


def test_the_weights_travel_with_the_config(folder) -> None:
    packed, weights = pickle.dumps(encoder(folder)), saved(folder)
    shutil.rmtree(folder)
    assert same_bits(dict(pickle.loads(packed).build(SHAPE).state_dict()), weights)


def test_a_model_that_was_trained_on_it_stands_alone(folder, tmp_path) -> None:
    config = compose(*SUPERVISED, f"encoder.path={folder}", f"run_dir={tmp_path / 'next'}")
    done = Federation(config).run()
    assert same_bits(saved(done.run_dir), saved(folder))
    another = encoder(done.run_dir)
    assert another.network == config.encoder.network
    shutil.rmtree(folder)
    samples = torch.rand(5, *SHAPE)
    with torch.no_grad():
        given, own = (m(samples).probabilities for m in (load_model(done.run_dir), done.model))
    assert torch.equal(given, own)
    resolved = load_config(dump_config(config))
    with pytest.raises(DataError, match=r"simclr: the weights are no longer there; put them back"):
        resolved.encoder.build(SHAPE)


def other_weights(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    save_file({key: value + 1 for key, value in weights.items()}, folder / WEIGHTS)


def test_a_run_is_not_resumed_with_another_file(folder, tmp_path) -> None:
    keys = (*SUPERVISED, f"encoder.path={folder}", f"run_dir={tmp_path / 'next'}", "resume=true")
    Federation(compose(*keys)).run()
    other_weights(folder)
    with pytest.raises(ConfigError, match=r"run had encoder\.digest=.*give the same config"):
        Federation(compose(*keys)).run()


def test_a_digest_that_is_given_has_to_agree(folder) -> None:
    first = encoder(folder)
    other_weights(folder)
    with pytest.raises(ConfigError, match=r"^encoder\.digest=\w{64}: the model in .* has \w{64};"):
        encoder(folder, digest=first.digest)


REFUSED = [
    ("encoder.path=nowhere", "there is no such folder; give a run's folder or its model/."),
    ("encoder.freeze=1", "encoder.freeze=1: must be true or false."),
    ("encoder.network.width=9", "leave it out, or give the model that it belongs to."),
]


@pytest.mark.parametrize(("override", "ending"), REFUSED)
def test_the_config_is_refused_in_one_sentence(folder, override: str, ending: str) -> None:
    with pytest.raises((ConfigError, DataError)) as caught:
        compose(*SUPERVISED, f"encoder.path={folder}", override)
    assert str(caught.value).startswith("encoder.")
    assert str(caught.value).endswith(ending)
    assert "\n" not in str(caught.value)


def test_a_method_that_trains_the_encoder_alone_refuses_a_frozen_one(folder) -> None:
    config = CFCL.Config(total_steps=2, aggregate_every=1, exchange="none")
    task, sizes = tiny_workload(config).task, {0: 9, 1: 9}
    frozen = replace(task, encoder=encoder(folder, freeze=True))
    with pytest.raises(
        ConfigError, match=r"^encoder: all of it is frozen, .* encoder\.freeze=false"
    ):
        CFCL(config, frozen).init(sizes, 0)
    free = replace(task, encoder=encoder(folder, freeze=False))
    assert CFCL(config, free).init(sizes, 0).slots["encoder"]


def test_half_a_file_is_refused_in_one_sentence(folder) -> None:
    weights = folder / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(
        DataError, match=r"^encoder\.path=.*: its weights cannot be read \(.*again\.$"
    ):
        encoder(folder).build((1, 8, 8))


def test_samples_of_another_shape_are_refused(folder) -> None:
    with pytest.raises(ConfigError, match=r"for samples of shape \(3, 8, 8\) its network has netw"):
        encoder(folder).build((3, 8, 8))


@pytest.mark.parametrize(
    ("method", "keys"),
    [
        ("vae", ("method.hidden=8", "method.width=2")),
        ("idfd", ()),
        (
            "ccfc",
            (
                "method.metric=cosine",
                "method.warmup_rounds=0",
                "partition=iid",
                "partition.clients=2",
            ),
        ),
    ],
)
def test_a_method_s_own_layers_behind_the_network_are_left_out(method, keys, tmp_path) -> None:
    common = ("encoder.width=4", "encoder.features=8", "method.rounds=1", "method.epochs=1")
    own = (*common, *keys, f"run_dir={tmp_path / 'own'}")
    Federation(compose(f"experiment={method}_digits", *QUIET, *own)).run()
    built = encoder(tmp_path / "own").build(SHAPE).state_dict()
    inner = {k.partition("network.")[2]: v for k, v in saved(tmp_path / "own").items()}
    assert built
    assert all(torch.equal(v, inner[k.removeprefix("network.")]) for k, v in built.items())
    with pytest.raises(ConfigError, match=r"for samples of shape \(3, 8, 8\) its network has netw"):
        encoder(tmp_path / "own").build((3, *SHAPE[1:]))
