/* The SQS source against a real server (ONCE_TEST_SQS=http://HOST:PORT), with standard queues and with FIFO queues.
 * Each test has a queue of its own. Messages of a FIFO queue have a group each: those of one group come in order, but
 * not before the earlier ones were acked, and the suite does not ack everything. What a group promises is tested
 * below. */
#include "source_conform.h"

#include <stdio.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "testenv.h"

#ifdef ONCE_WITH_SQS
#include <curl/curl.h>

#include "source/sqs_spec.h"

enum { VISIBILITY_MS = 2000 };

typedef struct sqs_world {
    char name[64], url[200];
    bool fifo;
    unsigned sent;
    once_spec spec;
    once_sqs_spec sqs;
} sqs_world;

static const char *server;

/* --- another client of the server --- */

static size_t take(char *data, size_t size, size_t n, void *out)
{
    return once_buf_append(out, data, size * n) ? size * n : 0;
}

/* The answer must be good; the caller releases it. */
static once_buf call(const char *action, const once_buf *body)
{
    static CURL *easy;
    once_buf answer;
    char target[80];
    long status = 0;
    once_buf_init(&answer, (size_t)64 << 20);
    if (!easy) easy = curl_easy_init();
    (void)snprintf(target, sizeof target, "X-Amz-Target: AmazonSQS.%s", action);
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/x-amz-json-1.0");
    headers = curl_slist_append(curl_slist_append(headers, target), "Expect:");
    curl_easy_setopt(easy, CURLOPT_URL, server);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body->data);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE, (long)body->len);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, &answer);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, 20000L);
    assert_int_equal(curl_easy_perform(easy), CURLE_OK);
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200) fail_msg("%s: %ld %s", action, status, answer.data ? answer.data : "");
    curl_slist_free_all(headers);
    return answer;
}

static once_buf request(const char *url)
{
    once_buf body;
    once_buf_init(&body, (size_t)64 << 20);
    once_buf_puts(&body, "{\"QueueUrl\":");
    once_buf_json(&body, once_bytes_of(url));
    return body;
}

static void done(once_buf *body, once_buf answer)
{
    once_buf_release(body);
    once_buf_release(&answer);
}

/* --- the world --- */

static void *make(const source_driver *driver)
{
    static unsigned count;
    sqs_world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->fifo = driver->own;
    (void)snprintf(w->name, sizeof w->name, "conform-%d-%ld-%u%s", (int)getpid(), (long)time(NULL), ++count,
                   w->fifo ? ".fifo" : "");
    (void)snprintf(w->url, sizeof w->url, "%s/000000000000/%s", server, w->name);
    once_buf body;
    once_buf_init(&body, 1000);
    once_buf_printf(&body, "{\"QueueName\":\"%s\",\"Attributes\":{\"VisibilityTimeout\":\"%d\"%s}}", w->name,
                    VISIBILITY_MS / 1000, w->fifo ? ",\"FifoQueue\":\"true\"" : "");
    done(&body, call("CreateQueue", &body));
    w->sqs = (once_sqs_spec){.queue = {w->url, strlen(w->url)},
                             .name = {w->name, strlen(w->name)},
                             .fifo = w->fifo,
                             .region = ONCE_BYTES("elasticmq"),
                             .endpoint = {server, strlen(server)},
                             .wait_ms = 1000,
                             .receivers = 3};
    w->spec = (once_spec){.file = ONCE_BYTES("conform.yaml"),
                          .message_max = SRC_MESSAGE_MAX,
                          .batch_max = 100,
                          .source = {.kind = &once__source_sqs, .own = &w->sqs}};
    once__source_sqs.conclude(&w->spec.source);
    w->spec.source.bits |= ONCE_SOURCE_STABLE;
    return w;
}

static void unmake(void *world)
{
    sqs_world *w = world;
    once_buf body = request(w->url);
    once_buf_puts(&body, "}");
    done(&body, call("DeleteQueue", &body));
    free(w);
}

