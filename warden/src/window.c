// The window: a ring of whole reliable frames, from the oldest unacknowledged one on.
#include <string.h>
#include "warden.h"

enum { RING = WINDOW + RESERVE };
static uint8_t ring[RING];
static size_t head, used;         // the oldest frame, and how many bytes are kept
static size_t sent;               // of those, how many were handed to the sender since the last HELLO
static uint64_t head_seq = 1, next_seq = 1;

static void copy_in(size_t at, const uint8_t *p, size_t n) {
    size_t first = RING - at < n ? RING - at : n;
    memcpy(ring + at, p, first);
    memcpy(ring, p + first, n - first);
}

static void copy_out(uint8_t *p, size_t at, size_t n) {
    size_t first = RING - at < n ? RING - at : n;
    memcpy(p, ring + at, first);
    memcpy(p + first, ring, n - first);
}

static size_t frame_size(size_t at) {
    uint8_t length[4];
    copy_out(length, (at + 20) % RING, 4);
    return HEADER + get_be(length, 4);
}

bool window_room(void) { return used + HEADER + 9 + PIECE <= WINDOW; }

uint64_t window_next_seq(void) { return next_seq; }

// The caller has asked window_room() for OUTPUT; the reserve covers STARTED and EXIT, since a command keeps its
// slot until its EXIT is acknowledged.
uint64_t window_push(int type, uint32_t id, const uint8_t *payload, size_t n) {
    static uint8_t frame[MAX_FRAME];
    size_t size = frame_build(frame, type, id, next_seq, payload, n);
    if (size > RING - used) __builtin_trap();
    copy_in((head + used) % RING, frame, size);
    used += size;
    return next_seq++;
}

bool window_ack(uint64_t seq) {
    if (seq >= next_seq) return false;
    while (used && head_seq <= seq) {
        size_t size = frame_size(head);
        head = (head + size) % RING;
        used -= size;
        sent = sent > size ? sent - size : 0; // both lie on frame borders
        head_seq++;
    }
    if (!used) head = 0; // keeps the touched memory small for quiet programs
    return true;
}

void window_rewind(void) { sent = 0; }

size_t window_next(uint8_t *out) {
    if (sent == used) return 0;
    size_t at = (head + sent) % RING, size = frame_size(at);
    copy_out(out, at, size);
    sent += size;
    return size;
}
