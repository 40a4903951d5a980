"""Refuses, before the run, what differential privacy cannot protect."""

from collections.abc import Iterator, Mapping

from torch.nn.modules.batchnorm import _BatchNorm

from coterie.config.privacy import DPConfig
from coterie.config.schema import RunConfig
from coterie.contract.accounting import epsilon
from coterie.contract.method import GroupsClients, Method
from coterie.contract.phase import Phase, ServerState
from coterie.errors import ConfigError, ContractError
from coterie.execution.record_noise import check_installed, check_unmixed
from coterie.rounds.privacy import sensitivity

_MOST_PHASES = 10_000


def check_privacy(
    config: RunConfig, method: Method, server: ServerState, first: Phase, sizes: Mapping[int, int]
) -> None:
    """Check that the run's sums can be made private, and that the budget pays for one.

    Args:
        config: The run's config.
        method: Its method.
        server: The method's state before the first phase.
        first: The first phase.
        sizes: Client to its number of samples.

    Raises:
        ConfigError: Naming the key.
    """
    dp = config.privacy.dp
    if dp.clip is None:
        return
    if dp.unit == "record":
        check_installed("privacy.dp.unit=record")
    if config.compile and dp.unit == "record":
        raise ConfigError(
            f"compile={config.compile}: under privacy.dp.unit=record each sample's gradient comes "
            "from hooks, which compiled encoders may pass by; leave one of the two out."
        )
    rule = config.aggregation.rule
    if rule not in ("weighted", "equal"):
        raise ConfigError(
            f"aggregation.rule={rule}: noise under privacy.dp is for sums; leave one of the two "
            "out."
        )
    if isinstance(method, GroupsClients):
        raise ConfigError(
            f"privacy.dp.clip={dp.clip:g}: the groups of the method's clients tell about each "
            "client; choose a method without groups, such as fedavg."
        )
    for phase in phases_ahead(method, server):
        sensitivity(dp, phase, type(config.method))
    bound = sensitivity(dp, first, type(config.method))
    if bound is None:
        check_unmixed(method.model_for(server, None))
    if bound is not None and bound.clips:
        _check_statistics(method, server)
        _check_numbers(dp, len(sizes), "clients", 1)
    else:
        _check_numbers(dp, sum(sizes.values()), "samples", sums_a_phase(config))


def sums_a_phase(config: RunConfig) -> int:
    """In how many noisy sums of a phase one client, or one sample, is."""
    method = config.method
    by_step = config.privacy.dp.unit == "record" and method.uncoupled
    return int(method.model_dump()["epochs"]) if by_step else 1


def phases_ahead(method: Method, server: ServerState) -> Iterator[Phase]:
    """The phases to come, as far as they depend on no answer; the loop checks the others too."""
    for _ in range(_MOST_PHASES):
        try:
            phase = method.next(server)
        except (ContractError, KeyError):  # it needs a fact that only an answer sets
            return
        if phase is None:
            return
        yield phase
        server = server.advance(phase, {})


def _check_statistics(method: Method, server: ServerState) -> None:
    model = method.model_for(server, None)
    used = [*model.encoder.modules(), *(model.head.modules() if model.head is not None else ())]
    if any(isinstance(part, _BatchNorm) and part.track_running_stats for part in used):
        raise ConfigError(
            "encoder: a batch norm's running statistics are not sent under privacy.dp, and the "
            "model needs them; choose a network without, such as one with encoder.norm=group."
        )


def _check_numbers(dp: DPConfig, units: int, of: str, sums: int) -> None:
    if dp.delta * units >= 1:
        raise ConfigError(
            f"privacy.dp.delta={dp.delta:g}: with {units:,} {of} that lets one be published whole; "
            f"give less than {1 / units:.1g}."
        )
    assert dp.noise_multiplier is not None  # there is a clip
    once = epsilon(sums, dp.noise_multiplier, dp.delta)
    if dp.budget is not None and once > dp.budget:
        one = "sum" if sums == 1 else "round"
        raise ConfigError(
            f"privacy.dp.budget={dp.budget:g}: a single {one} spends {once:.3g}; raise it, or "
            "privacy.dp.noise_multiplier."
        )
