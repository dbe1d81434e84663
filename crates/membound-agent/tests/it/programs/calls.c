// Calls a function whose patch calls into the agent, with registers and flags checked around it, and
// system calls that the agent hooks.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <ucontext.h>
#include <sys/time.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "own.h"

// Fills every register, calls the patched place, and compares: 0 when all are as they were.
long around(void);
long own_mprotect(void *, size_t, int);

extern char around_site[];

__asm__(
    ".data\n"
    ".p2align 4\n"
    "pattern: .rept 64\n .byte 0xa5\n .endr\n"
    ".text\n"
    ".globl own_mprotect\n"
    "own_mprotect:\n"
    "  mov $10, %eax\n"
    ".globl own_mprotect_site\n"
    "own_mprotect_site:\n"
    "  syscall\n"
    "  nopl (%rax)\n"
    "  ret\n"
    ".globl around\n"
    "around:\n"
    "  push %rbx\n  push %rbp\n  push %r12\n  push %r13\n  push %r14\n  push %r15\n"
    "  mov %rsp, saved(%rip)\n"
    // Any alignment of the stack will do.
    "  add $-1032, %rsp\n"
    "  movq $0x5a5a, -128(%rsp)\n"
    "  movq $0x5a5b, -8(%rsp)\n"
    "  .irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
    "  movdqa pattern(%rip), %xmm\\n\n"
    "  .endr\n"
    "  mov $1, %eax\n  mov $2, %ebx\n  mov $3, %ecx\n  mov $4, %edx\n  mov $5, %esi\n"
    "  mov $6, %edi\n  mov $7, %ebp\n  mov $8, %r8d\n  mov $9, %r9d\n  mov $10, %r10d\n"
    "  mov $11, %r11d\n  mov $12, %r12d\n  mov $13, %r13d\n  mov $14, %r14d\n"
    "  mov $15, %r15d\n"
    "  cmp $2, %eax\n"
    "  std\n"
    ".globl around_site\n"
    "around_site:\n"
    "  .byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n"
    // CF and SF from the comparison, and the direction flag.
    "  jae 9f\n  jns 9f\n"
    "  pushfq\n  testl $0x400, (%rsp)\n  lea 8(%rsp), %rsp\n  cld\n  jz 9f\n"
    "  cmp $1, %rax\n  jne 9f\n  cmp $2, %rbx\n  jne 9f\n  cmp $3, %rcx\n  jne 9f\n"
    "  cmp $4, %rdx\n  jne 9f\n  cmp $5, %rsi\n  jne 9f\n  cmp $6, %rdi\n  jne 9f\n"
    "  cmp $7, %rbp\n  jne 9f\n  cmp $8, %r8\n  jne 9f\n  cmp $9, %r9\n  jne 9f\n"
    "  cmp $10, %r10\n  jne 9f\n  cmp $11, %r11\n  jne 9f\n  cmp $12, %r12\n  jne 9f\n"
    "  cmp $13, %r13\n  jne 9f\n  cmp $14, %r14\n  jne 9f\n  cmp $15, %r15\n  jne 9f\n"
    "  .irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
    "  pcmpeqb pattern(%rip), %xmm\\n\n"
    "  pmovmskb %xmm\\n, %eax\n  cmp $0xffff, %eax\n  jne 9f\n"
    "  .endr\n"
    "  cmpq $0x5a5a, -128(%rsp)\n  jne 9f\n"
    "  xor %eax, %eax\n  jmp 8f\n"
    "9:\n"
    "  cld\n  mov $1, %eax\n"
    "8:\n"
    "  mov saved(%rip), %rsp\n"
    "  pop %r15\n  pop %r14\n  pop %r13\n  pop %r12\n  pop %rbp\n  pop %rbx\n"
    "  ret\n"
    ".data\n"
    "saved: .quad 0\n"
    ".text\n");

static volatile long ticks, right, spoilt, outside;

// At the patched place, every register has the value that the caller gave it.
static void on_tick(int sig, siginfo_t *info, void *context) {
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    static const int order[] = {REG_RAX, REG_RBX, REG_RCX, REG_RDX, REG_RSI, REG_RDI, REG_RBP,
                                REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14,
                                REG_R15};
    ticks++;
    if ((char *)r[REG_RIP] == around_site) {
        int wrong = 0;
        for (int i = 0; i < 15; i++) wrong += r[order[i]] != i + 1;
        // The direction flag may be cleared where it is not looked at.
        wrong += (r[REG_EFL] & 0x8d5) != 0x95;
        if (wrong) spoilt++;
        else right++;
    } else if ((unsigned long)r[REG_RIP] > 0x700000000000) {
        outside++;
    }
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 1 && strcmp(argv[1], "writable") == 0) {
        uintptr_t page = (uintptr_t)around_site & ~4095UL;
        printf("%ld\n", own_mprotect((void *)page, 8192, PROT_READ | PROT_EXEC));
        printf("%ld\n", own_mprotect((void *)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC));
        printf("%x\n", around_site[0] & 0xff);
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "modules") == 0) {
        void *object = dlopen(argv[2], RTLD_NOW);
        printf("opened %d\n", object != NULL);
        dlclose(object);
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "ticks") == 0) {
        struct kernel_action tick = {on_tick, SA_SIGINFO | 0x04000000, own_restorer, 0};
        own_sigaction(SIGALRM, &tick, NULL, 8);
        struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
        setitimer(ITIMER_REAL, &often, NULL);
        long wrong = 0;
        while (ticks < 3000) wrong += around();
        setitimer(ITIMER_REAL, &never, NULL);
        printf("wrong %ld spoilt %ld mostly %d\n", wrong, spoilt,
               right > 10 * outside);
        return 0;
    }
    long wrong = 0;
    long times = argc > 2 && strcmp(argv[1], "times") == 0 ? atol(argv[2]) : 2000;
    for (long i = 0; i < times; i++) wrong += around();
    printf("wrong %ld\n", wrong);
    getchar();
    return 0;
}
