"""AttentionRecord: the inputs of one call of an attention kernel, from which weights are computed later.

B batch, H heads, G key-value heads, T queries, S keys, D the width of queries and keys."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from qkv.kernels.bias import ALL, AttentionBias, select_heads
from qkv.torch_compat import has_forward_hooks


class ScoreTerms(NamedTuple):
    """How the weights of one query come about: vectors, the terms of its scores, weights.

    The sum of `products` over D, times `scale`, plus `biases`, is the score of a key."""

    query: Tensor  # (Dq,)
    keys: Tensor  # (S, Dk), as the score reads them
    products: Tensor  # (S, D), elementwise: of dot products, query * key
    scale: float
    biases: dict[str, Tensor]  # (S,) each: position_bias, layer_bias
    mask: Tensor | None  # (S,), true for keys that the query may attend to; None: all
    weights: Tensor  # (S,)


class AttentionRecord(Protocol):
    """One call of an attention kernel."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, H, T, S."""
        ...

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that the record holds; layers may share some of them."""
        ...

    def compute_weights(self, heads: slice = ALL, rows: slice = ALL) -> Tensor:
        """Return the weights of some heads and queries: (B, heads, rows, S)."""
        ...

    def compute_terms(self, batch_index: int, head: int, row: int) -> ScoreTerms | None:
        """Return the terms of one query; None if they are not known."""
        ...


class KeyProducts(NamedTuple):
    """A query, its keys, and the products whose sum over D is their score."""

    query: Tensor  # (Dq,)
    keys: Tensor  # (S, Dk)
    products: Tensor  # (S, D)
    attends_to_all: bool = False  # no key is masked


RecordAttention = Callable[[AttentionRecord], None]
# Row of the batch, head and query -> its products; None: not known.
GetProducts = Callable[[int, int, int], KeyProducts | None]


class RecordingKernel(Protocol):
    """A module whose calls `look` can record."""

    def register_record_hook(self, record: RecordAttention) -> list[RemovableHandle]:
        """Call `record` in every forward pass."""
        ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class DotProductRecord:
    """softmax(qk' * scale + bias) of a fast kernel, which does not compute the weights itself."""

    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, G, S, D)
    scale: float
    bias: AttentionBias
    layer_bias: Tensor | None = None  # (B|1, H|1, T, S)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, length, _ = self.q.shape
        return batch, heads, length, self.k.shape[2]

    @property
    def tensors(self) -> list[Tensor]:
        tensors = (self.q, self.k, self.layer_bias, self.bias.position_bias)
        return [tensor for tensor in tensors if tensor is not None]

    def compute_weights(self, heads: slice = ALL, rows: slice = ALL) -> Tensor:
        return self.compute_scores(heads, rows).softmax(-1)

    @torch.no_grad()
    def compute_scores(self, heads: slice = ALL, rows: slice = ALL, columns: slice = ALL) -> Tensor:
        """Return the scores with their bias (B, heads, rows, columns), whose softmax is the weights."""
        keys = self.get_keys(heads)[:, :, columns]
        scores = (self.q[:, heads, rows] * self.scale) @ keys.transpose(-1, -2)
        bias = self.bias.get_score_bias(self.layer_bias, heads, rows, columns)
        return scores if bias is None else scores + bias

    def get_keys(self, heads: slice) -> Tensor:
        """Return the keys of some heads: (B, heads, S, D); query heads may share them."""
        num_heads, num_groups = self.q.shape[1], self.k.shape[1]
        if num_heads == num_groups:
            return self.k[:, heads]
        return self.k[:, [head * num_groups // num_heads for head in range(num_heads)[heads]]]

    @torch.no_grad()
    def compute_terms(self, batch_index: int, head: int, row: int) -> ScoreTerms:
        heads, rows = slice(head, head + 1), slice(row, row + 1)
        query = self.q[batch_index, head, row]
        keys = self.get_keys(heads)[batch_index, 0]
        return ScoreTerms(
            query=query,
            keys=keys,
            products=query * keys,
            scale=self.scale,
            biases=collect_biases(self.bias, self.layer_bias, batch_index, head, row),
            mask=collect_mask(self.bias, batch_index, head, row),
            weights=self.compute_weights(heads, rows)[batch_index, 0, 0],
        )


@dataclass(frozen=True, kw_only=True)
class WeightsRecord:
    """Weights that a kernel computed itself, of hard attention the sample that was drawn."""

    weights: Tensor  # (B, H, T, S)
    get_products: GetProducts
    bias: AttentionBias | None = None
    layer_bias: Tensor | None = None
    inputs: tuple[Tensor, ...] = field(default=())  # tensors that `get_products` holds

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, length, num_keys = self.weights.shape
        return batch, heads, length, num_keys

    @property
    def tensors(self) -> list[Tensor]:
        tensors = (self.weights, self.layer_bias, *self.inputs)
        return [tensor for tensor in tensors if tensor is not None]

    def compute_weights(self, heads: slice = ALL, rows: slice = ALL) -> Tensor:
        return self.weights[:, heads, rows]

    @torch.no_grad()
    def compute_terms(self, batch_index: int, head: int, row: int) -> ScoreTerms | None:
        vectors = self.get_products(batch_index, head, row)
        if vectors is None:
            return None
        query, keys, products, attends_to_all = vectors
        weights = self.weights[batch_index, head, row]
        biases: dict[str, Tensor] = {}
        mask = None if attends_to_all else weights > 0  # a recurrent decoder has no bias
        if self.bias is not None:
            biases = collect_biases(self.bias, self.layer_bias, batch_index, head, row)
            mask = collect_mask(self.bias, batch_index, head, row)
        return ScoreTerms(
            query=query,
            keys=keys,
            products=products,
            scale=1.0,
            biases=biases,
            mask=mask,
            weights=weights,
        )


def collect_biases(
    bias: AttentionBias, layer_bias: Tensor | None, batch_index: int, head: int, row: int
) -> dict[str, Tensor]:
    """Return the biases (S,) of one query, by name."""
    tensors = {"position_bias": bias.position_bias, "layer_bias": layer_bias}
    return {
        name: select_one(tensor, batch_index, head)[row]
        for name, tensor in tensors.items()
        if tensor is not None
    }


def collect_mask(bias: AttentionBias, batch_index: int, head: int, row: int) -> Tensor | None:
    """Return the mask (S,) of one query; None: it may attend to all keys."""
    mask = bias.get_mask(slice(row, row + 1))
    return None if mask is None else select_one(mask, batch_index, head)[0]


def select_one(x: Tensor, batch_index: int, head: int) -> Tensor:
    """Return the entry of a row and a head, which may be shared: (B|1, H|1, ...) -> (...)."""
    x = select_heads(x, slice(head, head + 1))
    return x[batch_index if len(x) > 1 else 0, 0]


def is_recorded(kernels: Iterable[RecordingKernel]) -> bool:
    """Return whether the calls of these kernels are recorded."""
    return any(isinstance(kernel, nn.Module) and has_forward_hooks(kernel) for kernel in kernels)


def keep_random_state(device: torch.device) -> AbstractContextManager[None]:
    """Restore the state of the random number generators at the end of the block."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def count_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the memory of tensors, of those that share their storage once."""
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
    return sum(storages.values())
