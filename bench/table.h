/* Figures in one or two columns, with what is required of them and whether that was met. */
#ifndef BENCH_TABLE_H
#define BENCH_TABLE_H

#include <stddef.h>

#define TABLE_COLUMNS 2
#define TABLE_ROWS 40

typedef struct row {
    const char *name, *label; /* for machines, for people */
    int decimals;
    char relation; /* 'g': at least, 'l': at most, 0: nothing is required */
    double required;
    double value[TABLE_COLUMNS]; /* below 0: not measured */
} row;

typedef struct table {
    const char *columns[TABLE_COLUMNS], *names[TABLE_COLUMNS]; /* for people, for machines; NULL: no such column */
    row rows[TABLE_ROWS];
    size_t n;
} table;

/* A row without values. */
row *table_add(table *t, const char *name, const char *label, int decimals);

void table_print(const table *t);
void table_print_json(const table *t); /* members of an object, with a comma in front */

/* "12,345" or "1.23"; "-" below 0. */
const char *table_number(double value, int decimals, char out[32]);

#endif
