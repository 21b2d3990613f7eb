/* The loop under all hands: descriptors, time, and the list of what ended. What a message does is in exec.c, stream.c, callback.c and
 * sql_hand.c. */
#include "effect/hands.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/beside.h"
#include "base/errno_text.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/no_memory.h"
#include "base/plain.h"
#include "effect/effect.h"
#include "effect/hand.h"
#include "effect/process.h"

#include "base/banned.h"

enum { EVENTS = 64, REASON_MAX = 400, ARGUMENT_MAX = 128 << 10 /* the kernel's limit, with the NUL */ };

struct once_hands {
    once_hands_options options;
    once_hand **of; /* as spec->handlers; NULL: not external */
    int epoll;
    once_watch wake;
    bool woken;
    struct epoll_event events[EVENTS]; /* of this turn; taken out when their watch goes */
    int n_events, next_event;
    once_item **finished; /* a ring: no more can be in our hands than there are slots */
    size_t first, n_finished, capacity;
};

bool once_hands_needed(const once_spec *spec)
{
    for (size_t i = 0; i < spec->n_handlers; i++)
        if (once_handler_external(&spec->handlers[i])) return true;
    return false;
}

/* ---- descriptors ---- */

int once_hands_watch(once_hands *hands, once_watch *watch, uint32_t events, once_error *err)
{
    assert(watch->fd >= 0 && watch->ready);
    struct epoll_event event = {.events = events, .data.ptr = watch};
    if (epoll_ctl(hands->epoll, watch->on ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, watch->fd, &event) != 0)
        return once_fail(err, ONCE_E_UNAVAILABLE, "cannot watch a descriptor: %s", once_errno_text(errno));
    watch->on = true;
    return ONCE_OK;
}

void once_hands_unwatch(once_hands *hands, once_watch *watch)
{
    if (watch->on) {
        epoll_ctl(hands->epoll, EPOLL_CTL_DEL, watch->fd, NULL);
        for (int i = hands->next_event; i < hands->n_events; i++)
            if (hands->events[i].data.ptr == watch) hands->events[i].data.ptr = NULL;
    }
    watch->on = false;
    watch->fd = -1;
}

static void woken(once_watch *watch, uint32_t events)
{
    once_hands *hands = (once_hands *)((char *)watch - offsetof(once_hands, wake));
    uint64_t times;
    (void)events;
    hands->woken = read(watch->fd, &times, sizeof times) == sizeof times;
}

void once_hands_wake(once_hands *hands)
{
    const uint64_t one = 1;
    while (write(hands->wake.fd, &one, sizeof one) < 0 && errno == EINTR) continue; /* full: it is awake enough */
}

/* ---- time ---- */

const once_hands_options *once_hands_options_of(const once_hands *hands) { return &hands->options; }
int64_t once_hands_now_ms(const once_hands *hands) { return once_env_mono_ns(hands->options.env) / 1000000; }

static int64_t tick(once_hands *hands, int64_t now_ms)
{
    int64_t next_ms = ONCE_NEVER;
    for (size_t i = 0; i < hands->options.spec->n_handlers; i++) {
        once_hand *hand = hands->of[i];
        const int64_t at_ms = hand ? hand->ops->tick(hand, now_ms) : ONCE_NEVER;
        if (at_ms < next_ms) next_ms = at_ms;
    }
    return next_ms;
}

/* One turn: what is due, then what is ready; sleeps until `until_ms` when nothing is. */
static void turn(once_hands *hands, int64_t now_ms, int64_t until_ms)
{
    const int64_t due_ms = tick(hands, now_ms);
    if (due_ms < until_ms) until_ms = due_ms;
    int64_t wait_ms = until_ms > now_ms ? until_ms - now_ms : 0;
    if (hands->n_finished) wait_ms = 0;
    const int limit = until_ms == ONCE_NEVER && wait_ms ? -1 : wait_ms > INT_MAX ? INT_MAX : (int)wait_ms;
    const int n = epoll_wait(hands->epoll, hands->events, EVENTS, limit);
    assert(n >= 0 || errno == EINTR);
    hands->n_events = n > 0 ? n : 0;
    for (hands->next_event = 0; hands->next_event < hands->n_events;) {
        const struct epoll_event *event = &hands->events[hands->next_event++];
        once_watch *watch = event->data.ptr;
        if (watch) watch->ready(watch, event->events);
    }
    hands->n_events = 0;
}

