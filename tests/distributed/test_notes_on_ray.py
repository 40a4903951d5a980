"""What a client withholds is told in the terminal, also where its task runs on an actor."""

import pytest

from coterie.commands.compose import compose
from coterie.run.federation import Federation
from tests.builders.observers import Silent

pytestmark = pytest.mark.ray

ORCHESTRA = (
    "experiment=orchestra_digits",
    "data.limit=60",
    "partition.clients=5",
    "encoder=mlp",
    "encoder.hidden=[16]",
    "encoder.features=8",
    "executor=bare",
    "cluster.num_actors=1",
    "method.participation=1.0",
    "method.local_clusters=8",
    "method.rounds=1",
    "method.epochs=1",
    "evaluation.figures=false",
    "evaluation.linear_probe=false",
    "evaluation.knn=false",
)


class Listens(Silent):
    """Keeps the notes."""

    def __init__(self):
        super().__init__()
        self.heard = []

    def note(self, text):
        self.heard.append(text)


@pytest.mark.slow
def test_clients_below_the_minimum_are_named_once(cluster, tmp_path):
    view = Listens()
    Federation(compose(*ORCHESTRA, f"run_dir={tmp_path / 'run'}"), view).run()
    told = [text for text in view.heard if text.startswith("Client ")]
    assert len(told) == len({text.partition(":")[0] for text in told}) > 0
    assert all("of 8 centroids, those of privacy.k_anonymity=2 of its " in text for text in told)
