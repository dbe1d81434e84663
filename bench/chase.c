/*
 * A pointer chase as one writes it by hand: the reference that `cargo xtask bench latency`
 * holds membound against.
 *
 *     chase BYTES CPU
 *
 * One random cycle (Sattolo) over all 64-byte lines of a buffer that asks for transparent
 * huge pages, a chain of dependent loads unrolled 64 times, nothing else in the loop.
 * Prints nanoseconds per load, the median of the passes, and the share of the buffer that
 * the kernel backed with huge pages.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define LINE 64
#define HUGE (2UL << 20)
#define PASSES 15
/* Loads in a pass: some milliseconds at the least, and a bounded time in memory. */
#define SHORT_PASS (8UL << 20)
#define LONG_PASS (1UL << 20)

static void *volatile sink;

static uint64_t next_random(uint64_t *state)
{
	/* xorshift64*, Vigna 2016. */
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dULL;
}

/* Uniform in 0..bound by multiplication; the bias is below bound / 2^64. */
static size_t below(uint64_t *state, size_t bound)
{
	return (size_t)(((unsigned __int128)next_random(state) * bound) >> 64);
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#define LOAD p = *(void **)p;
#define LOAD4 LOAD LOAD LOAD LOAD
#define LOAD16 LOAD4 LOAD4 LOAD4 LOAD4
#define LOAD64 LOAD16 LOAD16 LOAD16 LOAD16

static void *chase(void *p, size_t loads)
{
	for (size_t i = 0; i < loads; i += 64) {
		LOAD64
	}
	return p;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Bytes of this process that lie on transparent huge pages. */
static size_t huge_bytes(void)
{
	FILE *file = fopen("/proc/self/smaps_rollup", "r");
	char text[256];
	size_t kib = 0;

	if (file == NULL)
		return 0;
	while (fgets(text, sizeof text, file) != NULL)
		if (sscanf(text, "AnonHugePages: %zu kB", &kib) == 1)
			break;
	fclose(file);
	return kib << 10;
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: chase BYTES CPU\n");
		return 2;
	}
	size_t bytes = strtoull(argv[1], NULL, 10);
	size_t lines = bytes / LINE;
	size_t mapped = ((bytes + HUGE - 1) / HUGE + 1) * HUGE;
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET((size_t)atoi(argv[2]), &cpus);
	if (sched_setaffinity(0, sizeof cpus, &cpus) != 0) {
		perror("sched_setaffinity");
		return 1;
	}
	char *area = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (area == MAP_FAILED || lines < 2) {
		perror("mmap");
		return 1;
	}
	area = (char *)(((uintptr_t)area + HUGE - 1) & ~(HUGE - 1));
	madvise(area, mapped - HUGE, MADV_HUGEPAGE);

	/*
	 * Sattolo's algorithm in place: every line holds the address of the next one, and
	 * swapping what two lines hold keeps one cycle over all of them.
	 */
	uint64_t state = 0x9e3779b97f4a7c15ULL;
	for (size_t i = 0; i < lines; i++)
		*(void **)(area + i * LINE) = area + i * LINE;
	for (size_t i = lines - 1; i > 0; i--) {
		void **a = (void **)(area + i * LINE);
		void **b = (void **)(area + below(&state, i) * LINE);
		void *held = *a;
		*a = *b;
		*b = held;
	}

	size_t loads = lines <= (1UL << 20) / LINE ? SHORT_PASS : LONG_PASS;
	/* One lap fills the caches; in memory a part of it shows the steady state as well. */
	void *p = chase(area, lines < LONG_PASS ? (lines + 63) / 64 * 64 : LONG_PASS);
	double passes[PASSES];
	for (int i = 0; i < PASSES; i++) {
		double began = seconds();
		p = chase(p, loads);
		passes[i] = (seconds() - began) * 1e9 / (double)loads;
	}
	sink = p;
	qsort(passes, PASSES, sizeof passes[0], by_value);
	size_t huge = huge_bytes();
	printf("%.4f %.3f\n", passes[PASSES / 2], huge >= bytes ? 1.0 : (double)huge / (double)bytes);
	return 0;
}
