// What frames mean: specs, the life of a command, its stdin, its end.
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include "warden.h"

struct command commands[MAX_COMMANDS];
uint32_t highest_id;
bool sweeping;

enum { DRAIN_MS = 500 };  // how long a PTY must be silent, after its leader's end, to be called empty
enum { GROUP_MS = 1000 }; // for all of a group that was killed to be gone
#define EACH(c) for (struct command *c = commands; c < commands + MAX_COMMANDS; c++)

// ---- the spec

struct reader {
    uint8_t *p, *end;
    bool bad;
};

static uint64_t get(struct reader *r, int bytes) {
    if (r->bad || r->end - r->p < bytes) {
        r->bad = true;
        return 0;
    }
    r->p += bytes;
    return get_be(r->p - bytes, bytes);
}

// Moves the string one byte down, over its own length field, to make room for the NUL that C wants.
static char *get_str(struct reader *r) {
    uint64_t n = get(r, 4);
    if (r->bad || n > (uint64_t)(r->end - r->p) || memchr(r->p, 0, n)) {
        r->bad = true;
        return NULL;
    }
    uint8_t *s = r->p - 1;
    memmove(s, r->p, n);
    s[n] = 0;
    r->p += n;
    return (char *)s;
}

static char **get_list(struct reader *r) {
    uint64_t n = get(r, 4);
    if (r->bad || n > (uint64_t)(r->end - r->p) / 4) { // each string has at least its length field
        r->bad = true;
        return NULL;
    }
    char **list = calloc(n + 1, sizeof *list);
    if (!list) r->bad = true;
    for (uint64_t i = 0; i < n && !r->bad; i++) list[i] = get_str(r);
    return list;
}

static bool spec_sensible(const struct spec *s) {
    if (s->kind > K_MKDIR || s->flags & ~F_ALL || !s->argv[0]) return false;
    if (s->kind != K_EXEC && (s->argv[1] || s->flags & (F_PTY | F_WAITS) || s->directory[0] != '/')) return false;
    for (char **e = s->env; *e; e++)
        if (**e == '=' || !strchr(*e, '=')) return false;
    return true;
}

bool spec_decode(uint8_t *data, size_t n, struct spec *s) {
    struct reader r = {data, data + n, false};
    memset(s, 0, sizeof *s);
    s->kind = (uint8_t)get(&r, 1);
    s->flags = (uint8_t)get(&r, 1);
    s->rows = (uint16_t)get(&r, 2);
    s->columns = (uint16_t)get(&r, 2);
    s->uid = (uint32_t)get(&r, 4);
    s->gid = (uint32_t)get(&r, 4);
    s->timeout_ms = (uint32_t)get(&r, 4);
    s->mode = (uint32_t)get(&r, 4);
    s->offset = get(&r, 8);
    s->length = get(&r, 8);
    s->directory = get_str(&r);
    s->argv = get_list(&r);
    s->env = get_list(&r);
    if (!r.bad && r.p == r.end && spec_sensible(s)) {
        if (s->kind == K_WRITE) s->flags |= F_STDIN; // its stdin is the content
        return true;
    }
    spec_free(s);
    return false;
}

void spec_free(struct spec *s) {
    free(s->argv);
    free(s->env);
    s->argv = s->env = NULL;
}

// ---- one spec is put together at a time; the first piece of another one drops it

static struct {
    uint32_t id;
    uint8_t *data;
    size_t have, room;
    int refusal; // why START will be refused
} draft;

static void draft_drop(void) {
    free(draft.data);
    memset(&draft, 0, sizeof draft);
}

static void on_spec(uint32_t id, const uint8_t *p, size_t n) {
    if (n < 4) return;
    uint64_t offset = get_be(p, 4);
    p += 4;
    n -= 4;
    if (offset == 0 || id != draft.id) {
        draft_drop();
        draft.id = id;
    }
    if (draft.refusal) return;
    if (offset != draft.have) draft.refusal = R_MALFORMED;
    if (offset + n > MAX_SPEC) draft.refusal = R_TOO_LARGE;
    if (draft.refusal || !n) return;
    if (draft.have + n > draft.room) {
        size_t room = draft.room * 2 > draft.have + n ? draft.room * 2 : draft.have + n;
        uint8_t *grown = realloc(draft.data, room);
        if (!grown) {
            draft.refusal = R_TOO_LARGE;
            return;
        }
        draft.data = grown;
        draft.room = room;
    }
    memcpy(draft.data + draft.have, p, n);
    draft.have += n;
}

// ---- the life of a command

static struct command *find(uint32_t id) {
    EACH(c) if (c->state != FREE && c->id == id) return c;
    return NULL;
}

