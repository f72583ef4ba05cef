"""Bookings: what counts when, and how the books of several gateways stay one."""

import math
from uuid import UUID

import pytest
from roundhouse_kv.books import COALESCE_S, EXPECTED_HOLD_S, SILENCE_S, Books, BookSample
from roundhouse_kv.books_wire import BookEntry, BookMessage, BookOp, Kind, decode_message

POD = UUID(int=1)
OTHER = UUID(int=2)
ME, PEER = 10, 20


def pick(
    books: Books,
    now: float,
    request: int,
    seconds: float = 1.0,
    *,
    pod: UUID = POD,
    epoch: int = 1,
    streams: bool = True,
    tokens: int = 100,
    priority: int = 0,
    expected: tuple[int, ...] = (),
) -> None:
    books.pick(
        now, request, pod, epoch, prefill_s=seconds, context_tokens=tokens, streams=streams, priority=priority,
        expected=expected,
    )  # fmt: skip


def owed(books: Books, now: float, pod: UUID = POD, priority: int = 0) -> float:
    return books.load(pod, now, priority).prefill_s


def said(sender: Books, now: float) -> BookMessage:
    """What the sender has to say, over the wire."""
    data = sender.outbox(now)
    assert data is not None
    return decode_message(data)


def send(sender: Books, now: float, *readers: Books) -> None:
    message = said(sender, now)
    for reader in readers:
        reader.apply(message, now)


@pytest.fixture
def books() -> Books:
    return Books(ME)


def test_nothing_is_booked_on_an_unknown_pod(books: Books) -> None:
    load = books.load(POD, 0)
    assert (load.prefill_s, load.context_tokens, load.requests, load.unanswered) == (0, 0, 0, 0)


def test_a_pick_is_booked_at_once(books: Books) -> None:
    pick(books, 0, 1, 0.5, tokens=300)
    load = books.load(POD, 0)
    assert (load.prefill_s, load.context_tokens, load.requests, load.unanswered) == (0.5, 300, 1, 1)
    assert books.own_open == 1


def test_the_first_event_releases_the_prefill_and_the_end_the_context(books: Books) -> None:
    pick(books, 0, 1, tokens=300)
    books.first_event(0.5, 1)
    load = books.load(POD, 1)
    assert (load.prefill_s, load.context_tokens, load.requests, load.unanswered) == (0, 300, 1, 0)
    books.end(2, 1)
    assert books.load(POD, 2).requests == 0
    assert books.own_open == books.all_open == 0


def test_an_end_without_a_first_event_releases_everything(books: Books) -> None:
    pick(books, 0, 1)
    books.end(0.1, 1)
    assert books.load(POD, 1) == Books(ME).load(POD, 1)


def test_events_of_unknown_requests_change_nothing(books: Books) -> None:
    books.first_event(0, 99)
    books.end(0, 99)
    assert books.outbox(1) is None


def test_the_head_is_drained_by_the_time_that_passes_but_never_wholly(books: Books) -> None:
    pick(books, 0, 1, 1.0)
    pick(books, 0, 2, 2.0)
    assert owed(books, 0.25) == pytest.approx(2.75)
    assert owed(books, 0.95) == pytest.approx(2.05)
    assert owed(books, 1.9) == pytest.approx(2.05)


def test_past_twice_its_estimate_the_excess_is_added(books: Books) -> None:
    pick(books, 0, 1, 1.0)
    assert owed(books, 2.0) == pytest.approx(0.05)
    assert owed(books, 5.0) == pytest.approx(3.05)


def test_the_next_head_is_drained_from_when_it_became_head(books: Books) -> None:
    pick(books, 0, 1, 1.0)
    pick(books, 0, 2, 1.0)
    books.first_event(3, 1)
    assert owed(books, 3) == pytest.approx(1.0)
    assert owed(books, 3.4) == pytest.approx(0.6)


def test_a_head_picked_on_an_idle_pod_is_drained_from_its_pick(books: Books) -> None:
    pick(books, 0, 1, 1.0)
    books.first_event(1, 1)
    pick(books, 50, 2, 1.0)
    assert owed(books, 50.5) == pytest.approx(0.5)


def test_the_end_of_one_behind_does_not_restart_the_head(books: Books) -> None:
    pick(books, 0, 1, 1.0)
    pick(books, 0, 2, 1.0)
    books.end(0.5, 2)
    assert owed(books, 0.5) == pytest.approx(0.5)


