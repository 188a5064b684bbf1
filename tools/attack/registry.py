"""The attacks by name; their modules are imported when they run."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from tools.attack.case import Attack


@dataclass(frozen=True)
class AttackEntry:
    """An attack: the group that `--only` selects, its function and its share of the time."""

    group: str
    function: str  # "module.function" of tools.attack
    share: float = 1.0

    def load(self) -> Attack:
        """Import the function."""
        module, name = self.function.rsplit(".", 1)
        attack: Attack = getattr(import_module(f"tools.attack.{module}"), name)
        return attack


ATTACKS: dict[str, AttackEntry] = {
    "files":              AttackEntry("files", "files.attack_files", share=3),
    "kills-train":        AttackEntry("kills", "training.attack_training_at_random", share=2),
    "kills-train-events": AttackEntry("kills", "training.attack_training_at_events", share=2),
    "kills-save":         AttackEntry("kills", "save_kills.attack_save_at_random"),
    "kills-save-events":  AttackEntry("kills", "save_kills.attack_save_at_events"),
    "kills-commands":     AttackEntry("kills", "save_kills.attack_commands_at_events"),
    "concurrent-saves":   AttackEntry("kills", "save_kills.attack_concurrent_saves"),
    "errors-save":        AttackEntry("disk", "disk.attack_save_with_errors"),
    "full-disk-save":     AttackEntry("disk", "disk.attack_save_on_full_disk"),
    "errors-train":       AttackEntry("disk", "training.attack_training_with_errors"),
    "command-lines":      AttackEntry("commands", "commands.attack_commands"),
    "recipes":            AttackEntry("commands", "commands.attack_recipes"),
    "engine":             AttackEntry("engine", "engine.attack_engine"),
}  # fmt: skip


def select_attacks(only: list[str] | None) -> dict[str, AttackEntry]:
    """Return the attacks of these names and groups; all attacks by default."""
    if only is None:
        return ATTACKS
    groups = {entry.group for entry in ATTACKS.values()}
    if unknown := [name for name in only if name not in groups | ATTACKS.keys()]:
        raise ValueError(
            f"--only {' '.join(unknown)}: expected groups ({', '.join(sorted(groups))}) "
            f"or attacks ({', '.join(ATTACKS)})"
        )
    return {name: entry for name, entry in ATTACKS.items() if name in only or entry.group in only}
