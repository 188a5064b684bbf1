"""Evaluation: metrics, evaluators of network outputs, and evaluation of generated texts."""
