from roundhouse_agent.drain import TOLD_FOR_S, Drain


def running(told_at: float | None = 10.0) -> Drain:
    drain = Drain()
    drain.start(60_000)
    if told_at is not None:
        drain.told(told_at)
    return drain


def test_idle_half_a_second_after_the_readers_were_told_is_drained() -> None:
    drain = running()
    drain.observe(True, 10.0 + TOLD_FOR_S)
    assert drain.drained


def test_idle_too_soon_after_the_readers_were_told_is_not_drained() -> None:
    drain = running()
    drain.observe(True, 10.0 + TOLD_FOR_S / 2)
    assert not drain.drained


def test_before_the_readers_were_told_nothing_is_drained() -> None:
    drain = running(told_at=None)
    drain.observe(True, 1000.0)
    assert not drain.drained


def test_a_busy_engine_is_not_drained_even_past_the_deadline() -> None:
    drain = running()
    drain.observe(False, 1000.0)
    assert not drain.drained
    assert drain.remaining_ms(70_000) == 0


def test_without_a_drain_an_idle_engine_is_not_drained() -> None:
    drain = Drain()
    drain.told(1.0)
    drain.observe(True, 10.0)
    assert not drain.drained
    assert not drain.active


def test_only_an_earlier_deadline_replaces_the_deadline() -> None:
    drain = running()
    drain.start(90_000)
    assert drain.remaining_ms(50_000) == 10_000
    drain.start(55_000)
    assert drain.remaining_ms(50_000) == 5_000


def test_cancel_goes_back_and_a_later_drain_must_tell_again() -> None:
    drain = running()
    assert drain.cancel()
    assert not drain.active
    drain.start(80_000)
    drain.observe(True, 100.0)
    assert not drain.drained


def test_a_finished_drain_cannot_be_cancelled() -> None:
    drain = running()
    drain.observe(True, 20.0)
    assert not drain.cancel()
    assert drain.drained


def test_telling_twice_does_not_move_the_time() -> None:
    drain = running()
    drain.told(50.0)
    assert drain.told_at == 10.0
