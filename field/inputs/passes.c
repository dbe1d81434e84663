/* Work over arrays, small (fit the first or second cache) or large: passes prefetch|scatter|copy|product|transpose
 * small|large. An operation is the same work in both sizes. */
#include "common.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *filled(size_t bytes) {
    void *block = malloc(bytes);
    memset(block, 1, bytes);
    return block;
}

#define AHEAD 16
__attribute__((noinline)) static uint64_t prefetch(const uint64_t *data, const uint32_t *order, long count) {
    uint64_t sum = 0;
    for (long i = 0; i < count - AHEAD; i++) {
        __builtin_prefetch(&data[order[i + AHEAD]]);
        sum += data[order[i]] * 3 + (sum >> 7);
    }
    return sum;
}

__attribute__((noinline)) static void scatter(uint64_t *data, const uint32_t *order, long count) {
    for (long i = 0; i < count; i++) data[order[i]] += (uint64_t)i;
}

/* Rows that are 0 apart are one row, with the same work and the same chain of additions: shorter rows would overlap. */
__attribute__((noinline)) static void product(const double *a, const double *b, double *c, long n, long row) {
    for (long i = 0; i < n; i++)
        for (long j = 0; j < n; j++) {
            double sum = 0;
            for (long k = 0; k < n; k++) sum += a[i * row + k] * b[k * row + j];
            c[i * row + j] = sum;
        }
}

__attribute__((noinline)) static void transpose(const double *a, double *b, long n) {
    for (long i = 0; i < n; i++)
        for (long j = 0; j < n; j++) b[j * n + i] = a[i * n + j];
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    const char *what = argv[1];
    int is_small = !strcmp(argv[2], "small");
    double begun, operations;
    uint64_t sum = 0;
    if (!strcmp(what, "prefetch") || !strcmp(what, "scatter")) {
        uint32_t n = is_small ? 4096 : 64u << 20;
        long count = is_small ? 4096 : 16 << 20, rounds = is_small ? 4096 * 4 : 4;
        uint64_t *data = filled(sizeof *data * n);
        uint32_t *order = filled(sizeof *order * count);
        for (long i = 0; i < count; i++) order[i] = (uint64_t)draw() * n >> 32;
        begun = now();
        for (long round = 0; round < rounds; round++)
            if (what[0] == 'p') sum += prefetch(data, order, count);
            else scatter(data, order, count);
        operations = (double)count * rounds;
        sum += data[n / 2];
    } else if (!strcmp(what, "copy")) {
        size_t bytes = is_small ? 16 << 10 : 256 << 20, rounds = is_small ? 60 << 14 : 60;
        /* Half a page apart: Zen 3 copies blocks of some KiB thirty times slower where the target lies 16 bytes further in its
         * page than the source, and that is where malloc puts two of them. */
        char *from = filled(bytes), *to = (char *)filled(bytes + 2048) + 2048 - 16;
        begun = now();
        for (size_t round = 0; round < rounds; round++) {
            memcpy(to, from, bytes);
            __asm__ volatile("" : : "r"(to) : "memory");
        }
        operations = (double)bytes * rounds / 64;
        sum = to[bytes / 2];
    } else if (!strcmp(what, "product")) {
        long n = 1500, row = is_small ? 0 : n;
        double *a = filled(sizeof *a * n * n), *b = filled(sizeof *b * n * n), *c = filled(sizeof *c * n * n);
        begun = now();
        product(a, b, c, n, row);
        operations = (double)n * n * n;
        sum = c[n] > 0;
    } else {
        long n = is_small ? 32 : 8192, rounds = is_small ? 65536 * 3 : 3;
        double *a = filled(sizeof *a * n * n), *b = filled(sizeof *b * n * n);
        begun = now();
        for (long round = 0; round < rounds; round++) transpose(a, b, n);
        operations = (double)n * n * rounds;
        sum = b[n] > 0;
    }
    double took = now() - begun;
    printf("sum %llu\nop_ns %.5f\nphase_s %.4f\n", (unsigned long long)sum, took / operations * 1e9, took);
    return 0;
}
