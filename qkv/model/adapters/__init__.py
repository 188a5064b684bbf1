"""LoRA adapters in PEFT's format: reading and writing."""
