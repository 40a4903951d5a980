"""`resume=true` on data that has changed: refused with what differs, or accepted and told."""

import json
import time

import numpy as np
import pytest
from PIL import Image

from coterie import Federation
from coterie.commands.compose import compose
from coterie.contract.content import contents_digest
from coterie.contract.phase import ServerState
from coterie.contract.samples import StreamedSamples
from coterie.errors import ConfigError
from coterie.jobs.train import main
from coterie.rounds.state import RunState
from coterie.run.same_data import follow_clients
from tests.builders.observers import Silent
from tests.builders.runs import SERIAL

NAMES = ("ann", "bob", "cid")


def write(path, *, seed=0, names=NAMES, each=20, classes=("cat", "dog"), features=6):
    """An npz file of vectors, owned by clients of these names."""
    generator = np.random.default_rng(seed)
    count = each * len(names)
    np.savez(
        path,
        samples=generator.normal(size=(count, features)).astype(np.float32),
        labels=np.resize(np.array(classes), count),
        clients=np.repeat(np.array(names), each),
    )


def train(tmp_path, method, rounds, *more):
    view = Silent()
    Federation(
        compose(
            f"experiment={method}",
            "data=npz",
            f"data.path={tmp_path / 'data.npz'}",
            "partition=by_client",
            "encoder=mlp",
            "encoder.hidden=[8]",
            "encoder.features=4",
            "augmentation=noise",
            *SERIAL,
            f"run_dir={tmp_path / 'run'}",
            f"method.rounds={rounds}",
            "evaluation.local_tests=false",
            *more,
        ),
        view,
    ).run()
    return view.notes


