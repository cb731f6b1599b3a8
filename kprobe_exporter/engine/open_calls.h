/* The open first halves of calls and pairs: those whose second half has not come.
 *
 *   call_lists.c    finds them by key and by thread, in the order of their beginning
 *   open_calls.c    opens and drops them, and applies losses
 *   matching.c      finds the first half of a second half
 *   thread_ends.c   ends those of threads that exit, fork or execute a program
 *   nesting.c       finds the call in which another one lies, and its trace
 *
 * An open half is a copy of its record's bytes. Halves with the same key form a list, the innermost first; no
 * list is empty. The key of a call is its thread and the region of its stack; that of a pair is the values of
 * its fields.
 *
 *   keys ─► slots (hash table) ─► call_list ─► open_half (innermost) ─► open_half (outer) ─► …
 *   threads ─► slots (hash table) ─► call_list ⇄ call_list   (`left`, `right`)
 *   oldest ─► call_list ⇄ call_list ⇄ … ◄─ newest            (`older`, `newer`)
 */
#ifndef ENGINE_OPEN_CALLS_H
#define ENGINE_OPEN_CALLS_H

#include "key.h"

enum {
    FROM_FORK = -1,                 /* the variant of a call that a forked child has from its parent */
    NDISTANCES = 9,                 /* a return is 0, 8, … 64 bytes above its entry */
    STACK_REGION_BITS = 14,         /* kernel stacks are aligned to their size (arch/x86 THREAD_SIZE) */
    STACK_KEY_LENGTH = 16,          /* bytes: the thread, and the region of its stack */
    MAX_LOSSES = 1024,              /* losses that are not applied yet; more are merged into one */
    MIN_SLOTS = 256,
};

/* A call that becomes a span if its trace is sampled and its filter lets it through. */
struct traced_call {
    uint32_t nusers;                /* its open half, and the calls right in it */
    struct traced_call *parent;     /* the call around it; NULL of an outermost one */
    struct traced_call *outermost;
    uint64_t span;                  /* its id */
    uint64_t trace[2];              /* the id of its trace: of an outermost call, as all below */
    int64_t layout_id;              /* of its export */
    bool sampled;
    int8_t admitted;                /* whether the limits let the trace through; UNDECIDED before */
    bool needed;                    /* an exported record lies in it */
};

/* An open half among the calls of its thread. */
struct enclosing_call {
    struct thread_calls *thread;    /* NULL if it has ended without a return event */
    struct enclosing_call *outer;
    struct enclosing_call *inner;
    struct traced_call *call;       /* NULL until something needs it */
    uint64_t time;                  /* of its beginning */
    uint64_t stack_pointer;
    struct nesting nesting;         /* that of its join, which may be gone */
};

/* The open calls of one thread that enclose others. */
struct thread_calls {
    struct thread_calls *next;      /* in its bucket */
    struct enclosing_call *innermost;
    int64_t id;                     /* of the thread; of thread 0, which each CPU has, ~CPU */
    uint64_t entered;               /* when its last system call began */
};

/* What a join has learnt. It outlives its engine. */
struct join_state {
    struct join_plan plan;
    uint64_t begun;                 /* first halves */
    uint64_t unpaired;              /* halves whose other half is missing or in doubt */
    uint64_t evicted;               /* those of them that were dropped because too many were open */
    uint64_t distance;              /* bytes by which a return's stack pointer is above its entry's */
    uint64_t matched;               /* returns with this distance */
    uint64_t votes[NDISTANCES];     /* for other distances, by 8 bytes */
};

/* The bytes of its record follow, then 8 for each step of its join, and those of its stacks. */
struct open_half {
    struct open_half *outer;        /* the next one in its list */
    uint64_t stack_pointer;         /* of a call; 0 of a pair */
    uint64_t time;
    int32_t tid;
    int32_t cpu;
    int32_t variant;                /* of its join, or FROM_FORK */
    bool excluded;                  /* by its join's filter, so that it is no loss */
    uint32_t length;                /* of all that follows, in bytes */
    uint32_t stack_length;          /* of the stacks */
    struct enclosing_call *enclosing; /* NULL if its join encloses nothing */
};

/* The bytes of its key follow. */
struct call_list {
    struct call_list *next;         /* in its slot */
    struct call_list *older;        /* by the first half that made the list */
    struct call_list *newer;
    struct call_list *left;         /* the lists of the same slot of threads */
    struct call_list *right;
    struct open_half *innermost;
    uint64_t hash;                  /* of the key */
    uint32_t join;
    uint32_t key_length;            /* bytes */
    bool of_program;                /* the calls of a program's functions */
    bool inheritable;               /* a forked child gets them: its thread was not seen to end since */
    bool of_thread;                 /* the key has a thread */
    uint32_t thread_at;             /* where in the key, in bytes */
    int32_t tid;
};

struct interval {
    uint64_t start;
    uint64_t end;
};

/* A thread that ended, of which the open halves were not searched for yet. */
struct thread_end {
    uint64_t until;                 /* what it began before this moment has ended with it */
    int32_t tid;
    int32_t next;                   /* the next one in its bucket, or -1 */
};

