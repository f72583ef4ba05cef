"""``roundhouse-operator`` runs on a cluster; ``roundhouse-operator render-crds DIR`` writes the definitions."""

import logging
import os
import sys

import uvloop

from roundhouse_operator.api.crds import write_crds
from roundhouse_operator.cluster import ClusterError
from roundhouse_operator.errors import OperatorError
from roundhouse_operator.logs import set_up_logs
from roundhouse_operator.options import crd_folder, parse_options

log = logging.getLogger("roundhouse_operator")


def main() -> None:
    arguments = sys.argv[1:]
    folder = crd_folder(arguments)
    if folder is not None:
        set_up_logs("INFO")
        for path in write_crds(folder):
            log.info("crd_written", extra={"path": str(path)})
        return
    try:
        options = parse_options(arguments, os.environ)
        set_up_logs(options.log_level)
        from roundhouse_operator.operator_process import OperatorProcess

        sys.exit(uvloop.run(OperatorProcess(options).run()))
    except (OperatorError, ClusterError) as error:
        sys.exit(f"roundhouse-operator: {error}")


if __name__ == "__main__":
    main()
