/* In place of the generated header: what test_modules.c and its module have in common. */
#define ONCE_MODULE_INTERFACE 20260u
