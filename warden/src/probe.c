// What a hostile program would try, as whoever runs this; prints JSON. Harmless: it opens doors but walks through none.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "warden.h"

#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#ifndef SYS_io_uring_setup
#define SYS_io_uring_setup 425
#endif

static int outcome(long result) { return result < 0 ? errno : 0; }
static int try_open(const char *path, int flags) { return outcome(open(path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)); }

static int try_read(const char *path) {
    char byte;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? errno : outcome(read(fd, &byte, 1));
}

static int try_signal(void) { return outcome(kill(1, 0)); } // the same check as for any other signal
static int try_ptrace(void) { return outcome(ptrace(0x4206 /* SEIZE: does not stop it */, 1, NULL, NULL)); }
static int try_environ(void) { return try_read("/proc/1/environ"); }
static int try_mem(void) { return try_open("/proc/1/mem", O_RDONLY); }
static int try_maps(void) { return try_read("/proc/1/maps"); }
static int try_write_fd0(void) { return try_open("/proc/1/fd/0", O_WRONLY); }
static int try_write_fd1(void) { return try_open("/proc/1/fd/1", O_WRONLY); }
static int try_read_fd0(void) { return try_open("/proc/1/fd/0", O_RDONLY); }
static int try_mount(void) { // the right to mount is asked for before the type is looked up
    int error = outcome(mount("none", "/", "fumehood-no-such-type", 0, NULL));
    return error == ENODEV ? 0 : error;
}
static int try_unshare_user(void) { return outcome(unshare(CLONE_NEWUSER)); }
static int try_raw_socket(void) { return outcome(socket(AF_INET, SOCK_RAW, 1)); }
static int try_keyctl(void) { return outcome(syscall(SYS_keyctl, 0, -3, 0)); }

static int try_write_root(void) {
    const char *path = "/fumehood-probe";
    int error = outcome(open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    return error ? error : (unlink(path), 0);
}

static int try_list_fd(void) {
    DIR *folder = opendir("/proc/1/fd");
    errno = 0;
    return folder && readdir(folder) ? 0 : errno ? errno : try_open("/proc/1/fd", O_RDONLY | O_DIRECTORY);
}

static int try_io_uring(void) {
    uint8_t parameters[120] = {0};
    return outcome(syscall(SYS_io_uring_setup, 1, parameters));
}

static int try_bpf(void) {
    uint32_t attributes[18] = {2, 4, 4, 1}; // an array map of one entry
    return outcome(syscall(SYS_bpf, 0, attributes, sizeof attributes));
}

static int try_userfaultfd(void) {
    int error = outcome(syscall(SYS_userfaultfd, O_CLOEXEC | 1)); // 1: user mode only, which needs no privilege
    return error == EINVAL ? outcome(syscall(SYS_userfaultfd, O_CLOEXEC)) : error;
}

static int try_clone3(void) {
    uint64_t arguments[8] = {[4] = SIGCHLD};
    long pid = syscall(SYS_clone3, arguments, sizeof arguments);
    if (pid == 0) _exit(0);
    return outcome(pid);
}

static const struct { const char *name; int (*try)(void); } attempts[] = {
    {"signal", try_signal},           {"ptrace", try_ptrace},         {"read_environ", try_environ},
    {"read_mem", try_mem},            {"read_maps", try_maps},        {"list_fd", try_list_fd},
    {"write_fd0", try_write_fd0},     {"write_fd1", try_write_fd1},   {"read_fd0", try_read_fd0},
    {"mount", try_mount},             {"unshare_user", try_unshare_user}, {"raw_socket", try_raw_socket},
    {"io_uring", try_io_uring},       {"bpf", try_bpf},               {"keyctl", try_keyctl},
    {"userfaultfd", try_userfaultfd}, {"clone3", try_clone3},         {"write_root", try_write_root},
};

static const char *error_name(int error) {
    static const struct { int error; const char *name; } names[] = {
        {EPERM, "EPERM"},   {EACCES, "EACCES"}, {ENOSYS, "ENOSYS"},         {ENOENT, "ENOENT"}, {ESRCH, "ESRCH"},
        {EINVAL, "EINVAL"}, {EIO, "EIO"},       {ENXIO, "ENXIO"},           {ENOMEM, "ENOMEM"}, {EAGAIN, "EAGAIN"},
        {ENOSPC, "ENOSPC"}, {EUSERS, "EUSERS"}, {EAFNOSUPPORT, "EAFNOSUPPORT"}, {EROFS, "EROFS"}, {EBUSY, "EBUSY"},
        {ENOTDIR, "ENOTDIR"}, {ELOOP, "ELOOP"}, {EOPNOTSUPP, "EOPNOTSUPP"}, {ENOKEY, "ENOKEY"}, {EFAULT, "EFAULT"},
        {EPROTONOSUPPORT, "EPROTONOSUPPORT"},   {EMFILE, "EMFILE"},         {ENODEV, "ENODEV"}, {EBADF, "EBADF"},
    };
    static char other[16] = "E";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].error == error) return names[i].name;
    *decimal(other + 1, (unsigned)error) = 0;
    return other;
}

