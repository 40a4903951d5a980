"""Tasks side by side: one runs at a time, trainings meet, and failures stay where they belong."""

from typing import Any

import pytest
from lightning import LightningModule
from torch import nn

from coterie.contract.client import Fit
from coterie.errors import InterruptedRunError, StateLostError
from coterie.execution.events import ClientFailed, ClientResult, ClientTask
from coterie.execution.module_pool import ModulePool
from coterie.execution.packing import pack
from coterie.execution.vmap_tasks import VmapTasks

TURNS = [ClientTask(client=client, size=10, seed=client) for client in range(5)]


class Spy:
    """A trainer that trains nothing and remembers who came together."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.groups: list[list[int]] = []
        self.error = error

    def fit_all(self, trainings: Any) -> list[Fit]:
        self.groups.append([training.seed for training in trainings])
        if self.error is not None:
            raise self.error
        return [Fit(steps=training.seed, metrics={}) for training in trainings]


def done(client: int, seconds: float = 0.0) -> ClientResult:
    return ClientResult(
        call=1,
        client=client,
        gathered=pack({}),
        metrics={},
        bytes_up={},
        bytes_peer={},
        seconds=seconds,
    )


def run(spy: Any, take: Any, size: int = 3) -> list[Any]:
    return list(VmapTasks(trainer=spy, size=size, pool=ModulePool(0)).run(TURNS, take))


def test_groups_train_together_and_events_come_in_order() -> None:
    log: list[Any] = []

    def take(task: ClientTask, trainer: Any, pool: Any) -> ClientResult:
        log.append(("begins", task.client))
        fit = trainer.fit(None, None, task.client)
        log.append(("ends", fit.steps))
        return done(task.client, seconds=1e6)

    spy = Spy()
    events = run(spy, take)
    assert spy.groups == [[0, 1, 2], [3, 4]]
    assert [event.client for event in events] == [0, 1, 2, 3, 4]
    assert max(event.seconds for event in events) < 60  # their share of the group's
    first = [(what, client) for what in ("begins", "ends") for client in range(3)]
    assert log[:6] == first


def test_tasks_with_several_trainings_and_with_none() -> None:
    def take(task: ClientTask, trainer: Any, pool: Any) -> ClientResult:
        for _ in range(task.client):
            trainer.fit(None, None, task.client)
        return done(task.client)

    spy = Spy()
    assert len(run(spy, take, size=5)) == 5
    assert spy.groups == [[1, 2, 3, 4], [2, 3, 4], [3, 4], [4]]


def test_each_task_of_a_group_has_its_own_module_in_the_same_state() -> None:
    modules: dict[int, Any] = {}

    def take(task: ClientTask, trainer: Any, pool: ModulePool) -> ClientResult:
        modules[task.client] = pool.fresh("net", Net)
        assert modules[task.client].linear.weight.tolist() == initial
        modules[task.client].linear.weight.data.fill_(task.client)
        trainer.fit(None, None, task.client)
        assert modules[task.client].linear.weight.unique().tolist() == [task.client]
        return done(task.client)

    initial = ModulePool(0).fresh("net", Net).linear.weight.tolist()
    run(Spy(), take)
    assert len({id(modules[client]) for client in (0, 1, 2)}) == 3
    assert modules[3] is modules[0]  # the next group takes the same modules


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)


def test_a_client_that_fails_before_or_after_its_training_stops_no_other() -> None:
    def take(task: ClientTask, trainer: Any, pool: Any) -> Any:
        failed = ClientFailed(call=1, client=task.client, message="failed")
        if task.client == 1:
            return failed
        trainer.fit(None, None, task.client)
        return failed if task.client == 2 else done(task.client)

    spy = Spy()
    kinds = [type(event) for event in run(spy, take)]
    assert kinds == [ClientResult, ClientFailed, ClientFailed, ClientResult, ClientResult]
    assert spy.groups == [[0, 2], [3, 4]]


def test_a_training_that_fails_is_every_clients_failure() -> None:
    def take(task: ClientTask, trainer: Any, pool: Any) -> Any:
        try:
            trainer.fit(None, None, task.client)
        except RuntimeError as error:
            return ClientFailed(call=1, client=task.client, message=str(error))
        return done(task.client)

    events = run(Spy(RuntimeError("out of memory")), take)
    assert [event.message for event in events] == ["out of memory"] * 5


@pytest.mark.parametrize("error", [InterruptedRunError("stop"), StateLostError(3)])
def test_what_a_task_raises_ends_the_call(error: BaseException) -> None:
    def take(task: ClientTask, trainer: Any, pool: Any) -> Any:
        trainer.fit(None, None, task.client)
        if task.client == 1:
            raise error
        return done(task.client)

    with pytest.raises(type(error)):
        run(Spy(), take)
