/* The event engine: from the bytes of a ring buffer to joined, added-up and chosen records.
 *
 *   pages ─► events ─► filter ─┬─► found records ─────────────────────────────► the caller
 *                              ├─► tally tables ─► sums ──────────────────────► the caller
 *                              └─► queue of each CPU ─► merge by time ─► join ─┬─► tally tables
 *                                                                              └─► exported records
 *
 * A plan says what to do with each type of event. The caller makes a plan, fills in its arrays, and makes an
 * engine of it:
 *
 *     struct engine_plan *plan = plan_new();
 *     plan->types = plan_alloc(plan, 1, sizeof(*plan->types));
 *     …
 *     struct engine *engine = engine_new(plan);
 *     engine_feed(engine, page, length, cpu);   // then read engine_found(), while the page is in memory
 *     engine_join(engine, NEVER);               // then read engine_tallies() and engine_next_exported()
 *
 * The one rule of this directory: whatever a page holds, nothing outside of it is read. `walk` (walk.c) checks
 * each event against its page's end, and the size of its type against the event; `find_text` (record.h)
 * checks each string against its event. An event that waits is a copy of all its bytes.
 *
 * An engine is not thread-safe, and needs no lock of the caller's language.
 */
#ifndef KPROBE_EXPORTER_ENGINE_H
#define KPROBE_EXPORTER_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define NEVER UINT64_MAX            /* nanoseconds: no clock reaches it */
#define ENTIRE_SHARE UINT64_MAX     /* the share 1 of records; half of it is the share 1/2 */
#define THREAD_BUFFERS_CPU (1 << 16) /* added to a CPU's number for its buffer of events about threads */
#define MAX_ERRNO 4095              /* include/linux/err.h: -MAX_ERRNO to -1 are errors */
#define LOWEST_ADDRESS 4096         /* the kernel maps nothing in the first page */
#define MAX_READ_PAGES 64           /* pages of one engine_read() */
#define MAX_OPEN 65536              /* the default of engine_plan.max_open */
#define MAX_GUARDS 16               /* a fetch argument has 15 steps (FETCH_INSN_MAX, kernel/trace/trace_probe.h) */

enum engine_status {
    ENGINE_OK,
    ENGINE_DAMAGED,                 /* the page cannot be read from some byte on; the engine goes on */
    ENGINE_NO_MEMORY,               /* the state is consistent, but records are missing */
};

/* A whole number of 128 bits, two's complement. It holds any unsigned or signed number of 64 bits, and any sum
 * of them. */
struct number {
    int64_t high;
    uint64_t low;
};

/* Where a record holds a value. */

enum field_kind {
    FIELD_MISSING,                  /* these records do not have it */
    FIELD_UNSIGNED,                 /* a number of 1, 2, 4 or 8 bytes */
    FIELD_SIGNED,
    FIELD_TEXT,                     /* a string of fixed size, up to its NUL */
    FIELD_BYTES,                    /* so many bytes, as an array of numbers */
    FIELD_DYNAMIC,                  /* __data_loc: size << 16 | offset from the record's start */
    FIELD_RELATIVE,                 /* __rel_loc: the same, the offset from the field's end */
    FIELD_CPU,                      /* the CPU that wrote the record */
    FIELD_TID,                      /* the thread that wrote it */
    FIELD_COMPUTED,                 /* an expression; `offset` is its node */
    FIELD_ELAPSED,                  /* of a joined record: nanoseconds from the first half to the second */
    FIELD_STEP,                     /* of a joined record: nanoseconds from the first half to a step; `offset` is where
                                     * the first half has them, in bytes before its end */
    FIELD_STACK,                    /* the stacks that came after the event */
    FIELD_COMPLEX,                  /* the caller reads it: the engine gives it no value */
    FIELD_LOOKED_UP,                /* engine_plan.look_up() gives its value; `offset` is the number of the look-up */
};

enum error_form {
    ERROR_AS_READ,
    ERROR_OF_32_BITS,               /* an int's error that was read as 64 bits: from 2^32 - MAX_ERRNO on */
    ERROR_AS_POINTER,               /* an ERR_PTR: one of the last addresses */
};

