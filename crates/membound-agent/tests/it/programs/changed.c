// A thread that the kernel has blocked goes on in the middle of a change of text.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "own.h"

long own_sigprocmask(int, const unsigned long *, unsigned long *, long);
long own_fork(void);
long held_read(int, char *, long);
long three(long);

__asm__(
    ".text\n"
    ".globl own_sigprocmask\n"
    "own_sigprocmask:\n"
    "  mov %rcx, %r10\n"
    "  mov $14, %eax\n"
    ".globl own_sigprocmask_site\n"
    "own_sigprocmask_site:\n"
    "  syscall\n"
    "  nopl (%rax)\n"
    "  ret\n"
    ".globl own_fork\n"
    "own_fork:\n"
    "  mov $57, %eax\n"
    ".globl own_fork_site\n"
    "own_fork_site:\n"
    "  syscall\n"
    "  nopl (%rax)\n"
    "  ret\n"
    // A call that comes back to the middle of what a jump overwrites: as long as it waits,
    // the change waits too.
    ".globl held_read\n"
    "held_read:\n"
    ".globl held_site\n"
    "held_site:\n"
    "  xor %eax, %eax\n"
    "  syscall\n"
    "  nop\n"
    "  ret\n"
    ".globl three\n"
    "three:\n"
    "  mov %rdi, %rax\n"
    ".globl three_site\n"
    "three_site:\n"
    "  inc %eax\n"
    "  inc %eax\n"
    "  inc %eax\n"
    "  ret\n");

static const unsigned long all = ~0ul;

static void *holds(void *path) {
    // Signals sent to the process are for the first thread, also while a call waits for that.
    sigset_t users;
    sigemptyset(&users);
    sigaddset(&users, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &users, NULL);
    int file = open(path, O_RDONLY);
    char byte = 0;
    return (void *)(held_read(file, &byte, 1) == 1 && byte == 'x' ? 1l : 0l);
}

static volatile long handled;

static void on_signal(int sig) {
    (void)sig;
    handled = three(4);
}

static void forks(void) {
    pid_t child = own_fork();
    if (child == 0) {
        // The agent does not see the library's system calls here.
        sigset_t every;
        sigfillset(&every);
        sigprocmask(SIG_BLOCK, &every, NULL);
        _exit(three(4));
    }
    int status = -1;
    waitpid(child, &status, 0);
    printf("status %x\n", status);
}

static void blocks(void) {
    own_sigprocmask(SIG_SETMASK, &all, NULL, 8);
    printf("three %ld\n", three(4));
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct kernel_action action = {on_signal, 0x04000000 | SA_RESTART, own_restorer, all};
    own_sigaction(SIGUSR1, &action, NULL, 8);
    pthread_t holder;
    if (argc < 3 || pthread_create(&holder, NULL, holds, argv[2]) != 0) return 1;
    puts("ready");
    char line[16];
    if (read(0, line, sizeof line) <= 0) return 2;
    if (strcmp(argv[1], "forks") == 0) forks();
    if (strcmp(argv[1], "blocks") == 0) blocks();
    if (strcmp(argv[1], "handles") == 0) printf("handled %ld\n", handled);
    void *held = NULL;
    pthread_join(holder, &held);
    printf("held %ld\n", (long)held);
    // The end of the change must be printed.
    return read(0, line, sizeof line) <= 0;
}
