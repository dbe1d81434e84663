/* Walks over memory, small (fits the second cache) or large: walks chase|search|gather|mixed
 * small|large. Also built with -m32. */
#include "common.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((noinline)) static uint64_t chase(const uint32_t *next, long count) {
    uint32_t at = 0;
    for (long i = 0; i < count; i++) at = next[at];
    return at;
}

__attribute__((noinline)) static uint64_t search(const uint32_t *sorted, uint32_t n, long count) {
    uint64_t sum = 0;
    for (long i = 0; i < count; i++) {
        uint32_t key = (uint64_t)draw() * n >> 32, low = 0, high = n;
        while (low < high) {
            uint32_t middle = low + (high - low) / 2;
            if (sorted[middle] < key) low = middle + 1;
            else high = middle;
        }
        sum += low;
    }
    return sum;
}

__attribute__((noinline)) static uint64_t gather(const uint32_t *data, uint32_t n, long count) {
    uint64_t sum = 0;
    for (long i = 0; i < count; i++) sum += data[(uint64_t)draw() * n >> 32];
    return sum;
}

/* A dependent walk with computation at every step. */
__attribute__((noinline)) static uint64_t mixed(const uint32_t *next, long count) {
    uint32_t at = 0;
    double x = 1.0;
    for (long i = 0; i < count; i++) {
        at = next[at];
        double y = at * 1e-9;
        for (int k = 0; k < 24; k++) y = y * 0.999 + 0.5 / (1.0 + y);
        x += y;
        at += x < 0;
    }
    return at + (uint64_t)(x * 1e-3);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    int is_small = !strcmp(argv[2], "small"), is_cycle = argv[1][0] == 'c' || argv[1][0] == 'm';
    uint32_t n = is_small ? 4096 : 64u << 20;
    long count = 0;
    uint32_t *data = malloc(sizeof *data * n);
    if (is_cycle) {
        /* One cycle through a line each: Sattolo's shuffle. */
        uint32_t lines = n / 16, *order = malloc(sizeof *order * lines);
        for (uint32_t i = 0; i < lines; i++) order[i] = i;
        for (uint32_t i = lines - 1; i > 0; i--) {
            uint32_t j = (uint64_t)draw() * i >> 32, t = order[i];
            order[i] = order[j];
            order[j] = t;
        }
        for (uint32_t i = 0; i < lines; i++)
            data[order[i] * 16] = order[(i + 1) % lines] * 16;
        free(order);
    } else {
        for (uint32_t i = 0; i < n; i++) data[i] = i;
    }
    double begun = now();
    uint64_t sum;
    if (!strcmp(argv[1], "chase")) sum = chase(data, count = 8000000);
    else if (!strcmp(argv[1], "search")) sum = search(data, n, count = 2500000);
    else if (!strcmp(argv[1], "gather")) sum = gather(data, n, count = 120000000);
    else sum = mixed(data, count = 5000000);
    double took = now() - begun;
    /* A search of more data takes more steps. */
    double steps = strcmp(argv[1], "search") ? 1 : is_small ? 12 : 26;
    printf("sum %llu\nop_ns %.4f\nphase_s %.4f\n", (unsigned long long)sum, took / count / steps * 1e9, took);
    return 0;
}
