/* Runs a script of operations in threads, and writes down each call that it made.
 *
 * Its argument is the time before it was executed, since execve is a call as well. A line of the script on
 * stdin: THREAD OPERATION A B TEXT, with the text in hexadecimal, or "-". The lines of one thread run in
 * order. A line of the record on stdout, with times of CLOCK_MONOTONIC in nanoseconds:
 *
 *     LINE POINT ROLE A B TID CPU BEGIN LEAST END RESULT COMM
 *
 * LINE is the number of the script's line, from 0; it is -1 for the start of the program. ROLE is "call" for
 * an entry and its return, "entry" for an entry that never returns, "return" for a return without an entry.
 * The call began after BEGIN, ended before END and took at least LEAST. COMM is the name of the thread in
 * hexadecimal. The calls of the operation "burst" have no record.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define OWN __attribute__((noinline, noclone))
#define KEEP(value) __asm__ volatile("" ::"r"(value) : "memory")
#define MOST_THREADS 512

struct operation {
    int line;
    char name[24];
    long a, b;
    char *text;
};

struct thread {
    pthread_t id;
    long number, count;
    struct operation *operations;
};

static struct thread threads[MOST_THREADS];
static long thread_count;
static char *program;
static pthread_barrier_t all_started;
static __thread char comm[16];
static __thread sigjmp_buf leap_target;
static __thread int leaping;

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

/* One write of a short line to a pipe is atomic, so threads and processes share it without a lock. */
static void record_of(long tid, int line, const char *point, const char *role, long a, long b, long begin,
                      long least, long end, long result) {
    char text[512];
    int length = snprintf(text, sizeof text, "%d %s %s %ld %ld %ld %d %ld %ld %ld %ld ", line, point, role, a,
                          b, tid, sched_getcpu(), begin, least, end, result);
    for (int i = 0; i < 16 && comm[i]; i++)
        length += snprintf(text + length, sizeof text - length, "%02x", (unsigned char)comm[i]);
    text[length++] = '\n';
    if (write(1, text, length) != length) _exit(70);
}

static void record(int line, const char *point, const char *role, long a, long b, long begin, long least,
                   long end, long result) {
    record_of(syscall(SYS_gettid), line, point, role, a, b, begin, least, end, result);
}

/* The functions that are probed. */
OWN long take_value(long value, const char *text) { KEEP(text); return value; }
OWN long take_nap(long microseconds) {
    struct timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &time, 0);
    return microseconds;
}
OWN long pair_begin(long key, long value) { KEEP(key); return value; }
OWN long pair_end(long key, long value) { KEEP(key); return value; }

static long timed_deeper(int line, long depth, long value);
OWN long go_deeper(long depth, long value, int line, long *least) {
    long begin = now();
    long below = depth ? timed_deeper(line, depth - 1, value) : value;
    *least = now() - begin;
    return below + 1;
}
static long timed_deeper(int line, long depth, long value) {
    long least, begin = now();
    long result = go_deeper(depth, value, line, &least);
    record(line, "go_deeper", "call", depth, value, begin, least, now(), result);
    return result;
}

/* Returns twice: the value in the parent, one more in the child. */
OWN long fork_inside(long value, pid_t *child) {
    *child = fork();
    return *child ? value : value + 1;
}
OWN long quit_inside(long value, int quits) {
    if (quits) pthread_exit(0);
    KEEP(value);
    return value;
}
/* With `leaps` it never returns: it is left by siglongjmp, at 2 out of a signal's handler. */
OWN long leap_out(long value, long leaps) {
    if (leaps == 1) siglongjmp(leap_target, 1);
    if (leaps == 2) {
        leaping = 1;
        raise(SIGUSR1);
    }
    KEEP(value);
    return value;
}

static void handle(int number) {
    if (leaping) {
        leaping = 0;
        siglongjmp(leap_target, number);
    }
}

static void leap(struct operation *op) {
    long begin = now(), result;
    if (sigsetjmp(leap_target, 1)) {
        record(op->line, "leap_out", "entry", op->a, op->b, begin, 0, now(), 0);
        return;
    }
    result = leap_out(op->a, op->b);
    record(op->line, "leap_out", "call", op->a, op->b, begin, 0, now(), result);
}

static void fork_within(struct operation *op) {
    pid_t child;
    long begin = now();
    long result = fork_inside(op->a, &child);
    long end = now();
    record(op->line, "fork_inside", child ? "call" : "return", op->a, op->b, begin, 0, end, result);
    if (!child) _exit(0);
    waitpid(child, 0, 0);
}

static long failing(long result) { return result == -1 ? -errno : result; }

static void system_call(struct operation *op, const char *point, long number, long a, long b) {
    long begin = now();
    long result = failing(syscall(number, a, b, 0, 0));
    record(op->line, point, "call", a, b, begin, 0, now(), result);
}

static void wait_for_no_signal(struct operation *op) {
    sigset_t none;
    struct timespec time = {0, op->a * 1000};
    sigemptyset(&none);
    long begin = now();
    long result = failing(syscall(SYS_rt_sigtimedwait, &none, 0, &time, 8));
    record(op->line, "rt_sigtimedwait", "call", op->a, 0, begin, op->a * 1000, now(), result);
}

static void value_in_this_image(int line, long value, const char *text) {
    long begin = now();
    long result = take_value(value, text);
    record(line, "take_value", "call", value, 0, begin, 0, now(), result);
}

/* The new image ends the record of execve, whose begin is its first argument, and calls take_value. The last
 * argument is the id of the thread that called execve: it has its leader's id by then. */
