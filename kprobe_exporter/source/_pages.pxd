"""engine.h, as the binding calls it. engine.h has the comments."""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "engine.h" nogil:
    enum: NEVER, THREAD_BUFFERS_CPU, MAX_ERRNO, LOWEST_ADDRESS, MAX_GUARDS, MAX_OPEN, STACK_HEAD
    enum: ENGINE_OK, ENGINE_DAMAGED, ENGINE_NO_MEMORY
    enum: FIELD_MISSING, FIELD_UNSIGNED, FIELD_SIGNED, FIELD_TEXT, FIELD_BYTES, FIELD_DYNAMIC, FIELD_RELATIVE
    enum: FIELD_CPU, FIELD_TID, FIELD_COMPUTED, FIELD_ELAPSED, FIELD_STEP, FIELD_STACK, FIELD_COMPLEX
    enum: FIELD_LOOKED_UP
    enum: ERROR_AS_READ, ERROR_OF_32_BITS, ERROR_AS_POINTER
    enum: EXPR_ALL, EXPR_ANY, EXPR_NOT, EXPR_TRUE, EXPR_FALSE
    enum: EXPR_LESS, EXPR_LESS_EQUAL, EXPR_GREATER, EXPR_GREATER_EQUAL, EXPR_EQUAL, EXPR_UNEQUAL, EXPR_HAS_BITS
    enum: EXPR_TEXT_EQUAL, EXPR_TEXT_UNEQUAL, EXPR_MATCHES, EXPR_MATCHES_NOT
    enum: EXPR_IS_LESS, EXPR_IS_LESS_EQUAL, EXPR_IS_GREATER, EXPR_IS_GREATER_EQUAL, EXPR_IS_EQUAL
    enum: EXPR_IS_UNEQUAL
    enum: EXPR_FIELD, EXPR_CONSTANT, EXPR_NEGATE, EXPR_INVERT, EXPR_CHOOSE
    enum: EXPR_ADD, EXPR_SUBTRACT, EXPR_MULTIPLY, EXPR_DIVIDE, EXPR_REMAINDER, EXPR_AND_BITS, EXPR_OR_BITS
    enum: EXPR_XOR_BITS, EXPR_SHIFT_LEFT, EXPR_SHIFT_RIGHT, EXPR_SMALLER, EXPR_LARGER
    enum: KEY_ABSENT, KEY_POSITIVE, KEY_NEGATIVE, KEY_TEXT
    enum: ROLE_NONE, ROLE_BEGIN, ROLE_END, ROLE_SINGLE, ROLE_STARTED, ROLE_EXECUTED, ROLE_EXITED, ROLE_PLACED
    enum: ROLE_MOVED, ROLE_STEP, ROLE_AGAIN, ROLE_SWITCHED, ROLE_WOKEN, ROLE_CREATED, ROLE_BORN
    enum: ROLE_MIGRATED, ROLE_ENTERED, ROLE_LEFT, ROLE_THROTTLED, ROLE_UNTHROTTLED
    enum: FOLLOW_THREADS, FOLLOW_PROCESSES, FOLLOW_ALL
    enum: TYPE_REMOVED_HALF, TYPE_REMOVED
    enum: FOUND_KERNEL_STACK, FOUND_LOSS, FOUND_USER_STACK
    enum stack_kind: KERNEL_STACK, USER_STACK

    struct number:
        int64_t high
        uint64_t low

    struct field_ref:
        uint8_t kind, error_form
        bint unreadable_if_empty, network, second
        uint8_t nguards
        uint32_t* guards
        uint32_t offset, size, next

    struct expr_node:
        uint8_t op
        bint is_unsigned
        uint32_t first, noperands
        field_ref field
        number number
        const uint8_t* text
        uint32_t length

    struct group:
        int32_t where
        uint32_t nkeys, nthreads
        field_ref* keys
        uint32_t* threads
        bint has_value, keeps_last, keeps_largest, positive
        field_ref value
        int32_t nbounds
        number* bounds
        uint32_t nfine
        uint64_t* fine_bounds
        uint32_t* fine_starts

    struct tally:
        size_t key_at
        uint64_t count, time, first_time
        number sum

    struct tally_table:
        tally* tallies
        uint64_t* buckets
        uint32_t ntallies
        const uint8_t* key_bytes
        uint64_t negative, unreadable

    struct looked_up:
        uint8_t kind
        number number
        const uint8_t* text
        uint32_t length

    ctypedef void look_up_function(
        void* caller, uint32_t number, const uint8_t* start, uint32_t length, int32_t tid, looked_up* found
    ) noexcept

    struct export_rule:
        bint exports
        int32_t where
        uint64_t share
        uint32_t export

    struct rate_limit:
        bint limits
        double per_second, burst, level

    struct export_plan:
        int64_t layout_id
        bint spans
        rate_limit limit
        uint64_t dropped

    struct join_role:
        uint8_t role, awaited_stacks
        uint32_t join
        int32_t variant, only
        field_ref first, second
        uint32_t nkeys
        field_ref* keys
        int32_t thread_key

    struct event_type:
        uint32_t id, size
        uint8_t stacks
        bint tallied, of_all_threads, of_threads
        int32_t filter
        uint32_t first_group, ngroups
        export_rule export
        join_role role
        uint32_t nfields
        field_ref* fields
        field_ref caller
        uint64_t arrived, passed, own

    struct nesting:
        bint encloses, by_stack, system_call, in_kernel, spans
        uint64_t share
        int64_t layout_id

    struct join_plan:
        bint by_stack, user
        uint32_t first_variant, nsteps
        nesting nesting

    struct join_variant:
        int32_t filter
        bint filtered
        uint32_t join, first_group, ngroups, first_open, nopen
        int32_t* types
        export_rule export
        uint64_t arrived, passed

    struct times_plan:
        bint wanted
        uint8_t follows
        uint32_t first_group

    struct engine_plan:
        uint32_t commit_at, commit_size, data_at, page_size
        int32_t stack_id, user_stack_id
        uint32_t stack_at, user_stack_at, user_process_at
        uint32_t nnodes, ntypes, ngroups, nsingle, njoins, nvariants, nexports
        expr_node* nodes
        event_type* types
        group* groups
        join_plan* joins
        join_variant* variants
        export_plan* exports
        rate_limit together
        times_plan times
        bint queues
        look_up_function* look_up
        void* caller
        uint64_t max_open, initial_distance, hash_seed, id_seed, share_seed

    engine_plan* plan_new()
    void* plan_alloc(engine_plan* plan, size_t count, size_t size)
    void plan_free(engine_plan* plan)

    struct engine:
        pass

    struct found:
        const uint8_t* start
        uint32_t length
        int32_t type
        uint64_t time

    struct loss_interval "loss":
        int32_t cpu
        uint64_t start, end

    struct engine_counts_of "engine_counts":
        uint64_t time, unparsed, lost, queued, left, exported
        uint32_t losses

    struct watched_thread:
        int32_t tid
        uint8_t state
        bint certain
        uint64_t since, seen, place

    struct join_counts:
        uint64_t begun, unpaired, evicted

    struct exported_record:
        int32_t variant
        int32_t* types
        int32_t* cpus
        uint32_t* lengths
        uint32_t stack_length
        uint64_t* times
        uint64_t* trace
        uint64_t span, parent

    engine* engine_new(engine_plan* plan)
    void engine_free(engine* engine)
    bint engine_resume(engine* engine, engine* before, const int32_t* joins, const int32_t* types)
    bint engine_set_own_threads(engine* engine, const int32_t* tids, uint32_t ntids)
    int engine_feed(engine* engine, const uint8_t* page, size_t length, int32_t cpu)
    int engine_read(engine* engine, int fd, int32_t cpu, int max_pages, int* npages, int* error)
    const found* engine_found(const engine* engine, uint32_t* number)
    bint engine_has_losses(const engine* engine)
    bint engine_take_losses(engine* engine, const loss_interval** losses, uint32_t* number)
    engine_counts_of* engine_counts(engine* engine)
    void engine_add_loss(engine* engine, uint64_t start, uint64_t end)
    int engine_join(engine* engine, uint64_t until)
    void engine_shrink(engine* engine)
    void engine_drop_join(engine* engine, uint32_t join)
    uint64_t engine_open(const engine* engine)
    enum open_group: OPEN_NUMBER, OPEN_STACKS
    bint engine_add_open(engine* engine, uint32_t join, uint64_t before, open_group group)
    bint engine_watch(engine* engine, const watched_thread* thread)
    uint32_t engine_watched(const engine* engine, int32_t* tids, uint32_t room)
    bint engine_end_thread(engine* engine, int32_t tid, uint64_t time)
    void engine_lose_times(engine* engine, uint64_t until)
    bint engine_cut_times(engine* engine, uint64_t now)
    join_counts engine_take_join_counts(engine* engine, uint32_t join)
    tally_table* engine_tallies(engine* engine, uint32_t group)
    void engine_clear_tallies(tally_table* table)
    const exported_record* engine_next_exported(const engine* engine, size_t* at)
    void engine_clear_exported(engine* engine)
    bint engine_number(const field_ref* field, const uint8_t* start, uint32_t length, number* out)
    bint engine_text(const field_ref* field, const uint8_t* start, uint32_t length, const uint8_t** text, uint32_t* size)
    uint32_t engine_stack_end(const uint8_t* start, uint32_t first, uint32_t length, stack_kind kind)
