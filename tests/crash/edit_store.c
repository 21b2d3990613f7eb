/* edit_store FILE SQL: changes rows of a sqlite store as a test wants them, with the sums that belong to them. */
#include <stdio.h>

#include "store/sqlite/sqlite.h"

int main(int argc, char **argv)
{
    const once_store_options options = {.size = sizeof options};
    once_backend *store = NULL;
    once_error err = {0};
    if (argc != 3) return 2;
    int rc = once__sqlite_store_open(argv[1], &options, NULL, &store, &err);
    if (rc == ONCE_OK) rc = once__sqlite_store_edit(store, argv[2], &err);
    if (rc != ONCE_OK) fprintf(stderr, "%s\n", err.text);
    once__store_close(store);
    return rc == ONCE_OK ? 0 : 1;
}
