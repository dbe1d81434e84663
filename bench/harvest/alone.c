/*
 * Runs a scavenger's shared object by itself, which tells what its work is worth.
 *
 *     alone MILLISECONDS CPU OBJECT [ARGUMENT…]
 *
 * Calls the object's main in a thread of its own with the arguments given. MILLISECONDS: how long
 * it is left to work, which is for those that never end; 0 waits until main returns. CPU: where
 * the thread stays, or any.
 *
 * Prints alone_work (units, as the object counts them), alone_cpu_s (what the thread worked) and
 * alone_work_per_cpu_s, from the first unit seen on, so that what a scavenger prepares is left
 * out. Exit code: main's, or 0 when it was left working.
 */
/* First: it says which functions the headers of the system shall declare. */
#include "common.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

struct scavenger {
	int (*main)(int, char **);
	const volatile uint64_t *work;
	int argc;
	char **argv;
	uint64_t cpu;
	int code;
	int ended;
	/* Held by the main thread until it has read the other's clock for the last time. */
	pthread_mutex_t clock_needed;
};

/* How often the count is looked at. */
#define LOOK_NS 1000000u

static void *run(void *argument)
{
	struct scavenger *scavenger = (struct scavenger *)argument;

	scavenger->code = stay_on(scavenger->cpu) ? scavenger->main(scavenger->argc, scavenger->argv)
						  : EXIT_WRONG;
	__atomic_store_n(&scavenger->ended, 1, __ATOMIC_RELEASE);
	pthread_mutex_lock(&scavenger->clock_needed);
	pthread_mutex_unlock(&scavenger->clock_needed);
	return NULL;
}

static int has_ended(struct scavenger *scavenger)
{
	return __atomic_load_n(&scavenger->ended, __ATOMIC_ACQUIRE);
}

static void look_again(void)
{
	const struct timespec pause = {0, LOOK_NS};

	nanosleep(&pause, NULL);
}

int main(int argc, char **argv)
{
	uint64_t milliseconds = 0, cpu = ANY_CPU;
	const struct parameter parameters[] = {
		{"MILLISECONDS", COUNT, &milliseconds, 0, 86400000, NULL},
		{"CPU", CPU, &cpu, 0, CPU_SETSIZE - 1, NULL},
	};

	if (argc < 4) {
		fprintf(stderr, "alone: needs MILLISECONDS, CPU and OBJECT\n");
		return EXIT_USAGE;
	}
	if (READ_ARGUMENTS("alone", argv + 1, 2, parameters) != 0)
		return EXIT_USAGE;
	void *object = dlopen(argv[3], RTLD_NOW | RTLD_LOCAL);
	if (object == NULL) {
		fprintf(stderr, "alone: %s\n", dlerror());
		return EXIT_WRONG;
	}
	static struct scavenger scavenger;
	*(void **)&scavenger.main = dlsym(object, "main");
	scavenger.work = (const volatile uint64_t *)dlsym(object, "scavenger_work");
	if (scavenger.main == NULL || scavenger.work == NULL) {
		fprintf(stderr, "alone: %s has no main or no scavenger_work\n", argv[3]);
		return EXIT_WRONG;
	}
	scavenger.argc = argc - 3;
	scavenger.argv = argv + 3;
	scavenger.cpu = cpu;
	pthread_mutex_init(&scavenger.clock_needed, NULL);
	pthread_mutex_lock(&scavenger.clock_needed);
	pthread_t thread;
	clockid_t clock;
	if (pthread_create(&thread, NULL, run, &scavenger) != 0 ||
	    pthread_getcpuclockid(thread, &clock) != 0) {
		fprintf(stderr, "alone: cannot start a thread\n");
		return EXIT_WRONG;
	}
	/* One that ended before it was looked at is counted whole. */
	uint64_t cpu_began = 0, work_began = 0;
	while (*scavenger.work == 0 && !has_ended(&scavenger))
		look_again();
	if (!has_ended(&scavenger)) {
		cpu_began = clock_ns(clock);
		work_began = *scavenger.work;
	}
	uint64_t began = now_ns();
	while (!has_ended(&scavenger) &&
	       (milliseconds == 0 || now_ns() - began < milliseconds * 1000000u))
		look_again();
	int left = !has_ended(&scavenger);
	uint64_t work = *scavenger.work - work_began;
	double seconds = (double)(clock_ns(clock) - cpu_began) * 1e-9;
	pthread_mutex_unlock(&scavenger.clock_needed);
	printf("alone_work %" PRIu64 "\nalone_cpu_s %.6f\nalone_work_per_cpu_s %.1f\n", work, seconds,
	       (double)work / seconds);
	fflush(stdout);
	if (left)
		_exit(0);
	pthread_join(thread, NULL);
	return scavenger.code;
}
