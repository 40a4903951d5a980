"""Checks, before the run, that differential privacy can bound what clients send."""

import logging
import math
from collections import Counter
from fractions import Fraction

from torch.nn.modules.batchnorm import _BatchNorm

from coterie.aggregation.clipping import STEPS, Sensitivity
from coterie.aggregation.discrete_gaussian import LARGEST
from coterie.aggregation.own_gradients import check_own_gradients
from coterie.aggregation.sample_noise import check_installed, check_unmixed
from coterie.aggregation.stage import Start, besides_sums
from coterie.config.method import MethodConfig
from coterie.config.privacy import DPConfig
from coterie.config.schema import RunConfig
from coterie.contract.accounting import epsilon, noise_for
from coterie.contract.method import GroupsClients, Method
from coterie.contract.phase import Phase, ServerState
from coterie.errors import ConfigError

_logger = logging.getLogger(__name__)

_DROWNED = 30
"""Length of the noise of a mean in multiples of the clip norm: at 10 FedAvg still learns MNIST."""
_OTHERS = "choose a method whose clients send model updates only, such as fedavg, or concord."


def check_noise(start: Start) -> None:
    """Check that the run's sums can be made private, and that the budget pays for one."""
    config, method, dp = start.config, start.method, start.config.privacy.dp
    if dp.unit == "sample":
        check_installed()
        if config.compile:
            raise ConfigError(
                f"compile={config.compile}: under privacy.dp.unit=sample each sample's gradient "
                "comes from hooks, which compiled encoders may bypass; leave one of the two out."
            )
    rule = config.aggregation.rule
    if rule not in ("weighted", "equal"):
        raise ConfigError(
            f"aggregation.rule={rule}: noise under privacy.dp is for sums; leave one of the two "
            "out."
        )
    if isinstance(method, GroupsClients):
        raise ConfigError(
            f"privacy.dp.clip={dp.clip:g}: the method's groups of clients reveal something about "
            "each client; choose a method without groups, such as fedavg."
        )
    bounds = [sensitivity(dp, phase, type(config.method)) for phase in start.phases()]
    if start.trains:
        _check_budget(start)
    for found in bounds:
        sigma(dp, STEPS if found is None else found.steps)
    bound = bounds[0]
    if bound is None:
        model = method.model_for(start.server, None)
        check_unmixed(model)
        check_own_gradients(model.encoder, start.shape)
    if bound is not None and bound.clips:
        _check_statistics(method, start.server)
        if start.trains:
            _tell_if_drowned(start)
        _check_numbers(dp, len(start.sizes), "clients", 1)
    else:
        _check_numbers(dp, sum(start.sizes.values()), "samples", sums_a_phase(config))


def _check_budget(start: Start) -> None:
    """Name the noise multiplier that the budget needs for all rounds, if none or too little is set.

    Raises:
        ConfigError: If there is no noise.
    """
    config, dp = start.config, start.config.privacy.dp
    if dp.budget is None:
        return
    each, asked, paid = sums_a_phase(config), Counter[int](), 0
    for phase in start.phases():
        if phase.up:
            asked.update(start.clients(phase))
        most = each * max(asked.values(), default=0)
        if dp.noise_multiplier and epsilon(most, dp.noise_multiplier, dp.delta) <= dp.budget:
            paid = phase.round
    if not asked or paid == phase.round:
        return
    needed = _rounded_up(noise_for(dp.budget, dp.delta) * math.sqrt(most))
    rounds = "the one round" if phase.round == 1 else f"all {phase.round} rounds"
    if dp.noise_multiplier is None:
        raise ConfigError(
            f"privacy.dp.budget={dp.budget:g}: {rounds} at δ={dp.delta:g} need "
            f"privacy.dp.noise_multiplier={needed}; give it."
        )
    if paid:
        _logger.warning(
            "privacy.dp.budget=%g ends the run after round %d; for %s it needs "
            "privacy.dp.noise_multiplier=%s.",
            *(dp.budget, paid, rounds, needed),
        )


def _rounded_up(number: float) -> str:
    """Format a positive number with three significant digits, rounded up."""
    step = 10.0 ** (math.floor(math.log10(number)) - 2)
    return f"{math.ceil(number / step) * step:.4g}"


