"""Evaluation: metrics, evaluators, generated text."""
