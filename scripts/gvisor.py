"""How every engine of ours calls gVisor."""

from __future__ import annotations

# network=none: sandboxes have no network of their own. oci-seccomp: without it gVisor ignores the seccomp profile that
# the driver sends.
RUNSC_ARGS = ["--network=none", "--oci-seccomp"]

# Quicker than ptrace; versions before 2023 do not know it. Neither needs KVM.
SYSTRAP = "--platform=systrap"
