#include "engine/cuda/fault.h"

#include "base/error.h"

namespace longspan::cuda {

void throw_fault(const Fault& fault) {
  switch (fault.kind) {
    case Fault::Kind::none:
      return;
    case Fault::Kind::token:
      throw failed("embedding: token {} is outside the vocabulary; check the data", fault.value);
    case Fault::Kind::label:
      throw failed("loss: label {} is outside the vocabulary; check the data", fault.value);
    case Fault::Kind::loss:
      throw failed("loss: not finite; try a lower learning rate or check the weights");
    case Fault::Kind::gradient_norm:
      throw failed("the gradient norm is not finite; try a lower learning rate");
  }
}

}  // namespace longspan::cuda