/* ---- items ---- */

static void reset(once_item *item)
{
    item->outcome = ONCE_RELEASE;
    item->result = item->failure = (once_bytes){0};
    item->delay_ms = -1;
    item->maybe = item->started = false;
    item->trouble = ONCE_OK;
}

void once_hands_start(once_hands *hands, once_item *const *items, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        once_item *item = items[i];
        once_hand *hand = hands->of[item->handler - hands->options.spec->handlers];
        assert(hand && item->input);
        reset(item);
        item->hand = hand;
        if (ONCE_FAIL_AT(effect_before)) {
            item->trouble = ONCE_E_UNAVAILABLE;
            once_hands_output(hands, item, (once_bytes){0}, ONCE_BYTES("failpoint 'effect_before'"));
            once_hands_finished(hands, item);
        } else {
            hand->ops->start(hand, item);
        }
    }
}

void once_hands_kill(once_hands *hands, once_item *const *items, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!items[i]->hand) continue; /* back already */
        once_hand *hand = hands->of[items[i]->handler - hands->options.spec->handlers];
        hand->ops->kill(hand, items[i]);
    }
}

void once_hands_finished(once_hands *hands, once_item *item)
{
    if (item->started && ONCE_FAIL_AT(effect_after)) {
        item->outcome = ONCE_UNKNOWN;
        item->maybe = true;
        once_hands_output(hands, item, (once_bytes){0}, ONCE_BYTES("failpoint 'effect_after'"));
    }
    assert(hands->n_finished < hands->capacity);
    item->hand = NULL;
    hands->finished[(hands->first + hands->n_finished++) % hands->capacity] = item;
}

size_t once_hands_wait(once_hands *hands, int64_t wait_ms, once_item **out, size_t max)
{
    int64_t now_ms = once_hands_now_ms(hands);
    const int64_t until_ms = wait_ms > ONCE_NEVER - now_ms ? ONCE_NEVER : now_ms + wait_ms;
    for (;;) {
        turn(hands, now_ms, until_ms);
        now_ms = once_hands_now_ms(hands);
        if (hands->n_finished || hands->woken || now_ms >= until_ms) break;
    }
    hands->woken = false;
    size_t n = 0;
    for (; n < max && hands->n_finished; n++) {
        out[n] = hands->finished[hands->first];
        hands->first = (hands->first + 1) % hands->capacity;
        hands->n_finished--;
    }
    return n;
}

bool once_hands_output(once_hands *hands, once_item *item, once_bytes result, once_bytes reason)
{
    const size_t result_max = hands->options.spec->result_max;
    char too_long[80];
    free(item->output);
    item->output = NULL;
    item->result = item->failure = (once_bytes){0};
    if (result.len > result_max) {
        const int len = snprintf(too_long, sizeof too_long, "result longer than %zu bytes; not kept", result_max);
        once_log(ONCE_LOG_WARN, "result_too_long", "%.*s:%d: %s; result_max allows more", (int)hands->options.spec->file.len,
                 hands->options.spec->file.data, item->handler->line, too_long);
        if (reason.len == 0) reason = (once_bytes){too_long, (size_t)len};
        result.len = 0;
    }
    if (reason.len > REASON_MAX) reason.len = REASON_MAX;
    if (result.len + reason.len == 0) return true;
    char *copy = malloc(result.len + reason.len);
    if (!copy) return false;
    char *text = result.len ? mempcpy(copy, result.data, result.len) : copy;
    if (reason.len) memcpy(text, reason.data, reason.len);
    reason.len = once_make_plain(text, reason.len, '?');
    item->output = copy;
    item->result = (once_bytes){copy, result.len};
    item->failure = (once_bytes){text, reason.len};
    return true;
}

