/* A program of which a known share waits for memory, to be told from one that waits for more.
 *
 * gate HOPS ROUNDS TIMES
 * does TIMES times: HOPS dependent loads from 64 MB, then ROUNDS dependent multiplications.
 * prints hop_ns and round_ns, the wall time of one of each. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LINE = 64, MEMORY = 64 << 20 };

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* One cycle through all lines: a full-period generator says which line follows. */
static char *cycle(void) {
  uint32_t lines = MEMORY / LINE, at = 0;
  char *memory = malloc(MEMORY);
  if (!memory)
    exit(1);
  for (uint32_t i = 0; i < lines; i++) {
    uint32_t next = (at * 1664525u + 1013904223u) % lines;
    *(void **)(memory + (size_t)at * LINE) = memory + (size_t)next * LINE;
    at = next;
  }
  return memory;
}

__attribute__((noinline)) static void *chase(void *at, uint64_t hops) {
  for (uint64_t i = 0; i < hops; i++)
    at = *(void **)at;
  return at;
}

__attribute__((noinline)) static uint64_t compute(uint64_t value, uint64_t rounds) {
  for (uint64_t i = 0; i < rounds; i++)
    value = value * 6364136223846793005u + 1442695040888963407u;
  return value;
}

static volatile uint64_t sink;

int main(int count, char **arguments) {
  if (count != 4)
    return 2;
  uint64_t hops = strtoull(arguments[1], 0, 0), rounds = strtoull(arguments[2], 0, 0);
  uint64_t times = strtoull(arguments[3], 0, 0), value = 1, hop_ns = 0, round_ns = 0;
  void *at = cycle();
  for (uint64_t i = 0; i < times; i++) {
    uint64_t begun = now();
    at = chase(at, hops);
    uint64_t half = now();
    value = compute(value, rounds);
    hop_ns += half - begun;
    round_ns += now() - half;
  }
  sink = value + (uint64_t)(uintptr_t)at;
  printf("hop_ns %.3f\nround_ns %.3f\n", (double)hop_ns / (double)(hops * times + !hops),
         (double)round_ns / (double)(rounds * times + !rounds));
  return 0;
}