static void send_to(sqs_world *w, const char *group, once_bytes text, once_bytes headers)
{
    once_buf body = request(w->url);
    once_buf_puts(&body, ",\"MessageBody\":");
    once_buf_json(&body, text);
    if (w->fifo)
        once_buf_printf(&body, ",\"MessageGroupId\":\"%s\",\"MessageDeduplicationId\":\"d%u\"", group, w->sent);
    char copy[200], *at = copy;
    assert_true(headers.len < sizeof copy);
    memcpy(copy, headers.data ? headers.data : "", headers.len);
    copy[headers.len] = '\0';
    once_buf_puts(&body, ",\"MessageAttributes\":{");
    for (char *name; (name = strchr(at, '"'));) { /* {"NAME":"VALUE","NAME":"VALUE"}, without escapes */
        char *value = strstr(name, "\":\"") + 3, *end = strchr(value, '"');
        *strchr(++name, '"') = *end = '\0';
        once_buf_printf(&body, "%s\"%s\":{\"DataType\":\"String\",\"StringValue\":\"%s\"}", at == copy ? "" : ",", name,
                        value);
        at = end + 1;
    }
    once_buf_puts(&body, "}}");
    assert_false(body.failed);
    w->sent++;
    done(&body, call("SendMessage", &body));
    once_env_sleep_ms(once_env_real(), 2); /* each has a time of its own, in milliseconds */
}

static void put(void *world, unsigned stream, once_bytes body, once_bytes headers)
{
    sqs_world *w = world;
    char group[20];
    (void)stream;
    (void)snprintf(group, sizeof group, "g%u", w->sent);
    send_to(w, group, body, headers);
}

static int open_consumer(void *world, once_source_purpose purpose, once_source **out, once_error *err)
{
    sqs_world *w = world;
    return once_source_open(&w->spec, once_env_real(), purpose, (once_cancel){0}, out, err);
}

static int open_missing(void *world, once_source **out, once_error *err)
{
    sqs_world *w = world;
    (void)snprintf(strrchr(w->url, '/'), 20, "/no-such-queue");
    w->sqs.queue = once_bytes_of(w->url);
    const int rc = open_consumer(world, ONCE_OPEN_RUN, out, err);
    (void)snprintf(w->url, sizeof w->url, "%s/000000000000/%s", server, w->name);
    return rc;
}

/* If no message is hidden, nothing changes by waiting. */
static void pass(void *world, int64_t ms)
{
    const sqs_world *w = world;
    const int64_t until_ms = src_real_ms() + ms;
    bool hidden = true;
    while (hidden && src_real_ms() < until_ms) {
        once_buf body = request(w->url);
        once_buf_puts(&body, ",\"AttributeNames\":[\"ApproximateNumberOfMessagesNotVisible\"]}");
        once_buf answer = call("GetQueueAttributes", &body);
        hidden = !strstr(answer.data, "\"ApproximateNumberOfMessagesNotVisible\":\"0\"");
        done(&body, answer);
        const int64_t left_ms = until_ms - src_real_ms();
        if (hidden && left_ms > 0) once_env_sleep_ms(once_env_real(), left_ms < 100 ? left_ms : 100);
    }
}

/* --- what only SQS has --- */

static int64_t ahead_ms; /* of the clock of `later` */

static int64_t later_ms(void *self)
{
    (void)self;
    return once_env_boot_ms(once_env_real()) + ahead_ms;
}

typedef struct consumer {
    sqs_world *w;
    once_env env;
    once_source *source;
    once_batch batch; /* of the last fetch */
    once_error err;
} consumer;

static consumer *begin(bool fifo)
{
    static const int yes = 1;
    const source_driver driver = {.own = fifo ? &yes : NULL};
    consumer *c = calloc(1, sizeof *c);
    assert_non_null(c);
    c->w = make(&driver);
    c->env = *once_env_real();
    c->env.boot_ms = later_ms;
    assert_int_equal(once_source_open(&c->w->spec, &c->env, ONCE_OPEN_RUN, (once_cancel){0}, &c->source, &c->err),
                     ONCE_OK);
    return c;
}

static void end(consumer *c)
{
    c->source->ops->close(c->source);
    once_arena_release(&c->batch.arena);
    unmake(c->w);
    free(c);
    ahead_ms = 0;
}

/* Until something comes, or for a second. */
static size_t fetch(consumer *c, size_t max)
{
    const int64_t until_ms = src_real_ms() + 1000;
    once_fetch fetch = {.max = max, .batch = &c->batch};
    do {
        once_arena_reset(&c->batch.arena);
        if (c->source->ops->fetch(c->source, &fetch, &c->err) != ONCE_OK) fail_msg("%s", c->err.text);
    } while (c->batch.n == 0 && src_real_ms() < until_ms);
    return c->batch.n;
}

