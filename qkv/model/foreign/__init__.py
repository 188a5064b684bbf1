"""Loading of fairseq and CTranslate2 checkpoints."""
