"""How many tokens a tokenizer makes of a byte, on a sample of what people send: where gateways start to learn from."""

from typing import Final, NamedTuple

from tokenizers import Tokenizer

ASCII_SAMPLE: Final = """\
You are a helpful assistant. Answer in one short sentence, and say what you do not know. The meeting has been moved to
Thursday afternoon, so please tell everybody who wants to come, and bring the figures for March with you.

Summarise the following report for somebody who has never worked in this department. The new machines were delivered
two weeks late, because the supplier had to replace several parts that did not pass the first inspection. Production
was not affected, since the old machines could be kept running in the meantime.

Why does this function return nothing for an empty list, and how would you change it?
def average(values):
    total = 0.0
    for value in values:
        total += value
    return total / len(values) if values else None
"""
OTHER_SAMPLE: Final = (
    "今天天气很好我们去公园散步吧人工智能正在改变世界東京は日本の首都です한국어문장도섞어봅시다"
    "Маршрутизаторвыбираетрепликуповремениأينالمحطةéèüöäßñçøåż🙂🚀"
)


class Density(NamedTuple):
    """Tokens per ASCII byte and per byte of all else; rounded, so that every replica of a model says the same."""

    ascii: float
    other: float


def density(tokenizer_json: bytes) -> Density:
    tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    return Density(_of(tokenizer, ASCII_SAMPLE), _of(tokenizer, OTHER_SAMPLE))


def _of(tokenizer: Tokenizer, text: str) -> float:
    return round(len(tokenizer.encode(text, add_special_tokens=False).ids) / len(text.encode()), 3)
