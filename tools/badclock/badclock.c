/*
 * A wall clock that jumps. This library is preloaded into a Python process. It shifts the CLOCK_REALTIME of the
 * interpreter and of gRPC by the number in a file. It does not change the monotonic clock. A machine whose time is set
 * behaves in the same way.
 *
 * BADCLOCK_CONTROL names a file with one signed 64-bit number in the machine's byte order: nanoseconds. The library maps
 * the file once and reads it at each call. So a test sets the clock of the running process by a write to this file.
 *
 * Only calls from the code of the interpreter and of gRPC are shifted. Both must be: the interpreter computes the
 * deadline of a call from its clock, and gRPC compares it with its own. gRPC's threads also wait until a moment of
 * CLOCK_REALTIME. The kernel compares this moment with its own clock, which did not jump. So the moment is shifted back
 * on its way to the kernel. After a real jump the kernel wakes such threads.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <link.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define RANGES_MAX 8

static const volatile int64_t *shift;
static uintptr_t begins[RANGES_MAX], ends[RANGES_MAX];
static int range_count, python_count, grpc_is_known; /* the first `python_count` ranges are Python's, the rest gRPC's */
static unsigned long long loaded;
static pthread_mutex_t looking = PTHREAD_MUTEX_INITIALIZER;

static void add_code(const struct dl_phdr_info *object)
{
    for (int i = 0; i < object->dlpi_phnum && range_count < RANGES_MAX; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && (part->p_flags & PF_X)) {
            begins[range_count] = object->dlpi_addr + part->p_vaddr;
            ends[range_count] = object->dlpi_addr + part->p_vaddr + part->p_memsz;
            __atomic_add_fetch(&range_count, 1, __ATOMIC_RELEASE);
        }
    }
}

/* The first object is the program itself. If Python was built with a shared library, its code is in that library. */
static int take_python(struct dl_phdr_info *object, size_t size, void *seen)
{
    (void)size;
    if (!(*(int *)seen)++ || strstr(object->dlpi_name, "libpython"))
        add_code(object);
    return 0;
}

static int take_grpc(struct dl_phdr_info *object, size_t size, void *nothing)
{
    (void)size;
    (void)nothing;
    if (!strstr(object->dlpi_name, "cygrpc"))
        return 0;
    add_code(object);
    __atomic_store_n(&grpc_is_known, 1, __ATOMIC_RELEASE);
    return 1;
}

static int count_loaded(struct dl_phdr_info *object, size_t size, void *count)
{
    (void)size;
    *(unsigned long long *)count = object->dlpi_adds;
    return 1;
}

/* gRPC is loaded when Python imports it: look again whenever something was loaded. */
static void look_for_grpc(void)
{
    unsigned long long count = 0;
    if (__atomic_load_n(&grpc_is_known, __ATOMIC_ACQUIRE) || pthread_mutex_trylock(&looking))
        return;
    dl_iterate_phdr(count_loaded, &count);
    if (!grpc_is_known && count != loaded) {
        loaded = count;
        dl_iterate_phdr(take_grpc, NULL);
    }
    pthread_mutex_unlock(&looking);
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
    int seen = 0;
    dl_iterate_phdr(take_python, &seen);
    python_count = range_count;
    shift = mapped;
}

static int is_of_code(const void *caller, int first)
{
    int count = __atomic_load_n(&range_count, __ATOMIC_ACQUIRE);
    for (int i = first; shift && i < count; i++)
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

static void *find(const char *name, const char *version)
{
    void *found = version ? dlvsym(RTLD_NEXT, name, version) : NULL;
    return found ? found : dlsym(RTLD_NEXT, name);
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    static int (*next)(clockid_t, struct timespec *);
    if (!next)
        next = (int (*)(clockid_t, struct timespec *))find("clock_gettime", NULL);
    int result = next(clock, time);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) &&
        is_of_code(__builtin_return_address(0), 0)) {
        look_for_grpc();
        add(time, *shift);
    }
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
    static int (*next)(struct timeval *restrict, void *restrict);
    if (!next)
        next = (int (*)(struct timeval *restrict, void *restrict))find("gettimeofday", NULL);
    int result = next(time, zone);
    if (result == 0 && is_of_code(__builtin_return_address(0), 0)) {
        struct timespec fine = {time->tv_sec, time->tv_usec * 1000};
        add(&fine, *shift);
        time->tv_sec = fine.tv_sec;
        time->tv_usec = fine.tv_nsec / 1000;
    }
    return result;
}

/*
 * The moment as the kernel's clock has it, in `mine` if it had to be changed. Only gRPC waits until a moment of
 * CLOCK_REALTIME: Python's waits are by the monotonic clock, also those that come here.
 */
static const struct timespec *unshifted(const struct timespec *until, struct timespec *mine, const void *caller)
{
    if (!until || !is_of_code(caller, python_count))
        return until;
    *mine = *until;
    add(mine, -*shift);
    if (mine->tv_sec < 0)
        mine->tv_sec = mine->tv_nsec = 0;
    return mine;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until)
{
    static int (*next)(pthread_cond_t *restrict, pthread_mutex_t *restrict, const struct timespec *restrict);
    struct timespec mine;
    if (!next)
        next = (int (*)(pthread_cond_t *restrict, pthread_mutex_t *restrict, const struct timespec *restrict))find(
            "pthread_cond_timedwait", "GLIBC_2.3.2");
    return next(cond, mutex, unshifted(until, &mine, __builtin_return_address(0)));
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until)
{
    static int (*next)(sem_t *restrict, const struct timespec *restrict);
    struct timespec mine;
    if (!next)
        next = (int (*)(sem_t *restrict, const struct timespec *restrict))find("sem_timedwait", NULL);
    return next(semaphore, unshifted(until, &mine, __builtin_return_address(0)));
}

long syscall(long number, ...)
{
    static long (*next)(long, ...);
    struct timespec mine;
    long a[6];
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(arguments, long);
    va_end(arguments);
    if (!next)
        next = (long (*)(long, ...))find("syscall", NULL);
    if (number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME) && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET)
        a[3] = (long)unshifted((const struct timespec *)a[3], &mine, __builtin_return_address(0));
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
