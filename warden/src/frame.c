// Frames: building, receiving (with the lost state) and sending.
#include <string.h>
#include "warden.h"

static const uint8_t MAGIC[4] = {'F', 'H', 'W', '1'};

uint64_t get_be(const uint8_t *p, int bytes) {
    uint64_t v = 0;
    while (bytes--) v = v << 8 | *p++;
    return v;
}

uint8_t *put_be(uint8_t *p, uint64_t v, int bytes) {
    for (int i = bytes; i--; v >>= 8) p[i] = (uint8_t)v;
    return p + bytes;
}

// Eight bytes at a time: every byte of output passes here, and one by one this was half of the warden's work.
static uint32_t crc(uint32_t c, const uint8_t *p, size_t n) {
    static uint32_t t[8][256];
    for (uint32_t i = 0; !t[7][255] && i < 256; i++) {
        uint32_t v = i;
        for (int k = 0; k < 8; k++) v = v & 1 ? 0xedb88320 ^ v >> 1 : v >> 1;
        t[0][i] = v;
    }
    for (int k = 1; !t[7][255] && k < 8; k++)
        for (int i = 0; i < 256; i++) t[k][i] = t[0][t[k - 1][i] & 255] ^ t[k - 1][i] >> 8;
    for (c = ~c; n >= 8; n -= 8, p += 8) {
        uint32_t x = c ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        c = t[7][x & 255] ^ t[6][x >> 8 & 255] ^ t[5][x >> 16 & 255] ^ t[4][x >> 24];
        c ^= t[3][p[4]] ^ t[2][p[5]] ^ t[1][p[6]] ^ t[0][p[7]];
    }
    for (; n--; p++) c = t[0][(c ^ *p) & 255] ^ c >> 8;
    return ~c;
}

static uint32_t frame_crc(const uint8_t *frame, size_t n) { return crc(crc(0, frame, 24), frame + HEADER, n); }

size_t frame_build(uint8_t *out, int type, uint32_t id, uint64_t seq, const uint8_t *payload, size_t n) {
    uint8_t *p = out;
    memcpy(p, MAGIC, 4);
    p = put_be(p + 4, (uint64_t)type << 24, 4);
    p = put_be(p, id, 4);
    p = put_be(p, seq, 8);
    p = put_be(p, n, 4);
    memcpy(out + HEADER, payload, n);
    put_be(p, frame_crc(out, n), 4);
    return HEADER + n;
}

// ---- receiving
// Synchronised: a header says how long its frame is, and nothing inside is looked at before the CRC is right.
// Lost: only a HELLO directly behind a whole maximal frame of zeros counts. No payload can hold that many, so that
// data of a program can never be taken for a command, wherever the stream was torn.

static uint8_t rx[MAX_FRAME];
static size_t rx_have;
static size_t zeros; // how many zero bytes were consumed last, in a row
static bool lost, greeted;

static void consume(size_t n) { // rx[0..n) is dealt with
    size_t tail = 0;
    while (tail < n && !rx[n - 1 - tail]) tail++;
    zeros = tail == n ? zeros + n : tail;
    rx_have = 0;
}

static bool header_good(void) {
    return !memcmp(rx, MAGIC, 4) && !rx[5] && !rx[6] && !rx[7] && get_be(rx + 20, 4) <= MAX_PAYLOAD;
}

static void deliver(void) {
    size_t n = get_be(rx + 20, 4);
    bool hello = rx[4] == HELLO && n == 22;
    if (hello) greeted = true;
    if (!greeted) return; // nothing is obeyed before the first HELLO
    owner_seen(hello ? (uint32_t)get_be(rx + HEADER + 18, 4) : 0);
    dispatch(rx[4], (uint32_t)get_be(rx + 8, 4), rx + HEADER, n);
}

static void hunt(uint8_t byte) {
    if (!rx_have && (byte != MAGIC[0] || zeros < MAX_FRAME)) {
        zeros = byte ? 0 : zeros + 1;
        return;
    }
    rx[rx_have++] = byte;
    if (rx_have == HEADER && !(header_good() && rx[4] == HELLO && get_be(rx + 20, 4) == 22)) {
        consume(rx_have);
    } else if (rx_have == HEADER + 22) {
        lost = frame_crc(rx, 22) != get_be(rx + 24, 4);
        if (!lost) deliver();
        consume(rx_have);
    }
}

