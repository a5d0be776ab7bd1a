"""What hostile programs do, seen from inside the sandbox.

This file is sent into the sandbox whole (`python3 -c SOURCE NAME ARGUMENTS…`), so it needs nothing but the standard
library. A program that tries many doors prints one JSON object: for each door `open`, or the name of the errno that it
was refused with. None of them is gentle.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

MIB = 1024 * 1024
OPEN = "open"

SYS = {
    "ptrace": 101,
    "syslog": 103,
    "pivot_root": 155,
    "chroot": 161,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "reboot": 169,
    "sethostname": 170,
    "iopl": 172,
    "init_module": 175,
    "clock_settime": 227,
    "kexec_load": 246,
    "add_key": 248,
    "keyctl": 250,
    "unshare": 272,
    "perf_event_open": 298,
    "open_by_handle_at": 304,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "finit_module": 313,
    "bpf": 321,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "move_mount": 429,
    "fsopen": 430,
}
"""By their numbers on x86-64."""

_libc = ctypes.CDLL(None, use_errno=True)


def name_of(error: int | None) -> str:
    return errno.errorcode.get(error or 0, f"errno {error}")


def attempt(door: Callable[[], object]) -> str:
    """`open`, or why not."""
    try:
        door()
    except OSError as error:
        return name_of(error.errno)
    return OPEN


def report(doors: dict[str, Callable[[], object]]) -> None:
    print(json.dumps({name: attempt(door) for name, door in doors.items()}), flush=True)


def syscall(name: str, *arguments: int | bytes | None) -> int:
    words = [ctypes.c_long(word) if isinstance(word, int) else ctypes.c_char_p(word) for word in arguments]
    result: int = _libc.syscall(ctypes.c_long(SYS[name]), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


def in_child(door: Callable[[], object]) -> Callable[[], None]:
    """Try a door in a process of its own, since walking through it may change or end the one who does."""

    def tried() -> None:
        pid = os.fork()
        if pid == 0:
            number = 0
            try:
                door()
            except OSError as error:
                number = error.errno or 255
            os._exit(number)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            raise OSError(errno.EINTR, "killed")
        if os.WEXITSTATUS(status):
            raise OSError(os.WEXITSTATUS(status), "refused")

    return tried


def write_to(path: str, data: bytes = b"1") -> Callable[[], None]:
    def door() -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        os.write(descriptor, data)

    return door


def create(path: str) -> Callable[[], None]:
    def door() -> None:
        os.write(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600), b"mine")

    return door


def read_from(path: str) -> Callable[[], None]:
    def door() -> None:
        os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY), 16)

    return door


# --- using everything up -----------------------------------------------------------------------------------


def fork_bomb(_marker: str) -> None:
    """Fork for ever, in every process there is; whatever cannot be forked any more is tried again."""
    print("begun", flush=True)
    while True:
        with contextlib.suppress(OSError):
            os.fork()


def thread_bomb() -> None:
    count = 0
    with contextlib.suppress(RuntimeError):
        while True:
            threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
            count += 1
    print(count, flush=True)
    os._exit(0)


def hog() -> None:
    """Take memory, and use it, until somebody stops this."""
    print("begun", file=sys.stderr, flush=True)
    kept = []
    while True:
        kept.append(b"x" * (8 * MIB))


def hog_in_child(then: str) -> None:
    """A child runs out of memory. Then exit as it did, or go on as if nothing happened."""
    pid = os.fork()
    if pid == 0:
        hog()
    _, status = os.waitpid(pid, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    print(f"child killed: {killed}", flush=True)
    sys.exit(137 if then == "fail" else 0)


def fill(folder: str) -> None:
    """Write until nothing more goes in; how much went in, and why no more."""
    total, reason = 0, ""
    block = bytes(MIB)
    for number in range(4096):
        path = f"{folder}/fill-{number}"
        try:
            with Path(path).open("wb", buffering=0) as file:
                for _ in range(64):
                    total += file.write(block)
        except OSError as error:
            reason = name_of(error.errno)
            break
    print(json.dumps({"bytes": total, "reason": reason}))


def fill_inodes(folder: str, most: str) -> None:
    """Make empty files until no more can be made."""
    count, reason = 0, ""
    try:
        for count in range(int(most)):
            os.close(os.open(f"{folder}/{count}", os.O_CREAT | os.O_WRONLY, 0o600))
    except OSError as error:
        reason = name_of(error.errno)
    print(json.dumps({"files": count, "reason": reason}))


def fill_descriptors() -> None:
    count = 0
    with contextlib.suppress(OSError):
        while True:
            os.open("/dev/null", os.O_RDONLY)
            count += 1
    os.write(1, f"{count}\n".encode())
    os._exit(0)


def flood(mebibytes: str) -> None:
    """Print that much, as fast as it goes."""
    block = b"flood---" * (MIB // 8)
    for _ in range(int(mebibytes)):
        view = memoryview(block)
        while view:
            view = view[os.write(1, view) :]


# --- outliving, and not dying ------------------------------------------------------------------------------


def outlive(marker: str, then: str) -> None:
    """A child in a session of its own that ignores every signal it can, while its parent sleeps or exits at once.

    The marker is an argument of all of them: whoever looks at the machine's processes can find it.
    """
    ready_read, ready_write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1):
                signal.signal(number, signal.SIG_IGN)
            os.write(ready_write, b".")
            while True:
                signal.pause()
        os._exit(0)
    os.read(ready_read, 1)
    print(f"begun {marker}", flush=True)
    if then == "sleep":
        signal.pause()


def zombies(count: str) -> None:
    """Children that end and are never waited for, and orphans on top."""
    made = 0
    for _ in range(int(count)):
        with contextlib.suppress(OSError):
            if os.fork() == 0:
                os._exit(0)
            made += 1
    for _ in range(50):
        pid = os.fork()
        if pid == 0:
            if os.fork() == 0:
                os._exit(0)
            os._exit(0)
        os.waitpid(pid, 0)
    print(made, flush=True)


def stop_yourself() -> None:
    print("begun", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    print("went on", flush=True)
    signal.pause()


def kill_everybody() -> None:
    """Everything that may be signalled, and the warden by name."""
    doors: dict[str, Callable[[], object]] = {}
    for number in (0, signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV):
        doors[f"kill 1 {int(number)}"] = lambda number=number: os.kill(1, number)  # type: ignore[misc]
    doors["pidfd 1"] = lambda: signal.pidfd_send_signal(os.pidfd_open(1), signal.SIGKILL)
    report(doors)
    if os.fork() == 0:
        signal.pause()
    with contextlib.suppress(OSError):
        os.kill(-1, signal.SIGKILL)
    print("alive", flush=True)


# --- devices, /proc, /sys, the root ------------------------------------------------------------------------


def system_files() -> None:
    sysctl = "/proc/sys/"
    report(
        {
            "sysrq-trigger": write_to("/proc/sysrq-trigger", b"h"),
            "core_pattern": write_to(sysctl + "kernel/core_pattern", b"|/workspace/x"),
            "modprobe": write_to(sysctl + "kernel/modprobe", b"/workspace/x"),
            "hostname": write_to(sysctl + "kernel/hostname", b"owned"),
            "ip_forward": write_to(sysctl + "net/ipv4/ip_forward"),
            "drop_caches": write_to(sysctl + "vm/drop_caches"),
            "overcommit": write_to(sysctl + "vm/overcommit_memory"),
            "binfmt": write_to(sysctl + "fs/binfmt_misc/register", b":x:M::x::/workspace/x:"),
            "1/oom_score_adj": write_to("/proc/1/oom_score_adj", b"1000"),
            "1/attr": write_to("/proc/1/attr/current"),
            "1/comm": write_to("/proc/1/comm", b"owned"),
            "1/clear_refs": write_to("/proc/1/clear_refs"),
            "less oom_score_adj": write_to("/proc/self/oom_score_adj", b"-1000"),
            "kcore": read_from("/proc/kcore"),
            "kmsg": read_from("/proc/kmsg"),
            "kallsyms write": write_to("/proc/kallsyms"),
            "irq": write_to("/proc/irq/0/smp_affinity"),
            "bus": create("/proc/bus/mine"),
            "sys uevent": write_to("/sys/kernel/uevent_helper", b"/workspace/x"),
            "sys power": write_to("/sys/power/state", b"mem"),
            "sys cpu": write_to("/sys/devices/system/cpu/cpu1/online", b"0"),
            "sys module": write_to("/sys/module/kernel/parameters/panic", b"1"),
            "sys firmware": create("/sys/firmware/mine"),
            "cgroup memory": write_to("/sys/fs/cgroup/memory/memory.limit_in_bytes", b"-1"),
            "cgroup 2 memory": write_to("/sys/fs/cgroup/memory.max", b"max"),
            "cgroup pids": write_to("/sys/fs/cgroup/pids/pids.max", b"max"),
            "cgroup release_agent": write_to("/sys/fs/cgroup/memory/release_agent", b"/workspace/x"),
            "cgroup mine": lambda: os.mkdir("/sys/fs/cgroup/memory/mine"),  # noqa: PTH102
        }
    )


DEVICES = ("mem", "kmem", "port", "kmsg", "sda", "vda", "nvme0n1", "kvm", "fuse", "loop0", "mapper/control")


def devices() -> None:
    def made(path: str, kind: int, major: int, minor: int) -> Callable[[], None]:
        """A device of one's own counts as open only when it can be used: gVisor lets anybody make the file."""

        def door() -> None:
            os.mknod(path, kind | 0o666, os.makedev(major, minor))
            os.read(os.open(path, os.O_RDWR | os.O_NONBLOCK), 16)

        return door

    report(
        {
            **{
                f"read {name}": read_from(f"/dev/{name}")
                for name in ("mem", "kmem", "port", "kmsg", "sda", "vda", "kvm")
            },
            **{f"write {name}": write_to(f"/dev/{name}") for name in ("mem", "kmsg", "sda", "vda", "nvme0n1", "fuse")},
            "own disk": made("/workspace/disk", stat.S_IFBLK, 254, 0),
            "own disk in shm": made("/dev/shm/disk", stat.S_IFBLK, 8, 0),
            "own disk in dev": made("/dev/disk", stat.S_IFBLK, 8, 0),
            "own mem": made("/tmp/mem", stat.S_IFCHR, 1, 1),
            "own kmsg": made("/tmp/kmsg", stat.S_IFCHR, 1, 11),
            "own kvm": made("/tmp/kvm", stat.S_IFCHR, 10, 232),
        }
    )


