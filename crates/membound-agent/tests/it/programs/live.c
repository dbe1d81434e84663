// Threads that execute text while it is changed, and check its results.
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "own.h"

long three(long);
void breakpoint(void);

__asm__(
    ".text\n"
    ".globl breakpoint\n"
    "breakpoint:\n"
    "  int3\n"
    "  ret\n"
    // Three instructions under the five bytes of a jump.
    ".globl three\n"
    "three:\n"
    "  mov %rdi, %rax\n"
    ".globl three_site\n"
    "three_site:\n"
    "  inc %eax\n"
    "  inc %eax\n"
    "  inc %eax\n"
    "  ret\n");

static atomic_int stop;
static atomic_long wrong, calls, traps, breakpoints, children;

static long check(long value) {
    long got = three(value);
    if (got != value + 3) atomic_fetch_add(&wrong, 1);
    return got & 0xffff;
}

static void *spin(void *unused) {
    long value = 0, count = 0;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        for (int i = 0; i < 1000; i++) value = check(value);
        count += 1000;
    }
    atomic_fetch_add(&calls, count);
    return unused;
}

static sem_t over;

// Sleeps until the end, and wakes the next one.
static void *waiter(void *unused) {
    while (sem_wait(&over)) atomic_fetch_add(&wrong, 1);
    check(7);
    sem_post(&over);
    return unused;
}

static void *sleeper(void *unused) {
    while (!atomic_load(&stop)) {
        usleep(300);
        check(7);
    }
    return unused;
}

static void *nothing(void *unused) {
    check(9);
    return unused;
}

static void *churn(void *unused) {
    while (!atomic_load(&stop)) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, nothing, NULL) == 0) pthread_join(thread, NULL);
        usleep(500);
    }
    return unused;
}

static void *forker(void *unused) {
    while (!atomic_load(&stop)) {
        pid_t child = fork();
        if (child == 0) {
            long before = atomic_load(&wrong);
            for (int i = 0; i < 100; i++) check(i);
            _exit(atomic_load(&wrong) != before);
        }
        int status = -1;
        if (child > 0) waitpid(child, &status, 0);
        if (status != 0) atomic_fetch_add(&wrong, 1000000);
        atomic_fetch_add(&children, 1);
        usleep(3000);
    }
    return unused;
}

static void *trapper(void *unused) {
    while (!atomic_load(&stop)) {
        long before = atomic_load(&traps);
        raise(SIGTRAP);
        if (atomic_load(&traps) != before + 1) atomic_fetch_add(&wrong, 10000);
        before = atomic_load(&breakpoints);
        breakpoint();
        if (atomic_load(&breakpoints) != before + 1) atomic_fetch_add(&wrong, 10000);
        usleep(1000);
    }
    return unused;
}

static void on_trap(int sig, siginfo_t *info, void *context) {
    (void)sig;
    (void)context;
    if (info->si_code <= 0) atomic_fetch_add(&traps, 1);
    else atomic_fetch_add(&breakpoints, 1);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct kernel_action trap = {on_trap, SA_SIGINFO | 0x04000000, own_restorer, 0};
    own_sigaction(SIGTRAP, &trap, NULL, 8);
    int spinners = atoi(argv[1]), count = 0;
    pthread_t threads[256];
    for (int i = 0; i < spinners; i++) pthread_create(&threads[count++], NULL, spin, NULL);
    pthread_create(&threads[count++], NULL, sleeper, NULL);
    if (argc > 2 && strstr(argv[2], "crowd"))
        for (int i = 0; i < 200; i++) pthread_create(&threads[count++], NULL, waiter, NULL);
    if (argc > 2 && strstr(argv[2], "churn")) pthread_create(&threads[count++], NULL, churn, NULL);
    if (argc > 2 && strstr(argv[2], "fork")) pthread_create(&threads[count++], NULL, forker, NULL);
    if (argc > 2 && strstr(argv[2], "trap")) pthread_create(&threads[count++], NULL, trapper, NULL);
    if (argc > 2 && strstr(argv[2], "deaf")) {
        // The thread that waits for the word to stop blocks everything.
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, NULL);
    }
    puts("ready");
    getchar();
    atomic_store(&stop, 1);
    sem_post(&over);
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    struct kernel_action now;
    own_sigaction(SIGTRAP, NULL, &now, 8);
    printf("wrong %ld mine %d some %d\n", atomic_load(&wrong), now.handler == (void *)on_trap,
           atomic_load(&calls) > 0);
    return 0;
}
