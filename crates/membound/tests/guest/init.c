/*
 * The first process of the test guest.
 *
 * Runs the commands that /commands lists, one after the other, writes what each of them
 * said to the second serial port, and switches the machine off. Kernel messages go to the
 * first port, so that they cannot get between the results.
 *
 * /commands: records of strings, each ended by NUL, a record by an empty string. The first
 * string of a record is the time limit in seconds. A program's path and arguments follow,
 * or `@write PATH TEXT`, or `@read PATH`.
 *
 * Result: `result STATUS STDOUT_BYTES STDERR_BYTES\n`, then the bytes of both. STATUS is
 * the exit code, or 128 + the signal that ended the program. `done\n` follows the last one.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define MAX_ARGUMENTS 64

static int port;

static void power_off(void)
{
	sync();
	reboot(RB_POWER_OFF);
	for (;;)
		pause();
}

static void fail(const char *what)
{
	dprintf(port > 0 ? port : 2, "failed %s: %s\n", what, strerror(errno));
	if (port > 0)
		tcdrain(port);
	power_off();
}

static void write_all(int to, const char *bytes, size_t length)
{
	while (length > 0) {
		ssize_t written = write(to, bytes, length);
		if (written < 0)
			fail("write");
		bytes += written;
		length -= (size_t)written;
	}
}

static char *read_all(const char *path, size_t *length)
{
	size_t room = 65536;
	char *bytes = malloc(room);
	int from = open(path, O_RDONLY);
	ssize_t got;

	*length = 0;
	if (from < 0) {
		free(bytes);
		return NULL;
	}
	while ((got = read(from, bytes + *length, room - *length)) > 0) {
		*length += (size_t)got;
		if (*length == room)
			bytes = realloc(bytes, room *= 2);
	}
	close(from);
	return bytes;
}

static void open_port(void)
{
	struct termios raw;

	port = open("/dev/ttyS1", O_RDWR | O_NOCTTY);
	if (port < 0)
		fail("/dev/ttyS1");
	tcgetattr(port, &raw);
	cfmakeraw(&raw);
	cfsetspeed(&raw, B115200);
	tcsetattr(port, TCSANOW, &raw);
}

static void redirect(int to, const char *path)
{
	int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	if (file < 0 || dup2(file, to) < 0)
		_exit(126);
	close(file);
}

/* The built-in commands; an error goes to stderr and gives 1. */
static int built_in(char **words)
{
	size_t length;
	char *bytes;
	int file;

	if (strcmp(words[0], "@read") == 0) {
		bytes = read_all(words[1], &length);
		if (bytes == NULL) {
			dprintf(2, "%s: %s\n", words[1], strerror(errno));
			return 1;
		}
		write_all(1, bytes, length);
		return 0;
	}
	file = open(words[1], O_WRONLY);
	if (file < 0 || write(file, words[2], strlen(words[2])) < 0) {
		dprintf(2, "%s: %s\n", words[1], strerror(errno));
		return 1;
	}
	return 0;
}

static int run(unsigned limit_s, char **words)
{
	int status;
	pid_t child = fork();

	if (child < 0)
		fail("fork");
	if (child == 0) {
		redirect(0, "/dev/null");
		redirect(1, "/stdout");
		redirect(2, "/stderr");
		/* The alarm outlives exec and ends a program that hangs. */
		alarm(limit_s);
		if (words[0][0] == '@')
			_exit(built_in(words));
		execv(words[0], words);
		dprintf(2, "%s: %s\n", words[0], strerror(errno));
		_exit(127);
	}
	/* Orphans of earlier commands end here as well. */
	while (waitpid(-1, &status, 0) != child)
		;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void send_result(int status)
{
	size_t out_length, err_length;
	char *out = read_all("/stdout", &out_length);
	char *err = read_all("/stderr", &err_length);

	dprintf(port, "result %d %zu %zu\n", status, out_length, err_length);
	write_all(port, out, out_length);
	write_all(port, err, err_length);
	free(out);
	free(err);
}

int main(void)
{
	size_t length;
	char *commands, *at;

	mkdir("/proc", 0755);
	mkdir("/sys", 0755);
	mkdir("/dev", 0755);
	mkdir("/tmp", 01777);
	mkdir("/root", 0700);
	mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
	open_port();
	if (mount("proc", "/proc", "proc", 0, NULL) != 0)
		fail("/proc");
	if (mount("sysfs", "/sys", "sysfs", 0, NULL) != 0)
		fail("/sys");
	if (mount("tmpfs", "/tmp", "tmpfs", 0, NULL) != 0)
		fail("/tmp");
	setenv("HOME", "/root", 1);
	setenv("PATH", "/bin", 1);

	commands = read_all("/commands", &length);
	if (commands == NULL)
		fail("/commands");
	for (at = commands; at < commands + length;) {
		char *words[MAX_ARGUMENTS + 1];
		int count = 0;
		unsigned limit_s = (unsigned)atoi(at);

		for (at += strlen(at) + 1; *at != '\0'; at += strlen(at) + 1) {
			if (count == MAX_ARGUMENTS) {
				errno = E2BIG;
				fail("/commands");
			}
			words[count++] = at;
		}
		words[count] = NULL;
		at++;
		send_result(run(limit_s, words));
	}
	write_all(port, "done\n", 5);
	tcdrain(port);
	power_off();
	return 0;
}
