"""`oa.sandbox_run.v1` on this machine's sandboxes: commands over a repository, and what they gave by its hashes."""

from fumehood.node.jobs.sandbox.executor import SandboxExecutor
from fumehood.node.jobs.sandbox.options import SandboxJobOptions

__all__ = ["SandboxExecutor", "SandboxJobOptions"]
