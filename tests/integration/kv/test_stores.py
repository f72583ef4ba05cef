import pytest
from roundhouse_kv.catalogue_store import CatalogueStore
from roundhouse_kv.demand_store import DemandStore
from roundhouse_kv.errors import StaleTerm, WireError
from roundhouse_kv.kv_store import LOG_KEPT_MS, LOG_TTL_S, KvLogReader, KvLogWriter, read_snapshots
from roundhouse_kv.kv_wire import KvSnapshot, as_keys
from roundhouse_kv.lease_store import LEASE_TTL_S, LeaseStore
from roundhouse_kv.names import Installation
from roundhouse_kv.records import Demand, GatewayBeat, Profile, ServiceEntry, TextRules
from roundhouse_kv.redis_link import RedisLink

from tests.integration.kv.harness import INSTALLATION, Agent, eventually_async, service, uid

pytestmark = pytest.mark.integration


def entry(name: str, *served: str) -> ServiceEntry:
    return ServiceEntry(namespace="ns", name=name, uid=name, served_names=served)


@pytest.fixture
def catalogue(link: RedisLink) -> CatalogueStore:
    return CatalogueStore(link, INSTALLATION)


async def test_there_is_no_catalogue_at_first(catalogue: CatalogueStore) -> None:
    assert await catalogue.stamp() is None
    assert await catalogue.read() is None


async def test_a_catalogue_is_read_as_it_was_published(catalogue: CatalogueStore) -> None:
    term = await catalogue.take_term()
    services = {"ns/a": entry("a", "a", "ä"), "ns/b": entry("b", "b")}
    assert await catalogue.publish(term, services) == 1
    read = await catalogue.read()
    assert read is not None
    assert read.services == services
    assert read.stamp == await catalogue.stamp() == (1, 1)


async def test_only_differences_make_a_new_version_and_a_message(catalogue: CatalogueStore, link: RedisLink) -> None:
    pubsub = link.client.pubsub()
    await pubsub.subscribe(INSTALLATION.catalogue_channel)
    term = await catalogue.take_term()
    services = {"ns/a": entry("a", "a"), "ns/b": entry("b", "b")}
    assert await catalogue.publish(term, services) == 1
    assert await catalogue.publish(term, services) == 1
    assert await catalogue.publish(term, {"ns/b": entry("b", "c")}) == 2
    assert await catalogue.publish(term, {}) == 3
    read = await catalogue.read()
    assert read is not None
    assert read.services == {}
    said = []
    while (message := await pubsub.get_message(timeout=0.2)) is not None:
        if message["type"] == "message":
            said.append(message["data"])
    await pubsub.aclose()  # type: ignore[no-untyped-call]
    assert said == [b"1:1", b"1:2", b"1:3"]


async def test_a_writer_with_an_older_term_is_refused(link: RedisLink) -> None:
    old, new = CatalogueStore(link, INSTALLATION), CatalogueStore(link, INSTALLATION)
    old_term = await old.take_term()
    await old.publish(old_term, {"ns/a": entry("a")})
    new_term = await new.take_term()
    assert new_term > old_term
    with pytest.raises(StaleTerm, match=f"term {new_term}"):
        await old.publish(old_term, {"ns/b": entry("b")})
    assert await new.publish(new_term, {"ns/a": entry("a")}) == 2
    assert await new.stamp() == (new_term, 2)
    with pytest.raises(StaleTerm):
        await old.publish(old_term, {})


async def test_after_redis_was_emptied_the_same_leader_publishes_under_its_term(
    catalogue: CatalogueStore, link: RedisLink
) -> None:
    for _ in range(4):
        term = await catalogue.take_term()
    assert await catalogue.publish(term, {"ns/a": entry("a")}) == 1
    await link.ask(link.client.flushall())
    assert await catalogue.publish(term, {"ns/a": entry("a")}) == 2
    assert await catalogue.stamp() == (term, 2)
    assert await CatalogueStore(link, INSTALLATION).take_term() == term + 1


