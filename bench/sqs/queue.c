/* sqs/queue.h says what it does. */
#include "sqs/queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "process.h"
#include "served.h"

#include "base/banned.h"

static served server;

bool queue_start(void)
{
    return served_start(&server,
                        (const char *const[]){"python3", ONCE_SOURCE_ROOT "/tests/lib/elasticmq.py", "serve", NULL});
}

const char *queue_server(void) { return server.said; }

const char *queue_url(const char *name)
{
    static char url[400];
    snprintf(url, sizeof url, "%s/000000000000/%s", server.said, name);
    return url;
}

/* ---- requests ---- */

static size_t take(char *data, size_t size, size_t n, void *out)
{
    return once_buf_append(out, data, size * n) ? size * n : 0;
}

void queue_prepare(queue_call *call, const char *action)
{
    char target[80];
    if (!call->easy) {
        once_buf_init(&call->body, (size_t)1 << 24);
        once_buf_init(&call->answer, (size_t)1 << 24);
        call->easy = curl_easy_init();
        if (!call->easy) bench_die("no libcurl");
        curl_easy_setopt(call->easy, CURLOPT_URL, server.said);
        curl_easy_setopt(call->easy, CURLOPT_WRITEFUNCTION, take);
        curl_easy_setopt(call->easy, CURLOPT_WRITEDATA, &call->answer);
        curl_easy_setopt(call->easy, CURLOPT_PRIVATE, call);
    }
    snprintf(target, sizeof target, "X-Amz-Target: AmazonSQS.%s", action);
    curl_slist_free_all(call->headers);
    call->headers = curl_slist_append(NULL, "Content-Type: application/x-amz-json-1.0");
    call->headers = curl_slist_append(curl_slist_append(call->headers, target), "Expect:");
    curl_easy_setopt(call->easy, CURLOPT_HTTPHEADER, call->headers);
    once_buf_clear(&call->body);
    once_buf_clear(&call->answer);
}

static void set_body(const queue_call *call)
{
    curl_easy_setopt(call->easy, CURLOPT_POSTFIELDS, call->body.data);
    curl_easy_setopt(call->easy, CURLOPT_POSTFIELDSIZE, (long)call->body.len);
}

void queue_check(const queue_call *call)
{
    long status = 0;
    curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200) bench_die(call->answer.data ? call->answer.data : "the queue does not answer");
}

void queue_send(queue_call *call)
{
    set_body(call);
    if (curl_easy_perform(call->easy) != CURLE_OK) bench_die("the queue does not answer");
    queue_check(call);
}

static void begin(queue_call *call, const char *action, const char *name)
{
    queue_prepare(call, action);
    once_buf_printf(&call->body, "{\"QueueUrl\":\"%s\"", queue_url(name));
}

uint64_t queue_left(queue_call *call, const char *name)
{
    static const char *const names[] = {"ApproximateNumberOfMessages\":\"",
                                        "ApproximateNumberOfMessagesNotVisible\":\""};
    uint64_t sum = 0;
    begin(call, "GetQueueAttributes", name);
    once_buf_puts(&call->body, ",\"AttributeNames\":[\"All\"]}");
    queue_send(call);
    for (size_t i = 0; i < 2; i++) {
        const char *at = strstr(call->answer.data, names[i]);
        if (!at) bench_die("the queue does not tell how much is left");
        sum += strtoull(at + strlen(names[i]), NULL, 10);
    }
    return sum;
}

void queue_write_receive(queue_call *call, const char *name)
{
    begin(call, "ReceiveMessage", name);
    once_buf_puts(&call->body, ",\"MaxNumberOfMessages\":10,\"WaitTimeSeconds\":1,\"VisibilityTimeout\":600}");
    set_body(call);
}

size_t queue_received(once_json *json, const queue_call *call, once_json_value out[10])
{
    size_t n = 0;
    if (once_json_parse(json, once_buf_bytes(&call->answer), NULL, NULL) != ONCE_OK)
        bench_die("an answer is malformed");
    once_json_iter it = once_json_each(json, once_json_member(json, once_json_root(json), ONCE_BYTES("Messages")));
    while (n < 10 && once_json_next(&it)) out[n++] = it.value;
    return n;
}

void queue_write_delete(queue_call *call, const char *name, const once_json *json, const once_json_value *messages,
                        size_t n)
{
    begin(call, "DeleteMessageBatch", name);
    once_buf_puts(&call->body, ",\"Entries\":[");
    for (size_t i = 0; i < n; i++) {
        once_bytes handle;
        if (!once_json_string(once_json_member(json, messages[i], ONCE_BYTES("ReceiptHandle")), NULL, &handle))
            bench_die("a message has no receipt handle");
        once_buf_printf(&call->body, "%s{\"Id\":\"%zu\",\"ReceiptHandle\":", i ? "," : "", i);
        once_buf_json(&call->body, handle);
        once_buf_puts(&call->body, "}");
    }
    once_buf_puts(&call->body, "]}");
    set_body(call);
}

/* ---- filling ---- */

void queue_create(queue_call *call, const char *name)
{
    queue_prepare(call, "CreateQueue");
    once_buf_printf(&call->body, "{\"QueueName\":\"%s\",\"Attributes\":{\"VisibilityTimeout\":\"600\"}}", name);
    queue_send(call);
}

void queue_put(queue_call *call, const char *name, FILE *from, size_t len, uint64_t n)
{
    char *line = malloc(len + 1);
    if (!line) bench_die("out of memory");
    for (uint64_t i = 0; i < n;) {
        begin(call, "SendMessageBatch", name);
        once_buf_puts(&call->body, ",\"Entries\":[");
        for (unsigned k = 0; k < 10 && i < n; k++, i++) {
            if (fread(line, len + 1, 1, from) != 1) bench_die("the messages end too soon");
            once_buf_printf(&call->body, "%s{\"Id\":\"%u\",\"MessageBody\":", k ? "," : "", k);
            once_buf_json(&call->body, (once_bytes){line, len});
            once_buf_puts(&call->body, "}");
        }
        once_buf_puts(&call->body, "]}");
        queue_send(call);
    }
    free(line);
}

typedef struct filling {
    const char *name, *path;
    size_t len;
    uint64_t n;
    volatile uint64_t *done;
} filling;

static void fill(void *arg)
{
    enum { SHOWN = 1000 }; /* how often it says how far it is */
    const filling *f = arg;
    queue_call call = {0};
    FILE *from = fopen(f->path, "re");
    if (!from) bench_die_errno("cannot read the messages");
    queue_create(&call, f->name);
    for (uint64_t n; *f->done < f->n; *f->done += n) {
        n = f->n - *f->done < SHOWN ? f->n - *f->done : SHOWN;
        queue_put(&call, f->name, from, f->len, n);
    }
    for (int tries = 0; queue_left(&call, f->name) != f->n; tries++) { /* the last ones may count as delayed at first */
        if (tries == 50) bench_die("the queue does not have all messages");
        process_pause(100);
    }
}

void queue_fill(const char *name, const char *path, size_t len, uint64_t n)
{
    process_result result;
    volatile uint64_t *done = process_share(sizeof *done);
    filling f = {name, path, len, n, done};
    process_run("filling a queue", fill, &f, done, n, &result);
}
