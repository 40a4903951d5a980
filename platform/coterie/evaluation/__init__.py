"""Evaluate a model: metrics and figures as pure functions, and the evaluators that call them."""