static void forget_spec(struct command *c) {
    spec_free(&c->spec);
    free(c->spec_data);
    c->spec_data = NULL;
    c->spec.directory = NULL;
}

static void close_stdin(struct command *c) {
    proc_close(&c->in);
    free(c->in_data);
    c->in_data = NULL;
}

static void release(struct command *c) { // its slot is free
    free(c->in_data);
    window_close(&c->window);
    memset(c, 0, sizeof *c);
}

static void finish(struct command *c) {
    uint8_t payload[136], *p = payload;
    int status = c->wait_status, state, code;
    bool told = false;
    if (c->stage) {
        state = NOT_STARTED, code = c->error;
    } else if (c->timed_out) {
        state = TIMED_OUT, code = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
    } else if (WIFSIGNALED(status)) {
        state = SIGNALED, code = WTERMSIG(status);
        told = code <= 64 && c->told >> (code - 1) & 1;
    } else {
        state = EXITED, code = WEXITSTATUS(status);
    }
    p = put_be(p, (uint64_t)state, 1);
    p = put_be(p, c->stage, 1);
    p = put_be(p, told, 1);
    p = put_be(p, 0, 1);
    p = put_be(p, (uint32_t)code, 4);
    p = put_be(p, c->started_wall, 8);
    p = put_be(p, c->ended_wall, 8);
    p = put_be(p, c->duration_us, 8);
    p = put_be(p, c->user_us, 8);
    p = put_be(p, c->system_us, 8);
    p = put_be(p, c->max_rss, 8);
    for (int i = 0; i < 2; i++) {
        p = put_be(p, c->out[i].total, 8);
        sha256_final(&c->out[i].sha, p);
        p += 32;
    }
    c->exit_seq = window_push(c, EXIT, payload, sizeof payload);
    c->state = DONE;
}

static void finish_if_drained(struct command *c) {
    if (c->state == ENDED && !c->await_sweep && !c->group && c->out[0].fd < 0 && c->out[1].fd < 0) finish(c);
}

// Nobody who matters writes any more: what lies in the pipes is read, and no more, since an orphan might hold the
// other end and print for ever.
static void drain(struct command *c) {
    c->await_sweep = false;
    c->drain_until = after_ms(DRAIN_MS);
    for (int i = 0; i < 2; i++) {
        struct stream *s = &c->out[i];
        if (s->fd < 0) continue;
        s->last = true;
        s->left = proc_unread(s->fd, c->spec.flags & F_PTY);
        if (!s->left) proc_close(&s->fd);
    }
    finish_if_drained(c);
}

// Under gVisor a child that is being forked while its group is killed may survive, so the group is killed until it is
// empty. A zombie whose parent is outside the group and never reaps it would keep the group alive: hence the bound.
static void kill_rest_of_group(struct command *c, uint64_t now) {
    if (!c->group || (proc_kill_rest(c->group) && now < c->group_until)) return;
    c->group = 0;
    drain(c);
}

static void leader_ended(struct command *c) {
    int32_t group = c->pid;
    bool killed = c->timed_out || c->told >> (SIGKILL - 1) & 1;
    c->pid = 0;
    c->state = ENDED;
    c->deadline = 0;
    c->ended_wall = wall_ms();
    c->duration_us = now_us() - c->started_us;
    forget_spec(c);
    close_stdin(c);
    proc_close(&c->report);
    bool sweep = c->spec.flags & F_SWEEP_EXIT || (c->timed_out && c->spec.flags & F_SWEEP_TIMEOUT);
    if (sweep) sweeping = true;
    c->await_sweep = sweep || (killed && sweeping);
    if (c->await_sweep) return;
    if (killed && group) {
        c->group = group;
        c->group_until = after_ms(GROUP_MS);
    } else {
        drain(c);
    }
}

static void start_clock(struct command *c) {
    c->started_us = now_us();
    c->started_wall = wall_ms();
    if (c->spec.timeout_ms && !(c->spec.flags & F_WAITS)) c->deadline = after_ms(c->spec.timeout_ms);
}

static void start(struct command *c) {
    int error = 0;
    c->state = STARTING;
    start_clock(c);
    c->stage = (uint8_t)proc_spawn(c, &error);
    c->error = error;
    if (c->stage) {
        leader_ended(c);
        return;
    }
    forget_spec(c);
    for (int sig = 1; sig <= 64; sig++) // told to while it waited
        if (c->told >> (sig - 1) & 1) proc_kill_group(c, sig);
}

// A child born while a sweep is under way would be killed by it.
void commands_start_waiting(void) {
    EACH(c) if (!sweeping && c->state == WAITING) start(c);
}

