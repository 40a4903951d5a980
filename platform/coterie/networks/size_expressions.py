"""Checks expressions of sizes in exported programs, before SymPy computes with them.

PyTorch writes them as calls, `Mul(Integer(2), Symbol('s98', positive=True, integer=True))`. SymPy
takes minutes for products of a few dozen sums, or for `Min` and `Max` within one another.
"""

import ast
import re
from collections import Counter

_SYMBOL = r"Symbol\('[su]\d{1,9}'(?:, (?:integer|positive|nonnegative|nonzero|real)=True)*\)"
_NUMBER = r"Integer\(-?\d{1,18}\)"
_DIVISIONS = {"Mod", "PythonMod", "FloorDiv", "CeilDiv", "CleanDiv"}
_MOST = {"Add": 8, "Mul": 6, "Max": 2, "Min": 2} | dict.fromkeys(_DIVISIONS, 6)
"""How often each function may be called in an expression."""
_WRITTEN = re.compile(rf"(?:{_SYMBOL}|{_NUMBER}|(?:{'|'.join(_MOST)})\(|, |\))+", re.ASCII)
_RANGE = re.compile(r"[A-Za-z\d*+\-/(), ]{1,200}", re.ASCII)
_LENGTH, _DEPTH, _LEAVES = 1000, 8, 16


def is_size_expression(text: str) -> bool:
    """Return whether a text is an expression of sizes as PyTorch writes for networks.

    These are symbols and whole numbers, and a few calls of them, such as the number of pixels after
    layers that each halve a picture's sides. Only numbers divide.
    """
    if len(text) > _LENGTH or not _WRITTEN.fullmatch(text):
        return False
    short = re.sub(_NUMBER, "n", re.sub(_SYMBOL, "s", text))
    try:
        root = ast.parse(short, mode="eval").body
    except SyntaxError:
        return False
    calls = Counter(re.findall(r"\w{2,}", short))
    few = all(count <= _MOST[name] for name, count in calls.items())
    return few and len(re.findall(r"\b[sn]\b", short)) <= _LEAVES and _is_plain(root, _DEPTH)


def is_range_name(text: str) -> bool:
    """Return whether a text may name a range of sizes: PyTorch compares it, without computing."""
    return _RANGE.fullmatch(text) is not None


def _is_plain(node: ast.AST, deep: int) -> bool:
    """Return whether an expression has only known calls, nested `deep` levels at most."""
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.Name)
    called = getattr(node.func, "id", None)
    if called in _DIVISIONS and [getattr(each, "id", "") for each in node.args[1:]] != ["n"]:
        return False
    return called in _MOST and deep > 0 and all(_is_plain(each, deep - 1) for each in node.args)
