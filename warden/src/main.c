// Start-up, and the loop: one thread, one poll.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "warden.h"

enum { CAPS = 1 << 5 | 1 << 6 | 1 << 7 }; // KILL, SETGID, SETUID
enum { EOF_RETRY_MS = 100, SWEEP_RETRY_MS = 10, LONGEST_SLEEP_MS = 5000 };

static volatile sig_atomic_t child_changed = 1, told_to_end;
static uint64_t owner_until, retry_stdin_at;
static uint32_t orphan_ms = 30000;

void owner_seen(uint32_t new_orphan_ms) {
    if (new_orphan_ms) orphan_ms = new_orphan_ms < 100 ? 100 : new_orphan_ms;
    owner_until = after_ms(orphan_ms);
}

void shutdown_now(int code) {
    proc_kill_all(SIGKILL);
    _exit(code);
}

// ---- start-up

static _Noreturn void refuse(const char *why) {
    if (write(2, why, strlen(why)) < 0) _exit(4);
    _exit(4);
}

static void on_child(int sig) { (void)sig; child_changed = 1; }
static void on_term(int sig) { (void)sig; told_to_end = 1; }

static void handle(int sig, void (*handler)(int)) {
    struct sigaction a = {.sa_handler = handler};
    sigfillset(&a.sa_mask);
    sigaction(sig, &a, NULL);
}

static bool have_caps(void) {
    uint32_t header[2] = {0x20080522, 0}, data[6];
    return !syscall(SYS_capget, header, data) && (data[0] & CAPS) == CAPS;
}

static void settle(void) {
    sigset_t all;
    if (getpid() != 1) refuse("fumehood-warden: must be PID 1 of a sandbox\n");
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0) refuse("fumehood-warden: needs descriptors 0, 1 and 2\n");
    close_from(3);
    if (!have_caps()) refuse("fumehood-warden: needs the capabilities SETUID, SETGID and KILL\n");
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    for (int sig = 1; sig < 65; sig++) handle(sig, SIG_DFL); // what is ignored now would be in every program
    handle(SIGCHLD, on_child);
    handle(SIGTERM, on_term);
    handle(SIGPIPE, SIG_IGN);
    // Where CAP_SETPCAP was given, too, nothing can ever come back: not even to a child with uid 0 on a runtime
    // that forgets no-new-privileges.
    for (int cap = 0; !prctl(PR_CAPBSET_DROP, cap, 0, 0, 0); cap++) {} // refused: not given, or no such capability
    if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) || set_user(WARDEN_ID, WARDEN_ID, CAPS) || prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0))
        refuse("fumehood-warden: cannot become its own user\n");
    // Some versions of gVisor let programs read this; it holds only what the image declares, and now not even that.
    for (char **e = environ; *e; e++) memset(*e, 0, strlen(*e));
    if (chdir("/")) refuse("fumehood-warden: cannot enter /\n");
    for (int fd = 0; fd < 2; fd++) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    for (int fd = 0; fd < 3; fd++) fcntl(fd, F_SETFD, FD_CLOEXEC);
}

// ---- the owner's side

static void read_owner(void) {
    static uint8_t buffer[65536];
    ssize_t n = read(0, buffer, sizeof buffer);
    if (n > 0) rx_feed(buffer, (size_t)n);
    // End of file: a later owner may open the other end again, so look now and then, but do not spin.
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) retry_stdin_at = now_ms() + EOF_RETRY_MS;
}

static bool write_owner(void) { // true: there is more to send than the pipe takes now
    const uint8_t *data;
    for (int i = 0; i < 32; i++) { // not for ever: an eager reader must not keep us from the rest
        size_t n = tx_pending(&data);
        if (!n) return false;
        long done = proc_write(1, data, n);
        if (done == -1) return true;
        if (done == -2) {
            tx_abandon();
            return false;
        }
        tx_written((size_t)done);
    }
    return true;
}

// ---- the programs' side

static void read_report(struct command *c) {
    uint32_t words[2];
    ssize_t n = read(c->report, words, sizeof words);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    command_reported(c, n == sizeof words ? (int)words[0] : 0, n == sizeof words ? (int)words[1] : 0);
}

static void reap(void) {
    struct rusage ru;
    int status;
    pid_t pid;
    child_changed = 0;
    while ((pid = wait4(-1, &status, WNOHANG, &ru)) > 0) {
        for (struct command *c = commands; c < commands + MAX_COMMANDS; c++)
            if (c->pid == pid && c->report >= 0) read_report(c);
        command_reaped(pid, status, &ru);
    }
    if (pid < 0 && errno == ECHILD && sweeping) command_swept();
}

