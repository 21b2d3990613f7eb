/* Intake (core/intake.h): chooses the handler, renders key, lane, time and locks, and prepares the
 * input of the effect. Each step returns ONCE_E_MESSAGE if the message is at fault. */
#include "core/intake.h"

#include <assert.h>

#include "base/no_memory.h"
#include "core/event.h"
#include "core/fields.h"
#include "core/intake_parse.h"
#include "core/print.h"

#include "base/banned.h"

void once_intake_init(once_intake *intake, const once_spec *spec, once_secret secret, uint64_t run,
                      once_prepare *prepare)
{
    *intake = (once_intake){.spec = spec, .secret = secret, .run = run, .prepare = prepare};
    once_json_init(&intake->body);
    once_json_init(&intake->headers);
}

void once_intake_release(once_intake *intake)
{
    once_json_release(&intake->body);
    once_json_release(&intake->headers);
    once_texts_release(&intake->texts);
}

/* If the message is at fault, the item keeps the reason. Any other error goes to the caller. */
static int blame(once_item *item, int rc, const once_error *why, once_error *err)
{
    if (rc != ONCE_E_MESSAGE) {
        if (err) *err = *why;
        return rc;
    }
    const once_bytes text = {why->text, strlen(why->text)};
    return once_arena_copy(&item->batch->arena, text, &item->reason) ? ONCE_E_MESSAGE
                                                                     : once_no_memory(err, "for a message");
}

static int at_fault(once_error *why, const char *text) { return once_fail(why, ONCE_E_MESSAGE, "%s", text); }

/* What becomes of a message without a body when it arrives. One that was accepted runs. */
static int decide_tombstone(once_intake *intake, once_item *item, once_error *why)
{
    item->skipped = item->message.no_body && intake->spec->source.tombstones == ONCE_TOMBSTONES_SKIP;
    if (!item->message.no_body || intake->spec->source.tombstones == ONCE_TOMBSTONES_RUN) return ONCE_OK;
    return at_fault(why, item->skipped ? "the message has no body, and is skipped" : "the message has no body");
}

static once_parsed parsed_of(once_intake *intake, const once_item *item)
{
    return (once_parsed){
        .message = &item->message,
        .body = intake->document,
        .headers = item->message.headers.len ? &intake->headers : NULL,
        .texts = &intake->texts,
        .events = intake->spec->events,
        .unstable = intake->spec->source.unstable != NULL,
    };
}

static int render(once_intake *intake, once_item *item, const once_template *t, once_bytes *out, once_error *why)
{
    const once_parsed parsed = parsed_of(intake, item);
    return once_template_render(t, &parsed, &item->batch->arena, out, why);
}

/* The value of a template that is one field and nothing else; ABSENT for others. */
static int read_field(once_intake *intake, once_item *item, const once_template *t, once_json_value *out,
                      once_error *why)
{
    const once_placeholder *place = once_template_single(t);
    const once_parsed parsed = parsed_of(intake, item);
    *out = (once_json_value){0};
    return place && place->kind == ONCE_PLACE_FIELD ? once_placeholder_value(place, &parsed, out, why) : ONCE_OK;
}

static bool lacks(once_intake *intake, const once_item *item, const once_template *t)
{
    const once_placeholder *place = once_template_single(t);
    const once_parsed parsed = parsed_of(intake, item);
    return place && once_placeholder_is_absent(place, &parsed);
}

static int read_time(once_intake *intake, once_item *item, once_error *why)
{
    const once_spec *spec = intake->spec;
    once_json_value value;
    int64_t number;
    if (spec->time_optional && lacks(intake, item, spec->time)) return ONCE_OK;
    item->sent_unit = spec->time_unit;
    int rc = read_field(intake, item, spec->time, &value, why);
    if (rc != ONCE_OK) return rc;
    if (once_json_int64(value, &number)) {
        item->sent_text = value.raw;
        return once_sent_read_number(number, spec->time_unit, &item->message.sent_ms, why);
    }
    rc = render(intake, item, spec->time, &item->sent_text, why);
    return rc == ONCE_OK ? once_sent_read(item->sent_text, spec->time_unit, &item->message.sent_ms, why) : rc;
}