int once_hands_prepare(const once_handler_spec *handler, const once_json *body, const once_message *message, once_arena *arena,
                       void **input, once_error *err)
{
    static char nothing; /* an item without input cannot run */
    if (handler->effect == ONCE_EFFECT_EXEC && !handler->exec.stream) return once_exec_prepare(handler, body, message, arena, input, err);
    if (handler->effect == ONCE_EFFECT_SQL) return once_sql_prepare(handler, body, message, arena, input, err);
    *input = &nothing;
    return ONCE_OK;
}

/* ---- the environment of commands ---- */

typedef struct environment {
    const once_hands_options *options;
    once_arena *arena;
    char **list;
    size_t n;
} environment;

#define AT(env, line) (int)(env)->options->spec->file.len, (env)->options->spec->file.data, (line)

static bool same_name(const char *entry, once_bytes name) { return strncmp(entry, name.data, name.len) == 0 && entry[name.len] == '='; }

static int put(environment *env, once_bytes name, once_bytes value, once_error *err)
{
    char *entry = once_arena_alloc(env->arena, name.len + value.len + 2);
    if (!entry) return once_no_memory(err, "for the handlers");
    char *at = mempcpy(entry, name.data, name.len);
    *at++ = '=';
    if (value.len) at = mempcpy(at, value.data, value.len);
    *at = '\0';
    size_t i = 0;
    while (i < env->n && !same_name(env->list[i], name)) i++;
    env->list[i] = entry;
    if (i == env->n) env->n++;
    return ONCE_OK;
}

/* What is no regular file may never end, or never begin. NULL, or why it is not read. */
static const char *read_whole(const once_env *world, int fd, char *to, size_t max, size_t *len)
{
    struct stat about;
    ssize_t got;
    *len = 0;
    if (fstat(fd, &about) != 0) return once_errno_text(errno);
    if (!S_ISREG(about.st_mode)) return S_ISDIR(about.st_mode) ? "it is a directory" : "it is no regular file";
    do {
        got = world->read(world->self, fd, to + *len, max - *len);
        if (got > 0) *len += (size_t)got;
    } while (*len < max && (got > 0 || (got < 0 && errno == EINTR)));
    if (got < 0) return once_errno_text(errno);
    return *len == max ? "it is longer than 128 KiB" : NULL;
}

/* A secret in a file; the line end that editors put at its end is not part of it. */
static int read_secret(const environment *env, const once_exec_variable *v, const char *path, once_bytes *out, once_error *err)
{
    const once_env *world = env->options->env;
    char *text = once_arena_alloc(env->arena, ARGUMENT_MAX);
    if (!text) return once_no_memory(err, "for the handlers");
    size_t len = 0;
    const int fd = world->open(world->self, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0); /* a FIFO would wait for its other end */
    const char *why = fd < 0 ? once_errno_text(errno) : read_whole(world, fd, text, ARGUMENT_MAX, &len);
    if (fd >= 0) once_close_beside(world, fd);
    if (why)
        return once_fail(err, ONCE_E_CONFIG, "%.*s:%d: cannot read file '%s' for '%.*s': %s", AT(env, v->line), path,
                         (int)v->name.len, v->name.data, why);
    if (len && text[len - 1] == '\n') {
        len--;
        if (len && text[len - 1] == '\r') len--;
    }
    *out = (once_bytes){text, len};
    return ONCE_OK;
}

