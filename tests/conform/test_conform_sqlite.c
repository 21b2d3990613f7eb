/* Two handles are used by two threads here: worth a run under tsan. */
#include "conform.h"

int main(void) { return conform_run(&(conform_driver){"sqlite", "sqlite:%s/once.db"}); }
