"""From logits to the next token: greedy, or temperature and top-p with a seed that repeats."""

from __future__ import annotations

import secrets

import torch

from magicpig_cli.errors import MagicPigError


class Sampler:
    """Draws tokens.

    Parameters
    ----------
    temperature : float
        0 takes the most likely token.
    top_p : float
        Draw from the smallest set of tokens whose probability reaches this (arXiv 1904.09751).
    seed : int or None
        None draws one, which `seed` then tells, so that any answer can be repeated.
    """

    def __init__(self, temperature: float = 0.0, top_p: float = 1.0, seed: int | None = None) -> None:
        self._temperature = temperature
        self._top_p = top_p
        self.seed = None if temperature == 0 else secrets.randbits(32) if seed is None else seed
        self._generator = torch.Generator()
        if self.seed is not None:
            self._generator.manual_seed(self.seed)

    def __call__(self, logits: torch.Tensor) -> int:
        """The next token's id.

        Parameters
        ----------
        logits : torch.Tensor
            (vocabulary,), float32, any device.

        Raises
        ------
        MagicPigError
            If the model's numbers overflowed.
        """
        best = int(logits.argmax())
        if not torch.isfinite(logits[best]):
            raise MagicPigError(
                "the model's numbers overflowed, so any answer would be noise; "
                "run it with `--dtype bfloat16` or `--dtype float32`"
            )
        if self._temperature == 0:
            return best
        # Drawn on the CPU, so that a seed gives the same token on every device.
        probabilities = torch.softmax(logits.cpu().double() / self._temperature, dim=-1)
        ordered, ids = probabilities.sort(descending=True, stable=True)
        before = ordered.cumsum(0) - ordered
        ordered[before >= self._top_p] = 0.0
        return int(ids[torch.multinomial(ordered, 1, generator=self._generator)])
