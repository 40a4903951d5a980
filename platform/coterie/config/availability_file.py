"""Reads `participation.availability`: the clients present in each round, as a list or a file."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.config.given_path import given_path
from coterie.config.participation import are_rounds
from coterie.config.regular_files import open_regular
from coterie.errors import ConfigError

_KEY = "participation.availability"
_MOST_ROUNDS = 1_000_000

Rounds = tuple[frozenset[int], ...]
"""The clients present in each round, from the first."""


def read_availability(source: str | Sequence[Sequence[int]], clients: int) -> Rounds:
    """Read the clients present in each round.

    Args:
        source: A list of lists of clients, or the path of a file. JSON: such a list, whose first
            entry is round 1. CSV: a header `round,client`, then a line for each round and client
            present in it, rounds from 1; in a round without lines no client is present.
        clients: Number of clients.

    Raises:
        ConfigError: If the file cannot be read, or names a round or client that does not exist.
    """
    shown = f"{_KEY}={source}" if isinstance(source, str) else _KEY
    listed: Any = source
    if isinstance(source, str):
        listed = _read(given_path(_KEY, source), shown)
    if not listed:
        raise ConfigError(f"{shown}: it lists no rounds; give each round its clients.")
    for number, present in enumerate(listed, start=1):
        if unknown := sorted(c for c in set(present) if not 0 <= c < clients):
            raise ConfigError(
                f"{shown}: round {number} names client {unknown[0]}; there are {clients} clients, "
                f"from 0 to {clients - 1}."
            )
    return tuple(frozenset(present) for present in listed)


def _read(path: Path, shown: str) -> list[list[int]]:
    readers = {".json": _from_json, ".csv": _from_csv}
    if path.suffix not in readers:
        raise ConfigError(f"{shown}: give a .json or a .csv file.")
    try:
        with open_regular(path) as file:
            text = file.read().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{shown}: cannot read it ({error.strerror}); check the path.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{shown}: it is not UTF-8; write it again.") from error
    return readers[path.suffix](text, shown)


def _from_json(text: str, shown: str) -> list[list[int]]:
    try:
        rounds = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{shown}: line {error.lineno} is not JSON; correct it.") from error
    except (ValueError, RecursionError) as error:  # a huge number, or a list in very many lists
        raise ConfigError(f"{shown}: it is not a list of rounds; correct it.") from error
    if not are_rounds(rounds):
        raise ConfigError(f"{shown}: write a list of lists of clients, such as [[0, 1], [2]].")
    found: list[list[int]] = rounds
    return found


def _from_csv(text: str, shown: str) -> list[list[int]]:
    try:
        lines = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise ConfigError(f"{shown}: it is not CSV ({error}); correct it.") from error
    while lines and not any(map(str.strip, lines[-1])):
        lines.pop()
    if not lines or [cell.strip() for cell in lines[0]] != ["round", "client"]:
        raise ConfigError(f"{shown}: its first line must be round,client.")
    present: dict[int, list[int]] = {}
    for number, cells in enumerate(lines[1:], start=2):
        try:
            round_, client = map(int, cells)
        except ValueError as error:
            raise ConfigError(
                f"{shown}: line {number} is {','.join(cells)}; write two whole numbers."
            ) from error
        if not 1 <= round_ <= _MOST_ROUNDS:
            raise ConfigError(
                f"{shown}: line {number} has round {round_}; count from 1 to {_MOST_ROUNDS:,}."
            )
        present.setdefault(round_, []).append(client)
    return [present.get(number, []) for number in range(1, max(present, default=0) + 1)]
