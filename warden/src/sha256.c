// SHA-256 (FIPS 180-4), plain and small.
#include <string.h>
#include "warden.h"

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static inline uint32_t ror(uint32_t x, int n) { return x >> n | x << (32 - n); }

static inline uint32_t schedule(uint32_t w[16], int i) {
    uint32_t x = w[(i + 1) & 15], y = w[(i + 14) & 15];
    return w[i & 15] += (ror(x, 7) ^ ror(x, 18) ^ x >> 3) + w[(i + 9) & 15] + (ror(y, 17) ^ ror(y, 19) ^ y >> 10);
}

#define ROUND(a, b, c, d, e, f, g, h, i) \
    h += (ror(e, 6) ^ ror(e, 11) ^ ror(e, 25)) + (g ^ (e & (f ^ g))) + K[i] + w[(i) & 15]; \
    d += h; \
    h += (ror(a, 2) ^ ror(a, 13) ^ ror(a, 22)) + ((a & b) | (c & (a | b)))

// Unrolled, so that every variable stays in its register: this is most of what the output of a program costs here.
static inline __attribute__((always_inline)) void rounds(uint32_t state[8], const uint8_t *p) {
    uint32_t w[16];
    for (int i = 0; i < 16; i++) w[i] = (uint32_t)p[4 * i] << 24 | p[4 * i + 1] << 16 | p[4 * i + 2] << 8 | p[4 * i + 3];
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6], h = state[7];
#pragma GCC unroll 8
    for (int i = 0; i < 64; i += 8) {
        if (i >= 16) {
#pragma GCC unroll 8
            for (int k = i; k < i + 8; k++) schedule(w, k);
        }
        ROUND(a, b, c, d, e, f, g, h, i);
        ROUND(h, a, b, c, d, e, f, g, i + 1);
        ROUND(g, h, a, b, c, d, e, f, i + 2);
        ROUND(f, g, h, a, b, c, d, e, i + 3);
        ROUND(e, f, g, h, a, b, c, d, i + 4);
        ROUND(d, e, f, g, h, a, b, c, i + 5);
        ROUND(c, d, e, f, g, h, a, b, i + 6);
        ROUND(b, c, d, e, f, g, h, a, i + 7);
    }
    const uint32_t s[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; i++) state[i] += s[i];
}

#ifdef __x86_64__ // a rotation that leaves its source as it was: a third more bytes a second
static __attribute__((target("bmi,bmi2"))) void compress_bmi2(uint32_t state[8], const uint8_t *p) { rounds(state, p); }
#endif

static void compress(uint32_t state[8], const uint8_t *p) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2")) {
        compress_bmi2(state, p);
        return;
    }
#endif
    rounds(state, p);
}

void sha256_init(struct sha256 *s) {
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(s->state, start, sizeof start);
    s->total = 0;
}

void sha256_update(struct sha256 *s, const uint8_t *data, size_t n) {
    while (n) {
        size_t at = s->total % 64, take = 64 - at < n ? 64 - at : n;
        if (take == 64) {
            compress(s->state, data);
        } else {
            memcpy(s->block + at, data, take);
            if (at + take == 64) compress(s->state, s->block);
        }
        s->total += take;
        data += take;
        n -= take;
    }
}

void sha256_final(struct sha256 *s, uint8_t out[32]) {
    uint8_t pad[72] = {0x80};
    uint64_t bits = s->total * 8;
    size_t n = 1 + (119 - s->total % 64) % 64;
    put_be(pad + n, bits, 8);
    sha256_update(s, pad, n + 8);
    for (int i = 0; i < 8; i++) put_be(out + 4 * i, s->state[i], 4);
}
