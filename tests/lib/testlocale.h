/* A locale of a host program whose numbers have a comma (12,75), and whose letters and blanks are others than those of
 * ASCII. */
#ifndef ONCE_TESTS_LIB_TESTLOCALE_H
#define ONCE_TESTS_LIB_TESTLOCALE_H

/* Makes de_DE.ISO-8859-1 in a temporary folder, and sets it for the whole process. Fails the test where that cannot be
 * done: a test of locales without one would prove nothing. */
void test_locale_enter(void);
void test_locale_leave(void); /* back to "C" */

#endif
