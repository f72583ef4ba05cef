import pytest

from tests.unit.roundhouse_operator.world import World


@pytest.fixture
async def world() -> World:
    world = World()
    await world.add_node()
    return world
