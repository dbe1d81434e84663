/*
 * Tight loops with one load each that hits the first cache, which `cargo xtask bench
 * rewrite` runs unpatched and patched.
 *
 *     patched ITERATIONS ROUNDS
 *
 * Prints a line a round and loop: the loop's name and nanoseconds per iteration. `adds` has
 * no load: an iteration of it takes one cycle a dependent addition, of which it has 16.
 *
 * What is alive where the load stands decides what a patch has to save, so that the loops
 * are written down to the register:
 *
 *   chase      each load needs the one before; flags and registers to spare
 *   repeat     loads that do not wait for each other
 *   flags      as repeat, a flag alive across the load
 *   registers  as repeat, every register alive
 *   both       a flag and every register
 *   redzone    a flag, every register, and data below the stack pointer
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef uint64_t kernel(void *address, uint64_t iterations);

kernel adds, chase, repeat, flags, registers, both, redzone;

#define BEGIN(name)                                                                            \
	".globl " name "\n.type " name ", @function\n.balign 64\n" name ":\n.cfi_startproc\n"
#define END(name) ".cfi_endproc\n.size " name ", . - " name "\n"
#define TOP ".balign 64\n1:\n"
#define FOUR(text) text text text text

/* Saves what the caller expects to find again, and fills the rest with values. */
#define FILL                                                                                   \
	"push %rbx\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset rbx, 0\n"                        \
	"push %rbp\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset rbp, 0\n"                        \
	"push %r12\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset r12, 0\n"                        \
	"push %r13\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset r13, 0\n"                        \
	"push %r14\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset r14, 0\n"                        \
	"push %r15\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset r15, 0\n"                        \
	"mov $1, %eax\nmov $2, %ebx\nmov $3, %ecx\nmov $4, %edx\nmov $5, %ebp\nmov $6, %r8d\n"     \
	"mov $7, %r9d\nmov $8, %r10d\nmov $9, %r11d\nmov $10, %r12d\nmov $11, %r13d\n"           \
	"mov $12, %r14d\nmov $13, %r15d\n"
/* Reads every register, so that none was dead before, and puts back what was saved. */
#define SUM                                                                                    \
	"add %rbx, %rax\nadd %rcx, %rax\nadd %rdx, %rax\nadd %rbp, %rax\nadd %rdi, %rax\n"          \
	"add %rsi, %rax\nadd %r8, %rax\nadd %r9, %rax\nadd %r10, %rax\nadd %r11, %rax\n"            \
	"add %r12, %rax\nadd %r13, %rax\nadd %r14, %rax\nadd %r15, %rax\n"
#define RESTORE                                                                                \
	"pop %r15\n.cfi_adjust_cfa_offset -8\n.cfi_restore r15\n"                              \
	"pop %r14\n.cfi_adjust_cfa_offset -8\n.cfi_restore r14\n"                              \
	"pop %r13\n.cfi_adjust_cfa_offset -8\n.cfi_restore r13\n"                              \
	"pop %r12\n.cfi_adjust_cfa_offset -8\n.cfi_restore r12\n"                              \
	"pop %rbp\n.cfi_adjust_cfa_offset -8\n.cfi_restore rbp\n"                              \
	"pop %rbx\n.cfi_adjust_cfa_offset -8\n.cfi_restore rbx\n"

__asm__(".text\n"
	BEGIN("adds") "mov %rsi, %rax\n" TOP FOUR(FOUR("add %rdi, %rax\n"))
	"dec %rsi\njnz 1b\nret\n" END("adds")

	BEGIN("chase") TOP "mov (%rdi), %rdi\ndec %rsi\njnz 1b\nmov %rdi, %rax\nret\n" END("chase")

	BEGIN("repeat") TOP "mov (%rdi), %rax\ndec %rsi\njnz 1b\nret\n" END("repeat")

	BEGIN("flags") TOP "dec %rsi\nmov (%rdi), %rax\njnz 1b\nret\n" END("flags")

	/* Below here not even the register that is loaded is dead before. */
	BEGIN("registers") FILL TOP "add (%rdi), %rax\ndec %rsi\njnz 1b\n" SUM RESTORE "ret\n"
	END("registers")

	BEGIN("both") FILL TOP "dec %rsi\ncmovnz (%rdi), %rbx\njnz 1b\n" SUM RESTORE
	"ret\n" END("both")

	BEGIN("redzone") FILL "mov %rdi, -8(%rsp)\nmov %rsi, -128(%rsp)\n"
	TOP "dec %rsi\ncmovnz (%rdi), %rbx\njnz 1b\n" SUM
	"add -8(%rsp), %rax\nadd -128(%rsp), %rax\n" RESTORE "ret\n" END("redzone"));

static const struct {
	const char *name;
	kernel *run;
} kernels[] = {
	{ "adds", adds },	{ "chase", chase }, { "repeat", repeat },   { "flags", flags },
	{ "registers", registers }, { "both", both },   { "redzone", redzone },
};

static double now_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

int main(int count, char **words)
{
	if (count != 3) {
		fprintf(stderr, "usage: patched ITERATIONS ROUNDS\n");
		return 2;
	}
	const uint64_t iterations = strtoull(words[1], NULL, 10);
	const int rounds = atoi(words[2]);
	static void *self;
	static volatile uint64_t sink;
	self = &self;
	for (int round = -1; round < rounds; ++round) {
		for (size_t i = 0; i < sizeof kernels / sizeof *kernels; ++i) {
			const double began = now_ns();
			sink += kernels[i].run(&self, iterations);
			const double passed = now_ns() - began;
			/* The first round warms up. */
			if (round >= 0)
				printf("%s %.6f\n", kernels[i].name, passed / iterations);
		}
	}
	return 0;
}