static void read_stream(struct command *c, int which) {
    static uint8_t piece[PIECE];
    struct stream *s = &c->out[which];
    size_t want = s->last && s->left < PIECE ? (size_t)s->left : PIECE;
    ssize_t n = read(s->fd, piece, want);
    if (n > 0)
        command_output(c, which, piece, (size_t)n);
    else if (n == 0 || (errno != EAGAIN && errno != EINTR)) // a PTY without a slave says EIO
        command_stream_closed(c, which);
    else if (s->last && errno == EAGAIN && !(c->spec.flags & F_PTY))
        command_stream_closed(c, which);
}

static struct pollfd fds[2 + 4 * MAX_COMMANDS]; // owner, then report, stdin, stdout, stderr of each command

static void watch(unsigned at, int fd, short events) {
    fds[at].fd = fd; // -1 is skipped by the kernel; 0 events would still wake us for POLLHUP
    fds[at].events = events;
    fds[at].revents = 0;
}

static void watch_all(bool more_to_write, uint64_t now) {
    watch(0, now < retry_stdin_at ? -1 : 0, POLLIN);
    watch(1, more_to_write ? 1 : -1, POLLOUT);
    for (unsigned i = 0; i < MAX_COMMANDS; i++) {
        const struct command *c = &commands[i];
        // Before the report there is nothing to read: STARTED comes before OUTPUT.
        bool live = c->state != FREE && c->state != WAITING && c->state != DONE, read = live && c->report < 0 && window_room(&c->window);
        watch(2 + 4 * i, live ? c->report : -1, POLLIN);
        watch(3 + 4 * i, live && (c->in_handed < c->in_received || c->in_eof) ? c->in : -1, POLLOUT);
        watch(4 + 4 * i, read ? c->out[0].fd : -1, POLLIN);
        watch(5 + 4 * i, read ? c->out[1].fd : -1, POLLIN);
    }
}

static void sooner(uint64_t *at, uint64_t when) {
    if (when && when < *at) *at = when;
}

static uint64_t next_timer(uint64_t now) {
    uint64_t at = now + LONGEST_SLEEP_MS; // poll does not count a suspended machine's time, our clock does
    sooner(&at, owner_until);
    if (now < retry_stdin_at) sooner(&at, retry_stdin_at);
    if (sweeping) sooner(&at, now + SWEEP_RETRY_MS);
    for (struct command *c = commands; c < commands + MAX_COMMANDS; c++) {
        sooner(&at, c->deadline);
        if (c->group) sooner(&at, now + SWEEP_RETRY_MS);
        if (c->state == ENDED && c->spec.flags & F_PTY) sooner(&at, c->drain_until);
    }
    return at > now ? at - now : 0;
}

static void wait_for_events(uint64_t ms) {
    struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    sigset_t mask;
    sigfillset(&mask);
    sigdelset(&mask, SIGCHLD);
    sigdelset(&mask, SIGTERM);
    if (ppoll(fds, sizeof fds / sizeof *fds, &t, &mask) < 0)
        for (unsigned i = 0; i < sizeof fds / sizeof *fds; i++) fds[i].revents = 0;
}

static void serve_commands(void) {
    static unsigned first; // turns, so that none always comes behind a loud one
    first++;
    for (unsigned k = 0; k < MAX_COMMANDS; k++) {
        unsigned i = (first + k) % MAX_COMMANDS;
        struct command *c = &commands[i];
        struct pollfd *p = &fds[2 + 4 * i];
        // Ours may have changed since the poll: a frame may have ended or begun a command in this very slot.
        if (p[0].revents && p[0].fd == c->report && c->report >= 0) read_report(c);
        if (p[1].revents && p[1].fd == c->in && c->in >= 0) command_stdin_pump(c);
        for (int which = 0; which < 2; which++) {
            int fd = c->out[which].fd;
            if (p[2 + which].revents && p[2 + which].fd == fd && fd >= 0 && c->report < 0 && window_room(&c->window)) read_stream(c, which);
        }
    }
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "probe")) return probe();
    settle();
    if (argc > 1) refuse("fumehood-warden: takes no arguments\n");
    owner_seen(0);
    for (;;) {
        uint64_t now = now_ms();
        if (sweeping) commands_kill_all(SIGKILL); // again and again: somebody may be forking
        if (sweeping || child_changed) reap();
        commands_start_waiting();
        command_timers(now);
        watch_all(write_owner(), now); // sent before we sleep: whatever any of the above had to say
        wait_for_events(next_timer(now));
        if (told_to_end) shutdown_now(0);
        if (now_ms() >= owner_until) shutdown_now(3); // even if old frames wait: whoever sent them has given up on us
        if (fds[0].revents) read_owner();
        if (child_changed) reap();
        serve_commands();
    }
}
