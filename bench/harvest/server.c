/*
 * A primary: a server on a loopback socket with idle time between its requests.
 *
 *     server both [TABLE [HOPS [RATE [MILLISECONDS [PORT [CPU [CLIENT_CPU]]]]]]]
 *     server serve [TABLE [HOPS [PORT [CPU]]]]
 *     server drive PORT [TABLE [HOPS [RATE [MILLISECONDS [CLIENT_CPU]]]]]
 *
 * `serve` answers until all of its clients have gone, of which there must have been one. `drive`
 * is such a client; `both` is a server whose client is a child process. TABLE: bytes, a power of
 * two, 256M by default, and HOPS, 16 by default: a request asks where so many hops through a random
 * cycle over the table lead; both sides must be told the same. RATE: requests a second, 5000 by
 * default, and MILLISECONDS, for how long, 5000 by default: they are sent when their time has come,
 * whether or not the ones before were answered, over four connections. PORT: 0, the default, takes
 * a free one. CPU and CLIENT_CPU: where each side stays, or any (default).
 *
 * The server prints port as soon as it listens, and at its end requests, waits (how often it
 * waited for something to do) and percentiles of the service time, from receiving to having sent.
 * The client prints replies, wrong (ones) and percentiles of the latency, from the time at which
 * a request was due to its reply. Exit code 1 when a reply was wrong or did not come.
 */
/* First: it says which functions the headers of the system shall declare. */
#include "common.h"

#include <arpa/inet.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CONNECTIONS = 4, MOST_CLIENTS = 256, BUFFERED = 64 };

struct message {
	/* Given back as it came. */
	uint64_t id;
	/* A place in the cycle; in a reply a line of the table. */
	uint64_t value;
};

struct config {
	uint64_t table, hops, rate, milliseconds, port, cpu, client_cpu;
};

/* What has come of messages on a connection. */
struct incoming {
	int socket;
	size_t bytes;
	struct message messages[BUFFERED];
};

static int complain(const char *what)
{
	fprintf(stderr, "server: %s: %s\n", what, strerror(errno));
	return EXIT_WRONG;
}

/* Receives more; returns what recv does. */
static ssize_t receive(struct incoming *from, int flags)
{
	ssize_t got = recv(from->socket, (char *)from->messages + from->bytes,
			   sizeof from->messages - from->bytes, flags);

	if (got > 0)
		from->bytes += (size_t)got;
	return got;
}

/* Drops `count` whole messages, and keeps what follows them. */
static void drop(struct incoming *from, size_t count)
{
	from->bytes -= count * sizeof(struct message);
	memmove(from->messages, from->messages + count, from->bytes);
}

/* Sends all; returns whether it could. */
static int send_all(int socket, const void *data, size_t bytes)
{
	const char *at = (const char *)data;

	while (bytes > 0) {
		ssize_t sent = send(socket, at, bytes, MSG_NOSIGNAL);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0)
			return 0;
		at += sent;
		bytes -= (size_t)sent;
	}
	return 1;
}

