#include "base/heap.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace longspan {

void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the maximum allowed
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 16 << 20);
#endif
}

}  // namespace longspan
