"""Evaluation: metrics, evaluators of network outputs, and generated texts."""
