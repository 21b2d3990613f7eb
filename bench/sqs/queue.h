/* Queues of an ElasticMQ for a measurement, and what is done with them beside the product. Requests are not signed:
 * this server does not ask for it.
 *
 * Functions that say so must be called in a child (process.h): libcurl's connections are not for two processes. */
#ifndef BENCH_SQS_QUEUE_H
#define BENCH_SQS_QUEUE_H

#include <curl/curl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/json.h"

bool queue_start(void); /* the server; false: there is none here */
const char *queue_server(void);
const char *queue_url(const char *name); /* good until the next one */

/* Makes the queue and fills it with the first `n` lines of a file, each of `len` bytes and a newline. */
void queue_fill(const char *name, const char *path, size_t len, uint64_t n);

/* --- in a child --- */

/* A request to be sent, and its answer. */
typedef struct queue_call {
    CURL *easy;
    struct curl_slist *headers;
    once_buf body, answer;
} queue_call;

void queue_create(queue_call *call, const char *name);
/* Sends the next `n` lines of a file, each of `len` bytes and a newline. */
void queue_put(queue_call *call, const char *name, FILE *from, size_t len, uint64_t n);

void queue_prepare(queue_call *call, const char *action); /* `body` is empty then */
void queue_send(queue_call *call);                        /* and waits for the answer, which must be good */
void queue_check(const queue_call *call);                 /* ends the process unless the answer is good */
uint64_t queue_left(queue_call *call, const char *name);  /* messages that are not deleted */

/* The messages of an answer to ReceiveMessage. */
size_t queue_received(once_json *json, const queue_call *call, once_json_value out[10]);
void queue_write_receive(queue_call *call, const char *name);
/* A delete of up to ten of them. */
void queue_write_delete(queue_call *call, const char *name, const once_json *json, const once_json_value *messages,
                        size_t n);

#endif
