// fumehood-warden: PID 1 of every sandbox. The contract is contracts/warden-protocol.md; names here follow it.
#ifndef WARDEN_H
#define WARDEN_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

enum {
    VERSION = 1,
    WARDEN_ID = 65511, // the reserved uid and gid; no command ever runs under them
    HEADER = 28,
    MAX_PAYLOAD = 65536,
    MAX_FRAME = HEADER + MAX_PAYLOAD,
    PIECE = 32768,                 // most bytes read from a program at once
    WINDOW = 524288,               // reliable bytes of a command kept until acknowledged
    RESERVE = 256,                 // room beyond the window: STARTED and EXIT (196 bytes) always fit
    MAX_COMMANDS = 32,             // running, or ended and not yet acknowledged
    STDIN_WINDOW = 262144,
    MAX_SPEC = 2 << 20,
};

enum { HELLO = 1, SPEC, START, STDIN, STDIN_EOF, ACK, SIGNAL, RESIZE, PING, SHUTDOWN, ACK_COMMAND, BEGIN };
enum { WELCOME = 129, STARTED, OUTPUT, EXIT, STDIN_ACK, PONG, REFUSED };
enum { R_DUPLICATE = 1, R_TOO_MANY, R_MALFORMED, R_UNKNOWN, R_STDIN, R_TOO_LARGE };
enum { K_EXEC, K_READ, K_WRITE, K_LIST, K_STAT, K_REMOVE, K_MKDIR };
enum { F_SWEEP_EXIT = 1, F_SWEEP_TIMEOUT = 2, F_PTY = 4, F_STDIN = 8, F_RECURSIVE = 16, F_WAITS = 32, F_ALL = 63 };
enum { EXITED = 1, SIGNALED, TIMED_OUT, NOT_STARTED };
enum { STAGE_FORK = 1, STAGE_USER, STAGE_DIRECTORY, STAGE_EXEC, STAGE_PTY };

// sha256.c
struct sha256 {
    uint32_t state[8];
    uint64_t total;
    uint8_t block[64];
};
void sha256_init(struct sha256 *s);
void sha256_update(struct sha256 *s, const uint8_t *data, size_t n);
void sha256_final(struct sha256 *s, uint8_t out[32]);

// frame.c: the codec, the receiving state machine and the sending side
uint64_t get_be(const uint8_t *p, int bytes);
uint8_t *put_be(uint8_t *p, uint64_t v, int bytes); // returns the end
size_t frame_build(uint8_t *out, int type, uint32_t id, uint64_t seq, const uint8_t *payload, size_t n);
void rx_feed(const uint8_t *data, size_t n);
void tx_hello(const uint8_t nonce[16]); // WELCOME next, then everything unacknowledged
void tx_pong(const uint8_t data[8]);
void tx_refuse(uint32_t id, int code);
size_t tx_pending(const uint8_t **data); // bytes to write next; 0: nothing to send
void tx_written(size_t n);
void tx_abandon(void); // the other end is gone: drop the half-written frame

// window.c: reliable frames, kept until acknowledged
struct command;
struct window {
    uint8_t *ring;
    size_t head, used; // the oldest frame, and how many bytes are kept
    size_t sent;       // of those, how many were handed to the sender since the last HELLO
};
bool window_open(struct window *w); // false: no memory
void window_close(struct window *w);
bool window_room(const struct window *w); // for one more full piece of output
uint64_t window_push(struct command *c, int type, const uint8_t *payload, size_t n);
void window_ack(struct window *w, uint64_t seq);
void window_rewind(void);
size_t window_next(uint8_t *out); // copies the next unsent frame; 0: none
uint64_t window_next_seq(void);

// command.c: what frames mean
struct spec {
    uint8_t kind, flags;
    uint16_t rows, columns;
    uint32_t uid, gid, timeout_ms, mode;
    uint64_t offset, length;
    char *directory, **argv, **env;
};

struct stream {
    int fd; // -1: closed
    bool last; // the leader is gone: read `left` bytes more, then close
    uint64_t left, total;
    struct sha256 sha;
};

enum state { FREE, WAITING, STARTING, RUNNING, ENDED, DONE };

struct command {
    enum state state;
    uint32_t id;
    int32_t pid; // 0: no process (never one, or reaped)
    struct spec spec;
    uint8_t *spec_data; // what the strings of spec point into; freed once the child has its copy
    int report;         // the child tells here why it could not exec; closed by a good exec
    struct stream out[2];
    struct window window;
    int in; // stdin pipe or PTY, -1: closed
    uint8_t *in_data; // ring of STDIN_WINDOW bytes; NULL: the command has no stdin
    uint64_t in_received, in_handed;
    bool in_eof, in_ack, timed_out;
    bool await_sweep; // EXIT waits until only the warden is left
    int32_t group;    // EXIT waits until this process group, which is killed again and again, is empty; 0: none
    uint64_t told; // signals the owner had us send (bit n-1), to tell our kill from a program's own
    uint8_t stage;
    int32_t error, wait_status;
    uint64_t deadline, drain_until, group_until; // ms of now_ms(), 0: none
    uint64_t started_us, started_wall, ended_wall, duration_us;
    uint64_t user_us, system_us, max_rss, exit_seq;
};
extern struct command commands[MAX_COMMANDS];
extern uint32_t highest_id;
extern bool sweeping;

bool spec_decode(uint8_t *data, size_t n, struct spec *s); // changes data: strings become NUL-terminated in place
void spec_free(struct spec *s);
void dispatch(int type, uint32_t id, const uint8_t *payload, size_t n);
void command_reported(struct command *c, int stage, int error); // stage 0: exec succeeded
void command_output(struct command *c, int which, const uint8_t *data, size_t n);
void command_stream_closed(struct command *c, int which);
void command_reaped(int32_t pid, int status, const struct rusage *ru);
void command_swept(void); // nothing but the warden is left
void command_stdin_pump(struct command *c);
void command_timers(uint64_t now);
void commands_start_waiting(void);
void commands_kill_all(int sig);

// proc.c: everything that touches processes; the fuzzer links stubs instead
uint64_t now_us(void); // CLOCK_BOOTTIME, so that a suspended machine's time counts
uint64_t now_ms(void);
uint64_t after_ms(uint64_t ms); // when now_ms() has this value, so long has passed for certain
uint64_t wall_ms(void);
char *decimal(char *p, uint64_t v); // returns the end; no NUL
int proc_spawn(struct command *c, int *error); // 0 or the stage that failed
void proc_kill_group(struct command *c, int sig);
bool proc_kill_rest(int32_t group); // SIGKILL; false: nothing of the group is left
void proc_kill_all(int sig);
long proc_write(int fd, const uint8_t *data, size_t n); // -1: would block, -2: nobody reads
void proc_close(int *fd);
void proc_resize(struct command *c, uint16_t rows, uint16_t columns);
uint64_t proc_unread(int fd, bool pty); // bytes waiting in it
int set_user(uint32_t uid, uint32_t gid, uint32_t caps); // 0 or errno; exactly these capabilities are left
void close_from(int fd);
void owner_seen(uint32_t orphan_ms); // 0: as before
_Noreturn void shutdown_now(int code);

// files.c and probe.c
int file_command(const struct spec *s); // in the child, already the user; returns 0 or errno
int probe(void);
#endif
