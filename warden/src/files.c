// Files beneath a root, in a child that already is the user: whatever goes wrong here, the kernel's permissions hold.
// Descriptor 0 is the content (write), 1 the answer. Every function returns 0 or an errno, which is the exit code.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h> // renameat
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "warden.h"

enum { MAX_ENTRIES = 100000, MAX_DEPTH = 64, DIRECTORY = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };

// ---- the path

static bool path_allowed(const char *path) {
    if (path[0] == '/') return false;
    for (const char *p = path; *p;) {
        size_t n = strcspn(p, "/");
        if (n == 2 && p[0] == '.' && p[1] == '.') return false;
        p += n + (p[n] == '/');
    }
    return true;
}

// Cuts off and returns the next component that is not "." or empty; NULL at the end.
static char *next_name(char **path) {
    for (char *name; *path && **path;) {
        name = *path;
        size_t n = strcspn(name, "/");
        *path = name[n] ? name + n + 1 : name + n;
        name[n] = 0;
        if (n && strcmp(name, ".")) return name;
    }
    return NULL;
}

// One step down, or -1. Linux calls a link in a folder's place "not a folder"; say what it is, as openat2 does.
static int step(int at, const char *name) {
    struct stat st;
    int fd = openat(at, name, DIRECTORY);
    if (fd < 0 && errno == ENOTDIR) errno = !fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) && S_ISLNK(st.st_mode) ? ELOOP : ENOTDIR;
    return fd;
}

#ifdef NO_OPENAT2 // as on gVisor and before Linux 5.6; a build of its own, for the tests
static int resolve_at_once(int root, const char *path) { (void)root; (void)path; errno = ENOSYS; return -1; }
#else
#ifndef SYS_openat2
#define SYS_openat2 437
#endif
static int resolve_at_once(int root, const char *path) {
    struct { uint64_t flags, mode, resolve; } how = {0};
    how.flags = DIRECTORY & ~O_NOFOLLOW; // with it a link at the end would be ENOTDIR instead of ELOOP
    how.resolve = 0x08 | 0x04 | 0x02;    // beneath, no links, no magic links
    return (int)syscall(SYS_openat2, root, path, &how, sizeof how);
}
#endif

// The folder that holds the last component of the path, which is returned in *name ("." where the path is the root).
static int open_parent(int root, char *path, bool make, const char **name) {
    char *last, *next;
    size_t n = strlen(path);
    while (n && path[n - 1] == '/') path[--n] = 0;
    last = strrchr(path, '/');
    if (last && !make && strcmp(last + 1, ".")) {
        *last = 0;
        int fd = resolve_at_once(root, path);
        *name = last + 1;
        if (fd >= 0 || (errno != ENOSYS && errno != EPERM)) return fd; // some seccomp profiles say EPERM
        *last = '/';
    }
    last = next_name(&path);
    while ((next = next_name(&path))) {
        if (make && mkdirat(root, last, 0755) && errno != EEXIST) return -1;
        int fd = step(root, last);
        if (fd < 0) return -1;
        close(root);
        root = fd;
        last = next;
    }
    *name = last ? last : ".";
    return root;
}

static int not_regular(const struct stat *st) {
    return S_ISREG(st->st_mode) ? 0 : S_ISDIR(st->st_mode) ? EISDIR : S_ISLNK(st->st_mode) ? ELOOP : EINVAL;
}

// ---- read and write

static int write_all(int fd, const uint8_t *p, size_t n) {
    while (n) {
        ssize_t done = write(fd, p, n);
        if (done < 0 && errno != EINTR) return errno;
        if (done > 0) p += done, n -= (size_t)done;
    }
    return 0;
}

static int do_read(int at, const char *name, const struct spec *s) {
    static uint8_t buffer[65536];
    struct stat st;
    uint64_t left = s->length ? s->length : UINT64_MAX;
    int error;
    if (s->offset > INT64_MAX) return EINVAL;
    if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW)) return errno;
    if ((error = not_regular(&st))) return error; // opening a device can do things; look first, and again below
    int fd = openat(at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st)) return errno;
    if ((error = not_regular(&st))) return error;
    if (s->offset && lseek(fd, (off_t)s->offset, SEEK_SET) < 0) return errno;
    while (left) {
        ssize_t n = read(fd, buffer, left < sizeof buffer ? (size_t)left : sizeof buffer);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n ? errno : 0;
        if ((error = write_all(1, buffer, (size_t)n))) return error;
        left -= (uint64_t)n;
    }
    return 0;
}

static int copy_stdin(int fd) {
    static uint8_t buffer[65536];
    for (;;) {
        ssize_t n = read(0, buffer, sizeof buffer);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n ? errno : 0;
        int error = write_all(fd, buffer, (size_t)n);
        if (error) return error;
    }
}

static void temporary_name(char name[17]) {
    static uint64_t calls;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t seed = (uint64_t)t.tv_nsec << 32 ^ (uint64_t)t.tv_sec << 16 ^ (uint64_t)getpid() ^ calls++ << 8;
    memcpy(name, ".fh-", 4);
    for (int i = 4; i < 16; i++, seed /= 26) name[i] = (char)('a' + seed % 26);
    name[16] = 0;
}

static int do_write(int at, const char *name, const struct spec *s) {
    struct stat st;
    char temporary[17];
    int error = 0;
    if (!fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) && (error = not_regular(&st))) return error;
    temporary_name(temporary);
    int fd = openat(at, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return errno;
    error = copy_stdin(fd);
    if (!error && fchmod(fd, s->mode & 0777)) error = errno;
    if (close(fd) && !error) error = errno;
    if (!error && renameat(at, temporary, at, name)) error = errno;
    if (error) unlinkat(at, temporary, 0);
    return error;
}

