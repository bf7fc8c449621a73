// The heap of a program that searches.
#pragma once

namespace longspan {

/// Lets the heap keep what is freed. A search makes and drops thousands of programs of some
/// megabytes, and memory that was given back to the system in between comes cleared the next time,
/// which takes up to a third of the search. For a program's main(); does nothing where the C
/// library is not GNU's.
void keep_freed_memory();

}  // namespace longspan
