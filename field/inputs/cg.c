/* Conjugate gradients on a cube's seven-point stencil, split over MPI ranks. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIDE = 128, ROUNDS = 40 };

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    long plane = SIDE * SIDE, depth = SIDE / ranks, n = plane * depth;
    /* A plane of the neighbour at both ends. */
    double *p = calloc(n + 2 * plane, sizeof *p) , *q = calloc(n, sizeof *q);
    double *r = calloc(n, sizeof *r), *x = calloc(n, sizeof *x);
    p += plane;
    for (long i = 0; i < n; i++) p[i] = r[i] = 1.0 + (i % 7) * 0.25;
    double mine = 0, rho;
    for (long i = 0; i < n; i++) mine += r[i] * r[i];
    MPI_Allreduce(&mine, &rho, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    int above = rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL, below = rank ? rank - 1 : MPI_PROC_NULL;
    for (int round = 0; round < ROUNDS; round++) {
        MPI_Sendrecv(p + n - plane, plane, MPI_DOUBLE, above, 0, p - plane, plane, MPI_DOUBLE, below, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Sendrecv(p, plane, MPI_DOUBLE, below, 1, p + n, plane, MPI_DOUBLE, above, 1, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        double sums[2] = {0, 0}, all;
        for (long i = 0; i < n; i++) {
            long column = i % SIDE, row = i / SIDE % SIDE;
            double near = p[i - plane] + p[i + plane];
            if (column) near += p[i - 1];
            if (column < SIDE - 1) near += p[i + 1];
            if (row) near += p[i - SIDE];
            if (row < SIDE - 1) near += p[i + SIDE];
            q[i] = 6.5 * p[i] - near;
            sums[0] += p[i] * q[i];
        }
        MPI_Allreduce(&sums[0], &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        double alpha = rho / all, old = rho;
        for (long i = 0; i < n; i++) {
            x[i] += alpha * p[i];
            r[i] -= alpha * q[i];
            sums[1] += r[i] * r[i];
        }
        MPI_Allreduce(&sums[1], &rho, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        for (long i = 0; i < n; i++) p[i] = r[i] + rho / old * p[i];
    }
    double total = 0, sum = 0;
    for (long i = 0; i < n; i++) sum += x[i];
    MPI_Reduce(&sum, &total, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!rank) printf("%.4f\n", total);
    MPI_Finalize();
    return 0;
}