static int read_value(const environment *env, const once_exec_variable *v, once_bytes *out, once_error *err)
{
    once_bytes text;
    if (!once_arena_copy(env->arena, v->value, &text)) return once_no_memory(err, "for the handlers");
    if (text.len >= 5 && memcmp(text.data, "file:", 5) == 0) return read_secret(env, v, text.data + 5, out, err);
    *out = text;
    if (text.len < 4 || memcmp(text.data, "env:", 4) != 0) return ONCE_OK;
    const char *found = getenv(text.data + 4);
    if (!found)
        return once_fail(err, ONCE_E_CONFIG, "%.*s:%d: variable '%s' is not set; '%.*s' is to be taken from it", AT(env, v->line),
                         text.data + 4, (int)v->name.len, v->name.data);
    *out = (once_bytes){found, strlen(found)};
    return ONCE_OK;
}

int once_value_read(const once_spec *spec, const once_env *env, const once_exec_variable *written, once_arena *arena, once_bytes *out,
                    once_error *err)
{
    const once_hands_options options = {.spec = spec, .env = env};
    return read_value(&(environment){.options = &options, .arena = arena}, written, out, err);
}

static int put_variable(environment *env, const once_exec_variable *v, once_error *err)
{
    const once_bytes name = v->name;
    once_bytes value = {0};
    if (name.len == 0 || memchr(name.data, '=', name.len) || memchr(name.data, '\0', name.len))
        return once_fail(err, ONCE_E_CONFIG, "%.*s:%d: the name of a variable cannot be empty nor have '=' or NUL in it", AT(env, v->line));
    if (name.len >= 5 && memcmp(name.data, "ONCE_", 5) == 0)
        return once_fail(err, ONCE_E_CONFIG, "%.*s:%d: variable '%.*s': names that begin with ONCE_ are ours; choose another",
                         AT(env, v->line), (int)name.len, name.data);
    const int rc = read_value(env, v, &value, err);
    if (rc != ONCE_OK) return rc;
    if ((value.len && memchr(value.data, '\0', value.len)) || name.len + value.len + 2 > ARGUMENT_MAX)
        return once_fail(err, ONCE_E_CONFIG, "%.*s:%d: the value of '%.*s' has a NUL byte or is longer than 128 KiB", AT(env, v->line),
                         (int)name.len, name.data);
    return put(env, name, value, err);
}