static once_receipt_answer ask(consumer *c, bool ack, uint64_t delivery)
{
    once_receipt r = {.delivery = delivery};
    const int rc = (ack ? c->source->ops->ack : c->source->ops->extend)(c->source, &r, 1, &c->err);
    if (rc != ONCE_OK) fail_msg("%s", c->err.text);
    return r.answer;
}

static void near_the_end_of_twelve_hours_an_extension_is_the_last(void **state)
{
    (void)state;
    const int64_t hour_ms = 3600000, second_ms = 1000;
    consumer *c = begin(false);
    put(c->w, 0, ONCE_BYTES("{}"), (once_bytes){0});
    assert_int_equal(fetch(c, 1), 1);
    const uint64_t delivery = c->batch.items[0].delivery;
    assert_int_equal(ask(c, false, delivery), ONCE_RECEIPT_DONE);
    ahead_ms = 12 * hour_ms - 75 * second_ms;
    assert_int_equal(ask(c, false, delivery), ONCE_RECEIPT_DONE);
    ahead_ms = 12 * hour_ms - 62 * second_ms;
    assert_int_equal(ask(c, false, delivery), ONCE_RECEIPT_LAST);
    assert_int_equal(ask(c, true, delivery), ONCE_RECEIPT_DONE);
    end(c);
}

static void a_group_comes_in_order_and_not_before_its_acks(void **state)
{
    (void)state;
    enum { N = 25 };
    consumer *c = begin(true);
    char body[20];
    for (int i = 0; i < N; i++) {
        (void)snprintf(body, sizeof body, "%d", i);
        send_to(c->w, "g", once_bytes_of(body), (once_bytes){0});
    }
    uint64_t held[N];
    size_t next = 0, n;
    while (next < N && (n = fetch(c, 10)) > 0) {
        for (size_t i = 0; i < n; i++, next++) {
            (void)snprintf(body, sizeof body, "%zu", next);
            assert_true(once_bytes_equal(c->batch.items[i].message.body, once_bytes_of(body)));
            held[next] = c->batch.items[i].delivery;
        }
        if (next == n) assert_int_equal(fetch(c, 10), 0);
        for (size_t i = next - n; i < next; i++) assert_int_equal(ask(c, true, held[i]), ONCE_RECEIPT_DONE);
    }
    assert_int_equal(next, N);
    end(c);
}

static void beat(consumer *c)
{
    once_fetch beat = {.batch = &c->batch};
    once_env_sleep_ms(once_env_real(), 50);
    assert_int_equal(c->source->ops->fetch(c->source, &beat, &c->err), ONCE_OK);
}

/* The machine has no room for them; it calls only for heartbeats. Each answer has a time of its own: one that was
 * extended is fresher than those that came after it. */
static void what_was_received_and_not_handed_out_is_extended(void **state)
{
    (void)state;
    consumer *c = begin(false);
    c->w->spec.source.named = true;
    for (int i = 0; i < 10; i++) put(c->w, 0, ONCE_BYTES("{}"), (once_bytes){0});
    for (size_t n = 0; n < 10;) { /* a full answer, so two polls are out behind it */
        const size_t more = fetch(c, 20);
        assert_true(more > 0);
        n += more;
        for (size_t i = 0; i < more; i++) (void)ask(c, true, c->batch.items[i].delivery);
    }
    for (int i = 0; i < 2; i++) {
        put(c->w, 0, ONCE_BYTES("{}"), (once_bytes){0});
        for (int64_t until_ms = src_real_ms() + VISIBILITY_MS / 5; src_real_ms() < until_ms;) beat(c);
    }
    for (int64_t until_ms = src_real_ms() + 2 * VISIBILITY_MS; src_real_ms() < until_ms;) beat(c);
    for (size_t n = 0; n < 2;) {
        const size_t more = fetch(c, 2);
        assert_true(more > 0);
        for (size_t i = 0; i < more; i++) {
            const once_bytes headers = c->batch.items[i].message.headers;
            assert_non_null(memmem(headers.data, headers.len, "\"receive_count\":\"1\"", 19));
            assert_int_equal(ask(c, true, c->batch.items[i].delivery), ONCE_RECEIPT_DONE);
        }
        n += more;
    }
    end(c);
}

