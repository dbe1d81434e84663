/* Loops over arrays, small (fits the first cache) or large:
 * streams copy|triad|stencil small|large THREADS. */
#include "common.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *loop;
static long n, rounds;
static pthread_barrier_t all;

__attribute__((noinline)) static void copy(double *a, const double *b, long n) {
    for (long i = 0; i < n; i++) a[i] = b[i];
    __asm__ volatile("" ::: "memory");
}

__attribute__((noinline)) static void triad(double *a, const double *b, const double *c, long n) {
    for (long i = 0; i < n; i++) a[i] = b[i] + 3.0 * c[i];
    __asm__ volatile("" ::: "memory");
}

__attribute__((noinline)) static void stencil(double *a, const double *b, long n) {
    for (long i = 1; i < n - 1; i++) a[i] = (b[i - 1] + b[i] + b[i + 1]) * 0.333;
    __asm__ volatile("" ::: "memory");
}

static void *work(void *took) {
    double *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b), *c = malloc(n * sizeof *c);
    for (long i = 0; i < n; i++) a[i] = 0, b[i] = i, c[i] = 2;
    pthread_barrier_wait(&all);
    double begun = now();
    for (long r = 0; r < rounds; r++) {
        if (*loop == 'c') copy(a, b, n);
        else if (*loop == 't') triad(a, b, c, n);
        else stencil(a, b, n);
    }
    *(double *)took = now() - begun;
    return a[n / 2] < 0 ? took : NULL;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    loop = argv[1];
    int threads = atoi(argv[3]);
    /* Three arrays: 24 KiB, or 384 MiB together. */
    n = strcmp(argv[2], "small") ? (16 << 20) / threads : 1024;
    long elements = (*loop == 'c' ? 2400l : 1200l) << 20;
    rounds = elements / threads / n;
    pthread_barrier_init(&all, NULL, threads);
    pthread_t id[64];
    double took[64], longest = 0;
    for (int t = 0; t < threads; t++) pthread_create(&id[t], NULL, work, &took[t]);
    for (int t = 0; t < threads; t++) {
        pthread_join(id[t], NULL);
        if (took[t] > longest) longest = took[t];
    }
    printf("op_ns %.5f\nphase_s %.4f\n", longest / (n * rounds) * 1e9, longest);
    return 0;
}
