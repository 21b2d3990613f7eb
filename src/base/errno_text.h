/* The text of an errno, in English whatever the locale of the host program is. Stores keep such texts in reasons, and
 * strerror would translate them. Thread rule: any thread. */
#ifndef ONCE_BASE_ERRNO_TEXT_H
#define ONCE_BASE_ERRNO_TEXT_H

#include <string.h>

static inline const char *once_errno_text(int error)
{
    const char *text = strerrordesc_np(error);
    return text ? text : "unknown error";
}

#endif
