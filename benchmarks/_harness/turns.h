/* The protocol of turns for a program in C or C++ that all_reduces float32 with SUM.
 *
 * programs.py is the other side. Each rank reads questions from the pipe FOLDER/ask.RANK, writes
 * answers to FOLDER/answer.RANK and sleeps between questions, so that it takes no processor time
 * from other contestants. Its first message is "ready PID PORT", where PORT is the TCP port that
 * it listens on, or 0. The question "turn COUNT CALLS WARM_UP SALT" has the answer "NANOSECONDS
 * USER_NS SYSTEM_NS VOLUNTARY INVOLUNTARY IDLE_NS": the wall time, processor time and context
 * switches of CALLS calls at this rank, and the time that the machine's cores were idle meanwhile.
 * If a result is wrong, the answer is "wrong". The end of the question pipe ends the program.
 */
#ifndef SLACKLINE_BENCHMARKS_TURNS_H
#define SLACKLINE_BENCHMARKS_TURNS_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    int rank, size;
    /* Both functions act on all ranks of this program and get SELF as their first argument. */
    void (*reduce)(void *self, float *buffer, int count);
    void (*barrier)(void *self);
    void *self;
} Contestant;

typedef struct {
    FILE *questions, *answers;
} Conductor;

typedef struct {
    double ns, user_ns, system_ns;
    long voluntary, involuntary;
    double idle_ns;
} Used;

/* The constants of the pattern; pattern.py has the same arithmetic. */
enum { BIAS = 110, MODULUS = 2039, STEP = 7, RANK_STEP = 331 };
/* The most calls after which the values of a buffer are still exact, with up to four ranks. */
enum { MOST_CALLS = 100 };

static float contribution(int rank, int index) {
    return (float)((index * STEP + rank * RANK_STEP) % MODULUS + 1);
}

/* The start and the result both repeat after MODULUS elements, so one period is computed. */
static void fill(float *buffer, int count, int rank, int salt) {
    float period[MODULUS];
    for (int i = 0; i < MODULUS; i++) period[i] = ldexpf(contribution(rank, i), salt - BIAS);
    for (int i = 0; i < count; i += MODULUS) {
        const int left = count - i;
        memcpy(buffer + i, period, sizeof(float) * (size_t)(left < MODULUS ? left : MODULUS));
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
    for (int i = 0; i < count; i += MODULUS) {
        const int left = count - i;
        /* No value is zero or NaN, so equal values have equal bits. */
        const size_t bytes = sizeof(float) * (size_t)(left < MODULUS ? left : MODULUS);
        if (memcmp(buffer + i, period, bytes) != 0) return 0;
    }
    return 1;
}

/* Returns the time that all cores have been idle since boot; exits if the kernel does not tell. */
static double idle_ns(void) {
    double user, nice, system, idle, waiting;
    FILE *file = fopen("/proc/stat", "r");
    if (file == NULL ||
        fscanf(file, "cpu %lf %lf %lf %lf %lf", &user, &nice, &system, &idle, &waiting) != 5) {
        fprintf(stderr, "/proc/stat has no processor times\n");
        exit(2);
    }
    fclose(file);
    return (idle + waiting) * 1e9 / (double)sysconf(_SC_CLK_TCK);
}

static Used now(void) {
    struct timespec clock;
    clock_gettime(CLOCK_MONOTONIC, &clock);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    Used used;
    used.ns = (double)clock.tv_sec * 1e9 + (double)clock.tv_nsec;
    used.user_ns = (double)usage.ru_utime.tv_sec * 1e9 + (double)usage.ru_utime.tv_usec * 1e3;
    used.system_ns = (double)usage.ru_stime.tv_sec * 1e9 + (double)usage.ru_stime.tv_usec * 1e3;
    used.voluntary = usage.ru_nvcsw;
    used.involuntary = usage.ru_nivcsw;
    used.idle_ns = idle_ns();
    return used;
}

/* Returns what calls have used, from three readings: before them, after them, and after a barrier
 * that follows them. The clock and the count of idle time stop before the barrier. The other
 * counters run until no rank needs this one. */
static Used between(const Used *before, const Used *done, const Used *after) {
    Used used;
    used.ns = done->ns - before->ns;
    used.user_ns = after->user_ns - before->user_ns;
    used.system_ns = after->system_ns - before->system_ns;
    used.voluntary = after->voluntary - before->voluntary;
    used.involuntary = after->involuntary - before->involuntary;
    used.idle_ns = done->idle_ns - before->idle_ns;
    return used;
}

static void tell(FILE *answers, const Used *used) {
    fprintf(answers, "%.0f %.0f %.0f %ld %ld %.0f\n", used->ns, used->user_ns, used->system_ns,
            used->voluntary, used->involuntary, used->idle_ns);
}

/* Makes CALLS measured calls on one filling of the buffer and adds their usage to TOTAL. Returns
 * whether the result is right. */
static int block(const Contestant *all, float *buffer, int count, int calls, int warm_up, int salt,
                 Used *total) {
    fill(buffer, count, all->rank, salt);
    for (int i = 0; i < warm_up; i++) all->reduce(all->self, buffer, count);
    all->barrier(all->self);
    const Used before = now();
    for (int i = 0; i < calls; i++) all->reduce(all->self, buffer, count);
    const Used done = now();
    all->barrier(all->self);
    const Used after = now();
    const Used used = between(&before, &done, &after);
    total->ns += used.ns;
    total->user_ns += used.user_ns;
    total->system_ns += used.system_ns;
    total->voluntary += used.voluntary;
    total->involuntary += used.involuntary;
    total->idle_ns += used.idle_ns;
    return right(buffer, count, all->size, warm_up + calls, salt);
}

static void turn(const Contestant *all, FILE *answers, int count, int calls, int warm_up,
                 int salt) {
    float *buffer = (float *)malloc(sizeof(float) * (size_t)count);
    Used total;
    memset(&total, 0, sizeof total);
    int ok = buffer != NULL;
    while (ok && calls > 0) {
        const int room = MOST_CALLS - warm_up;
        const int some = calls < room ? calls : room;
        ok = block(all, buffer, count, some, warm_up, salt, &total);
        calls -= some;
        warm_up = 0;
    }
    free(buffer);
    if (ok)
        tell(answers, &total);
    else
        fprintf(answers, "%s\n", buffer == NULL ? "no memory" : "wrong");
    fflush(answers);
}

/* Opens a rank's two pipes and sends the first message; exits if a pipe cannot be opened. */
static Conductor meet(const char *folder, int rank, int port) {
    char path[4096];
    Conductor conductor;
    snprintf(path, sizeof path, "%s/ask.%d", folder, rank);
    conductor.questions = fopen(path, "r");
    if (conductor.questions != NULL) {
        snprintf(path, sizeof path, "%s/answer.%d", folder, rank);
        conductor.answers = fopen(path, "w");
    }
    if (conductor.questions == NULL || conductor.answers == NULL) {
        perror(path);
        exit(2);
    }
    fprintf(conductor.answers, "ready %d %d\n", (int)getpid(), port);
    fflush(conductor.answers);
    return conductor;
}

/* Takes turns until the conductor closes the question pipe. */
static void serve(const Contestant *all, const Conductor *conductor) {
    int count, calls, warm_up, salt;
    while (fscanf(conductor->questions, " turn %d %d %d %d", &count, &calls, &warm_up, &salt) == 4)
        turn(all, conductor->answers, count, calls, warm_up, salt);
    fclose(conductor->questions);
    fclose(conductor->answers);
}

#endif
