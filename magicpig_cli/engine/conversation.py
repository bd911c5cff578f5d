"""Many questions about the same documents, each with what was asked and answered before.

Stands on `Engine.generate`: a turn's prompt begins with the very tokens of the turn before and its
answer, which the engine still holds, so nothing is read twice.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from typing import cast

from magicpig_cli.engine.engine import AskRequest, Engine
from magicpig_cli.engine.events import Event, Token
from magicpig_cli.engine.prompt import Turn


class Conversation:
    """The turns so far.

    Parameters
    ----------
    engine : Engine
    request : AskRequest
        Documents and options of every turn; its question is not used.
    """

    def __init__(self, engine: Engine, request: AskRequest) -> None:
        self._engine = engine
        self._request = request
        self._turns: list[Turn] = []

    @property
    def turns(self) -> tuple[Turn, ...]:
        return tuple(self._turns)

    def ask(self, question: str) -> Generator[Event, None, None]:
        """Answer a question; closing the generator ends the answer, which then counts as far as it came.

        Raises
        ------
        UsageError, DoesNotFit
            Before anything is computed.
        """
        request = replace(self._request, question=question, history=self.turns)
        answer_ids: list[int] = []
        try:
            events = cast("Generator[Event, None, None]", self._engine.generate(request))
            with closing(events):
                for event in events:
                    if isinstance(event, Token):
                        answer_ids.append(event.id)
                    yield event
        finally:
            if answer_ids:
                self._turns.append(Turn(question, tuple(answer_ids)))

    def reset(self) -> None:
        """Forget the turns; what was read of the documents stays."""
        self._turns.clear()
