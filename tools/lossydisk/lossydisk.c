/*
 * Shows what a power cut would leave. This library is preloaded into one process. For each file below one directory, it
 * notes how many bytes the disk has reported as flushed. A killed process loses no byte that it wrote, because the
 * kernel keeps the pages. A test that simulates a power cut kills the process, and then cuts each file to the noted
 * length (see `e2e/faults/systems/shims.py`).
 *
 * LOSSYDISK_PREFIX names the directory (an absolute path without links). LOSSYDISK_LOG names the file to which lines are
 * appended, one for each fsync or fdatasync that succeeded on a regular file:
 *
 *     <inode> <bytes> <nanoseconds of CLOCK_MONOTONIC when the call began>
 *
 * `bytes` is the file's length before the call, so bytes that are written during the call do not count. This works for
 * files that only grow: if a page was overwritten, its old content does not come back. sync_file_range is not noted,
 * because it promises nothing.
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

/* One system call writes the line in append mode, so that lines of several threads do not mix. */
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
        abort(); /* without this line, flushed data would count as lost */
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
