"""Audits a run: what left its clients, and whether its model reveals its training samples."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coterie.config.component import target_of
from coterie.config.schema import RunConfig
from coterie.evaluation.membership import Membership
from coterie.run.audit_conclusions import conclusions
from coterie.run.audit_messages import AuditedKey, audited_keys
from coterie.run.model_attacks import FEWEST, ModelAttacks, why_no_attack
from coterie.tracking.atomic import replacing
from coterie.tracking.run_directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class Audited:
    """The result of an audit.

    Attributes:
        note: Why the model was not attacked, as a sentence; "" if it was.
    """

    keys: tuple[AuditedKey, ...]
    attacks: Mapping[str, Membership]
    note: str = ""


def audit_run(config: RunConfig, directory: RunDirectory, samples: int, path: Path) -> Audited:
    """Sum up a run's messages, attack its model, and write `path`, for its owner only.

    At most `samples` members, and as many other samples, are attacked.

    Raises:
        DataError: If the run's messages, data or model cannot be read.
    """
    keys = tuple(audited_keys(directory.metrics))
    attacks, note = _attacked(config, directory, samples)
    done = Audited(keys=keys, attacks=attacks, note=note)
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
            "held-out ones."
        )
    attacks = model.run()
    none = "Nothing was trained and there are no centroids, so no model is attacked."
    return attacks, "" if attacks else none


def _write(config: RunConfig, path: Path, done: Audited) -> None:
    record = {
        "method": target_of(config.method).rpartition(":")[2],
        "seed": config.seed,
        "privacy": config.privacy.model_dump(mode="json"),
        "messages": [key.row() for key in done.keys],
        "membership": {name: found.row() for name, found in done.attacks.items()},
        "note": done.note,
        "conclusions": conclusions(done.keys, done.attacks, config.privacy),
    }
    text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)
    with replacing(path, private=True) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8", newline="\n")
