/* OpenMPI's side of the benchmark: the same turns with MPI_Allreduce.
 *
 * mpirun -n N mpi_allreduce FOLDER
 *
 * Each rank reads its questions from the pipe FOLDER/ask.RANK and sleeps there between them, so
 * that it takes no processor time from the other contestants. A question is the line
 * "count calls warm_up salt"; rank 0 answers it on standard output with "NANOSECONDS a call" (the
 * slowest rank's) or "wrong". The end of the pipe ends the program.
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* The arithmetic of pattern.py. */
enum { BIAS = 110, MODULUS = 2039, STEP = 7, RANK_STEP = 331 };

static float contribution(int rank, int index) {
    return (float)((index * STEP + rank * RANK_STEP) % MODULUS + 1);
}

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void reduce(float *buffer, int count) {
    MPI_Allreduce(MPI_IN_PLACE, buffer, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* Both the start and the result repeat after MODULUS elements. */
static void fill(float *buffer, int count, int rank, int salt) {
    float period[MODULUS];
    for (int i = 0; i < MODULUS; i++) period[i] = ldexpf(contribution(rank, i), salt - BIAS);
    for (int i = 0, place = 0; i < count; i++) {
        buffer[i] = period[place];
        place = place + 1 == MODULUS ? 0 : place + 1;
    }
}

static int right(const float *buffer, int count, int size, int calls, int salt) {
    int bits = 0;
    while ((1 << (bits + 1)) <= size) bits++;
    float period[MODULUS];
    for (int i = 0; i < MODULUS; i++) {
        float sum = 0.0f;
        for (int rank = 0; rank < size; rank++) sum += contribution(rank, i);
        period[i] = ldexpf(sum, salt - BIAS + bits * (calls - 1));
    }
    for (int i = 0, place = 0; i < count; i++) {
        if (buffer[i] != period[place]) return 0;
        place = place + 1 == MODULUS ? 0 : place + 1;
    }
    return 1;
}

static void turn(int rank, int size, int count, int calls, int warm_up, int salt) {
    float *buffer = malloc((size_t)count * sizeof *buffer);
    if (buffer == NULL) MPI_Abort(MPI_COMM_WORLD, 3);
    fill(buffer, count, rank, salt);

    for (int i = 0; i < warm_up; i++) reduce(buffer, count);
    MPI_Barrier(MPI_COMM_WORLD);
    const double started = now_ns();
    for (int i = 0; i < calls; i++) reduce(buffer, count);
    double elapsed = now_ns() - started;
    MPI_Barrier(MPI_COMM_WORLD);

    int ok = right(buffer, count, size, warm_up + calls, salt);
    free(buffer);
    MPI_Allreduce(MPI_IN_PLACE, &ok, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &elapsed, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (rank != 0) return;
    if (ok)
        printf("%.0f\n", elapsed / calls);
    else
        printf("wrong\n");
    fflush(stdout);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);

    char path[4096];
    if (argc != 2 || snprintf(path, sizeof path, "%s/ask.%d", argv[1], rank) >= (int)sizeof path) {
        fprintf(stderr, "usage: mpi_allreduce FOLDER\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    FILE *questions = fopen(path, "r");
    if (questions == NULL) {
        perror(path);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int count, calls, warm_up, salt;
    while (fscanf(questions, "%d %d %d %d", &count, &calls, &warm_up, &salt) == 4)
        turn(rank, size, count, calls, warm_up, salt);
    fclose(questions);
    MPI_Finalize();
    return 0;
}
