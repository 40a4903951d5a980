"""Experiments: one YAML file per method, with the changes that named data sets need.

An experiment's YAML composes as any of Hydra's and fits data of a user's own. Under `recipes` it
may have some for data sets: `mnist` counts for `experiment=NAME data=mnist`, and each recipe has a
name of its own, `experiment=NAME_mnist`. A recipe has choices of groups (`choose`), a recipe that
it starts from (`like`), a sentence (`about`), and values.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

RECIPES = "recipes"


def recipe_names(folder: Path) -> dict[str, str]:
    """Return a one-sentence description of each experiment, by name, sorted."""
    found = {}
    for path in folder.glob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        found[path.stem] = first_comment(text)
        found |= {f"{path.stem}_{name}": about for name, about in _sentences(text).items()}
    return dict(sorted(found.items()))


@cache
def _sentences(text: str) -> Mapping[str, str]:
    """Return the description of each recipe in a YAML text; fast, since each command calls it."""
    cut = f"\n{text}".find(f"\n{RECIPES}:\n")
    recipes = yaml.load(text[cut:], yaml.CSafeLoader)[RECIPES] if cut >= 0 else {}
    return {name: recipe["about"] for name, recipe in recipes.items()}


def first_comment(text: str) -> str:
    """Return the first comment of a YAML file that is not for Hydra; "" if there is none."""
    comments = (line.lstrip("# ").strip() for line in text.splitlines() if line.startswith("#"))
    return next((comment for comment in comments if not comment.startswith("@")), "")


def find_recipe(folder: Path, name: str, data: str | None) -> tuple[str, str | None]:
    """Find an experiment's YAML file and, if it is for one data set, its recipe.

    Args:
        folder: The folder of the experiments' YAML.
        name: A name among `recipe_names`.
        data: The chosen data set, if any; it counts where the name has no recipe.

    Returns:
        The YAML's stem, and the recipe or None.
    """
    if (folder / f"{name}.yaml").is_file():
        return name, data if data in read_recipes(folder / f"{name}.yaml") else None
    parts = name.split("_")
    stems = ["_".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]
    stem = next(stem for stem in stems if (folder / f"{stem}.yaml").is_file())
    return stem, name.removeprefix(f"{stem}_")


def read_recipes(path: Path) -> Mapping[str, Any]:
    """Return the recipes of an experiment's YAML as written; not to be changed."""
    return _recipes(path.read_text(encoding="utf-8"))


@cache
def _recipes(text: str) -> Mapping[str, Any]:
    """Parse the recipes once in a process that composes many runs, such as a study's."""
    content: Any = OmegaConf.to_container(OmegaConf.create(text))
    return dict(content.get(RECIPES, {}))


def read_recipe(path: Path, name: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the choices and values of a recipe, and of the recipes that it extends."""
    recipes = read_recipes(path)
    steps = [recipes[name]]
    while (like := steps[0].get("like")) is not None:
        steps.insert(0, recipes[like])
    choices: dict[str, str] = {}
    values: Any = OmegaConf.create({})
    for step in steps:
        choices |= step.get("choose", {})
        own = {key: step[key] for key in step.keys() - {"about", "like", "choose"}}
        values = OmegaConf.merge(values, own)
    plain: Any = OmegaConf.to_container(values)
    return choices, dict(plain)
