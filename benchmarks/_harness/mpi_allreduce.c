/* OpenMPI's ranks in a benchmark: turns of MPI_Allreduce by the protocol in turns.h.
 *
 *     mpirun -n N mpi_allreduce FOLDER
 */
#include <mpi.h>

#include "turns.h"

static void reduce(void *self, float *buffer, int count) {
    (void)self;
    MPI_Allreduce(MPI_IN_PLACE, buffer, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void barrier(void *self) {
    (void)self;
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc != 2) {
        fprintf(stderr, "usage: mpi_allreduce FOLDER\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    Contestant all = {0, 0, reduce, barrier, NULL};
    MPI_Comm_rank(MPI_COMM_WORLD, &all.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &all.size);
    const Conductor conductor = meet(argv[1], all.rank, 0);
    serve(&all, &conductor);
    MPI_Finalize();
    return 0;
}
