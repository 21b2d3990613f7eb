#include "core/plant.h"

#include "base/banned.h"

#ifdef ONCE_TEST_BUILD
unsigned once_planted;
#endif
