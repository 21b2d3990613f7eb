/* What SQS's errors mean here. An answer with an error is {"__type":"com.amazonaws.sqs#QueueDoesNotExist",
 * "message":"..."}; a proxy or a balancer in between may answer with anything. */
#include <assert.h>
#include <string.h>

#include "source/sqs/sqs.h"

#include "base/banned.h"

static const struct {
    const char *code; /* behind the last '#' or '.' */
    sqs_fault fault;
} codes[] = {
    {"QueueDoesNotExist", SQS_NO_QUEUE},
    {"NonExistentQueue", SQS_NO_QUEUE},
    {"ReceiptHandleIsInvalid", SQS_GONE},
    {"MessageNotInflight", SQS_GONE},
    {"ThrottlingException", SQS_THROTTLED},
    {"Throttling", SQS_THROTTLED},
    {"RequestThrottled", SQS_THROTTLED},
    {"RequestThrottledException", SQS_THROTTLED},
    {"TooManyRequestsException", SQS_THROTTLED},
    {"RequestLimitExceeded", SQS_THROTTLED},
    {"SlowDown", SQS_THROTTLED},
    {"OverLimit", SQS_THROTTLED}, /* too many messages of the queue are in flight */
    {"KmsThrottled", SQS_THROTTLED},
    {"ServiceUnavailable", SQS_THROTTLED},
    {"InternalError", SQS_THROTTLED},
    {"InternalFailure", SQS_THROTTLED},
    {"ExpiredToken", SQS_BAD_KEYS},
    {"ExpiredTokenException", SQS_BAD_KEYS},
    {"InvalidClientTokenId", SQS_BAD_KEYS},
    {"InvalidAccessKeyId", SQS_BAD_KEYS},
    {"UnrecognizedClientException", SQS_BAD_KEYS},
    {"InvalidToken", SQS_BAD_KEYS},
    {"TokenRefreshRequired", SQS_BAD_KEYS},
    {"RequestTimeTooSkewed", SQS_BAD_TIME},
    {"RequestExpired", SQS_BAD_TIME},
    {"RequestInTheFuture", SQS_BAD_TIME},
    {"SignatureDoesNotMatch", SQS_BAD_TIME},
    {"InvalidSignatureException", SQS_BAD_TIME},
    {"AuthFailure", SQS_BAD_TIME},
};

static bool has(once_bytes text, const char *word)
{
    return text.len && memmem(text.data, text.len, word, strlen(word)) != NULL;
}

/* "com.amazonaws.sqs#QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue" */
static once_bytes last_word(once_bytes code)
{
    if (!code.len) return code;
    size_t at = code.len;
    while (at > 0 && code.data[at - 1] != '#' && code.data[at - 1] != '.') at--;
    return (once_bytes){code.data + at, code.len - at};
}

sqs_fault once__sqs_fault_of(once_bytes code, once_bytes text)
{
    const once_bytes word = last_word(code);
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (once_bytes_equal(word, once_bytes_of(codes[i].code))) return codes[i].fault;
    /* Too late, or an old handle: "The receipt handle has expired", "Message does not exist or is not available for
     * visibility timeout change". */
    const bool parameter = once_bytes_equal(word, ONCE_BYTES("InvalidParameterValue"));
    if (parameter && (has(text, "expired") || has(text, "eceipt handle") || has(text, "not available for visibility")))
        return SQS_GONE;
    return SQS_REFUSED;
}

int once__sqs_status(sqs_fault fault)
{
    switch (fault) {
    case SQS_FINE: return ONCE_OK;
    case SQS_NO_ANSWER:
    case SQS_THROTTLED: return ONCE_E_UNAVAILABLE;
    case SQS_NO_QUEUE: return ONCE_E_MISSING;
    case SQS_BAD_KEYS:
    case SQS_BAD_TIME:
    case SQS_REFUSED:
    case SQS_GONE: break;
    }
    return ONCE_E_DENIED;
}

static const char *advice(sqs_fault fault)
{
    switch (fault) {
    case SQS_NO_QUEUE: return "; create the queue, or correct 'queue', 'region' or the account";
    case SQS_BAD_KEYS: return "; renew the credentials";
    case SQS_BAD_TIME: return "; correct the secret key, the 'region', or the clock of this host";
    case SQS_REFUSED: return "; grant the right, or correct the pipeline file";
    default: return "";
    }
}

sqs_fault once__sqs_read_fault(long http, once_bytes body, const char *action, once_error *err)
{
    if (http == 200) return SQS_FINE;
    once_arena arena = {0};
    once_json json;
    once_bytes code = {0}, text = {0};
    once_json_init(&json);
    if (body.len && once_json_parse(&json, body, NULL, NULL) == ONCE_OK) {
        const once_json_value root = once_json_root(&json);
        (void)once__sqs_text(&json, root, "__type", &arena, &code);
        if (!once__sqs_text(&json, root, "message", &arena, &text))
            (void)once__sqs_text(&json, root, "Message", &arena, &text);
    }
    sqs_fault fault = SQS_REFUSED;
    if (code.len) fault = once__sqs_fault_of(code, text);
    if (fault == SQS_REFUSED && (http >= 500 || http == 429)) fault = SQS_THROTTLED;
    assert(fault != SQS_FINE);
    const once_bytes word = last_word(code);
    (void)once_fail(err, once__sqs_status(fault), "%s: SQS answers %ld%s%.*s%s%.*s%s", action, http,
                    code.len ? " " : "", (int)(word.len < 100 ? word.len : 100), word.data ? word.data : "",
                    text.len ? ": " : "", (int)(text.len < 200 ? text.len : 200), text.data ? text.data : "",
                    advice(fault));
    once_json_release(&json);
    once_arena_release(&arena);
    return fault;
}
