"""The part of the page parser that chooses what is exported as logs and spans, as export/otlp/select.py does.

The class `Selector` there explains the rules. The limits go by the events' own time here.
"""

cdef struct Limit:
    bint limits
    double per_second
    double burst
    double level
    uint64_t at

cdef struct Export:  # what is exported of one layout
    int64_t layout_id
    bint spans
    Limit limit
    uint64_t dropped

cdef struct Chosen:  # a record to be exported: its bytes follow, or those of both halves, and then its stack
    int32_t way  # -1 of a single one
    int32_t[2] kinds
    int32_t[2] cpus
    uint32_t[2] lengths
    uint32_t stack_length
    uint64_t[2] times
    uint64_t[2] trace
    uint64_t span
    uint64_t parent


cdef inline void _set_limit(Limit* limit, per_second):
    limit.limits = per_second is not None
    limit.per_second = per_second or 0
    limit.burst = limit.level = max(1.0, limit.per_second)


cdef inline void _keep_level(Limit* limit, const Limit* before) noexcept:
    """Go on with the tokens of an earlier limit."""
    limit.level, limit.at = min(limit.burst, before.level), before.at


cdef inline bint _has_token(Limit* limit, uint64_t now) noexcept nogil:
    """Add the tokens since the last call; return whether one is left."""
    if not limit.limits:
        return True
    if now > limit.at:
        limit.level = min(limit.burst, limit.level + (now - limit.at) * 1e-9 * limit.per_second)
        limit.at = now
    return limit.level >= 1


cdef inline void _take_token(Limit* limit) noexcept nogil:
    """Take a token, even if none is left. The debt is at most one second's tokens."""
    limit.level = max(limit.level - 1, -limit.burst)


cdef int64_t NOWHERE = <int64_t>1 << 32
"""The thread of what lies in no call: no thread has this id."""


