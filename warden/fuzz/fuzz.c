// libFuzzer on everything that parses: frames, the lost state, specs, commands, stdin, the window. The sources are
// included, so that each input begins with a fresh warden; no process is ever made, waited for or signalled, since
// proc.c is not part of this program. The input is a list of operations, see operate().
//
// With -DGOLDEN the same warden reads golden frames instead (hex lines on stdin) and prints how it understood them.
#include <setjmp.h>
#include <stdio.h>
#include "../src/command.c"
#include "../src/frame.c"
#include "../src/sha256.c"
#include "../src/window.c"

static jmp_buf ended;
static uint64_t clock_ms;
static int next_pid, write_mode;
static uint64_t last_sent;

uint64_t now_ms(void) { return clock_ms; }
uint64_t now_us(void) { return clock_ms * 1000; }
uint64_t after_ms(uint64_t ms) { return clock_ms + ms; }
uint64_t wall_ms(void) { return clock_ms; }
void owner_seen(uint32_t orphan) { (void)orphan; }
void shutdown_now(int code) { longjmp(ended, code + 1); }
void proc_kill_group(struct command *c, int sig) { if (c->pid <= 1 || sig < 1 || sig > 64) abort(); }
bool proc_kill_rest(int32_t group) { if (group <= 1) abort(); return group & 1; }
void proc_kill_all(int sig) { if (sig < 1 || sig > 64) abort(); }
void proc_resize(struct command *c, uint16_t rows, uint16_t columns) { (void)c; (void)rows; (void)columns; }
uint64_t proc_unread(int fd, bool pty) { return pty ? WINDOW : (uint64_t)(fd % 3) * 1000; }
void proc_close(int *fd) { *fd = -1; }

long proc_write(int fd, const uint8_t *data, size_t n) {
    if (fd < 0 || !n) abort();
    uint8_t sum = 0;
    for (size_t i = 0; i < n; i++) sum ^= data[i]; // touches all of it, for the sanitizer
    if (write_mode < 0) return write_mode;
    size_t most = (size_t)write_mode * 997 + 1 + (sum & 1);
    return (long)(n < most ? n : most);
}

int proc_spawn(struct command *c, int *error) {
    size_t length = strlen(c->spec.directory);
    for (char **s = c->spec.argv; *s; s++) length += strlen(*s);
    for (char **s = c->spec.env; *s; s++) length += strlen(*s);
    if (length > MAX_SPEC) abort();
#ifdef GOLDEN
    printf("spec %d %d %d %d %u %u %u %u %llu %llu %s", c->spec.kind, c->spec.flags, c->spec.rows, c->spec.columns, c->spec.uid,
           c->spec.gid, c->spec.timeout_ms, c->spec.mode, (unsigned long long)c->spec.offset, (unsigned long long)c->spec.length,
           c->spec.directory);
    for (char **s = c->spec.argv; *s; s++) printf("|%s", *s);
    for (char **s = c->spec.env; *s; s++) printf("|%s", *s);
    printf("\n");
#endif
    if (c->spec.uid == WARDEN_ID) {
        *error = EPERM;
        return STAGE_USER;
    }
    c->pid = ++next_pid;
    c->report = 10;
    c->out[0].fd = 11 + (int)(c->spec.uid % 3);
    if (!(c->spec.flags & F_PTY)) c->out[1].fd = 12;
    if (c->spec.flags & F_STDIN) c->in = 13;
    return 0;
}

static void fresh(void) {
    EACH(c) {
        spec_free(&c->spec);
        free(c->spec_data);
        release(c);
    }
    draft_drop();
    rx_have = zeros = tx_size = tx_at = 0;
    lost = greeted = muted = want_welcome = want_pong = sweeping = false;
    refused_first = refused_count = highest_id = 0;
    next_seq = clock_ms = 1;
    last_sent = 0;
    next_pid = 1;
    write_mode = 0;
}

#ifdef GOLDEN
int main(void) {
    static char line[200000];
    static uint8_t data[MAX_FRAME], again[MAX_FRAME];
    fresh();
    if (setjmp(ended)) return printf("shutdown\n") < 0;
    while (fgets(line, sizeof line, stdin)) {
        size_t n = strspn(line, "0123456789abcdef") / 2;
        for (size_t i = 0; i < n; i++) {
            unsigned byte;
            sscanf(line + 2 * i, "%2x", &byte);
            data[i] = (uint8_t)byte;
        }
        size_t size = frame_build(again, data[4], (uint32_t)get_be(data + 8, 4), get_be(data + 12, 8), data + HEADER, n - HEADER);
        printf("%s ", size == n && !memcmp(data, again, n) ? "same" : "DIFFERENT");
        if (data[4] < 128) rx_feed(data, n);
        printf("%s\n", lost ? "LOST" : "good");
        fflush(stdout);
    }
    return 0;
}
#else