struct field_ref {
    uint8_t kind;                   /* enum field_kind */
    uint8_t error_form;             /* enum error_form: how an error is made negative */
    bool unreadable_if_empty;       /* a dynamic string of length 0 could not be read */
    bool network;                   /* the number is big-endian, and this machine is not */
    bool second;                    /* it is in the second half of a joined record */
    uint8_t nguards;                /* pointers through which the value was read */
    uint32_t guards[MAX_GUARDS];    /* their offsets; unless each is an address, the value is missing */
    uint32_t offset;                /* bytes from the record's start */
    uint32_t size;                  /* bytes */
    uint32_t next;                  /* offset of the next dynamic string of a probe's record, 0 if there is none */
};

/* Conditions and computed values (expr.c): a tree in one array, the operands of a node next to each other. The
 * operators up to EXPR_MATCHES_NOT compare one field with a constant as the kernel's filters do. Those from EXPR_FIELD on give a number of 64 bits, as C does. */

enum expr_op {
    EXPR_ALL, EXPR_ANY, EXPR_NOT, EXPR_TRUE, EXPR_FALSE,
    EXPR_LESS, EXPR_LESS_EQUAL, EXPR_GREATER, EXPR_GREATER_EQUAL, EXPR_EQUAL, EXPR_UNEQUAL, EXPR_HAS_BITS,
    EXPR_TEXT_EQUAL, EXPR_TEXT_UNEQUAL, EXPR_MATCHES, EXPR_MATCHES_NOT,
    EXPR_IS_LESS, EXPR_IS_LESS_EQUAL, EXPR_IS_GREATER, EXPR_IS_GREATER_EQUAL, EXPR_IS_EQUAL, EXPR_IS_UNEQUAL,
    EXPR_FIELD, EXPR_CONSTANT, EXPR_NEGATE, EXPR_INVERT, EXPR_CHOOSE,
    EXPR_ADD, EXPR_SUBTRACT, EXPR_MULTIPLY, EXPR_DIVIDE, EXPR_REMAINDER,
    EXPR_AND_BITS, EXPR_OR_BITS, EXPR_XOR_BITS, EXPR_SHIFT_LEFT, EXPR_SHIFT_RIGHT,
    EXPR_SMALLER, EXPR_LARGER,
};

struct expr_node {
    uint8_t op;                     /* enum expr_op */
    bool is_unsigned;               /* the result, or both sides of a comparison */
    uint32_t first;                 /* the node of the first operand; the others follow it */
    uint32_t noperands;
    struct field_ref field;         /* the field that is read */
    struct number number;           /* the constant, if it is a number */
    const uint8_t *text;            /* the constant, if it is a text or a pattern */
    uint32_t length;                /* of the text, in bytes */
};

#define NO_NODE (-1)

/* What one metric adds up of the records of one type (tally.c). */
struct group {
    int32_t where;                  /* the condition, or NO_NODE */
    uint32_t nkeys;
    struct field_ref *keys;         /* the records are grouped by these values */
    uint32_t nthreads;
    uint32_t *threads;              /* indexes of keys: a thread of which the caller wants the cgroup */
    bool has_value;                 /* otherwise the records are counted */
    bool keeps_last;                /* the value of the last record instead of the sum */
    bool keeps_largest;             /* the largest value and its key, in one tally for all keys */
    bool positive;                  /* values below 0 are refused */
    struct field_ref value;
    int32_t nbounds;                /* -1 without buckets */
    struct number *bounds;          /* the greatest number of each bucket */
    uint32_t nfine;
    uint64_t *fine_bounds;          /* the same of the exponential buckets; NULL without */
    uint32_t fine_starts[66];       /* the first bucket with a number of so many bits; 65: the last bucket */
};

/* One sum. */
struct tally {
    uint64_t hash;                  /* of the key */
    size_t key_at;                  /* where the key begins in tally_table.key_bytes */
    uint32_t key_length;            /* bytes */
    uint64_t count;                 /* records */
    uint64_t time;                  /* of the value that is kept, for `keeps_last` and `keeps_largest` */
    uint64_t first_time;            /* of the first record, or the one that is kept, if a thread's cgroup is a key */
    struct number sum;              /* of the values, or the value that is kept */
};

/* The sums of one group since engine_clear_tallies(). The key of a tally has a part for each key of the group
 * (key.h), then one for the epochs of the threads and one for the exponential bucket, if there are any.
 * A group that keeps the largest value has one tally at most, without epochs. */
struct tally_table {
    struct tally *tallies;
    uint64_t *buckets;              /* nbounds + 1 counts for each tally */
    uint32_t ntallies;
    uint32_t room;                  /* tallies for which there is memory */
    uint32_t *slots;                /* a hash table: the number of a tally plus 1, or 0 */
    uint32_t nslots;                /* a power of two, 4 times `room` */
    uint8_t *key_bytes;
    size_t keys_used;
    size_t keys_room;
    uint64_t negative;              /* values that `positive` refused */
    uint64_t unreadable;            /* records whose value or condition is missing */
};