cdef class Exporting(JoinSetup):
    """Gives each exported record its place in a trace, and keeps it until the batch is taken."""

    cdef Export* _exports
    cdef uint32_t _nexports
    cdef Limit _together
    cdef uint8_t* _chosen_bytes
    cdef size_t _chosen_room, _chosen_used
    cdef uint64_t _nchosen

    cdef int _make_exports(self, recipes, joins) except -1:
        """Prepare to export the records of these recipes that have a choice."""
        chosen = {layout_id: one.choice for layout_id, one in recipes.items()}
        chosen.update({layout_id: one.recipe.choice for layout_id, one in joins.recipes.items()})
        chosen = {layout_id: choice for layout_id, choice in chosen.items() if choice is not None}
        self._exported, self._nexports = list(chosen), len(chosen)
        self._exports = <Export*>calloc(max(1, self._nexports), sizeof(Export))
        if self._exports == NULL:
            raise MemoryError
        cdef uint32_t i
        for i, (layout_id, choice) in enumerate(chosen.items()):
            self._exports[i].layout_id, self._exports[i].spans = layout_id, choice.signal == "span"
            _set_limit(&self._exports[i].limit, choice.max_per_second)
            _set_limit(&self._together, choice.together)
        return 0

    cdef Export* _export_of(self, int64_t layout_id) noexcept nogil:
        cdef uint32_t i
        for i in range(self._nexports):
            if self._exports[i].layout_id == layout_id:
                return &self._exports[i]
        return NULL

    cdef bint _ready(self, Export* export, uint64_t now) noexcept nogil:
        """Whether each limit has a token. The probe of an open call may be gone, and its own limit with it."""
        return _has_token(&self._together, now) and (export == NULL or _has_token(&export.limit, now))

    cdef void _take_tokens(self, Export* export) noexcept nogil:
        _take_token(&self._together)
        _take_token(&export.limit)

    cdef bint _admits(self, CallInTrace* call, uint64_t now) noexcept nogil:
        """Whether the limits let a trace through, as they stood when this was asked for the first time."""
        if call.admitted == UNDECIDED:
            call.admitted = self._ready(self._export_of(call.layout_id), now)
        return call.admitted

    cdef bint _export_joined(
        self, const Way* way, OpenHalf* half, const Rec* rec, bint passed
    ) noexcept nogil:
        """Export a joined record if it is chosen; False if there is no memory. ``passed``: it is counted."""
        cdef Export* export = &self._exports[way.chooser.export]
        cdef int64_t thread = NOWHERE if half.enclosing == NULL else _thread_of(half.tid, half.cpu)
        cdef uint64_t now = (<const Rec*>rec.second).time
        _no_longer_enclose(self._open, half)
        if export.spans:
            return self._export_span(way, half, rec, thread, passed, now)
        if not passed or not self._chosen(&way.chooser, rec):
            return True
        return self._export_log(export, way, -1, rec, thread, now)

    cdef bint _export_span(
        self, const Way* way, OpenHalf* half, const Rec* rec, int64_t thread, bint passed, uint64_t now
    ) noexcept nogil:
        """Export a call as a span, or one whose filter rejects it for what lies in it; False as above."""
        cdef Export* export = &self._exports[way.chooser.export]
        cdef CallInTrace* call
        cdef CallInTrace* parent = NULL
        cdef bint done = True
        if half.enclosing != NULL and half.enclosing.call != NULL:
            call, half.enclosing.call = half.enclosing.call, NULL
        else:
            if thread != NOWHERE and not _around(self._open, thread, half.time, &parent):
                return False
            call = _new_call(self._open, &self._open.slots[way.slot].nesting, parent)
            if call == NULL:
                return False
        if call.outermost.sampled and (call.needed or (passed and self._chosen(&way.chooser, rec))):
            if call.parent != NULL:
                call.parent.needed = True
            if self._admits(call.outermost, now):
                self._take_tokens(export)
                parent = call.parent
                done = self._keep(
                    way, -1, rec, call.outermost.trace, call.span, 0 if parent == NULL else parent.span
                )
            else:
                export.dropped += 1
        _release_call(call)
        return done

    cdef bint _export_single(self, const Kind* kind, int32_t number, const Rec* rec) noexcept nogil:
        """Export a single event that was chosen; False if there is no memory. ``number`` is that of its kind."""
        cdef Export* export = &self._exports[kind.chooser.export]
        return self._export_log(export, NULL, number, rec, _thread_of(rec.tid, rec.cpu), rec.time)

    cdef bint _export_log(
        self, Export* export, const Way* way, int32_t kind, const Rec* rec, int64_t thread, uint64_t now
    ) noexcept nogil:
        """Export a record as a log; False if there is no memory."""
        cdef CallInTrace* call = NULL
        cdef uint64_t[2] none = [0, 0]
        if not self._ready(export, now):
            export.dropped += 1
            return True
        self._take_tokens(export)
        if thread != NOWHERE and not _around(self._open, thread, rec.time, &call):
            return False
        if call == NULL or not call.outermost.sampled or not self._admits(call.outermost, now):
            return self._keep(way, kind, rec, none, 0, 0)
        call.needed = True
        return self._keep(way, kind, rec, call.outermost.trace, 0, call.span)

    cdef bint _keep(
        self, const Way* way, int32_t kind, const Rec* rec, const uint64_t* trace, uint64_t span, uint64_t parent
    ) noexcept nogil:
        """Keep a record to be exported, of a way or a single one of a kind; False if there is no memory."""
        cdef const Rec* second = <const Rec*>rec.second
        cdef uint32_t behind = 0 if second == NULL else second.length
        cdef size_t size = sizeof(Chosen) + _padded(<size_t>rec.length + behind + rec.stack_length), room
        cdef uint8_t* bytes
        cdef Chosen* one
        if self._chosen_used + size > self._chosen_room:
            room = 2 * self._chosen_room + size + 4096
            bytes = <uint8_t*>realloc(self._chosen_bytes, room)
            if bytes == NULL:
                return False
            self._chosen_bytes, self._chosen_room = bytes, room
        bytes = self._chosen_bytes + self._chosen_used
        one = <Chosen*>bytes
        memset(one, 0, sizeof(Chosen))
        one.trace[0], one.trace[1], one.span, one.parent = trace[0], trace[1], span, parent
        one.way, one.kinds[0] = -1, kind
        one.cpus[0], one.lengths[0], one.times[0] = rec.cpu, rec.length, rec.time
        one.stack_length = rec.stack_length
        bytes += sizeof(Chosen)
        memcpy(bytes, rec.start, rec.length)
        if second != NULL:
            one.way, one.kinds = <int32_t>(way - self._ways), way.kinds
            one.cpus[1], one.lengths[1], one.times[1] = second.cpu, second.length, second.time
            memcpy(bytes + rec.length, second.start, second.length)
        if rec.stack_length:
            memcpy(bytes + rec.length + behind, rec.stack, rec.stack_length)
        self._chosen_used += size
        self._nchosen += 1
        return True

    cdef int _deliver_chosen(self, batch) except -1:
        """Move the chosen records to the batch."""
        cdef size_t at = 0, length
        cdef uint32_t i
        cdef const Chosen* one
        cdef const uint8_t* bytes
        cdef Pending first, second
        while at < self._chosen_used:
            one = <const Chosen*>(self._chosen_bytes + at)
            bytes = <const uint8_t*>one + sizeof(Chosen)
            first = Pending(bytes, one.lengths[0], one.kinds[0], one.times[0])
            record = self._record(&first, one.cpus[0])
            if one.way >= 0:
                second = Pending(bytes + one.lengths[0], one.lengths[1], one.kinds[1], one.times[1])
                record = self._makes[one.way](record, self._record(&second, one.cpus[1]))
            trace = <object>one.trace[0] << 64 | one.trace[1]
            length = <size_t>one.lengths[0] + one.lengths[1]
            frames = self._kernel_frames(bytes + length, one.stack_length)
            batch.emissions.append(Emission(record, trace, one.span, one.parent, frames))
            at += sizeof(Chosen) + _padded(length + one.stack_length)
        self._chosen_used = self._nchosen = 0
        if self._chosen_room > KEPT_ROOM:
            free(self._chosen_bytes)
            self._chosen_bytes, self._chosen_room = NULL, 0
        for i in range(self._nexports):
            if self._exports[i].dropped:
                batch.limited[self._exports[i].layout_id] += self._exports[i].dropped
                self._exports[i].dropped = 0
        return 0

    cdef int _continue_exports(self, Exporting before) except -1:
        """Go on with the limits as they stand."""
        cdef uint32_t i
        cdef const Export* earlier
        _keep_level(&self._together, &before._together)
        for i in range(self._nexports):
            earlier = before._export_of(self._exports[i].layout_id)
            if earlier != NULL:
                _keep_level(&self._exports[i].limit, &earlier.limit)
        return 0
