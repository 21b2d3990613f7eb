/* Receives messages by long polls, and hands them out.
 *
 * A poll goes on between two fetches; what it brings waits in a page. Polls are begun only for messages that the
 * machine has asked for. One poll is out while the queue is empty, and twice as many each time that an answer is full,
 * up to `receivers`. Messages that wait here, because the machine is busy, are extended after a third of their time;
 * those that could not be extended are dropped, and come again.
 *
 * A receive that fails is tried again after a pause that grows, by a single poll that does not wait for messages. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/no_memory.h"
#include "core/retry.h"
#include "source/sqs/sqs.h"

#include "base/banned.h"

#define NS INT64_C(1000000)                   /* of a millisecond */
#define IDLE_MS 100                           /* how long a fetch waits */
#define EMPTY_MS 500                          /* the pause after an empty answer, if receives do not wait themselves */
#define SOON_MS 300                           /* a receive of a queue that has messages is answered by then */
#define GRACE_MS 5000                         /* how much longer than its wait a receive may take */
#define ATTEMPT_NS (INT64_C(240) * 1000 * NS) /* SQS keeps an attempt for five minutes */

/* --- pages -------------------------------------------------------------------------------------------------------- */

static sqs_page *new_page(sqs_source *q)
{
    sqs_page *page = q->spare;
    if (page) q->spare = page->next;
    else page = calloc(1, sizeof *page);
    if (!page) return NULL;
    page->next = NULL;
    page->n = page->given = 0;
    return page;
}

static void drop_page(sqs_source *q, sqs_page *page)
{
    page->next = q->spare;
    q->spare = page;
}

static size_t left_of(const sqs_page *page) { return page->n - page->given; }

static sqs_page *pop_page(sqs_source *q)
{
    sqs_page *page = q->first;
    q->first = page->next;
    if (!q->first) q->last = &q->first;
    return page;
}

#define HANDLE_MAX                                                                                                     \
    ((size_t)16 << 10) /* ten of them, escaped, fit into a request; those of SQS have some hundred bytes */

/* Puts one message into the table of deliveries. False: it lacks something, or memory is out; it comes again. */
static bool note_delivery(sqs_source *q, sqs_page *page, once_json_value message, once_arena *arena)
{
    const once_json *json = &page->json;
    const once_json_value attributes = once_json_member(json, message, ONCE_BYTES("Attributes"));
    once_bytes id, handle, body, group = {0};
    if (!once__sqs_text(json, message, "MessageId", arena, &id) || id.len == 0 ||
        !once__sqs_text(json, message, "ReceiptHandle", arena, &handle) || handle.len == 0 || handle.len > HANDLE_MAX ||
        !once__sqs_text(json, message, "Body", arena, &body))
        return false;
    if (q->sqs->fifo) (void)once__sqs_text(json, attributes, "MessageGroupId", arena, &group);
    const uint64_t number = once__sqs_received(&q->deliveries, id, handle, group, page->fresh_ns);
    if (!number) return false;
    page->messages[page->n] = message;
    page->numbers[page->n++] = number;
    return true;
}

/* The messages of an answer that can be used become a page; *taken: how many they are. False: there is something else
 * in the answer. */
static bool take_page(sqs_source *q, once_buf *text, size_t *taken)
{
    once_json_value messages[ONCE_SQS_TEN];
    once_arena arena = {0};
    size_t n = 0;
    sqs_page *page = new_page(q);
    *taken = 0;
    if (!page) return false;
    const once_buf swapped = page->text;
    page->text = *text;
    *text = swapped;
    page->fresh_ns = once__sqs_now_ns(q);
    page->last = false;
    const bool good = once_json_parse(&page->json, once_buf_bytes(&page->text), NULL, NULL) == ONCE_OK &&
                      once__sqs_read_messages(&page->json, messages, &n);
    for (size_t i = 0; i < n && good; i++) (void)note_delivery(q, page, messages[i], &arena);
    once_arena_release(&arena);
    *taken = page->n;
    if (page->n) {
        *q->last = page;
        q->last = &page->next;
        q->held += page->n;
    } else {
        drop_page(q, page);
    }
    return good && *taken == n;
}

/* --- polls -------------------------------------------------------------------------------------------------------- */

