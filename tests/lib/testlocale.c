#include "testlocale.h"

#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NAME "de_DE.ISO-8859-1"

static char folder[64];

static void remove_folder(void)
{
    char command[120];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0) print_error("cannot remove %s\n", folder);
}

static void make_locale(void)
{
    char command[240];
    snprintf(folder, sizeof folder, "/tmp/once-locale-XXXXXX");
    if (!mkdtemp(folder)) fail_msg("cannot make a folder");
    atexit(remove_folder);
    snprintf(command, sizeof command, "localedef -i de_DE -f ISO-8859-1 '%s/" NAME "' >'%s/log' 2>&1", folder, folder);
    if (system(command) != 0) fail_msg("localedef cannot make " NAME "; is the package 'locales' there?");
}

void test_locale_enter(void)
{
    if (!folder[0]) make_locale();
    setenv("LOCPATH", folder, 1);
    if (!setlocale(LC_ALL, NAME)) fail_msg("the locale " NAME " was made and is not known");
    if (strcmp(localeconv()->decimal_point, ",") != 0) fail_msg(NAME " has no decimal comma");
}

void test_locale_leave(void)
{
    setlocale(LC_ALL, "C");
    unsetenv("LOCPATH");
}
