import pytest
from roundhouse_sim.errors import BadSettings
from roundhouse_sim.settings import Settings, parse_settings


def test_no_options_give_the_defaults() -> None:
    assert parse_settings([]) == Settings()


def test_context_is_limited_by_what_the_cache_can_hold() -> None:
    settings = parse_settings(["--kv-tokens", "1000", "--block-size", "64"])
    assert (settings.blocks, settings.context_limit) == (15, 960)


@pytest.mark.parametrize(
    "options",
    [
        ["--speedup", "0"], ["--block-size", "0"], ["--kv-tokens", "3"], ["--max-num-seqs", "0"],
        ["--stream-interval", "-1"], ["--step-seconds", "0"], ["--fault", "nope"],
    ],
)  # fmt: skip
def test_impossible_settings_are_refused_with_the_option_named(options: list[str]) -> None:
    with pytest.raises(BadSettings, match=options[0]):
        parse_settings(options)


def test_unknown_options_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_settings(["--no-such-option"])
    assert stopped.value.code == 2
    assert "--no-such-option" in capsys.readouterr().err