static void write_receive(sqs_source *q, sqs_poll *poll, size_t max, int64_t wait_ms)
{
    once_buf *out = &poll->call.body;
    once__sqs_new(&poll->call, "ReceiveMessage");
    once_buf_puts(out, "{\"QueueUrl\":");
    once_buf_json(out, once_bytes_of(q->url));
    once_buf_printf(out,
                    ",\"MaxNumberOfMessages\":%zu,\"WaitTimeSeconds\":%" PRId64 ",\"VisibilityTimeout\":%" PRId64
                    ",\"MessageAttributeNames\":[\"All\"],\"MessageSystemAttributeNames\":[%s]",
                    max, wait_ms / 1000, atomic_load(&q->visibility_ms) / 1000,
                    q->base.spec->source.named ? "\"All\""
                    : q->sqs->fifo             ? "\"SentTimestamp\",\"MessageGroupId\""
                                               : "\"SentTimestamp\"");
    if (q->sqs->fifo) once_buf_printf(out, ",\"ReceiveRequestAttemptId\":\"%s\"", poll->attempt);
    once_buf_puts(out, "}");
}

/* An attempt that got no answer is repeated under its name: a FIFO queue gives the same messages again then. */
static void name_attempt(sqs_source *q, sqs_poll *poll)
{
    const int64_t now_ns = once__sqs_now_ns(q);
    if (poll->attempt[0] && now_ns - poll->began_ns < ATTEMPT_NS) return;
    const uint64_t a = once_env_random_u64(q->base.env), b = once_env_random_u64(q->base.env);
    (void)snprintf(poll->attempt, sizeof poll->attempt, "%016" PRIx64 "%016" PRIx64, a, b);
    poll->began_ns = now_ns;
}

/* A server that asks for fewer requests gets them; one that is away is looked for more often. */
static void receive_failed(sqs_source *q, sqs_fault fault, const once_error *why)
{
    const once_retry pace = {.min_ms = 100, .max_ms = fault == SQS_THROTTLED ? 20000 : 2000};
    const int64_t now_ns = once__sqs_now_ns(q);
    q->failure = *why;
    q->parallel = 1;
    if (q->fails && now_ns < q->again_ns) return; /* another poll of the same time */
    q->fails++;
    q->again_ns = now_ns + (once_retry_delay_ms(&pace, q->fails, q->base.env) + 50) * NS;
}

static void receive_worked(sqs_source *q, size_t n)
{
    q->fails = 0;
    q->failure.status = ONCE_OK;
    if (n == ONCE_SQS_TEN) q->parallel = 2 * q->parallel < q->n_receivers ? 2 * q->parallel : q->n_receivers;
    if (n == 0) q->parallel = 1;
    q->again_ns = n == 0 && q->sqs->wait_ms < 1000 ? once__sqs_now_ns(q) + EMPTY_MS * NS : 0;
}

static void poll_ended(sqs_source *q, sqs_poll *poll)
{
    once_error why = poll->call.error;
    if (poll->call.fault != SQS_NO_ANSWER) poll->attempt[0] = '\0';
    if (poll->call.fault == SQS_FINE) {
        size_t n;
        if (take_page(q, &poll->call.answer, &n)) {
            receive_worked(q, n);
            return;
        }
        (void)once_fail(&why, ONCE_E_UNAVAILABLE,
                        "ReceiveMessage: the answer of '%s' cannot be used: it is cut or no JSON, or a message in it "
                        "has no MessageId, ReceiptHandle or Body",
                        q->server);
        if (n) once_log(ONCE_LOG_WARN, "sqs_unusable", "%s", why.text); /* a fetch that has messages has not failed */
    }
    receive_failed(q, poll->call.fault, &why);
}

static size_t polls_out(const sqs_source *q)
{
    size_t n = 0;
    for (uint32_t i = 0; i < q->n_receivers; i++) n += q->receivers[i].call.out;
    return n;
}

