/* Two threads count, each in a structure of its own: neighbours in a line, or (-DPAD) in lines
 * of their own. LOCKED: with atomic operations. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

struct counter {
    volatile long value;
#ifdef PAD
    char pad[256 - sizeof(long)];
#endif
};

static struct counter *counters;

static void *count(void *argument) {
    struct counter *mine = argument;
    for (long i = 0; i < COUNT; i++) {
#ifdef LOCKED
        __atomic_fetch_add(&mine->value, 1, __ATOMIC_RELAXED);
#else
        mine->value++;
#endif
    }
    return NULL;
}

int main(void) {
    pthread_t other;
    counters = aligned_alloc(256, 4 * 256);
    counters[0].value = counters[1].value = 0;
    pthread_create(&other, NULL, count, &counters[1]);
    count(&counters[0]);
    pthread_join(other, NULL);
    printf("%ld\n", counters[0].value + counters[1].value);
    return 0;
}