CHANGES = {
    "pixels": ({"seed": 1}, "contents of the training samples differ"),
    "fewer": ({"each": 19}, "client ann has 19 samples and had 20, client bob has 19"),
    "classes": ({"classes": ("cat", "fox")}, "class fox was dog"),
    "order of classes": ({"classes": ("dog", "cat")}, "labels of the training samples differ"),
    "names": ({"names": ("ann", "bob", "dan")}, "client cid is gone, client dan is new"),
    "one more": ({"names": (*NAMES, "dan")}, "client dan is new"),
    "features": ({"features": 7}, "samples have shape (7,), and had (6,)"),
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    folder = tmp_path_factory.mktemp("begun")
    write(folder / "data.npz")
    train(folder, "fedavg_digits", 1, "tracking.loggers=[csv]")
    return folder


@pytest.mark.parametrize("change", CHANGES)
def test_changed_data_is_refused_and_named(begun, change):
    options, what = CHANGES[change]
    before = (begun / "run/metrics.jsonl").read_bytes()
    write(begun / "data.npz", **options)
    with pytest.raises(ConfigError, match=r"^resume=true: the data is not what the run began") as e:
        train(begun, "fedavg_digits", 2, "resume=true", "tracking.loggers=[csv]")
    assert what in str(e.value)
    assert ("accept_changed_data=true" in str(e.value)) == (change != "features")
    assert [path.name for path in (begun / "run/csv").iterdir()] == ["version_0"]
    assert (begun / "run/metrics.jsonl").read_bytes() == before


def test_the_same_data_elsewhere_goes_on(tmp_path):
    write(tmp_path / "data.npz")
    train(tmp_path, "fedavg_digits", 1)
    (tmp_path / "data.npz").rename(tmp_path / "moved.npz")
    notes = train(
        tmp_path, "fedavg_digits", 2, f"data.path={tmp_path / 'moved.npz'}", "resume=true"
    )
    assert "Resumed after round 1." in notes
    assert not [note for note in notes if "changed" in note]


@pytest.mark.parametrize("method", ["ccfc_digits", "fedavg_digits"])
@pytest.mark.parametrize("names", [("bob", "ann"), ("ann", "bob", "cid", "dan")])
def test_changed_data_is_accepted_and_told(tmp_path, method, names):
    write(tmp_path / "data.npz")
    train(tmp_path, method, 1)
    write(tmp_path / "data.npz", seed=1, names=names)
    notes = train(tmp_path, method, 2, "resume=true", "accept_changed_data=true")
    assert any("the data was changed after round" in note for note in notes)
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["status"] == "completed"
    assert any("client cid is gone" in one or "dan is new" in one for one in summary["failures"])
    # The new data is what the run has from now on.
    again = train(tmp_path, method, 2, "resume=true")
    assert not [note for note in again if "changed" in note]


def test_other_clients_do_not_fit_a_server_that_knows_each(tmp_path):
    write(tmp_path / "data.npz")
    train(tmp_path, "ifca_digits", 1)
    write(tmp_path / "data.npz", names=(*NAMES, "dan"))
    with pytest.raises(
        ConfigError, match=r"\(client dan is new, .* put it back as it was, or begin a new"
    ):
        train(tmp_path, "ifca_digits", 2, "resume=true", "accept_changed_data=true")


@pytest.mark.parametrize("change", [{"names": ("abe", "ann", "bob")}, {"seed": 1}, {"each": 21}])
def test_a_private_run_has_one_data_set(tmp_path, change):
    private = ["privacy.dp.clip=1", "privacy.dp.noise_multiplier=2", "privacy.dp.delta=1e-2"]
    write(tmp_path / "data.npz")
    train(tmp_path, "fedavg_digits", 1, *private)
    write(tmp_path / "data.npz", **change)
    with pytest.raises(ConfigError, match=r" put it back as it was, or begin a new run\.$"):
        train(tmp_path, "fedavg_digits", 2, *private, "resume=true", "accept_changed_data=true")


OWN_NOISE = {
    "orchestra_digits": ("method.privacy=local_dp", "method.epsilon=5", "method.epochs=1"),
    "fedsc_digits": ("method.noise=0.1", "method.projector_norm=none"),
}


@pytest.mark.parametrize("method", OWN_NOISE)
def test_where_clients_add_noise_themselves_a_run_has_one_data_set_too(tmp_path, method):
    draw = np.random.default_rng(0)

    def change():
        images = draw.integers(0, 256, (60, 8, 8), dtype=np.uint8)
        clients = np.repeat(np.array(NAMES), 20)
        np.savez(tmp_path / "data.npz", samples=images, labels=np.arange(60) % 2, clients=clients)

    keys = (*OWN_NOISE[method], "augmentation=mild", "method.batch_size=8")
    change()
    train(tmp_path, method, 1, *keys)
    change()
    with pytest.raises(ConfigError, match=r" put it back as it was, or begin a new run\.$"):
        train(tmp_path, method, 2, *keys, "resume=true", "accept_changed_data=true")


def test_clients_keep_their_states_by_name():
    state = RunState(
        server=ServerState(slots={}),
        states={0: "a", 1: "b"},
        peer_messages={1: {0: "a to b", 1: "own"}},
    )
    state.ledger.received = {0: 5, 1: 7}
    follow_clients(state, {"clients": ["ann", "bob"]}, {"clients": ["zoe", "bob"]})
    assert (state.states, state.peer_messages, state.ledger.received) == (
        {1: "b"},
        {1: {1: "own"}},
        {1: 7},
    )


def test_a_digest_sees_any_change_and_costs_little():
    images = np.random.default_rng(0).integers(0, 256, (20_000, 3, 32, 32), dtype=np.uint8)
    begun = time.process_time()
    before = contents_digest(images)
    digested = time.process_time() - begun
    begun = time.process_time()
    images[::2].copy()
    copied = time.process_time() - begun
    assert digested < max(copied, 0.02)  # far below what decoding or unpacking takes
    changed = images.copy()
    changed[77] = 255 - changed[77]  # one sample
    assert contents_digest(changed) != before
    assert contents_digest(images[::-1].copy()) != before
    assert contents_digest(images[:-1]) != before
    small = np.zeros((10, 4), np.float32)
    one = small.copy()
    one[3, 2] = 1e-30
    assert contents_digest(one) != contents_digest(small)


def test_streamed_samples_are_read_in_part():
    images, asked = np.arange(64_000, dtype=np.float32).reshape(6400, 10), []
    samples = StreamedSamples(
        shape=images.shape,
        dtype=images.dtype,
        read=lambda rows: asked.append(len(rows)) or images[rows],
    )
    before = contents_digest(samples)
    assert sum(asked) <= 64
    images += 1
    assert contents_digest(samples) != before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run_dir=TYPO",), "run_dir=TYPO: there is no such folder"),
        (("run_dir=RUN/model",), "run_dir=RUN/model: it is a run's model; give"),
        (("run_dir=RUN/checkpoints",), "run_dir=RUN/checkpoints: no config.yaml in it"),
        (("run_dir=RUN/model", "experiment=fedavg_digits"), "run_dir=RUN/model: the folder is not"),
    ],
)
def test_a_folder_is_a_run_only_if_it_is_one(begun, arguments, sentence, capsys):
    files = sorted(begun.rglob("*"))
    given = [one.replace("RUN", str(begun / "run")) for one in arguments]
    assert main(["resume=true", *given, *SERIAL]) == 2
    assert (
        capsys.readouterr()
        .err.replace("\n", "")
        .startswith(sentence.replace("RUN", str(begun / "run")))
    )
    assert sorted(begun.rglob("*")) == files


@pytest.mark.parametrize("changed", [17, None])
def test_one_streamed_picture_that_was_replaced_is_noticed(tmp_path, changed):
    generator = np.random.default_rng(0)
    for number in range(40):
        path = tmp_path / "pictures" / "ab"[number % 2] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (8, 8), np.uint8)).save(path)
    keys = (
        *("experiment=kmeans", "data=class_folders", f"data.path={tmp_path / 'pictures'}"),
        *(
            "data.stream=true",
            "data.size=8",
            "partition.clients=2",
            *SERIAL,
            f"run_dir={tmp_path / 'run'}",
        ),
    )
    Federation(compose(*keys, "method.iterations=1"), Silent()).run()
    if changed is not None:
        other = tmp_path / "pictures" / "ab"[changed % 2] / f"{changed:02}.png"
        Image.fromarray(generator.integers(0, 256, (8, 8), np.uint8)).save(other)
    again = Federation(compose(*keys, "method.iterations=2", "resume=true"), Silent())
    if changed is None:
        again.run()
        return
    with pytest.raises(ConfigError, match="contents of the training samples differ"):
        again.run()