static int read_version(once_intake *intake, once_item *item, int64_t *version, once_error *why)
{
    once_bytes text;
    once_json_value value;
    int rc = read_field(intake, item, intake->spec->version, &value, why);
    if (rc != ONCE_OK) return rc;
    if (once_json_int64(value, version) && *version >= 0) return ONCE_OK;
    if (value.type == ONCE_JSON_INTEGER || value.type == ONCE_JSON_REAL)
        return at_fault(why, "the version is not a whole number from 0 to 2^63-1");
    rc = render(intake, item, intake->spec->version, &text, why);
    if (rc != ONCE_OK) return rc;
    int64_t number = 0;
    bool good = text.len > 0 && text.len < 20;
    for (size_t i = 0; good && i < text.len; i++)
        good = text.data[i] >= '0' && text.data[i] <= '9' && !__builtin_mul_overflow(number, 10, &number) &&
               !__builtin_add_overflow(number, text.data[i] - '0', &number);
    if (!good) return at_fault(why, "the version is not a whole number from 0 to 2^63-1");
    *version = number;
    return ONCE_OK;
}

/* Whether it may run without a claim (core/machine_work.c decides it), so that its fingerprint may never be needed. */
static bool prints_late(const once_intake *intake, const once_handler_spec *handler)
{
    return intake->prints_late && once_handler_unclaimed(handler) && !handler->hold && !intake->spec->order &&
           !intake->spec->inbox;
}

static int set_fingerprint(once_intake *intake, const once_message *message, const once_handler_spec *handler,
                           once_request *r, once_error *why)
{
    const once_fingerprint_spec *spec = &handler->fingerprint;
    const uint64_t seed = intake->secret.k0;
    int rc = ONCE_OK;
    assert(!intake->document || spec->kind != ONCE_FINGERPRINT_BYTES);
    r->fingerprint = (once_hash){0, 0};
    r->fields.n = 0;
    r->late = NULL;
    if (spec->kind == ONCE_FINGERPRINT_NONE) return ONCE_OK;
    if (!intake->document) {
        r->late = message;
        if (!prints_late(intake, handler)) once_request_print(r, intake->secret);
        return ONCE_OK;
    }
    if (spec->kind == ONCE_FINGERPRINT_BODY) r->fingerprint = once_fields_of_body(intake->document, seed, &r->fields);
    else
        rc = once_fields_of_paths(intake->document, &intake->texts, spec->fields, spec->n, seed, &r->fields,
                                  &r->fingerprint, why);
    if (once_hash_is_zero(r->fingerprint)) r->fingerprint.b = 1; /* zero means none */
    return rc;
}

static int read_lane(once_intake *intake, once_item *item, once_error *why)
{
    const once_spec *spec = intake->spec;
    once_lane_request *lane = &item->request.lane;
    *lane = (once_lane_request){.gap_ms = -1};
    if (!spec->order) return ONCE_OK;
    once_bytes name;
    int rc = render(intake, item, spec->order, &name, why);
    if (rc != ONCE_OK) return rc;
    lane->id = once_lane_id(intake->secret, &item->scope, name);
    lane->block = spec->block;
    if (!spec->version) return ONCE_OK;
    lane->versioned = true;
    lane->gap_ms = spec->gap_ms;
    lane->has_first = spec->has_first;
    lane->first = spec->first;
    rc = read_version(intake, item, &lane->version, why);
    if (rc != ONCE_OK || !spec->has_first || lane->version >= spec->first) return rc;
    return once_fail(why, ONCE_E_MESSAGE, "version %lld is below %lld, the first version of a lane",
                     (long long)lane->version, (long long)spec->first);
}

/* Locks are shared by all consumers and tenants of the store, because they may change the same things. If the message
 * lacks a value, it does not take that lock. */