def read_only_root() -> None:
    places = ("", "etc", "usr/bin", "var/tmp", "root", "home", "opt", "dev", "proc", "sys", ".fumehood")
    report(
        {
            **{f"/{place}": create(f"/{place}/mine") for place in places},
            "passwd": write_to("/etc/passwd"),
            "bash": write_to("/bin/bash"),
            "hosts": write_to("/etc/hosts"),
            "resolv.conf": write_to("/etc/resolv.conf"),
        }
    )


def warden_file() -> None:
    """The only thing of the node's that is visible in here."""
    own = "/.fumehood/warden"
    report(
        {
            "write": write_to(own),
            "truncate": lambda: os.truncate(own, 0),
            "unlink": lambda: os.unlink(own),  # noqa: PTH108
            "rename": lambda: os.rename(own, own + "2"),  # noqa: PTH104
            "replace": lambda: os.rename(_own_file(), own),  # noqa: PTH104
            "chmod": lambda: os.chmod(own, 0o777),  # noqa: PTH101
            "chown": lambda: os.chown(own, os.getuid(), os.getgid()),
            "hard link": lambda: os.link(own, "/workspace/warden"),
            "new neighbour": create("/.fumehood/other"),
            "write through /proc/1/exe": write_to("/proc/1/exe"),
        }
    )
    print(json.dumps(sorted(os.listdir("/.fumehood"))))  # noqa: PTH208


