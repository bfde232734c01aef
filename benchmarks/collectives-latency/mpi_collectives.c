/* OpenMPI's ranks in a benchmark: turns of the collectives by the protocol in turns.h.
 *
 *     mpirun -n N mpi_collectives FOLDER
 *
 * The fourth number of a question is the operation, in the order of the enumeration below, which is
 * that of OPERATIONS in operations.py. COUNT is the number of elements of the whole tensor at one
 * rank. Buffers have the values of operations.py, and every element is checked after a turn.
 */
#include <mpi.h>

#include "turns.h"

enum {
    ALL_REDUCE,
    REDUCE_SCATTER,
    ALL_GATHER,
    BROADCAST,
    REDUCE,
    GATHER,
    SCATTER,
    ALL_TO_ALL,
    BARRIER,
    SEND_AND_BACK,
    OPERATIONS
};
enum { ROOT = 0, TAG = 7 };

typedef struct {
    int rank, size, operation, count, part;
    float *source, *target;
} Play;

static float value(int rank, int index) { return (float)(index % 1021 + 1024 * (rank + 1)); }

static void call(const Play *p) {
    const MPI_Comm all = MPI_COMM_WORLD;
    const int root = p->rank == ROOT;
    const int peer = p->rank ^ 1;
    switch (p->operation) {
        case ALL_REDUCE:
            MPI_Allreduce(MPI_IN_PLACE, p->target, p->count, MPI_FLOAT, MPI_MAX, all);
            break;
        case REDUCE_SCATTER:
            MPI_Reduce_scatter_block(p->source, p->target, p->part, MPI_FLOAT, MPI_SUM, all);
            break;
        case ALL_GATHER:
            MPI_Allgather(p->source, p->part, MPI_FLOAT, p->target, p->part, MPI_FLOAT, all);
            break;
        case BROADCAST:
            MPI_Bcast(p->target, p->count, MPI_FLOAT, ROOT, all);
            break;
        case REDUCE:
            MPI_Reduce(root ? MPI_IN_PLACE : p->target, p->target, p->count, MPI_FLOAT, MPI_MAX,
                       ROOT, all);
            break;
        case GATHER:
            MPI_Gather(p->source, p->part, MPI_FLOAT, p->target, p->part, MPI_FLOAT, ROOT, all);
            break;
        case SCATTER:
            MPI_Scatter(p->source, p->part, MPI_FLOAT, p->target, p->part, MPI_FLOAT, ROOT, all);
            break;
        case ALL_TO_ALL:
            MPI_Alltoall(p->source, p->part, MPI_FLOAT, p->target, p->part, MPI_FLOAT, all);
            break;
        case BARRIER:
            MPI_Barrier(all);
            break;
        case SEND_AND_BACK:
            if (peer >= p->size) break;
            if (p->rank < peer) MPI_Send(p->source, p->count, MPI_FLOAT, peer, TAG, all);
            MPI_Recv(p->target, p->count, MPI_FLOAT, peer, TAG, all, MPI_STATUS_IGNORE);
            if (p->rank > peer) MPI_Send(p->source, p->count, MPI_FLOAT, peer, TAG, all);
            break;
    }
}

/* Fills the source, and the target with the values before a turn. */
static void begin(const Play *p) {
    const int in_place = p->operation == ALL_REDUCE || p->operation == REDUCE ||
                         (p->operation == BROADCAST && p->rank == ROOT);
    for (int i = 0; i < p->count; i++) {
        p->source[i] = value(p->rank, i);
        p->target[i] = in_place ? p->source[i] : -1.0f;
    }
}

/* Returns the element that the target has at `i` after every call. */
static float expected(const Play *p, int i) {
    float sum = 0.0f;
    switch (p->operation) {
        case ALL_REDUCE:
        case REDUCE:
            return value(p->size - 1, i);
        case REDUCE_SCATTER:
            for (int rank = 0; rank < p->size; rank++) sum += value(rank, p->rank * p->part + i);
            return sum;
        case ALL_GATHER:
        case GATHER:
            return value(i / p->part, i % p->part);
        case BROADCAST:
            return value(ROOT, i);
        case SCATTER:
            return value(ROOT, p->rank * p->part + i);
        case ALL_TO_ALL:
            return value(i / p->part, p->rank * p->part + i % p->part);
        default:
            return value(p->rank ^ 1, i);
    }
}

/* Returns whether the part of the target that this rank receives is right. */
static int is_right(const Play *p) {
    int received = p->count;
    if (p->operation == REDUCE_SCATTER || p->operation == SCATTER) received = p->part;
    if ((p->operation == REDUCE || p->operation == GATHER) && p->rank != ROOT) received = 0;
    if (p->operation == BARRIER) received = 0;
    if (p->operation == SEND_AND_BACK && (p->rank ^ 1) >= p->size) received = 0;
    for (int i = 0; i < received; i++) {
        if (p->target[i] != expected(p, i)) return 0;
    }
    return 1;
}

static void play(const Play *p, FILE *answers, int calls, int warm_up) {
    begin(p);
    for (int i = 0; i < warm_up; i++) call(p);
    MPI_Barrier(MPI_COMM_WORLD);
    const Used before = now();
    for (int i = 0; i < calls; i++) call(p);
    const Used done = now();
    MPI_Barrier(MPI_COMM_WORLD);
    const Used after = now();
    const Used used = between(&before, &done, &after);
    if (is_right(p))
        tell(answers, &used);
    else
        fprintf(answers, "wrong\n");
    fflush(answers);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc != 2) {
        fprintf(stderr, "usage: mpi_collectives FOLDER\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    Play p;
    memset(&p, 0, sizeof p);
    MPI_Comm_rank(MPI_COMM_WORLD, &p.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &p.size);
    const Conductor conductor = meet(argv[1], p.rank, 0);
    int calls, warm_up, held = -1;
    while (fscanf(conductor.questions, " turn %d %d %d %d", &p.count, &calls, &warm_up,
                  &p.operation) == 4) {
        if (p.count > held) {
            const size_t bytes = sizeof(float) * (size_t)(p.count > 0 ? p.count : 1);
            free(p.source);
            free(p.target);
            p.source = (float *)malloc(bytes);
            p.target = (float *)malloc(bytes);
            held = p.count;
        }
        p.part = p.count / p.size;
        if (p.source == NULL || p.target == NULL || p.operation < 0 || p.operation >= OPERATIONS) {
            fprintf(stderr, "no memory, or no operation %d\n", p.operation);
            MPI_Abort(MPI_COMM_WORLD, 2);
        }
        play(&p, conductor.answers, calls, warm_up);
    }
    fclose(conductor.questions);
    fclose(conductor.answers);
    MPI_Finalize();
    return 0;
}
