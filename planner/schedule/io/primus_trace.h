// Reads traces of pipelines in the JSON format of AMD's Primus (dump_pp_data) and its visualiser.
//
// A folder has config.json with pp_size, vp_size (or vpp_size; default 1) and num_mbs (or
// microbatches), and for each rank pp_rank_<r>.json. That has for each iteration an object with
// total (ms), memory (GB), and lists fwd_start, fwd_end, bwd_start, bwd_end (ms) of vp_size *
// num_mbs entries in the order of the rank. Optional lists are wgrad_start and wgrad_end for a
// split backward, and for every kind <kind>_minibatch, from 0 or 1 on, and <kind>_chunk. Without
// the latter the order is Megatron's: microbatches in groups of pp_size through one chunk after
// another, backward from the last chunk. A pure function except for reading files; safe from any
// thread.
#pragma once

#include <filesystem>

#include "planner/schedule/measured.h"

namespace longspan {

/// Chunk k of rank r is stage k * pp_size + r. Of two chunks, the second is on the way back (a V)
/// if the last rank begins it before the first does. Throws bad_input with file, iteration and key
/// for violations of the format, and if a microbatch is missing or appears twice.
MeasuredPipeline read_primus_trace(const std::filesystem::path& folder);

}  // namespace longspan
