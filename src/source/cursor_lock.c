/* Which process holds a cursor of a file. Each consumer of a file has a cursor, and each cursor one holder.
 *
 * We often may not write to the file, and an exclusive lock needs a descriptor that may. So the holder takes a
 * shared lock on one byte that stands for its cursor, and a process that wants the cursor tests whether another one
 * has that lock. A lock on the whole file, held for that moment, makes testing and taking one step.
 * The byte is anywhere in 2^62, mostly far behind the end of the file, where locks work as well. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>

#include "base/errno_text.h"
#include "source/source.h"

#include "base/banned.h"

#define TRIES 100
#define PAUSE_MS 10

static struct flock byte_of(once_hash which, short type)
{
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)(which.a >> 2), .l_len = 1};
}

static int take(int fd, once_hash which, once_error *err)
{
    struct flock theirs = byte_of(which, F_WRLCK), ours = byte_of(which, F_RDLCK);
    if (fcntl(fd, F_OFD_GETLK, &theirs) != 0)
        return once_fail(err, ONCE_E_IO, "cannot ask for locks: %s", once_errno_text(errno));
    if (theirs.l_type != F_UNLCK) return once_fail(err, ONCE_E_BUSY, "its cursor is held by another process");
    if (fcntl(fd, F_OFD_SETLK, &ours) != 0) return once_fail(err, ONCE_E_IO, "cannot lock: %s", once_errno_text(errno));
    return ONCE_OK;
}

int once_cursor_lock(const once_env *env, int fd, once_hash which, once_error *err)
{
    for (int i = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; i++) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return once_fail(err, ONCE_E_IO, "cannot lock: %s", once_errno_text(errno));
        if (i == TRIES) return once_fail(err, ONCE_E_BUSY, "another process has locked it");
        once_env_sleep_ms(env, PAUSE_MS);
    }
    const int rc = take(fd, which, err);
    flock(fd, LOCK_UN);
    return rc;
}