def test_a_first_event_drops_what_was_booked_before_and_streams(books: Books) -> None:
    for request in (1, 2, 3):
        pick(books, request / 10, request, 1.0)
    books.first_event(1, 2)
    assert books.load(POD, 1).unanswered == 1
    assert owed(books, 1) == pytest.approx(1.0)
    assert books.load(POD, 1).context_tokens == 300


def test_a_first_event_drops_nothing_of_other_pods(books: Books) -> None:
    pick(books, 0, 1, 1.0, pod=OTHER)
    pick(books, 1, 2, 1.0)
    books.first_event(1, 2)
    assert books.load(OTHER, 1).unanswered == 1


def test_the_late_first_event_of_a_dropped_booking_is_still_its_first_event(books: Books) -> None:
    pick(books, 0, 1, 1.0, expected=(5,))
    pick(books, 0.1, 2, 1.0)
    books.first_event(1, 2)
    books.first_event(1.1, 1, uncached_tokens=9, busy_s=0.5)
    assert [sample.uncached_tokens for sample in books.take_samples()] == [9]
    books.end(1.2, 1)
    assert books.expected_depth(POD, [5], 0) == 1


def test_a_silent_request_ends_its_booking_when_a_later_one_gets_its_first_event(books: Books) -> None:
    pick(books, 0, 1, 5.0, streams=False, tokens=70)
    pick(books, 0.1, 2, 1.0)
    books.first_event(0.5, 2)
    load = books.load(POD, 0.5)
    assert (load.prefill_s, load.unanswered, load.context_tokens) == (0, 0, 170)


def test_a_silent_request_keeps_its_booking_when_an_earlier_one_gets_its_first_event(books: Books) -> None:
    pick(books, 0, 1, 1.0)
    pick(books, 0.1, 2, 1.0, streams=False)
    books.first_event(0.5, 1)
    assert owed(books, 0.5) == pytest.approx(1.0)


def test_a_silent_head_ends_when_its_estimate_has_passed(books: Books) -> None:
    pick(books, 0, 1, 1.0, streams=False)
    pick(books, 0, 2, 1.0, streams=False)
    pick(books, 0, 3, 1.0)
    assert owed(books, 0.5) == pytest.approx(2.5)
    assert owed(books, 1.5) == pytest.approx(1.5)
    assert owed(books, 2.5) == pytest.approx(0.5)
    assert books.load(POD, 2.5).requests == 3


def test_a_silent_head_is_never_overdue(books: Books) -> None:
    pick(books, 0, 1, 1.0, streams=False)
    assert owed(books, 100) == 0


def test_a_higher_priority_counts_only_what_is_as_urgent(books: Books) -> None:
    pick(books, 0, 1, 1.0, priority=0)
    pick(books, 0, 2, 2.0, priority=5)
    assert owed(books, 0, priority=0) == pytest.approx(3.0)
    assert owed(books, 0, priority=5) == pytest.approx(2.0)
    assert owed(books, 0, priority=6) == 0
    assert books.load(POD, 0, 5).unanswered == 1
    assert books.load(POD, 0, 5).requests == 2


def test_the_more_urgent_one_is_head(books: Books) -> None:
    pick(books, 0, 1, 1.0, priority=0)
    pick(books, 0, 2, 2.0, priority=5)
    assert owed(books, 1, priority=5) == pytest.approx(1.0)


def test_a_first_event_says_nothing_of_less_urgent_ones_before_it(books: Books) -> None:
    pick(books, 0, 1, 1.0, priority=0)
    pick(books, 0.1, 2, 1.0, priority=5)
    books.first_event(0.5, 2)
    assert books.load(POD, 0.5).unanswered == 1


def test_a_retry_moves_the_booking(books: Books) -> None:
    peer = Books(PEER)
    pick(books, 0, 1, 1.0, expected=(5, 6))
    send(books, 0, peer)
    pick(books, 1, 1, 0.7, pod=OTHER, expected=(5, 6))
    send(books, 1, peer)
    for each in (books, peer):
        assert each.load(POD, 1).requests == 0
        assert owed(each, 1, OTHER) == pytest.approx(0.7)
        assert each.expected_depth(POD, [5, 6], 0) == 0
        assert each.expected_depth(OTHER, [5, 6], 0) == 2
    books.end(2, 1)
    send(books, 2, peer)
    assert books.all_open == peer.all_open == 0