/* The parts of a tally's key. A part begins with a word of 8 bytes, of which the lowest byte is its kind. */
enum key_kind {
    KEY_ABSENT,                     /* no value; nothing follows */
    KEY_POSITIVE,                   /* the next word is the number */
    KEY_NEGATIVE,                   /* the next word is the number, less 2^64 */
    KEY_TEXT,                       /* the word's other bytes are the length; the text follows, up to 8 bytes */
};

/* A value that the caller looks up or makes of a record: the name of a thread, the function at an address, … */
struct looked_up {
    uint8_t kind;                   /* enum key_kind */
    struct number number;
    const uint8_t *text;            /* stays valid until the next look-up; up to a page of it is used */
    uint32_t length;                /* of the text, in bytes */
};

/* Look a value up for the record at `start`, of a thread. `found` is KEY_ABSENT at first. */
typedef void look_up_function(
    void *caller, uint32_t number, const uint8_t *start, uint32_t length, int32_t tid, struct looked_up *found);

/* Which records are exported although they are added up (export.c). */
struct export_rule {
    bool exports;
    int32_t where;                  /* the condition, or NO_NODE */
    uint64_t share;                 /* of ENTIRE_SHARE, drawn for each record */
    uint32_t export;                /* the index in engine_plan.exports */
};

struct rate_limit {
    bool limits;
    double per_second;              /* tokens */
    double burst;                   /* the most tokens, and the most debt */
    double level;                   /* tokens that are left */
    uint64_t at;                    /* when they were counted last */
};

struct export_plan {
    int64_t layout_id;              /* stays the same over reloads */
    bool spans;                     /* as spans, otherwise as log records */
    struct rate_limit limit;
    uint64_t dropped;               /* records that a limit stopped; the caller sets it to 0 */
};

/* What an event is for the joins. */
enum role {
    ROLE_NONE,
    ROLE_BEGIN,                     /* the first half of a join */
    ROLE_END,                       /* the second half of a join */
    ROLE_STEP,                      /* an event between the halves of a pair */
    ROLE_AGAIN,                     /* the second half of a join, and then the first half of the next one */
    ROLE_SINGLE,                    /* a single record that waits for earlier events, or for its stacks */
    ROLE_SWITCHED,                  /* a CPU goes from one thread to another; from here on, for thread times */
    ROLE_WOKEN,                     /* a thread is woken */
    ROLE_BORN,                      /* a new thread waits for its first CPU */
    ROLE_MIGRATED,                  /* a thread waits for another CPU */
    ROLE_ENTERED,                   /* the current thread makes room in memory */
    ROLE_LEFT,                      /* the current thread has made room */
    ROLE_THROTTLED,                 /* a CPU runs no thread of a cgroup whose quota is used up */
    ROLE_UNTHROTTLED,               /* it may run them again */
    ROLE_CREATED,                   /* the current thread makes another one; from here on, also found records */
    ROLE_STARTED,                   /* a thread begins; from here on, events about threads */
    ROLE_EXECUTED,                  /* a thread executes another program */
    ROLE_EXITED,                    /* a thread ends */
    ROLE_PLACED,                    /* a new thread has another cgroup than an earlier one of its id */
    ROLE_MOVED,                     /* any thread may have another cgroup */
};

enum stack_kind {                   /* bits */
    KERNEL_STACK = 1,
    USER_STACK = 2,
};

struct join_role {
    uint8_t role;                   /* enum role */
    uint8_t awaited_stacks;         /* enum stack_kind: those that are counted or exported with the event */
    uint32_t join;                  /* the index of the join; of a single record, that of its variant */
    int32_t variant;                /* which of the join's first halves, or of its steps, this is */
    int32_t only;                   /* a first half that fails this condition counts as no loss; or NO_NODE */
    struct field_ref first;         /* the stack pointer, the child's id, the id before an exec, a thread, or a
                                       cgroup's number */
    struct field_ref second;        /* the flags of clone(), the thread that gets the CPU, or a CPU */
    uint32_t nkeys;
    struct field_ref *keys;         /* the values by which a pair is joined; of a switch, prev_state; of a cgroup
                                       that is throttled, its level and its name */
    int32_t thread_key;             /* the index of the key that is the thread's id, or -1 */
};

