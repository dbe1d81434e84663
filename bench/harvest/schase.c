/*
 * A scavenger: a pointer chase.
 *
 *     schase [AREA [HOPS [thp|4k]]]
 *
 * AREA: bytes, a power of two, 16M by default. HOPS: rounded up to whole steps of 256; 0 (default)
 * for ever. thp (default) asks for huge pages. The unit of work is a hop. After every step the
 * line reached is held against the one that is that many hops from the first.
 */
#include "scavenger.h"

enum { STEP_HOPS = 256 };

NOINLINE static void *chase(void *line)
{
	for (int i = 0; i < STEP_HOPS; i++)
		line = *(void **)line;
	return line;
}

int main(int argc, char **argv)
{
	uint64_t area = 16 << 20, amount = 0, pages = PAGES_THP;
	volatile uint64_t fallback = 0;
	const struct parameter parameters[] = {
		{"AREA", POWER_SIZE, &area, 2 * LINE_BYTES, (uint64_t)1 << 40, NULL},
		{"HOPS", COUNT, &amount, 0, UINT64_MAX, NULL},
		{"PAGES", CHOICE, &pages, 0, 0, PAGES_WORDS},
	};
	struct cycle cycle;

	if (READ_ARGUMENTS("schase", argv + 1, argc - 1, parameters) != 0)
		return EXIT_USAGE;
	volatile uint64_t *own = own_count(&fallback);
	if (own == NULL || !cycle_make(&cycle, area, (enum pages)pages))
		return EXIT_WRONG;
	int right = 1;
	void *line = cycle_at(&cycle, 0);
	while ((amount == 0 || *own < amount) && right) {
		line = chase(line);
		work_done(own, STEP_HOPS);
		right = line == cycle_at(&cycle, *own);
	}
	unmap_area(cycle.area, area);
	return finish("schase", *own, right);
}
