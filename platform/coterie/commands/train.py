"""Train one experiment, for `coterie train` and for the processes of a study."""

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.commands.compose import compose_plain
from coterie.commands.help_text import help_text
from coterie.commands.program import run_command
from coterie.config.given_path import given_path
from coterie.config.loading import check_keys, load_component, load_config
from coterie.config.schema import ClusterConfig
from coterie.distributed.startup import begin_local_ray, share_imports
from coterie.errors import DataError


def main(arguments: Sequence[str]) -> int:
    """Run the experiment that the arguments ask for.

    Returns:
        The exit code: 0 completed; 1 failed; 2 config or data refused; 3 completed, but clients
        were dropped; 130 interrupted.
    """
    return run_command(_train, arguments, help_text)


def _train(arguments: Sequence[str]) -> int:
    plain = compose_plain(*arguments)
    check_keys(plain)
    _check_path(plain.get("data"))
    cluster = load_component(ClusterConfig, plain.get("cluster") or {}, "cluster.")
    begin_local_ray(cluster)  # it starts while PyTorch is imported
    config = load_config(plain)
    share_imports(cluster)
    from coterie.run.federation import Federation

    return Federation(config).run().exit_code


def _check_path(data: Any) -> None:
    """Refuse a path that does not exist, before PyTorch is imported."""
    if not isinstance(data, Mapping):
        return  # which `load_config` refuses
    path = data.get("path")
    ours = str(data.get("target")).startswith("coterie.datamodules.")
    if not ours or not isinstance(path, str) or set("*?[{:") & set(path):
        return
    if not given_path("data.path", path).exists():
        raise DataError(f"data.path={path}: there is no such file or folder; check the path.")