// Each in a process of its own: one may change it, or seccomp may kill it for asking.
static const char *attempt(int (*try)(void)) {
    int status;
    pid_t pid = fork();
    if (pid == 0) _exit(try());
    if (pid < 0 || waitpid(pid, &status, 0) != pid) return "untried";
    if (!WIFEXITED(status)) return "killed";
    return WEXITSTATUS(status) ? error_name(WEXITSTATUS(status)) : "open";
}

static char text[4096];
static char *end = text;

static void say(const char *s) {
    size_t n = strlen(s), room = (size_t)(text + sizeof text - end);
    memcpy(end, s, n < room ? n : room);
    end += n < room ? n : room;
}

static void say_number(const char *before, uint64_t v) {
    char digits[24];
    *decimal(digits, v) = 0;
    say(before);
    say(digits);
}

static void say_hex(const char *before, uint64_t v) {
    char digits[17] = "";
    for (int i = 16; i--; v >>= 4) digits[i] = "0123456789abcdef"[v & 15];
    say(before);
    say(digits);
}

static unsigned seccomp_mode(void) { // asking prctl would be fatal in strict mode
    char status[4096];
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    ssize_t n = read(fd, status, sizeof status - 1);
    status[n < 0 ? 0 : n] = 0;
    const char *line = strstr(status, "Seccomp:");
    return line ? (unsigned)(line[9] - '0') : 9; // 9: cannot tell
}

static void say_limits(void) {
    static const struct { const char *name; int what; } limits[] = {
        {"open_files", RLIMIT_NOFILE}, {"file_bytes", RLIMIT_FSIZE}, {"core_bytes", RLIMIT_CORE}};
    static const struct { const char *name, *path; } places[] = {{"workspace", "/workspace"}, {"tmp", "/tmp"}};
    const char *before = "";
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++, before = ", ") {
        struct rlimit limit = {0};
        getrlimit((unsigned)limits[i].what, &limit);
        say(before), say("\""), say(limits[i].name), say_number("\": ", limit.rlim_max);
    }
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct statvfs fs;
        if (statvfs(places[i].path, &fs)) continue;
        say(", \""), say(places[i].name), say_number("_bytes\": ", (uint64_t)fs.f_blocks * fs.f_frsize);
        say(", \""), say(places[i].name), say_number("_inodes\": ", fs.f_files);
    }
}

int probe(void) {
    uint32_t header[2] = {0x20080522, 0}, caps[6] = {0};
    uint64_t bounding = 0;
    gid_t groups[64];
    int n = getgroups(64, groups);
    syscall(SYS_capget, header, caps);
    for (int cap = 0; cap < 64; cap++)
        if (prctl(PR_CAPBSET_READ, cap, 0, 0, 0) == 1) bounding |= 1ULL << cap;
    say_number("{\"uid\": ", getuid());
    say_number(", \"gid\": ", getgid());
    say(", \"groups\": [");
    for (int i = 0; i < n; i++) say_number(i ? ", " : "", groups[i]);
    say_hex("], \"cap_effective\": \"", (uint64_t)caps[3] << 32 | caps[0]);
    say_hex("\", \"cap_bounding\": \"", bounding);
    say_number("\", \"no_new_privs\": ", (unsigned)prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
    say_number(", \"seccomp\": ", seccomp_mode());
    say(", \"limits\": {");
    say_limits();
    say("}");
    for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++) {
        say(i ? "\", \"" : ", \"attempts\": {\"");
        say(attempts[i].name);
        say("\": \"");
        say(attempt(attempts[i].try));
    }
    say("\"}}\n");
    return write(1, text, (size_t)(end - text)) == end - text ? 0 : 1;
}
