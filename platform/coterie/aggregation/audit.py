"""The fewest samples behind each vector that leaves a client, for the audit of a run."""

from dataclasses import replace
from typing import ClassVar

from coterie.aggregation.stage import Contribution, Stage, StageTask
from coterie.contract.method import Method, SumsGroups
from coterie.contract.phase import Outcome, Slots, fewest


class Audit(Stage):
    """Stage that notes the smallest group of samples in each slot of a client's contribution.

    Args:
        method: Says which of its slots are sums over groups.
    """

    name: ClassVar[str] = "audit"

    def __init__(self, method: Method) -> None:
        self._method = method

    def contribute(self, sent: Contribution, task: StageTask) -> Contribution:
        """Note the groups before later stages add noise or masks to the sums."""
        tensors = {slot: mean.tensors for slot, mean in sent.outcome.up.items()}
        return replace(sent, smallest={**sent.smallest, **smallest_groups(self._method, tensors)})


def smallest_groups(method: Method, sums: Slots) -> dict[str, int]:
    """Return the size of the smallest group of samples behind each slot of sums over groups."""
    if not isinstance(method, SumsGroups):
        return {}
    return {slot: fewest(counts) for slot, counts in method.group_sizes(sums).items()}


def smallest_sent(outcome: Outcome) -> dict[str, int]:
    """Return the fewest samples behind each tensor and message, by full name; 1 if not reported."""
    addressed = {key for message in outcome.peer_messages.values() for key in message}
    kinds = (("gathered", sorted(outcome.gathered)), ("peer", sorted(addressed)))
    return {f"{kind}/{key}": outcome.smallest.get(key, 1) for kind, keys in kinds for key in keys}