static int read_locks(once_intake *intake, once_item *item, once_error *why)
{
    const once_locks_spec *spec = &item->handler->locks;
    static const once_scope scope = {.operation = {"locks", 5}};
    item->locks = NULL;
    item->n_locks = 0;
    if (spec->n == 0 || once_handler_external(item->handler)) return ONCE_OK;
    uint64_t *locks = once_arena_new(&item->batch->arena, uint64_t, spec->n);
    if (!locks) return once_no_memory(why, "for a message");
    for (size_t i = 0; i < spec->n; i++) {
        once_bytes name;
        const int rc = render(intake, item, spec->names[i], &name, why);
        if (rc == ONCE_OK) locks[item->n_locks++] = once_key_id(intake->secret, &scope, name).a;
        else if (rc != ONCE_E_MESSAGE) return rc;
    }
    item->locks = locks;
    return ONCE_OK;
}

static int read_key(once_intake *intake, once_item *item, once_error *why)
{
    const once_spec *spec = intake->spec;
    once_bytes key;
    item->scope = (once_scope){.consumer = spec->consumer, .operation = item->handler->operation};
    int rc = spec->tenant ? render(intake, item, spec->tenant, &item->scope.tenant, why) : ONCE_OK;
    if (rc == ONCE_OK) rc = render(intake, item, item->handler->key, &key, why);
    if (rc != ONCE_OK) return rc;
    if (key.len == 0) return at_fault(why, "the key is empty");
    item->request.id = once_key_id(intake->secret, &item->scope, key);
    return once_key_show(&item->batch->arena, key, &item->request.key) ? ONCE_OK : once_no_memory(why, "for a message");
}

static void set_terms(once_intake *intake, once_item *item)
{
    once_request *r = &item->request;
    r->scope = &item->scope;
    r->lease_ms = item->handler->lease_ms;
    r->remember_ms = item->handler->remember_ms;
    r->sent_ms = item->message.sent_ms;
    r->at = item->message.at;
    r->run = intake->run;
    r->lookup = once_handler_asks(item->handler);
    r->hold = item->handler->hold || r->lookup; /* held until a lookup ends; then the handler's `unknown` decides */
    r->natural = item->handler->natural;
}

/* Something that the effect needs may be missing. That only matters if the effect would run, so it is no error here. */
static int make_input(once_intake *intake, once_item *item, once_error *err)
{
    if (!once_handler_runs(item->handler)) {
        item->reason = item->handler->dead_reason;
        return ONCE_OK;
    }
    once_error *why = &intake->why;
    const once_parsed parsed = parsed_of(intake, item);
    const once_then *then = item->handler->then;
    int rc = intake->prepare(item->handler, &parsed, &item->batch->arena, &item->input, why);
    if (rc == ONCE_OK && then) rc = then->prepare(then, &parsed, &item->batch->arena, &item->then_input, why);
    if (rc == ONCE_OK) return rc;
    item->input = NULL;
    const int blamed = blame(item, rc, why, err);
    return blamed == ONCE_E_MESSAGE ? ONCE_OK : blamed;
}

#define NO_HANDLER "no handler for type"

static int choose_handler(once_intake *intake, once_item *item, once_error *why)
{
    const once_spec *spec = intake->spec;
    if (spec->type) {
        const int rc = render(intake, item, spec->type, &item->message.type, why);
        if (rc != ONCE_OK) return rc;
    }
    item->handler = once_spec_handler(spec, item->message.type);
    item->no_handler = !item->handler;
    if (item->handler) return ONCE_OK;
    return once_fail(why, ONCE_E_MESSAGE, NO_HANDLER " '%.*s'",
                     (int)(item->message.type.len < 80 ? item->message.type.len : 80), item->message.type.data);
}

static int check_event(once_intake *intake, const once_item *item, once_error *why)
{
    const once_parsed parsed = parsed_of(intake, item);
    return once_event_check(&parsed, why);
}

