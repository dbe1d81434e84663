// Calls functions whose text the test replaces.
#include <stdio.h>
#include <string.h>

int number(void);
int other(void);
__asm__(
    ".text\n"
    ".globl number\n"
    "number:\n"
    "  mov $1, %eax\n"
    "  ret\n"
    ".globl other\n"
    "other:\n"
    "  mov $2, %eax\n"
    "  ret\n"
    ".globl many\n"
    ".p2align 12\n"
    "many:\n"
    "  .rept 200000\n"
    "  mov $3, %eax\n"
    "  .endr\n"
    "  ret\n");

int main(void) {
    printf("%d %d\n", number(), other());
    return 0;
}
