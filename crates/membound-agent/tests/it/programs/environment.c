// Prints its environment as it finds it: by environ, and the auxiliary vector's page size by
// walking the initial stack from there, as runtimes without a libc do. With the argument
// "exec", calls execve by its own system call first.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <errno.h>
#include <unistd.h>

extern char **environ;
long own_execve(const char *path, char **argv, char **envp);
__asm__(
    ".text\n"
    ".globl own_execve\n"
    ".type own_execve, @function\n"
    "own_execve:\n"
    "  mov $59, %eax\n"
    ".globl own_execve_site\n"
    "own_execve_site:\n"
    "  syscall\n"
    "  nopl (%rax)\n"
    "  ret\n");

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "exec") == 0) {
        char *arguments[] = {argv[0], "child", NULL};
        printf("%ld\n", own_execve("/nonexistent", arguments, environ));
        fflush(stdout);
        own_execve(argv[0], arguments, environ);
        return 9;
    }
    for (char **at = environ; *at; at++) puts(*at);
    char **at = environ;
    while (*at) at++;
    unsigned long *pair = (unsigned long *)(at + 1);
    while (pair[0] && pair[0] != 6) pair += 2;
    printf("page %lu\n", pair[0] ? pair[1] : 0);
    int lowest = dup(0);
    printf("free %d\n", lowest);
    return 5;
}
