// A scavenger: does what its first argument says, and prints the result.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static __thread int own = 17;

static int deep(int n) {
    volatile char room[4096];
    room[0] = (char)n;
    return n ? deep(n - 1) + room[0] : 0;
}

static void *nothing(void *argument) { return argument; }

static void last(void) { puts("at exit"); }

static void handler(int signal) { (void)signal; }

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(what, "say")) {
        atexit(last);
        for (int i = 2; i < count; i++)
            printf("argument %s\n", words[i]);
        const char *value = getenv("WORD");
        printf("variable %s\n", value ? value : "none");
        printf("own %d\n", own);
        fprintf(stderr, "an error\n");
        char *blocks[64];
        for (int i = 0; i < 64; i++)
            memset(blocks[i] = malloc(1000 << i % 10), i, 1000 << i % 10);
        int sound = 1;
        for (int i = 0; i < 64; i++)
            sound &= blocks[i][(1000 << i % 10) - 1] == (char)i;
        printf("blocks %d\n", sound);
        int descriptor = dup(0);
        printf("descriptor %d\n", descriptor);
        close(0), close(1), close(2);
        return 7;
    }
    if (!strcmp(what, "abort"))
        abort();
    if (!strcmp(what, "fault"))
        *(volatile int *)0 = 1;
    if (!strcmp(what, "divide")) {
        volatile int zero = 0, many = 100;
        return many / zero;
    }
    if (!strcmp(what, "overflow"))
        return deep(1 << 30);
    if (!strcmp(what, "hunger")) {
        size_t got = 0;
        while (malloc(1 << 20))
            got++;
        printf("hungry at %d\n", got > 16 && got < 64);
    }
    if (!strcmp(what, "refused")) {
        pthread_t thread;
        printf("thread %d\n", pthread_create(&thread, NULL, nothing, NULL) != 0);
        printf("fork %d\n", fork() < 0);
        printf("exec %d\n", execl("/bin/true", "true", (char *)NULL) < 0);
        printf("kill %d\n", kill(getppid(), SIGTERM) < 0);
        printf("sibling %d\n", syscall(SYS_tgkill, getpid(), getpid(), SIGTERM) < 0);
        printf("handler %d\n", signal(SIGTERM, handler) != SIG_ERR);
        printf("limit %d\n", setuid(12345) < 0);
        printf("directory %d\n", chdir("/") == 0);
    }
    if (!strcmp(what, "endless"))
        for (volatile unsigned n = 0;; n++)
            ;
    return 3;
}
