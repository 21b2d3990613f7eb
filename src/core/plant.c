/* The planted bug of a test build (core/plant.h). */
#include "core/plant.h"

#include "base/banned.h"

#ifdef ONCE_TEST_BUILD
once_plant once_planted;
#endif
