"""A digest of the config that a result was measured with."""

import json
from hashlib import blake2b

from coterie.config.loading import dump_config
from coterie.config.schema import RunConfig

_ELSEWHERE = ("run_dir", "resume", "tracking", "checkpoint", "faults", "cluster", "accelerator")
"""Sections and keys of a config that say where and how it runs, not what."""


def config_digest(config: RunConfig) -> str:
    """Return a digest of all keys that decide a run's numbers."""
    values = {name: v for name, v in dump_config(config).items() if name not in _ELSEWHERE}
    for section, place in (
        ("data", "root"),
        ("encoder", "path"),
    ):  # a digest stands beside the path
        values[section] = {name: v for name, v in values[section].items() if name != place}
    text = json.dumps(values, sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=6).hexdigest()
