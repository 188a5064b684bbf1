"""Fast forms of single operations, each beside its plain reference."""
