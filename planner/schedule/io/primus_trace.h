// Traces of pipelines in the JSON that AMD's Primus writes (dump_pp_data) and its visualiser reads.
//
// A folder has config.json, with pp_size, vp_size (or vpp_size; 1 where there is none) and num_mbs
// (or microbatches), and for each rank pp_rank_<r>.json: by iteration an object with total (ms),
// memory (GB), and lists of fwd_start, fwd_end, bwd_start, bwd_end (ms), vp_size * num_mbs long, in
// the order of the rank. There may be wgrad_start and wgrad_end, where the backward is split, and
// with every kind <kind>_minibatch, from 0 or 1 on, and <kind>_chunk. Where these are missing,
// the order is Megatron's: microbatches in groups of pp_size through one chunk after another,
// backward from the last chunk. Pure function but for reading; safe from any thread.
#pragma once

#include <filesystem>

#include "planner/schedule/measured.h"

namespace longspan {

/// Chunk k of rank r is stage k * pp_size + r, or of two chunks the second is on the way back where
/// the last rank begins it before the first does (a V). Throws bad_input with file, iteration and
/// key for what is not as it is said above, and for microbatches that are not each there once.
MeasuredPipeline read_primus_trace(const std::filesystem::path& folder);

}  // namespace longspan
