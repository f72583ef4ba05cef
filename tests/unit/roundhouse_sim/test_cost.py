import pytest
from roundhouse_sim.cost import CostModel


def test_prefill_of_a_chunk_costs_tokens_and_attention_over_everything_before() -> None:
    cost = CostModel(prefill_token_s=2.0, attention_s=0.5)
    assert cost.chunk(10, 100) == pytest.approx(2.0 * 10 + 0.5 * 10 * (100 + 5))


def test_two_chunks_cost_as_much_as_one_whole_prefill() -> None:
    cost = CostModel()
    assert cost.chunk(300, 0) + cost.chunk(700, 300) == pytest.approx(cost.chunk(1000, 0))


def test_default_prefill_rate_is_about_eight_thousand_tokens_a_second() -> None:
    cost = CostModel()
    seconds = cost.base(0, 0) + cost.chunk(8192, 0)
    assert 8000 < 8192 / seconds < 9000


def test_decode_step_grows_with_context_and_sequences() -> None:
    cost = CostModel(step_s=1.0, decode_context_s=0.1, decode_sequence_s=0.01)
    assert cost.base(3, 50) == pytest.approx(1.0 + 5.0 + 0.03)
    assert cost.growth(3) == pytest.approx(0.3)
