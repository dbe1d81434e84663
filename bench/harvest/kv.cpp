/*
 * A primary: an ordered key-value store in memory under an open load.
 *
 *     kv [NODES [UTILISATION [REQUESTS [OPERATIONS [wait|spin|clock [RATE
 *         [WORKER_CPU [GENERATOR_CPU [thp|4k]]]]]]]]]
 *
 * NODES: bytes of the tree's nodes, 1G by default. UTILISATION: percent of the time in which the
 * worker would be busy at the rate of service found at the start, 50 by default. REQUESTS: 200000
 * by default. OPERATIONS: of a request, 8 by default; of twenty operations sixteen are gets, one is
 * a scan of 16 entries, two are updates and one is an insertion. RATE: requests a second; 0
 * (default) takes UTILISATION instead. To compare runs give the rate that one of them printed: what
 * else runs in the worker changes the rate of service. WORKER_CPU and GENERATOR_CPU: where the two
 * threads stay, or any (default). thp (default) asks for huge pages.
 *
 * One thread, the worker, serves. Arrivals are a Poisson process, drawn before the first of them.
 * Another thread, the generator, hands each over when its time has come, from a loop that never
 * blocks: it needs a processor of its own. The worker, when there is nothing to do, waits for a
 * condition variable (wait, default) or looks on (spin). With clock there is no generator: the
 * worker itself sleeps until the next arrival, which one processor is enough for.
 *
 * Prints nodes, levels, the rate of service found at the start (service_rate_per_s), the rate of
 * arrivals (rate_per_s), operations, percentiles of the service time (from taking a request to
 * its end) and of the sojourn time (from its arrival to its end), busy (the share of the time
 * from the first arrival to the last end in service), waits (how often the worker waited), late
 * (arrivals handed over more than 10 us late), worker_cpu_s, and began_ns and ended_ns (the first
 * arrival and the last end, by CLOCK_MONOTONIC). Exit code 1 when a value that was read, or the
 * whole store at the end, is not what it must be.
 */
#include <atomic>
#include <cmath>
#include <pthread.h>
#include <sys/prctl.h>
#include <vector>

#include "tree.hpp"

/* Called once for every request with its service time: a mark for whoever measures from outside. */
extern "C" MARK void kv_request_done(uint64_t service_ns)
{
	(void)service_ns;
}

namespace {

constexpr uint64_t LATE_NS = 10000;
/* Before the measured requests, at most so many are served one after the other. */
constexpr uint64_t MOST_CALIBRATION = 20000;
/* Loaded keys are multiples of it; keys between them are inserted. */
constexpr uint64_t KEY_STEP = 16;
constexpr unsigned SCANNED = 16;
/* A value is a hash of its key and, below, how often it was updated. */
constexpr unsigned UPDATE_BITS = 24;

uint64_t first_value(uint64_t key)
{
	return hash64(key) << UPDATE_BITS;
}

uint64_t updates_of(uint64_t value)
{
	return value & low_bits(UPDATE_BITS);
}

bool value_fits(uint64_t key, uint64_t value)
{
	return value - updates_of(value) == first_value(key);
}

/* The store, and what must come out of it. Used by the worker alone. */
struct Store {
	Tree tree;
	uint64_t loaded = 0;
	uint64_t inserted = 0, updated = 0, operations = 0;
	bool right = true;
};

NOINLINE void get(Store &store, uint64_t key)
{
	const uint64_t *value = store.tree.find(key);

	store.right &= value != nullptr && value_fits(key, *value);
}

NOINLINE void scan(Store &store, uint64_t key)
{
	unsigned count = 0;
	uint64_t last = key;

	store.tree.scan(key, [&](uint64_t found, uint64_t value) {
		/* The first is the key itself, and the others are in order. */
		store.right &= (count == 0 ? found == key : found > last) &&
			       value_fits(found, value);
		last = found;
		return ++count < SCANNED;
	});
	store.right &= count > 0;
}

NOINLINE void update(Store &store, uint64_t key)
{
	uint64_t *value = store.tree.find(key);

	if (value == nullptr) {
		store.right = false;
		return;
	}
	store.right &= value_fits(key, *value);
	++*value;
	store.updated++;
}

/* Of a key that is there already, it is an update. */
NOINLINE void put(Store &store, uint64_t key)
{
	if (store.tree.find(key) != nullptr) {
		update(store, key);
		return;
	}
	store.right &= store.tree.insert(key, first_value(key));
	store.inserted++;
}

NOINLINE void serve(Store &store, uint64_t request, uint64_t operations)
{
	uint64_t state = hash64(request);

	for (uint64_t i = 0; i < operations; i++) {
		const uint64_t key = below(next_random(&state), store.loaded) * KEY_STEP;
		const uint64_t which = below(next_random(&state), 20);
		if (which < 16)
			get(store, key);
		else if (which < 17)
			scan(store, key);
		else if (which < 19)
			update(store, key);
		else
			put(store, key + 1 + below(next_random(&state), KEY_STEP - 1));
	}
	store.operations += operations;
}

/* Walks the whole store. */
bool whole(const Store &store)
{
	uint64_t entries = 0, updates = 0, next = 0;
	bool right = store.right;

	store.tree.scan(0, [&](uint64_t key, uint64_t value) {
		right &= key >= next && value_fits(key, value);
		next = key + 1;
		updates += updates_of(value);
		entries++;
		return true;
	});
	return right && entries == store.loaded + store.inserted && updates == store.updated;
}

enum class Idle : uint64_t { Wait, Spin, Clock };

/* Requests are numbered, so that handing over is counting. */
class Queue {
public:
	/* One more, and a word to the worker if it waits. */
	void hand_over(uint64_t given)
	{
		given_.store(given);
		/* Both are in one order with the worker's: it sees the request or we see that it waits. */
		if (waiting_.load()) {
			pthread_mutex_lock(&lock_);
			pthread_cond_signal(&more_);
			pthread_mutex_unlock(&lock_);
		}
	}

