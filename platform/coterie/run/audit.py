"""Audits a run: what left its clients, and whether its model reveals its training samples."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coterie.config.component import target_of
from coterie.config.plain_files import read_json
from coterie.config.schema import RunConfig
from coterie.errors import DataError, reason
from coterie.evaluation.membership import Membership
from coterie.run.audit_conclusions import conclusions
from coterie.run.audit_messages import AuditedKey, audited_keys
from coterie.run.model_attacks import FEWEST, ModelAttacks, why_no_attack
from coterie.tracking.atomic import replacing
from coterie.tracking.metrics_log import is_number, read_rows
from coterie.tracking.report_words import own_noise_of
from coterie.tracking.run_directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class Audited:
    """The result of an audit.

    Attributes:
        conclusions: What a reader may conclude, in sentences.
        note: Why the model was not attacked, as a sentence; "" if it was.
    """

    keys: tuple[AuditedKey, ...]
    attacks: Mapping[str, Membership]
    conclusions: tuple[str, ...]
    note: str = ""


def audit_run(config: RunConfig, directory: RunDirectory, samples: int, path: Path) -> Audited:
    """Sum up a run's messages, attack its model, and write `path`, for its owner only.

    At most `samples` members, and as many other samples, are attacked.

    Raises:
        DataError: If the run's messages, data or model cannot be read.
    """
    keys = tuple(audited_keys(directory.metrics))
    attacks, note = _attacked(config, directory, samples)
    spent = _spent(directory)
    own_noise = own_noise_of(read_rows(directory.metrics, "server"), {"privacy": spent})
    said = conclusions(keys, attacks, config.privacy, spent, own_noise)
    done = Audited(keys=keys, attacks=attacks, conclusions=tuple(said), note=note)
    _write(config, path, done)
    return done


def _attacked(
    config: RunConfig, directory: RunDirectory, samples: int
) -> tuple[Mapping[str, Membership], str]:
    """Return what the attacks found, or why there were none."""
    if why := why_no_attack(config, directory):
        return {}, why
    model = ModelAttacks(config, directory, samples)
    if not model.can_compare:
        return {}, (
            f"The model is not attacked: this takes {FEWEST} training samples and {FEWEST} "
            "held-out ones; train with labelled_pool=0.2, or on data with a test set."
        )
    attacks = model.run()
    none = "Nothing was trained and there are no centroids, so no model is attacked."
    return attacks, "" if attacks else none


def _spent(directory: RunDirectory) -> Mapping[str, float | str]:
    """Return the ε, δ and unit of a run's summary; {} if it has none.

    Raises:
        DataError: If the summary cannot be read.
    """
    try:
        summary = read_json(directory.summary) if directory.summary.is_file() else {}
    except (OSError, ValueError) as error:
        why = reason(error)
        raise DataError(
            f"{directory.summary}: it cannot be read ({why}); copy it again."
        ) from error
    found = summary.get("privacy") if isinstance(summary, Mapping) else None
    spent = found if isinstance(found, Mapping) else {}
    known = all(is_number(spent.get(name)) for name in ("epsilon", "delta"))
    if not known or spent.get("unit") not in ("client", "sample"):
        return {}
    return {**{name: float(spent[name]) for name in ("epsilon", "delta")}, "unit": spent["unit"]}


def _write(config: RunConfig, path: Path, done: Audited) -> None:
    record = {
        "method": target_of(config.method).rpartition(":")[2],
        "seed": config.seed,
        "privacy": config.privacy.model_dump(mode="json"),
        "messages": [key.row() for key in done.keys],
        "membership": {name: found.row() for name, found in done.attacks.items()},
        "note": done.note,
        "conclusions": list(done.conclusions),
    }
    text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)
    with replacing(path, private=True) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8", newline="\n")
