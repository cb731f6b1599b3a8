"""Copies a plan of Python values (engine_plan.py) into the structs of engine.h."""

cdef dict _KINDS = {
    "missing": FIELD_MISSING, "unsigned": FIELD_UNSIGNED, "signed": FIELD_SIGNED, "text": FIELD_TEXT,
    "bytes": FIELD_BYTES, "dynamic": FIELD_DYNAMIC, "relative": FIELD_RELATIVE, "cpu": FIELD_CPU, "tid": FIELD_TID,
    "computed": FIELD_COMPUTED, "elapsed": FIELD_ELAPSED, "step": FIELD_STEP,
    "stack": FIELD_STACK, "complex": FIELD_COMPLEX, "looked_up": FIELD_LOOKED_UP,
}
cdef dict _ERROR_FORMS = {
    "as_read": ERROR_AS_READ, "of_32_bits": ERROR_OF_32_BITS, "as_pointer": ERROR_AS_POINTER,
}
cdef dict _ROLES = {
    "none": ROLE_NONE, "begin": ROLE_BEGIN, "end": ROLE_END, "step": ROLE_STEP, "again": ROLE_AGAIN,
    "single": ROLE_SINGLE, "started": ROLE_STARTED, "executed": ROLE_EXECUTED, "exited": ROLE_EXITED, "placed": ROLE_PLACED, "moved": ROLE_MOVED,
    "switched": ROLE_SWITCHED, "woken": ROLE_WOKEN, "created": ROLE_CREATED, "born": ROLE_BORN,
    "migrated": ROLE_MIGRATED, "entered": ROLE_ENTERED, "left": ROLE_LEFT, "throttled": ROLE_THROTTLED,
    "unthrottled": ROLE_UNTHROTTLED,
}
cdef dict _FOLLOWS = {"threads": FOLLOW_THREADS, "processes": FOLLOW_PROCESSES, "all": FOLLOW_ALL}
cdef dict _OPS = {
    "all": EXPR_ALL, "any": EXPR_ANY, "not": EXPR_NOT, "true": EXPR_TRUE, "false": EXPR_FALSE,
    "less": EXPR_LESS, "less_equal": EXPR_LESS_EQUAL, "greater": EXPR_GREATER,
    "greater_equal": EXPR_GREATER_EQUAL, "equal": EXPR_EQUAL, "unequal": EXPR_UNEQUAL,
    "has_bits": EXPR_HAS_BITS, "text_equal": EXPR_TEXT_EQUAL, "text_unequal": EXPR_TEXT_UNEQUAL,
    "matches": EXPR_MATCHES, "matches_not": EXPR_MATCHES_NOT,
    "is_less": EXPR_IS_LESS, "is_less_equal": EXPR_IS_LESS_EQUAL, "is_greater": EXPR_IS_GREATER,
    "is_greater_equal": EXPR_IS_GREATER_EQUAL, "is_equal": EXPR_IS_EQUAL, "is_unequal": EXPR_IS_UNEQUAL,
    "field": EXPR_FIELD, "constant": EXPR_CONSTANT, "negate": EXPR_NEGATE, "invert": EXPR_INVERT,
    "choose": EXPR_CHOOSE, "add": EXPR_ADD, "subtract": EXPR_SUBTRACT, "multiply": EXPR_MULTIPLY,
    "divide": EXPR_DIVIDE, "remainder": EXPR_REMAINDER, "and_bits": EXPR_AND_BITS, "or_bits": EXPR_OR_BITS,
    "xor_bits": EXPR_XOR_BITS, "shift_left": EXPR_SHIFT_LEFT, "shift_right": EXPR_SHIFT_RIGHT,
    "smaller": EXPR_SMALLER, "larger": EXPR_LARGER,
}
LOW_BITS = (1 << 64) - 1


cdef number _number(value):
    cdef number out
    out.low, out.high = value & LOW_BITS, value >> 64
    return out


cdef void* _array(engine_plan* plan, size_t count, size_t size) except NULL:
    """Return zeroed memory that is the plan's."""
    cdef void* made = plan_alloc(plan, count, size)
    if made == NULL:
        raise MemoryError
    return made


cdef int _fill_ref(field_ref* out, ref) except -1:
    cdef uint32_t i
    kind, out.offset, out.size, form, out.unreadable_if_empty, out.network, out.second, guards, out.next = ref
    out.kind, out.error_form, out.nguards = _KINDS[kind], _ERROR_FORMS[form], len(guards)
    for i in range(out.nguards):
        out.guards[i] = guards[i]
    return 0


cdef field_ref* _refs(engine_plan* plan, refs) except NULL:
    cdef field_ref* out = <field_ref*>_array(plan, len(refs), sizeof(field_ref))
    cdef uint32_t i
    for i, ref in enumerate(refs):
        _fill_ref(&out[i], ref)
    return out


cdef int _fill_rule(export_rule* out, rule) except -1:
    out.exports, out.where, out.share, out.export = rule
    return 0


cdef int _fill_limit(rate_limit* out, per_second) except -1:
    out.limits, out.per_second = per_second is not None, per_second or 0
    out.burst = out.level = max(1.0, out.per_second)
    return 0


cdef int _fill_node(engine_plan* plan, expr_node* out, node) except -1:
    cdef bytes text
    op, out.is_unsigned, out.first, out.noperands, ref, value = node
    out.op = _OPS[op]
    _fill_ref(&out.field, ref)
    if isinstance(value, bytes):
        text, out.length = value, len(value)
        out.text = <const uint8_t*>_array(plan, out.length, 1)
        memcpy(<void*>out.text, <const char*>text, out.length)
    else:
        out.number = _number(value)
    return 0


