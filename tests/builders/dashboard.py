"""What the panels of deploy/grafana/coterie.json ask of Prometheus, and what an exporter has."""

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

BOARD = Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "coterie.json"
_VECTOR = re.compile(r"(ray_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)(=~?)"([^"]*)"')


def queries():
    """(title of the panel, query), with the board's variables at "All"."""
    panels = json.loads(BOARD.read_text())["panels"]
    return [
        (panel["title"], target["expr"].replace("$experiment", ".*").replace("$run", ".*"))
        for panel in panels
        for target in panel["targets"]
    ]


def asked_metrics():
    """The names of all series that the panels ask for."""
    return {name for _, query in queries() for name, _ in _VECTOR.findall(query)}


def samples_of(text):
    """The samples of an exporter's page."""
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def series_of(query, samples):
    """The samples that a query takes: by name and matchers, with the labels that it sums over."""
    ((name, braces),) = _VECTOR.findall(query)
    matchers = _MATCHER.findall(braces)
    grouped = {
        label.strip() for by in re.findall(r"by \(([^)]*)\)", query) for label in by.split(",")
    }
    return [
        sample
        for sample in samples
        if sample.name == name
        and grouped <= sample.labels.keys()
        and all(_fits(sample.labels.get(label, ""), how, value) for label, how, value in matchers)
    ]


def _fits(found, how, value):
    return found == value if how == "=" else re.fullmatch(value, found) is not None