async def test_entries_that_cannot_be_read_are_named_and_the_rest_is_read(
    catalogue: CatalogueStore, link: RedisLink
) -> None:
    term = await catalogue.take_term()
    await catalogue.publish(term, {"ns/a": entry("a")})
    await link.ask(link.client.hset(INSTALLATION.catalogue, "ns/new", b'{"v":2}'))
    read = await catalogue.read()
    assert read is not None
    assert list(read.services) == ["ns/a"]
    assert read.unreadable == ("ns/new",)


@pytest.mark.parametrize("field", [("v", "2"), ("term", "x")])
async def test_a_catalogue_of_another_version_is_refused(
    catalogue: CatalogueStore, link: RedisLink, field: tuple[str, str]
) -> None:
    await catalogue.publish(await catalogue.take_term(), {})
    await link.ask(link.client.hset(INSTALLATION.catalogue, *field))
    with pytest.raises(WireError, match="catalogue"):
        await catalogue.read()


async def test_leases_are_kept_for_five_seconds_and_announced_on_demand(link: RedisLink) -> None:
    keys = service()
    store = LeaseStore(link, keys)
    pubsub = link.client.pubsub()
    await pubsub.subscribe(keys.lease_channel)
    agent = Agent(link, keys)
    await store.write(agent.lease, announce=False)
    agent.seq = 5
    await store.write(agent.lease, announce=True)
    assert await store.read([agent.replica_uid, "missing"]) == {agent.replica_uid: agent.lease}
    assert 0 < await link.client.pttl(keys.lease(agent.replica_uid)) <= LEASE_TTL_S * 1000
    said = []
    while (message := await pubsub.get_message(timeout=0.2)) is not None:
        said.append(message["type"])
    await pubsub.aclose()  # type: ignore[no-untyped-call]
    assert said.count("message") == 1
    await store.remove(agent.replica_uid)
    assert await store.read([agent.replica_uid]) == {}
    assert await store.read([]) == {}


async def test_leases_that_cannot_be_read_are_left_out(link: RedisLink) -> None:
    keys = service()
    await link.ask(link.client.set(keys.lease("r"), b'{"v":9}'))
    assert await LeaseStore(link, keys).read(["r"]) == {}


async def test_a_profile_is_kept_under_its_digest(link: RedisLink) -> None:
    store = LeaseStore(link, service())
    profile = Profile(text=TextRules(alphabet="byteLevel"), chat_template="x", exact=True)
    assert not await store.touch_profile(profile.digest)
    assert await store.read_profile(profile.digest) is None
    digest = await store.write_profile(profile)
    assert digest == profile.digest
    assert await store.read_profile(digest) == profile
    assert await store.touch_profile(digest)


async def test_a_purge_takes_this_service_and_no_other(link: RedisLink) -> None:
    installation = Installation("a*b?[c]")
    mine, other = installation.service("ns", "x"), installation.service("ns", "x2")
    lookalike = Installation("aXXb1c").service("ns", "x")
    for keys in (mine, other, lookalike):
        agent = Agent(link, keys)
        await agent.say([1])
        await agent.snapshot()
        await agent.beat()
        await agent.leases.write_profile(Profile(text=None))
    assert await LeaseStore(link, mine).purge() == 4
    assert await LeaseStore(link, mine).purge() == 0
    assert await link.client.dbsize() == 8


async def test_demand_is_told_by_gateway_also_when_zero(link: RedisLink) -> None:
    store, keys = DemandStore(link, INSTALLATION), service()
    assert await store.gateways() == {}
    assert await store.read(keys) == {}
    await store.tell(GatewayBeat(incarnation=7, admin="h:1"), {keys: Demand()})
    await store.tell(GatewayBeat(incarnation=8), {})
    assert set(await store.gateways()) == {7, 8}
    assert await store.read(keys) == {7: Demand()}
    await store.tell(GatewayBeat(incarnation=8), {keys: Demand(held=3)})
    assert await store.read(keys, [8, 9]) == {8: Demand(held=3)}
    other = service("other")
    assert await store.read_all([keys, other], [7, 8]) == {keys: {7: Demand(), 8: Demand(held=3)}, other: {}}
    assert await store.read_all([keys], []) == {keys: {}}
    await link.ask(link.client.set(INSTALLATION.gateway(9), b"{"))
    assert set(await store.gateways()) == {7, 8}


