#include "conform.h"

int main(void) { return conform_run(&(conform_driver){"memory", "memory:"}); }
