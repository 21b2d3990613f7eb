/* What the failure of a statement of the user means: whose fault it is, and which part of its text may be shown. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "db/postgres/user.h"

#include "base/banned.h"

enum { NAMES_IN_A_ROW = 10 };

static once_fault_kind fault_kind(const char *state, int status)
{
    if (strncmp(state, "23", 2) == 0 || strncmp(state, "P0", 2) == 0 || strncmp(state, "44", 2) == 0)
        return ONCE_FAULT_CONSTRAINT;
    switch (once_status_class(status)) {
    case ONCE_CLASS_RETRY: return ONCE_FAULT_RETRY;
    case ONCE_CLASS_PAUSE: return ONCE_FAULT_PAUSE;
    case ONCE_CLASS_FATAL: return ONCE_FAULT_FATAL;
    default: return ONCE_FAULT_DATA;
    }
}

/* Errors about values quote them; reasons and logs must not show them. A value may contain quotes, so everything from
 * the first to the last quote of the whole text is left out, before the text is cut. Other languages have other quotes:
 * then only the SQLSTATE is shown. */
static void without_values(const char *state, const char *text, char *out, size_t size)
{
    assert(size > 0);
    const char *first = strchr(text, '"'), *last = strrchr(text, '"');
    if (!first) first = last = text + strlen(text);
    const char *behind = last > first ? last : "";
    bool plain = true;
    for (const char *at = text; at < first; at++) plain &= (unsigned char)*at < 0x80;
    for (const char *at = behind; *at; at++) plain &= (unsigned char)*at < 0x80;
    if (plain) snprintf(out, size, "%.*s%s%s", (int)(first - text), text, *first ? "\"" : "", behind);
    else snprintf(out, size, "a value does not fit (SQLSTATE %s)", state);
}

/* Errors of the classes of the server itself (disk, memory, connections) that only this statement has met or raised:
 * the severity is ERROR, and the server goes on. Damage and a full disk concern all messages. */
static bool is_internal(const once_pg *pg, const PGresult *result, const char *state)
{
    static const char *const states[] = {"XX", "58", "53", "08", "57P"};
    const char *severity = result ? PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED) : NULL;
    if (!state || !severity || strcmp(severity, "ERROR") != 0 || !once__pg_alive(pg)) return false;
    if (strcmp(state, "XX001") == 0 || strcmp(state, "XX002") == 0 || strcmp(state, "53100") == 0) return false;
    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        if (strncmp(state, states[i], strlen(states[i])) == 0) return true;
    return false;
}

/* What a name stands for may have been dropped; then all messages that contain the name fail. So many failures in a row
 * are not the fault of a message. */
static bool is_of_message(once_pg_stmt *stmt, once_pg_blame blame)
{
    assert(stmt || blame == ONCE_PG_BLAME_NOBODY); /* only a statement of the user has values of a message */
    if (blame == ONCE_PG_BLAME_NAME && stmt->names < NAMES_IN_A_ROW) return ++stmt->names;
    return blame == ONCE_PG_BLAME_VALUE;
}

static void say_fault(once_pg *pg, const char *state, const char *text, once_pg_blame blame, once_fault *fault)
{
    assert(state || blame == ONCE_PG_BLAME_NOBODY);
    snprintf(fault->state, sizeof fault->state, "%s", state ? state : "");
    const char *why = text             ? text
                      : pg->silence[0] ? pg->silence
                      : pg->conn       ? PQerrorMessage(pg->conn)
                                       : "the connection was lost";
    snprintf(fault->text, sizeof fault->text, "%s", why[0] ? why : "the server sent a reply that no statement has");
    if (blame != ONCE_PG_BLAME_NOBODY)
        once__pg_say_blame(state, fault->kind == ONCE_FAULT_DATA, fault->text, sizeof fault->text);
    else if (text && fault->kind == ONCE_FAULT_DATA) without_values(state, text, fault->text, sizeof fault->text);
    fault->text[strcspn(fault->text, "\n")] = '\0';
}

int once__pg_fault_given(once_pg *pg, const PGresult *result, once_pg_stmt *stmt, const once_value *values, size_t n,
                         once_fault *fault)
{
    const char *state = result ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;
    const char *text = result ? PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY) : NULL;
    const char *name = result ? PQresultErrorField(result, PG_DIAG_CONSTRAINT_NAME) : NULL;
    const once_pg_given given = {stmt ? stmt->sql : NULL, values, stmt ? stmt->types : NULL, n};
    const once_pg_blame blame = result && stmt ? once__pg_blame(result, &given) : ONCE_PG_BLAME_NOBODY;
    int status = is_of_message(stmt, blame) ? ONCE_E_MESSAGE : once__pg_status(state);
    once__pg_heed_state(pg, state);
    const once_fault_kind kind =
        is_internal(pg, result, state) ? ONCE_FAULT_INTERNAL : fault_kind(state ? state : "", status);
    if (kind == ONCE_FAULT_CONSTRAINT || kind == ONCE_FAULT_DATA || kind == ONCE_FAULT_INTERNAL)
        status = ONCE_E_MESSAGE;
    if (!fault) return status;
    *fault = (once_fault){.kind = kind, .changed = true, .aborted = status == ONCE_E_UNAVAILABLE};
    snprintf(fault->constraint, sizeof fault->constraint, "%s", name ? name : "");
    say_fault(pg, state, text, blame, fault);
    return status;
}

int once__pg_fault(once_pg *pg, const PGresult *result, once_fault *fault)
{
    return once__pg_fault_given(pg, result, NULL, NULL, 0, fault);
}
