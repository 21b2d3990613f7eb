/* The table of statuses, and the one function that fills a once_error. */
#include "base/no_memory.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/plain.h"

#include "base/banned.h"

once_class once_status_class(int status)
{
    switch (status) {
#define ONCE_STATUS_CLASS(name, value, class_, text)                                                                   \
    case value: return ONCE_CLASS_##class_;
        ONCE_STATUS_MAP(ONCE_STATUS_CLASS)
#undef ONCE_STATUS_CLASS
    default: return ONCE_CLASS_FATAL; /* not one of our numbers: going on could do harm */
    }
}

const char *once_status_name(int status)
{
    switch (status) {
#define ONCE_STATUS_NAME(name, value, class_, text)                                                                    \
    case value: return #name;
        ONCE_STATUS_MAP(ONCE_STATUS_NAME)
#undef ONCE_STATUS_NAME
    default: return "?";
    }
}

const char *once_status_text(int status)
{
    switch (status) {
#define ONCE_STATUS_TEXT(name, value, class_, text)                                                                    \
    case value: return text;
        ONCE_STATUS_MAP(ONCE_STATUS_TEXT)
#undef ONCE_STATUS_TEXT
    default: return "unknown status";
    }
}

/* The length to cut `text` to so that no UTF-8 sequence is incomplete. */
static size_t whole_characters(const char *text, size_t len)
{
    size_t start = len;
    while (start > 0 && len - start < 4) {
        unsigned char byte = (unsigned char)text[--start];
        if ((byte & 0xc0) == 0x80) continue; /* a continuation byte: look further left */
        size_t need = byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
        return len - start < need ? start : len;
    }
    return len;
}

/* Makes one line without control characters. Errors of databases and libraries often have line breaks, and text from a
 * message may have anything. */
static size_t flatten(char *text, size_t len)
{
    len = once_make_plain(text, len, ' ');
    while (len > 0 && text[len - 1] == ' ') len--;
    return len;
}

__attribute__((format(printf, 4, 0))) static int fail(once_error *err, int status, const char *before,
                                                      const char *format, va_list args)
{
    if (status == ONCE_OK) status = ONCE_E_BUG; /* a failure must not look like success */
    if (!err) return status;

    char text[sizeof err->text] = ""; /* an argument may be err->text itself */
    const size_t begins = strlen(before);
    assert(begins < sizeof text);
    memcpy(text, before, begins);
    const int length = format ? vsnprintf(text + begins, sizeof text - begins, format, args) : 0;
    assert(length >= 0);

    size_t len = begins + (size_t)length;
    if (len >= sizeof text) len = whole_characters(text, sizeof text - 1);
    len = flatten(text, len);
    memcpy(err->text, text, len);
    err->text[len] = '\0';
    err->status = status;
    return status;
}

int once_fail(once_error *err, int status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    status = fail(err, status, "", format, args);
    va_end(args);
    return status;
}

int once_no_memory(once_error *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int status = fail(err, ONCE_E_NOMEM, "out of memory ", format, args);
    va_end(args);
    return status;
}
