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


def accounts_after(
    accounts: Mapping[int, ClientAccount], result: PhaseResult
) -> dict[int, ClientAccount]:
    """The clients' accounts after one more phase; those given stay unchanged."""
    now = dict(accounts)
    for turn in result.turns:
        now[turn.client] = now.get(turn.client, ClientAccount()).after(turn)
    for failure in result.failures:
        if failure.client is not None:
            known = now.get(failure.client, ClientAccount())
            now[failure.client] = replace(known, failures=known.failures + 1)
    return now