static void begin_polls(sqs_source *q, size_t max)
{
    const bool probe = q->failure.status != ONCE_OK;
    const int64_t wait_ms = probe ? 0 : q->sqs->wait_ms;
    size_t out = polls_out(q);
    for (uint32_t i = 0; i < q->n_receivers && out < q->parallel; i++) {
        const size_t coming = q->held + out * ONCE_SQS_TEN;
        sqs_poll *poll = &q->receivers[i];
        if (poll->call.out) continue;
        if (coming >= max || once__sqs_now_ns(q) < q->again_ns) return;
        if (q->sqs->fifo) name_attempt(q, poll);
        write_receive(q, poll, max - coming < ONCE_SQS_TEN ? max - coming : ONCE_SQS_TEN, wait_ms);
        poll->sent_ns = once__sqs_now_ns(q);
        poll->ends_ns = poll->sent_ns + wait_ms * NS;
        if (once__sqs_send(&q->polls, &poll->call, wait_ms + GRACE_MS)) out++;
        else receive_failed(q, poll->call.fault, &poll->call.error);
    }
}

/* Lets requests go on, and takes what has arrived. */
static void serve(sqs_source *q, int64_t ms)
{
    once__sqs_turn(&q->polls, ms);
    for (sqs_call *call; (call = once__sqs_ended(&q->polls));) {
        if (call == &q->counting.call) once__sqs_counted(q);
        else poll_ended(q, (sqs_poll *)((char *)call - offsetof(sqs_poll, call)));
    }
}

/* A receive that was just sent is answered soon if the queue has messages. */
static bool is_answered_soon(const sqs_source *q)
{
    const int64_t now_ns = once__sqs_now_ns(q);
    for (uint32_t i = 0; i < q->n_receivers; i++)
        if (q->receivers[i].call.out && now_ns - q->receivers[i].sent_ns < SOON_MS * NS) return true;
    return false;
}

void once__sqs_end_polls(sqs_source *q)
{
    if (q->polls.multi) serve(q, 0);
    while (is_answered_soon(q)) serve(q, 20);
    for (uint32_t i = 0; i < q->n_receivers; i++) {
        sqs_poll *poll = &q->receivers[i];
        if (poll->call.out && poll->ends_ns > q->unheard_ns) q->unheard_ns = poll->ends_ns;
        once__sqs_call_release(&q->polls, &poll->call);
    }
    once__sqs_call_release(&q->polls, &q->counting.call);
    while (q->first) drop_page(q, pop_page(q));
    for (sqs_page *page; (page = q->spare);) {
        q->spare = page->next;
        once_buf_release(&page->text);
        once_json_release(&page->json);
        free(page);
    }
}

/* --- messages that wait here -------------------------------------------------------------------------------------- */

/* Whether they are still ours for long enough: the machine extends them a third of their time after it got them. */
static bool is_fresh(const sqs_source *q, const sqs_page *page)
{
    return once__sqs_now_ns(q) - page->fresh_ns < atomic_load(&q->visibility_ms) * NS / 2;
}

static void extend_page(sqs_source *q, sqs_page *page, int64_t ms)
{
    once_receipt list[ONCE_SQS_TEN];
    once_error err;
    const size_t n = left_of(page);
    for (size_t i = 0; i < n; i++) list[i] = (once_receipt){.delivery = page->numbers[page->given + i]};
    const int64_t now_ns = once__sqs_now_ns(q);
    if (once__sqs_do(q->aside, SQS_EXTEND, list, n, ms, &err) == ONCE_OK) page->fresh_ns = now_ns;
    else once_log(ONCE_LOG_DEBUG, "sqs_not_extended", "%s", err.text);
    for (size_t i = 0; i < n; i++) page->last |= list[i].answer == ONCE_RECEIPT_LAST;
}

/* What is no longer ours comes again. */
static void drop_stale(sqs_source *q)
{
    sqs_page **at = &q->first;
    while (*at) {
        sqs_page *page = *at;
        if (is_fresh(q, page)) {
            at = &page->next;
            continue;
        }
        *at = page->next;
        for (; left_of(page); page->given++, q->held--) once__sqs_forget(&q->deliveries, page->numbers[page->given]);
        drop_page(q, page);
    }
    q->last = at;
}

/* Extends what has waited for a third of its time. Pages are in the order in which they came, and not in that of their
 * time: one that was extended is fresher than those behind it. */
static void keep_pages(sqs_source *q)
{
    const int64_t visibility_ms = atomic_load(&q->visibility_ms), now_ns = once__sqs_now_ns(q);
    for (sqs_page *page = q->first; page; page = page->next)
        if (now_ns - page->fresh_ns > visibility_ms * NS / 3 && is_fresh(q, page) && !page->last)
            extend_page(q, page, visibility_ms / 6 < 1000 ? 1000 : ONCE_SQS_CALL_MS);
    drop_stale(q);
}