static size_t receive(const uint8_t *data, size_t n) {
    size_t want = rx_have < HEADER ? HEADER : HEADER + get_be(rx + 20, 4);
    size_t take = want - rx_have < n ? want - rx_have : n;
    memcpy(rx + rx_have, data, take);
    rx_have += take;
    if (rx_have < want) return take;
    if (want == HEADER) {
        if (!header_good()) {
            lost = true;
            consume(rx_have);
            return take;
        }
        if (get_be(rx + 20, 4)) return take; // now for the payload
    }
    lost = frame_crc(rx, rx_have - HEADER) != get_be(rx + 24, 4);
    if (!lost) deliver();
    consume(rx_have);
    return take;
}

void rx_feed(const uint8_t *data, size_t n) {
    while (n) {
        size_t took = 1;
        if (lost)
            hunt(*data);
        else
            took = receive(data, n);
        data += took;
        n -= took;
    }
}

// ---- sending
// The frame on its way lies in a buffer of its own, so that ACK and HELLO may change the window meanwhile. Control
// frames go first; each kind has a fixed place to wait in, so that nothing grows when nobody reads.

static uint8_t tx[MAX_FRAME];
static size_t tx_size, tx_at;
static bool muted; // writing failed; until the next HELLO there is nobody to write to
static bool want_welcome, want_pong;
static uint8_t welcome_nonce[16], pong_data[8];
static struct { uint32_t id; int code; } refusals[16];
static unsigned refused_first, refused_count;

void tx_hello(const uint8_t nonce[16]) {
    memcpy(welcome_nonce, nonce, 16);
    want_welcome = true;
    want_pong = muted = false;
    refused_count = 0;
    window_rewind();
}

void tx_pong(const uint8_t data[8]) {
    memcpy(pong_data, data, 8);
    want_pong = true;
}

void tx_refuse(uint32_t id, int code) {
    unsigned at = (refused_first + refused_count) % 16;
    refusals[at].id = id;
    refusals[at].code = code;
    if (refused_count < 16)
        refused_count++;
    else
        refused_first = (refused_first + 1) % 16; // the oldest gives way
}

static size_t build_welcome(void) {
    uint8_t payload[34 + 13 * MAX_COMMANDS], *p = payload, *count;
    unsigned n = 0;
    want_welcome = false;
    memcpy(p, welcome_nonce, 16);
    p = put_be(p + 16, VERSION, 2);
    p = put_be(p, window_next_seq(), 8);
    p = put_be(p, highest_id, 4);
    count = p;
    p += 2;
    for (struct command *c = commands; c < commands + MAX_COMMANDS; c++) {
        if (c->state == FREE) continue;
        p = put_be(p, c->id, 4);
        p = put_be(p, c->state == DONE ? 2 : 1, 1);
        p = put_be(p, c->in_received, 8);
        n++;
    }
    put_be(count, n, 2);
    return frame_build(tx, WELCOME, 0, 0, payload, (size_t)(p - payload));
}

static size_t build_refused(void) {
    static const char *const text[] = {"", "duplicate command id", "too many commands", "malformed spec",
                                       "unknown command", "stdin out of window", "spec too large"};
    uint32_t id = refusals[refused_first].id;
    int code = refusals[refused_first].code;
    uint8_t payload[64] = {(uint8_t)code};
    size_t n = strlen(text[code]);
    memcpy(payload + 1, text[code], n);
    refused_first = (refused_first + 1) % 16;
    refused_count--;
    return frame_build(tx, REFUSED, id, 0, payload, 1 + n);
}

static size_t build_stdin_ack(void) {
    uint8_t payload[8];
    for (struct command *c = commands; c < commands + MAX_COMMANDS; c++) {
        if (!c->in_ack || c->state == FREE) continue;
        c->in_ack = false;
        put_be(payload, c->in_handed, 8);
        return frame_build(tx, STDIN_ACK, c->id, 0, payload, 8);
    }
    return 0;
}

static size_t build_next(void) {
    size_t n;
    if (want_welcome) return build_welcome();
    if (refused_count) return build_refused();
    if ((n = build_stdin_ack())) return n;
    if (want_pong) { // the last of them, so that a PONG says: all before the PING is answered
        want_pong = false;
        return frame_build(tx, PONG, 0, 0, pong_data, 8);
    }
    return window_next(tx);
}

size_t tx_pending(const uint8_t **data) {
    if (muted || !greeted) return 0;
    if (tx_at == tx_size) {
        tx_at = 0;
        tx_size = build_next();
    }
    *data = tx + tx_at;
    return tx_size - tx_at;
}

void tx_written(size_t n) { tx_at += n; }

void tx_abandon(void) {
    tx_at = tx_size = 0;
    muted = true;
}