// ---- list and stat

static uint8_t answer[32768];
static size_t answered;

static int flush_answer(void) {
    size_t n = answered;
    answered = 0;
    return write_all(1, answer, n);
}

static int put_record(const struct stat *st, const char *name) {
    uint8_t record[33 + 256], *p = record;
    size_t n = strlen(name);
    mode_t m = st->st_mode;
    int64_t ms = (int64_t)st->st_mtim.tv_sec * 1000 + st->st_mtim.tv_nsec / 1000000;
    if (n > 255) return ENAMETOOLONG;
    p = put_be(p, S_ISREG(m) ? 1 : S_ISDIR(m) ? 2 : S_ISLNK(m) ? 3 : 4, 1);
    p = put_be(p, m & 07777, 4);
    p = put_be(p, st->st_uid, 4);
    p = put_be(p, st->st_gid, 4);
    p = put_be(p, (uint64_t)st->st_size, 8);
    p = put_be(p, ms < 0 ? 0 : (uint64_t)ms, 8);
    p = put_be(p, n, 4);
    memcpy(p, name, n);
    memcpy(answer + answered, record, 33 + n);
    answered += 33 + n;
    return answered > sizeof answer - sizeof record ? flush_answer() : 0;
}

static int do_stat(int at, const char *name) {
    struct stat st;
    if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW)) return errno;
    return put_record(&st, name);
}

static bool is_dots(const char *name) { return !strcmp(name, ".") || !strcmp(name, ".."); }

static DIR *open_folder(int at, const char *name) {
    int fd = step(at, name); // says ELOOP for links
    if (fd < 0) return NULL;
    // Not by name again: it may be another folder by now, and gVisor of 2022 follows a link there in spite of O_NOFOLLOW.
    int folder = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), error = errno;
    close(fd);
    errno = error;
    return folder < 0 ? NULL : fdopendir(folder);
}

static int do_list(int at, const char *name) {
    struct dirent *entry;
    struct stat st;
    DIR *folder = open_folder(at, name);
    if (!folder) return errno;
    for (int count = 0; (errno = 0, entry = readdir(folder));) {
        if (is_dots(entry->d_name)) continue;
        if (count++ == MAX_ENTRIES) return EOVERFLOW;
        if (fstatat(dirfd(folder), entry->d_name, &st, AT_SYMLINK_NOFOLLOW)) {
            if (errno == ENOENT) continue; // gone since
            return errno;
        }
        int error = put_record(&st, entry->d_name);
        if (error) return error;
    }
    return errno;
}

// ---- remove and mkdir

static int empty(int at, const char *name, int top, int depth);

// Folders too deep for our descriptors and stack are moved up to the top of the tree, which is emptied again.
static int remove_entry(int at, const char *name, int top, int depth) {
    char up[17];
    if (!unlinkat(at, name, 0) || errno == ENOENT) return 0;
    if (errno != EISDIR) return errno;
    if (depth < MAX_DEPTH) {
        int error = empty(at, name, top, depth + 1);
        if (error) return error;
        return unlinkat(at, name, AT_REMOVEDIR) && errno != ENOENT ? errno : 0;
    }
    temporary_name(up);
    return renameat(at, name, top, up) ? errno : EAGAIN;
}

static int empty(int at, const char *name, int top, int depth) {
    struct dirent *entry;
    DIR *folder = open_folder(at, name);
    int error = 0, result = 0;
    if (!folder) return errno;
    if (depth == 0) top = dirfd(folder);
    do {
        bool again = false;
        rewinddir(folder);
        while (!error && (errno = 0, entry = readdir(folder))) {
            if (is_dots(entry->d_name)) continue;
            error = remove_entry(dirfd(folder), entry->d_name, top, depth);
            if (error == EAGAIN) again = true, error = 0;
        }
        if (!error) error = errno;
        result = error ? error : again ? EAGAIN : 0;
    } while (depth == 0 && result == EAGAIN);
    closedir(folder);
    return result;
}

static int do_remove(int at, const char *name, bool recursive) {
    struct stat st;
    if (!strcmp(name, ".")) return EBUSY; // the root stays
    if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW)) return errno;
    if (!S_ISDIR(st.st_mode)) return unlinkat(at, name, 0) ? errno : 0;
    int error = recursive ? empty(at, name, -1, 0) : 0;
    return error ? error : unlinkat(at, name, AT_REMOVEDIR) ? errno : 0;
}

static int do_mkdir(int at, const char *name, const struct spec *s) {
    struct stat st;
    if (!mkdirat(at, name, s->mode & 0777)) return 0;
    int error = errno;
    bool there = !fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) && S_ISDIR(st.st_mode);
    return error == EEXIST && there && s->flags & F_RECURSIVE ? 0 : error;
}

int file_command(const struct spec *s) {
    const char *name;
    bool make = s->flags & F_RECURSIVE && (s->kind == K_WRITE || s->kind == K_MKDIR);
    int error = 0;
    if (!path_allowed(s->argv[0])) return EINVAL;
    int at = open(s->directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (at < 0) return errno;
    at = open_parent(at, s->argv[0], make, &name);
    if (at < 0) return errno;
    switch (s->kind) {
    case K_READ: error = do_read(at, name, s); break;
    case K_WRITE: error = do_write(at, name, s); break;
    case K_LIST: error = do_list(at, name); break;
    case K_STAT: error = do_stat(at, name); break;
    case K_REMOVE: error = do_remove(at, name, s->flags & F_RECURSIVE); break;
    case K_MKDIR: error = do_mkdir(at, name, s); break;
    }
    int flushed = flush_answer();
    return error ? error : flushed;
}
