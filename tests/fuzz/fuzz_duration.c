/* Fault 21: no text makes a duration or a time overflow, and what was read is written and read back the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/duration.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_duration(once_bytes text)
{
    int64_t ms = -1, again = -1;
    once_error err = {0};
    int status = once_duration_parse(text, &ms, &err);
    if (status != ONCE_OK) {
        if (ms != -1 || err.status != status || err.text[0] == '\0') abort();
        return;
    }
    if (ms < 0 || (ms == ONCE_FOREVER && (text.len != 7 || memcmp(text.data, "forever", 7) != 0))) abort();
    char out[ONCE_DURATION_TEXT];
    once_duration_format(ms, out);
    if (once_duration_parse((once_bytes){out, strlen(out)}, &again, NULL) != ONCE_OK || again != ms) abort();
}

static void check_time(once_bytes text)
{
    int64_t ms = -1, again = -2;
    if (once_time_parse(text, &ms, NULL) != ONCE_OK) return;
    if (ms == ONCE_NO_TIME) abort();
    char out[ONCE_TIME_TEXT];
    once_time_format(ms, out);
    if (once_time_parse((once_bytes){out, strlen(out)}, &again, NULL) != ONCE_OK || again != ms) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    once_bytes text = {(const char *)data, size};
    check_duration(text);
    check_time(text);
    return 0;
}