	/* Returns once more than `taken` have been handed over; `waits` counts when it blocked. */
	void await(uint64_t taken, Idle idle, uint64_t &waits)
	{
		if (given_.load(std::memory_order_acquire) > taken)
			return;
		if (idle == Idle::Spin) {
			while (given_.load(std::memory_order_acquire) <= taken)
				__builtin_ia32_pause();
			return;
		}
		pthread_mutex_lock(&lock_);
		waiting_.store(true);
		while (given_.load() <= taken) {
			waits++;
			pthread_cond_wait(&more_, &lock_);
		}
		waiting_.store(false);
		pthread_mutex_unlock(&lock_);
	}

private:
	alignas(LINE_BYTES) std::atomic<uint64_t> given_{0};
	std::atomic<bool> waiting_{false};
	alignas(LINE_BYTES) pthread_mutex_t lock_ = PTHREAD_MUTEX_INITIALIZER;
	pthread_cond_t more_ = PTHREAD_COND_INITIALIZER;
};

struct Run {
	Store store;
	Queue queue;
	Idle idle = Idle::Wait;
	uint64_t operations = 8, requests = 200000;
	uint64_t worker_cpu = ANY_CPU, generator_cpu = ANY_CPU;
	/* After the begin, in ns. */
	std::vector<uint64_t> arrivals;
	std::vector<uint64_t> service_ns, sojourn_ns;
	/* Both threads meet twice: when the rate of service is known, and when arrivals are. */
	pthread_barrier_t meet;
	double service_mean_ns = 0;
	uint64_t begin_ns = 0;
	uint64_t busy_ns = 0, end_ns = 0, waits = 0, late = 0, worker_cpu_ns = 0;
	bool stayed = true;
};

/* Serves requests that are no part of the measurement, one after the other. */
void calibrate(Run &run)
{
	const uint64_t count = run.requests < MOST_CALIBRATION ? run.requests : MOST_CALIBRATION;
	/* The first half only warms up. */
	uint64_t began = now_ns();
	for (uint64_t i = 0; i < 2 * count; i++) {
		if (i == count)
			began = now_ns();
		const uint64_t taken = now_ns();
		serve(run.store, ~i, run.operations);
		kv_request_done(now_ns() - taken);
	}
	run.service_mean_ns = (double)(now_ns() - began) / (double)count;
}

void sleep_until(uint64_t at_ns)
{
	const struct timespec at = {(time_t)(at_ns / 1000000000u), (long)(at_ns % 1000000000u)};

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr);
}

void *work(void *argument)
{
	Run &run = *static_cast<Run *>(argument);

	run.stayed = stay_on(run.worker_cpu);
	/* As near to the next arrival as the kernel wakes anyone. */
	prctl(PR_SET_TIMERSLACK, 1UL);
	if (run.stayed)
		calibrate(run);
	pthread_barrier_wait(&run.meet);
	pthread_barrier_wait(&run.meet);
	if (!run.stayed)
		return nullptr;
	const uint64_t cpu = cpu_ns();
	for (uint64_t i = 0; i < run.requests; i++) {
		const uint64_t arrival = run.begin_ns + run.arrivals[i];
		if (run.idle != Idle::Clock) {
			run.queue.await(i, run.idle, run.waits);
		} else if (now_ns() < arrival) {
			run.waits++;
			sleep_until(arrival);
		}
		const uint64_t taken = now_ns();
		serve(run.store, i, run.operations);
		const uint64_t done = now_ns();
		run.service_ns[i] = done - taken;
		run.sojourn_ns[i] = done - arrival;
		run.busy_ns += done - taken;
		run.end_ns = done;
		kv_request_done(done - taken);
	}
	run.worker_cpu_ns = cpu_ns() - cpu;
	return nullptr;
}

/* Hands every request over when its time has come. */
void generate(Run &run)
{
	for (uint64_t i = 0; i < run.requests; i++) {
		const uint64_t arrival = run.begin_ns + run.arrivals[i];
		uint64_t now;
		while ((now = now_ns()) < arrival)
			__builtin_ia32_pause();
		run.late += now - arrival > LATE_NS;
		run.queue.hand_over(i + 1);
	}
}