static void *execute(void *argument) {
    struct operation *op = argument;
    char line[24], value[24], begin[24], tid[24];
    snprintf(line, sizeof line, "%d", op->line);
    snprintf(value, sizeof value, "%ld", op->a);
    snprintf(tid, sizeof tid, "%ld", syscall(SYS_gettid));
    snprintf(begin, sizeof begin, "%ld", now());
    char *words[] = {program, begin, line, value, op->text, tid, 0}, *none[] = {0};
    syscall(SYS_execve, program, words, none);
    _exit(71);
}

static void execute_in_a_child(struct operation *op) {
    pid_t child = fork();
    if (!child) {
        pthread_t other;
        if (op->b && pthread_create(&other, 0, execute, op) == 0) pthread_join(other, 0);
        execute(op);
    }
    waitpid(child, 0, 0);
}

static void executed(const char *begin, int line, long tid) {
    long end = now();
    prctl(PR_GET_NAME, comm);
    record_of(tid, line, "execve", "call", 0, 0, atol(begin), 0, end, 0);
}

static void go_to(long cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu % sysconf(_SC_NPROCESSORS_ONLN), &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void run(struct operation *op) {
    const char *name = op->name;
    if (!strcmp(name, "take_value")) value_in_this_image(op->line, op->a, op->text);
    else if (!strcmp(name, "go_deeper")) timed_deeper(op->line, op->a, op->b);
    else if (!strcmp(name, "take_nap")) {
        long begin = now(), result = take_nap(op->a);
        record(op->line, name, "call", op->a, 0, begin, op->a * 1000, now(), result);
    } else if (!strcmp(name, "pair_begin") || !strcmp(name, "pair_end")) {
        long begin = now(), result = (name[5] == 'b' ? pair_begin : pair_end)(op->a, op->b);
        record(op->line, name, "call", op->a, op->b, begin, 0, now(), result);
    } else if (!strcmp(name, "fork_inside")) fork_within(op);
    else if (!strcmp(name, "leap_out")) leap(op);
    else if (!strcmp(name, "quit_inside")) {
        long begin = now();
        if (op->b) record(op->line, name, "entry", op->a, op->b, begin, 0, begin, 0);
        long result = quit_inside(op->a, op->b);
        record(op->line, name, "call", op->a, op->b, begin, 0, now(), result);
    } else if (!strcmp(name, "setfsuid")) {
        system_call(op, name, SYS_setfsuid, op->a, 0);
        system_call(op, name, SYS_setfsuid, 0, 0);
    } else if (!strcmp(name, "sched_get_priority_max"))
        system_call(op, name, SYS_sched_get_priority_max, op->a, 0);
    else if (!strcmp(name, "getpriority")) system_call(op, name, SYS_getpriority, op->a, op->b);
    else if (!strcmp(name, "chroot")) system_call(op, name, SYS_chroot, (long)op->text, 0);
    else if (!strcmp(name, "rt_sigtimedwait")) wait_for_no_signal(op);
    else if (!strcmp(name, "signal")) syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), op->a);
    else if (!strcmp(name, "execve")) execute_in_a_child(op);
    else if (!strcmp(name, "rename")) {
        prctl(PR_SET_NAME, op->text);
        prctl(PR_GET_NAME, comm);
    } else if (!strcmp(name, "burst")) {
        for (long value = 0; value < op->a; value++) take_value(value, op->text);
    } else if (!strcmp(name, "pin")) go_to(op->a);
    else if (!strcmp(name, "pause")) usleep(op->a);
    else _exit(72);
}

static void *run_all(void *argument) {
    struct thread *thread = argument;
    prctl(PR_GET_NAME, comm);
    go_to(thread->number);
    pthread_barrier_wait(&all_started);
    for (long i = 0; i < thread->count; i++) run(&thread->operations[i]);
    return 0;
}

static char *decoded(const char *text) {
    size_t length = text[0] == '-' ? 0 : strlen(text) / 2;
    char *bytes = calloc(1, length + 1);
    for (size_t i = 0; i < length; i++) sscanf(text + 2 * i, "%2hhx", &bytes[i]);
    return bytes;
}

static void read_script(void) {
    static char text[1 << 16];
    static const char form[] = "%ld %23s %ld %ld %65535s";
    struct operation op;
    long number;
    for (op.line = 0; scanf(form, &number, op.name, &op.a, &op.b, text) == 5; op.line++) {
        if (number < 0 || number >= MOST_THREADS) exit(73);
        struct thread *thread = &threads[number];
        op.text = decoded(text);
        thread->operations = realloc(thread->operations, (thread->count + 1) * sizeof op);
        thread->operations[thread->count++] = op;
    }
    for (number = 0; number < MOST_THREADS; number++) {
        threads[number].number = number;
        thread_count += threads[number].count > 0;
    }
}

int main(int count, char **words) {
    program = words[0];
    if (count == 2) executed(words[1], -1, syscall(SYS_gettid));
    else {
        executed(words[1], atoi(words[2]), atol(words[5]));
        value_in_this_image(atoi(words[2]), atol(words[3]), words[4]);
        return 0;
    }
    read_script();
    struct sigaction action = {.sa_handler = handle};
    sigaction(SIGUSR1, &action, 0);
    for (int number = SIGRTMIN; number <= SIGRTMAX; number++) sigaction(number, &action, 0);
    pthread_barrier_init(&all_started, 0, thread_count + 1);
    for (long i = 0; i < MOST_THREADS; i++)
        if (threads[i].count) pthread_create(&threads[i].id, 0, run_all, &threads[i]);
    pthread_barrier_wait(&all_started);
    for (long i = 0; i < MOST_THREADS; i++)
        if (threads[i].count) pthread_join(threads[i].id, 0);
    return 0;
}
