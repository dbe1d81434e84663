/*
 * Trouble for a primary, linked into it by `cargo xtask campaign harvest`: handlers, timers, and threads
 * that come and go. None of it where the environment does not name it in HARVEST_STORM:
 *
 *     HANDLED IGNORED FLAGS REAL_US PROF_US THREADS
 *
 * HANDLED and IGNORED: masks of signals, in hexadecimal, bit 0 for signal 1. FLAGS: 1 handlers run on an
 * alternate stack (of the first thread), 2 they block all signals, 4 they block none, not even their
 * own, 8 they chase a few pointers. REAL_US and PROF_US: periods of the timers that send SIGALRM and
 * SIGPROF, 0 for none. THREADS: how many are made at a time, again and again, each of which chases some
 * pointers; 0 for none. Whoever finds something changed that must not be says so and ends the process
 * with 77.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

enum { WRONG = 77, LINES = 64, LINE_WORDS = 8, MOST_THREADS = 8, STACK_BYTES = 1 << 20 };
enum { ON_STACK = 1, BLOCK_ALL = 2, BLOCK_NONE = 4, CHASE = 8 };

static uintptr_t ring[LINES * LINE_WORDS];
static unsigned flags, threads;
static volatile sig_atomic_t depth;

static void wrong(const char *what)
{
	char line[80];
	int bytes = snprintf(line, sizeof line, "storm: %s\n", what);

	if (write(2, line, (size_t)bytes) != bytes)
		_exit(WRONG + 1);
	_exit(WRONG);
}

/* Hops through the ring, and where they end. */
__attribute__((noinline)) static uintptr_t chase(uintptr_t from, unsigned hops)
{
	uintptr_t at = from;

	for (unsigned i = 0; i < hops; i++)
		at = *(uintptr_t *)at;
	return at;
}

static void handle(int signal)
{
	int error = errno;
	volatile unsigned char room[256];

	for (unsigned i = 0; i < sizeof room; i++)
		room[i] = (unsigned char)(signal + i);
	uintptr_t first = (uintptr_t)ring;
	/* Where handlers interrupt each other without an end, not all of them can chase. */
	if ((flags & CHASE) && depth < 4) {
		depth++;
		if (chase(first, LINES) != first)
			wrong("a handler's chase ended elsewhere");
		depth--;
	}
	if (getpid() <= 0)
		wrong("no process");
	for (unsigned i = 0; i < sizeof room; i++)
		if (room[i] != (unsigned char)(signal + i))
			wrong("a handler's stack changed");
	errno = error;
}

static void *come_and_go(void *number)
{
	uintptr_t first = (uintptr_t)ring;
	unsigned rounds = 10 + (unsigned)(uintptr_t)number % 7 * 100;

	errno = (int)rounds;
	for (unsigned i = 0; i < rounds; i++)
		if (chase(first, LINES) != first || errno != (int)rounds)
			wrong("a thread's chase ended elsewhere");
	return number;
}

static void *make_threads(void *unused)
{
	pthread_t made[MOST_THREADS];

	for (uintptr_t round = 0;; round++) {
		for (unsigned i = 0; i < threads; i++)
			if (pthread_create(&made[i], NULL, come_and_go, (void *)(round + i)) != 0)
				wrong("no thread");
		for (unsigned i = 0; i < threads; i++) {
			void *number;
			if (pthread_join(made[i], &number) != 0 || number != (void *)(round + i))
				wrong("a thread ended otherwise");
		}
	}
	return unused;
}

static void set_timer(int which, unsigned us)
{
	struct itimerval often = {{0, us}, {0, us}};

	if (us > 0 && setitimer(which, &often, NULL) != 0)
		wrong("no timer");
}

__attribute__((constructor)) static void begin(void)
{
	static unsigned char room[STACK_BYTES];
	const char *text = getenv("HARVEST_STORM");
	unsigned long handled, ignored;
	unsigned real_us, prof_us;

	if (text == NULL)
		return;
	if (sscanf(text, "%lx %lx %u %u %u %u", &handled, &ignored, &flags, &real_us, &prof_us,
	           &threads) != 6 ||
	    threads > MOST_THREADS)
		wrong("HARVEST_STORM is not understood");
	for (unsigned i = 0; i < LINES; i++)
		ring[i * LINE_WORDS] = (uintptr_t)&ring[(i * 5 + 1) % LINES * LINE_WORDS];
	struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
	if (flags & ON_STACK) {
		stack_t stack = {.ss_sp = room, .ss_size = sizeof room};
		sigaltstack(&stack, NULL);
		action.sa_flags |= SA_ONSTACK;
	}
	if (flags & BLOCK_ALL)
		sigfillset(&action.sa_mask);
	if (flags & BLOCK_NONE)
		action.sa_flags |= SA_NODEFER;
	for (int signal = 1; signal < NSIG; signal++) {
		if (ignored >> (signal - 1) & 1)
			action.sa_handler = SIG_IGN;
		else if (handled >> (signal - 1) & 1)
			action.sa_handler = handle;
		else
			continue;
		sigaction(signal, &action, NULL);
	}
	pthread_t maker;
	if (threads > 0 && (pthread_create(&maker, NULL, make_threads, NULL) != 0 ||
	                    pthread_detach(maker) != 0))
		wrong("no thread");
	set_timer(ITIMER_REAL, real_us);
	set_timer(ITIMER_PROF, prof_us);
}
