from coterie.execution.events import ClientResult
from coterie.execution.packing import pack
from coterie.rounds.accounts import ClientAccount, changed_accounts
from coterie.rounds.gather import Failure, PhaseResult


def task(client, **metrics):
    return ClientResult(
        call=0,
        client=client,
        gathered=pack({}),
        metrics=metrics,
        bytes_up={"encoder": 10, "metrics": 1},
        bytes_peer={"samples": 5},
        seconds=2.0,
    )


def failure(client):
    return Failure(round=1, phase="p", client=client, message="m", remedy="r")


def test_tasks_add_up_and_a_task_without_training_keeps_the_loss():
    first = PhaseResult(means={}, client_results=(task(1, loss=3.0),), failures=(), dropped=())
    second = PhaseResult(
        means={}, client_results=(task(1),), failures=(failure(2), failure(None)), dropped=(2,)
    )
    before = changed_accounts({}, first)
    changed = changed_accounts({**before, 7: ClientAccount()}, second)
    assert changed.keys() == {1, 2}  # not of the clients without a task
    after = {**before, **changed}
    assert after[1] == ClientAccount(tasks=2, loss=3.0, seconds=4.0, up=22, peer=10)
    assert after[2] == ClientAccount(failures=1)
    assert after.keys() == {1, 2}
    assert before[1].tasks == 1
