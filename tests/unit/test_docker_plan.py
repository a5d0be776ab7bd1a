"""The floor of hardening, pinned: loosening any of this must be a decision that somebody sees in a diff."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fumehood.errors import SandboxStartError
from fumehood.sandbox.docker import seccomp
from fumehood.sandbox.docker.plan import Plan, bounded_volumes, container_body, observe
from fumehood.sandbox.spec import SANDBOX_USER, Limits, Network

PLAN = Plan(
    image="127.0.0.1:5055/a@sha256:" + "0" * 64,
    runtime="runc",
    warden=Path("/state/warden/fumehood-warden-1"),
    limits=Limits(),
    user=SANDBOX_USER,
    network=Network.NONE,
    read_only_root=True,
    labels={"fumehood.node": "n"},
    volumes=("/data",),
)
DANGEROUS = frozenset(
    {
        "acct",
        "add_key",
        "adjtimex",
        "bpf",
        "chroot",
        "clock_adjtime",
        "clock_settime",
        "clone",
        "clone3",
        "delete_module",
        "fanotify_init",
        "finit_module",
        "fsconfig",
        "fsmount",
        "fsopen",
        "fspick",
        "init_module",
        "io_uring_enter",
        "io_uring_register",
        "io_uring_setup",
        "ioperm",
        "iopl",
        "kcmp",
        "kexec_file_load",
        "kexec_load",
        "keyctl",
        "lookup_dcookie",
        "migrate_pages",
        "modify_ldt",
        "mount",
        "mount_setattr",
        "move_mount",
        "move_pages",
        "name_to_handle_at",
        "nfsservctl",
        "open_by_handle_at",
        "open_tree",
        "perf_event_open",
        "personality",
        "pidfd_getfd",
        "pivot_root",
        "process_vm_readv",
        "process_vm_writev",
        "ptrace",
        "quotactl",
        "reboot",
        "request_key",
        "setdomainname",
        "sethostname",
        "setns",
        "settimeofday",
        "socket",
        "swapoff",
        "swapon",
        "sysfs",
        "syslog",
        "umount",
        "umount2",
        "unshare",
        "uselib",
        "userfaultfd",
        "ustat",
        "vhangup",
    }
)


@pytest.fixture
def body() -> dict[str, Any]:
    return container_body(PLAN)


def test_the_floor_of_hardening(body: dict[str, Any]) -> None:
    host = body["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert host["CapAdd"] == ["KILL", "SETGID", "SETPCAP", "SETUID"]
    assert host["SecurityOpt"][0] == "no-new-privileges"
    assert host["SecurityOpt"][1] == "seccomp=" + seccomp.profile("runc")
    assert host["Privileged"] is False
    assert host["ReadonlyRootfs"] is True
    assert host["NetworkMode"] == "none"
    assert host["Memory"] == host["MemorySwap"] == 512 * 1024 * 1024
    assert host["PidsLimit"] == 256
    assert (host["CpuQuota"], host["CpuPeriod"]) == (100_000, 100_000)
    assert {limit["Name"]: limit["Hard"] for limit in host["Ulimits"]} == {
        "nofile": 1024,
        "fsize": 256 * 1024 * 1024,
        "core": 0,
    }
    assert host["LogConfig"] == {"Type": "none"}
    assert host["IpcMode"] == "private"
    assert host["ShmSize"] == 16 * 1024 * 1024
    assert "Devices" not in host
    assert "Binds" not in host
    assert "PidMode" not in host


def test_only_the_warden_is_mounted_and_only_for_reading(body: dict[str, Any]) -> None:
    (mount,) = body["HostConfig"]["Mounts"]
    assert mount["ReadOnly"] is True
    assert mount["Target"] == "/.fumehood/warden"
    assert body["Entrypoint"] == ["/.fumehood/warden"]
    assert body["Cmd"] == []


def test_every_writable_place_is_bounded_and_executable_but_not_suid(body: dict[str, Any]) -> None:
    mounts = body["HostConfig"]["Tmpfs"]
    assert set(mounts) == {"/workspace", "/tmp", "/data"}
    for options in mounts.values():
        assert {"rw", "exec", "nosuid", "nodev"} <= set(options.split(","))
        assert "size=" in options
        assert "nr_inodes=" in options


def test_an_images_health_check_and_volumes_do_not_escape_the_bounds(body: dict[str, Any]) -> None:
    assert body["Healthcheck"] == {"Test": ["NONE"]}
    assert "/data" in body["HostConfig"]["Tmpfs"]


@pytest.mark.parametrize("runtime", ["runc", "runsc"])
def test_dangerous_calls_are_not_simply_allowed(runtime: str) -> None:
    rules = json.loads(seccomp.profile(runtime))
    allowed = {
        name
        for rule in rules["syscalls"]
        if rule["action"] == "SCMP_ACT_ALLOW" and not rule.get("args")
        for name in rule["names"]
    }
    own_kernel = {"clone3"} if runtime == "runsc" else set()
    assert allowed & DANGEROUS == own_kernel
    assert rules["defaultAction"] == "SCMP_ACT_ERRNO"


@pytest.mark.parametrize(
    ("declared", "bounded"),
    [
        (["/data"], ("/data",)),
        (["/data/", "/data", "/x/../data"], ("/data",)),
        (["/workspace/", "/tmp", "/etc/../srv"], ("/srv",)),
    ],
)
def test_an_images_volumes_are_named_as_the_engine_will_see_them(declared: list[str], bounded: tuple[str, ...]) -> None:
    assert bounded_volumes(declared) == bounded


@pytest.mark.parametrize("path", ["/", "relative", "/proc", "/proc/sys", "/.fumehood/x", "/dev/", "//x", "/a/../sys"])
def test_a_volume_over_what_a_sandbox_stands_on_is_refused(path: str) -> None:
    with pytest.raises(SandboxStartError):
        bounded_volumes([path])


@pytest.mark.parametrize("millis", [10, 1500, 8000, 1_024_000])
def test_processors_are_a_quota_of_a_period_and_not_bounded_by_what_the_machine_has(millis: int) -> None:
    host = container_body(replace(PLAN, limits=Limits(cpu_millis=millis)))["HostConfig"]
    assert host["CpuQuota"] == millis * 100
    assert host["CpuQuota"] >= 1000, "the kernel takes no less"
    assert "NanoCpus" not in host
    assert observe({"HostConfig": host, "Image": "i"}).cpu_millis == millis


def test_gvisor_gets_room_for_its_own_threads() -> None:
    body = container_body(replace(PLAN, runtime="runsc"))
    assert body["HostConfig"]["PidsLimit"] == 256 + 128


def test_what_is_observed_is_what_the_engine_reports() -> None:
    body = container_body(PLAN)
    seen = observe({"HostConfig": body["HostConfig"], "Image": "sha256:1"})
    assert (seen.seccomp, seen.no_new_privileges, seen.swap_bytes, seen.cpu_millis) == ("fumehood", True, 0, 1000)
    loose = observe({"HostConfig": {"Runtime": "runc", "NetworkMode": "host", "SecurityOpt": None}, "Image": "i"})
    assert (loose.seccomp, loose.no_new_privileges, loose.network) == ("engine-default", False, "host")
