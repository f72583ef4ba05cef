import pytest
from roundhouse_sim.chat import Message, Part, cut_after, normalise, render_chat
from roundhouse_sim.errors import ApiError


def render(*messages: Message, generate: bool = True, continue_final: bool = False) -> str:
    return render_chat(
        messages, add_generation_prompt=generate, continue_final_message=continue_final, variables={}
    )  # fmt: skip


def test_every_message_is_a_turn_and_the_assistant_is_prompted() -> None:
    text = render(Message("system", "be brief"), Message("user", "hi"))
    assert text == ("<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


def test_a_continued_message_stays_open() -> None:
    text = render(Message("user", "hi"), Message("assistant", "Well, "), generate=False, continue_final=True)
    assert text.endswith("<|im_start|>assistant\nWell, ")


def test_prompt_of_a_continued_answer_is_prompt_plus_answer() -> None:
    question = Message("user", "hi")
    begun = render(question, Message("assistant", " so"), generate=False, continue_final=True)
    assert begun == render(question) + " so"


def test_messages_are_normalised_as_vllm_does() -> None:
    messages = [
        Message("developer", "d"),
        Message("user", [Part("text", "a"), Part("text", "b")]),
        Message("assistant", None),
    ]
    assert [(m.role, m.content) for m in normalise(messages)] == [("system", "d"), ("user", "a\nb"), ("assistant", "")]


def test_continue_and_generation_prompt_exclude_each_other() -> None:
    with pytest.raises(ApiError, match="Cannot set both"):
        render(Message("user", "hi"), continue_final=True)


def test_parts_that_are_no_text_are_refused() -> None:
    with pytest.raises(ApiError, match="image_url"):
        render(Message("user", [Part("image_url")]))


def test_no_messages_are_refused() -> None:
    with pytest.raises(ApiError, match="empty"):
        render()


@pytest.mark.parametrize(
    ("rendered", "content", "expected"),
    [
        ("<a>x y <e>", "x y ", "<a>x y "),
        ("<a>x<e>", " x ", "<a>x"),
        ("x<a>x<e>", "x", "x<a>x"),
        ("<a><e>", "", "<a><e>"),
    ],
)
def test_cut_after_the_last_message(rendered: str, content: str, expected: str) -> None:
    assert cut_after(rendered, content) == expected