def _own_file() -> str:
    Path("/workspace/mine").write_bytes(b"#!/bin/sh\n")
    return "/workspace/mine"


# --- the kernel's doors ------------------------------------------------------------------------------------


def mounts() -> None:
    def namespace_file() -> None:
        syscall("setns", os.open("/proc/1/ns/mnt", os.O_RDONLY), 0)

    def own_namespace() -> None:
        syscall("setns", os.open("/proc/self/ns/net", os.O_RDONLY), 0)

    kinds = {"user": 0x10000000, "mnt": 0x20000, "net": 0x40000000, "pid": 0x20000000, "ipc": 0x08000000}
    kinds |= {"uts": 0x04000000, "cgroup": 0x02000000}
    doors: dict[str, Callable[[], object]] = {
        "mount tmpfs": lambda: syscall("mount", b"none", b"/workspace", b"tmpfs", 0, None),
        "mount proc": lambda: syscall("mount", b"none", b"/workspace", b"proc", 0, None),
        "mount bind": lambda: syscall("mount", b"/", b"/workspace", None, 4096, None),
        "mount device": lambda: syscall("mount", b"/dev/vda", b"/workspace", b"ext4", 0, None),
        "mount cgroup": lambda: syscall("mount", b"none", b"/workspace", b"cgroup", 0, b"memory"),
        "remount root": lambda: syscall("mount", b"none", b"/", None, 32, None),
        "remount warden": lambda: syscall("mount", b"none", b"/.fumehood/warden", None, 32 | 4096, None),
        "umount workspace": lambda: syscall("umount2", b"/workspace", 2),
        "umount proc": lambda: syscall("umount2", b"/proc", 2),
        "umount warden": lambda: syscall("umount2", b"/.fumehood/warden", 2),
        "fsopen": lambda: syscall("fsopen", b"tmpfs", 0),
        "move_mount": lambda: syscall("move_mount", -100, b"/proc", -100, b"/workspace", 0),
        "pivot_root": lambda: syscall("pivot_root", b"/workspace", b"/workspace"),
        "chroot": lambda: syscall("chroot", b"/workspace"),
        "setns of the warden": namespace_file,
        "setns of one's own": own_namespace,
        **{f"unshare {name}": lambda flag=flag: syscall("unshare", flag) for name, flag in kinds.items()},  # type: ignore[misc]
    }
    report({name: in_child(door) for name, door in doors.items()})


