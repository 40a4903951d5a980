"""When a pool of models begins anew: while one of them is chosen by too few of the clients.

Ghosh et al., "An Efficient Framework for Clustered Federated Learning" (IFCA), restarts from other
random models until every model has clients.
"""

import logging

from coterie.contract import ServerState
from modules.cpcfl_config import CPCFLConfig
from modules.model_choice import latest_choices, smallest_share

_logger = logging.getLogger(__name__)


def is_due(server: ServerState, config: CPCFLConfig) -> bool:
    """Whether now is the time to look at the shares: once in a pool's life.

    That is after `restart_after` rounds of choice by loss, or, if nobody took part then, in the
    next round in which somebody does.
    """
    if not config.min_share or server.facts["looked"]:
        return False
    return server.round >= _by_loss_after(server, config) + config.restart_after


def has_failed(server: ServerState, config: CPCFLConfig) -> bool:
    """Whether a model is the last choice of too few of the clients that have chosen by loss.

    When restarts are used up it says so in the log, and it has not.
    """
    chosen = latest_choices(server, after=_by_loss_after(server, config))
    share = smallest_share(chosen.values(), config.clusters)
    if share >= config.min_share:
        return False
    if whole(server, "restarts") < config.max_restarts:
        return True
    _logger.warning(
        "Round %d: a model has %.1f %% of the clients, less than method.min_share, and "
        "method.max_restarts=%d is used up; training goes on as it is.",
        server.round, 100 * share, config.max_restarts,
    )  # fmt: skip
    return False


def whole(server: ServerState, fact: str) -> int:
    """A whole number among the server's facts."""
    return int(server.facts[fact])  # type: ignore[arg-type]  # as `init` made it


def _by_loss_after(server: ServerState, config: CPCFLConfig) -> int:
    """The last round of exploration by the present pool."""
    return whole(server, "began") + config.explore_rounds
