"""One sample of everything that crosses a process boundary by Redis, for the golden bytes and for fuzzing."""

from typing import Final
from uuid import UUID

from roundhouse_kv.books_wire import BookEntry, BookMessage, BookOp, Kind
from roundhouse_kv.kv_wire import KvBatch, KvSnapshot, Op, Section, as_keys
from roundhouse_kv.records import (
    AddedToken,
    Demand,
    GatewayBeat,
    Lease,
    Member,
    Profile,
    Progress,
    Record,
    ServiceEntry,
    TextRules,
)

POD: Final = UUID("00112233-4455-6677-8899-aabbccddeeff")
KEYS: Final = (1, 0x0123456789ABCDEF, 2**64 - 1)

RECORDS: Final[dict[str, Record]] = {
    "lease-least": Lease(replica="r", replica_uid="u", pod_uid=str(POD), epoch=1, source=2, state="starting"),
    "lease-full": Lease(
        replica="llama-ab12c",
        replica_uid="11111111-2222-3333-4444-555555555555",
        pod_uid=str(POD),
        epoch=1_790_000_000_123,
        source=2**64 - 1,
        state="draining",
        remaining_ms=30_000,
        hung=True,
        message="Modell läuft leer",
        profile="0" * 32,
        progress=Progress(phase="fetch", done=10, total=20),
        waiting=3,
        running=4,
        kv_used=0.25,
        kv_tokens=120_000,
        block_size=16,
        adapters=("lora-a", "lora-b"),
        stack={"engine": "torch", "dtype": "bf16"},
        kv_seq=77,
        key_count=3,
        key_xor=2**64 - 2,
        agent_version="0.1.0",
    ),
    "profile-least": Profile(text=None, reason="WordPiece model"),
    "profile-full": Profile(
        text=TextRules(
            alphabet="metaspace",
            normalizers=("NFC", "Prepend: "),
            prefix_space="first",
            bos="<s>",
            added_tokens=(AddedToken(content="<s>", special=True, lstrip=True, rstrip=True, normalized=True),),
        ),
        chat_template="{{ messages }}",
        content_format="openai",
        message_rules="vllm-1",
        variables={"eos_token": "</s>", "bos_token": "<s>"},
        exact=True,
        reason="",
        continuation=True,
        parameters=8_000_000_000,
        layers=32,
        hidden_size=4096,
        kv_bytes_per_token=131_072,
        max_model_len=131_072,
        tokens_per_ascii_byte=0.225,
        tokens_per_other_byte=0.5,
    ),
    "service-entry": ServiceEntry(
        namespace="team-a",
        name="llama",
        uid="99999999-0000-0000-0000-000000000000",
        served_names=("llama", "llama-8b"),
        members=(
            Member(
                name="llama-ab12c",
                replica_uid="11111111-2222-3333-4444-555555555555",
                pod_uid=str(POD),
                address="10.0.0.7",
                port=8000,
                agent_port=9090,
                engine="torch",
                engine_model="llama",
                role="both",
                revision="abc",
                gpu_type="h100",
                gpus=2,
                terminating=True,
            ),
        ),
        created=1_790_000_000,
    ),
    "gateway-beat": GatewayBeat(incarnation=0x0123456789ABCDEF, admin="10.0.0.9:8081", started_ms=1_790_000_000_000),
    "demand": Demand(held=1, in_flight=2, last_request_age_ms=1500),
    "demand-idle": Demand(),
}

BATCHES: Final = {
    "batch": KvBatch(
        POD, 3, 2**63 + 1, 7, 1_790_000_000_000, (Section(Op.ADD, as_keys(KEYS)), Section(Op.REMOVE, as_keys([5]), 1))
    ),
    "batch-clear": KvBatch(POD, 3, 4, 8, 9, (), clear=True),
}

SNAPSHOTS: Final = {
    "snapshot": KvSnapshot(POD, 3, 4, 7, 1_790_000_000_000, 2, as_keys(KEYS)),
    "snapshot-empty": KvSnapshot(POD, 3, 4, 0, 0, 0, as_keys([])),
}

MESSAGES: Final = {
    "delta": BookMessage(
        Kind.DELTA,
        0x0123456789ABCDEF,
        5,
        (
            BookEntry(
                BookOp.PICK, 2**63, POD, 3, age_us=12, streams=True, priority=-5, prefill_us=250_000,
                context_tokens=4096, expected=KEYS,
            ),
            BookEntry(
                BookOp.FIRST, 2**63 + 1, POD, 3, age_us=300_000, streams=False, prefill_us=1, context_tokens=10,
                uncached_tokens=4000, cached_tokens=96, busy_us=245_000,
            ),
            BookEntry(BookOp.END, 2**63 + 2, POD, 3),
        ),
    ),
    "table": BookMessage(Kind.TABLE, 1, 6),
    "ask": BookMessage(Kind.ASK, 1, 0),
}  # fmt: skip