def kernel() -> None:
    zeros = bytes(128)
    doors: dict[str, Callable[[], object]] = {
        "reboot": lambda: syscall("reboot", -18751827, 672274793, 0x1234567, None),
        "kexec": lambda: syscall("kexec_load", 0, 0, None, 0),
        "init_module": lambda: syscall("init_module", zeros, 128, b""),
        "finit_module": lambda: syscall("finit_module", 0, b"", 0),
        "syslog": lambda: syscall("syslog", 3, bytes(4096), 4096),
        "sethostname": lambda: syscall("sethostname", b"owned", 5),
        "clock_settime": lambda: syscall("clock_settime", 0, zeros),
        "swapon": lambda: syscall("swapon", b"/workspace/x", 0),
        "iopl": lambda: syscall("iopl", 3),
        "bpf": lambda: syscall("bpf", 0, struct.pack("IIII", 2, 4, 4, 1) + zeros, 72),
        "perf": lambda: syscall("perf_event_open", struct.pack("II", 1, 128) + zeros, 0, -1, -1, 0),
        "keyctl": lambda: syscall("keyctl", 0, -3, 0),
        "add_key": lambda: syscall("add_key", b"user", b"x", b"y", 1, -3),
        "userfaultfd": lambda: syscall("userfaultfd", 1),
        "io_uring": lambda: syscall("io_uring_setup", 1, zeros),
        "open_by_handle": lambda: syscall("open_by_handle_at", 0, zeros, 0),
    }
    report({name: in_child(door) for name, door in doors.items()})


