// How a product's shape meets the workers that compute it: whole tiles, rounds of tiles.
#pragma once

#include "hwprofiles/hardware_profile.h"

namespace longspan {

/// `count` products of C[rows, columns] at depth `depth`, computed side by side.
struct Product {
  double rows = 1, columns = 1, depth = 1;
  double count = 1;
};

/// The rate of `workers` at these products, as a fraction of what it would be if all of them were
/// busy to the end with tiles of the best shape: 1 / workers if there is one tile. The best over
/// the tiling's shapes; 1 where it has none.
double tiled_share(const Tiling& tiling, double workers, const Product& product);

}  // namespace longspan
