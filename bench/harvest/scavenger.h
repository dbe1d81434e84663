/*
 * What the scavengers of this directory in C and C++ share beyond common.h. Each is built twice
 * from the same source: as a shared object that exports main, and as an ordinary program.
 */
#ifndef HARVEST_SCAVENGER_H
#define HARVEST_SCAVENGER_H

#include "common.h"

#include <fcntl.h>
#include <unistd.h>

/*
 * Units of work done so far, for whoever loaded the object. Copies of a program that run on one
 * loaded image add to the same number; each prints its own at its end.
 */
volatile uint64_t scavenger_work;

/* A page of counts: the first line tells how many of the others are taken. */
enum { COUNTS_BYTES = 4096, COUNT_LINES = COUNTS_BYTES / 64 };

/*
 * Where this copy counts its own units: a line of the file that the environment names in
 * SCAVENGER_PROGRESS, which whoever measures can read while this runs and without a system call of
 * ours; `fallback` where none is named. A null pointer, after a line to stderr, where the file
 * cannot be mapped or has no line left.
 */
static inline volatile uint64_t *own_count(volatile uint64_t *fallback)
{
	const char *path = getenv("SCAVENGER_PROGRESS");

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

/* Counts `units` in `*own` and for those outside. */
static inline void work_done(volatile uint64_t *own, uint64_t units)
{
	*own = *own + units;
	scavenger_work = scavenger_work + units;
}

/* The end of a scavenger: its own count, and what it returns from main. */
static inline int finish(const char *program, uint64_t own, int right)
{
	printf("work %" PRIu64 "\n", own);
	if (right)
		return 0;
	fprintf(stderr, "%s: wrong result\n", program);
	return EXIT_WRONG;
}

#endif