/* One type of event, for one layout. */
struct event_type {
    uint32_t id;                    /* the event's common_type; several types may share it */
    uint32_t size;                  /* the least bytes of an event */
    int32_t next;                   /* the next type of this id, or -1; engine_new() sets it */
    uint8_t stacks;                 /* enum stack_kind: those that come after an event */
    bool tallied;                   /* its records are added up, and not found records */
    bool of_all_threads;            /* those of this process's own threads are needed, too */
    bool of_threads;                /* from the buffers of events about threads, and from no others */
    int32_t filter;                 /* the condition, or NO_NODE */
    uint32_t first_group;           /* its groups, if it is tallied */
    uint32_t ngroups;
    struct export_rule export;
    struct join_role role;
    uint32_t nfields;               /* for a caller that makes a value of each field */
    struct field_ref *fields;
    struct field_ref caller;        /* of the return address, or FIELD_MISSING */
    uint64_t arrived;               /* records; the caller sets these three to 0 */
    uint64_t passed;                /* records that passed the filter */
    uint64_t own;                   /* records of this process's own threads, which were discarded */
};

/* How the calls of a join enclose other calls, and which of their traces are sampled (nesting.c). */
struct nesting {
    bool encloses;
    bool by_stack;
    bool system_call;               /* a thread is in one at a time */
    bool in_kernel;                 /* it ends with the thread's system call */
    bool spans;                     /* its calls become spans */
    uint64_t share;                 /* of ENTIRE_SHARE, of the traces that its calls begin */
    int64_t layout_id;              /* that of its export */
};

struct join_plan {
    bool by_stack;                  /* by thread and stack pointer, otherwise by the keys of its roles */
    bool user;                      /* the calls of a program's functions */
    uint32_t first_variant;
    uint32_t nsteps;                /* events between the halves of a pair, whose times are kept */
    struct nesting nesting;
};

/* The records of a join that begin with one type of event, or single records that are queued. */
struct join_variant {
    int32_t filter;                 /* the condition on the joined record, or NO_NODE */
    bool filtered;                  /* by `filter`, or a single record before it was queued */
    uint32_t join;
    uint32_t first_group;
    uint32_t ngroups;
    uint32_t first_open;            /* the groups of its open first halves: of their number, of their stacks */
    uint32_t nopen;                 /* 0 without such groups */
    int32_t types[2];               /* of the halves */
    struct export_rule export;
    uint64_t arrived;               /* records; the caller sets both to 0 */
    uint64_t passed;                /* records that passed the filter */
};

/* The time of threads by their state (thread_times.c). */

enum thread_state {
    THREAD_RUNNING,                 /* it has a CPU */
    THREAD_WAITING,                 /* it could run, and has none */
    THREAD_ASLEEP,
    THREAD_UNKNOWN,
    THREAD_RECLAIMING,              /* it has a CPU, and makes room in memory */
    THREAD_THROTTLED,               /* a part of THREAD_WAITING, in which a cgroup had no quota on that CPU */
    THREAD_STATES,                  /* their number */
};

enum follow {                       /* bits: which threads are watched besides those of engine_watch() */
    FOLLOW_THREADS = 1,             /* those that a watched one makes in its process */
    FOLLOW_PROCESSES = 2,           /* the processes that a watched one makes */
    FOLLOW_ALL = 4,                 /* all that an event names */
};

/* The pieces of time are records of a thread, whose FIELD_TID, FIELD_ELAPSED and FIELD_STACK are known.
 *
 * A piece of THREAD_THROTTLED has "LEVEL:NAME" of the cgroup in place of a stack, behind STACK_HEAD bytes. The caller
 * finds out whether the thread is in this cgroup. If so, the piece is to be taken off THREAD_WAITING. */
struct times_plan {
    bool wanted;
    uint8_t follows;                /* enum follow */
    uint32_t first_group;           /* THREAD_STATES groups, in the order of the states */
};

/* Everything to do. The caller fills it in before engine_new(), and reads and resets the counts in it. It must
 * live as long as the engine. */