/* --- fetch -------------------------------------------------------------------------------------------------------- */

/* Hands out what is there, once in a fetch. False: out of memory; what was not handed out stays. */
static bool hand_out(sqs_source *q, once_fetch *fetch)
{
    once_batch *batch = fetch->batch;
    once_bytes place;
    assert(batch->n == 0);
    if (!q->first) return true;
    /* No larger than needed: there may be many batches of a few messages. */
    batch->items = once_arena_new(&batch->arena, once_item, q->held < fetch->max ? q->held : fetch->max);
    if (!batch->items || !once_arena_copy(&batch->arena, once_bytes_of(q->place), &place)) return false;
    while (q->first && batch->n < fetch->max) {
        sqs_page *page = q->first;
        const uint64_t number = page->numbers[page->given];
        once_item *item = &batch->items[batch->n];
        if (once__sqs_is_ours(&q->deliveries, number)) {
            if (!once__sqs_make_item(q, &page->json, page->messages[page->given], batch, item)) return false;
            item->delivery = number;
            item->message.at.place = place;
            batch->n++;
        } else {
            once__sqs_forget(&q->deliveries, number);
        }
        page->given++;
        q->held--;
        if (left_of(page) == 0) drop_page(q, pop_page(q));
    }
    return true;
}

static bool is_paused(const once_fetch *fetch) { return fetch->n_paused > 0 && fetch->paused[0] == 0; }

/* Waits for the first message, then for the rest of the batch. */
static void wait_for_messages(sqs_source *q, size_t max)
{
    int64_t until_ns = once__sqs_now_ns(q) + IDLE_MS * NS;
    for (bool some = false;;) {
        if (!some && q->held > 0) until_ns = once__sqs_now_ns(q) + q->base.spec->batch_wait_ms * NS;
        some = q->held > 0;
        begin_polls(q, max);
        const int64_t now_ns = once__sqs_now_ns(q);
        if (q->held >= max || now_ns >= until_ns || atomic_exchange(&q->woken, false)) return;
        if (q->failure.status != ONCE_OK && polls_out(q) == 0) return;
        const int64_t most_ms = atomic_load(&q->visibility_ms) / 6, wait_ms = (until_ns - now_ns + NS - 1) / NS;
        serve(q, q->held && most_ms < wait_ms ? most_ms : wait_ms);
        keep_pages(q); /* those that came first, while the batch fills */
    }
}

/* How long deliveries stay ours is told once. */
static bool tell(sqs_source *q, once_fetch *fetch)
{
    if (q->told) return true;
    fetch->news = once_arena_new(&fetch->batch->arena, once_stream_news, 1);
    if (!fetch->news) return false;
    fetch->news[0] = (once_stream_news){.change = ONCE_STREAM_ASSIGNED, .expires_ms = atomic_load(&q->visibility_ms)};
    fetch->n_news = 1;
    q->told = true;
    return true;
}

int once__sqs_fetch(once_source *source, once_fetch *fetch, once_error *err)
{
    sqs_source *q = once__sqs(source);
    fetch->at_end = false;
    fetch->n_news = 0;
    fetch->batch->n = 0;
    fetch->batch->items = NULL;
    const bool wants = fetch->max > 0 && !is_paused(fetch);
    if (!atomic_load(&q->visibility_ms)) {
        if (!wants || fetch->rest) return ONCE_OK;
        const int rc = once__sqs_find_queue(q, err);
        if (rc != ONCE_OK) return atomic_exchange(&q->woken, false) ? ONCE_OK : rc;
    }
    if (!tell(q, fetch)) return once_no_memory(err, "for a batch");
    once__sqs_count(q);
    serve(q, 0);
    keep_pages(q);
    if (wants && !fetch->rest) wait_for_messages(q, fetch->max);
    const bool ok = !wants || hand_out(q, fetch);
    if (wants && !fetch->rest) begin_polls(q, fetch->max); /* they go on until the next fetch */
    if (!ok && fetch->batch->n == 0 && fetch->n_news == 0) return once_no_memory(err, "for a batch");
    if (fetch->batch->n == 0 && fetch->n_news == 0 && q->failure.status != ONCE_OK) {
        if (err) *err = q->failure;
        return q->failure.status;
    }
    return ONCE_OK;
}