@pytest.mark.parametrize("seconds", [0.0, -3.0, 1e9, math.inf])
def test_wild_estimates_are_clipped_to_what_the_wire_can_say(books: Books, seconds: float) -> None:
    peer = Books(PEER)
    pick(books, 0, 1, seconds, tokens=2**40, priority=1000)
    send(books, 0, peer)
    assert peer.load(POD, 0) == books.load(POD, 0)
    books.first_event(0, 1, busy_s=seconds)
    books.end(0, 1)
    assert books.load(POD, 0).prefill_s == 0


def test_sums_come_back_to_exactly_zero(books: Books) -> None:
    for request in range(1000):
        pick(books, request, request, 0.1 + request / 7)
    for request in range(999):
        books.end(2000, request)
    assert books.load(POD, 999).unanswered == 1
    books.end(2000, 999)
    assert books.load(POD, 2000).prefill_s == 0


# Expected keys


def test_expected_keys_count_from_the_given_place_without_a_hole(books: Books) -> None:
    pick(books, 0, 1, expected=(3, 4, 6))
    keys = [1, 2, 3, 4, 5, 6]
    assert books.expected_depth(POD, keys, 2) == 2
    assert books.expected_depth(POD, keys, 0) == 0
    assert books.expected_depth(POD, keys, 5) == 1
    assert books.expected_depth(POD, keys, 6) == 0
    assert books.expected_depth(OTHER, keys, 2) == 0


def test_expected_keys_go_with_a_request_that_ends_without_a_first_event(books: Books) -> None:
    pick(books, 0, 1, expected=(3, 4))
    pick(books, 0, 2, expected=(3,))
    books.end(0, 1)
    assert books.expected_depth(POD, [3, 4], 0) == 1
    books.end(0, 2)
    assert books.expected_depth(POD, [3, 4], 0) == 0


def test_expected_keys_stay_two_seconds_after_the_first_event_even_when_the_request_ends(books: Books) -> None:
    pick(books, 0, 1, expected=(3, 4))
    books.first_event(1, 1)
    books.end(1.1, 1)
    books.expire(1 + EXPECTED_HOLD_S - 0.01)
    assert books.expected_depth(POD, [3, 4], 0) == 2
    books.expire(1 + EXPECTED_HOLD_S)
    assert books.expected_depth(POD, [3, 4], 0) == 0


def test_expected_keys_of_a_dead_epoch_are_gone(books: Books) -> None:
    pick(books, 0, 1, expected=(3,))
    pick(books, 0, 2, expected=(4,))
    books.first_event(0, 1)
    books.drop_before(POD, 2, 0)
    assert books.expected_depth(POD, [3], 0) == books.expected_depth(POD, [4], 0) == 0
    pick(books, 0, 3, epoch=2, expected=(3,))
    books.expire(10)
    assert books.expected_depth(POD, [3], 0) == 1


def test_at_most_128_expected_keys_travel(books: Books) -> None:
    peer = Books(PEER)
    pick(books, 0, 1, expected=tuple(range(1, 301)))
    send(books, 0, peer)
    assert peer.expected_depth(POD, list(range(1, 301)), 0) == 128


# Epochs


def test_a_newer_epoch_voids_what_was_booked_before(books: Books) -> None:
    pick(books, 0, 1)
    pick(books, 0, 2, pod=OTHER)
    books.drop_before(POD, 1, 0)
    assert books.load(POD, 0).requests == 1
    books.drop_before(POD, 2, 0)
    assert books.load(POD, 0).requests == 0
    assert books.load(OTHER, 0).requests == 1
    books.first_event(0, 1)
    books.end(0, 1)
    assert books.own_open == 1


def test_a_pod_that_is_gone_takes_its_bookings_with_it(books: Books) -> None:
    peer = Books(PEER)
    pick(peer, 0, 2)
    send(peer, 0, books)
    pick(books, 0, 1)
    books.drop_before(POD, None, 0)
    assert books.all_open == books.own_open == 0


def test_a_pick_of_a_newer_epoch_tells_the_others(books: Books) -> None:
    peer = Books(PEER)
    pick(peer, 0, 2)
    pick(books, 0, 1, epoch=5)
    send(books, 0, peer)
    assert peer.load(POD, 0).requests == 1
    assert peer.own_open == 0


