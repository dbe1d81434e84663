/* Programs with a fixed amount of work, to be run alone and under a profiler.
 *
 * profiled MODE AMOUNT
 * MODE: chase    AMOUNT thousand dependent loads from 256 MB
 *       hits     AMOUNT thousand rounds of arithmetic with loads that hit the innermost cache
 *       triad    AMOUNT sweeps of a = b + x * c over 3 * 64 MB
 *       blocks   AMOUNT thousand allocations and frees at about 100 000 a second, 10 000 live
 *       threads  `chase` in two threads, half the work each
 * prints wall_ns, the wall time of that work, and peak_kb, the most memory that was resident. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t next_random(uint64_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

enum { LINE = 64 };

static char *cycle(size_t bytes) {
  size_t lines = bytes / LINE;
  char *memory = malloc(bytes);
  uint32_t *order = malloc(lines * sizeof *order);
  uint64_t state = 88172645463325252u;
  for (size_t i = 0; i < lines; i++)
    order[i] = (uint32_t)i;
  for (size_t i = lines - 1; i > 0; i--) {
    size_t j = next_random(&state) % i;
    uint32_t t = order[i];
    order[i] = order[j];
    order[j] = t;
  }
  for (size_t i = 0; i < lines; i++)
    *(void **)(memory + (size_t)order[i] * LINE) = memory + (size_t)order[(i + 1) % lines] * LINE;
  free(order);
  return memory;
}

struct walk {
  void *at;
  uint64_t hops;
};

__attribute__((noinline)) static void *chase(void *argument) {
  struct walk *walk = argument;
  void *at = walk->at;
  for (uint64_t i = 0; i < walk->hops; i++)
    at = *(void **)at;
  walk->at = at;
  return 0;
}

__attribute__((noinline)) static uint64_t hits(const uint64_t *table, uint64_t rounds) {
  uint64_t a = 1, b = 2;
  for (uint64_t i = 0; i < rounds; i++) {
    a = a * 5 + table[i & 255];
    b = (b ^ table[(i + 64) & 255]) * 3 + a;
  }
  return a + b;
}

__attribute__((noinline)) static void triad(double *a, const double *b, const double *c, size_t n,
                                            double x) {
  for (size_t i = 0; i < n; i++)
    a[i] = b[i] + x * c[i];
}

__attribute__((noinline)) static char *block(size_t bytes) {
  char *memory = malloc(bytes);
  memory[0] = 1;
  return memory;
}

static volatile uint64_t sink;

int main(int count, char **arguments) {
  if (count != 3)
    return 2;
  const char *mode = arguments[1];
  uint64_t amount = strtoull(arguments[2], 0, 0), begun = 0;
  if (!strcmp(mode, "chase")) {
    struct walk walk = {cycle(256u << 20), amount * 1000};
    begun = now();
    chase(&walk);
    sink = (uint64_t)(uintptr_t)walk.at;
  } else if (!strcmp(mode, "threads")) {
    char *memory = cycle(256u << 20);
    struct walk walks[2] = {{memory, amount * 500}, {memory + (128u << 20), amount * 500}};
    pthread_t thread[2];
    begun = now();
    for (int i = 0; i < 2; i++)
      pthread_create(&thread[i], 0, chase, &walks[i]);
    for (int i = 0; i < 2; i++)
      pthread_join(thread[i], 0);
    sink = (uint64_t)(uintptr_t)walks[0].at;
  } else if (!strcmp(mode, "hits")) {
    uint64_t table[256];
    for (int i = 0; i < 256; i++)
      table[i] = (uint64_t)i * 77;
    begun = now();
    sink = hits(table, amount * 1000);
  } else if (!strcmp(mode, "triad")) {
    size_t n = (64u << 20) / sizeof(double);
    double *a = malloc(n * 8), *b = malloc(n * 8), *c = malloc(n * 8);
    for (size_t i = 0; i < n; i++)
      a[i] = 0, b[i] = 1, c[i] = 2;
    begun = now();
    for (uint64_t i = 0; i < amount; i++)
      triad(a, b, c, n, 3.0);
    sink = (uint64_t)a[amount % n];
  } else if (!strcmp(mode, "blocks")) {
    enum { LIVE = 10000 };
    static char *live[LIVE];
    uint64_t state = 42, table[256] = {1};
    begun = now();
    for (uint64_t i = 0; i < amount * 1000; i++) {
      size_t slot = next_random(&state) % LIVE;
      free(live[slot]);
      live[slot] = block(16 + next_random(&state) % 1000);
      /* About 10 microseconds of work beside each block. */
      sink += hits(table, 13000);
    }
  } else {
    return 2;
  }
  printf("wall_ns %llu\n", (unsigned long long)(now() - begun));
  FILE *status = fopen("/proc/self/status", "r");
  char line[256];
  while (status && fgets(line, sizeof line, status))
    if (!strncmp(line, "VmHWM:", 6))
      printf("peak_kb %s", line + 6 + strspn(line + 6, "\t "));
  return 0;
}
