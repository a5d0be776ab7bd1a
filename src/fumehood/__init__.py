"""Fumehood runs what agents write: untrusted code in locked-down containers, with results that can be checked.

The names exported here are the SDK's public surface; everything else may move between releases. They are loaded when
they are first asked for: whoever only wants the version, or the command line, does not wait for a client of NATS.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fumehood.sdk.task import Continue, Pause, SyncTask, Task, TaskFailed
    from fumehood.sdk.worker import Worker

__version__ = version("fumehood")

__all__ = ["Continue", "Pause", "SyncTask", "Task", "TaskFailed", "Worker", "__version__"]

_HOMES = {
    "Continue": "fumehood.sdk.task",
    "Pause": "fumehood.sdk.task",
    "SyncTask": "fumehood.sdk.task",
    "Task": "fumehood.sdk.task",
    "TaskFailed": "fumehood.sdk.task",
    "Worker": "fumehood.sdk.worker",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
