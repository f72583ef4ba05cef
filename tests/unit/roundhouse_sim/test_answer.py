from hypothesis import given
from hypothesis import strategies as st
from roundhouse_sim.answer import AnswerWriter

prompts = st.text(alphabet=[chr(code) for code in range(259)], min_size=1, max_size=200)


@given(prompts, st.integers(-5, 2**63 - 1))
def test_equal_prompts_get_equal_answers(prompt: str, seed: int) -> None:
    assert AnswerWriter(prompt, seed, 0).write(100) == AnswerWriter(prompt, seed, 0).write(100)


@given(prompts, st.integers(0, 99), st.sampled_from([0, 40]))
def test_a_request_that_continues_an_answer_gets_exactly_the_rest(prompt: str, cut: int, end_mean: int) -> None:
    whole = AnswerWriter(prompt, 0, end_mean).write(100)
    assert whole[cut:] == AnswerWriter(prompt + whole[:cut], 0, end_mean).write(max(0, len(whole) - cut))
    if len(whole) < 100 and cut <= len(whole):
        assert AnswerWriter(prompt + whole[:cut], 0, end_mean).write(100) == whole[cut:]


def test_prompt_and_seed_change_the_answer() -> None:
    answers = {AnswerWriter(prompt, seed, 0).write(40) for prompt in ("a", "b") for seed in (0, 1)}
    assert len(answers) == 4


def test_answers_that_may_end_have_about_the_mean_length() -> None:
    lengths = [len(AnswerWriter(f"prompt {n}", 0, 50).write(10_000)) for n in range(400)]
    assert 40 < sum(lengths) / len(lengths) < 60
