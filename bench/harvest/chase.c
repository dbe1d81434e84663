/*
 * A primary: threads that each follow a pointer chase.
 *
 *     chase [THREADS [AREA [own|shared [HOPS [thp|4k [CPU [REST]]]]]]]
 *
 * THREADS: 8 by default. AREA: bytes, a power of two, 16M by default, of each thread (own,
 * default) or for all of them (shared, begun at places equally far from each other). HOPS: of each
 * thread, 10000000 by default, rounded up to whole batches of 1000. thp (default) asks for huge
 * pages. CPU: where all threads stay, or any (default). REST: seconds in which nothing is done before
 * the threads begin to chase, 0 by default: scavengers prepare themselves in them.
 *
 * Prints hops, checksum (the sum of the places in their cycles where the threads ended), wall_s,
 * hops_per_s of all threads, ns_per_hop and cpu_ns_per_hop (a thread's wall and CPU time by its
 * hops, over all threads), began_ns and ended_ns (when the first began to chase and the last ended,
 * by CLOCK_MONOTONIC), and percentiles of the batches' wall times. Exit code 1 when a thread ends
 * elsewhere than its number of hops from where it began.
 */
/* First: it says which functions the headers of the system shall declare. */
#include "common.h"

#include <pthread.h>
#include <unistd.h>

enum { BATCH_HOPS = 1000 };

struct walker {
	struct cycle cycle;
	uint64_t start;
	uint64_t *batch_ns;
	uint64_t batches;
	uint64_t cpu;
	volatile uint64_t *own, fallback;
	pthread_barrier_t *begin;
	pthread_t thread;
	uint64_t began_ns, ended_ns, cpu_ns, end;
};

/* Called after every batch with its wall time: a mark for whoever measures from outside. */
MARK void chase_batch_done(uint64_t batch_ns)
{
	(void)batch_ns;
}

NOINLINE static void *chase(void *line, uint64_t hops)
{
	for (uint64_t i = 0; i < hops; i++)
		line = *(void **)line;
	return line;
}

static void *walk(void *argument)
{
	struct walker *walker = (struct walker *)argument;

	if (!stay_on(walker->cpu))
		exit(EXIT_WRONG);
	pthread_barrier_wait(walker->begin);
	void *line = cycle_at(&walker->cycle, walker->start);
	uint64_t cpu = cpu_ns(), last = now_ns();
	walker->began_ns = last;
	for (uint64_t i = 0; i < walker->batches; i++) {
		line = chase(line, BATCH_HOPS);
		uint64_t now = now_ns();
		walker->batch_ns[i] = now - last;
		last = now;
		*walker->own = (i + 1) * BATCH_HOPS;
		chase_batch_done(walker->batch_ns[i]);
	}
	walker->ended_ns = last;
	walker->cpu_ns = cpu_ns() - cpu;
	walker->end = cycle_place(&walker->cycle, line);
	return NULL;
}

int main(int argc, char **argv)
{
	static const char *const SHARING[] = {"own", "shared", NULL};
	uint64_t threads = 8, area = 16 << 20, shared = 0, hops = 10000000, pages = PAGES_THP;
	uint64_t cpu = ANY_CPU, rest = 0;
	const struct parameter parameters[] = {
		{"THREADS", COUNT, &threads, 1, 1024, NULL},
		{"AREA", POWER_SIZE, &area, 2 * LINE_BYTES, (uint64_t)1 << 40, NULL},
		{"SHARING", CHOICE, &shared, 0, 0, SHARING},
		{"HOPS", COUNT, &hops, 1, (uint64_t)1 << 40, NULL},
		{"PAGES", CHOICE, &pages, 0, 0, PAGES_WORDS},
		{"CPU", CPU, &cpu, 0, CPU_SETSIZE - 1, NULL},
		{"REST", COUNT, &rest, 0, 3600, NULL},
	};

	if (READ_ARGUMENTS("chase", argv + 1, argc - 1, parameters) != 0)
		return EXIT_USAGE;
	uint64_t batches = (hops + BATCH_HOPS - 1) / BATCH_HOPS;
	uint64_t lines = area / LINE_BYTES;
	struct walker *walkers = (struct walker *)calloc(threads, sizeof *walkers);
	uint64_t *batch_ns = (uint64_t *)calloc(threads * batches, sizeof *batch_ns);
	pthread_barrier_t begin;
	if (walkers == NULL || batch_ns == NULL) {
		perror("chase");
		return EXIT_WRONG;
	}
	pthread_barrier_init(&begin, NULL, (unsigned)threads + 1);
	for (uint64_t i = 0; i < threads; i++) {
		struct walker *walker = &walkers[i];
		if (shared && i > 0)
			walker->cycle = walkers[0].cycle;
		else if (!cycle_make(&walker->cycle, area, (enum pages)pages))
			return EXIT_WRONG;
		walker->start = shared ? i * lines / threads : 0;
		walker->batch_ns = batch_ns + i * batches;
		walker->batches = batches;
		walker->cpu = cpu;
		walker->begin = &begin;
		walker->own = own_count(&walker->fallback);
		if (walker->own == NULL)
			return EXIT_WRONG;
	}
	for (uint64_t i = 0; i < threads; i++)
		if (pthread_create(&walkers[i].thread, NULL, walk, &walkers[i]) != 0) {
			fprintf(stderr, "chase: cannot create thread %" PRIu64 "\n", i);
			return EXIT_WRONG;
		}
	sleep((unsigned)rest);
	pthread_barrier_wait(&begin);
	/* By the threads' own clocks: this one may come to run when they are long at work. */
	uint64_t began = UINT64_MAX, ended = 0, wall_ns = 0, thread_cpu_ns = 0, checksum = 0;
	int right = 1;
	for (uint64_t i = 0; i < threads; i++) {
		const struct walker *walker = &walkers[i];
		pthread_join(walker->thread, NULL);
		began = walker->began_ns < began ? walker->began_ns : began;
		ended = walker->ended_ns > ended ? walker->ended_ns : ended;
		wall_ns += walker->ended_ns - walker->began_ns;
		thread_cpu_ns += walker->cpu_ns;
		checksum += walker->end;
		right &= walker->end == (walker->start + batches * BATCH_HOPS) % lines;
	}
	double seconds = (double)(ended - began) * 1e-9;
	double all = (double)(threads * batches * BATCH_HOPS);
	printf("hops %.0f\nchecksum %" PRIu64 "\nwall_s %.6f\nhops_per_s %.0f\n", all, checksum,
	       seconds, all / seconds);
	printf("ns_per_hop %.3f\ncpu_ns_per_hop %.3f\n", (double)wall_ns / all,
	       (double)thread_cpu_ns / all);
	printf("began_ns %" PRIu64 "\nended_ns %" PRIu64 "\n", began, ended);
	print_percentiles("batch", batch_ns, threads * batches);
	if (right)
		return 0;
	fprintf(stderr, "chase: wrong result\n");
	return EXIT_WRONG;
}
