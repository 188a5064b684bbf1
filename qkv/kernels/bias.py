"""Where: who sees whom, in the form that each kernel asks for it.

B batch, H heads, T queries, S keys; n blocks of b queries and m keys."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.kernels.block_sparse import Cut, at, cut, few_keys
from qkv.kernels.partial_attention import least
from qkv.spec import ByHead, Causal, Everyone, Pattern


@dataclass(frozen=True, kw_only=True)
class Where:
    """Who sees whom, made once for every pattern of a stack: pattern & seat & same document & allowed."""

    pattern: Pattern
    q: Tensor  # (B|1, T) positions of the queries
    k: Tensor  # (B|1, S) positions of the keys, -1 where no token stands
    full: bool = False  # a token stands everywhere
    new: Tensor | None = None  # (B|1, T) those of the keys that are made now, where others are remembered
    documents: tuple[Tensor, Tensor] | None = None  # of the queries and of the keys; -1: of every text
    allowed: Tensor | None = None  # (B, T, S)
    distance: Tensor | None = None  # (B|1, H, T, S) added to the scores
    same: bool = False  # queries and keys are the same even row, nothing remembered
    even: bool = False  # query t of T and key s of S are S - T + t - s apart
    reach: int = 0  # no two positions are further apart
    types: tuple[Tensor, Tensor] | None = None  # of the queries and of the keys
    edges: Tensor | None = None  # where the texts of a full row begin, if that is all the documents say
    dtype: torch.dtype = torch.float32
    made: dict[str, Tensor | None] = field(default_factory=dict)  # what every layer asks for, made once
    cuts: dict[Pattern, Cut] = field(default_factory=dict)  # and the same of its blocks

    @property
    def kernel(self) -> str:
        """Settled on the host: what this needs of a kernel."""
        open_ = self.distance is None and self.allowed is None and self.same
        plain = open_ and self.full and self.documents is None
        if plain and isinstance(self.pattern, Causal | Everyone):
            return "causal" if isinstance(self.pattern, Causal) else "all"
        if open_ and self.edges is not None and isinstance(self.pattern, Causal | Everyone):
            return "packed"
        return "blocks" if open_ and self.q.shape[1] >= 256 and few_keys(self.pattern) else "mask"

    def cut(self, rule: Pattern) -> Cut:
        """The blocks of a rule: of the pattern, or of some of its heads."""
        if rule not in self.cuts:
            self.cuts[rule] = cut(rule, self.visible, self.k)
        return self.cuts[rule]

    def visible(self, rule: Pattern, q: Tensor, k: Tensor) -> Tensor:
        """(B|1, n, b, m): may the queries at indices q (1, n, b) see the keys at indices k (B|1, n, m)?"""
        keys = at(self.k.int(), k)[..., None, :]  # half the memory of a long for each pair
        seen: Tensor = rule(at(self.q.int(), q)[..., :, None], keys)
        if not self.full:
            seen = seen & (keys >= 0)
        if self.documents is not None:
            mine, theirs = at(self.documents[0], q)[..., :, None], at(self.documents[1], k)[..., None, :]
            seen = seen & ((mine == theirs) | (theirs < 0))
        return seen

    @property
    def mask(self) -> Tensor | None:
        """(B|1, H|1, T, S) true where a query may see a key; None: everywhere. Made once."""
        if "mask" not in self.made:
            self.made["mask"] = self.make_mask()
        return self.made["mask"]

    def make_mask(self) -> Tensor | None:
        """(B|1, H|1, T, S) true where a query may see a key; None: everywhere."""
        last = isinstance(self.pattern, Causal) and self.q.shape[1] == 1  # a lone query comes last
        seen = self.full and (last or isinstance(self.pattern, Everyone))
        if seen and self.documents is None and self.allowed is None:
            return None
        rules = self.pattern.rules if isinstance(self.pattern, ByHead) else (self.pattern,)
        q, k = (torch.arange(x.shape[1], device=x.device)[None, None] for x in (self.q, self.k))
        mask = torch.cat([self.visible(rule, q, k) for rule in rules], dim=1)
        return mask if self.allowed is None else mask & self.allowed[:, None]

    def bias(self, extra: Tensor | None) -> Tensor | None:
        """What is added to the scores of a layer, which may add something of its own."""
        if extra is not None:
            return self.fill(extra if self.distance is None else extra + self.distance)
        if "bias" not in self.made:
            self.made["bias"] = self.fill(self.distance)
        return self.made["bias"]

    def fill(self, scores: Tensor | None) -> Tensor | None:
        """A query that sees nobody sees all alike, and never becomes NaN."""
        mask = self.mask
        if scores is None:
            if mask is None:
                return None
            scores = torch.zeros((), dtype=self.dtype, device=mask.device)
        scores = halved(scores)
        return in_words(scores if mask is None else scores.masked_fill(~mask, least(scores.dtype)))


def halved(scores: Tensor) -> Tensor:
    """In the type that autocast gives a kernel: once for all layers, not in each."""
    kind = scores.device.type
    return scores.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else scores


def in_words(scores: Tensor) -> Tensor:
    """On a GPU, rows that begin where a kernel reads words of 16 bytes, whatever their length: else torch
    moves them in every layer, and compiles anew for every remainder."""
    keys = scores.shape[-1]
    return F.pad(scores, (0, 8 - keys % 8))[..., :keys] if scores.is_cuda else scores