/* Receives what the queue has now, and hands nothing out: the fetch does not wait for the answer. */
static void receive_only(consumer *c)
{
    once_fetch poll = {.max = 2, .batch = &c->batch};
    c->source->ops->wake(c->source);
    assert_int_equal(c->source->ops->fetch(c->source, &poll, &c->err), ONCE_OK);
    assert_int_equal(c->batch.n, 0);
    for (int i = 0; i < 5; i++) beat(c);
}

/* For more than half of its time nobody has called: it may be somebody else's soon, and is received again. */
static void what_was_not_extended_in_time_is_not_handed_out(void **state)
{
    (void)state;
    consumer *c = begin(false);
    c->w->spec.source.named = true;
    put(c->w, 0, ONCE_BYTES("{}"), (once_bytes){0});
    receive_only(c);
    ahead_ms = VISIBILITY_MS * 6 / 10;
    size_t n = 0;
    for (int64_t until_ms = src_real_ms() + 4 * VISIBILITY_MS; n == 0 && src_real_ms() < until_ms;) n = fetch(c, 10);
    assert_int_equal(n, 1);
    const once_bytes headers = c->batch.items[0].message.headers;
    assert_non_null(memmem(headers.data, headers.len, "\"receive_count\":\"2\"", 19));
    end(c);
}

/* The other client of the server receives one message; its body must be this. */
static void take_elsewhere(const sqs_world *w, const char *text)
{
    once_buf body = request(w->url);
    once_buf_puts(&body, ",\"MaxNumberOfMessages\":1}");
    once_buf answer = call("ReceiveMessage", &body);
    char wanted[40];
    (void)snprintf(wanted, sizeof wanted, "\"Body\":\"%s\"", text);
    assert_non_null(strstr(answer.data, wanted));
    done(&body, answer);
}

/* Two messages of a group wait here, and somebody else gets the first one: the second must not overtake it. Our clock
 * stands still meanwhile, as if the process did. */
static void what_is_behind_a_lost_message_of_its_group_waits_for_it(void **state)
{
    (void)state;
    consumer *c = begin(true);
    send_to(c->w, "g", ONCE_BYTES("1"), (once_bytes){0});
    send_to(c->w, "g", ONCE_BYTES("2"), (once_bytes){0});
    receive_only(c);
    const int64_t stopped_ms = once_env_boot_ms(once_env_real());
    once_env_sleep_ms(once_env_real(), VISIBILITY_MS + 100);
    take_elsewhere(c->w, "1");
    ahead_ms = stopped_ms + VISIBILITY_MS / 3 - once_env_boot_ms(once_env_real());
    beat(c);
    size_t n = 0;
    for (int64_t until_ms = src_real_ms() + 4 * VISIBILITY_MS; n == 0 && src_real_ms() < until_ms;) n = fetch(c, 10);
    assert_true(n > 0 && once_bytes_equal(c->batch.items[0].message.body, ONCE_BYTES("1")));
    assert_int_equal(ask(c, false, c->batch.items[0].delivery), ONCE_RECEIPT_DONE); /* it came again, and is ours */
    end(c);
}

static void open_again(consumer *c, int64_t visibility_ms)
{
    c->source->ops->close(c->source);
    c->w->sqs.visibility_ms = visibility_ms;
    assert_int_equal(once_source_open(&c->w->spec, &c->env, ONCE_OPEN_RUN, (once_cancel){0}, &c->source, &c->err),
                     ONCE_OK);
}

/* Received, and not handed out for hours, because the machine wants nothing: it is extended again and again. SQS takes
 * back after twelve hours what is not deleted. With an hour of visibility it is ours for ten of them; then it is left
 * to come again. An extension for a shorter time would end while the machine has it, and has not asked yet. */
