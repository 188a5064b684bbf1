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
from qkv.data.encode.images import Pixels
from qkv.model.inputs import check_inputs, make_batch
from qkv.nn.transformer import Pair
from qkv.tasks.base import Out, Row, Task
from qkv.tasks.batching import Progress, at_rest, far
from qkv.tasks.checks import candidates, check_template, check_top, listed
from qkv.tasks.read.classify import Label
from qkv.validate import number
from qkv.weights.tensors import read_json

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
            task.scores(listed("many", given, "images"), texts, batch_tokens=batch_tokens, progress=progress)
        ).softmax(-1)
        return [Label.of(task.labels, row, task.top) for row in shares]

    def scores(
        self, images: Iterable[Image], texts: Iterable[str], *, batch_tokens: int = 4096,
        progress: Progress = False,
    ) -> NDArray[np.float32]:  # fmt: skip
        """The logits of every image with every text, (images, texts): a softmax over a side gives shares."""
        one, other = self.looks(list(images), batch_tokens, progress), self.results(list(texts), batch_tokens)
        net = self.model.net
        assert isinstance(net, Pair)
        assert net.temperature is not None
        if not one or not other:
            return np.zeros((len(one), len(other)), np.float32)
        warmth = net.temperature.detach().float().exp().cpu()
        return (warmth * torch.stack(one) @ torch.stack(other).T).numpy()

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

    def looks(self, images: Sequence[Image], batch_tokens: int, progress: Progress) -> list[Tensor]:
        """The vector of every image, of length one."""
        number("batch_tokens", batch_tokens, whole=True, at_least=1)
        tell = far("match", 0, len(images), len(images), progress)
        like = next(self.model.net.parameters())
        step = max(batch_tokens // ((self.patches.image // self.patches.size) ** 2 + 1), 1)
        found: list[Tensor] = []
        for one in images:
            if not isinstance(one, str | Path) and not hasattr(one, "convert"):
                raise ValueError(f"an image is a {type(one).__name__}, expected the file of one, or Pillow's")
        for start in range(0, len(images), step):
            some = torch.stack([torch.from_numpy(self.pixels(one)) for one in images[start : start + step]])
            check_inputs(self.model.spec, {"images": some})
            with at_rest(self.model):
                out = self.model.net(make_batch(self.model.spec, images=some.to(like.device, like.dtype)))
            found += list(out["image"].float().cpu())
            tell(len(found) / len(images))
        return found

    def read(self, out: Out, batch: Batch, rows: Sequence[Row]) -> list[Tensor]:
        return list(out["text"].float().cpu())

    def found(self, given: str, rows: Sequence[Row], said: Sequence[Any]) -> Tensor:
        return said[0]
