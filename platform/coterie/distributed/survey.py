"""Surveys node-local data by a task on each client's node."""

import ray

from coterie.config.component import load_target, target_of
from coterie.config.schema import RunConfig
from coterie.contract.data import NodeLocalDataModule, Survey
from coterie.distributed.calls import fetch
from coterie.distributed.cluster import (
    connect,
    describe_unplaced,
    disconnect,
    has_own_resources,
    own_resources,
    started_here,
)
from coterie.distributed.watch import as_run_error
from coterie.errors import RunError


def survey(config: RunConfig, names: tuple[str, ...]) -> list[Survey]:
    """Survey the clients' node-local data, in the order of their names.

    Raises:
        DataError: If a node-local client's data is missing or unreadable on its node.
        RunError: If no node has a node-local client's resource in time, or a local cluster lacks
            it.
    """
    ours = connect(config.cluster)
    try:
        absent = [name for name in names if not has_own_resources(config.cluster, name)]
        if absent and started_here():
            raise RunError(describe_unplaced(config.cluster, absent[0]))
        task = ray.remote(_look)
        waiting = {
            task.options(
                num_cpus=0, max_retries=0, resources=own_resources(config.cluster, name)
            ).remote(config, client): name
            for client, name in enumerate(names)
        }
        references = list(waiting)
        _, late = ray.wait(
            references, num_returns=len(references), timeout=config.cluster.start_timeout_s
        )
        if late:
            missing = [waiting[reference] for reference in late]
            gone = [name for name in missing if not has_own_resources(config.cluster, name)]
            raise RunError(describe_unplaced(config.cluster, [*gone, *missing][0]))
        with as_run_error():
            return [fetch(reference) for reference in references]
    finally:
        if ours:
            disconnect()


def _look(config: RunConfig, client: int) -> Survey:
    module: NodeLocalDataModule = load_target(target_of(config.data))(config.data)
    return Survey.of(module.local_arrays(client))
