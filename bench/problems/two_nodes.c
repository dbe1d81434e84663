/*
 * Problem 3: a triad of two threads on CPUs of two nodes, each with a half of the arrays.
 *
 *     cc -O2 -g -pthread two_nodes.c -o two_nodes
 *
 * two_nodes MODE MILLISECONDS [CPU CPU]
 * MODE: before  the main thread, on the first CPU's node, writes the arrays first: all pages lie on that node
 *       after   each thread writes its own half first, and its pages come to lie on its own node
 *
 * CPUs 1 and 2 are those of the emulated machine of the tests; give one of each node of yours.
 *
 * Prints what is true of it: by the kernel's word, the pages of each thread's half that lie
 * on node 0 and node 1, and the iterations that each thread made.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* On the first node and on the second. */
static int cpus[2] = {1, 2};

enum { N = 1 << 20, HALF = N / 2, PAGE = 4096 };

static double *a, *b, *c;
static const char *mode;
static double wanted_s;
static pthread_barrier_t filled;
static unsigned long iterations[2];

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof set, &set) != 0)
		exit(3);
}

static double cpu_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

__attribute__((noinline)) static void fill(size_t from, size_t to)
{
	for (size_t i = from; i < to; i++) {
		a[i] = 0;
		b[i] = (double)i; /* FILL */
		c[i] = 2;
	}
}

__attribute__((noinline)) static void triad(size_t from, size_t to, double x)
{
	for (size_t i = from; i < to; i++)
		a[i] = b[i] + x * c[i]; /* TRIAD */
}

static void *work(void *argument)
{
	size_t which = (size_t)argument, from = which * HALF;

	pin(cpus[which]);
	if (strcmp(mode, "after") == 0)
		fill(from, from + HALF);
	pthread_barrier_wait(&filled);
	for (double begun = cpu_s(); cpu_s() - begun < wanted_s;) {
		triad(from, from + HALF, 3);
		iterations[which] += HALF;
	}
	return NULL;
}

/* Counts the pages of a half of an array by node. */
static void count(const double *array, size_t which, unsigned long *nodes)
{
	enum { PAGES = HALF * sizeof(double) / PAGE };
	static void *pages[PAGES];
	static int status[PAGES];

	for (size_t i = 0; i < PAGES; i++)
		pages[i] = (char *)(array + which * HALF) + i * PAGE;
	if (syscall(SYS_move_pages, 0, (unsigned long)PAGES, pages, NULL, status, 0) != 0)
		exit(4);
	for (size_t i = 0; i < PAGES; i++)
		if (status[i] == 0 || status[i] == 1)
			nodes[status[i]]++;
}

int main(int words, char **word)
{
	pthread_t threads[2];

	if (words != 3 && words != 5) {
		fprintf(stderr, "two_nodes before|after MILLISECONDS [CPU CPU]\n");
		return 2;
	}
	mode = word[1];
	wanted_s = atof(word[2]) / 1000;
	if (words == 5)
		for (int i = 0; i < 2; i++)
			cpus[i] = atoi(word[3 + i]);
	pin(words == 5 ? cpus[0] : 0);
	a = malloc(N * sizeof *a); /* A */
	b = malloc(N * sizeof *b); /* B */
	c = malloc(N * sizeof *c); /* C */
	if (strcmp(mode, "before") == 0)
		fill(0, N);
	pthread_barrier_init(&filled, NULL, 2);
	for (size_t i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, work, (void *)i);
	for (size_t i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	for (size_t i = 0; i < 2; i++) {
		unsigned long nodes[2] = {0, 0};

		count(a, i, nodes);
		count(b, i, nodes);
		count(c, i, nodes);
		printf("half %zu node0 %lu node1 %lu iterations %lu\n", i, nodes[0], nodes[1],
		       iterations[i]);
	}
	return 0;
}
