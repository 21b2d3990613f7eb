/* Files that are opened and closed in passing, while this process may have a database open.
 *
 * Closing any descriptor of a file drops all POSIX locks that the process has on it, and SQLite works with such locks.
 * Whoever names a file (of a source, a secret, a configuration) may name one that a store or an effect has open, and a
 * database may lie in the folder of a source: opened and closed in passing it would go on without its locks, and be
 * damaged by the next process that uses it. A descriptor of the kind O_PATH is harmless.
 *
 * Another thread may open a database at any moment. So what counts is the moment of the close: once_close_beside looks
 * then, and no database is opened meanwhile (once_database_opening). What would drop locks is closed later.
 *
 * Thread rule: any thread. */
#ifndef ONCE_BASE_BESIDE_H
#define ONCE_BASE_BESIDE_H

#include <stdbool.h>
#include <sys/stat.h>

#include "base/env.h"

/* Whether this process may have locks on a file: it has the file open for reading and writing, or open and it is a
 * database, or it is one that SQLite keeps beside a database, opening and removing it as it likes. True also where that
 * cannot be found out. It spares opening the file; that it is false says nothing about the next moment. */
bool once_may_be_locked(const char *name, const struct stat *file);

/* Opens for reading what an O_PATH descriptor is of; -1 with errno. */
int once_reopen(int path_fd);

bool once_is_database(int fd);

/* Closes a file that somebody else in this process may have open as a database: at once, or when nobody has any more.
 * `env` opened it; NULL: the system did. */
void once_close_beside(const once_env *env, int fd);

/* Around opening a database, up to the moment when its file is open. The same thread closes nothing beside it
 * meanwhile. */
void once_database_opening(void);
void once_database_opened(void);

#endif
