/* Closing files safely while this process has SQLite databases open.
 *
 * Closing any descriptor of a file drops all POSIX locks that the process has on that file, and SQLite relies on such
 * locks. A file that a user names (of a source, a secret, a configuration) may be a database that a store or an effect
 * has open, or a database may be in the folder of a source. If we opened and closed it, SQLite would go on without its
 * locks, and the next process that uses the database would damage it. An O_PATH descriptor is harmless.
 *
 * Another thread may open a database at any time. So the check happens at the close (once_close_beside), and no
 * database can be opened meanwhile (once_database_opening). A descriptor whose close would drop locks is closed later.
 *
 * Thread rule: any thread. */
#ifndef ONCE_BASE_BESIDE_H
#define ONCE_BASE_BESIDE_H

#include <stdbool.h>
#include <sys/stat.h>

#include "base/env.h"

/* Whether this process may have locks on a file: it has the file open for reading and writing; or open, and it is a
 * database; or the name is that of a file that SQLite keeps beside a database. Also true if that cannot be found out.
 * True spares opening the file. False may be wrong a moment later, so close it with once_close_beside anyway. */
bool once_may_be_locked(const char *name, const struct stat *file);

/* Opens the file of an O_PATH descriptor for reading; -1 with errno. */
int once_reopen(int path_fd);

/* Whether the file begins like an SQLite database. */
bool once_is_database(int fd);

/* Closes a file that other code in this process may have open as a database: at once, or when that code has closed it.
 * `env`: the environment that opened it; NULL: opened by a system call. */
void once_close_beside(const once_env *env, int fd);

/* Call these before and after a database file is opened. In between, the same thread must not call once_close_beside.
 * */
void once_database_opening(void);
void once_database_opened(void);

#endif
