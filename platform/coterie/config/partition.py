"""The base of partitions, which are their own configs."""

from coterie.config.component import Component


class PartitionConfig(Component):
    """Base of partitions; `split(data, seed)` gives each client's rows, sorted."""

    @property
    def client_count(self) -> int | None:
        """The number of clients, by default the key `clients`; None if the data determines it."""
        found = getattr(self, "clients", None)
        return found if isinstance(found, int) else None