static void on_start(uint32_t id, const uint8_t *p, size_t n) {
    struct command *c = commands;
    struct spec spec;
    while (c < commands + MAX_COMMANDS && c->state != FREE) c++;
    int refusal = n != 4                               ? R_MALFORMED
                  : id <= highest_id                   ? R_DUPLICATE
                  : c == commands + MAX_COMMANDS       ? R_TOO_MANY
                  : get_be(p, 4) > MAX_SPEC            ? R_TOO_LARGE
                  : id != draft.id                     ? R_MALFORMED
                  : draft.refusal                      ? draft.refusal
                  : get_be(p, 4) != draft.have         ? R_MALFORMED
                  : !draft.have                        ? R_MALFORMED
                  : !spec_decode(draft.data, draft.have, &spec) ? R_MALFORMED
                                                       : 0;
    if (!refusal) {
        memset(c, 0, sizeof *c);
        if (spec.flags & F_STDIN) c->in_data = malloc(STDIN_WINDOW);
        if (!window_open(&c->window) || (spec.flags & F_STDIN && !c->in_data)) {
            spec_free(&spec);
            release(c);
            refusal = R_TOO_MANY;
        }
    }
    if (refusal) {
        draft_drop();
        tx_refuse(id, refusal);
        return;
    }
    c->id = highest_id = id;
    c->spec = spec;
    c->spec_data = draft.data; // the strings of spec live in it
    draft.data = NULL;
    draft_drop();
    c->report = c->in = c->out[0].fd = c->out[1].fd = -1;
    sha256_init(&c->out[0].sha);
    sha256_init(&c->out[1].sha);
    c->state = WAITING;
    commands_start_waiting();
}

void command_reported(struct command *c, int stage, int error) {
    proc_close(&c->report);
    if (stage) {
        c->stage = (uint8_t)stage;
        c->error = error;
    } else if (c->state == STARTING) {
        uint8_t payload[4];
        put_be(payload, (uint32_t)c->pid, 4);
        window_push(c, STARTED, payload, 4);
        c->state = RUNNING;
    }
}

void command_output(struct command *c, int which, const uint8_t *data, size_t n) {
    static uint8_t payload[9 + PIECE];
    struct stream *s = &c->out[which];
    put_be(payload, (uint64_t)which + 1, 1);
    put_be(payload + 1, s->total, 8);
    memcpy(payload + 9, data, n);
    window_push(c, OUTPUT, payload, 9 + n);
    sha256_update(&s->sha, data, n);
    s->total += n;
    if (!s->last) return;
    c->drain_until = after_ms(DRAIN_MS);
    s->left -= n < s->left ? n : s->left;
    if (!s->left) command_stream_closed(c, which);
}

void command_stream_closed(struct command *c, int which) {
    proc_close(&c->out[which].fd);
    finish_if_drained(c);
}

void command_reaped(int32_t pid, int status, const struct rusage *ru) {
    EACH(c) {
        if (c->pid != pid || (c->state != STARTING && c->state != RUNNING)) continue;
        c->wait_status = status;
        c->user_us = (uint64_t)ru->ru_utime.tv_sec * 1000000 + (uint64_t)ru->ru_utime.tv_usec;
        c->system_us = (uint64_t)ru->ru_stime.tv_sec * 1000000 + (uint64_t)ru->ru_stime.tv_usec;
        c->max_rss = (uint64_t)ru->ru_maxrss;
        leader_ended(c);
        return;
    }
}

void command_swept(void) {
    sweeping = false;
    EACH(c) if (c->state == ENDED && c->await_sweep) drain(c);
}

void commands_kill_all(int sig) {
    EACH(c) if (c->pid) c->told |= 1ULL << (sig - 1);
    proc_kill_all(sig);
}

void command_timers(uint64_t now) {
    EACH(c) {
        if (c->deadline && now >= c->deadline) {
            c->deadline = 0;
            c->timed_out = true;
            if (c->spec.flags & F_SWEEP_TIMEOUT) {
                sweeping = true;
                commands_kill_all(9);
            } else {
                proc_kill_group(c, 9);
            }
        }
        kill_rest_of_group(c, now);
        // A PTY has no count of what is left in it; silence must do.
        if (c->state != ENDED || c->await_sweep || c->group || !(c->spec.flags & F_PTY)) continue;
        if (!window_room(&c->window))
            c->drain_until = now + DRAIN_MS; // it is us who do not read
        else if (now >= c->drain_until)
            command_stream_closed(c, 0);
    }
}

// ---- stdin

static void stdin_took(struct command *c, uint64_t n) {
    c->in_handed += n;
    c->in_ack = true;
}

