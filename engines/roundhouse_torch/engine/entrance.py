"""Where requests wait that cannot be scheduled yet: for the compiler of their grammar, or for a slot of their adapter.

Others pass them. Requests that wait for a slot keep their order, so that a stream of requests for one adapter cannot
keep another's out for ever.
"""

from concurrent.futures import Future

from roundhouse_torch.engine.adapters import Adapters
from roundhouse_torch.engine.grammar import Grammars
from roundhouse_torch.kvcache import chain
from roundhouse_torch.messages.command import Add
from roundhouse_torch.messages.report import Output
from roundhouse_torch.models.adapter import AdapterError
from roundhouse_torch.scheduler.sequence import Constraint, Finish, Sequence


class Entrance:
    """``model_name`` enters the names of blocks; without ``grammars`` nobody may ask for any; without ``adapters``
    requests for them are refused.
    """

    def __init__(self, model_name: str, grammars: Grammars | None = None, adapters: Adapters | None = None) -> None:
        self.adapters = adapters
        self._model_name = model_name
        self._grammars = grammars
        self._waiting: dict[int, tuple[Add, Future[Constraint] | None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, add: Add) -> None:
        assert self._grammars is not None or not add.grammar
        compiled = self._grammars.compile(add.grammar) if add.grammar and self._grammars is not None else None
        self._waiting[add.id] = (add, compiled)

    def abort(self, id: int) -> bool:
        return self._waiting.pop(id, None) is not None

    def leave(self, sequence: Sequence) -> None:
        """It ended."""
        if sequence.adapter and self.adapters is not None:
            self.adapters.release(sequence.adapter)

    def admit(self) -> tuple[list[Sequence], list[Output]]:
        """Those that can be scheduled now, and the last words to those that never can."""
        admitted, refused, full = [], [], False
        for id, (add, compiled) in list(self._waiting.items()):
            if compiled is not None and not compiled.done():
                continue
            try:
                constraint = compiled.result() if compiled is not None else None
                if add.adapter and (full or not self._acquire(add.adapter)):
                    full = True
                    continue
                admitted.append(self._sequence(add, constraint))
            except ValueError as error:
                refused.append(Output(id, [], 0, Finish.ABORT, error=str(error)))
            del self._waiting[id]
        return admitted, refused

    def _acquire(self, name: str) -> bool:
        if self.adapters is None:
            raise AdapterError("this engine was started without --enable-lora")
        return self.adapters.acquire(name)

    def _sequence(self, add: Add, constraint: Constraint | None) -> Sequence:
        adapter = self.adapters.identity(add.adapter) if add.adapter and self.adapters is not None else ""
        root = chain.root(self._model_name, adapter, add.salt)
        return Sequence(
            add.id, add.tokens, add.sampling, max_length=add.max_length, root=root, salt=add.salt, adapter=add.adapter,
            pooled=add.pooled, priority=add.priority, constraint=constraint,
        )  # fmt: skip
