/*
 * A wall clock that jumps. This library is preloaded into a Python process. It shifts the interpreter's CLOCK_REALTIME
 * by the number in a file. It does not change the monotonic clock. A machine whose time is set behaves in the same way.
 *
 * BADCLOCK_CONTROL names a file with one signed 64-bit number in the machine's byte order: nanoseconds. The library maps
 * the file once and reads it at each call. So a test sets the clock of the running process by a write to this file.
 *
 * Only calls from the interpreter's own code are shifted. gRPC's threads wait until a moment of CLOCK_REALTIME, and the
 * kernel compares this moment with its own clock, which did not jump. If their calls were shifted, they would wait for
 * an hour, or not at all. A real jump does not do that, because the kernel wakes such threads.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define RANGES_MAX 8

static const volatile int64_t *shift;
static uintptr_t begins[RANGES_MAX], ends[RANGES_MAX];
static int range_count;

/* The first object is the program itself. If Python was built with a shared library, its code is in that library. */
static int take(struct dl_phdr_info *object, size_t size, void *nothing)
{
    static int seen;
    (void)size;
    (void)nothing;
    if (seen++ && !strstr(object->dlpi_name, "libpython"))
        return 0;
    for (int i = 0; i < object->dlpi_phnum && range_count < RANGES_MAX; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && (part->p_flags & PF_X)) {
            begins[range_count] = object->dlpi_addr + part->p_vaddr;
            ends[range_count++] = object->dlpi_addr + part->p_vaddr + part->p_memsz;
        }
    }
    return 0;
}

__attribute__((constructor)) static void prepare(void)
{
    const char *control = getenv("BADCLOCK_CONTROL");
    int fd = control ? open(control, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *mapped = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED)
        return;
    dl_iterate_phdr(take, NULL);
    shift = mapped;
}

static int is_shifted(clockid_t clock, const void *caller)
{
    if (!shift || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return 0;
    for (int i = 0; i < range_count; i++)
        if ((uintptr_t)caller >= begins[i] && (uintptr_t)caller < ends[i])
            return 1;
    return 0;
}

static void add(struct timespec *time, int64_t ns)
{
    int64_t total = time->tv_nsec + ns % 1000000000;
    time->tv_sec += ns / 1000000000;
    if (total < 0)
        total += 1000000000, time->tv_sec--;
    if (total >= 1000000000)
        total -= 1000000000, time->tv_sec++;
    time->tv_nsec = total;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    static int (*next)(clockid_t, struct timespec *);
    if (!next)
        next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = next(clock, time);
    if (result == 0 && is_shifted(clock, __builtin_return_address(0)))
        add(time, *shift);
    return result;
}
