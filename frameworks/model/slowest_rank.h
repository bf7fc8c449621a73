// How much longer a step takes because it waits for the slowest of its ranks.
#pragma once

namespace longspan {

/// The expected largest of `n` draws from a standard normal distribution: 0 of one, 1.42 of 8, 3.04
/// of 512 (Blom's approximation, within 1 %). REQUIRES: n >= 1.
double largest_of_normal(double n);

/// The time of a step on `ranks` ranks relative to one on `known` of them, if the speed of a rank
/// deviates by `spread`. 1 on no more than `known`, whose slowest rank is in the rates of kernels.
double waiting_for_slowest(double spread, double ranks, double known);

}  // namespace longspan
