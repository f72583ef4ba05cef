import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.integration.local.node import Node, running_node


@pytest.fixture
def home() -> Iterator[Path]:
    """Short, since Unix sockets lie below it."""
    folder = Path(tempfile.mkdtemp(prefix="rh"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def node(home: Path) -> AsyncIterator[Node]:
    async with running_node(home) as running:
        yield running
