/*
 * What a power cut would leave: preloaded into one process, it writes down how much of each file below one directory
 * the disk has acknowledged as flushed. Killing a process loses nothing that it wrote, for the kernel keeps the pages;
 * whoever wants to see what a power cut does kills the process and then cuts each file to the length noted here
 * (`e2e/faults/shims.py` does).
 *
 * LOSSYDISK_PREFIX names the directory (an absolute path without links), LOSSYDISK_LOG the file that lines are appended
 * to, one for each fsync or fdatasync that succeeded on a regular file:
 *
 *     <inode> <bytes> <nanoseconds of CLOCK_MONOTONIC when the call began>
 *
 * `bytes` is the file's length before the call, so what is written while the call lasts does not count. Files are meant
 * that are only ever appended to; a page that is overwritten in place is not undone. sync_file_range promises nothing
 * and is not noted.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int is_ours(int fd)
{
    const char *prefix = getenv("LOSSYDISK_PREFIX");
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

/* One write to a descriptor in append mode, by system call: lines of several threads do not mix. */
static void note(const struct stat *file, long long began_ns)
{
    const char *log = getenv("LOSSYDISK_LOG");
    char line[80];
    if (!log)
        return;
    int length = snprintf(line, sizeof line, "%llu %lld %lld\n", (unsigned long long)file->st_ino,
                          (long long)file->st_size, began_ns);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    if (syscall(SYS_write, fd, line, length) != length)
        abort(); /* a line that is missing would be taken for data that was lost */
    syscall(SYS_close, fd);
}

static int synced(int fd, int (*next)(int))
{
    struct stat before;
    struct timespec now;
    int counts = is_ours(fd) && fstat(fd, &before) == 0 && S_ISREG(before.st_mode);
    clock_gettime(CLOCK_MONOTONIC, &now);
    int result = next(fd);
    int saved = errno;
    if (counts && result == 0)
        note(&before, now.tv_sec * 1000000000LL + now.tv_nsec);
    errno = saved;
    return result;
}

#define NEXT(name) \
    static __typeof__(name) *next; \
    if (!next) \
        next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

int fsync(int fd)
{
    NEXT(fsync);
    return synced(fd, next);
}

int fdatasync(int fd)
{
    NEXT(fdatasync);
    return synced(fd, next);
}
