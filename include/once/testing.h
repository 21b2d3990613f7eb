/* Failpoints, for tests of programs that use the library: end the process, or let a step fail, at a chosen moment.
 *
 * A failpoint marks a step between receive and ack ("commit_before": about to commit). once_features lists them. A test
 * arms one, runs the program until it dies there, runs it again, and checks that the effect happened once.
 *
 * Guarantee: a program that arms none behaves as if there were none. The command `once` arms those that the environment
 * variable ONCE_FAILPOINT names; the library does not read it.
 *
 * Thread rule: arm before anything else runs, from one thread.
 *
 * Ownership: `spec` is read during the call.
 *
 * Errors: E_USAGE, and `err` names the wrong part; what was armed before stays armed.
 *
 * Example
 *
 *     #include <stdio.h>
 *     #include <once/testing.h>
 *
 *     int main(void)
 *     {
 *         once_error err;
 *         if (once_testing_failpoints("commit_before:kill:2", &err) != ONCE_OK) // the second commit ends the process
 *             return fprintf(stderr, "%s\n", err.text), 1;
 *         // ... run a pipeline here: it dies before its second commit ...
 *         return once_testing_failpoints(NULL, &err) == ONCE_OK ? 0 : 1;
 *     }
 */
#ifndef ONCE_TESTING_H
#define ONCE_TESTING_H

#include "once/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Arms failpoints, instead of those that were armed before. `spec`: "NAME:ACTION[:N][,...]": when NAME is reached for
 * the Nth time (default 1), do ACTION once. Actions: kill (SIGKILL), abort, stop (SIGSTOP), exit, error (the step
 * fails). NULL or empty: none. */
ONCE_API int once_testing_failpoints(const char *spec, once_error *err);

#ifdef __cplusplus
}
#endif
#endif