int once_intake_fetched(once_intake *intake, once_item *item, once_error *err)
{
    assert(item->batch);
    once_error *why = &intake->why;
    int rc = once__intake_parse(intake, item, why);
    if (rc == ONCE_OK) rc = decide_tombstone(intake, item, why);
    if (rc == ONCE_OK) rc = check_event(intake, item, why);
    if (rc == ONCE_OK) rc = choose_handler(intake, item, why);
    if (rc == ONCE_OK) rc = read_key(intake, item, why);
    if (rc == ONCE_OK && intake->spec->time) rc = read_time(intake, item, why);
    if (rc == ONCE_OK) rc = read_lane(intake, item, why);
    if (rc == ONCE_OK) rc = read_locks(intake, item, why);
    if (rc == ONCE_OK) rc = set_fingerprint(intake, &item->message, item->handler, &item->request, why);
    if (rc != ONCE_OK) {
        item->request.id = (once_hash){0, 0};
        const int blamed = blame(item, rc, why, err);
        return blamed == ONCE_E_MESSAGE ? ONCE_OK : blamed;
    }
    set_terms(intake, item);
    return make_input(intake, item, err);
}

bool once_reason_is_no_handler(once_bytes reason)
{
    return reason.len >= sizeof NO_HANDLER - 1 && memcmp(reason.data, NO_HANDLER, sizeof NO_HANDLER - 1) == 0;
}

int once_intake_lane(once_intake *intake, once_batch *batch, const once_message *message, const once_scope *scope,
                     once_bytes *value, once_hash *id, once_error *err)
{
    once_item item = {.batch = batch, .message = *message};
    once_error *why = &intake->why;
    *id = (once_hash){0};
    int rc = once__intake_parse(intake, &item, why);
    if (rc == ONCE_OK) rc = render(intake, &item, intake->spec->order, value, why);
    if (rc == ONCE_OK) *id = once_lane_id(intake->secret, scope, *value);
    if (rc == ONCE_OK || rc == ONCE_E_MESSAGE) return ONCE_OK;
    if (err) *err = *why;
    return rc;
}

int once_intake_batch(once_intake *intake, once_batch *batch, once_error *err)
{
    for (size_t i = 0; i < batch->n; i++) {
        const int rc = once_intake_fetched(intake, &batch->items[i], err);
        if (rc != ONCE_OK) return rc;
    }
    batch->taken_in = true;
    return ONCE_OK;
}

/* Handlers may share an operation; then the type chooses among them again. If its type now belongs to another
 * operation, the message stays with the operation of its key. */
static const once_handler_spec *handler_of_taken(const once_spec *spec, const once_item *item)
{
    const once_bytes operation = item->scope.operation;
    const once_handler_spec *handler = once_spec_handler(spec, item->message.type);
    if (handler && once_bytes_equal(handler->operation, operation)) return handler;
    return once_spec_handler_by_operation(spec, operation);
}

int once_intake_taken(once_intake *intake, once_item *item, once_error *err)
{
    assert(item->batch && !once_hash_is_zero(item->request.id));
    once_error *why = &intake->why;
    const int64_t sent_ms = item->message.sent_ms;
    const uint64_t run = item->request.run; /* the run that received it, not this one */
    const once_coordinates at = item->request.at;
    item->handler = handler_of_taken(intake->spec, item);
    int rc = once__intake_parse(intake, item, why);
    if (rc == ONCE_OK && !item->handler)
        rc = once_fail(why, ONCE_E_MESSAGE, "operation '%.*s' no longer has a handler",
                       (int)(item->scope.operation.len < 80 ? item->scope.operation.len : 80),
                       item->scope.operation.data);
    if (rc == ONCE_OK) rc = read_locks(intake, item, why);
    if (item->handler) set_terms(intake, item);
    item->request.scope = &item->scope;
    item->request.sent_ms = sent_ms;
    item->request.run = run;
    item->request.at = at;
    if (rc != ONCE_OK) {
        const int blamed = blame(item, rc, why, err);
        return blamed == ONCE_E_MESSAGE ? ONCE_OK : blamed;
    }
    return make_input(intake, item, err);
}
