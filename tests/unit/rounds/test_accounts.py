from coterie.execution.events import TurnDone
from coterie.execution.packing import pack
from coterie.rounds.accounts import ClientAccount, changed_accounts
from coterie.rounds.gather import Failure, PhaseResult


def turn(client, **metrics):
    return TurnDone(
        call=0,
        client=client,
        records=pack({}),
        metrics=metrics,
        bytes_up={"encoder": 10, "metrics": 1},
        bytes_peer={"samples": 5},
        seconds=2.0,
    )


def failure(client):
    return Failure(round=1, phase="p", client=client, message="m", remedy="r")


def test_turns_add_up_and_a_turn_without_training_keeps_the_loss():
    first = PhaseResult(means={}, turns=(turn(1, loss=3.0),), failures=(), dropped=())
    second = PhaseResult(
        means={}, turns=(turn(1),), failures=(failure(2), failure(None)), dropped=(2,)
    )
    before = changed_accounts({}, first)
    changed = changed_accounts({**before, 7: ClientAccount()}, second)
    assert changed.keys() == {1, 2}  # not of the clients without a turn
    after = {**before, **changed}
    assert after[1] == ClientAccount(turns=2, loss=3.0, seconds=4.0, up=22, peer=10)
    assert after[2] == ClientAccount(failures=1)
    assert after.keys() == {1, 2}
    assert before[1].turns == 1
