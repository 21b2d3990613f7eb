/* Makes calls that we never want compile errors. Every .c file of the library includes this last. */
#ifndef ONCE_BASE_BANNED_H
#define ONCE_BASE_BANNED_H
#pragma GCC poison strcpy strcat strncpy strncat sprintf vsprintf gets strtok atoi atol atoll rand srand system popen  \
    gmtime localtime ctime asctime
#endif
