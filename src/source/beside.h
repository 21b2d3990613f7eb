/* Files in the folder of a source that are not to be read.
 *
 * Closing any descriptor of a file drops all POSIX locks that the process has on it, and SQLite works with such locks. A store or a
 * database of ours may lie in the folder of a source: opened and closed in passing it would go on without its locks, and be damaged
 * by the next process that uses it. A descriptor of the kind O_PATH is harmless. */
#ifndef ONCE_SOURCE_BESIDE_H
#define ONCE_SOURCE_BESIDE_H

#include <stdbool.h>
#include <sys/stat.h>

/* Whether this process may have locks on a file: it has the file open for reading and writing, or it is one that SQLite keeps
 * beside a database, opening and removing it as it likes. True also where that cannot be found out. */
bool once_may_be_locked(const char *name, const struct stat *file);

/* Opens for reading what an O_PATH descriptor is of; -1 with errno. */
int once_reopen(int path_fd);

bool once_is_database(int fd);

#endif