struct engine_plan {
    uint32_t commit_at;             /* a page's header (events/header_page): offsets and sizes in bytes */
    uint32_t commit_size;
    uint32_t data_at;
    uint32_t page_size;
    int32_t stack_id;               /* the common_type of the kernel's stacks, or -1 */
    uint32_t stack_at;              /* where their addresses begin */
    int32_t user_stack_id;          /* the same for the stacks of programs */
    uint32_t user_stack_at;
    uint32_t user_process_at;       /* where such a stack has the id of its process */
    uint32_t nnodes;
    struct expr_node *nodes;
    uint32_t ntypes;
    struct event_type *types;
    uint32_t ngroups;
    struct group *groups;           /* first those of single records, then those of variants */
    uint32_t nsingle;               /* groups of single records */
    uint32_t njoins;
    struct join_plan *joins;
    uint32_t nvariants;
    struct join_variant *variants;
    uint32_t nexports;
    struct export_plan *exports;
    struct rate_limit together;     /* of all exports */
    struct times_plan times;
    bool queues;                    /* events wait for those of other CPUs: there are joins, exports, … */
    look_up_function *look_up;      /* gives FIELD_LOOKED_UP their values; NULL if no field is of that kind */
    void *caller;                   /* its first argument */
    uint64_t max_open;              /* first halves that may wait for their second halves */
    uint64_t initial_distance;      /* bytes by which a return's stack pointer is above its entry's */
    uint64_t hash_seed;             /* secret, because users choose the strings that are hashed */
    uint64_t id_seed;               /* of the ids of traces and spans, which are random, and sampled by them */
    uint64_t share_seed;            /* of the shares of log records */
    struct allocation *allocations; /* the memory of all arrays */
};

struct engine_plan *plan_new(void);                     /* zeroed; NULL without memory */
void *plan_alloc(struct engine_plan *plan, size_t count, size_t size);  /* zeroed, freed with the plan */
void plan_free(struct engine_plan *plan);

struct engine;

struct engine *engine_new(struct engine_plan *plan);     /* NULL without memory */
void engine_free(struct engine *engine);

/* Continue after the last engine_take_losses() of another engine, perhaps between an event and its stack. False
 * without memory.
 *
 * `joins` has, for each join of `before`, the index of the same join here, or -1 if it is gone: its open halves
 * are dropped. `types` has, for each type of `before`, that of the same type here, or TYPE_REMOVED…. */
enum { TYPE_REMOVED_HALF = -1, TYPE_REMOVED = -2 };
bool engine_resume(struct engine *engine, struct engine *before, const int32_t *joins, const int32_t *types);

/* Discard from now on the events of these threads; those of interrupts meanwhile are kept. */
bool engine_set_own_threads(struct engine *engine, const int32_t *tids, uint32_t ntids);

/* Walk a page of a CPU: return an enum engine_status. */
int engine_feed(struct engine *engine, const uint8_t *page, size_t length, int32_t cpu);

/* Read and walk up to MAX_READ_PAGES pages of a trace_pipe_raw. `error` is an errno, 0 if there was none.
 *
 * Reading and walking are one, so that a busy interpreter cannot come between two pages: each time that its
 * lock is given up, getting it back may take 5 ms. */
int engine_read(struct engine *engine, int fd, int32_t cpu, int max_pages, int *npages, int *error);

/* What the last engine_feed() or engine_read() found that the engine does not keep. It points into the page. */
enum { FOUND_KERNEL_STACK = -1, FOUND_LOSS = -2, FOUND_USER_STACK = -3 };

struct found {
    const uint8_t *start;           /* NULL of a loss */
    uint32_t length;                /* bytes, at least the size of its type */
    int32_t type;                   /* the index of its type, or FOUND_… */
    uint64_t time;
};

const struct found *engine_found(const struct engine *engine, uint32_t *number);

/* An interval in which events of a CPU were lost: from the last event that was read of it, or 0, to the next.
 * `end` is before `start` if times fell. */
struct loss {
    int32_t cpu;
    uint64_t start;
    uint64_t end;
};

bool engine_has_losses(const struct engine *engine);

/* Find the losses since the last call. Those without a next event yet end at NEVER. False without memory. */
bool engine_take_losses(struct engine *engine, const struct loss **losses, uint32_t *number);

struct engine_counts {
    uint64_t time;                  /* of the last event that was walked */
    uint64_t unparsed;              /* damaged pages and events of no known type; the caller sets it to 0 */
    uint64_t lost;                  /* events that the kernel overwrote; the caller sets it to 0 */
    uint64_t queued;                /* events that wait to be merged */
    uint64_t left;                  /* events that the last engine_join() left in the queues */
    uint64_t exported;              /* records that engine_next_exported() has */
    uint32_t losses;                /* those that have ended and that engine_take_losses() has */
};

