"""One answer being written: the scheduler's sequence, with its tokens and the one who waits for them."""

from collections.abc import Callable

from roundhouse_sim.answer import AnswerWriter
from roundhouse_sim.scheduler import Sequence
from roundhouse_sim.tokens import END_OF_TURN, Tokens, block_keys, root_key


class Job(Sequence):
    """``deliver(job)`` is called at the first token, then each ``interval`` tokens (0 = never), and a last time with
    ``finish`` set; ``ending`` is what ``finish`` will be. ``visible`` is the number of characters of ``answer`` that
    clients may see: a stop string or the end token is not. Times are the engine's clock: arrival, first scheduled,
    first token."""

    __slots__ = (
        "answer", "arrived", "block_size", "deliver", "ending", "finish", "first", "interval", "prompt", "salt",
        "started", "stop_reason", "visible", "writer",
    )  # fmt: skip

    def __init__(
        self,
        prompt: Tokens,
        writer: AnswerWriter,
        limit: int,
        salt: str,
        block_size: int,
        deliver: Callable[["Job"], None],
    ) -> None:
        super().__init__(len(prompt), limit, block_keys(prompt, block_size, root_key(salt)))
        self.prompt = prompt
        self.writer = writer
        self.salt = salt
        self.block_size = block_size
        self.deliver = deliver
        self.answer = ""
        self.visible = limit
        self.ending = "length"
        self.finish: str | None = None
        self.stop_reason: str | None = None
        self.interval = 0
        self.arrived = self.started = self.first = 0.0

    def fix_answer(self, stop: tuple[str, ...]) -> None:
        """Write the whole answer now, to know where it ends: by itself or at a stop string."""
        self.answer = self.writer.write(self.output_tokens)
        ends = [(at + len(text), at, text) for text in stop if (at := self.answer.find(text)) >= 0]
        if ends:
            self.output_tokens, self.visible, self.stop_reason = min(ends)
            self.answer = self.answer[: self.output_tokens]
            self.ending = "stop"
        elif len(self.answer) < self.output_tokens:
            self.visible = len(self.answer)
            self.answer += END_OF_TURN
            self.output_tokens = len(self.answer)
            self.ending = "stop"
        self.wake_at = self.output_tokens

    def write_on(self) -> None:
        """Make up the tokens generated so far, and the keys of the blocks that they fill."""
        missing = self.generated - len(self.answer)
        if missing > 0:
            self.answer += self.writer.write(missing)
        size = self.block_size
        known = len(self.keys)
        full = (self.prompt_tokens + self.generated) // size
        if full > known:
            parent = self.keys[-1] if known else root_key(self.salt)
            self.keys += block_keys(self.tokens(known * size, full * size), size, parent)

    def tokens(self, start: int, stop: int) -> str:
        """Tokens ``start`` to ``stop`` of prompt and answer together."""
        offset = self.prompt_tokens
        if stop <= offset:
            return self.prompt[start:stop]
        return self.prompt[start:] + self.answer[max(0, start - offset) : stop - offset]

    def text(self, start: int = 0) -> str:
        """What clients may see so far, from token ``start`` on."""
        return self.answer[start : min(self.generated, self.visible)]
