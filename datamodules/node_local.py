"""Node-local data: a path per client, read on the client's node."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from coterie.config.component import Component, load_target, parse_component, target_of
from coterie.contract.data import DataArrays
from coterie.errors import ConfigError, DataError


class NodeLocal:
    """Data sets of one kind, one per client, which are never gathered in one place.

    `cluster.client_resources` assigns clients to nodes; a path is one on its client's node.
    """

    class Config(Component):
        """Config of node-local data."""

        clients: Mapping[str, str] = Field(min_length=1)
        """Path of each client's data, by the client's name: {site_a: /data/a, …}."""

        source: Mapping[str, Any] = Field(
            default={"target": "coterie.datamodules.folders:ClassFolders"}
        )
        """The data set that reads a client's path: its target, and its keys other than `path`."""

        @model_validator(mode="after")
        def _check_sources(self) -> "NodeLocal.Config":
            for path in self.clients.values():
                parse_component({**self.source, "path": path})
            return self

    def __init__(self, config: "NodeLocal.Config") -> None:
        self._config = config

    @property
    def client_names(self) -> tuple[str, ...]:
        """The clients' names, in the order of the config."""
        return tuple(self._config.clients)

    def local_arrays(self, client: int) -> DataArrays:
        """Read one client's data.

        Raises:
            DataError: If it is missing or unreadable; the message names the client.
        """
        name = self.client_names[client]
        path = self._config.clients[name]
        source = parse_component({**self._config.source, "path": path})
        try:
            arrays: DataArrays = load_target(target_of(source))(source).arrays()
        except (ConfigError, DataError) as error:
            raise DataError(f"client {name}: {error}") from error
        return arrays

    def arrays(self) -> DataArrays:
        """Refuse: node-local data cannot be gathered."""
        raise DataError(
            "data=node_local: the data stays with its clients, so there is nothing to show or to "
            "split here; use data=client_folders for data in one place."
        )
