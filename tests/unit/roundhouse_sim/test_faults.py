import pytest
from roundhouse_sim.errors import BadFault
from roundhouse_sim.faults import Fault, FaultBoard, Kind, parse_fault, parse_fault_option


def test_a_fault_strikes_count_times_then_is_gone() -> None:
    board = FaultBoard()
    board.arm(Fault(fault=Kind.HANG, count=2))
    taken = [board.take("/v1/completions") for _ in range(3)]
    assert [fault.fault if fault else None for fault in taken] == [Kind.HANG, Kind.HANG, None]
    assert board.armed == []


def test_minus_one_strikes_until_disarmed() -> None:
    board = FaultBoard()
    board.arm(Fault(fault=Kind.STATUS, count=-1))
    assert all(board.take("/v1/models") for _ in range(10))
    board.disarm()
    assert board.take("/v1/models") is None


def test_only_paths_under_the_prefix_are_struck() -> None:
    board = FaultBoard()
    board.arm(Fault(fault=Kind.HANG, path="/health"))
    assert board.take("/v1/completions") is None
    assert board.take("/health") is not None


def test_the_oldest_fault_is_taken_first() -> None:
    board = FaultBoard()
    for kind in (Kind.RESET, Kind.ABORT):
        board.arm(Fault(fault=kind))
    taken = [board.take("/v1/x") for _ in range(2)]
    assert [fault and fault.fault for fault in taken] == [Kind.RESET, Kind.ABORT]


def test_slow_faults_multiply_and_are_never_taken() -> None:
    board = FaultBoard()
    board.arm(Fault(fault=Kind.SLOW, factor=3.0))
    board.arm(Fault(fault=Kind.SLOW, factor=2.0))
    assert board.take("/v1/x") is None
    assert board.slowdown == 6.0


def test_option_and_json_mean_the_same() -> None:
    from_option = parse_fault_option("reset,after_events=3,count=-1,factor=1.5,path=/")
    assert from_option == parse_fault(b'{"fault":"reset","after_events":3,"count":-1,"factor":1.5,"path":"/"}')


@pytest.mark.parametrize(
    "body",
    [
        b"{", b"[]", b'{"fault":"explode"}', b'{"fault":"hang","count":0}', b'{"fault":"hang","count":-2}',
        b'{"fault":"reset","after_events":-1}', b'{"fault":"slow","factor":0}', b'{"fault":"status","status":200}',
        b'{"fault":"hang","path":"v1"}', b'{"fault":"hang","typo":1}', b'{"fault":"hang","count":"1"}', b"\xff",
    ],
)  # fmt: skip
def test_what_cannot_be_armed_is_refused(body: bytes) -> None:
    with pytest.raises(BadFault):
        parse_fault(body)


@pytest.mark.parametrize("text", ["", "nope", "reset,after_events=x", "reset,typo=1", "hang,count"])
def test_bad_options_are_refused_and_named(text: str) -> None:
    with pytest.raises(BadFault, match="--fault"):
        parse_fault_option(text)
