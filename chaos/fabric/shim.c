/* Stands between a node and libc: makes syncs slow, and the wall clock wrong, as the control file says at this moment.

   LD_PRELOAD names this library, LEDGERMQ_SHIM its control file, which `chaos.fabric.shim` writes. Without one, nothing changes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct control {
    volatile int64_t sync_delay_ns; /* each sync takes so much longer */
    volatile int64_t clock_ahead_ns;
    int64_t slow_syncs, wrong_times; /* how often it was so: the proof */
};

static struct control nothing;
static struct control *control = &nothing;
static int (*next_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    next_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("LEDGERMQ_SHIM");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *shared = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (shared != MAP_FAILED)
        control = shared;
}

static void wait_as_told(void) {
    int64_t delay = control->sync_delay_ns;
    if (delay <= 0)
        return;
    struct timespec left = {delay / 1000000000, delay % 1000000000};
    while (nanosleep(&left, &left) && errno == EINTR)
        ;
    __atomic_add_fetch(&control->slow_syncs, 1, __ATOMIC_RELAXED);
}

#define SLOW(name, parameters, arguments)                                                                              \
    int name parameters {                                                                                              \
        static int(*next) parameters;                                                                                  \
        if (!next)                                                                                                     \
            next = (int(*) parameters)dlsym(RTLD_NEXT, #name);                                                         \
        wait_as_told();                                                                                                \
        return next arguments;                                                                                         \
    }
SLOW(fsync, (int file), (file))
SLOW(fdatasync, (int file), (file))
SLOW(syncfs, (int file), (file))
SLOW(msync, (void *address, size_t size, int flags), (address, size, flags))

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!next_clock)
        next_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = next_clock(clock, now);
    int64_t ahead = control->clock_ahead_ns;
    if (result || !ahead || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return result;
    int64_t shown = now->tv_sec * 1000000000LL + now->tv_nsec + ahead;
    now->tv_sec = shown / 1000000000;
    now->tv_nsec = shown % 1000000000;
    __atomic_add_fetch(&control->wrong_times, 1, __ATOMIC_RELAXED);
    return 0;
}

int gettimeofday(struct timeval *now, void *zone) {
    (void)zone;
    struct timespec shown;
    if (clock_gettime(CLOCK_REALTIME, &shown))
        return -1;
    now->tv_sec = shown.tv_sec;
    now->tv_usec = shown.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec shown;
    clock_gettime(CLOCK_REALTIME, &shown);
    if (out)
        *out = shown.tv_sec;
    return shown.tv_sec;
}