def warden_process() -> None:
    """Signalling, tracing, reading and impersonating PID 1."""
    vector = (ctypes.c_char * 64)()
    local = struct.pack("PN", ctypes.addressof(vector), 64)
    remote = struct.pack("PN", 0x400000, 64)

    def forge(number: int) -> Callable[[], None]:
        return write_to(f"/proc/1/fd/{number}", forged_exit())

    doors: dict[str, Callable[[], object]] = {
        "attach": lambda: syscall("ptrace", 16, 1, 0, 0),
        "seize": lambda: syscall("ptrace", 0x4206, 1, 0, 0),
        "vm_readv": lambda: syscall("process_vm_readv", 1, local, 1, remote, 1, 0),
        "vm_writev": lambda: syscall("process_vm_writev", 1, local, 1, remote, 1, 0),
        "read mem": read_from("/proc/1/mem"),
        "write mem": write_to("/proc/1/mem"),
        "list fd": lambda: os.listdir("/proc/1/fd"),  # noqa: PTH208
        **{f"write fd {number}": forge(number) for number in range(3)},
        "read fd 0": read_from("/proc/1/fd/0"),
        "pidfd": lambda: _pidfd_getfd(1),
        "kill": lambda: os.kill(1, 0),
        "prlimit": lambda: __import__("resource").prlimit(1, 7, (1, 1)),
        "priority": lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
        "root": lambda: os.listdir("/proc/1/root"),  # noqa: PTH208
        "cwd": lambda: os.listdir("/proc/1/cwd"),  # noqa: PTH208
    }
    report({name: in_child(door) for name, door in doors.items()})


def _pidfd_getfd(number: int) -> None:
    result = _libc.syscall(ctypes.c_long(438), os.pidfd_open(1), number, 0)
    if result < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")


def trace() -> None:
    """What a debugger does: trace a child, trace oneself, read a stranger's memory."""

    def traced_child() -> None:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        try:
            syscall("ptrace", 16, pid, 0, 0)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    report({"traceme": in_child(lambda: syscall("ptrace", 0, 0, 0, 0)), "attach": traced_child})


def root_or_not() -> None:
    print(json.dumps({"uid": os.getuid(), "capabilities": _status("CapEff"), "bounding": _status("CapBnd")}))


def _status(field: str) -> str:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return line.split()[1]
    return ""


# --- the network -------------------------------------------------------------------------------------------


def raw_sockets() -> None:
    def made(family: int, kind: int, protocol: int = 0) -> Callable[[], object]:
        return lambda: socket.socket(family, kind, protocol)

    report(
        {
            "raw icmp": made(socket.AF_INET, socket.SOCK_RAW, 1),
            "raw tcp": made(socket.AF_INET, socket.SOCK_RAW, 6),
            "raw 6": made(socket.AF_INET6, socket.SOCK_RAW, 58),
            "packet": made(17, socket.SOCK_RAW, 0x300),
            "packet dgram": made(17, socket.SOCK_DGRAM, 0x300),
            "vsock": made(40, socket.SOCK_STREAM),
            "alg": made(38, socket.SOCK_SEQPACKET),
            "bluetooth": made(31, socket.SOCK_RAW),
            "can": made(29, socket.SOCK_RAW, 1),
            "xdp": made(44, socket.SOCK_RAW),
        }
    )


def reach(*targets: str) -> None:
    """Try to reach each HOST:PORT over TCP, UDP and by name."""
    seen: dict[str, str] = {}
    for target in targets:
        host, _, port = target.rpartition(":")
        host = host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            connection.settimeout(3)
            seen[f"tcp {target}"] = _reached(lambda c=connection, h=host, p=int(port): c.connect((h, p)))  # type: ignore[misc]
        with socket.socket(family, socket.SOCK_DGRAM) as connection:
            connection.settimeout(1)
            seen[f"udp {target}"] = _reached(lambda c=connection, h=host, p=int(port): _ask(c, h, p))  # type: ignore[misc]
    for name in ("registry.example.com", "metadata.google.internal", "host.docker.internal", "example.com"):
        seen[f"dns {name}"] = _reached(lambda n=name: socket.getaddrinfo(n, 80))  # type: ignore[misc]
    seen["interfaces"] = ",".join(name for _, name in socket.if_nameindex())
    print(json.dumps(seen))


