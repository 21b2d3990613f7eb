/* What an errno means, in English whatever the locale of the host program: such texts are kept in reasons, and strerror
 * translates them. */
#ifndef ONCE_BASE_ERRNO_TEXT_H
#define ONCE_BASE_ERRNO_TEXT_H

#include <string.h>

static inline const char *once_errno_text(int error)
{
    const char *text = strerrordesc_np(error);
    return text ? text : "an error that has no name";
}

#endif