static void what_waits_here_for_twelve_hours_is_not_handed_out(void **state)
{
    (void)state;
    const int64_t hour_ms = 3600000, until_ms[] = {9 * hour_ms, 11 * hour_ms, 13 * hour_ms};
    for (size_t i = 0; i < sizeof until_ms / sizeof *until_ms; i++) {
        consumer *c = begin(false);
        open_again(c, hour_ms);
        put(c->w, 0, ONCE_BYTES("{}"), (once_bytes){0});
        receive_only(c);
        while (ahead_ms < until_ms[i]) {
            ahead_ms += hour_ms * 2 / 5; /* it is extended after a third, and given up after half of its time */
            beat(c);
        }
        assert_int_equal(fetch(c, 1), i == 0);
        if (i == 0) assert_int_equal(ask(c, true, c->batch.items[0].delivery), ONCE_RECEIPT_DONE);
        end(c);
    }
}

static void a_close_gives_back_what_was_not_acked(void **state)
{
    (void)state;
    consumer *c = begin(false);
    open_again(c, 600000);
    for (int i = 0; i < 4; i++) put(c->w, 0, ONCE_BYTES("{}"), (once_bytes){0});
    size_t n = 0;
    while (n < 2) n += fetch(c, 1); /* others are received and not handed out, or not even received */
    c->source->ops->close(c->source);
    assert_int_equal(once_source_open(&c->w->spec, &c->env, ONCE_OPEN_RUN, (once_cancel){0}, &c->source, &c->err),
                     ONCE_OK);
    for (n = 0; n < 4;) {
        const size_t more = fetch(c, 4);
        assert_true(more > 0);
        n += more;
    }
    end(c);
}

/* Not SRC_BINARY and SRC_EMPTY: SQS takes only text (the characters of XML 1.0), and refuses a body of 0 bytes. */
#define KEPT                                                                                                           \
    (SRC_HEADERS | SRC_TEXT | SRC_REMEMBERS | SRC_UNORDERED | ONCE_SOURCE_REDELIVERS | ONCE_SOURCE_STABLE |            \
     ONCE_SOURCE_SINGLE_ACKS | ONCE_SOURCE_EXPIRES | ONCE_SOURCE_TIMED)

static int run(const char *name, bool fifo)
{
    static const int yes = 1;
    const source_driver driver = {.name = name,
                                  .bits = KEPT,
                                  .own = fifo ? &yes : NULL,
                                  .make = make,
                                  .unmake = unmake,
                                  .put = put,
                                  .open = open_consumer,
                                  .open_missing = open_missing,
                                  .pass = pass};
    return source_conform_run(&driver);
}

static int run_fifo_and_own(void)
{
    const struct CMUnitTest own[] = {
        cmocka_unit_test(near_the_end_of_twelve_hours_an_extension_is_the_last),
        cmocka_unit_test(a_group_comes_in_order_and_not_before_its_acks),
        cmocka_unit_test(what_was_received_and_not_handed_out_is_extended),
        cmocka_unit_test(what_was_not_extended_in_time_is_not_handed_out),
        cmocka_unit_test(what_is_behind_a_lost_message_of_its_group_waits_for_it),
        cmocka_unit_test(what_waits_here_for_twelve_hours_is_not_handed_out),
        cmocka_unit_test(a_close_gives_back_what_was_not_acked),
    };
    return run("sqs, a FIFO queue", true) + cmocka_run_group_tests_name("sqs, by itself", own, NULL, NULL);
}

/* They mostly wait, so both kinds of queues are tried at the same time; what the second one says is shown later. */
int main(void)
{
    server = getenv("ONCE_TEST_SQS");
    if (!server) {
        fprintf(stderr, "missing: ONCE_TEST_SQS=http://HOST:PORT of a server\n");
        return 1;
    }
    (void)setenv("AWS_ACCESS_KEY_ID", "anyone", 1);
    (void)setenv("AWS_SECRET_ACCESS_KEY", "anything", 1);
    FILE *said = tmpfile();
    assert_non_null(said);
    const pid_t other = fork();
    assert_true(other >= 0);
    if (other == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)dup2(fileno(said), STDOUT_FILENO);
        (void)dup2(fileno(said), STDERR_FILENO);
        exit(run_fifo_and_own() ? 1 : 0);
    }
    const int failed = run("sqs, a standard queue", false);
    int status = 0;
    assert_int_equal(waitpid(other, &status, 0), other);
    rewind(said);
    for (int c; (c = fgetc(said)) != EOF;) (void)putchar(c);
    (void)fclose(said);
    return failed || status ? 1 : 0;
}
#else
int main(void)
{
    fprintf(stderr, "missing: libcurl\n");
    return 1;
}
#endif
