"""The contract between engine, methods and data."""

from coterie.contract.client import Client, ClientData, Fit, Plan
from coterie.contract.data import KnowsGroups
from coterie.contract.method import GroupsClients, Method, SumsGroups, Task
from coterie.contract.optimizers import load_optimizer, optimizer_tensors
from coterie.contract.phase import (
    Outcome,
    Phase,
    ServerState,
    Slots,
    Tensors,
    WeightedUpdate,
    averaged,
    concatenated,
    fewest,
    summed,
)
from coterie.contract.roles import Entry, Role, StateRoles, load_slots, load_tensors
from coterie.contract.schedule import Schedule
from coterie.contract.seeds import blank, derive_seed, seeded
from coterie.contract.tensor_spec import Bounds, TensorSpec

__all__ = [
    "Bounds",
    "Client",
    "ClientData",
    "Entry",
    "Fit",
    "GroupsClients",
    "KnowsGroups",
    "Method",
    "Outcome",
    "Phase",
    "Plan",
    "Role",
    "Schedule",
    "ServerState",
    "Slots",
    "StateRoles",
    "SumsGroups",
    "Task",
    "TensorSpec",
    "Tensors",
    "WeightedUpdate",
    "averaged",
    "blank",
    "concatenated",
    "derive_seed",
    "fewest",
    "load_optimizer",
    "load_slots",
    "load_tensors",
    "optimizer_tensors",
    "seeded",
    "summed",
]
