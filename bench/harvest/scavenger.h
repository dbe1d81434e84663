/*
 * What the scavengers of this directory in C and C++ share beyond common.h. Each is built twice
 * from the same source: as a shared object that exports main, and as an ordinary program.
 */
#ifndef HARVEST_SCAVENGER_H
#define HARVEST_SCAVENGER_H

#include "common.h"

/*
 * Units of work done so far, for whoever loaded the object. Copies of a program that run on one
 * loaded image add to the same number; each prints its own at its end.
 */
volatile uint64_t scavenger_work;

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