static int no_delay(int socket)
{
	int on = 1;

	return setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static struct sockaddr_in loopback(uint64_t port)
{
	struct sockaddr_in address;

	memset(&address, 0, sizeof address);
	address.sin_family = AF_INET;
	address.sin_port = htons((uint16_t)port);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return address;
}

/* ---- the server ---- */

struct served {
	uint64_t *service_ns;
	size_t count, room;
	uint64_t waits;
};

/* Looks up where `hops` hops from `line` lead. */
NOINLINE static void *look_up(void *line, uint64_t hops)
{
	for (uint64_t i = 0; i < hops; i++)
		line = *(void **)line;
	return line;
}

static int remember(struct served *served, uint64_t service_ns)
{
	if (served->count == served->room) {
		size_t room = served->room == 0 ? 1 << 16 : 2 * served->room;
		uint64_t *more = (uint64_t *)realloc(served->service_ns, room * sizeof *more);
		if (more == NULL)
			return 0;
		served->service_ns = more;
		served->room = room;
	}
	served->service_ns[served->count++] = service_ns;
	return 1;
}

/* Answers what has come on a connection. Returns 1, 0 when the client has gone, -1 on errors. */
static int answer(struct incoming *client, const struct cycle *table, uint64_t hops,
		  struct served *served)
{
	ssize_t got = receive(client, 0);
	uint64_t received = now_ns();

	if (got < 0 && errno == EINTR)
		return 1;
	if (got < 0)
		return errno == ECONNRESET ? 0 : -1;
	if (got == 0)
		return 0;
	size_t count = client->bytes / sizeof(struct message);
	for (size_t i = 0; i < count; i++) {
		struct message *message = &client->messages[i];
		char *line = (char *)look_up(cycle_at(table, message->value), hops);
		message->value = (uint64_t)(line - table->area) / LINE_BYTES;
	}
	if (!send_all(client->socket, client->messages, count * sizeof(struct message)))
		return errno == ECONNRESET || errno == EPIPE ? 0 : -1;
	/* Of each of those that were served together. */
	uint64_t service_ns = now_ns() - received;
	drop(client, count);
	for (size_t i = 0; i < count; i++)
		if (!remember(served, service_ns))
			return -1;
	return 1;
}

static int watch(int epoll, int socket, void *as)
{
	struct epoll_event event;

	memset(&event, 0, sizeof event);
	event.events = EPOLLIN;
	event.data.ptr = as;
	return epoll_ctl(epoll, EPOLL_CTL_ADD, socket, &event);
}

/* Serves until the last client has gone. */
static int serve(const struct config *config, const struct cycle *table, int listening)
{
	static struct incoming clients[MOST_CLIENTS];
	struct served served = {NULL, 0, 0, 0};
	int epoll = epoll_create1(0);
	int known = 0, open = 0;

	if (!stay_on(config->cpu))
		return EXIT_WRONG;
	if (epoll < 0 || watch(epoll, listening, NULL) != 0)
		return complain("cannot wait for clients");
	while (known == 0 || open > 0) {
		struct epoll_event events[16];
		served.waits++;
		int ready = epoll_wait(epoll, events, 16, -1);
		if (ready < 0 && errno != EINTR)
			return complain("cannot wait");
		for (int i = 0; i < ready; i++) {
			struct incoming *client = (struct incoming *)events[i].data.ptr;
			if (client == NULL) {
				int socket = accept(listening, NULL, NULL);
				if (socket < 0)
					return complain("cannot accept a client");
				if (known == MOST_CLIENTS) {
					close(socket);
					continue;
				}
				client = &clients[known++];
				client->socket = socket;
				if (no_delay(socket) != 0 || watch(epoll, socket, client) != 0)
					return complain("cannot watch a client");
				open++;
				continue;
			}
			int done = answer(client, table, config->hops, &served);
			if (done < 0)
				return complain("cannot answer");
			if (done == 0) {
				close(client->socket);
				open--;
			}
		}
	}
	close(epoll);
	printf("requests %zu\nwaits %" PRIu64 "\n", served.count, served.waits);
	print_percentiles("service", served.service_ns, served.count);
	free(served.service_ns);
	return 0;
}

/* A listening socket, whose port is printed and kept; or -1. */
static int listen_on(struct config *config)
{
	struct sockaddr_in address = loopback(config->port);
	socklen_t size = sizeof address;
	int on = 1, listening = socket(AF_INET, SOCK_STREAM, 0);

	if (listening < 0 || setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
	    bind(listening, (struct sockaddr *)&address, sizeof address) != 0 ||
	    listen(listening, MOST_CLIENTS) != 0 ||
	    getsockname(listening, (struct sockaddr *)&address, &size) != 0)
		return -1;
	config->port = ntohs(address.sin_port);
	printf("port %" PRIu64 "\n", config->port);
	fflush(stdout);
	return listening;
}

/* ---- the client ---- */

struct load {
	const struct config *config;
	struct incoming connections[CONNECTIONS];
	uint64_t count, sent, replies, wrong;
	uint64_t *due_ns, *latency_ns;
};

/* Where the request with this number begins; the table has a power of two of lines. */
static uint64_t place_of(const struct load *load, uint64_t id)
{
	return hash64(id) & (load->config->table / LINE_BYTES - 1);
}

/* Sends the next request. Returns 1, 0 when there is no room for it now, -1 on errors. */
static int send_next(struct load *load)
{
	const struct message message = {load->sent, place_of(load, load->sent)};
	int socket = load->connections[load->sent % CONNECTIONS].socket;
	ssize_t sent = send(socket, &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT);

	if (sent < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -1;
	load->sent++;
	return send_all(socket, (const char *)&message + sent, sizeof message - (size_t)sent) ? 1
											      : -1;
}

/* Takes the replies that have come on a connection. Returns whether it still stands. */
static int take_replies(struct load *load, struct incoming *connection)
{
	unsigned bits = (unsigned)__builtin_ctzll(load->config->table / LINE_BYTES);
	ssize_t got = receive(connection, MSG_DONTWAIT);
	uint64_t now = now_ns();

	if (got < 0)
		return errno == EAGAIN || errno == EINTR;
	size_t count = connection->bytes / sizeof(struct message);
	for (size_t i = 0; i < count; i++) {
		const struct message *reply = &connection->messages[i];
		if (reply->id >= load->sent || load->latency_ns[reply->id] != 0) {
			load->wrong++;
			continue;
		}
		uint64_t place = place_of(load, reply->id) + load->config->hops;
		load->wrong += reply->value != scramble(place & low_bits(bits), bits);
		load->latency_ns[reply->id] = now - load->due_ns[reply->id];
		load->replies++;
	}
	drop(connection, count);
	return got > 0;
}

/* Waits for replies, but no longer than until `until_ns`. */
static int await(struct load *load, uint64_t until_ns)
{
	struct pollfd polled[CONNECTIONS];
	uint64_t now = now_ns();
	uint64_t left = until_ns > now ? until_ns - now : 0;
	const struct timespec timeout = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};

	for (int i = 0; i < CONNECTIONS; i++) {
		polled[i].fd = load->connections[i].socket;
		polled[i].events = POLLIN;
		polled[i].revents = 0;
	}
	if (ppoll(polled, CONNECTIONS, &timeout, NULL) < 0 && errno != EINTR)
		return 0;
	for (int i = 0; i < CONNECTIONS; i++)
		if (polled[i].revents != 0 && !take_replies(load, &load->connections[i]))
			return 0;
	return 1;
}

/* How long it waits for the last replies. */
#define PATIENCE_NS 10000000000u

static int drive(const struct config *config)
{
	static struct load load;
	struct sockaddr_in address = loopback(config->port);
	uint64_t state = 1;
	double at = 0;

	load.config = config;
	load.count = config->rate * config->milliseconds / 1000;
	load.count += load.count == 0;
	load.due_ns = (uint64_t *)calloc(load.count, sizeof *load.due_ns);
	load.latency_ns = (uint64_t *)calloc(load.count, sizeof *load.latency_ns);
	if (load.due_ns == NULL || load.latency_ns == NULL)
		return complain("cannot allocate");
	if (!stay_on(config->client_cpu))
		return EXIT_WRONG;
	/* Requests are sent as near to their time as the kernel wakes anyone. */
	prctl(PR_SET_TIMERSLACK, 1UL);
	for (int i = 0; i < CONNECTIONS; i++) {
		int socket_ = socket(AF_INET, SOCK_STREAM, 0);
		if (socket_ < 0 || no_delay(socket_) != 0 ||
		    connect(socket_, (struct sockaddr *)&address, sizeof address) != 0)
			return complain("cannot connect");
		load.connections[i].socket = socket_;
	}
	uint64_t begin = now_ns();
	for (uint64_t i = 0; i < load.count; i++) {
		/* A Poisson process: exponential intervals of a number in (0, 1]. */
		double uniform = ((double)(next_random(&state) >> 11) + 1) * 0x1p-53;
		at -= log(uniform) * 1e9 / (double)config->rate;
		load.due_ns[i] = begin + (uint64_t)at;
	}
	uint64_t last = load.due_ns[load.count - 1] + PATIENCE_NS;
	while (load.replies + load.wrong < load.count && now_ns() < last) {
		uint64_t due = load.sent < load.count ? load.due_ns[load.sent] : last;
		if (now_ns() >= due) {
			int sent = send_next(&load);
			if (sent < 0)
				return complain("cannot send");
			if (sent > 0)
				continue;
			/* No room: what has been answered makes some. */
			due = now_ns() + 100000;
		}
		if (!await(&load, due))
			return complain("a connection was closed");
	}
	for (int i = 0; i < CONNECTIONS; i++)
		close(load.connections[i].socket);
	printf("replies %" PRIu64 "\nwrong %" PRIu64 "\n", load.replies, load.wrong);
	if (load.replies == load.count)
		print_percentiles("latency", load.latency_ns, load.count);
	if (load.replies == load.count && load.wrong == 0)
		return 0;
	fprintf(stderr, "server: replies are wrong or missing\n");
	return EXIT_WRONG;
}

/* ---- both ---- */

/* Drives from a child process and serves here. */
static int drive_and_serve(const struct config *config, const struct cycle *table, int listening)
{
	int status = 0;
	pid_t child = fork();

	if (child < 0)
		return complain("cannot fork");
	if (child == 0) {
		close(listening);
		int code = drive(config);
		fflush(stdout);
		_exit(code);
	}
	int code = serve(config, table, listening);
	if (waitpid(child, &status, 0) != child)
		return complain("cannot wait for the client");
	return code != 0 || status != 0 ? EXIT_WRONG : 0;
}

int main(int argc, char **argv)
{
	struct config config = {256 << 20, 16, 5000, 5000, 0, ANY_CPU, ANY_CPU};
	const struct parameter table = {"TABLE", POWER_SIZE, &config.table, 2 * LINE_BYTES,
					(uint64_t)1 << 40, NULL};
	const struct parameter hops = {"HOPS", COUNT, &config.hops, 1, 1 << 20, NULL};
	const struct parameter rate = {"RATE", COUNT, &config.rate, 1, 10000000, NULL};
	const struct parameter milliseconds = {"MILLISECONDS", COUNT, &config.milliseconds, 1,
					       86400000, NULL};
	const struct parameter port = {"PORT", COUNT, &config.port, 0, UINT16_MAX, NULL};
	const struct parameter cpu = {"CPU", CPU, &config.cpu, 0, CPU_SETSIZE - 1, NULL};
	const struct parameter client_cpu = {"CLIENT_CPU", CPU, &config.client_cpu, 0,
					     CPU_SETSIZE - 1, NULL};
	const struct parameter both[] = {table, hops, rate, milliseconds, port, cpu, client_cpu};
	const struct parameter serving[] = {table, hops, port, cpu};
	const struct parameter driving[] = {port, table, hops, rate, milliseconds, client_cpu};
	const char *mode = argc > 1 ? argv[1] : "both";
	char **words = argv + 2;
	int given = argc > 2 ? argc - 2 : 0, wrong;

	if (strcmp(mode, "both") == 0) {
		wrong = READ_ARGUMENTS("server both", words, given, both);
	} else if (strcmp(mode, "serve") == 0) {
		wrong = READ_ARGUMENTS("server serve", words, given, serving);
	} else if (strcmp(mode, "drive") == 0) {
		wrong = READ_ARGUMENTS("server drive", words, given, driving);
		if (wrong == 0 && config.port == 0) {
			fprintf(stderr, "server drive: PORT must be that of a server\n");
			wrong = EXIT_USAGE;
		}
	} else {
		fprintf(stderr, "server: the first argument must be both, serve or drive, not %s\n",
			mode);
		wrong = EXIT_USAGE;
	}
	if (wrong != 0)
		return wrong;
	if (strcmp(mode, "drive") == 0)
		return drive(&config);

	struct cycle cycle;
	if (!cycle_make(&cycle, config.table, PAGES_THP))
		return EXIT_WRONG;
	int listening = listen_on(&config);
	if (listening < 0)
		return complain("cannot listen");
	if (strcmp(mode, "both") == 0)
		return drive_and_serve(&config, &cycle, listening);
	return serve(&config, &cycle, listening);
}
