// Signals that find the thread in trampolines; says what its handlers saw.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <execinfo.h>
#endif
#include "own.h"

long faulting(void);
long loading(const int *);
long busy(void);
extern uint64_t stack_before, flags_before;

__asm__(
    ".data\n"
    ".globl stack_before\n"
    "stack_before: .quad 0\n"
    ".globl flags_before\n"
    "flags_before: .quad 0\n"
    ".text\n"
    // The caller of a patched place, with known registers and flags.
    ".globl faulting\n"
    "faulting:\n"
    "  .cfi_startproc\n"
    "  mov %rsp, stack_before(%rip)\n"
    "  movabs $0x123456789abcdef, %rax\n"
    "  cmp %rsp, %rax\n"
    "  stc\n"
    "  pushfq\n"
    "  popq flags_before(%rip)\n"
    ".globl faulting_site\n"
    "faulting_site:\n"
    "  mov $1, %eax\n"
    "  ret\n"
    "  .cfi_endproc\n"
    ".globl loading\n"
    "loading:\n"
    "  .cfi_startproc\n"
    ".globl loading_site\n"
    "loading_site:\n"
    "  mov (%rdi), %eax\n"
    "  add $1, %eax\n"
    "  cltq\n"
    "  ret\n"
    "  .cfi_endproc\n"
    ".globl busy\n"
    "busy:\n"
    "  .cfi_startproc\n"
    "  mov %rdi, %rax\n"
    ".globl busy_site\n"
    "busy_site:\n"
    "  lea 1(%rax), %rax\n"
    "  nop\n"
    "  ret\n"
    "  .cfi_endproc\n");
extern char faulting_site[], loading_site[], busy_site[];

static sigjmp_buf back;
static volatile int jump_out;
static volatile long strange, ticks, deep;

static void on_ill(int sig, siginfo_t *info, void *context) {
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    if (jump_out) siglongjmp(back, 1);
    printf("ill %d at %d address %d rax %llx flags %d stack %d\n", sig,
           (char *)r[REG_RIP] == faulting_site, (char *)info->si_addr == faulting_site,
           (unsigned long long)r[REG_RAX],
           ((uint64_t)r[REG_EFL] & 0x8d5) == (flags_before & 0x8d5),
           (uint64_t)r[REG_RSP] == stack_before);
#ifdef __GLIBC__
    void *frames[32];
    int count = backtrace(frames, 32), site = 0, outer = 0;
    char **names = backtrace_symbols(frames, count);
    for (int i = 0; i < count; i++) {
        site += frames[i] == (void *)faulting_site;
        outer += strstr(names[i], "(main+") != NULL;
    }
    printf("unwound %d %d\n", site, outer);
#endif
}

static void on_segv(int sig, siginfo_t *info, void *context) {
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    printf("segv %d at %d address %p\n", sig, (char *)r[REG_RIP] == loading_site, info->si_addr);
    // Goes on behind the load, inside what the jump overwrote.
    r[REG_RAX] = 10;
    r[REG_RIP] += 2;
}

static void on_tick(int sig, siginfo_t *info, void *context) {
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    uint64_t ip = r[REG_RIP];
    ticks++;
    if (ip >= 0x20000000 && ip < 0x20040000) strange++;
    deep += ip >= (uint64_t)busy_site && ip < (uint64_t)busy_site + 5;
}

static volatile long asked;

static void on_usr(int sig, siginfo_t *info, void *context) {
    stack_t now;
    sigaltstack(NULL, &now);
    asked += now.ss_flags == SS_ONSTACK ? 100 : 1;
    // Nested once: the signal is not blocked in its own handler.
    if (asked == 100) raise(SIGUSR1);
}

// A child that shares this memory resets the signal in a table of its own.
static long child_resets(void) {
    struct kernel_action gone = {SIG_DFL, 0x04000000, own_restorer, 0};
    pid_t child = vfork();
    if (child == 0) {
        own_sigaction(SIGUSR1, &gone, NULL, 8);
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

static void install(int sig, void (*handler)(int, siginfo_t *, void *)) {
    struct kernel_action new = {handler, SA_SIGINFO | 0x04000000, own_restorer, 0}, old;
    memset(&old, 0xff, sizeof old);
    long result = own_sigaction(sig, &new, &old, 8);
    printf("old %ld %p\n", result, old.handler);
    own_sigaction(sig, NULL, &old, 8);
    printf("mine %d flags %lx\n", old.handler == (void *)handler, old.flags);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    install(SIGILL, on_ill);
    install(SIGSEGV, on_segv);
    printf("result %ld\n", faulting());
    printf("result %ld\n", loading(NULL));
    jump_out = 1;
    for (int i = 0; i < 3; i++)
        if (!sigsetjmp(back, 1)) printf("not reached %ld\n", faulting());
    jump_out = 0;
    printf("result %ld\n", faulting());
    printf("bad %ld\n", own_sigaction(99, NULL, NULL, 8));
    printf("bad %ld\n", own_sigaction(SIGUSR1, (void *)8, NULL, 8));
    printf("bad %ld\n", own_sigaction(SIGUSR1, NULL, (void *)8, 8));

    static char room[65536];
    stack_t alternate = {.ss_sp = room, .ss_size = sizeof room};
    sigaltstack(&alternate, NULL);
    struct kernel_action usr = {on_usr, SA_SIGINFO | SA_ONSTACK | SA_NODEFER | 0x04000000,
                                own_restorer, 0};
    own_sigaction(SIGUSR1, &usr, NULL, 8);
    printf("child %ld\n", child_resets());
    raise(SIGUSR1);
    usr.flags |= SA_RESETHAND;
    own_sigaction(SIGUSR1, &usr, NULL, 8);
    asked++;
    raise(SIGUSR1);
    struct kernel_action now;
    own_sigaction(SIGUSR1, NULL, &now, 8);
    printf("asked %ld reset %d\n", asked, now.handler == SIG_DFL);

    install(SIGALRM, on_tick);
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    long sum = 0, calls = 0;
    long (*count)(long) = (long (*)(long))busy;
    while (ticks < 2000) {
        for (int i = 0; i < 1000; i++) sum = count(sum), calls++;
    }
    setitimer(ITIMER_REAL, &never, NULL);
    printf("strange %ld wrong %ld deep %d\n", strange, sum - calls, deep > 0);

    struct kernel_action gone = {SIG_DFL, 0x04000000, own_restorer, 0};
    own_sigaction(SIGILL, &gone, NULL, 8);
    fflush(stdout);
    faulting();
    return 0;
}
