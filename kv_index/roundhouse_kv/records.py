"""JSON records in Redis: lease, profile, catalogue entry, gateway heartbeat, demand.

Field names are camelCase on the wire. Readers ignore unknown fields and accept major version ``v`` of today and of
yesterday (N and N−1); anything else is a `WireError`.
"""

from typing import Final, Literal, TypeVar

import msgspec
import xxhash

from roundhouse_kv.errors import WireError

RECORD_VERSION: Final = 1
READABLE_VERSIONS: Final = frozenset({RECORD_VERSION - 1, RECORD_VERSION})

ReplicaState = Literal["starting", "ready", "draining", "drained", "stopped"]


class Record(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all records."""

    v: int = RECORD_VERSION


class Progress(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a starting replica is doing. ``done`` and ``total`` are bytes; total 0 means unknown."""

    phase: Literal["fetch", "convert", "load", "warmup"]
    done: int = 0
    total: int = 0


class Lease(Record, frozen=True, kw_only=True):
    """What an agent says about its replica, once a second and at once on a change.

    ``epoch`` numbers the engine's start, ``source`` the agent's. ``remaining_ms`` counts only while draining.
    ``kv_used`` is the share of KV blocks in use (0–1), ``kv_tokens`` the cache's size in tokens. ``kv_seq``,
    ``key_count`` and ``key_xor`` sum up what the KV log of this source has said so far.
    """

    replica: str
    replica_uid: str
    pod_uid: str
    epoch: int
    source: int
    state: ReplicaState
    remaining_ms: int = 0
    hung: bool = False
    message: str = ""
    profile: str = ""
    progress: Progress | None = None
    waiting: int | None = None
    running: int | None = None
    kv_used: float | None = None
    kv_tokens: int = 0
    block_size: int = 0
    adapters: tuple[str, ...] = ()
    stack: dict[str, str] = {}
    kv_seq: int = 0
    key_count: int = 0
    key_xor: int = 0
    agent_version: str = ""


class AddedToken(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A token that the tokenizer cuts out of text before anything else; a ``normalized`` one after normalisation."""

    content: str
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


class TextRules(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How this tokenizer turns text into the bytes that its tokens spell.

    ``alphabet``: ``byteLevel`` (tokens spell the text's UTF-8 bytes) or ``metaspace`` (▁ stands for a space).
    ``normalizers``: of NFC, NFKC, NFD, NFKD, Lowercase, Prepend:<text>; applied in order between added tokens.
    ``prefix_space``: a space is put before each piece (``always``), the first one (``first``) or none (``never``).
    ``bos``: what encode(add_special_tokens=True) puts before a completion prompt.
    """

    alphabet: Literal["byteLevel", "metaspace"]
    normalizers: tuple[str, ...] = ()
    prefix_space: Literal["always", "first", "never"] = "never"
    bos: str = ""
    added_tokens: tuple[AddedToken, ...] = ()


class Profile(Record, frozen=True, kw_only=True):
    """What a gateway must know of an engine's model to render prompts and predict cost. Immutable, named by digest.

    ``message_rules`` names the normalisation of messages before the template (``vllm-1``). ``exact`` False means
    history-only routing, for the ``reason`` given. ``variables`` are the template's special-token variables.
    ``tokens_per_ascii_byte`` and ``tokens_per_other_byte``: the tokenizer's on sample text, 0 when not known.
    """

    text: TextRules | None
    chat_template: str = ""
    content_format: Literal["string", "openai"] = "string"
    message_rules: str = "vllm-1"
    variables: dict[str, str] = {}
    exact: bool = False
    reason: str = ""
    continuation: bool = False
    parameters: int = 0
    layers: int = 0
    hidden_size: int = 0
    kv_bytes_per_token: int = 0
    max_model_len: int = 0
    tokens_per_ascii_byte: float = 0.0
    tokens_per_other_byte: float = 0.0

    @property
    def digest(self) -> str:
        """xxh3_128 of the record's own JSON, 32 hex digits."""
        return xxhash.xxh3_128_hexdigest(encode_record(self))


class Member(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One EngineReplica that gateways may send to. ``gpus``: how many it has, 0 when it has none or it is not known."""

    name: str
    replica_uid: str
    pod_uid: str
    address: str
    port: int
    agent_port: int
    engine: str
    engine_model: str
    role: Literal["both", "prefill", "decode"] = "both"
    revision: str = ""
    gpu_type: str = ""
    gpus: int = 0
    terminating: bool = False


class ServiceEntry(Record, frozen=True, kw_only=True):
    """One InferenceService in the catalogue. ``served_names[0]`` is the model id shown to clients."""

    namespace: str
    name: str
    uid: str
    served_names: tuple[str, ...]
    members: tuple[Member, ...] = ()
    created: int = 0

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class GatewayBeat(Record, frozen=True, kw_only=True):
    """A gateway's heartbeat. ``admin`` is host:port of its admin API."""

    incarnation: int
    admin: str = ""
    started_ms: int = 0


class Demand(Record, frozen=True, kw_only=True):
    """What one gateway holds and runs for one service; written each second, also when zero."""

    held: int = 0
    in_flight: int = 0
    last_request_age_ms: int | None = None


R = TypeVar("R", bound=Record)


def encode_record(record: Record) -> bytes:
    """Compact JSON, fields in declaration order, map keys sorted, so that equal records have equal bytes."""
    return msgspec.json.encode(record, order="deterministic")


def decode_record(kind: type[R], data: bytes) -> R:
    """Read a record.

    Raises:
        WireError: not JSON, a field of the wrong type, or a version that this reader does not know.
    """
    try:
        record = msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"{kind.__name__}: {error}") from error
    if record.v not in READABLE_VERSIONS:
        raise WireError(f"{kind.__name__}: version {record.v}, this reader knows {sorted(READABLE_VERSIONS)}")
    return record