async def test_the_log_is_trimmed_by_the_servers_clock(link: RedisLink) -> None:
    keys = service()
    await link.ask(link.client.config_set("stream-node-max-entries", 10))
    agent = Agent(link, keys)
    now = await link.client.time()
    long_ago = now[0] * 1000 - LOG_KEPT_MS - 10_000
    for n in range(50):
        await link.ask(link.client.xadd(keys.kv_log, {b"b": b"x"}, id=f"{long_ago}-{n + 1}"))
    await agent.say([1])
    await agent.say([2])
    assert await link.client.xlen(keys.kv_log) < 20
    assert 0 < await link.client.ttl(keys.kv_log) <= LOG_TTL_S


async def test_snapshots_are_kept_and_touched(link: RedisLink) -> None:
    keys = service()
    agent = Agent(link, keys)
    assert not await agent.writer.touch(str(agent.pod))
    await agent.say([1, 2])
    await agent.snapshot()
    assert await agent.writer.touch(str(agent.pod))
    await link.ask(link.client.set(keys.kv_snapshot(str(uid(1))), b"broken"))
    foreign = KvSnapshot(uid(3), 1, 1, 1, 0, 0, as_keys([1]))
    await KvLogWriter(link, keys).write_snapshot(foreign)
    await link.ask(link.client.rename(keys.kv_snapshot(str(uid(3))), keys.kv_snapshot(str(uid(2)))))
    found = await read_snapshots(link, keys, [agent.pod, uid(1), uid(2), uid(4)])
    assert list(found) == [agent.pod]
    assert found[agent.pod].keys.tolist() == [1, 2]


async def test_a_reader_gets_every_batch_once_and_skips_what_it_cannot_read(link: RedisLink) -> None:
    keys, other = service(), service("other")
    agent, second = Agent(link, keys), Agent(link, other)
    reader = KvLogReader(link, block_s=0.05)
    reader.positions = {keys: (0, 0), other: (0, 0)}
    assert await reader.read() == {}
    await agent.say([1])
    await link.ask(link.client.xadd(keys.kv_log, {b"b": b"junk"}))
    await link.ask(link.client.xadd(keys.kv_log, {b"other": b"field"}))
    await agent.say([2])
    await second.say([3])
    found = await reader.read()
    assert [batch.seq for batch in found[keys]] == [1, 2]
    assert [batch.seq for batch in found[other]] == [1]
    assert await reader.read() == {}
    assert [[batch.seq for batch in part] async for part in reader.replay(keys, (0, 0))] == [[1, 2]]
    assert [part async for part in reader.replay(keys, reader.positions[keys])] == []
    await link.ask(link.client.delete(keys.kv_log))
    assert [part async for part in reader.replay(keys, (0, 0))] == []
    reader.close()


async def test_a_reader_notices_when_the_log_is_not_the_one_it_read(link: RedisLink) -> None:
    keys = service()
    agent = Agent(link, keys)
    reader = KvLogReader(link, block_s=0.05)
    reader.positions = {keys: (0, 0)}
    assert await reader.check(keys)
    await agent.say([1])
    assert await reader.check(keys)
    await reader.read()
    assert await reader.check(keys)
    await agent.say([2])
    assert await reader.check(keys)
    await agent.say([3])
    await link.ask(link.client.xtrim(keys.kv_log, maxlen=1, approximate=False))
    assert not await reader.check(keys), "trimmed past the position"
    assert reader.positions[keys] > (0, 0)
    await link.ask(link.client.delete(keys.kv_log))
    await link.ask(link.client.xadd(keys.kv_log, {b"b": b"x"}, id="5-1"))
    assert not await reader.check(keys), "ids have gone backwards"
    assert reader.positions[keys] == (0, 0)
    reader.close()


async def test_demand_of_a_gateway_that_is_gone_expires(link: RedisLink) -> None:
    store, keys = DemandStore(link, INSTALLATION), service()
    await store.tell(GatewayBeat(incarnation=7), {keys: Demand(held=1)})
    await link.ask(link.client.pexpire(keys.demand(7), 50))

    async def gone() -> bool:
        return await store.read(keys, [7]) == {}

    await eventually_async(gone)
