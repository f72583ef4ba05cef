"""How many tokens a tokenizer makes of a byte, on a sample of what people send: where gateways start to learn from."""

from typing import Final, NamedTuple

from tokenizers import Tokenizer

ASCII_SAMPLE: Final = """\
You are a helpful assistant. Answer in one short sentence and say what you do not know. The meeting moved to 14:30 on
Thursday, so please tell everybody who wants to come, and bring the figures for March (they were about 12.5 % higher).
def moving_average(values: list[float], size: int = 5) -> list[float]:
    \"\"\"Mean of the last `size` values at each place.\"\"\"
    return [sum(values[max(0, i - size + 1) : i + 1]) / min(i + 1, size) for i in range(len(values))]
{"name": "get_weather", "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}}
Why does the engine keep its cache warm? Because computing the same prompt twice is a waste of time and power.
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