struct open_calls {
    uint64_t seed;                  /* of hashes */
    uint64_t random;                /* the state of next_random(), for the ids of traces and spans */
    uint32_t njoins;
    struct join_state *joins;
    uint32_t nslots;                /* of both tables, a power of two; 0 without lists */
    struct call_list **by_key;
    struct call_list **by_thread;
    uint32_t nlists;
    struct call_list *oldest;
    struct call_list *newest;
    uint64_t nhalves;
    uint64_t max_halves;
    size_t bytes;                   /* of the open halves */
    uint32_t nlosses;
    struct interval losses[MAX_LOSSES]; /* those that are not applied yet */
    uint64_t next_loss;             /* when the first of them begins, or NEVER */
    uint64_t broken_until;          /* a half that began before this moment spans a loss */
    uint64_t counted_until;         /* those that began before it are counted as unpaired, though open */
    struct thread_calls **nested;   /* a hash table of threads; NULL until a call encloses others */
    uint32_t nended;
    uint32_t ended_room;            /* a power of two */
    struct thread_end *ended;       /* one of a thread */
    int32_t *ended_buckets;         /* by thread: an index in `ended`, or -1 */
};

struct open_calls *new_open_calls(const struct engine_plan *plan);
void free_open_calls(struct open_calls *calls);

/* call_lists.c */

static inline uint8_t *list_key(const struct call_list *list)
{
    return (uint8_t *)list + sizeof(*list);
}

static inline uint32_t hash_thread(const struct open_calls *calls, int32_t tid, bool of_program)
{
    uint64_t value = (uint32_t)tid | (uint64_t)of_program << 32;

    return (uint32_t)((value ^ calls->seed) * UINT64_C(0x9E3779B97F4A7C15) >> 32);
}

/* Return where the lists of a thread begin. The calls of its program are apart: forks search for them. */
static inline struct call_list **thread_slot(const struct open_calls *calls, int32_t tid, bool of_program)
{
    return &calls->by_thread[hash_thread(calls, tid, of_program) & (calls->nslots - 1)];
}

/* The same key of two joins has two hashes. */
static inline uint64_t hash_of(const struct open_calls *calls, uint32_t join, const uint8_t *key, uint32_t length)
{
    return hash_key(key, length, calls->seed ^ join);
}

struct call_list *find_list(
    const struct open_calls *calls, uint32_t join, const uint8_t *key, uint32_t length);
struct call_list *add_list(
    struct open_calls *calls, uint32_t join, const uint8_t *key, uint32_t length, int32_t tid, int32_t thread_at);
void remove_list(struct open_calls *calls, struct call_list *list);
void link_list(struct open_calls *calls, struct call_list *list);
void unlink_list(struct open_calls *calls, struct call_list *list);
void lru_append(struct open_calls *calls, struct call_list *list);
void lru_remove(struct open_calls *calls, struct call_list *list);

/* open_calls.c */

static inline uint8_t *half_bytes(struct open_half *half)
{
    return (uint8_t *)half + sizeof(*half);
}

bool open_half(
    struct open_calls *calls, const struct join_role *role, const struct record *record, uint64_t stack_pointer,
    const uint8_t *key, uint32_t length, int32_t thread_at, bool excluded);
struct open_half *pop_half(struct open_calls *calls, struct call_list *list);
void free_half(struct open_calls *calls, struct open_half *half);
void drop_list(struct open_calls *calls, struct call_list *list);
bool drop_below(struct open_calls *calls, struct call_list *list, uint64_t stack_pointer);
bool drop_up_to(struct open_calls *calls, struct call_list *list, uint64_t stack_pointer);
void drop_before(struct open_calls *calls, struct call_list *list, uint64_t until);
void trim(struct open_calls *calls);
void add_loss(struct open_calls *calls, uint64_t start, uint64_t end);
void apply_losses(struct open_calls *calls, uint64_t now);
void count_broken(struct open_calls *calls, uint64_t reached);

/* matching.c */

static inline void set_key_thread(uint8_t *key, int32_t tid)
{
    store_word(key, (uint32_t)tid);
}

bool begin_half(
    struct open_calls *calls, const struct join_role *role, const struct record *record, uint8_t *scratch);
struct open_half *end_half(
    struct open_calls *calls, const struct join_role *role, const struct record *record, uint8_t *scratch);
void note_step(
    struct open_calls *calls, const struct join_role *role, const struct record *record, uint8_t *scratch);

/* thread_ends.c */

bool on_thread_event(
    struct open_calls *calls, const struct join_role *role, const struct record *record, uint8_t *scratch);
void apply_thread_ends(struct open_calls *calls);

/* nesting.c */

enum { UNDECIDED = -1 };

/* Return the id of a thread; of thread 0, which each CPU has, ~CPU. */
static inline int64_t thread_id(int32_t tid, int32_t cpu)
{
    return tid ? tid : ~cpu;
}

/* Return a random number that is not 0 (xorshift64: G. Marsaglia, Xorshift RNGs, 2003). */
static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

struct traced_call *new_traced_call(
    struct open_calls *calls, const struct nesting *nesting, struct traced_call *parent);
void release_traced_call(struct traced_call *call);
bool enclose(struct open_calls *calls, struct open_half *half, const struct nesting *nesting);
void detach_enclosing(struct open_calls *calls, struct open_half *half);
bool find_call_around(struct open_calls *calls, int64_t thread, uint64_t now, struct traced_call **found);

#endif
