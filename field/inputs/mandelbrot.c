/* Computes in registers alone. */
#include <stdio.h>

int main(void) {
    long inside = 0;
    for (int y = 0; y < 900; y++)
        for (int x = 0; x < 900; x++) {
            double a = 0, b = 0, p = x / 450.0 - 1.5, q = y / 450.0 - 1.0;
            int k = 0;
            for (; k < 800 && a * a + b * b < 4; k++) {
                double t = a * a - b * b + p;
                b = 2 * a * b + q;
                a = t;
            }
            inside += k == 800;
        }
    printf("%ld\n", inside);
    return 0;
}
