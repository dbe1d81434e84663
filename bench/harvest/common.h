/*
 * What the C and C++ programs of this directory share: arguments, the clock, areas of memory,
 * counts for whoever looks on, random cycles, and percentiles. Times are nanoseconds of CLOCK_MONOTONIC, sizes
 * bytes. Every function is inline, so that each program is one file to the compiler.
 */
#ifndef HARVEST_COMMON_H
#define HARVEST_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 64UL
#define HUGE_BYTES (2UL << 20)
/* A function that profiles shall show by its name. */
#define NOINLINE __attribute__((noinline, noclone))
/* One that is called though it does nothing. */
#define MARK __attribute__((noipa))

/* Exit codes: the answer was wrong or something could not be had; the arguments were. */
enum { EXIT_WRONG = 1, EXIT_USAGE = 2 };

static inline uint64_t clock_ns(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static inline uint64_t now_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

static inline uint64_t cpu_ns(void)
{
	return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

/* SplitMix64 (Steele, Lea and Flood 2014): the number behind `*state`. */
static inline uint64_t next_random(uint64_t *state)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15u;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

/* The same of one number, as a hash. */
static inline uint64_t hash64(uint64_t x)
{
	return next_random(&x);
}

/* Uniform in 0..bound by multiplication; the bias is below bound / 2^64. */
static inline uint64_t below(uint64_t random, uint64_t bound)
{
	return (uint64_t)(((unsigned __int128)random * bound) >> 64);
}

/* ---- arguments ---- */

/* A size takes the endings K, M and G; a processor may be `any`; a choice is its place in
 * `words`, which a null pointer ends. */
enum kind { COUNT, SIZE, POWER_SIZE, CPU, CHOICE };
#define ANY_CPU UINT64_MAX

struct parameter {
	const char *name;
	enum kind kind;
	/* The default on entry. */
	uint64_t *value;
	uint64_t least, most;
	const char *const *words;
};

static inline int read_number(const char *text, int with_ending, uint64_t *value)
{
	uint64_t number = 0;
	unsigned shift = 0;
	const char *at = text;

	for (; *at >= '0' && *at <= '9'; at++)
		if (__builtin_mul_overflow(number, (uint64_t)10, &number) ||
		    __builtin_add_overflow(number, (uint64_t)(*at - '0'), &number))
			return 0;
	if (at == text)
		return 0;
	if (with_ending && *at != 0) {
		shift = *at == 'K' ? 10 : *at == 'M' ? 20 : *at == 'G' ? 30 : 0;
		at += shift != 0;
	}
	if (*at != 0 || number > UINT64_MAX >> shift)
		return 0;
	*value = number << shift;
	return 1;
}

static inline int read_parameter(const struct parameter *parameter, const char *text)
{
	uint64_t value;

	switch (parameter->kind) {
	case CHOICE:
		for (value = 0; parameter->words[value] != NULL; value++)
			if (strcmp(parameter->words[value], text) == 0) {
				*parameter->value = value;
				return 1;
			}
		return 0;
	case CPU:
		if (strcmp(text, "any") == 0) {
			*parameter->value = ANY_CPU;
			return 1;
		}
		break;
	default:
		break;
	}
	int size = parameter->kind == SIZE || parameter->kind == POWER_SIZE;
	if (!read_number(text, size, &value) || value < parameter->least || value > parameter->most)
		return 0;
	if (parameter->kind == POWER_SIZE && (value & (value - 1)) != 0)
		return 0;
	*parameter->value = value;
	return 1;
}

/* Reads `words` in order; those that are not given keep their defaults. Returns 0, or
 * EXIT_USAGE after a line to stderr. */
static inline int read_arguments(const char *program, char **words, int given,
				 const struct parameter *parameters, int count)
{
	if (given > count) {
		fprintf(stderr, "%s: unexpected argument %s\n", program, words[count]);
		return EXIT_USAGE;
	}
	for (int i = 0; i < given; i++) {
		const struct parameter *p = &parameters[i];
		if (read_parameter(p, words[i]))
			continue;
		fprintf(stderr, "%s: %s must be ", program, p->name);
		if (p->kind == CHOICE)
			for (int k = 0; p->words[k] != NULL; k++)
				fprintf(stderr, "%s%s", k == 0 ? "" : " or ", p->words[k]);
		else
			fprintf(stderr, "%s from %" PRIu64 " to %" PRIu64 "%s",
				p->kind == POWER_SIZE ? "a power of two" : "a number", p->least,
				p->most, p->kind == CPU ? " or any" : "");
		fprintf(stderr, ", not %s\n", words[i]);
		return EXIT_USAGE;
	}
	return 0;
}

#define READ_ARGUMENTS(program, words, given, parameters)                                      \
	read_arguments(program, words, given, parameters,                                      \
		       (int)(sizeof(parameters) / sizeof((parameters)[0])))

/* ---- processors ---- */

/* Keeps the calling thread on `cpu`; ANY_CPU leaves it. Returns whether that could be done. */
static inline int stay_on(uint64_t cpu)
{
	cpu_set_t set;

	if (cpu == ANY_CPU)
		return 1;
	CPU_ZERO(&set);
	CPU_SET((size_t)cpu, &set);
	if (sched_setaffinity(0, sizeof set, &set) == 0)
		return 1;
	perror("sched_setaffinity");
	return 0;
}

/* ---- memory ---- */

/* What the pages of an area are asked to be; the words are those of an argument. */
enum pages { PAGES_THP, PAGES_4K };
static const char *const PAGES_WORDS[] = {"thp", "4k", NULL};

static inline size_t whole_pages(size_t bytes)
{
	return (bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
}

/* `bytes` zeroed bytes at a multiple of 2 MiB, or a null pointer after a line to stderr. */
static inline char *map_area(size_t bytes, enum pages pages)
{
	size_t size = whole_pages(bytes);
	char *mapped = (char *)mmap(NULL, size + HUGE_BYTES, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (mapped == MAP_FAILED) {
		fprintf(stderr, "cannot map %zu bytes: %s\n", bytes, strerror(errno));
		return NULL;
	}
	size_t before = -(uintptr_t)mapped % HUGE_BYTES;
	if (before > 0)
		munmap(mapped, before);
	munmap(mapped + before + size, HUGE_BYTES - before);
	/* Where the kernel has no huge pages the area is of small ones. */
	madvise(mapped + before, size, pages == PAGES_THP ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	return mapped + before;
}

static inline void unmap_area(char *area, size_t bytes)
{
	munmap(area, whole_pages(bytes));
}

/* ---- progress ---- */

/* A page of counts: the first line tells how many of the others are taken. */
enum { COUNTS_BYTES = 4096, COUNT_LINES = COUNTS_BYTES / 64 };

/*
 * Where this copy of a program counts its own units of work: a line of the file that the environment names in
 * HARVEST_PROGRESS, which whoever measures can read while this runs and without a system call of
 * ours; `fallback` where none is named. A null pointer, after a line to stderr, where the file
 * cannot be mapped or has no line left.
 */
static inline volatile uint64_t *own_count(volatile uint64_t *fallback)
{
	const char *path = getenv("HARVEST_PROGRESS");

	if (path == NULL)
		return fallback;
	int file = open(path, O_RDWR | O_CLOEXEC);
	void *mapped = file < 0 ? MAP_FAILED
				: mmap(NULL, COUNTS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (mapped == MAP_FAILED) {
		perror(path);
		return NULL;
	}
	close(file);
	uint64_t *counts = (uint64_t *)mapped;
	uint64_t line = 1 + __atomic_fetch_add(counts, 1, __ATOMIC_RELAXED);
	if (line < COUNT_LINES)
		return counts + line * (LINE_BYTES / sizeof *counts);
	fprintf(stderr, "%s: no line left\n", path);
	return NULL;
}

/* ---- permutations ---- */

/* A permutation of 0..2^bits in three rounds, each of which can be undone: multiplication by an
 * odd number modulo 2^bits, then the upper half onto the lower one. Known in both directions, it
 * makes a random cycle without a walk through memory, and tells how far a chase has come. */
static const uint64_t SCRAMBLE[3] = {0x9e3779b97f4a7c15u, 0xbf58476d1ce4e5b9u,
				     0x94d049bb133111ebu};
/* Their inverses modulo 2^64, and so modulo every smaller power of two. */
static const uint64_t UNSCRAMBLE[3] = {0xf1de83e19937733du, 0x96de1b173f119089u,
				       0x319642b2d24d8ec3u};

static inline uint64_t low_bits(unsigned bits)
{
	return ((uint64_t)1 << bits) - 1;
}

static inline uint64_t scramble(uint64_t x, unsigned bits)
{
	for (int round = 0; round < 3; round++) {
		x = (x * SCRAMBLE[round]) & low_bits(bits);
		x ^= x >> ((bits + 1) / 2);
	}
	return x;
}

static inline uint64_t unscramble(uint64_t x, unsigned bits)
{
	for (int round = 2; round >= 0; round--) {
		x ^= x >> ((bits + 1) / 2);
		x = (x * UNSCRAMBLE[round]) & low_bits(bits);
	}
	return x;
}

/* ---- cycles ---- */

/* One random cycle over all lines of an area: each begins with the address of the next. */
struct cycle {
	char *area;
	unsigned bits;
};

/* The line that a chase from place 0 reaches after `place` hops. */
static inline void *cycle_at(const struct cycle *cycle, uint64_t place)
{
	place &= low_bits(cycle->bits);
	return cycle->area + scramble(place, cycle->bits) * LINE_BYTES;
}

/* How many hops `line` is from place 0, modulo the number of lines. */
static inline uint64_t cycle_place(const struct cycle *cycle, const void *line)
{
	return unscramble((uint64_t)((const char *)line - cycle->area) / LINE_BYTES, cycle->bits);
}

/* A cycle over `bytes`, a power of two of at least two lines. Returns whether it could be had. */
static inline int cycle_make(struct cycle *cycle, size_t bytes, enum pages pages)
{
	cycle->bits = (unsigned)__builtin_ctzll(bytes / LINE_BYTES);
	cycle->area = map_area(bytes, pages);
	if (cycle->area == NULL)
		return 0;
	for (char *line = cycle->area; line < cycle->area + bytes; line += LINE_BYTES)
		*(void **)line = cycle_at(cycle, cycle_place(cycle, line) + 1);
	return 1;
}

/* ---- figures ---- */

static inline int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* Prints NAME_p50_ns, NAME_p95_ns, NAME_p99_ns and NAME_mean_ns of `values`, which are sorted by
 * it. A percentile is the least value that so many percent of them do not exceed. */
static inline void print_percentiles(const char *name, uint64_t *values, size_t count)
{
	static const unsigned PERCENTS[] = {50, 95, 99};
	double sum = 0;

	if (count == 0)
		return;
	qsort(values, count, sizeof *values, by_value);
	for (size_t i = 0; i < sizeof PERCENTS / sizeof PERCENTS[0]; i++)
		printf("%s_p%u_ns %" PRIu64 "\n", name, PERCENTS[i],
		       values[(count * PERCENTS[i] + 99) / 100 - 1]);
	for (size_t i = 0; i < count; i++)
		sum += (double)values[i];
	printf("%s_mean_ns %.1f\n", name, sum / (double)count);
}

#endif
