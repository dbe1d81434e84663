/*
 * A primary whose stalls are not memory's: a chain of dependent divisions, and branches on
 * numbers that cannot be foreseen. Its data, a table of 4 KiB, stays in the first cache.
 *
 *     other [ROUNDS [CPU]]
 *
 * ROUNDS: 50000000 by default, rounded up to whole batches of 1000. CPU: where it stays, or any
 * (default).
 *
 * Prints rounds, sum, taken (branches), ns_per_round and cpu_ns_per_round (wall and CPU time), and
 * percentiles of the batches' wall times. The result is computed once more, untimed, without
 * divisions and without branches, and the last remainder by exponentiation; exit code 1 when they
 * differ.
 */
#include "common.h"

enum { BATCH_ROUNDS = 1000, ENTRIES = 512 };

/* Park and Miller's generator: x · 48271 modulo the prime 2^31 - 1. */
#define MULTIPLIER 48271u
#define PRIME 0x7fffffffu

struct state {
	uint64_t x, sum, taken;
};

/* Read at run time, so that the division stays one. */
static volatile uint64_t prime = PRIME;

/* Called after every batch with its time: a mark for whoever measures from outside. */
MARK void other_batch_done(uint64_t batch_ns)
{
	(void)batch_ns;
}

NOINLINE static void divide(struct state *state, const uint64_t *table, uint64_t divisor)
{
	struct state s = *state;

	for (int i = 0; i < BATCH_ROUNDS; i++) {
		s.x = s.x * MULTIPLIER % divisor;
		if (s.x & 1) {
			/* Keeps the two ways apart: a conditional move would be no branch. */
			__asm__ volatile("" : "+r"(s.taken));
			s.taken++;
			s.sum += table[(s.x >> 8) % ENTRIES];
		} else {
			__asm__ volatile("" : "+r"(s.sum));
			s.sum ^= s.x;
		}
	}
	*state = s;
}

/* The same by the sum of the halves, since 2^31 is 1 modulo the prime, and by masks. */
static void add_halves(struct state *state, const uint64_t *table)
{
	for (int i = 0; i < BATCH_ROUNDS; i++) {
		uint64_t product = state->x * MULTIPLIER;
		uint64_t folded = (product & PRIME) + (product >> 31);
		state->x = folded - (PRIME & -(uint64_t)(folded >= PRIME));
		uint64_t odd = -(state->x & 1);
		state->taken -= odd;
		state->sum += table[(state->x >> 8) % ENTRIES] & odd;
		state->sum ^= state->x & ~odd;
	}
}

static uint64_t power(uint64_t base, uint64_t exponent)
{
	uint64_t result = 1;

	for (; exponent > 0; exponent >>= 1) {
		if (exponent & 1)
			result = result * base % PRIME;
		base = base * base % PRIME;
	}
	return result;
}

int main(int argc, char **argv)
{
	uint64_t rounds = 50000000, cpu = ANY_CPU;
	const struct parameter parameters[] = {
		{"ROUNDS", COUNT, &rounds, 1, (uint64_t)1 << 40, NULL},
		{"CPU", CPU, &cpu, 0, CPU_SETSIZE - 1, NULL},
	};
	static uint64_t table[ENTRIES];

	if (READ_ARGUMENTS("other", argv + 1, argc - 1, parameters) != 0)
		return EXIT_USAGE;
	uint64_t batches = (rounds + BATCH_ROUNDS - 1) / BATCH_ROUNDS;
	uint64_t *batch_ns = (uint64_t *)calloc(batches, sizeof *batch_ns);
	if (batch_ns == NULL) {
		perror("other");
		return EXIT_WRONG;
	}
	if (!stay_on(cpu))
		return EXIT_WRONG;
	for (uint64_t i = 0; i < ENTRIES; i++)
		table[i] = hash64(i);

	struct state found = {1, 0, 0}, truth = {1, 0, 0};
	uint64_t cpu_began = cpu_ns(), began = now_ns(), last = began;
	for (uint64_t i = 0; i < batches; i++) {
		divide(&found, table, prime);
		uint64_t now = now_ns();
		batch_ns[i] = now - last;
		last = now;
		other_batch_done(batch_ns[i]);
	}
	uint64_t cpu_took = cpu_ns() - cpu_began, all = batches * BATCH_ROUNDS;
	for (uint64_t i = 0; i < batches; i++)
		add_halves(&truth, table);
	printf("rounds %" PRIu64 "\nsum %" PRIu64 "\ntaken %" PRIu64 "\n", all, found.sum,
	       found.taken);
	printf("ns_per_round %.4f\ncpu_ns_per_round %.4f\n", (double)(last - began) / (double)all,
	       (double)cpu_took / (double)all);
	print_percentiles("batch", batch_ns, batches);
	if (found.x == truth.x && found.sum == truth.sum && found.taken == truth.taken &&
	    found.x == power(MULTIPLIER, all))
		return 0;
	fprintf(stderr, "other: wrong result\n");
	return EXIT_WRONG;
}
