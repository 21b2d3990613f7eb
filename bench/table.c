#include "table.h"

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/banned.h"

row *table_add(table *t, const char *name, const char *label, int decimals)
{
    assert(t->n < TABLE_ROWS);
    row *r = &t->rows[t->n++];
    *r = (row){.name = name, .label = label, .decimals = decimals, .value = {-1, -1}};
    return r;
}

static bool met(const row *r, double value) { return r->relation == 'g' ? value >= r->required : value <= r->required; }

const char *table_number(double value, int decimals, char out[32])
{
    if (value < 0) return "-";
    char digits[24];
    snprintf(digits, sizeof digits, "%.*f", decimals, value);
    const size_t whole = strcspn(digits, ".");
    size_t at = 0;
    for (size_t i = 0; digits[i] && at < 30; i++) {
        if (i > 0 && i < whole && (whole - i) % 3 == 0) out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
    return out;
}

void table_print(const table *t)
{
    printf("%-52s %9s", "", "required");
    for (int k = 0; k < TABLE_COLUMNS && t->columns[k]; k++) printf(" %12s %-3s", t->columns[k], "met");
    printf("\n");
    for (size_t i = 0; i < t->n; i++) {
        const row *r = &t->rows[i];
        char required[16] = "", buffer[32];
        if (r->relation) snprintf(required, sizeof required, "%s %.2f", r->relation == 'g' ? ">=" : "<=", r->required);
        printf("%-52s %9s", r->label, required);
        for (int k = 0; k < TABLE_COLUMNS && t->columns[k]; k++)
            printf(" %12s %-3s", table_number(r->value[k], r->decimals, buffer),
                   !r->relation || r->value[k] < 0 ? ""
                   : met(r, r->value[k])           ? "yes"
                                                   : "no");
        printf("\n");
    }
}

void table_print_json(const table *t)
{
    for (size_t i = 0; i < t->n; i++) {
        const row *r = &t->rows[i];
        const char *comma = "";
        printf(",\"%s\":{", r->name);
        if (r->relation) {
            printf("\"%s\":%g", r->relation == 'g' ? "at_least" : "at_most", r->required);
            comma = ",";
        }
        for (int k = 0; k < TABLE_COLUMNS; k++) {
            if (r->value[k] < 0) continue;
            printf("%s\"%s\":%.*f", comma, t->names[k], r->decimals, r->value[k]);
            if (r->relation) printf(",\"%s_met\":%s", t->names[k], met(r, r->value[k]) ? "true" : "false");
            comma = ",";
        }
        printf("}");
    }
}
