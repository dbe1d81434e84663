// `rt_sigaction` and its restorer by instructions of the program's own, which a test can hook.

struct kernel_action {
    void *handler;
    unsigned long flags;
    void *restorer;
    unsigned long mask;
};

long own_sigaction(int, const struct kernel_action *, struct kernel_action *, long);
void own_restorer(void);

__asm__(
    ".text\n"
    ".globl own_sigaction\n"
    "own_sigaction:\n"
    "  mov %rcx, %r10\n"
    "  mov $13, %eax\n"
    ".globl own_sigaction_site\n"
    "own_sigaction_site:\n"
    "  syscall\n"
    "  nopl (%rax)\n"
    "  ret\n"
    // Unwinders look one byte before it.
    "  nop\n"
    ".globl own_restorer\n"
    "own_restorer:\n"
    "  mov $15, %rax\n"
    "  syscall\n");
