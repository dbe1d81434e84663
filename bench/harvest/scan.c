/*
 * A scavenger: sums an array of 4 MB again and again.
 *
 *     scan [BLOCKS]
 *
 * BLOCKS: blocks of 64 KiB to sum, 64 to the array; 0 (default) for ever. The unit of work is a
 * block. Every block's sum is held against its closed form.
 */
#include "scavenger.h"

enum { ARRAY_BYTES = 4 << 20, BLOCK_BYTES = 64 << 10, VALUE_BYTES = sizeof(uint64_t) };
enum { BLOCK_VALUES = BLOCK_BYTES / VALUE_BYTES, BLOCKS = ARRAY_BYTES / BLOCK_BYTES };

NOINLINE static uint64_t sum(const uint64_t *values)
{
	uint64_t total = 0;

	for (int i = 0; i < BLOCK_VALUES; i++)
		total += values[i];
	return total;
}

int main(int argc, char **argv)
{
	uint64_t amount = 0;
	volatile uint64_t fallback = 0;
	const struct parameter parameters[] = {{"BLOCKS", COUNT, &amount, 0, UINT64_MAX, NULL}};

	if (READ_ARGUMENTS("scan", argv + 1, argc - 1, parameters) != 0)
		return EXIT_USAGE;
	volatile uint64_t *own = own_count(&fallback);
	if (own == NULL)
		return EXIT_WRONG;
	uint64_t *values = (uint64_t *)malloc(ARRAY_BYTES);
	if (values == NULL) {
		perror("scan");
		return EXIT_WRONG;
	}
	for (uint64_t i = 0; i < ARRAY_BYTES / VALUE_BYTES; i++)
		values[i] = i;
	int right = 1;
	for (uint64_t done = 0; (amount == 0 || done < amount) && right; done++) {
		uint64_t first = done % BLOCKS * BLOCK_VALUES;
		/* first + (first + 1) + … */
		uint64_t truth = first * BLOCK_VALUES + (uint64_t)BLOCK_VALUES * (BLOCK_VALUES - 1) / 2;
		right = sum(values + first) == truth;
		work_done(own, 1);
	}
	free(values);
	return finish("scan", *own, right);
}
