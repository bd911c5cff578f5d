"""One decode step through the model's own modules."""

from __future__ import annotations

from typing import Any

import torch

from magicpig_cli.attention.session import Session
from magicpig_cli.engine.decode import StepFunction


def make_step(model: Any, session: Session) -> StepFunction:
    """A function from a token id to the logits of the next token, (vocabulary,), float32.

    Each call appends the token's keys and values to the session.
    """
    device = next(model.parameters()).device

    def step(token_id: int) -> torch.Tensor:
        ids = torch.tensor([[token_id]], device=device)
        positions = torch.tensor([[session.n_tokens]], device=device)
        logits = model(input_ids=ids, position_ids=positions, use_cache=False, magicpig=session).logits
        session.n_tokens += 1
        return logits[0, -1].float()

    return step