def test_news_of_a_dead_epoch_are_not_booked(books: Books) -> None:
    peer = Books(PEER)
    peer.drop_before(POD, 5, 0)
    pick(books, 0, 1, epoch=4)
    send(books, 0, peer)
    books.first_event(0, 1)
    send(books, 1, peer)
    assert peer.all_open == 0


def test_an_own_pick_with_an_epoch_that_is_behind_is_booked_in_the_newest(books: Books) -> None:
    books.drop_before(POD, 5, 0)
    pick(books, 0, 1, epoch=4)
    assert books.load(POD, 0).requests == 1
    books.drop_before(POD, 5, 0)
    assert books.load(POD, 0).requests == 1


# Messages


def test_a_change_leaves_at_once_and_the_next_within_two_milliseconds_together(books: Books) -> None:
    woken: list[int] = []
    books.wake = lambda: woken.append(1)
    pick(books, 0, 1)
    assert woken == [1]
    assert books.outbox_due(0) == 0
    first = said(books, 0)
    assert [entry.op for entry in first.entries] == [BookOp.PICK]
    assert books.outbox_due(0) is None
    pick(books, 0.0005, 2)
    books.first_event(0.001, 1)
    assert books.outbox(0.001) is None
    assert books.outbox_due(0.001) == pytest.approx(COALESCE_S - 0.001)
    second = said(books, COALESCE_S)
    assert [(entry.op, entry.request) for entry in second.entries] == [(BookOp.PICK, 2), (BookOp.FIRST, 1)]
    assert (first.seq, second.seq) == (1, 2)
    assert books.outbox(1) is None


def test_ages_travel_so_that_readers_drain_alike(books: Books) -> None:
    peer = Books(PEER)
    pick(books, 0, 1, 1.0)
    peer.apply(BookMessage(Kind.DELTA, 99, 1), 0.0)
    send(books, 0.4, peer)
    assert owed(books, 0.5) == pytest.approx(0.5)
    entry = books.table(0.4).entries[0]
    assert entry.age_us == 400_000


def test_own_messages_that_come_back_are_ignored(books: Books) -> None:
    pick(books, 0, 1)
    message = said(books, 0)
    books.apply(message, 0)
    assert books.all_open == 1
    assert list(books.writers) == []


def test_a_duplicate_and_an_overtaken_message_are_skipped(books: Books) -> None:
    peer = Books(PEER)
    pick(peer, 0, 1)
    first = said(peer, 0)
    peer.end(1, 1)
    second = said(peer, 1)
    for message in (first, second, second, first):
        books.apply(message, 1)
    assert books.all_open == 0


def test_a_gap_asks_once_and_the_table_answers(books: Books) -> None:
    peer = Books(PEER)
    pick(peer, 0, 1)
    assert peer.outbox(0) is not None  # lost
    pick(peer, 1, 2)
    send(peer, 1, books)
    pick(peer, 2, 3)
    send(peer, 2, books)
    assert books.asks() == [BookMessage(Kind.ASK, PEER, 0)]
    assert books.asks() == []
    assert books.load(POD, 2).requests == 2
    peer.apply(BookMessage(Kind.ASK, PEER, 0), 2)
    assert peer.table_due
    books.apply(peer.table(2), 2)
    assert not peer.table_due
    assert books.load(POD, 2).requests == 3


def test_a_question_to_somebody_else_is_not_ours(books: Books) -> None:
    books.apply(BookMessage(Kind.ASK, PEER, 0), 0)
    assert not books.table_due


def test_a_writer_first_heard_in_the_middle_is_asked(books: Books) -> None:
    books.apply(BookMessage(Kind.DELTA, PEER, 7), 0)
    assert books.asks() == [BookMessage(Kind.ASK, PEER, 0)]


def test_a_writer_first_heard_by_its_table_is_not_asked(books: Books) -> None:
    books.apply(BookMessage(Kind.TABLE, PEER, 7), 0)
    assert books.asks() == []


