"""From a task to token ids: the largest problem that fits a context, through the prompts of `ask`."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from magicpig_cli.documents.document import Document
from magicpig_cli.engine.engine import Engine
from magicpig_cli.engine.prompt import PlainTextEncoder, PromptBuilder
from magicpig_cli.errors import UsageError
from magicpig_cli.evaluate.tasks import TASKS, Haystack, Problem


@dataclass(frozen=True, slots=True)
class Prompted:
    """A problem, and the token ids up to where the model goes on."""

    problem: Problem
    token_ids: tuple[int, ...]


class Prompter:
    """Makes problems for one model and context.

    Parameters
    ----------
    engine : Engine
    haystack : Haystack
    ctx : int
        Tokens of prompt and answer together.
    seed : int
    """

    def __init__(self, engine: Engine, haystack: Haystack, ctx: int, seed: int) -> None:
        self._builder = PromptBuilder(engine.loaded.tokenizer, engine.model_id, engine.loaded.context_tokens)
        self._plain = PlainTextEncoder(engine.loaded.tokenizer)
        self._haystack, self._ctx, self._seed = haystack, ctx, seed
        self._encoded: dict[str, list[int]] = {}

    def problem(self, task: str, number: int) -> Prompted:
        """The `number`th problem of a task: the same for the same seed, text and context.

        Raises
        ------
        UsageError
            If not even the smallest fits.
        """
        room = self.room(task, number)

        def fits(size: int) -> bool:
            return self._builder.count(self._made(task, number, size).document) <= room

        high = 2
        while fits(high):
            high *= 2
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        problem = self._made(task, number, low)
        return Prompted(problem, self._ids(problem))

    def room(self, task: str, number: int) -> int:
        """Tokens that the document may have.

        Raises
        ------
        UsageError
            If not even the smallest fits.
        """
        smallest = self._made(task, number, 1)
        smallest_tokens = self._builder.count(smallest.document)
        others = len(self._ids(smallest)) - smallest_tokens + smallest.max_tokens
        if smallest_tokens + others > self._ctx:
            raise UsageError(
                f"the task {task} needs {smallest_tokens + others:,} tokens, but --ctx is {self._ctx:,}"
            )
        return self._ctx - others

    def _made(self, task: str, number: int, size: int) -> Problem:
        random = Random(f"{self._seed} {task} {number}")
        return TASKS[task](random, self._haystack, size, number)

    def _ids(self, problem: Problem) -> tuple[int, ...]:
        document = Document(source="task", text=problem.document, encoding="utf-8")
        prompt = self._builder.build([document], problem.question, None)
        return (*prompt.token_ids, *self._plain.encode(problem.answer_start))

    def excerpt(self, text: str, number: int, n_tokens: int) -> tuple[int, ...]:
        """`n_tokens` of the text as a document in the prompt, from a place that depends on `number`.

        Raises
        ------
        UsageError
            If the text is shorter.
        """
        if text not in self._encoded:
            self._encoded[text] = self._plain.encode(text)
        ids = self._encoded[text]
        head = self._builder.build([Document("text", ".", "utf-8")], ".", None).token_ids
        start = head[: self._builder.prefix([Document("text", ".", "utf-8")], None).prefix_tokens - 1]
        wanted = n_tokens - len(start)
        if len(ids) < wanted:
            raise UsageError(
                f"the text has {len(ids):,} tokens, but {wanted:,} are needed; give a longer one with "
                "--text, or a smaller --ctx"
            )
        first = Random(f"{self._seed} text {number}").randint(0, len(ids) - wanted)
        return (*start, *ids[first : first + wanted])
