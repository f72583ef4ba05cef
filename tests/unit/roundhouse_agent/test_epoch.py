from pathlib import Path

from roundhouse_agent.epoch import NONCE_FILE, STATE_FILE, EpochKeeper


def write_nonce(run_dir: Path, nonce: str) -> None:
    (run_dir / NONCE_FILE).write_text(nonce)


def test_no_start_is_no_epoch(tmp_path: Path) -> None:
    keeper = EpochKeeper(tmp_path, lambda: 1000)
    assert not keeper.observe()
    assert keeper.epoch == 0


def test_a_new_nonce_begins_an_epoch_named_by_the_clock(tmp_path: Path) -> None:
    write_nonce(tmp_path, "a")
    keeper = EpochKeeper(tmp_path, lambda: 1000)
    assert keeper.observe()
    assert keeper.epoch == 1000
    assert not keeper.observe()


def test_an_agent_restart_keeps_the_epoch(tmp_path: Path) -> None:
    write_nonce(tmp_path, "a")
    EpochKeeper(tmp_path, lambda: 1000).observe()
    again = EpochKeeper(tmp_path, lambda: 2000)
    assert again.epoch == 1000
    assert not again.observe()


def test_an_engine_restart_while_the_agent_was_away_begins_a_new_epoch(tmp_path: Path) -> None:
    write_nonce(tmp_path, "a")
    EpochKeeper(tmp_path, lambda: 1000).observe()
    write_nonce(tmp_path, "b")
    again = EpochKeeper(tmp_path, lambda: 2000)
    assert again.observe()
    assert again.epoch == 2000


def test_epochs_grow_when_the_clock_goes_back(tmp_path: Path) -> None:
    write_nonce(tmp_path, "a")
    keeper = EpochKeeper(tmp_path, iter([1000, 500]).__next__)
    keeper.observe()
    write_nonce(tmp_path, "b")
    assert keeper.observe()
    assert keeper.epoch == 1001


def test_a_nonce_that_is_being_written_is_not_taken(tmp_path: Path) -> None:
    write_nonce(tmp_path, "")
    assert not EpochKeeper(tmp_path, lambda: 1000).observe()


def test_unreadable_state_begins_a_new_epoch(tmp_path: Path) -> None:
    write_nonce(tmp_path, "a")
    (tmp_path / STATE_FILE).write_text("{broken")
    keeper = EpochKeeper(tmp_path, lambda: 1000)
    assert keeper.observe()
    assert keeper.epoch == 1000
