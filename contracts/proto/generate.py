"""Write the Python modules of the protocol: `python contracts/proto/generate.py`. They are committed; a test compares.

The compiler places modules by their proto's path, which would be a package beside ours; they live in `wire.console`.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).resolve().parent
PACKAGE = Path("fumehood/console/v1")
TARGET = HERE.parents[1] / "src" / "fumehood" / "wire" / "console"
_IMPORT = re.compile(r"^from fumehood\.console\.v1 import", re.MULTILINE)


def generated() -> dict[str, str]:
    """Each module's name and text."""
    sources = sorted(str(path.relative_to(HERE)) for path in (HERE / PACKAGE).glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["protoc", f"-I{HERE}", f"--python_out={folder}", f"--pyi_out={folder}", *sources]
        if protoc.main(arguments) != 0:
            raise SystemExit("the protocol cannot be compiled")
        found = sorted((Path(folder) / PACKAGE).iterdir())
        return {path.name: _IMPORT.sub("from fumehood.wire.console import", path.read_text()) for path in found}


def main() -> int:
    for name, text in generated().items():
        (TARGET / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
