"""Three gateways, one pod set, a network that loses, doubles, delays and reorders: tables bring the truth."""

from collections.abc import Iterator
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from roundhouse_kv.books import SILENCE_S, Books
from roundhouse_kv.books_wire import BookMessage, decode_message, encode_message

PODS = [UUID(int=n) for n in range(1, 4)]
GATEWAYS = range(3)


class Truth:
    """What a gateway really has in flight: pod and whether the first event was seen."""

    def __init__(self) -> None:
        self.open: dict[int, tuple[UUID, bool]] = {}


class SharedBooks(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.now = 0.0
        self.next_request = 0
        self.next_incarnation = 1
        self.epochs = dict.fromkeys(PODS, 1)
        self.books: list[Books] = []
        self.truth: list[Truth] = []
        self.network: list[tuple[int, bytes]] = []
        for _ in GATEWAYS:
            self.books.append(self._incarnation())
            self.truth.append(Truth())

    def _incarnation(self) -> Books:
        self.next_incarnation += 1
        return Books(self.next_incarnation)

    def _post(self, sender: int, messages: list[BookMessage]) -> None:
        for message in messages:
            for reader in GATEWAYS:
                if reader != sender:
                    self.network.append((reader, encode_message(message)))

    def _flush(self, sender: int) -> None:
        data = self.books[sender].outbox(self.now)
        self._post(sender, [] if data is None else [decode_message(data)])

    @rule(gateway=st.sampled_from(GATEWAYS), pod=st.sampled_from(PODS), streams=st.booleans(), flush=st.booleans())
    def pick(self, gateway: int, pod: UUID, streams: bool, flush: bool) -> None:
        self.now += 0.01
        self.next_request += 1
        self.books[gateway].pick(
            self.now, self.next_request, pod, self.epochs[pod], prefill_s=0.2, context_tokens=10, streams=streams,
            expected=(self.next_request,),
        )  # fmt: skip
        self.truth[gateway].open[self.next_request] = (pod, False)
        if flush:
            self._flush(gateway)

    @rule(gateway=st.sampled_from(GATEWAYS), which=st.integers(0, 20), flush=st.booleans())
    def first_event(self, gateway: int, which: int, flush: bool) -> None:
        self.now += 0.01
        open_ = self.truth[gateway].open
        if open_:
            request = sorted(open_)[which % len(open_)]
            self.books[gateway].first_event(self.now, request, uncached_tokens=1, busy_s=0.1)
            open_[request] = (open_[request][0], True)
        if flush:
            self._flush(gateway)

    @rule(gateway=st.sampled_from(GATEWAYS), which=st.integers(0, 20), flush=st.booleans())
    def end(self, gateway: int, which: int, flush: bool) -> None:
        self.now += 0.01
        open_ = self.truth[gateway].open
        if open_:
            request = sorted(open_)[which % len(open_)]
            self.books[gateway].end(self.now, request)
            del open_[request]
        if flush:
            self._flush(gateway)

    @rule(gateway=st.sampled_from(GATEWAYS), which=st.integers(0, 20), pod=st.sampled_from(PODS))
    def retry(self, gateway: int, which: int, pod: UUID) -> None:
        self.now += 0.01
        waiting = sorted(r for r, (_, answered) in self.truth[gateway].open.items() if not answered)
        if waiting:
            request = waiting[which % len(waiting)]
            self.books[gateway].pick(
                self.now, request, pod, self.epochs[pod], prefill_s=0.1, context_tokens=10, streams=True
            )
            self.truth[gateway].open[request] = (pod, False)

    @rule(gateway=st.sampled_from(GATEWAYS))
    def crash(self, gateway: int) -> None:
        self.books[gateway] = self._incarnation()
        self.truth[gateway] = Truth()

    @rule(gateway=st.sampled_from(GATEWAYS))
    def table(self, gateway: int) -> None:
        self.now += 0.01
        self._post(gateway, [self.books[gateway].table(self.now)])

    @rule(pod=st.sampled_from(PODS), gateway=st.sampled_from(GATEWAYS))
    def engine_restart(self, pod: UUID, gateway: int) -> None:
        """One gateway hears of it; the others learn it from the books, or when all leases are read."""
        self.epochs[pod] += 1
        for truth in self.truth:
            truth.open = {request: each for request, each in truth.open.items() if each[0] != pod}
        self.books[gateway].drop_before(pod, self.epochs[pod], self.now)

    @rule(at=st.integers(0, 1000))
    def deliver(self, at: int) -> None:
        if self.network:
            reader, data = self.network.pop(at % len(self.network))
            self.books[reader].apply(decode_message(data), self.now)

    @rule(at=st.integers(0, 1000))
    def double(self, at: int) -> None:
        if self.network:
            reader, data = self.network[at % len(self.network)]
            self.books[reader].apply(decode_message(data), self.now)

    @rule(at=st.integers(0, 1000))
    def lose(self, at: int) -> None:
        if self.network:
            self.network.pop(at % len(self.network))

    @invariant()
    def loads_are_never_negative(self) -> None:
        for books in self.books:
            for pod in PODS:
                load = books.load(pod, self.now)
                assert load.prefill_s >= 0
                assert load.context_tokens >= 0
                assert 0 <= load.unanswered <= load.requests

    def _settle(self) -> Iterator[None]:
        """Everybody reads the leases, the dead fall silent, and two rounds of tables arrive."""
        self.network.clear()
        for books in self.books:
            for pod, epoch in self.epochs.items():
                books.drop_before(pod, epoch, self.now)
        for _ in range(int(SILENCE_S) + 1):
            self.now += 1
            for gateway in GATEWAYS:
                self._flush(gateway)
                self._post(gateway, [self.books[gateway].table(self.now)])
            for reader, data in self.network:
                self.books[reader].apply(decode_message(data), self.now)
            self.network.clear()
            for books in self.books:
                books.expire(self.now)
            yield

    def teardown(self) -> None:
        if not hasattr(self, "books"):
            return
        for _ in self._settle():
            pass
        truth = {request: each for one in self.truth for request, each in one.open.items()}
        for books in self.books:
            assert books.all_open == len(truth)
            for pod in PODS:
                there = [answered for where, answered in truth.values() if where == pod]
                load = books.load(pod, self.now)
                assert load.requests == len(there)
                assert load.context_tokens == 10 * len(there)
                assert load.unanswered <= there.count(False)
        for gateway, books in enumerate(self.books):
            assert books.own_open == len(self.truth[gateway].open)
            for request in list(self.truth[gateway].open):
                books.end(self.now, request)
            self.truth[gateway].open = {}
        for _ in self._settle():
            pass
        for books in self.books:
            assert books.all_open == 0
            assert len(books._expected) == 0
            assert all(books.load(pod, self.now).prefill_s == 0 for pod in PODS)


TestSharedBooks = SharedBooks.TestCase
TestSharedBooks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
