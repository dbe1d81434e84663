/*
 * The upper bound of harvesting: pointer chases in one thread, interleaved by a switch that is
 * written by hand for this one loop.
 *
 *     interleaved [AREA [HOPS [own|shared [thp|4k [ROUNDS [MOST [CPU]]]]]]]
 *
 * AREA: bytes, a power of two, 512M by default, of each chase (own) or for all of them (shared,
 * default, begun at places equally far from each other). HOPS: of all chases of a measurement
 * together, 4000000 by default. thp (default) asks for huge pages. ROUNDS: how often each is
 * measured, upwards and downwards in turn, 5 by default. MOST: chases, 16 by default, 64 at the
 * most. CPU: where it stays, or any (default).
 *
 * Prints the medians of the rounds, in ns of CPU time: alone_ns, a hop of one chase in a loop
 * without a switch; hop_ns_N for N = 1, 2, 4 … MOST, a hop of N interleaved chases in all, its
 * switch with it; and alone_l1_ns and switch_ns_N, the same in 8 KiB, where a hop is a hit and
 * runs beside the switch. Exit code 1 when a chase ends elsewhere than its number of hops from
 * where it began.
 *
 * A switch keeps exactly what lives across it: the line and the hops left, pushed onto the
 * chase's own stack, the stack pointer, and where to go on. It prefetches the line first, into the
 * innermost cache alone since it is read once, and goes round the ring. The place to go on is read
 * from memory, as it must be where the yields of several programs meet, though here it is one for
 * all.
 */
#include "common.h"

#ifndef __x86_64__
#error "the switch is written for x86-64"
#endif

enum { MOST_CHASES = 64, STACK_BYTES = 16 << 10, SMALL_BYTES = 8 << 10 };

struct context {
	/* The assembly knows these offsets. */
	void *stack;           /* 0 */
	void (*resume)(void);  /* 8 */
	struct context *next;  /* 16 */
	void *line;            /* 24: the first one, then the last */
	uint64_t hops;         /* 32 */
	struct cycle cycle;
	uint64_t start;
	/* A line and more of its own. */
} __attribute__((aligned(LINE_BYTES)));

_Static_assert(__builtin_offsetof(struct context, hops) == 32, "as the assembly has it");

/* Runs the ring of `alive` contexts, which all have the same number of hops, to its end. */
void interleave(struct context *first, uint64_t alive);
/* Where a context begins. */
void interleave_begin(void);

/*
 * rbx: the context that runs; r12: contexts that have not ended; rbp: our caller's stack. In a
 * context rdi is the line and rsi the hops left. All end in the same lap of the ring, the first
 * one first, so that none that has ended is switched to.
 */
#define SWITCH "mov 16(%rbx), %rbx\nmov (%rbx), %rsp\njmp *8(%rbx)\n"
__asm__(".text\n"
	".globl interleave\n.type interleave, @function\n.balign 64\n"
	"interleave:\n"
	"push %rbx\npush %rbp\npush %r12\n"
	"mov %rdi, %rbx\nmov %rsi, %r12\nmov %rsp, %rbp\n"
	"mov (%rbx), %rsp\njmp *8(%rbx)\n"

	".globl interleave_begin\n.type interleave_begin, @function\n"
	"interleave_begin:\n"
	"mov 24(%rbx), %rdi\nmov 32(%rbx), %rsi\n"
	".balign 64\n"
	"1:\n"
	"prefetchnta (%rdi)\n"
	"push %rdi\npush %rsi\n"
	"lea 2f(%rip), %rax\n"
	"mov %rsp, (%rbx)\nmov %rax, 8(%rbx)\n"
	SWITCH
	".balign 16\n"
	"2:\n"
	"pop %rsi\npop %rdi\n"
	"mov (%rdi), %rdi\n"
	"dec %rsi\n"
	"jnz 1b\n"
	"mov %rdi, 24(%rbx)\n"
	"dec %r12\n"
	"jz 3f\n"
	SWITCH
	"3:\n"
	"mov %rbp, %rsp\n"
	"pop %r12\npop %rbp\npop %rbx\n"
	"ret\n"
	".size interleave_begin, . - interleave_begin\n"
	".size interleave, . - interleave\n");

NOINLINE static void *chase(void *line, uint64_t hops)
{
	for (uint64_t i = 0; i < hops; i++)
		line = *(void **)line;
	return line;
}

static struct context contexts[MOST_CHASES];

/* What a series of measurements is of. */
struct series {
	/* One for each chase; the same one for all when they share. */
	struct cycle cycles[MOST_CHASES];
	uint64_t hops;
};

