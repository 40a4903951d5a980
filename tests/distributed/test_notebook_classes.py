"""A method of a notebook's cell trains on Ray's actors, which cannot import it."""

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


def test_classes_of_a_cell_reach_the_actors(tmp_path):
    paths = [str(ROOT / "platform"), str(ROOT)]
    sources = (
        f"import sys; sys.path[:0] = {paths}; folder = {str(tmp_path)!r}",
        METHOD,
        RUN,
        "type(run.model.encoder).__name__, run.exit_code, bool(run.failures)",
    )
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
    client = nbclient.NotebookClient(book, timeout=240, kernel_name="python3")
    client.create_kernel_manager()
    client.km.kernel_spec.argv = [sys.executable, *KERNEL]
    last = client.execute().cells[-1].outputs[0]["data"]["text/plain"]
    assert last.endswith(", 0, False)")
