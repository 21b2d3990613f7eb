#include "sim.h"
#include <stdlib.h>
int main(int argc, char **argv){ sim_result r; (void)argc; (void)argv;
 unsigned long from = argc>1?strtoul(argv[1],0,10):1, n = argc>2?strtoul(argv[2],0,10):1; unsigned long bad=0; uint64_t steps=0; for (unsigned long s=from;s<from+n;s++){ sim_run(s, n==1, &r); steps+=r.steps; if(r.failed){bad++; if(bad<12) printf("seed %lu: %s\n", s, r.why);} } printf("%lu bad, %llu steps\n", bad,(unsigned long long)steps); }