struct input {
    const uint8_t *p;
    size_t n;
};

static unsigned take(struct input *in, unsigned bytes) {
    unsigned v = 0;
    for (; bytes--; in->p++, in->n--) {
        if (!in->n) return v;
        v = v << 8 | *in->p;
    }
    return v;
}

static void feed_frame(struct input *in) {
    static uint8_t frame[MAX_FRAME];
    int type = (int)take(in, 1);
    uint32_t id = take(in, 1);
    size_t n = take(in, 2);
    if (n > in->n) n = in->n;
    size_t size = frame_build(frame, type, id, 0, in->p, n);
    in->p += n;
    in->n -= n;
    rx_feed(frame, size);
}

static void feed_raw(struct input *in) {
    size_t n = take(in, 2);
    if (n > in->n) n = in->n;
    rx_feed(in->p, n);
    in->p += n;
    in->n -= n;
}

// What the owner gets must be whole frames with right sums, reliable ones in the order of their numbers, whatever
// happened in between.
static void check_frame(void) {
    uint64_t seq = get_be(tx + 12, 8);
    if (frame_crc(tx, tx_size - HEADER) != get_be(tx + 24, 4) || get_be(tx + 20, 4) != tx_size - HEADER) abort();
    if (tx[4] == WELCOME) last_sent = 0;
    if (seq && (seq <= last_sent || seq >= next_seq)) abort();
    if (seq) last_sent = seq;
}

static void send(unsigned most) {
    const uint8_t *data;
    for (size_t n; most-- && (n = tx_pending(&data));) {
        if (tx_at == 0) check_frame();
        tx_written(n > 1000 ? n / 2 : n);
    }
}

static void attach(bool first) {
    static const uint8_t silence[MAX_FRAME];
    uint8_t hello[HEADER + 22];
    frame_build(hello, HELLO, 0, 0, (const uint8_t *)"0123456789abcdef\0\1\0\0\4\0", 22);
    if (!first) rx_feed(silence, sizeof silence);
    rx_feed(hello, sizeof hello);
    if (lost || !want_welcome) abort(); // zeros and a HELLO always find the way back
}

static void operate(struct input *in) {
    static const uint8_t output[PIECE];
    unsigned what = take(in, 1);
    struct command *c = &commands[take(in, 1) % MAX_COMMANDS];
    bool live = c->state == STARTING || c->state == RUNNING;
    int which = what >> 7;
    size_t n = 1 + take(in, 2) % PIECE;
    struct rusage ru = {0};
    switch (what % 12) {
    case 0: feed_raw(in); break;
    case 1: case 2: case 3: feed_frame(in); break;
    case 4: send(n); break;
    case 5:
        if ((live || c->state == ENDED) && c->report < 0 && c->out[which].fd >= 0 && window_room(&c->window)) {
            if (c->out[which].last && n > c->out[which].left) n = c->out[which].left;
            command_output(c, which, output, n);
        }
        break;
    case 6: if (live && c->report >= 0) command_reported(c, n % 4 ? 0 : STAGE_EXEC, ENOENT); break;
    case 7: if (live) command_reaped(c->pid, (int)(n & 0xff7f), &ru); break;
    case 8: if (sweeping) command_swept(); commands_start_waiting(); break;
    case 9: clock_ms += n; command_timers(clock_ms); break;
    case 10: write_mode = (int)(n % 64) - 2; if (live) command_stdin_pump(c); break;
    case 11: if (n % 8 == 1) attach(false); else tx_abandon(); break;
    }
    if (rx_have > MAX_FRAME || tx_size > MAX_FRAME || draft.have > MAX_SPEC) abort();
    EACH(each) {
        if (each->in_received - each->in_handed > STDIN_WINDOW) abort();
        if (each->deadline && each->spec.flags & F_WAITS) abort();
        if (each->window.used > RING || each->window.sent > each->window.used || !each->window.ring != !each->state) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct input in = {data, n};
    fresh();
    if (!setjmp(ended)) {
        attach(true);
        while (in.n) operate(&in);
        if (n % 16 == 0) attach(false); // dear: 64 KiB of zeros
    }
    fresh();
    return 0;
}
#endif
