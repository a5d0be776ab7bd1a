// Everything that touches processes and their descriptors. The fuzzer links stubs in place of this file.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "warden.h"

#ifndef TIOCGPTPEER
#define TIOCGPTPEER 0x5441
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

uint64_t now_us(void) {
    struct timespec t;
    if (clock_gettime(CLOCK_BOOTTIME, &t)) clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

uint64_t now_ms(void) { return now_us() / 1000; }

uint64_t after_ms(uint64_t ms) { return (now_us() + 999) / 1000 + ms; }

uint64_t wall_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

char *decimal(char *p, uint64_t v) {
    if (v > 9) p = decimal(p, v / 10);
    *p = (char)('0' + v % 10);
    return p + 1;
}

void proc_close(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

void close_from(int fd) {
    if (!syscall(SYS_close_range, fd, INT_MAX, 0)) return; // gVisor takes no larger one
    for (; fd < 1024; fd++) close(fd); // an old kernel; the warden itself never has as many
}

long proc_write(int fd, const uint8_t *data, size_t n) {
    for (;;) {
        ssize_t done = write(fd, data, n);
        if (done >= 0) return done;
        if (errno != EINTR) return errno == EAGAIN ? -1 : -2;
    }
}

uint64_t proc_unread(int fd, bool pty) {
    int n = 0;
    if (pty || ioctl(fd, FIONREAD, &n) || n < 0) return WINDOW; // unknown: as much as a pipe can ever hold
    return (uint64_t)n;
}

void proc_resize(struct command *c, uint16_t rows, uint16_t columns) {
    struct winsize size = {.ws_row = rows, .ws_col = columns};
    if (c->spec.flags & F_PTY && c->out[0].fd >= 0) ioctl(c->out[0].fd, TIOCSWINSZ, &size);
}

// A child that has not yet reached its setsid has no group of its own; the signal then waits for it, blocked.
void proc_kill_group(struct command *c, int sig) {
    if (c->pid <= 1) return;
    if (kill(-c->pid, sig)) kill(c->pid, sig);
}

bool proc_kill_rest(int32_t group) { return !kill(-group, SIGKILL); }

void proc_kill_all(int sig) {
    if (getpid() == 1) kill(-1, sig); // anywhere else this would end the machine
}

// ---- becoming somebody else

struct cap_header { uint32_t version; int pid; };
struct cap_data { uint32_t effective, permitted, inheritable; };

int set_user(uint32_t uid, uint32_t gid, uint32_t caps) {
    struct cap_header header = {0x20080522, 0};
    struct cap_data want[2] = {{caps, caps, 0}, {0, 0, 0}}, have[2];
    uid_t r, e, s;
    gid_t rg, eg, sg;
    if (uid == UINT32_MAX || gid == UINT32_MAX) return EINVAL; // -1 would mean "leave it as it is"
    if (setgroups(0, NULL) || setresgid(gid, gid, gid) || setresuid(uid, uid, uid)) return errno;
    if (syscall(SYS_capset, &header, want) || syscall(SYS_capget, &header, have)) return errno;
    if (getresuid(&r, &e, &s) || getresgid(&rg, &eg, &sg)) return errno;
    if (r != uid || e != uid || s != uid || rg != gid || eg != gid || sg != gid) return EPERM;
    if (memcmp(want, have, sizeof want)) return EPERM;
    // A change of user may have turned it on (suid_dumpable); what a fork of the warden remembers is nobody's.
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return errno;
    return 0;
}

// ---- the child

static _Noreturn void give_up(int stage, int error) {
    uint32_t words[2] = {(uint32_t)stage, (uint32_t)error};
    if (write(3, words, sizeof words) < 0) _exit(126);
    _exit(127);
}

// Those that the warden itself has changed; the rest is as at its own start. Under gVisor a call costs 20 us, and
// all 64 of them were a tenth of a short command.
static void reset_signals(void) {
    sigset_t none;
    sigemptyset(&none);
    signal(SIGCHLD, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

// /proc/self belongs to root while we are not dumpable, and we may not write as root. Nobody else has our uid, so
// that being dumpable for a moment opens nothing.
static void die_first(void) {
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0 && write(fd, "1000", 4) < 0) errno = 0; // better with, works without
    if (fd >= 0) close(fd);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

static int exec_in_path(char **argv, char **env) {
    const char *path = "";
    int error = ENOENT;
    size_t name = strlen(argv[0]);
    if (strchr(argv[0], '/') || !name) {
        execve(argv[0], argv, env);
        return errno;
    }
    for (char **e = env; *e; e++)
        if (!strncmp(*e, "PATH=", 5)) {
            path = *e + 5;
            break;
        }
    while (*path) {
        size_t n = strcspn(path, ":");
        char *full = malloc(n + name + 2);
        if (!full) return ENOMEM;
        memcpy(full, path, n);
        full[n] = '/';
        memcpy(full + n + 1, argv[0], name + 1);
        if (n) { // an empty entry would be the working directory: not looked at
            execve(full, argv, env);
            if (errno == EACCES)
                error = EACCES;
            else if (errno != ENOENT && errno != ENOTDIR)
                return errno;
        }
        free(full);
        path += n + (path[n] == ':');
    }
    return error;
}

struct ends { int in, out, err, report; }; // the child's side; in, err: -1 where there is none

static _Noreturn void child(const struct command *c, const struct ends *ends) {
    const struct spec *s = &c->spec;
    int error, in = ends->in;
    setsid();
    if (in < 0) in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    // All of these are above 2. The report pipe moves last, to 3, over whatever is there: its copies are made.
    int err = ends->err < 0 ? ends->out : ends->err;
    if (in < 0 || dup2(in, 0) < 0 || dup2(ends->out, 1) < 0 || dup2(err, 2) < 0) _exit(126);
    if (ends->report != 3 && dup3(ends->report, 3, O_CLOEXEC) < 0) _exit(126);
    close_from(4);
    if (s->flags & F_PTY && ioctl(1, TIOCSCTTY, 0)) give_up(STAGE_PTY, errno);
    die_first();
    reset_signals();
    if ((error = set_user(s->uid, s->gid, 0))) give_up(STAGE_USER, error);
    if (s->kind != K_EXEC) {
        umask(0); // modes of files are given exactly
        close(3);
        _exit(file_command(s));
    }
    umask(022);
    if (chdir(s->directory)) give_up(STAGE_DIRECTORY, errno);
    give_up(STAGE_EXEC, exec_in_path(s->argv, s->env));
}

// ---- its pipes and its PTY

static int nonblocking(int fd) { return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

// The slave belongs to whoever opens the master, hence the user's fsuid; where a kernel has none it stays ours,
// and works too.
static int open_pty(struct command *c, struct ends *ends) {
    int unlock = 0, number, error = 0;
    char name[32] = "/dev/pts/";
    setfsuid(c->spec.uid);
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0) {
        error = errno;
    } else if (ioctl(master, TIOCSPTLCK, &unlock)) {
        error = errno;
    } else {
        ends->out = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
        if (ends->out < 0 && !ioctl(master, TIOCGPTN, &number)) {
            *decimal(name + 9, (unsigned)number) = 0;
            ends->out = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
        }
        if (ends->out < 0) error = errno;
    }
    setfsuid(WARDEN_ID);
    c->out[0].fd = master;
    if (error) return error;
    proc_resize(c, c->spec.rows, c->spec.columns);
    if (!(c->spec.flags & F_STDIN)) return nonblocking(master) ? errno : 0;
    // Two descriptors of one PTY, so that either direction can be closed alone.
    if ((c->in = fcntl(master, F_DUPFD_CLOEXEC, 3)) < 0 || (ends->in = fcntl(ends->out, F_DUPFD_CLOEXEC, 3)) < 0) return errno;
    return nonblocking(master) ? errno : 0;
}

static int open_pipe(int *ours, int *theirs, bool we_write) {
    int p[2];
    if (pipe2(p, O_CLOEXEC)) return errno;
    *ours = p[we_write];
    *theirs = p[!we_write];
    return nonblocking(*ours) ? errno : 0;
}

static int open_ends(struct command *c, struct ends *ends, int *error) {
    if ((*error = open_pipe(&c->report, &ends->report, false))) return STAGE_FORK;
    if (c->spec.flags & F_PTY) return (*error = open_pty(c, ends)) ? STAGE_PTY : 0;
    if (c->spec.flags & F_STDIN && (*error = open_pipe(&c->in, &ends->in, true))) return STAGE_FORK;
    if ((*error = open_pipe(&c->out[0].fd, &ends->out, false))) return STAGE_FORK;
    if (c->spec.kind == K_EXEC && (*error = open_pipe(&c->out[1].fd, &ends->err, false))) return STAGE_FORK;
    return 0;
}

int proc_spawn(struct command *c, int *error) {
    struct ends ends = {-1, -1, -1, -1};
    if (c->spec.uid == WARDEN_ID || c->spec.gid == WARDEN_ID) {
        *error = EPERM;
        return STAGE_USER;
    }
    int stage = open_ends(c, &ends, error);
    if (!stage) {
        c->pid = fork();
        if (c->pid == 0) child(c, &ends);
        if (c->pid < 0) {
            stage = STAGE_FORK;
            *error = errno;
            c->pid = 0;
        }
    }
    proc_close(&ends.in);
    proc_close(&ends.out);
    proc_close(&ends.err);
    proc_close(&ends.report);
    if (stage) {
        proc_close(&c->report);
        proc_close(&c->in);
        proc_close(&c->out[0].fd);
        proc_close(&c->out[1].fd);
    }
    return stage;
}
