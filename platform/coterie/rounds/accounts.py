"""What each client has done over a run: tasks, failures, loss, seconds and bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from coterie.execution.events import ClientResult
from coterie.rounds.gather import PhaseResult


@dataclass(frozen=True, kw_only=True)
class ClientAccount:
    """One client's account over the phases so far.

    Attributes:
        tasks: Tasks that count.
        failures: Tasks that failed, those that a second attempt made good too.
        loss: Training loss of the last task that trained; None before.
        seconds: Wall-clock time of the tasks that count.
        up: Bytes sent to the server.
        peer: Bytes sent to other clients.
    """

    tasks: int = 0
    failures: int = 0
    loss: float | None = None
    seconds: float = 0.0
    up: int = 0
    peer: int = 0

    def after(self, done: ClientResult) -> "ClientAccount":
        """Return the account after one more task."""
        return replace(
            self,
            tasks=self.tasks + 1,
            loss=done.metrics.get("loss", self.loss),
            seconds=self.seconds + done.seconds,
            up=self.up + sum(done.bytes_up.values()),
            peer=self.peer + sum(done.bytes_peer.values()),
        )


def changed_accounts(
    accounts: Mapping[int, ClientAccount], result: PhaseResult
) -> dict[int, ClientAccount]:
    """Return the accounts that have changed in one more phase."""
    now: dict[int, ClientAccount] = {}
    for done in result.client_results:
        before = now.get(done.client) or accounts.get(done.client, ClientAccount())
        now[done.client] = before.after(done)
    for failure in result.failures:
        if failure.client is not None:
            known = now.get(failure.client) or accounts.get(failure.client, ClientAccount())
            now[failure.client] = replace(known, failures=known.failures + 1)
    return now
