"""Match: how well images and texts go together, by a model of two towers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.batch import Batch
from qkv.border import check_inputs
from qkv.check import number
from qkv.data.pixels import Pixels
from qkv.model import make_batch
from qkv.nn.stack import Pair
from qkv.tasks.base import Out, Progress, Row, Task, Tell, check_top, on_stderr, silent
from qkv.tasks.classify import Label, candidates, check_template
from qkv.weights.files import read_json

Image: TypeAlias = str | Path | Any  # the path of one, or Pillow's


@dataclass(frozen=True, kw_only=True)
class Match(Task[str, Tensor]):
    """Images against `labels`, each put into `template`: scores are shares of all. `top`: the best only."""

    name: ClassVar[str] = "match"
    top: int | None = None
    labels: Sequence[str] = ()
    template: str = "{}"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_top(self.top)
        check_template(self.template)
        object.__setattr__(self, "labels", candidates(self.labels))

    def __call__(self, image: Image, labels: Sequence[str] = (), /, **settings: Any) -> Label:  # type: ignore[override]
        """The label that fits an image best."""
        return self.many([image], **(settings | ({"labels": labels} if labels else {})))[0]

    def many(  # type: ignore[override]  # images, not texts
        self, given: Iterable[Image], /, *, batch_tokens: int = 4096, progress: Progress = False,
        **settings: Any,
    ) -> list[Label]:  # fmt: skip
        """The labels that fit images best."""
        task = self.changed(settings)
        if not task.labels:
            raise ValueError("labels: there are none; expected texts to match the images with")
        texts = [task.template.replace("{}", label) for label in task.labels]
        shares = torch.from_numpy(
            task.scores(given, texts, batch_tokens=batch_tokens, progress=progress)
        ).softmax(-1)
        return [Label.of(task.labels, row, task.top) for row in shares]

    def scores(
        self, images: Iterable[Image], texts: Iterable[str], *, batch_tokens: int = 4096,
        progress: Progress = False,
    ) -> NDArray[np.float32]:  # fmt: skip
        """The logits of every image with every text, (images, texts): a softmax over a side gives shares."""
        number("batch_tokens", batch_tokens, whole=True, at_least=1)
        tell = on_stderr if progress is True else progress or silent
        one, other = self.looks(list(images), batch_tokens, tell), self._all(list(texts), batch_tokens)
        net = self.model.net
        assert isinstance(net, Pair)
        assert net.temperature is not None
        if not len(one) or not other:
            return np.zeros((len(one), len(other)), np.float32)
        with torch.inference_mode():
            return (net.temperature.float().exp().cpu() * one @ torch.stack(other).T).numpy()

    @cached_property
    def pixels(self) -> Pixels:
        """As the preprocessor_config.json beside the weights says; without one, as CLIP of that size does."""
        home = self.model.home
        if home is not None and (home / "preprocessor_config.json").is_file():
            try:
                return Pixels.of(read_json(home / "preprocessor_config.json"))
            except ValueError as error:
                raise ValueError(f"{home / 'preprocessor_config.json'}: {error}") from None
        side = self.patches.image
        return Pixels(size=side, crop=(side, side))

    @property
    def patches(self) -> Any:
        spec: Any = self.model.spec
        return spec.image.encoder.embed.patches

    @torch.inference_mode()
    def looks(self, images: Sequence[Image], budget: int, tell: Tell) -> Tensor:
        """The vectors of images, of length one, (images, width)."""
        cells, found = (self.patches.image // self.patches.size) ** 2 + 1, []
        step = max(budget // cells, 1)
        for start in range(0, len(images), step):
            some = torch.stack(
                [torch.from_numpy(self.pixels(image)) for image in images[start : start + step]]
            )
            check_inputs(self.model.spec, {"images": some})
            parameter = next(self.model.net.parameters())
            batch = make_batch(self.model.spec, images=some.to(parameter.device, parameter.dtype))
            found.append(self.model.net(batch)["image"].float().cpu())
            done = min(start + step, len(images))
            tell(f"match: {done:,} of {len(images):,}", done, len(images))
        return torch.cat(found) if found else torch.zeros(0)

    def read(self, out: Out, batch: Batch, rows: Sequence[Row]) -> list[Tensor]:
        return list(out["text"].float().cpu())

    def found(self, given: str, rows: Sequence[Row], said: Sequence[Any]) -> Tensor:
        return said[0]
