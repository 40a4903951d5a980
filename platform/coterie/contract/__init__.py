"""The contract between engine, methods and data."""

from coterie.contract.client import Client, ClientData, Fit, Plan
from coterie.contract.data import KnowsGroups
from coterie.contract.form import Bounds, Form
from coterie.contract.method import GroupsClients, Method, SumsGroups, Task
from coterie.contract.optimizers import load_optimizer, optimizer_tensors
from coterie.contract.phase import (
    Mean,
    Outcome,
    Phase,
    ServerState,
    Slots,
    Tensors,
    averaged,
    fewest,
    gathered,
    summed,
)
from coterie.contract.rules import Entry, Rule, StateRules, load_slots, load_tensors
from coterie.contract.schedule import Schedule
from coterie.contract.seeds import blank, derive_seed, seeded

__all__ = [
    "Bounds",
    "Client",
    "ClientData",
    "Entry",
    "Fit",
    "Form",
    "GroupsClients",
    "KnowsGroups",
    "Mean",
    "Method",
    "Outcome",
    "Phase",
    "Plan",
    "Rule",
    "Schedule",
    "ServerState",
    "Slots",
    "StateRules",
    "SumsGroups",
    "Task",
    "Tensors",
    "averaged",
    "blank",
    "derive_seed",
    "fewest",
    "gathered",
    "load_optimizer",
    "load_slots",
    "load_tensors",
    "optimizer_tensors",
    "seeded",
    "summed",
]
