/*
 * Problem 1: false sharing. A linear regression as in the phoenix suite: each thread sums over its part of the
 * points into a record of its own, and the records of all threads stand in one array. Several records are on one
 * line of the cache, so that each store of a thread takes the line away from the others.
 *
 *     cc -O1 -g -pthread          regression.c -o regression-before
 *     cc -O1 -g -pthread -DAFTER  regression.c -o regression-after
 *
 * regression [THREADS [ROUNDS]]
 *
 * The remedy is one line: padding, so that no two records share a line.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { POINTS = 4096, RECORDS = 8 };

struct point {
	signed char x, y;
};

/* 64 bytes: eight of them are the 512 bytes of document 001. */
struct arguments {
	const struct point *points;
	long count, rounds;
	long long sx, sy, sxx, syy, sxy;
#ifdef AFTER
	char padding[128]; /* REMEDY */
#endif
};

static pthread_barrier_t together;

__attribute__((noinline)) static void *linear_regression_pthread(void *argument)
{
	/* The compiler of the original keeps the sums in memory too: points are characters, which may alias them. */
	volatile struct arguments *a = argument;

	pthread_barrier_wait(&together);
	for (long round = 0; round < a->rounds; round++) {
		for (long i = 0; i < a->count; i++) {
			long long x = a->points[i].x, y = a->points[i].y;

			a->sx += x;
			a->sxx += x * x; /* SUM */
			a->sy += y;
			a->syy += y * y;
			a->sxy += x * y;
		}
	}
	return NULL;
}

int main(int words, char **word)
{
	int threads = words > 1 ? atoi(word[1]) : 2;
	long rounds = words > 2 ? atol(word[2]) : 100000;
	pthread_t running[RECORDS];
	struct point *points;
	struct arguments *arguments;
	long long sums[5] = {0};

	if (threads < 1 || threads > RECORDS || rounds < 1) {
		fprintf(stderr, "regression [THREADS [ROUNDS]]: 1 to %d threads, 1 round or more\n", RECORDS);
		return 2;
	}
	points = malloc(POINTS * sizeof *points);
	/* Blocks of malloc lie 16 bytes behind the beginning of a line: two records share each line. */
	arguments = calloc(RECORDS, sizeof *arguments); /* ALLOCATION */
	if (points == NULL || arguments == NULL)
		return 1;
	for (int i = 0; i < POINTS; i++)
		points[i] = (struct point){(signed char)(i % 127), (signed char)(i % 31)};
	pthread_barrier_init(&together, NULL, (unsigned)threads);
	for (int t = 0; t < threads; t++) {
		arguments[t].points = points;
		arguments[t].count = POINTS;
		arguments[t].rounds = rounds;
		pthread_create(&running[t], NULL, linear_regression_pthread, &arguments[t]);
	}
	for (int t = 0; t < threads; t++) {
		pthread_join(running[t], NULL);
		sums[0] += arguments[t].sx;
		sums[1] += arguments[t].sy;
		sums[2] += arguments[t].sxx;
		sums[3] += arguments[t].syy;
		sums[4] += arguments[t].sxy;
	}
	printf("%lld %lld %lld %lld %lld\n", sums[0], sums[1], sums[2], sums[3], sums[4]);
	free(arguments);
	free(points);
	return 0;
}
