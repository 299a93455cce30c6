/*
 * A slow or failing disk for tests. This library is preloaded into one process. It delays or fails calls to files below
 * one directory. Other files and sockets are not changed.
 *
 * The kernel has better tools for this (device mapper), but they need root. This library needs only a C compiler. It
 * sees calls through the dynamic symbols of libc, such as the file calls of RocksDB and Python. It does not see mapped
 * memory, stdio or io_uring.
 *
 * Settings are `name=integer` pairs with white space between them. They come from the environment variable SLOWDISK, and
 * from a file if the variable SLOWDISK_CONTROL names one. The library reads the file again at every call, so that a test
 * can change the disk while the process runs:
 *
 *     write_ms     delay of each write and pwrite (also the vectored forms)
 *     sync_ms      delay of each fsync, fdatasync and sync_file_range
 *                  (if a new setting is shorter, a delay under way ends within SLICE_MS; so a test can end a hang)
 *     fail_sync    1: fsync and fdatasync fail with EIO
 *     fail_write   1: write and pwrite fail with EIO
 *     full         1: write and pwrite fail with ENOSPC
 *
 * SLOWDISK_PREFIX names the directory (an absolute path without links). Without it nothing is delayed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define SLICE_MS 50

struct disk {
    long write_ms, sync_ms, fail_sync, fail_write, full;
};

static void take(const char *text, const char *name, long *value)
{
    size_t length = strlen(name);
    for (const char *at = strstr(text, name); at; at = strstr(at + 1, name)) {
        int starts_word = at == text || strchr(" \t\n", at[-1]) != NULL;
        if (starts_word && at[length] == '=') {
            *value = strtol(at + length + 1, NULL, 10);
            return;
        }
    }
}

static void take_all(const char *text, struct disk *disk)
{
    take(text, "write_ms", &disk->write_ms);
    take(text, "sync_ms", &disk->sync_ms);
    take(text, "fail_sync", &disk->fail_sync);
    take(text, "fail_write", &disk->fail_write);
    take(text, "full", &disk->full);
}

/* This makes a system call, because the functions of libc are replaced below. */
static void take_file(const char *path, struct disk *disk)
{
    char text[512];
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return;
    long got = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    if (got < 0)
        return;
    text[got] = 0;
    take_all(text, disk);
}

static struct disk settings(void)
{
    struct disk disk = {0};
    const char *text = getenv("SLOWDISK");
    const char *control = getenv("SLOWDISK_CONTROL");
    if (text)
        take_all(text, &disk);
    if (control)
        take_file(control, &disk);
    return disk;
}

static int is_ours(int fd)
{
    const char *prefix = getenv("SLOWDISK_PREFIX");
    char link[40], path[PATH_MAX];
    if (!prefix)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    size_t wanted = strlen(prefix);
    return strncmp(path, prefix, wanted) == 0 && (path[wanted] == '/' || path[wanted] == 0);
}

static void sleep_ms(long ms)
{
    struct timespec left = {ms / 1000, (ms % 1000) * 1000000};
    if (ms <= 0)
        return;
    while (nanosleep(&left, &left) < 0 && errno == EINTR)
        ;
}

/* Waits in slices, so that new settings can end a hang. */
static void delay(size_t field)
{
    for (long done = 0;;) {
        struct disk disk = settings();
        long left = *(long *)((char *)&disk + field) - done;
        if (left <= 0)
            return;
        long slice = left < SLICE_MS ? left : SLICE_MS;
        sleep_ms(slice);
        done += slice;
    }
}

/* Delays the call. Returns the errno with which the call must fail, or 0. */
static int before_write(int fd)
{
    int saved = errno, fault = 0;
    if (is_ours(fd)) {
        delay(offsetof(struct disk, write_ms));
        struct disk disk = settings();
        fault = disk.fail_write ? EIO : disk.full ? ENOSPC : 0;
    }
    errno = fault ? fault : saved;
    return fault;
}

static int before_sync(int fd)
{
    int saved = errno, fault = 0;
    if (is_ours(fd)) {
        delay(offsetof(struct disk, sync_ms));
        struct disk disk = settings();
        fault = disk.fail_sync ? EIO : 0;
    }
    errno = fault ? fault : saved;
    return fault;
}

#define NEXT(name) \
    static __typeof__(name) *next; \
    if (!next) \
        next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *data, size_t size)
{
    NEXT(write);
    return before_write(fd) ? -1 : next(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at)
{
    NEXT(pwrite);
    return before_write(fd) ? -1 : next(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at)
{
    NEXT(pwrite64);
    return before_write(fd) ? -1 : next(fd, data, size, at);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    NEXT(writev);
    return before_write(fd) ? -1 : next(fd, parts, count);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at)
{
    NEXT(pwritev);
    return before_write(fd) ? -1 : next(fd, parts, count, at);
}

int fsync(int fd)
{
    NEXT(fsync);
    return before_sync(fd) ? -1 : next(fd);
}

int fdatasync(int fd)
{
    NEXT(fdatasync);
    return before_sync(fd) ? -1 : next(fd);
}

int sync_file_range(int fd, off64_t at, off64_t size, unsigned int flags)
{
    NEXT(sync_file_range);
    return before_sync(fd) ? -1 : next(fd, at, size, flags);
}
