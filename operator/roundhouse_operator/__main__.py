"""``roundhouse-operator render-crds DIR``."""

import argparse
import logging
import sys
from pathlib import Path

from roundhouse_operator.api.crds import write_crds

log = logging.getLogger("roundhouse_operator")


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    parser = argparse.ArgumentParser(prog="roundhouse-operator")
    commands = parser.add_subparsers(dest="command", required=True)
    render = commands.add_parser("render-crds", help="write the CustomResourceDefinitions as YAML")
    render.add_argument("folder", type=Path, help="folder to write into")
    options = parser.parse_args()
    for path in write_crds(options.folder):
        log.info("crd_written path=%s", path)


if __name__ == "__main__":
    main()
