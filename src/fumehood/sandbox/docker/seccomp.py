"""Our seccomp profile: an allowlist of what ordinary programs need, and nothing else.

It starts from what the engines of this field allow by default and takes away what their own history shows to be
dangerous and ordinary programs do not need: io_uring, ptrace and process_vm_*, bpf, perf, keyctl, userfaultfd, the
mount family, new namespaces, kernel modules, clocks, handles by number. What is not named is refused with ENOSYS where
libraries probe for newer calls and fall back, and with EPERM elsewhere.

`clone3` answers ENOSYS: its flags lie behind a pointer that a filter cannot read, so libraries must use `clone`,
whose flags we do check. gVisor takes the profile but answers EPERM whatever errno it names, and a libc gives up on
threads then; there `clone3` goes through to gVisor's own kernel, which is the isolation there, never the host's.
"""

from __future__ import annotations

import errno
import functools
import json

# Grouped so that a reviewer can see what is given, not only that something is.
FILES = """
access chdir chmod chown chown32 close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2
fadvise64 fadvise64_64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchown32 fchownat fcntl fcntl64 fdatasync
fgetxattr flistxattr flock fremovexattr fsetxattr fstat fstat64 fstatat64 fstatfs fstatfs64 fsync ftruncate
ftruncate64 futimesat getcwd getdents getdents64 getxattr inotify_add_watch inotify_init inotify_init1
inotify_rm_watch lchown lchown32 lgetxattr link linkat listxattr llistxattr _llseek lremovexattr lseek lsetxattr
lstat lstat64 mkdir mkdirat mknod mknodat newfstatat open openat openat2 pread64 preadv preadv2 pwrite64 pwritev
pwritev2 read readahead readlink readlinkat readv removexattr rename renameat renameat2 rmdir sendfile sendfile64
setxattr splice stat stat64 statfs statfs64 statx symlink symlinkat sync sync_file_range syncfs tee truncate
truncate64 umask unlink unlinkat utime utimensat utimensat_time64 utimes vmsplice write writev
"""
MEMORY = """
brk get_mempolicy madvise membarrier memfd_create mincore mlock mlock2 mlockall mmap mmap2 mprotect mremap msync
munlock munlockall munmap map_shadow_stack pkey_alloc pkey_free pkey_mprotect remap_file_pages set_mempolicy mbind
process_mrelease cachestat
"""
PROCESSES = """
arch_prctl arm_fadvise64_64 arm_sync_file_range cacheflush capget capset execve execveat exit exit_group fork futex
futex_time64 futex_waitv futex_wait futex_wake futex_requeue get_robust_list get_thread_area getcpu getegid
getegid32 geteuid geteuid32 getgid getgid32 getgroups getgroups32 getpgid getpgrp getpid getppid getpriority
getrandom getresgid getresgid32 getresuid getresuid32 getrlimit getrusage getsid gettid getuid getuid32 ioprio_get
ioprio_set kill landlock_add_rule landlock_create_ruleset landlock_restrict_self pause pidfd_open pidfd_send_signal
prctl prlimit64 restart_syscall rseq sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr
sched_getparam sched_getscheduler sched_rr_get_interval sched_rr_get_interval_time64 sched_setaffinity
sched_setattr sched_setparam sched_setscheduler sched_yield seccomp set_robust_list set_thread_area set_tid_address
set_tls setfsgid setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups setgroups32 setitimer setpgid setpriority
setregid setregid32 setresgid setresgid32 setresuid setresuid32 setreuid setreuid32 setrlimit setsid setuid
setuid32 sysinfo tgkill times tkill ugetrlimit uname vfork wait4 waitid waitpid breakpoint getitimer rt_sigaction
rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64
rt_tgsigqueueinfo sigaltstack signal signalfd signalfd4 sigprocmask sigreturn alarm
"""
WAITING = """
clock_getres clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep clock_nanosleep_time64 epoll_create
epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2
gettimeofday nanosleep _newselect poll ppoll ppoll_time64 pselect6 pselect6_time64 select time timer_create
timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64 timerfd_create
timerfd_gettime timerfd_gettime64 timerfd_settime timerfd_settime64
"""
TALKING = """
accept accept4 bind connect getpeername getsockname getsockopt ioctl io_cancel io_destroy io_getevents
io_pgetevents io_pgetevents_time64 io_setup io_submit listen mq_getsetattr mq_notify mq_open mq_timedreceive
mq_timedreceive_time64 mq_timedsend mq_timedsend_time64 mq_unlink msgctl msgget msgrcv msgsnd pipe pipe2 recv
recvfrom recvmmsg recvmmsg_time64 recvmsg semctl semget semop semtimedop semtimedop_time64 send sendmmsg sendmsg
sendto setsockopt shmat shmctl shmdt shmget shutdown socketpair
"""
ALLOWED = tuple(sorted(set(" ".join((FILES, MEMORY, PROCESSES, WAITING, TALKING)).split())))

FALLS_BACK = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register")
"""Refused with ENOSYS, so that libraries take the older way."""

OWN_KERNEL_RUNTIMES = ("runsc",)
"""Runtimes, by the beginning of their names (`runsc-kvm`), whose programs never reach the host's kernel themselves."""

ARCHITECTURES = ("SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64")
"""Native calls only. The 32-bit and x32 entries of a kernel are rarely used, often attacked, and lead around filters on
arguments: `socketcall` packs them behind a pointer, so a family that `socket` refuses would pass."""

CLONE_NEW_ANYTHING = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""

SOCKET_FAMILIES = (1, 2, 10, 16)
"""UNIX, IPv4, IPv6 and netlink (which name look-ups need); no packet, vsock, ALG, Bluetooth or other rare family."""

PERSONALITIES = (0x0, 0x0008, 0x20000, 0x20008, 0xFFFFFFFF)


def has_own_kernel(runtime: str) -> bool:
    return runtime.startswith(OWN_KERNEL_RUNTIMES)


@functools.cache
def profile(runtime: str) -> str:
    """The profile for a runtime, as the engine takes it."""
    own_kernel = ("clone3",) if has_own_kernel(runtime) else ()
    document = {
        "defaultAction": "SCMP_ACT_ERRNO",
        "archMap": [{"architecture": name, "subArchitectures": []} for name in ARCHITECTURES],
        "syscalls": [
            {"names": [*ALLOWED, *own_kernel], "action": "SCMP_ACT_ALLOW"},
            {
                "names": [name for name in FALLS_BACK if name not in own_kernel],
                "action": "SCMP_ACT_ERRNO",
                "errnoRet": errno.ENOSYS,
            },
            {
                "names": ["clone"],
                "action": "SCMP_ACT_ALLOW",
                "args": [{"index": 0, "value": CLONE_NEW_ANYTHING, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}],
            },
            *(_when("socket", 0, family) for family in SOCKET_FAMILIES),
            *(_when("personality", 0, value) for value in PERSONALITIES),
        ],
    }
    return json.dumps(document, separators=(",", ":"))


def _when(name: str, index: int, value: int) -> dict[str, object]:
    """Allow a call only with this value of one argument."""
    argument = {"index": index, "value": value, "op": "SCMP_CMP_EQ"}
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": [argument]}
