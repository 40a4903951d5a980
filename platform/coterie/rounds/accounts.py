"""What each client has done over a run: turns, failures, loss, seconds and bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from coterie.execution.events import TurnDone
from coterie.rounds.gather import PhaseResult


@dataclass(frozen=True, kw_only=True)
class ClientAccount:
    """One client's account over the phases so far.

    Attributes:
        turns: Turns that count.
        failures: Turns that failed, those that a second attempt made good too.
        loss: Training loss of the last turn that trained; None before.
        seconds: Wall-clock time of the turns that count.
        up: Bytes sent to the server.
        peer: Bytes sent to other clients.
    """

    turns: int = 0
    failures: int = 0
    loss: float | None = None
    seconds: float = 0.0
    up: int = 0
    peer: int = 0

    def after(self, turn: TurnDone) -> "ClientAccount":
        """The account after one more turn."""
        return replace(
            self,
            turns=self.turns + 1,
            loss=turn.metrics.get("loss", self.loss),
            seconds=self.seconds + turn.seconds,
            up=self.up + sum(turn.bytes_up.values()),
            peer=self.peer + sum(turn.bytes_peer.values()),
        )


def changed_accounts(
    accounts: Mapping[int, ClientAccount], result: PhaseResult
) -> dict[int, ClientAccount]:
    """The accounts, after one more phase, of the clients that have changed in it."""
    now: dict[int, ClientAccount] = {}
    for turn in result.turns:
        before = now.get(turn.client) or accounts.get(turn.client, ClientAccount())
        now[turn.client] = before.after(turn)
    for failure in result.failures:
        if failure.client is not None:
            known = now.get(failure.client) or accounts.get(failure.client, ClientAccount())
            now[failure.client] = replace(known, failures=known.failures + 1)
    return now
