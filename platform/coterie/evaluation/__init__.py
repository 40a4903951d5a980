"""Evaluates a model by metrics and figures, which are pure functions, and their evaluators."""
