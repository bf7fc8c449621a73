// How well a product's shape occupies the workers that compute it, in whole tiles and rounds of
// tiles.
#pragma once

#include "hwprofiles/hardware_profile.h"

namespace longspan {

/// `count` products of C[rows, columns] at depth `depth`, computed side by side.
struct Product {
  double rows = 1, columns = 1, depth = 1;
  double count = 1;
};

/// The rate that `workers` reach at these products, as a fraction of the rate with all of them busy
/// to the end on tiles of the best shape: 1 / workers if there is one tile. The maximum over the
/// tiling's shapes; 1 where the tiling has no shapes.
double tiled_share(const Tiling& tiling, double workers, const Product& product);

}  // namespace longspan
