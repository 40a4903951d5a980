"""Config keys that reach the actor: slices, memory caps, precision, threads; no cluster needed."""

import pytest
import torch

from coterie.commands.compose import compose
from coterie.config.schema import ClusterConfig
from coterie.distributed import fleet
from coterie.distributed.calls import pack_longest_first
from coterie.execution.events import ClientTask
from coterie.execution.trainer import LightningTrainer, local_trainer
from coterie.run.setup import assemble


class Recorded(fleet.Fleet):
    """A fleet that starts nothing and remembers what it would have started."""

    def __init__(self, config):
        self._config, self._stored, self.started = config, "data", []

    def _start(self, *args, resources):
        self.started.append(args)
        return object()


@pytest.mark.parametrize(
    ("gpus", "cap"),
    [(0.25, 0.25), (1.0, None), (0.0, None)],
)
def test_an_actors_memory_is_capped_to_its_slice(gpus, cap):
    recorded = Recorded(ClusterConfig(gpus_per_client=gpus))
    recorded.new_actor()
    assert recorded.started == [("data", cap)]


def test_config_keys_reach_the_trainer():
    config = compose("experiment=fedmcc_digits", "precision=bf16-mixed", "deterministic=false")
    trainer = local_trainer(config, torch.device("cpu"))
    assert trainer.accelerator == "cpu"
    assert local_trainer(config, torch.device("cuda")).accelerator == "cuda"
    built = trainer.build(3)
    assert str(built.precision) == "bf16-mixed"
    assert built.max_epochs == 3
    assert isinstance(trainer, LightningTrainer)
    assert trainer.deterministic is False


def test_threads_are_set_before_anything_is_computed():
    before = torch.get_num_threads()
    try:
        assemble(compose("experiment=fedmcc_digits", "cluster.threads_per_client=2"))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_longest_tasks_are_handed_out_first_and_evenly():
    sizes = [10, 70, 20, 60, 40, 30]
    tasks = [ClientTask(client=i, size=size, seed=0) for i, size in enumerate(sizes)]
    first, second = pack_longest_first(tasks, 2)
    assert [task.size for task in first] == [70, 30, 20]
    assert [task.size for task in second] == [60, 40, 10]
    assert sum(task.size for task in first) - sum(task.size for task in second) == 10
