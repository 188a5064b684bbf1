"""Loading of models of other libraries: fairseq, Marian and CTranslate2."""
