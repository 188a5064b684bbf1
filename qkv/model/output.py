"""ModelOutput: the outputs of a model, by name and as attributes."""

from __future__ import annotations

from torch import Tensor


class ModelOutput(dict[str, Tensor]):
    """A dict of tensors whose keys are also attributes: `out["logits"]` is `out.logits`."""

    def __getattr__(self, name: str) -> Tensor:
        if name in self:
            return self[name]
        raise AttributeError(f"no output {name!r}: this model returned {', '.join(self)}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self})
