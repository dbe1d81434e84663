/* Threads that use memory side by side, one way a build (-DCASE=...); -DPAD gives each its own line.
 * Prints how long the threads took and a number that does not depend on it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MISALIGNED 1
#define FLAG 2
#define LOCK 3
#define QUEUE 4
#define SELDOM 5
#define HEAP 6
#define READ_MOSTLY 7
#define REFERENCES 8
#define SHARED 9
#define NOTHING 10
#define ADDED 11

#ifdef PAD
#define APART __attribute__((aligned(128)))
#else
#define APART
#endif

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static pthread_barrier_t begin;

#if CASE == MISALIGNED
/* Sums of a regression: a struct of 64 bytes a thread, off a line. */
struct sums { long x, y, xx, yy, xy; long rest[3]; };
static char room[4096] __attribute__((aligned(256)));
#ifdef PAD
#define OF(id) ((struct sums *)(room + 256 * (id)))
#else
#define OF(id) ((struct sums *)(room + 48 + sizeof(struct sums) * (id)))
#endif
static void work(int id, long times) {
    volatile struct sums *s = OF(id);
    for (long i = 0; i < times; i++) {
        long x = i & 255, y = (i >> 8) & 255;
        s->x += x, s->xx += x * x, s->y += y, s->yy += y * y, s->xy += x * y;
    }
}
static long result(void) { return OF(0)->x + OF(1)->xy; }
#elif CASE == FLAG
/* One thread polls a flag, the other counts beside it. */
static struct { volatile int stop; APART volatile long count; APART volatile long polls; } f __attribute__((aligned(128)));
static void work(int id, long times) {
    if (id == 0) {
        for (long i = 0; i < times; i++) f.count++;
        f.stop = 1;
    } else {
        long polls = 0;
        while (!f.stop) polls++;
        f.polls = polls;
    }
}
static long result(void) { return f.count; }
#elif CASE == LOCK
/* A lock beside the data that it protects: padding costs another miss. */
static struct { atomic_int lock; APART volatile long data[4]; } l __attribute__((aligned(128)));
static void work(int id, long times) {
    (void)id;
    for (long i = 0; i < times; i++) {
        while (atomic_exchange_explicit(&l.lock, 1, memory_order_acquire))
            while (atomic_load_explicit(&l.lock, memory_order_relaxed)) __builtin_ia32_pause();
        l.data[0]++, l.data[1]++;
        atomic_store_explicit(&l.lock, 0, memory_order_release);
        for (int k = 0; k < 40; k++) __asm__ volatile("" ::: "memory");
    }
}
static long result(void) { return l.data[0] + l.data[1]; }
#elif CASE == QUEUE
/* A ring of one writer and one reader: head beside tail. Each looks at the other's end seldom. */
static struct { APART _Atomic long head; APART _Atomic long tail; } q __attribute__((aligned(128)));
static long ring[1 << 12], got;
static void work(int id, long times) {
    long seen = 0, sum = 0;
    for (long i = 0; i < times; i++) {
        if (id == 0) {
            while (i - seen >= 1 << 12) seen = atomic_load_explicit(&q.tail, memory_order_acquire);
            ring[i & 4095] = i;
            atomic_store_explicit(&q.head, i + 1, memory_order_release);
        } else {
            while (seen <= i) seen = atomic_load_explicit(&q.head, memory_order_acquire);
            sum += ring[i & 4095];
            atomic_store_explicit(&q.tail, i + 1, memory_order_release);
        }
    }
    if (id == 1) got = sum;
}
static long result(void) { return got; }
#elif CASE == SELDOM
/* Every 100th iteration writes to neighbours. */
static struct { APART volatile long count; } s[2] __attribute__((aligned(128)));
static void work(int id, long times) {
    unsigned long x = id + 1;
    for (long i = 0; i < times; i++) {
        x = x * 6364136223846793005ul + 1;
        if (i % 100 == 0) s[id].count += 1 + (x == 0);
    }
}
static long result(void) { return s[0].count + s[1].count; }
#elif CASE == HEAP
/* Small blocks of two threads that malloc puts side by side. */
static volatile long *block[2];
static void prepare(void) {
#ifdef PAD
    block[0] = aligned_alloc(128, 128), block[1] = aligned_alloc(128, 128);
#else
    do {
        block[0] = block[1], block[1] = malloc(24);
    } while ((unsigned long)block[0] / 64 != (unsigned long)block[1] / 64);
#endif
    *block[0] = *block[1] = 0;
}
#define PREPARE prepare()
static void work(int id, long times) {
    volatile long *own = block[id];
    for (long i = 0; i < times; i++) ++*own;
}
static long result(void) { return *block[0] + *block[1]; }
#elif CASE == READ_MOSTLY
/* A configuration that is read all the time beside a number that is seldom written. */
static struct { volatile long wanted; APART volatile long changes; } c __attribute__((aligned(128))) = {3, 0};
static volatile long sink;
static void work(int id, long times) {
    long sum = 0;
    for (long i = 0; i < times; i++) {
        if (id == 0) sum += c.wanted;
        else if (i % 64 == 0) c.changes++;
        else __asm__ volatile("" ::: "memory");
    }
    if (id == 0) sink = sum;
}
static long result(void) { return sink + c.changes; }
#elif CASE == REFERENCES
/* Reference counts of two objects in one line, each a thread's. */
static struct { APART atomic_long count; } r[2] __attribute__((aligned(128)));
static void work(int id, long times) {
    for (long i = 0; i < times; i++) {
        atomic_fetch_add_explicit(&r[id].count, 1, memory_order_relaxed);
        for (int k = 0; k < 20; k++) __asm__ volatile("" ::: "memory");
        atomic_fetch_sub_explicit(&r[id].count, 1, memory_order_acq_rel);
    }
}
static long result(void) { return r[0].count + r[1].count; }
#elif CASE == SHARED
/* One counter of both threads: nothing to pad. */
static struct { APART atomic_long count; } g __attribute__((aligned(128)));
static void work(int id, long times) {
    (void)id;
    for (long i = 0; i < times; i++) atomic_fetch_add_explicit(&g.count, 1, memory_order_relaxed);
}
static long result(void) { return g.count; }
#elif CASE == NOTHING
/* Each thread its own page. */
static struct { volatile long count; char rest[4088]; } n[2] __attribute__((aligned(4096)));
static void work(int id, long times) {
    for (long i = 0; i < times; i++) n[id].count++;
}
static long result(void) { return n[0].count + n[1].count; }
#elif CASE == ADDED
/* += of neighbours, optimised. */
static struct { APART long sum; } a[2] __attribute__((aligned(128)));
static void work(int id, long times) {
    for (long i = 0; i < times; i++) {
        a[id].sum += i;
        __asm__ volatile("" ::: "memory");
    }
}
static long result(void) { return a[0].sum + a[1].sum; }
#endif

static void *thread(void *id) {
    pthread_barrier_wait(&begin);
    work((int)(long)id, COUNT);
    return NULL;
}

int main(void) {
    pthread_t id[2];
#ifdef PREPARE
    PREPARE;
#endif
    pthread_barrier_init(&begin, NULL, 2);
    double begun = now();
    for (long t = 0; t < 2; t++) pthread_create(&id[t], NULL, thread, (void *)t);
    for (int t = 0; t < 2; t++) pthread_join(id[t], NULL);
    printf("%ld\nphase_s %.4f\n", result(), now() - begun);
    return 0;
}
