/* Inside `mode: stream`: handler processes that are kept, one JSON line to them for each message, replies in any order.
 * stream.c is the driver, stream_calls.c the messages, stream_write.c and stream_read.c the two pipes of a process,
 * stream_process.c how a process starts and ends. All on the loop's thread.
 *
 * A message is queued (no process has it), in flight in one process, or finished. `begin` and `end` are where its line
 * lies in all bytes that were ever sent to the process; `sent` is how many of these the pipe has taken. So it is always
 * certain what a process may have seen:
 *
 *   begin >= sent    not a byte was written: when the process ends, the message goes back to the queue
 *   end   <= sent    the process may have it, and may reply
 *   otherwise        a part was written: a reply to it breaks the protocol
 *
 * When a process is gone, what is left in the pipe shows how much it had read. A message of which it had read even a
 * byte is unknown then.
 *
 * Invariants: a message in flight is in `flight` of its process and in `by_id`, under an id that this process gets
 * once; `flight` is in the order of sending, so what was not written, and what was not read, is at its end;
 * flight.n <= window, and no more is sent while flight.n >= width. */
#ifndef ONCE_EFFECT_STREAM_IMPL_H
#define ONCE_EFFECT_STREAM_IMPL_H

#include "base/buf.h"
#include "effect/exec.h"
#include "effect/process.h"
#include "effect/stream_line.h"

#define ONCE_STREAM_GRACE_MS 1000 /* for a process that ends by itself; then it is killed */

typedef struct stream stream;
typedef struct stream_process stream_process;

typedef struct stream_call { /* a message that was started and is not finished */
    once_item *item;
    stream_process *process; /* NULL: queued */
    uint64_t id, begin, end;
    struct stream_call *next, *prev; /* in the queue, or in flight, in order; `next` also of the unused ones */
    struct stream_call *chain;       /* of equal id & mask */
} stream_call;

typedef struct stream_calls {
    stream_call *first, *last;
    size_t n;
} stream_calls;

typedef enum process_state {
    PROCESS_NONE, /* not started; the next one not before restart_ms */
    PROCESS_RUNS,
    PROCESS_ENDS /* gets nothing more; waited for, and killed at kill_ms */
} process_state;

struct stream_process {
    stream *stream;
    process_state state;
    once_child child;
    once_watch in, out, err, end;

    stream_calls flight;
    stream_call **by_id; /* chains; `mask` + 1 of them */
    uint64_t next_id;
    int64_t oldest_ms; /* since when flight.first is that */
    uint32_t width;    /* messages that it may have now */
    uint32_t to_widen; /* replies until it may have more */

    once_buf lines; /* from `written` on they wait for the pipe */
    size_t written;
    uint64_t sent; /* bytes, of all that it ever got */

    char *replies;
    size_t n_replies, replies_size, searched; /* bytes; up to `searched` there is no end of a line */
    once_tail tail;                           /* of stderr */

    char why[300];    /* why we end it; empty: we do not */
    bool broke;       /* the protocol: no reply of it counts from then on */
    bool killed;      /* by us */
    bool kill_wanted; /* the runner wanted one of its messages to end */
    int64_t kill_ms, restart_ms, backoff_ms;
};

struct stream {
    once_effect_driver driver;
    once_arena arena, scratch; /* as long as the driver; as long as one read */
    char *file, **argv, **envp;
    size_t line_max; /* of a reply */
    stream_calls queue;
    stream_call *calls, *unused; /* as many as slots; those from calls_used on were never used */
    size_t calls_used;
    stream_process *processes;
    uint32_t n_processes, window, mask;
    once_json json;
};

/* --- messages (stream_calls.c) --- */

void once__stream_insert(stream_calls *list, stream_call *c, stream_call *before); /* `before` NULL: at the end */
void once__stream_remove(stream_calls *list, stream_call *c);
/* Where the message of this id is in `by_id`; the place is NULL when none is in flight. */
stream_call **once__stream_find(stream_process *p, uint64_t id);
/* From the queue into the flight of `p`, as its last. */
void once__stream_enter_flight(stream_process *p, stream_call *c);
void once__stream_leave_flight(stream_process *p, stream_call *c); /* it is in no list then */
/* The last in flight goes to the head of the queue, as if it had never been sent. */
void once__stream_requeue_last(stream_process *p);
void once__stream_requeue_unwritten(stream_process *p); /* all of which not a byte was written */
/* Reports the message, which is in no list, to the runner; `c` is unused from then on. */
void once__stream_finish(stream *s, stream_call *c, const once_stream_reply *reply, bool started, int run_failure);
void once__stream_finish_unknown(stream *s, stream_call *c, const char *reason);
/* A queued one, of which no process has seen anything. */
void once__stream_finish_unstarted(stream *s, stream_call *c, int run_failure, const char *reason);

/* --- to a process (stream_write.c) --- */

bool once__stream_has_room(const stream_process *p);
void once__stream_send(stream_process *p); /* makes the line of the first in the queue; there is room */
void once__stream_write_lines(stream_process *p);
void once__stream_on_in(once_watch *one, uint32_t events);

/* --- from a process (stream_read.c) --- */

void once__stream_narrow(stream_process *p); /* to one message, because others became unknown with it */
/* One read. Returns how many bytes; 0: there is nothing now, or there will be nothing more (*over). */
size_t once__stream_read_replies(stream_process *p, bool *over);
/* Keeps the end of its stderr. Returns how many bytes it has read; 0: there is nothing now. */
size_t once__stream_read_errors(stream_process *p);
void once__stream_on_out(once_watch *one, uint32_t events);
void once__stream_on_err(once_watch *one, uint32_t events);

/* --- a process (stream_process.c) --- */

bool once__stream_watch(stream_process *p, once_watch *one, int fd, uint32_t events); /* false: memory is out */
void once__stream_unwatch(stream_process *p, once_watch *one);                        /* also one that is not watched */
int once__stream_start_process(stream_process *p, once_error *err);
void once__stream_back_off(stream_process *p);     /* the next one is not started before a pause */
void once__stream_stop_sending(stream_process *p); /* and takes back what was not written */
void once__stream_kill_process(stream_process *p); /* with its group, at once; p->why says why */
/* It seems to be ending by itself: how it ends is worth waiting for. */
void once__stream_end_process(stream_process *p, const char *why);
void once__stream_break(stream_process *p, const char *why); /* it broke the protocol, and is killed */
void once__stream_reset_process(stream_process *p);          /* it was reaped; the next one can be started */
void once__stream_on_end(once_watch *one, uint32_t events);

#endif