def test_a_table_replaces_all_that_was_known_of_its_writer_only(books: Books) -> None:
    peer, third = Books(PEER), Books(30)
    pick(books, 0, 100)
    pick(third, 0, 300)
    send(third, 0, books)
    for request in (1, 2, 3):
        pick(peer, 0, request)
    send(peer, 0, books)
    peer.end(1, 1)
    peer.first_event(1, 2, uncached_tokens=50, cached_tokens=10, busy_s=0.3)
    assert peer.outbox(1) is not None  # lost
    books.apply(peer.table(2), 2)
    load = books.load(POD, 2)
    assert (load.requests, load.unanswered) == (4, 3)
    assert [sample.uncached_tokens for sample in books.take_samples()] == [50]


def test_a_table_tells_newcomers_what_owes_no_prefill_any_more(books: Books) -> None:
    peer = Books(PEER)
    pick(peer, 0, 1, 3.0, expected=(7,))
    pick(peer, 1, 2, 1.0)
    peer.first_event(2, 2)
    books.apply(peer.table(2), 2)
    assert books.load(POD, 2) == peer.load(POD, 2)
    assert books.load(POD, 2).unanswered == 0
    assert books.expected_depth(POD, [7], 0) == 0


def test_a_lost_pick_is_made_good_by_the_first_event(books: Books) -> None:
    peer = Books(PEER)
    pick(peer, 0, 1, tokens=70)
    assert peer.outbox(0) is not None  # lost
    peer.first_event(1, 1)
    send(peer, 1, books)
    load = books.load(POD, 1)
    assert (load.requests, load.unanswered, load.context_tokens) == (1, 0, 70)


def test_a_writer_silent_for_three_seconds_is_dropped_with_its_bookings(books: Books) -> None:
    peer = Books(PEER)
    pick(peer, 0, 1, expected=(3,))
    send(peer, 0, books)
    pick(books, 0, 2)
    books.expire(SILENCE_S - 0.01)
    assert books.load(POD, 0).requests == 2
    assert list(books.writers) == [PEER]
    books.expire(SILENCE_S)
    assert books.load(POD, 0).requests == 1
    assert list(books.writers) == []
    assert books.expected_depth(POD, [3], 0) == 0


def test_tables_keep_a_writer_alive(books: Books) -> None:
    peer = Books(PEER)
    for second in range(10):
        books.apply(peer.table(second), second)
        books.expire(second)
        assert list(books.writers) == [PEER]


def test_a_restarted_gateway_is_a_new_writer(books: Books) -> None:
    peer = Books(PEER)
    pick(peer, 0, 1)
    send(peer, 0, books)
    again = Books(PEER + 1)
    books.apply(again.table(1), 1)
    assert sorted(books.writers) == [PEER, PEER + 1]
    books.expire(SILENCE_S + 0.5)
    assert list(books.writers) == [PEER + 1]
    assert books.all_open == 0


def test_samples_of_all_gateways_are_learned_once_each(books: Books) -> None:
    peer = Books(PEER)
    pick(peer, 0, 1, 0.5)
    peer.first_event(1, 1, uncached_tokens=100, cached_tokens=20, busy_s=0.25)
    send(peer, 1, books)
    books.apply(peer.table(2), 2)
    pick(books, 2, 2, 0.5)
    books.first_event(3, 2)  # no sample
    expected = [BookSample(POD, 100, 20, 0.25)]
    assert books.take_samples() == expected
    assert books.take_samples() == []
    assert peer.take_samples() == expected


def test_a_sample_may_come_with_the_end_but_not_twice(books: Books) -> None:
    peer = Books(PEER)
    pick(peer, 0, 1, 0.5)
    peer.first_event(1, 1)
    peer.end(2, 1, uncached_tokens=100, cached_tokens=20, busy_s=0.25)
    pick(peer, 2, 2, 0.5)
    peer.first_event(3, 2, uncached_tokens=7, busy_s=0.5)
    peer.end(4, 2, uncached_tokens=9, busy_s=math.inf)
    send(peer, 4, books)
    expected = [BookSample(POD, 100, 20, 0.25), BookSample(POD, 7, 0, 0.5)]
    assert books.take_samples() == expected
    assert peer.take_samples() == expected


def test_an_end_that_overtakes_its_pick_does_not_leave_a_booking_for_ever(books: Books) -> None:
    entry = BookEntry(BookOp.END, 1, POD, 1)
    books.apply(BookMessage(Kind.DELTA, PEER, 2, (entry,)), 0)
    books.apply(BookMessage(Kind.DELTA, PEER, 1, (BookEntry(BookOp.PICK, 1, POD, 1, prefill_us=5),)), 0)
    assert books.all_open == 0
