"""The losses of a mixture of experts' router."""

import torch

from qkv.nn.feed_forward import load_balancing_loss, router_z_loss
from tests.support import compare


def test_router_losses_equal_the_formulas_of_the_papers() -> None:
    """Switch, eq. 4 to 6: N times the sum of f_i P_i for each row; ST-MoE, eq. 5."""
    logits = torch.randn(2, 9, 4, dtype=torch.float64)
    rows = []
    for row in logits:
        probs = [token.exp() / token.exp().sum() for token in row]
        fractions = [sum(int(p.argmax()) == i for p in probs) / 9 for i in range(4)]
        mean_probs = [sum(p[i] for p in probs) / 9 for i in range(4)]
        rows.append(4 * sum(f * p for f, p in zip(fractions, mean_probs, strict=True)))
    compare.assert_close(
        {"loss": load_balancing_loss(logits)}, {"loss": torch.stack(rows).mean()}, 1e-12
    )
    squares = [token.exp().sum().log() ** 2 for token in logits.flatten(0, 1)]
    compare.assert_close(
        {"loss": router_z_loss(logits)}, {"loss": torch.stack(squares).mean()}, 1e-12
    )