int once_hands_environment(once_hands *hands, const once_handler_spec *handler, once_arena *arena, const char *const *extra,
                           char ***out, once_error *err)
{
    size_t n_extra = 0;
    while (extra && extra[n_extra]) n_extra++;
    environment env = {.options = &hands->options, .arena = arena};
    env.list = once_arena_new(arena, char *, 2 + handler->exec.n_env + n_extra + 1);
    if (!env.list) return once_no_memory(err, "for the handlers");
    int rc = put(&env, ONCE_BYTES("PATH"), ONCE_BYTES("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), err);
    if (rc == ONCE_OK) rc = put(&env, ONCE_BYTES("LANG"), ONCE_BYTES("C.UTF-8"), err);
    for (size_t i = 0; i < handler->exec.n_env && rc == ONCE_OK; i++) rc = put_variable(&env, &handler->exec.env[i], err);
    for (size_t i = 0; i < n_extra && rc == ONCE_OK; i++) {
        const char *equals = strchr(extra[i], '=');
        assert(equals);
        rc = put(&env, (once_bytes){extra[i], (size_t)(equals - extra[i])}, (once_bytes){equals + 1, strlen(equals + 1)}, err);
    }
    if (rc == ONCE_OK) *out = env.list;
    return rc;
}

static const char *path_of(char *const *envp)
{
    while (*envp && strncmp(*envp, "PATH=", 5) != 0) envp++;
    return *envp ? *envp + 5 : "";
}

int once_hands_find(once_hands *hands, const once_handler_spec *handler, const char *command, char *const *envp, char **out,
                    once_error *err)
{
    const once_spec *spec = hands->options.spec;
    once_error why;
    int rc = once_process_find(command, path_of(envp), out, &why);
    if (rc == ONCE_OK) return ONCE_OK;
    if (once_status_class(rc) == ONCE_CLASS_PAUSE) rc = ONCE_E_CONFIG; /* before the first message it is a mistake in the file */
    return once_fail(err, rc, "%.*s:%d: %s", (int)spec->file.len, spec->file.data, handler->line, why.text);
}

/* ---- open, close ---- */

static int open_callback(once_hands *hands, const once_handler_spec *handler, once_hand **out, once_error *err)
{
    const once_hands_options *o = &hands->options;
    const once_bytes name = handler->callback;
    for (size_t i = 0; i < o->n_callbacks; i++)
        if (strlen(o->callbacks[i].name) == name.len && memcmp(o->callbacks[i].name, name.data, name.len) == 0)
            return once_hand_open_callback(hands, handler, &o->callbacks[i], out, err);
    return once_fail(err, ONCE_E_CONFIG, "%.*s:%d: callback '%.*s' is not registered; run it from a program that calls once_pipeline_callback", (int)o->spec->file.len,
                     o->spec->file.data, handler->line, (int)name.len, name.data);
}

static int open_hand(once_hands *hands, const once_handler_spec *handler, once_hand **out, once_error *err)
{
    if (!once_handler_external(handler)) return ONCE_OK;
    assert(handler->slots > 0);
    if (handler->effect == ONCE_EFFECT_CALLBACK) return open_callback(hands, handler, out, err);
    if (handler->effect == ONCE_EFFECT_SQL) return once_hand_open_sql(hands, handler, out, err);
    return (handler->exec.stream ? once_hand_open_stream : once_hand_open_exec)(hands, handler, out, err);
}

once_db *once_hands_db(once_hands *hands, const once_handler_spec *handler)
{
    once_hand *hand = hands->of[handler - hands->options.spec->handlers];
    return hand && handler->effect == ONCE_EFFECT_SQL ? once_hand_sql_db(hand) : NULL;
}

static int open_loop(once_hands *hands, once_error *err)
{
    const once_spec *spec = hands->options.spec;
    hands->capacity = 1;
    for (size_t i = 0; i < spec->n_handlers; i++) hands->capacity += spec->handlers[i].slots;
    hands->of = calloc(spec->n_handlers + 1, sizeof *hands->of);
    hands->finished = calloc(hands->capacity, sizeof *hands->finished);
    if (!hands->of || !hands->finished) return once_no_memory(err, "for the handlers");
    hands->epoll = epoll_create1(EPOLL_CLOEXEC);
    hands->wake = (once_watch){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .ready = woken};
    if (hands->epoll < 0 || hands->wake.fd < 0)
        return once_fail(err, ONCE_E_UNAVAILABLE, "cannot make an event loop: %s", once_errno_text(errno));
    return once_hands_watch(hands, &hands->wake, EPOLLIN, err);
}

int once_hands_open(const once_hands_options *options, once_hands **out, once_error *err)
{
    once_hands *hands = calloc(1, sizeof *hands);
    if (!hands) return once_no_memory(err, "for the handlers");
    hands->options = *options;
    hands->epoll = hands->wake.fd = -1;
    int rc = open_loop(hands, err);
    for (size_t i = 0; i < options->spec->n_handlers && rc == ONCE_OK; i++)
        rc = open_hand(hands, &options->spec->handlers[i], &hands->of[i], err);
    if (rc == ONCE_OK) *out = hands;
    else once_hands_close(hands);
    return rc;
}

void once_hands_close(once_hands *hands)
{
    if (!hands) return;
    for (size_t i = 0; hands->of && i < hands->options.spec->n_handlers; i++)
        if (hands->of[i]) hands->of[i]->ops->close(hands->of[i]);
    if (hands->wake.fd >= 0) close(hands->wake.fd);
    if (hands->epoll >= 0) close(hands->epoll);
    free(hands->finished);
    free(hands->of);
    free(hands);
}
