// The parts of a run's layout that its source leaves out, chosen as a person who tunes the run
// would.
#pragma once

#include "hwprofiles/hardware_profile.h"
#include "planner/reference/case.h"
#include "planner/reference/stack.h"

namespace longspan {

/// The case with all of its layout. Layers of stages as the stack cuts them, unless the case says.
/// Its own microbatch, or where none is published the fastest among powers of two that divide the
/// batch and fit; with it, where there are stages, the fastest interleaving that divides a stage's
/// layers. If nothing fits, one sequence and no interleaving. Sources that leave out the
/// microbatch leave out interleaving, too. Nothing of what was measured is read.
ReferenceCase infer_layout(const ReferenceCase& reference, const ModelSpec& model,
                           const HardwareProfile& hw, const Stack& stack);

}  // namespace longspan
