"""Classes of a notebook's cell train on Ray's actors, which cannot import them."""

import sys
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

pytestmark = pytest.mark.ray
ROOT = Path(__file__).resolve().parents[2]
KERNEL = ("-m", "ipykernel_launcher", "-f", "{connection_file}")
METHOD = """
from typing import ClassVar
from coterie import Federation, compose
from coterie.modules.fedavg import FedAvg
from coterie.networks.encoders import MLP

class Net(MLP):
    tag: str = "mine"

class Mine(FedAvg):
    class Config(FedAvg.Config):
        steepness: float = 1.0

    def build(self):
        module = super().build()
        assert self._config.steepness == 2.0
        return module
"""
RUN = """
config = compose(
    "experiment=fedavg_digits", "method.target=__main__:Mine", "method.steepness=2.0",
    "method.rounds=1", "method.epochs=1", "encoder.target=__main__:Net", "encoder.hidden=[8]",
    "data.limit=60", "partition.clients=2", "cluster.num_actors=1", "evaluation.figures=false",
    "evaluation.linear_probe=false", "evaluation.knn=false", "tracking.progress=none",
    f"run_dir={folder}/run",
)
run = Federation(config).run()
"""


MODULE = """
import torch
from lightning import LightningModule
from coterie import Federation

class Line(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return (self.layer(x) - y).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.tensor([index % 7, 1.0]), torch.tensor([float(index % 7)])
"""
FEDERATED = """
run = Federation(
    module=Line(), data=Points(), clients=2, rounds=1, loader_batch_size=8, run_dir=f"{folder}/run",
    cluster={"num_actors": 1},
).run()
"""


def test_classes_of_a_cell_reach_the_actors(tmp_path):
    """A method's and a module's, one after the other in one notebook."""
    paths = [str(ROOT / "platform"), str(ROOT)]
    sources = [f"import sys; sys.path[:0] = {paths}"]
    for classes, command, name in ((METHOD, RUN, "Mine"), (MODULE, FEDERATED, "Line")):
        told = f"{name}.__module__, run.exit_code, bool(run.failures)"
        sources += [f"folder = {str(tmp_path / name)!r}", classes, command, told]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
    client = nbclient.NotebookClient(book, timeout=240, kernel_name="python3")
    client.create_kernel_manager()
    client.km.kernel_spec.argv = [sys.executable, *KERNEL]
    cells = client.execute().cells
    for cell in cells[4::4]:
        assert cell.outputs[0]["data"]["text/plain"] == "('__main__', 0, False)"
    assert len(cells[4::4]) == 2
