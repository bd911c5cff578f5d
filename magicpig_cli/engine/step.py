"""One decode step: a token goes in, the logits of the next one come out.

A plain Llama-shaped model on a CPU runs in compiled kernels (`stepgraph`), which read each
weight once at the speed of memory; every other model runs through its own modules. Both go
through the same attention seam and give the same numbers up to float32 rounding.
"""

from __future__ import annotations

from typing import Any

import torch

from magicpig_cli.attention.session import Session
from magicpig_cli.engine.decode import StepFunction
from magicpig_cli.engine.stepgraph import StepGraph


def make_step(model: Any, session: Session) -> StepFunction:
    """A function from a token id to the logits of the next token, (vocabulary,), float32.

    Each call appends the token's keys and values to the session.

    Parameters
    ----------
    model : torch.nn.Module
        A transformers causal language model that `models.load` has prepared.
    session : Session
        Prefilled.
    """
    graph = StepGraph.of(model)
    return module_step(model, session) if graph is None else graph.step(session)


def module_step(model: Any, session: Session) -> StepFunction:
    """The step through the model's own modules, whatever its architecture; see `make_step`."""
    device = next(model.parameters()).device
    ids, positions = torch.zeros((2, 1, 1), dtype=torch.int64, device=device)

    def step(token_id: int) -> torch.Tensor:
        # Filled, not made anew: a tensor made of a number waits for its copy to a GPU.
        ids.fill_(token_id)
        positions.fill_(session.n_tokens)
        logits = model(input_ids=ids, position_ids=positions, use_cache=False, magicpig=session).logits
        session.token_ids.append(token_id)
        return logits[0, -1].float()

    return step
