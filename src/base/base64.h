/* Bytes as base64 (RFC 4648, with padding), for JSON, which has no bytes. Thread rule: any thread. */
#ifndef ONCE_BASE_BASE64_H
#define ONCE_BASE_BASE64_H

#include "base/buf.h"

/* Appends it. False: the buffer has failed. */
bool once_buf_base64(once_buf *buf, once_bytes bytes);

#endif