def _reached(door: Callable[[], object]) -> str:
    try:
        door()
    except (OSError, UnicodeError) as error:
        return type(error).__name__
    return OPEN


def _ask(connection: socket.socket, host: str, port: int) -> None:
    connection.connect((host, port))
    connection.send(b"hello")
    connection.recv(16)


# --- secrets -----------------------------------------------------------------------------------------------


def secrets(*needles: str) -> None:
    """Look everywhere for these words: all environments, command lines, mounts, memory maps and small files."""
    words = [needle.encode() for needle in needles]
    found = sorted({f"{place}: {word.decode()}" for place, text in _everything() for word in words if word in text})
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    print(json.dumps({"found": found, "mounts": mounted, "environ": dict(os.environ)}))


def _everything() -> Iterator[tuple[str, bytes]]:
    me = str(os.getpid())
    for folder in sorted(name for name in os.listdir("/proc") if name.isdigit()):  # noqa: PTH208
        for name in ("environ", "cmdline", "mountinfo", "maps", "cgroup", "status"):
            if not (folder == me and name == "cmdline"):  # our own holds the needles
                yield f"/proc/{folder}/{name}", _head(f"/proc/{folder}/{name}")
    for name in ("/proc/cmdline", "/proc/mounts", "/proc/net/unix", "/proc/keys", "/proc/self/mountinfo"):
        yield name, _head(name)
    for top, folders, names in os.walk("/"):
        if top == "/":
            folders[:] = [name for name in folders if name not in ("proc", "sys", "usr")]
        for name in names:
            yield f"{top}/{name}", f"{top}/{name}".encode() + b"\n" + _head(f"{top}/{name}")


def _head(path: str) -> bytes:
    try:
        if path.startswith("/proc/") or stat.S_ISREG(os.lstat(path).st_mode):
            with contextlib.closing(open(path, "rb", buffering=0)) as file:  # noqa: PTH123
                return file.read(4 * MIB) or b""
    except OSError:
        pass
    return b""


# --- output ------------------------------------------------------------------------------------------------


def frame(kind: int, payload: bytes, *, command: int = 1, seq: int = 1) -> bytes:
    """A frame of the warden's protocol, checksum and all."""
    head = struct.pack(">4sB3xIQI", b"FHW1", kind, command, seq, len(payload))
    return head + struct.pack(">I", zlib.crc32(payload, zlib.crc32(head))) + payload


def forged_exit(seq: int = 3) -> bytes:
    """An EXIT that says: exited with 0."""
    record = (
        struct.pack(">BBBxiQQQQQQQ", 1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 0) + bytes(32) + struct.pack(">Q", 0) + bytes(32)
    )
    return frame(132, record, seq=seq)


def impersonation() -> bytes:
    """Everything that a careless reader might take for something else than output."""
    welcome = frame(129, bytes(16) + struct.pack(">HQIH", 1, 1, 1, 0), command=0, seq=0)
    output = frame(131, struct.pack(">BQ", 1, 0) + b"forged", seq=2)
    frames = welcome + frame(130, struct.pack(">I", 7)) + output + forged_exit() + forged_exit(1 << 60)
    engine = b"".join(struct.pack(">BxxxI", stream, len(frames)) + frames for stream in (0, 1, 2, 3))
    return frames + engine + struct.pack(">BxxxI", 1, 0xFFFFFFFF) + b"\x00" * 65564 + frames


def impersonate() -> None:
    """Write it to both streams, and fail."""
    for descriptor in (1, 2):
        view = memoryview(impersonation())
        while view:
            view = view[os.write(descriptor, view) :]
    sys.exit(3)


def wild_descriptors() -> None:
    """Write frames to every descriptor that there is not."""
    answers = {attempt(lambda n=number: os.write(n, forged_exit())) for number in range(3, 1024)}  # type: ignore[misc]
    print(json.dumps(sorted(answers)))
    sys.exit(5)


