"""Compiled code lies where no other user writes."""

import getpass
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.compiled_folder import keep_compiled_private

PLACE = "TORCHINDUCTOR_CACHE_DIR"
NOBODY = 65534


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    """A home folder, and a place for temporary files with PyTorch's folder of another user."""
    home, everybodys = tmp_path / "home", tmp_path / "tmp"
    home.mkdir(mode=0o700)
    everybodys.mkdir()
    everybodys.chmod(0o1777)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(everybodys))
    monkeypatch.setattr("tempfile.tempdir", str(everybodys))
    monkeypatch.setenv(PLACE, "")  # so that it is put back
    monkeypatch.delenv(PLACE)
    return home


def private(folder):
    return folder.is_dir() and stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("usual", [False, True])
def test_it_lies_in_the_users_cache(at_home, tmp_path, monkeypatch, usual):
    if usual:  # PyTorch says so itself when it is imported
        monkeypatch.setenv(PLACE, str(tmp_path / "tmp" / "torchinductor_ann"))
    keep_compiled_private()
    folder = Path(os.environ[PLACE])
    assert folder == at_home / ".cache" / "coterie" / "compiled"
    assert private(folder)


@pytest.mark.parametrize("open_to_others", [".", ".cache", ".cache/coterie/compiled"])
def test_a_home_that_others_write_to_is_not_used(at_home, open_to_others):
    place = at_home / open_to_others
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(0o777)
    keep_compiled_private()
    folder = Path(os.environ[PLACE])
    assert not folder.is_relative_to(at_home)
    assert private(folder)
    assert not folder.name.startswith("torchinductor")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_another_users_folder_is_not_used(at_home):
    place = at_home / ".cache" / "coterie" / "compiled"
    place.mkdir(parents=True)
    os.chown(place, NOBODY, NOBODY)
    keep_compiled_private()
    assert Path(os.environ[PLACE]) != place


def test_a_place_that_is_given_is_kept(at_home, monkeypatch):
    monkeypatch.setenv(PLACE, str(at_home / "mine"))
    keep_compiled_private()
    assert os.environ[PLACE] == str(at_home / "mine")


@pytest.mark.parametrize(
    "planted",
    ["pipe", *(pytest.param(other, marks=pytest.mark.slow) for other in ("file", "link"))],
)
def test_what_another_user_has_put_in_pytorchs_place_stops_nothing(at_home, tmp_path, planted):
    place = tmp_path / "tmp" / f"torchinductor_{getpass.getuser()}"
    {"file": place.touch, "pipe": lambda: os.mkfifo(place)}.get(
        planted, lambda: place.symlink_to("nowhere")
    )()
    program = "import coterie, torch._dynamo"  # which makes the folder when it is imported
    subprocess.run([sys.executable, "-c", program], check=True)
    assert [*place.parent.iterdir()] == [place]
    assert private(at_home / ".cache" / "coterie" / "compiled")


@pytest.mark.slow
@pytest.mark.parametrize("key", ["compile=default", "own module"])
def test_a_run_compiles_in_no_folder_of_everybodys(at_home, tmp_path, key):
    program = tmp_path / "program.py"
    program.write_text(OWN if key == "own module" else COMPILED)
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [*(at_home / ".cache" / "coterie" / "compiled").rglob("*.so")]
    assert not [*(tmp_path / "tmp").rglob("*.so")]


COMPILED = """
import sys
from coterie.jobs.train import main

keys = "experiment=fedavg_digits data.limit=60 partition.clients=2 method.rounds=1 encoder=mlp"
keys += " cluster=serial evaluation.figures=false compile=default tracking.progress=none"
sys.exit(main([*keys.split(), f"run_dir={sys.argv[1]}"]))
"""
OWN = """
import sys
import torch
from lightning import LightningModule
from torch.utils.data import DataLoader, TensorDataset
from coterie import Federation


@torch.compile
def bent(samples):
    return samples.sin() + samples.cos()


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(self.layer(bent(batch[0])), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


data = TensorDataset(torch.randn(40, 4), torch.arange(40) % 2)
Federation(
    module=Net(),
    data=DataLoader(data, 8),
    clients=2,
    rounds=1,
    cluster="serial",
    run_dir=sys.argv[1],
).run()
"""