/* Interleaves `count` chases; returns ns per hop in all, or less than 0 when one went wrong. */
static double interleaved(const struct series *series, uint64_t count, char *stacks)
{
	uint64_t hops = (series->hops + count - 1) / count;

	for (uint64_t i = 0; i < count; i++) {
		struct context *context = &contexts[i];
		uint64_t lines = (uint64_t)1 << series->cycles[i].bits;
		/* Tops of stacks 16 KiB apart would meet in one set of the first cache. */
		context->stack = stacks + (i + 1) * STACK_BYTES - (i + 1) * 2 * LINE_BYTES;
		context->resume = interleave_begin;
		context->next = &contexts[(i + 1) % count];
		context->cycle = series->cycles[i];
		context->start = i * lines / count;
		context->line = cycle_at(&context->cycle, context->start);
		context->hops = hops;
	}
	uint64_t began = cpu_ns();
	interleave(contexts, count);
	uint64_t took = cpu_ns() - began;
	for (uint64_t i = 0; i < count; i++)
		if (contexts[i].line != cycle_at(&contexts[i].cycle, contexts[i].start + hops))
			return -1;
	return (double)took / (double)(hops * count);
}

static double alone(const struct series *series)
{
	const struct cycle *cycle = &series->cycles[0];
	uint64_t began = cpu_ns();
	void *line = chase(cycle_at(cycle, 0), series->hops);
	uint64_t took = cpu_ns() - began;

	return line == cycle_at(cycle, series->hops) ? (double)took / (double)series->hops : -1;
}

static int by_double(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Steps of a series: alone, then 1, 2, 4 … chases. */
enum { MOST_STEPS = 8 };

/* Measures and prints a series; returns whether every chase ended where it should. */
static int measure(const struct series *series, const char *alone_name, const char *name,
		   uint64_t most, uint64_t rounds)
{
	int steps = 1, right = 1;
	double *found = (double *)calloc(MOST_STEPS * rounds, sizeof *found);
	char *stacks = (char *)malloc((size_t)MOST_CHASES * STACK_BYTES);

	if (found == NULL || stacks == NULL) {
		perror("interleaved");
		return 0;
	}
	memset(stacks, 0, (size_t)MOST_CHASES * STACK_BYTES);
	while (((uint64_t)1 << (steps - 1)) <= most)
		steps++;
	for (uint64_t round = 0; round < rounds; round++)
		for (int i = 0; i < steps; i++) {
			int step = round % 2 == 0 ? i : steps - 1 - i;
			double ns = step == 0 ? alone(series)
					      : interleaved(series, (uint64_t)1 << (step - 1), stacks);
			right &= ns >= 0;
			found[(uint64_t)step * rounds + round] = ns;
		}
	for (int step = 0; step < steps; step++) {
		double *of_step = found + (uint64_t)step * rounds;
		qsort(of_step, rounds, sizeof *of_step, by_double);
		if (step == 0)
			printf("%s", alone_name);
		else
			printf("%s_%d", name, 1 << (step - 1));
		printf(" %.3f\n", of_step[rounds / 2]);
	}
	free(stacks);
	free(found);
	return right;
}

/* Gives a series `distinct` cycles; the chases beyond share the first. Returns whether they could
 * be had. */
static int make(struct series *series, uint64_t distinct, uint64_t area, enum pages pages)
{
	for (uint64_t i = 0; i < MOST_CHASES; i++)
		if (i >= distinct)
			series->cycles[i] = series->cycles[0];
		else if (!cycle_make(&series->cycles[i], area, pages))
			return 0;
	return 1;
}

int main(int argc, char **argv)
{
	static const char *const SHARING[] = {"shared", "own", NULL};
	static struct series large, small;
	uint64_t area = 512 << 20, hops = 4000000, own = 0, pages = PAGES_THP, rounds = 5;
	uint64_t most = 16, cpu = ANY_CPU;
	const struct parameter parameters[] = {
		{"AREA", POWER_SIZE, &area, MOST_CHASES * LINE_BYTES, (uint64_t)1 << 40, NULL},
		{"HOPS", COUNT, &hops, MOST_CHASES, (uint64_t)1 << 40, NULL},
		{"SHARING", CHOICE, &own, 0, 0, SHARING},
		{"PAGES", CHOICE, &pages, 0, 0, PAGES_WORDS},
		{"ROUNDS", COUNT, &rounds, 1, 1000, NULL},
		{"MOST", COUNT, &most, 1, MOST_CHASES, NULL},
		{"CPU", CPU, &cpu, 0, CPU_SETSIZE - 1, NULL},
	};

	if (READ_ARGUMENTS("interleaved", argv + 1, argc - 1, parameters) != 0)
		return EXIT_USAGE;
	if (!stay_on(cpu))
		return EXIT_WRONG;
	if (!make(&large, own ? most : 1, area, (enum pages)pages) ||
	    !make(&small, 1, SMALL_BYTES, (enum pages)pages))
		return EXIT_WRONG;
	large.hops = small.hops = hops;
	int right = measure(&large, "alone_ns", "hop_ns", most, rounds);
	right &= measure(&small, "alone_l1_ns", "switch_ns", most, rounds);
	if (right)
		return 0;
	fprintf(stderr, "interleaved: wrong result\n");
	return EXIT_WRONG;
}
