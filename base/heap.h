// Heap settings for a program that searches.
#pragma once

namespace longspan {

/// Makes the heap keep freed memory. A search allocates and frees thousands of programs of some
/// megabytes. Memory returned to the system in between is zeroed at the next allocation, which
/// takes up to a third of the search. For a program's main(); does nothing unless the C library is
/// GNU's.
void keep_freed_memory();

}  // namespace longspan
