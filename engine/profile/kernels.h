// The samples of the CPU's compute kernels: matrix products, attention and the elementwise
// families, each run through the engine's own code. Internal to engine/profile.
#pragma once

#include "engine/cpu/thread_pool.h"
#include "engine/profile/sampler.h"

namespace longspan {

/// Add the samples. Pool and scratch must outlive their measurement.
void add_product_samples(Sampler& sampler, ThreadPool& pool, Scratch& scratch);
void add_attention_samples(Sampler& sampler, ThreadPool& pool, Scratch& scratch);
void add_row_samples(Sampler& sampler, ThreadPool& pool, Scratch& scratch);
void add_state_samples(Sampler& sampler, ThreadPool& pool, Scratch& scratch);

}  // namespace longspan
