/* A stream handler that does nothing: "done" to every message, or the outcome that its argument says. What is left is
 * the cost of the way to it and back. The id is the first member of a line ({"id":"17",...), so nothing else is looked
 * at. Replies go out when the input is drained. */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FRONT "{\"id\":\""
#define BACK "\",\"outcome\":\"%s\"}\n"

enum { ID_MAX = 20 };

static char in[1 << 20], out[1 << 20], back[64];
static size_t back_len;

static bool write_all(const char *at, size_t len)
{
    while (len > 0) {
        const ssize_t put = write(STDOUT_FILENO, at, len);
        if (put < 0 && errno != EINTR) return false;
        if (put > 0) at += put, len -= (size_t)put;
    }
    return true;
}

/* The length of the reply; 0: not a line that we know. */
static size_t reply(const char *line, size_t len, char *to)
{
    const size_t front = sizeof FRONT - 1;
    if (len < front || memcmp(line, FRONT, front) != 0) return 0;
    const char *end = memchr(line + front, '"', len - front);
    if (!end || end - line > (ptrdiff_t)front + ID_MAX) return 0;
    const size_t id = (size_t)(end - line);
    memcpy(to, line, id);
    memcpy(to + id, back, back_len);
    return id + back_len;
}

int main(int argc, char **argv)
{
    back_len = (size_t)snprintf(back, sizeof back, BACK, argc > 1 ? argv[1] : "done");
    if (back_len >= sizeof back) return 1;
    size_t have = 0, ready = 0;
    ssize_t got;
    while ((got = read(STDIN_FILENO, in + have, sizeof in - have)) > 0) {
        const char *line = in, *end;
        have += (size_t)got;
        while ((end = memchr(line, '\n', (size_t)(in + have - line)))) {
            const size_t len = reply(line, (size_t)(end - line), out + ready);
            if (len == 0) return 1;
            ready += len;
            line = end + 1;
            if (ready > sizeof out - 100) {
                if (!write_all(out, ready)) return 1;
                ready = 0;
            }
        }
        have = (size_t)(in + have - line);
        memmove(in, line, have);
        if (have == sizeof in || !write_all(out, ready)) return 1; /* a line that is too long, or the reader is gone */
        ready = 0;
    }
    return got < 0;
}
