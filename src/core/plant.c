#include "core/plant.h"

#include "base/banned.h"

#ifdef ONCE_TEST_BUILD
uint64_t once_planted;
#endif
