/*
 * Problem 2: a loop that is bound by bandwidth. A triad goes through three arrays that no cache holds, again and
 * again: each pass moves all of them from memory and one of them back.
 *
 *     cc -O2 -g -pthread          triad.c -o triad-before
 *     cc -O2 -g -pthread -DAFTER  triad.c -o triad-after
 *
 * triad [THREADS [PASSES]]
 *
 * The remedy: all passes over one block that fits a near cache before the next block. The work is the same, and
 * memory moves the arrays once.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 1 << 23, MOST = 64 };

#ifdef AFTER
enum { BLOCK = 1 << 11 }; /* REMEDY: three arrays of 16 KiB fit the second cache */
#else
enum { BLOCK = N };
#endif

static double *a, *b, *c;
static int threads = 2;
static long passes = 600;

__attribute__((noinline)) static void doTriad(long from, long to, double x)
{
	for (long i = from; i < to; i++)
		a[i] = b[i] + x * c[i]; /* TRIAD */
}

static void *work(void *argument)
{
	long which = (long)argument;
	long first = N / threads * which, behind = which + 1 == threads ? N : N / threads * (which + 1);

	for (long from = first; from < behind; from += BLOCK) {
		long to = from + BLOCK < behind ? from + BLOCK : behind;

		for (long pass = 0; pass < passes; pass++)
			doTriad(from, to, (double)(pass % 3));
	}
	return NULL;
}

int main(int words, char **word)
{
	pthread_t running[MOST];
	double sum = 0;

	if (words > 1)
		threads = atoi(word[1]);
	if (words > 2)
		passes = atol(word[2]);
	if (threads < 1 || threads > MOST || passes < 1) {
		fprintf(stderr, "triad [THREADS [PASSES]]: 1 to %d threads, 1 pass or more\n", MOST);
		return 2;
	}
	a = malloc(N * sizeof *a); /* A */
	b = malloc(N * sizeof *b); /* B */
	c = malloc(N * sizeof *c); /* C */
	if (a == NULL || b == NULL || c == NULL)
		return 1;
	for (long i = 0; i < N; i++) {
		a[i] = 1;
		b[i] = 2;
		c[i] = (double)(i % 5);
	}
	for (long t = 0; t < threads; t++)
		pthread_create(&running[t], NULL, work, (void *)t);
	for (long t = 0; t < threads; t++)
		pthread_join(running[t], NULL);
	for (long i = 0; i < N; i += 4097)
		sum += a[i];
	printf("%.0f\n", sum);
	return 0;
}