void command_stdin_pump(struct command *c) {
    while (c->in >= 0 && c->in_handed < c->in_received) {
        size_t at = c->in_handed % STDIN_WINDOW, n = c->in_received - c->in_handed;
        if (n > STDIN_WINDOW - at) n = STDIN_WINDOW - at;
        long done = proc_write(c->in, c->in_data + at, n);
        if (done == -1) return;
        if (done == -2) proc_close(&c->in); // the program does not want more
        if (done > 0) stdin_took(c, (uint64_t)done);
    }
    if (c->in >= 0 && c->in_eof) {
        if (c->spec.flags & F_PTY && proc_write(c->in, (const uint8_t *)"\4", 1) == -1) return;
        proc_close(&c->in);
    }
    if (c->in < 0 && c->in_handed < c->in_received) stdin_took(c, c->in_received - c->in_handed);
}

static bool takes_stdin(const struct command *c) { return c->state < ENDED; }

static void on_stdin(struct command *c, const uint8_t *p, size_t n) {
    if (n < 8) return;
    uint64_t offset = get_be(p, 8);
    p += 8;
    n -= 8;
    if (!takes_stdin(c)) return; // it ended meanwhile, EXIT says so
    if (!c->in_data || offset > c->in_received) {
        tx_refuse(c->id, R_STDIN);
        return;
    }
    uint64_t known = c->in_received - offset;
    if (known >= n) return; // a repetition
    p += known;
    n -= known;
    if (c->in_eof || c->in_received + n - c->in_handed > STDIN_WINDOW) {
        tx_refuse(c->id, R_STDIN);
        return;
    }
    for (; n; p++, n--) c->in_data[c->in_received++ % STDIN_WINDOW] = *p;
    if (c->state != WAITING) command_stdin_pump(c);
}

static void on_stdin_eof(struct command *c, const uint8_t *p, size_t n) {
    if (n != 8 || !takes_stdin(c)) return;
    if (!c->in_data || get_be(p, 8) != c->in_received) {
        tx_refuse(c->id, R_STDIN);
        return;
    }
    c->in_eof = true;
    if (c->state != WAITING) command_stdin_pump(c);
}

// ---- the rest

static void on_ack(struct command *c, const uint8_t *p, size_t n) {
    if (n != 8 || get_be(p, 8) >= window_next_seq()) return; // never sent
    window_ack(&c->window, get_be(p, 8));
    if (c->state == DONE && c->exit_seq <= get_be(p, 8)) release(c);
}

// From here on it is a command like any other. Before its start, that starts its clock.
static void on_begin(struct command *c, const uint8_t *p, size_t n) {
    if (n != 4 || c->state >= ENDED || !(c->spec.flags & F_WAITS)) return;
    c->spec.flags &= (uint8_t)~F_WAITS;
    c->spec.timeout_ms = (uint32_t)get_be(p, 4);
    if (c->state != WAITING) start_clock(c);
}

static void on_signal(uint32_t id, const uint8_t *p, size_t n) {
    struct command *c = find(id);
    if (n != 2 || p[0] < 1 || p[0] > 64 || p[1] > 1) return;
    if (p[1] == 1) {
        if (p[0] == SIGKILL) sweeping = true;
        commands_kill_all(p[0]);
    } else if (!c) {
        tx_refuse(id, R_UNKNOWN);
    } else if (c->pid) {
        c->told |= 1ULL << (p[0] - 1);
        proc_kill_group(c, p[0]);
    } else if (c->state == WAITING) {
        c->told |= 1ULL << (p[0] - 1); // start() delivers it
    }
}

void dispatch(int type, uint32_t id, const uint8_t *p, size_t n) {
    struct command *c = find(id);
    switch (type) {
    case HELLO:
        if (n != 22) return;
        draft_drop();
        tx_hello(p);
        EACH(each) each->in_ack = each->in_data != NULL; // the owner may not have seen the last one
        return;
    case SPEC: on_spec(id, p, n); return;
    case START: on_start(id, p, n); return;
    case ACK:
        EACH(each) on_ack(each, p, n);
        return;
    case ACK_COMMAND:
        if (c) on_ack(c, p, n);
        return;
    case BEGIN:
        if (c) on_begin(c, p, n);
        return;
    case SIGNAL: on_signal(id, p, n); return;
    case PING:
        if (n == 8) tx_pong(p);
        return;
    case SHUTDOWN: shutdown_now(0);
    case STDIN:
    case STDIN_EOF:
    case RESIZE:
        if (!c)
            tx_refuse(id, R_UNKNOWN);
        else if (type == STDIN)
            on_stdin(c, p, n);
        else if (type == STDIN_EOF)
            on_stdin_eof(c, p, n);
        else if (n == 4)
            proc_resize(c, (uint16_t)get_be(p, 2), (uint16_t)get_be(p + 2, 2));
        return;
    }
}