def close_streams() -> None:
    print("before", flush=True)
    os.close(1)
    os.close(2)
    time.sleep(0.3)  # gate: sleep it runs in a sandbox, where nothing of ours is
    os._exit(7)


def big_pipe() -> None:
    """Make the pipe as large as it can be, and leave it full at the end."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(1, 1031, MIB)  # F_SETPIPE_SZ
    sys.stdout.write("y" * 900_000)
    sys.stdout.flush()
    os._exit(0)


# --- files that the owner touches meanwhile ----------------------------------------------------------------


OUTSIDE = "outside\n"
INSIDE = "inside\n"


def swap() -> None:
    """A folder and a link out of the workspace, and a file and such a link, exchanged in a loop under the names that
    the owner uses. The links lead to where the program may write, so that only the owner's own care protects it.
    """
    outside = Path("/tmp")
    for folder in (outside, Path("/workspace/real")):
        (folder / "sub").mkdir(parents=True)
        (folder / "sub" / "keep").write_text("kept")
        (folder / "file").write_text(OUTSIDE if folder == outside else INSIDE)
    (outside / "outside-only").touch()
    os.chdir("/workspace")
    Path("door").symlink_to("/tmp")
    Path("leaf").symlink_to("/tmp/file")
    Path("leaf-file").write_text(INSIDE)
    print("begun", flush=True)
    while True:
        _exchange("door", "real")
        _exchange("leaf", "leaf-file")


def _exchange(one: str, other: str) -> None:
    """In one step where the kernel can do it, else in three."""
    with contextlib.suppress(OSError):
        if _libc.syscall(ctypes.c_long(316), -100, one.encode(), -100, other.encode(), 2):
            os.rename(one, "aside")  # noqa: PTH104
            os.rename(other, one)  # noqa: PTH104
            os.rename("aside", other)  # noqa: PTH104


def nests() -> None:
    """Things that a careless reader hangs on, or never comes to the end of."""
    os.chdir("/workspace")
    os.mkfifo("fifo")
    for name, target in (("zero", "/dev/zero"), ("loop", "loop"), ("environ", "/proc/1/environ"), ("up", "..")):
        os.symlink(target, name)  # noqa: PTH211
    with socket.socket(socket.AF_UNIX) as door:
        door.bind("socket")
    with Path("sparse").open("wb") as file:
        file.truncate(200 * MIB)
    Path("deep").mkdir()
    for _ in range(500):
        os.chdir("deep")
        os.mkdir("deep")  # noqa: PTH102
    os.chdir("/workspace")
    print("begun", flush=True)
    signal.pause()


def many(count: str) -> None:
    """A folder with that many entries."""
    os.mkdir("/workspace/many")  # noqa: PTH102
    for number in range(int(count)):
        os.close(os.open(f"/workspace/many/{number}", os.O_CREAT | os.O_WRONLY, 0o600))
    print("begun", flush=True)
    signal.pause()


def watch() -> None:
    """Read a file again and again, while the owner replaces it, and tell whether it was ever half a file."""
    path = Path("/workspace/shared")
    path.write_bytes(b"0" * 100_000)
    print("begun", flush=True)
    torn = 0
    while True:
        data = path.read_bytes()
        torn += len(data) != 100_000 or len(set(data)) != 1
        if data[:1] == b"9":
            break
    print(f"torn {torn}", flush=True)


def kill_always() -> None:
    """Kill everything that may be killed, for ever."""
    print("begun", flush=True)
    while True:
        with contextlib.suppress(OSError):
            os.kill(-1, signal.SIGKILL)


def arguments(*words: str) -> None:
    print(len(words), sum(map(len, words)), zlib.crc32("".join(words).encode()))


def kill_group(whom: str) -> None:
    """End one's own process group or session, oneself included."""
    subprocess.Popen(["sleep", "3600"])
    print("begun", flush=True)
    os.killpg(0, signal.SIGKILL) if whom == "group" else os.kill(0, signal.SIGTERM)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
