"""Reference models: tiny random models of every class of `transformers`, their inputs and outputs.

Inputs are the arguments of a call of `qkv.Model`; outputs are `{name: (tensor, axes)}` under its
names. The letters of the axes are explained in classes.py."""
