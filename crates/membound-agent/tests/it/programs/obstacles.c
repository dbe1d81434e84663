// Puts obstacles in the agent's way before it starts, then runs itself as the program.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

extern char **environ;

// As the kernel defines them; musl's compiler does not see the kernel's headers.
struct instruction {
    unsigned short code;
    unsigned char yes, no;
    unsigned value;
};
struct filter {
    unsigned short length;
    struct instruction *instructions;
};

static int deny(int number, int error) {
    struct instruction instructions[] = {
        {0x20, 0, 0, 0},                   // load the call's number
        {0x15, 0, 1, number},              // compare
        {0x06, 0, 0, 0x00050000 | error},  // return an error
        {0x06, 0, 0, 0x7fff0000},          // allow
    };
    struct filter filter = {4, instructions};
    if (prctl(38 /* PR_SET_NO_NEW_PRIVS */, 1, 0, 0, 0)) return 1;
    return prctl(22 /* PR_SET_SECCOMP */, 2, &filter, 0, 0) != 0;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        puts("ran");
        return 3;
    }
    // The agent in this process has hidden itself; the next image gets it by hand.
    char *variables[] = {getenv("NEXT_PRELOAD"), getenv("NEXT_AGENT"), NULL};
    char *own[] = {argv[0], NULL};
    if (strcmp(argv[1], "pwrite") == 0 && deny(SYS_pwrite64, EPERM)) return 9;
    if (strcmp(argv[1], "socket") == 0 && deny(SYS_socket, EPERM)) return 9;
    if (strcmp(argv[1], "mmap") == 0) {
        struct rlimit limit = {64 << 20, 64 << 20};
        if (setrlimit(RLIMIT_AS, &limit)) return 9;
    }
    if (strcmp(argv[1], "closed") == 0) {
        // Descriptor 0 is the lowest free one: what the agent opens must not stay in it.
        close(0);
        close(2);
    }
    execve(argv[0], own, variables);
    return 8;
}