struct engine_counts *engine_counts(struct engine *engine);

/* Tell the engine about a loss: no call or pair that spans it is joined. */
void engine_add_loss(struct engine *engine, uint64_t start, uint64_t end);

/* Join the queued events that are not later than `until`; return an enum engine_status.
 *
 * It stops before an event whose stack may still come, unless `until` is NEVER. */
int engine_join(struct engine *engine, uint64_t until);

/* Give back the memory of queues that were long. */
void engine_shrink(struct engine *engine);

/* Drop the open first halves of a join; they are unpaired. */
void engine_drop_join(struct engine *engine, uint32_t join);

uint64_t engine_open(const struct engine *engine);

/* Add the open first halves of a join that began before a moment to one of their groups; false without memory.
 * The caller empties its tables before. Halves that a loss broke, or that the join's filter excludes, are none. */
enum open_group { OPEN_NUMBER, OPEN_STACKS };
bool engine_add_open(struct engine *engine, uint32_t join, uint64_t before, enum open_group group);

/* Whether the time of a thread is to be added up from `since` on. At `seen`, it was in this state. */
struct watched_thread {
    int32_t tid;
    uint8_t state;                  /* THREAD_ASLEEP; THREAD_WAITING, if it was runnable; or THREAD_UNKNOWN */
    bool certain;                   /* it is THREAD_RUNNING or THREAD_WAITING, as it has had no event */
    uint64_t since;
    uint64_t seen;
    uint64_t place;                 /* where it sleeps: stands for its stack, as one address of the kernel */
};

/* Watch a thread, unless its events have told what it does; false without memory. */
bool engine_watch(struct engine *engine, const struct watched_thread *thread);

/* Write the ids of up to `room` watched threads; return the number of all. */
uint32_t engine_watched(const struct engine *engine, int32_t *tids, uint32_t room);

/* Watch a thread no more, which was found to be gone; false without memory. */
bool engine_end_thread(struct engine *engine, int32_t tid, uint64_t time);

/* Events after the last one may be missing until a moment: no state of a thread is known then. */
void engine_lose_times(struct engine *engine, uint64_t until);

/* Add up the time of all watched threads until now, or until the latest event that was joined; false without
 * memory. */
bool engine_cut_times(struct engine *engine, uint64_t now);

struct join_counts {
    uint64_t begun;                 /* first halves */
    uint64_t unpaired;              /* halves whose other half is missing or in doubt */
    uint64_t evicted;               /* those of them that were dropped because too many were open */
};

/* Return a join's counts since the last call. */
struct join_counts engine_take_join_counts(struct engine *engine, uint32_t join);

/* The number of queued halves and single records, without events about threads. */
uint64_t engine_queued_halves(const struct engine *engine);

struct tally_table *engine_tallies(struct engine *engine, uint32_t group);
void engine_clear_tallies(struct tally_table *table);

/* A record to be exported. Its bytes follow it: those of the record or of both halves, and then its stacks. The
 * first half of a pair with steps ends with 8 bytes for each step: nanoseconds since the half, or NEVER. */
struct exported_record {
    int32_t variant;                /* -1 of a single record */
    int32_t types[2];               /* as all arrays below, the second is of the second half */
    int32_t cpus[2];
    uint32_t lengths[2];            /* bytes */
    uint32_t stack_length;          /* bytes */
    uint64_t times[2];
    uint64_t trace[2];              /* the id of its trace; 0 without */
    uint64_t span;                  /* its id; 0 of a log record */
    uint64_t parent;                /* the span in which it lies; 0 without */
};

/* Return the exported record at `*at`, which begins as 0, and advance it; NULL at the end. */
const struct exported_record *engine_next_exported(const struct engine *engine, size_t *at);
void engine_clear_exported(struct engine *engine);

/* The stacks of an exported record or of a FIELD_STACK: the id of the process, the bytes of its stack, that
 * stack, and the kernel's. */
enum { STACK_HEAD = 8 };

/* One value of a record, for a caller that makes records. `start` has the size of its type at least. */
bool engine_number(const struct field_ref *field, const uint8_t *start, uint32_t length, struct number *out);
bool engine_text(
    const struct field_ref *field, const uint8_t *start, uint32_t length, const uint8_t **text, uint32_t *size);

/* Where the addresses of a stack's event end that begin at `first`. */
uint32_t engine_stack_end(const uint8_t *start, uint32_t first, uint32_t length, enum stack_kind kind);

#endif
