// The windows: for each command a ring of its whole reliable frames, from the oldest unacknowledged one on. A command
// that nobody takes anything of fills its own, and no other notices.
#include <stdlib.h>
#include <string.h>
#include "warden.h"

enum { RING = WINDOW + RESERVE };
static uint64_t next_seq = 1;

static void copy_in(struct window *w, size_t at, const uint8_t *p, size_t n) {
    size_t first = RING - at < n ? RING - at : n;
    memcpy(w->ring + at, p, first);
    memcpy(w->ring, p + first, n - first);
}

static void copy_out(const struct window *w, uint8_t *p, size_t at, size_t n) {
    size_t first = RING - at < n ? RING - at : n;
    memcpy(p, w->ring + at, first);
    memcpy(p + first, w->ring, n - first);
}

static uint64_t field(const struct window *w, size_t skip, size_t offset, int bytes) { // of the frame behind `skip` bytes
    uint8_t raw[8];
    copy_out(w, raw, (w->head + skip + offset) % RING, (size_t)bytes);
    return get_be(raw, bytes);
}

static uint64_t frame_seq(const struct window *w, size_t skip) { return field(w, skip, 12, 8); }

static size_t frame_size(const struct window *w, size_t skip) { return HEADER + field(w, skip, 20, 4); }

bool window_open(struct window *w) {
    w->ring = malloc(RING);
    return w->ring != NULL;
}

void window_close(struct window *w) {
    free(w->ring);
    memset(w, 0, sizeof *w);
}

bool window_room(const struct window *w) { return w->used + HEADER + 9 + PIECE <= WINDOW; }

uint64_t window_next_seq(void) { return next_seq; }

// The caller has asked window_room() for OUTPUT; the reserve covers STARTED and EXIT.
uint64_t window_push(struct command *c, int type, const uint8_t *payload, size_t n) {
    static uint8_t frame[MAX_FRAME];
    struct window *w = &c->window;
    size_t size = frame_build(frame, type, c->id, next_seq, payload, n);
    if (size > RING - w->used) __builtin_trap();
    copy_in(w, (w->head + w->used) % RING, frame, size);
    w->used += size;
    return next_seq++;
}

void window_ack(struct window *w, uint64_t seq) {
    while (w->used && frame_seq(w, 0) <= seq) {
        size_t size = frame_size(w, 0);
        w->head = (w->head + size) % RING;
        w->used -= size;
        w->sent = w->sent > size ? w->sent - size : 0; // both lie on frame borders
    }
    if (!w->used) w->head = 0; // keeps the touched memory small for quiet programs
}

void window_rewind(void) {
    for (struct command *c = commands; c < commands + MAX_COMMANDS; c++) c->window.sent = 0;
}

// Over all windows in the order in which the frames were made.
size_t window_next(uint8_t *out) {
    struct window *next = NULL;
    uint64_t lowest = UINT64_MAX;
    for (struct command *c = commands; c < commands + MAX_COMMANDS; c++) {
        struct window *w = &c->window;
        if (w->sent == w->used || frame_seq(w, w->sent) >= lowest) continue;
        next = w;
        lowest = frame_seq(w, w->sent);
    }
    if (!next) return 0;
    size_t size = frame_size(next, next->sent);
    copy_out(next, out, (next->head + next->sent) % RING, size);
    next->sent += size;
    return size;
}