cdef int _fill_group(engine_plan* plan, group* out, sums) except -1:
    cdef uint32_t i
    one = sums.group
    out.where, out.nbounds = sums.where, -1
    out.keeps_last, out.positive, out.has_value = one.last, one.positive, one.value is not None
    out.keeps_largest = one.largest
    out.nkeys, out.keys = len(sums.keys), _refs(plan, sums.keys)
    _fill_ref(&out.value, sums.value)
    out.nthreads = len(one.cgroups)
    out.threads = <uint32_t*>_array(plan, out.nthreads, sizeof(uint32_t))
    for i in range(out.nthreads):
        out.threads[i] = one.cgroups[i]
    if one.bounds is not None:
        out.nbounds = len(one.bounds)
        out.bounds = <number*>_array(plan, out.nbounds, sizeof(number))
        for i, bound in enumerate(one.bounds):
            out.bounds[i] = _number(bound)
    if one.exponential is not None:
        out.nfine = len(one.exponential.bounds)
        out.fine_bounds = <uint64_t*>_array(plan, out.nfine, sizeof(uint64_t))
        for i, bound in enumerate(one.exponential.bounds):
            out.fine_bounds[i] = bound
        for i, start in enumerate(sums.fine_starts):
            out.fine_starts[i] = start
    return 0


cdef int _fill_role(engine_plan* plan, join_role* out, role) except -1:
    out.role, out.awaited_stacks, out.join = _ROLES[role.role], role.awaited_stacks, role.join
    out.variant, out.only, out.thread_key = role.variant, role.only, role.thread_key
    _fill_ref(&out.first, role.first)
    _fill_ref(&out.second, role.second)
    out.nkeys, out.keys = len(role.keys), _refs(plan, role.keys)
    return 0


cdef int _fill_type(engine_plan* plan, event_type* out, one) except -1:
    out.id, out.size, out.stacks = one.id, one.size, one.stacks
    out.tallied, out.of_all_threads, out.of_threads = one.tallied, one.of_all_threads, one.of_threads
    out.filter, out.first_group, out.ngroups = one.filter, one.first_group, one.ngroups
    out.nfields, out.fields = len(one.fields), _refs(plan, one.fields)
    _fill_ref(&out.caller, one.caller)
    _fill_rule(&out.export, one.export)
    return _fill_role(plan, &out.role, one.role)


cdef int _fill_join(join_plan* out, one) except -1:
    cdef nesting* enclosed = &out.nesting
    join, choice = one.join, one.choice
    out.by_stack, out.user, out.first_variant = join.by == "stack", join.begins[0].user, one.first_variant
    out.nsteps = len(join.through)
    if choice is not None:
        enclosed.encloses, enclosed.by_stack = choice.nested, out.by_stack
        enclosed.system_call, enclosed.spans = choice.system_call, choice.signal == "span"
        enclosed.in_kernel = choice.system_call or (out.by_stack and not out.user)
        enclosed.share, enclosed.layout_id = share_of(choice.share), join.layout.layout_id
    return 0


cdef int _fill_variant(join_variant* out, one) except -1:
    out.filter, out.filtered, out.join = one.filter, one.filtered, one.join
    out.first_group, out.ngroups = one.first_group, one.ngroups
    out.first_open, out.nopen = one.first_open, one.nopen
    out.types[0], out.types[1] = one.types
    return _fill_rule(&out.export, one.export)


cdef int _fill_plan(engine_plan* out, wanted) except -1:
    """Copy all arrays of a plan."""
    cdef uint32_t i
    out.nnodes = len(wanted.nodes)
    out.nodes = <expr_node*>_array(out, out.nnodes, sizeof(expr_node))
    for i in range(out.nnodes):
        _fill_node(out, &out.nodes[i], wanted.nodes[i])
    out.ntypes = len(wanted.types)
    out.types = <event_type*>_array(out, out.ntypes, sizeof(event_type))
    for i in range(out.ntypes):
        _fill_type(out, &out.types[i], wanted.types[i])
    out.ngroups, out.nsingle = len(wanted.sums), wanted.nsingle
    out.groups = <group*>_array(out, out.ngroups, sizeof(group))
    for i in range(out.ngroups):
        _fill_group(out, &out.groups[i], wanted.sums[i])
    out.njoins = len(wanted.join_plans)
    out.joins = <join_plan*>_array(out, out.njoins, sizeof(join_plan))
    for i in range(out.njoins):
        _fill_join(&out.joins[i], wanted.join_plans[i])
    out.nvariants = len(wanted.variants)
    out.variants = <join_variant*>_array(out, out.nvariants, sizeof(join_variant))
    for i in range(out.nvariants):
        _fill_variant(&out.variants[i], wanted.variants[i])
    if wanted.joins.times is not None:
        out.times.wanted, out.times.first_group = True, wanted.first_time
        for one in wanted.joins.times.follows:
            out.times.follows |= _FOLLOWS[one]
    out.nexports, out.queues = len(wanted.exports), wanted.queues
    out.exports = <export_plan*>_array(out, out.nexports, sizeof(export_plan))
    for i, (layout_id, choice) in enumerate(wanted.exports.items()):
        out.exports[i].layout_id, out.exports[i].spans = layout_id, choice.signal == "span"
        _fill_limit(&out.exports[i].limit, choice.max_per_second)
        _fill_limit(&out.together, choice.together)
    return 0