def sensitivity(config: DPConfig, phase: Phase, method: type[MethodConfig]) -> Sensitivity | None:
    """Return the largest change that one client, or one sample, can make to a phase's sums.

    Returns:
        The bound; None where clients train with noise.

    Raises:
        ConfigError: If clients send what cannot be bounded.
    """
    assert config.clip is not None
    key = f"privacy.dp.clip={config.clip:g}"
    if told := besides_sums(phase):
        raise ConfigError(f"{key}: {told}, which no noise protects; {_OTHERS}")
    if phase.sensitivity is not None:
        return Sensitivity(math.ceil(Fraction(phase.sensitivity) * STEPS), clips=False)
    if config.unit == "sample":
        if method.uncoupled:
            return None
        raise ConfigError(
            "privacy.dp.unit=sample: of the methods only fedavg and moon train by gradients of "
            "single samples; choose one of them, or privacy.dp.unit=client."
        )
    if method.sums or (phase.up - phase.down):
        slot = sorted(phase.up - phase.down or phase.up)[0]
        raise ConfigError(
            f"{key}: what clients send in slot {slot!r} of phase {phase.name!r} is not an update "
            f"of what they received, so it cannot be clipped; {_OTHERS}"
        )
    return Sensitivity(math.floor(Fraction(config.clip) * STEPS), clips=True)


def sigma(config: DPConfig, steps: int) -> int:
    """Return the noise's standard deviation for a sensitivity, both in steps, rounded up.

    Raises:
        ConfigError: If no noise is so large.
    """
    assert config.noise_multiplier is not None  # else `check_noise` refuses
    found = math.ceil(Fraction(config.noise_multiplier) * steps)
    if found > LARGEST:
        raise ConfigError(
            f"privacy.dp.noise_multiplier={config.noise_multiplier:g}: the noise of a sum would "
            f"have a standard deviation of {found / STEPS:.3g}, and at most {LARGEST / STEPS:g} is "
            "possible; lower it, or privacy.dp.clip."
        )
    return found


def sums_a_phase(config: RunConfig) -> int:
    """Return the number of a phase's noisy sums that one client, or one sample, can be part of."""
    method = config.method
    by_step = config.privacy.dp.unit == "sample" and method.uncoupled
    return int(method.model_dump()["epochs"]) if by_step else 1


def _tell_if_drowned(start: Start) -> None:
    """Warn if the noise in a round's mean is far larger than a client's update can be."""
    dp, phase = start.config.privacy.dp, next(start.phases())
    assert dp.noise_multiplier is not None  # else `check_noise` refuses
    sizes = [tensor.numel() for slot in phase.up for tensor in start.server.slots[slot].values()]
    clients = start.cohort(phase)
    length = dp.noise_multiplier * math.sqrt(sum(sizes)) / clients
    if length > _DROWNED:
        _logger.warning(
            "privacy.dp: the noise in the mean of %d clients is %.0f times as long as an update "
            "may be, so hardly anything is learnt; take more clients, a smaller network or less "
            "noise.",
            *(clients, length),
        )


def _check_statistics(method: Method, server: ServerState) -> None:
    model = method.model_for(server, None)
    used = [*model.encoder.modules(), *(model.head.modules() if model.head is not None else ())]
    if any(isinstance(part, _BatchNorm) and part.track_running_stats for part in used):
        raise ConfigError(
            "encoder: a batch norm's running statistics are not sent under privacy.dp, and the "
            "model needs them; take encoder.norm=group and encoder.standardise=false, in its "
            "pretraining too, or GroupNorm in a module of yours."
        )


def _check_numbers(dp: DPConfig, units: int, of: str, sums: int) -> None:
    if dp.delta * units >= 1:
        raise ConfigError(
            f"privacy.dp.delta={dp.delta:g}: with {units:,} {of} a mechanism with this δ may "
            f"publish one of them in full; give less than {1 / units:.1g}."
        )
    assert dp.noise_multiplier is not None  # else `_check_budget` refuses
    once = epsilon(sums, dp.noise_multiplier, dp.delta)
    if dp.budget is not None and once > dp.budget:
        one = "sum" if sums == 1 else "round"
        raise ConfigError(
            f"privacy.dp.budget={dp.budget:g}: a single {one} spends {once:.3g}; raise it, or "
            "privacy.dp.noise_multiplier."
        )
