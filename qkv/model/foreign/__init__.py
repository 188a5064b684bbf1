"""Checkpoints of fairseq and CTranslate2, opened as models."""