/* Exponential intervals; ns after the begin. */
void draw_arrivals(Run &run, double rate_per_s)
{
	uint64_t state = 1;
	double at = 0;

	for (uint64_t i = 0; i < run.requests; i++) {
		/* In (0, 1], so that there is a logarithm. */
		const double uniform = ((double)(next_random(&state) >> 11) + 1) * 0x1p-53;
		at -= std::log(uniform) * 1e9 / rate_per_s;
		run.arrivals[i] = (uint64_t)at;
	}
}

int measure(Run &run, uint64_t utilisation, uint64_t rate)
{
	pthread_t worker;

	pthread_barrier_init(&run.meet, nullptr, 2);
	run.arrivals.resize(run.requests);
	run.service_ns.resize(run.requests);
	run.sojourn_ns.resize(run.requests);
	if (pthread_create(&worker, nullptr, work, &run) != 0 || !stay_on(run.generator_cpu)) {
		fprintf(stderr, "kv: cannot begin\n");
		return EXIT_WRONG;
	}
	pthread_barrier_wait(&run.meet);
	if (!run.stayed)
		return EXIT_WRONG;
	const double service_rate = 1e9 / run.service_mean_ns;
	const double per_s = rate > 0 ? (double)rate : service_rate * (double)utilisation / 100;
	draw_arrivals(run, per_s);
	run.begin_ns = now_ns() + 1000000;
	pthread_barrier_wait(&run.meet);
	if (run.idle != Idle::Clock)
		generate(run);
	pthread_join(worker, nullptr);

	const bool right = whole(run.store);
	const uint64_t first = run.begin_ns + run.arrivals[0];
	printf("nodes %" PRIu64 "\nlevels %u\nservice_rate_per_s %.0f\nrate_per_s %.0f\n",
	       run.store.tree.nodes(), run.store.tree.levels(), service_rate, per_s);
	printf("operations %" PRIu64 "\n", run.store.operations);
	print_percentiles("service", run.service_ns.data(), run.service_ns.size());
	print_percentiles("sojourn", run.sojourn_ns.data(), run.sojourn_ns.size());
	printf("busy %.4f\nwaits %" PRIu64 "\nlate %" PRIu64 "\nworker_cpu_s %.6f\n",
	       (double)run.busy_ns / (double)(run.end_ns - first), run.waits, run.late,
	       (double)run.worker_cpu_ns * 1e-9);
	printf("began_ns %" PRIu64 "\nended_ns %" PRIu64 "\n", first, run.end_ns);
	if (right)
		return 0;
	fprintf(stderr, "kv: wrong result\n");
	return EXIT_WRONG;
}

} // namespace

int main(int argc, char **argv)
{
	static const char *const IDLE[] = {"wait", "spin", "clock", nullptr};
	static Run run;
	uint64_t bytes = 1 << 30, utilisation = 50, idle = 0, rate = 0, pages = PAGES_THP;
	const struct parameter parameters[] = {
		{"NODES", SIZE, &bytes, 64 << 10, (uint64_t)1 << 40, nullptr},
		{"UTILISATION", COUNT, &utilisation, 1, 1000, nullptr},
		{"REQUESTS", COUNT, &run.requests, 1, (uint64_t)1 << 32, nullptr},
		{"OPERATIONS", COUNT, &run.operations, 1, 1 << 20, nullptr},
		{"IDLE", CHOICE, &idle, 0, 0, IDLE},
		{"RATE", COUNT, &rate, 0, 1000000000, nullptr},
		{"WORKER_CPU", CPU, &run.worker_cpu, 0, CPU_SETSIZE - 1, nullptr},
		{"GENERATOR_CPU", CPU, &run.generator_cpu, 0, CPU_SETSIZE - 1, nullptr},
		{"PAGES", CHOICE, &pages, 0, 0, PAGES_WORDS},
	};

	if (READ_ARGUMENTS("kv", argv + 1, argc - 1, parameters) != 0)
		return EXIT_USAGE;
	run.idle = static_cast<Idle>(idle);
	/* The least number of leaves with which the nodes take so much. */
	uint64_t leaves = bytes / Tree::NODE_BYTES * 11 / 12;
	while (Tree::nodes_of(leaves) * Tree::NODE_BYTES < bytes)
		leaves++;
	run.store.loaded = leaves * Tree::LOADED;
	/* One operation in twenty inserts on the average, and less than one insertion in five splits
	 * a node; every eighth operation is more than will be needed. */
	const uint64_t most = run.requests + 2 * MOST_CALIBRATION;
	if (!run.store.tree.load(leaves, 64 + most * run.operations / 8, (enum pages)pages,
				 [](uint64_t i) { return i * KEY_STEP; }, first_value))
		return EXIT_WRONG;
	return measure(run, utilisation, rate);
}
